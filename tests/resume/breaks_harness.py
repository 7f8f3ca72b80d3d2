"""Runs a program eagerly and compiled, and says everything that can be seen of either run.

`operations` counts torch functions called outside of a graph break by eager Python; `Counting.executed` counts the
operations graphs executed. They are equal where nothing but the broken operations themselves ran outside of graphs.
"""

from __future__ import annotations

import contextlib
import gc
import io
import random
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import stator
from stator import events

# Torch functions that are themselves the broken operation (or read what is known when tracing): never in a graph.
OUTSIDE = frozenset(
    {
        "item", "tolist", "data_ptr", "numpy", "__bool__", "__repr__", "__int__", "__float__", "__format__", "__get__",
        "__index__", "size", "dim", "__len__", "stride", "is_contiguous", "numel", "__reduce_ex__", "untyped_storage",
        "__deepcopy__", "is_grad_enabled", "set_grad_enabled", "is_autocast_enabled", "__iter__",
        "unbind", "save", "nonzero", "__hash__", "storage_offset", "has_names",
    }
)  # fmt: skip


MODES = frozenset(
    {
        "_set_grad_enabled", "set_autocast_enabled", "set_autocast_dtype", "set_autocast_cache_enabled",
        "autocast_increment_nesting", "autocast_decrement_nesting", "clear_autocast_cache",
    }
)  # fmt: skip


class CountOperations(TorchFunctionMode):
    """Counts torch functions a graph could hold."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.paused = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.paused and getattr(function, "__name__", "") not in OUTSIDE | MODES:
            self.count += 1
        return function(*args, **(kwargs or {}))


# What arithmetic on sizes and numbers gives: no operator of the program's.
NUMBERS = (types.NoneType, torch.SymInt, torch.SymFloat, torch.SymBool)


class Counting:
    """A backend that runs graphs as they are, and counts."""

    def __init__(self) -> None:
        self.graphs: list[int] = []
        self.executed = 0
        self.runs = 0

    def __call__(self, module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        calls = [node for node in module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
        count = sum(
            getattr(node.target, "__name__", node.target) not in MODES
            and not isinstance(node.meta.get("example_value"), NUMBERS)
            for node in calls
        )
        self.graphs.append(count)

        def run(*inputs: Any) -> Any:
            self.executed += count
            self.runs += 1
            return module.forward(*inputs)

        return run


@dataclass
class Seen:
    """What a run showed."""

    result: Any = None
    output: str = ""
    error: Any = None
    frames: list[tuple[str, int | None]] = field(default_factory=list)
    state: Any = None

    def comparable(self) -> tuple[Any, ...]:
        return self.result, self.output, self.error, self.frames, self.state


def plain(value: Any, seen: dict[int, int] | None = None) -> Any:
    """A value as data that compares by content and by sharing."""
    seen = {} if seen is None else seen
    if isinstance(value, (int, float, str, bytes, bool, type(None), complex)):
        return (type(value).__name__, repr(value))
    if isinstance(value, tuple) and all(isinstance(one, (int, float, str, type(None))) for one in value):
        return (type(value).__name__, list(value))  # a constant: which of equal ones it is means nothing
    if id(value) in seen:
        return ("same as", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, torch.Tensor):
        return ("tensor", value.tolist(), tuple(value.shape), str(value.dtype), value.requires_grad)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(one, seen) for one in value])
    if isinstance(value, dict):
        return (type(value).__name__, [(plain(key, seen), plain(one, seen)) for key, one in value.items()])
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted(repr(plain(one)) for one in value))
    if isinstance(value, BaseException):
        return (type(value).__name__, [plain(one, seen) for one in value.args], error_chain(value))
    if hasattr(value, "__dict__"):
        return (type(value).__name__, plain(vars(value), seen))
    return type(value).__name__


def error_chain(error: BaseException) -> list[str]:
    found: list[str] = []
    link: BaseException | None = error
    while link is not None and len(found) < 10:
        found.append(f"{type(link).__name__}: {link} {link.__suppress_context__}")
        link = link.__cause__ or link.__context__
    return found


def observe(
    function: Callable[..., Any],
    make_arguments: Callable[[], tuple[Any, ...]],
    state: Any = None,
    around: Any = contextlib.nullcontext(),
) -> Seen:
    """Call once, and look at everything."""
    random.seed(0)
    torch.manual_seed(0)
    arguments = make_arguments()
    seen = Seen()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            with around:
                result = function(*arguments)
            seen.result = plain(result)
        except Exception as error:
            seen.error = (type(error).__name__, str(error), error_chain(error))
            seen.frames = [
                (row.name, row.lineno)
                for row in traceback.extract_tb(error.__traceback__)
                if row.name not in ("observe", "__torch_function__")
            ]
    seen.output = output.getvalue()
    seen.state = (
        plain(list(arguments)),
        torch.is_grad_enabled(),
        random.random(),
        None if state is None else plain(state()),
    )
    return seen


@dataclass
class Comparison:
    """A program, eager and compiled."""

    eager: list[Seen]
    compiled: list[Seen]
    backend: Counting
    graphs: int
    breaks: list[events.Event]
    fallbacks: list[events.Event]
    again: int  # graphs compiled by the calls after the first
    operations: int  # eager operations of the first call
    executed: int  # operations graphs executed in the first call


def compare(
    function: Callable[..., Any],
    make_arguments: Callable[[], tuple[Any, ...]],
    calls: int = 2,
    mode: CountOperations | None = None,
    state: Any = None,
    **options: Any,
) -> Comparison:
    """Run a program eagerly and compiled, `calls` times each."""
    stator.reset()
    mode = mode or CountOperations()
    eager = []
    operations = 0
    for turn in range(calls):
        mode.count = 0
        eager.append(observe(function, make_arguments, state, mode))
        operations = operations if turn else mode.count
    backend = Counting()
    breaks: list[events.Event] = []
    fallbacks: list[events.Event] = []
    ends = [
        events.subscribe(breaks.append, {"graph_break"}),
        events.subscribe(fallbacks.append, {"fallback"}),
    ]
    compiled_seen = []
    graphs = executed = 0
    try:
        compiled = stator.compile(function, backend=backend, **options)
        for turn in range(calls):
            compiled_seen.append(observe(compiled, make_arguments, state))
            if not turn:
                graphs, executed = len(backend.graphs), backend.executed
    finally:
        for end in ends:
            end()
    gc.collect(0)
    return Comparison(
        eager, compiled_seen, backend, graphs, breaks, fallbacks, len(backend.graphs) - graphs, operations, executed
    )
