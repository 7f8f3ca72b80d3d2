"""What a program says to the compiler from within: break here, leave this alone, record that whole.

Contract. The names and arguments are those of `torch.compiler` and `torch._dynamo`. Run eagerly, each does nothing (or
calls the function it was given).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from stator.capture import marks
from stator.capture.marks import Mark


def graph_break(msg: str = "") -> None:
    """End the current graph here; what follows is captured in another."""


def skip_frame(msg: str = "") -> None:
    """Run the rest of this function uncompiled."""


def is_compiling() -> bool:
    """True while code is being captured."""
    return False


def is_dynamo_compiling() -> bool:
    """True while code is being captured, under the name libraries know."""
    return False


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
    """A callable that is never compiled: it breaks the graph where compiled code calls it.

    `recursive=False` leaves only its own body alone: Python functions it calls are compiled.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason, wrapping=wrapping)
    if isinstance(fn, torch.nn.Module):
        fn._compiled_call_impl = None
        marks.set_mark(fn, Mark.DISABLED)
        return fn
    if not callable(fn):
        raise TypeError(f"stator.disable takes a callable, not a {type(fn).__name__}")
    target = getattr(fn, "__wrapped__", fn) if type(fn).__name__ == "Dispatcher" else fn

    @functools.wraps(target)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    disabled._torchdynamo_disable = True  # type: ignore[attr-defined]
    disabled._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    return disabled


def allow_in_graph(fn: Any) -> Any:
    """Record calls of `fn` in the graph without looking inside it."""
    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(one) for one in fn]
    if not callable(fn):
        raise AssertionError("allow_in_graph expects a callable")
    marks.set_mark(fn, Mark.ALLOWED)
    return fn


def disallow_in_graph(fn: Any) -> Any:
    """Break the graph where `fn` is called."""
    if isinstance(fn, (list, tuple)):
        return [disallow_in_graph(one) for one in fn]
    marks.set_mark(fn, Mark.FORBIDDEN)
    return fn


def forbid_in_graph(fn: Any) -> Any:
    """Refuse to compile code that calls `fn`."""
    return disallow_in_graph(fn)


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Call `fn` while capturing, and take its result for a constant ever after."""
    marks.set_mark(fn, Mark.CONSTANT)
    return fn


def nonstrict_trace(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Capture `traceable_fn` by running it, not by interpreting it."""
    if not callable(traceable_fn):
        raise AssertionError("nonstrict_trace expects a callable")

    @functools.wraps(traceable_fn)
    def nonstrict(*args: Any, **kwargs: Any) -> Any:
        return traceable_fn(*args, **kwargs)

    marks.set_mark(nonstrict, Mark.NONSTRICT)
    return nonstrict
