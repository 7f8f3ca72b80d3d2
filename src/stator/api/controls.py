"""What a program says to the compiler from within: break here, leave this alone, record that whole.

Contract. The names and arguments are those of `torch.compiler` and `torch._dynamo`. Run eagerly, each does nothing (or
calls the function it was given).
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder

from stator._native import core
from stator.api import backends
from stator.capture import marks
from stator.capture.marks import Mark
from stator.runtime import stance


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


def is_exporting() -> bool:
    """True while torch.export runs: stator exports nothing, and code it captures sees False."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))  # the function may be this one, lent


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True) -> Any:
    """A callable that is never compiled: it breaks the graph where compiled code calls it.

    `recursive=False` leaves only its own body alone: Python functions it calls are compiled where compiled code calls
    it. A module stays the object it is, and a class the class; instances of a disabled class are disabled. `reason` is
    shown wherever the break is. `wrapping=False` marks the function itself and gives it back.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason, wrapping=wrapping)
    if isinstance(fn, torch.nn.Module):
        fn._compiled_call_impl = None
        marks.set_mark(fn, Mark.DISABLED)
        if reason is not None:
            object.__setattr__(fn, "_torchdynamo_disable_msg", reason)
        return fn
    if isinstance(fn, type):
        name = "forward" if issubclass(fn, torch.nn.Module) else "__call__"
        if name in dir(fn):
            setattr(fn, name, disable(getattr(fn, name), recursive, reason=reason))
        return fn
    if not callable(fn):
        raise TypeError(f"stator.disable takes a callable, not a {type(fn).__name__}")
    target = fn.__wrapped__ if type(fn) is core.Dispatcher else fn
    if wrapping or not isinstance(target, types.FunctionType):

        @functools.wraps(target)
        def disabled(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs)
    else:
        disabled = target  # type: ignore[assignment]
    disabled._torchdynamo_disable = True  # type: ignore[attr-defined]
    disabled._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    if disabled is not target:
        disabled._torchdynamo_orig_callable = target  # type: ignore[attr-defined]
    disabled._torchdynamo_disable_recursive = recursive  # type: ignore[attr-defined]
    return disabled


def swap_error_on_graph_break(value: bool | None) -> bool | None:
    """Known to the tracer: sets whether breaks are errors from here on, and gives what held before."""
    return None


class error_on_graph_break:
    """Whether a graph break is an error inside: a context manager, and a decorator of functions.

    It may be nested and toggled: the innermost says. Under `fullgraph=True` every break is an error whatever it says.
    Unlike `fullgraph=True`, `True` does not ask for one graph: breaks outside are still allowed. Run eagerly, it does
    nothing.
    """

    def __init__(self, error_on_graph_break: bool) -> None:
        self.error_on_graph_break = error_on_graph_break
        self.previous: list[bool | None] = []

    def __enter__(self) -> None:
        self.previous.append(swap_error_on_graph_break(self.error_on_graph_break))

    def __exit__(self, *error: object) -> None:
        swap_error_on_graph_break(self.previous.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        value = self.error_on_graph_break

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            previous = swap_error_on_graph_break(value)
            try:
                return function(*args, **kwargs)
            finally:
                swap_error_on_graph_break(previous)

        return inside


class set_stance(stance.set_stance):
    __doc__ = stance.set_stance.__doc__

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None
    ) -> None:
        if force_backend is not None:
            force_backend = backends.resolve(force_backend, None, None)[1]
        super().__init__(stance, skip_guard_eval_unsafe=skip_guard_eval_unsafe, force_backend=force_backend)


def substitute_in_graph(
    original_fn: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Capture the decorated function wherever `original_fn` (one written in C, mostly) is called.

    Run eagerly, the decorated function is `original_fn`. Their signatures must agree, unless `skip_signature_check`.
    With `can_constant_fold_through`, a call with constants alone is made while capturing.
    """
    if not callable(original_fn):
        raise TypeError(f"substitute_in_graph takes a callable, not a {type(original_fn).__name__}")

    def register(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
        if marks.substitute_of(original_fn) is not None:
            raise ValueError(f"{original_fn.__name__} has a substitute already")
        if not skip_signature_check:
            _check_signatures(original_fn, traceable_fn)
        marks.substitute(original_fn, traceable_fn, can_constant_fold_through)

        @functools.wraps(traceable_fn)
        def original(*args: Any, **kwargs: Any) -> Any:
            return original_fn(*args, **kwargs)

        marks.substitute(original, traceable_fn, can_constant_fold_through)
        return original

    return register


def _check_signatures(original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    try:
        wanted = inspect.signature(original).parameters.values()
    except ValueError:
        return  # written in C, without a signature to compare
    found = inspect.signature(replacement).parameters.values()
    if [(row.name, row.kind) for row in wanted] != [(row.name, row.kind) for row in found]:
        raise TypeError(
            f"the parameters of {replacement.__name__} are not those of {original.__name__}: "
            f"{inspect.signature(replacement)}, not {inspect.signature(original)}. "
            "Make them agree, or pass skip_signature_check=True"
        )


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


def call_region(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What is captured of a call of a nested compile region: the function's own body."""
    return func(*args, **kwargs)


# Torch's own mark refuses to run while code is captured.
marks.substitute(invoke_subgraph_placeholder, call_region, False)


def nested_compile_region(
    fn: Callable[..., Any] | None = None,
    *,
    options: Any = None,
    max_reuse_entries: int = 8,
    reuse_hash_fn: Callable[..., Any] | None = None,
) -> Any:
    """Mark a function that a program calls many times over, such as a layer.

    Stator captures its body at each call, and compiles equal kernels once whether or not they are marked: nothing is
    left for the mark to save, and the arguments that say how much of it, are taken for torch's sake.
    """
    if fn is None:
        return functools.partial(
            nested_compile_region, options=options, max_reuse_entries=max_reuse_entries, reuse_hash_fn=reuse_hash_fn
        )
    if not callable(fn):
        raise TypeError(f"stator.nested_compile_region takes a callable, not a {type(fn).__name__}")
    target = fn

    @functools.wraps(target)
    def region(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return region
