"""`stator.compile`: the arguments of `torch.compile`, checked, and the callable that stands for the function.

Contract. A function becomes a native dispatcher that looks like it. A module stays itself: the dispatcher goes into
the slot torch keeps for it (`_compiled_call_impl`), which pickling and copying drop; a module class gets that slot for
all its instances. Another class keeps its `__call__` compiled, and one that has none is an error: constructing is not
what a user means to compile. Other callables (builtins, partials, instances) are compiled through a function that calls
them. Generator functions and asynchronous functions come back as they are, with one note: they run piece by piece, when
their caller says so, and there is no call to compile. Bad arguments are errors that say what would be right.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from stator import config
from stator._native import core
from stator.api import backends
from stator.events import emit
from stator.exc import InvalidOption, Unsupported
from stator.reasons import REASONS
from stator.runtime.region import Options, dispatcher_for
from stator.sizes.policy import parse_specification

# Variables that switch compiling off: torch's own.
SWITCHED_OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Settings that may differ from one compiled function to another: `options=` of stator's own backend.
BACKEND_OPTIONS = ("numerics", "activation_memory_budget", "force_disable_caches")
# The one option that is no backend's: it says which guards an entry keeps (see guards/filters.py).
GUARD_FILTER = "guard_filter_fn"


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | Mapping[str, Any] | None = None,
    backend: str | Callable[..., Any] | None = None,
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
    backend = backends.get_default_backend() if backend is None else backend
    _check(fullgraph, dynamic, backend, mode, options, recompile_limit)
    if not callable(model):
        raise InvalidOption(f"stator.compile takes a callable, not a {type(model).__name__}")
    if disable or any(os.environ.get(name) == "1" for name in SWITCHED_OFF):
        return model
    for_backend = {name: value for name, value in (options or {}).items() if name != GUARD_FILTER}
    name, function = backends.resolve(backend, mode, for_backend)
    chosen = Options(
        backend=function,
        backend_name=name,
        fullgraph=bool(fullgraph),
        dynamic=parse_specification(dynamic, model),
        recompile_limit=recompile_limit,
        guard_filter=(options or {}).get(GUARD_FILTER),
        key=(
            name if isinstance(backend, str) else _by_equality(backend),
            bool(fullgraph),
            repr(dynamic),
            mode,
            repr(sorted((options or {}).items())),
            recompile_limit,
        ),
    )
    return compiled_callable(model, chosen)


def _check(fullgraph: Any, dynamic: Any, backend: Any, mode: Any, options: Any, recompile_limit: Any) -> None:
    """Refuse settings that mean nothing, and say what would."""
    if mode is not None and options is not None:
        raise InvalidOption("Either mode or options can be specified, but both can't be specified at the same time.")
    if mode is not None and mode not in MODES:
        raise InvalidOption(f"no mode {mode!r}: it is one of {', '.join(MODES)}")
    if not isinstance(fullgraph, bool):
        raise InvalidOption(f"fullgraph is True or False, not {fullgraph!r}")
    if recompile_limit is not None and (type(recompile_limit) is not int or recompile_limit < 1):
        raise InvalidOption(f"recompile_limit is a positive number, not {recompile_limit!r}")
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise InvalidOption(f"options is a mapping of names to values, not a {type(options).__name__}")
    if GUARD_FILTER in options and not callable(options[GUARD_FILTER]):
        raise InvalidOption(f"{GUARD_FILTER} takes the guards and answers which to keep, not {options[GUARD_FILTER]!r}")
    for name, value in options.items() if backend == "stator" else ():
        if name == GUARD_FILTER:
            continue
        if name not in BACKEND_OPTIONS:
            raise InvalidOption(f"backend 'stator' has no option {name!r}: it has {', '.join(BACKEND_OPTIONS)}")
        row = config.SETTINGS[name]
        if not row.accepts(value):
            raise InvalidOption(f"option {name!r} cannot be {value!r}: {row.meaning}")


def _by_equality(backend: Any) -> Any:
    """What tells a backend from others: a method taken from one object twice is one backend."""
    try:
        hash(backend)
    except TypeError:
        return id(backend)  # the options hold it, so the number stays its own
    return backend


def compiled_callable(model: Callable[..., Any], options: Options) -> Any:
    """The callable that stands for `model`."""
    if inspect.isgeneratorfunction(model) or inspect.iscoroutinefunction(model) or inspect.isasyncgenfunction(model):
        return _passed_through(model, options)
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


def _passed_through(model: Callable[..., Any], options: Options) -> Callable[..., Any]:
    """Functions that a call only prepares: what they do happens later, in pieces."""
    name = getattr(model, "__qualname__", repr(model))
    if options.fullgraph:
        row = REASONS["suspended_function"]
        raise Unsupported(f"{row.summary.format(detail=name)}\n  {row.hint} [{row.id}]", reason=row.id)
    emit("fallback", reason="suspended_function", detail=name)
    return model


def _compiled_class(cls: type, options: Options) -> type:
    """The class itself, calls of whose instances are compiled."""
    if issubclass(cls, torch.nn.Module):
        cls._compiled_call_impl = dispatcher_for(call_module, replace(options, key=(*options.key, cls)))
        return cls
    method = inspect.getattr_static(cls, "__call__", None)
    if not isinstance(method, types.FunctionType):
        raise InvalidOption(f"class {cls.__name__} has no __call__ to compile; compile a function that makes instances")
    setattr(cls, "__call__", compiled_callable(method, options))
    return cls


def _compiled_through(model: Callable[..., Any], options: Options) -> Any:
    """Callables that are no Python function: compiled as a function that calls them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    name = getattr(model, "__name__", type(model).__name__)
    call.__name__ = name
    call.__qualname__ = getattr(model, "__qualname__", name)
    call.__doc__ = getattr(model, "__doc__", None)
    # All share the code of `call`; entries and their limit belong to what is called.
    inner = model.func if isinstance(model, functools.partial) else model
    called = (type(model), getattr(inner, "__module__", None), getattr(inner, "__qualname__", None))
    return dispatcher_for(call, replace(options, key=(*options.key, called)))


__all__ = ["BACKEND_OPTIONS", "MODES", "call_module", "compile", "compiled_callable"]
