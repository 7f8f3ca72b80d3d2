"""`stator.compile`: the arguments of `torch.compile`, checked, and the callable that stands for the function.

Contract. A function becomes a native dispatcher that looks like it. A module stays itself: the dispatcher goes into
the slot torch keeps for it (`_compiled_call_impl`), which pickling and copying drop. A class, or a callable of some
other kind, is handled as torch does: through its `__call__`. Bad arguments are errors that say what would be right.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from stator._native import core
from stator.api import backends
from stator.exc import InvalidOption
from stator.runtime.region import Options, dispatcher_for

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | Mapping[str, Any] | None = None,
    backend: str | Callable[..., Any] = "stator",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
) -> Any:
    """Compile a function or module; as a decorator, with or without arguments."""
    if model is None:
        return functools.partial(
            compile,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=backend,
            mode=mode,
            options=options,
            disable=disable,
            recompile_limit=recompile_limit,
        )
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, but both can't be specified at the same time.")
    if mode is not None and mode not in MODES:
        raise InvalidOption(f"no mode {mode!r}: it is one of {', '.join(MODES)}")
    if not callable(model):
        raise InvalidOption(f"stator.compile takes a callable, not a {type(model).__name__}")
    if disable:
        return model
    name, function = backends.resolve(backend, mode, options)
    chosen = Options(
        backend=function,
        backend_name=name,
        fullgraph=bool(fullgraph),
        dynamic=dynamic,
        recompile_limit=recompile_limit,
        key=(
            name if isinstance(backend, str) else id(backend),
            bool(fullgraph),
            repr(dynamic),
            mode,
            repr(sorted((options or {}).items())),
            recompile_limit,
        ),
    )
    return compiled_callable(model, chosen)


def compiled_callable(model: Callable[..., Any], options: Options) -> Any:
    """The callable that stands for `model`."""
    if isinstance(model, torch.nn.Module):
        # Modules of a class share entries; those of different classes have nothing in common but the call.
        dispatcher = dispatcher_for(call_module, replace(options, key=(*options.key, type(model))))
        model._compiled_call_impl = types.MethodType(dispatcher, model)
        return model
    if type(model) is core.Dispatcher:
        return compiled_callable(model.__wrapped__, options)
    if type(model) is types.FunctionType:
        return dispatcher_for(model, options)
    if type(model) is types.MethodType:
        return types.MethodType(compiled_callable(model.__func__, options), model.__self__)
    if isinstance(model, type):
        return _compiled_class(model, options)
    return _compiled_through(model, options)


def call_module(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Calls a module past its compiled slot: what is compiled for a module."""
    return self._call_impl(*args, **kwargs)


def _compiled_class(cls: type, options: Options) -> Any:
    """Instances of a module class are compiled when they are made; other classes as callables."""
    return _compiled_through(cls, options)


def _compiled_through(model: Callable[..., Any], options: Options) -> Any:
    """Callables that are no Python function: compiled as a function that calls them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    name = getattr(model, "__name__", type(model).__name__)
    call.__name__ = name
    call.__qualname__ = getattr(model, "__qualname__", name)
    call.__doc__ = getattr(model, "__doc__", None)
    dispatcher = dispatcher_for(call, options)
    return dispatcher


__all__ = ["MODES", "call_module", "compile", "compiled_callable"]
