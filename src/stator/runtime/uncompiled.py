"""Functions that run uncompiled while what they call is compiled.

Contract. `callees_compiled(options)` gives a function that turns a callable into one of the same behaviour whose own
body is plain Python, and whose calls of Python functions and modules go to dispatchers with these options. This is what
runs where a frame asked to be skipped, at a recompile limit, and after an error that was suppressed: the smallest piece
of the program runs eagerly, never all that is below it.

Functions of torch, of Python and of stator itself, generators and coroutines, and what is marked `disable` are called
as they are.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from stator.bytecode.redirect import calls_redirected
from stator.capture import marks

Dispatching = Callable[[Any], Any]
GENERATORS = 0x20 | 0x80 | 0x200
OWN = ("torch", "stator") + tuple(sys.stdlib_module_names)


def call_module(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """Calls a module past its compiled slot."""
    return module._call_impl(*args, **kwargs)


class CalleesCompiled:
    """Remembers the redirected code of each code object."""

    def __init__(self, dispatching: Dispatching) -> None:
        self.dispatching = dispatching
        self.codes: weakref.WeakKeyDictionary[Any, types.CodeType] = weakref.WeakKeyDictionary()
        self.by_function: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __call__(self, function: Any) -> Any:
        """`function`, running uncompiled with what it calls compiled."""
        kind = type(function)
        if kind is types.MethodType:
            return types.MethodType(self(function.__func__), function.__self__)
        if kind is not types.FunctionType:
            return function
        disabled = function.__dict__.get("_torchdynamo_orig_callable")
        if disabled is not None and function.__dict__.get("_torchdynamo_disable_recursive") is False:
            return self(disabled)
        if marks.mark_of(function) is marks.Mark.DISABLED:
            return function
        made = self.by_function.get(function)
        if made is None or made.__wrapped__ is not function or made.__stator_code__ is not function.__code__:
            made = self.by_function[function] = self._redirected(function)
        return made

    def _redirected(self, function: types.FunctionType) -> Any:
        code = function.__code__
        redirected = calls_redirected(code, self._callee)
        made = types.FunctionType(
            redirected, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__ = function.__qualname__
        made.__module__ = function.__module__
        made.__dict__.update(function.__dict__)
        made.__wrapped__ = function  # type: ignore[attr-defined]
        made.__stator_code__ = code  # type: ignore[attr-defined]
        return made

    def _callee(self, function: Any) -> Any:
        """What a call site calls in place of `function`."""
        kind = type(function)
        if kind is types.FunctionType:
            return self.dispatching(function) if _compilable(function) else function
        if (
            kind is types.MethodType
            and type(function.__func__) is types.FunctionType
            and _compilable(function.__func__)
        ):
            return types.MethodType(self.dispatching(function.__func__), function.__self__)
        if isinstance(function, torch.nn.Module) and marks.mark_of(function) is None:
            if function._compiled_call_impl is None:
                return functools.partial(self.dispatching(call_module), function)
        return function


def _compilable(function: types.FunctionType) -> bool:
    module = function.__module__
    if isinstance(module, str) and module.partition(".")[0] in OWN and module != "__main__":
        return False
    return not function.__code__.co_flags & GENERATORS and marks.mark_of(function) is None


__all__ = ["CalleesCompiled", "call_module"]
