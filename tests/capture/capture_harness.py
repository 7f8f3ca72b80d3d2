"""Runs a program eagerly and captured whole, and compares everything that can be seen of either run.

A program is a function and a few makers of its arguments. Each maker is called once for eager and once for compiled
code, so that mutation of the one is not seen by the other. What is compared is a *description* of the result, the
arguments and the named globals together: values, types, tensors bit by bit with their strides, which objects are one
object, which tensors share storage, exceptions with type, text and chain.

`run_program` calls the compiled function with the first maker's arguments twice (the second call must hit), with the
others' (guards!), and once more with the first's.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import io
import re
import sys
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import stator
from stator import events
from stator.values.world import entries

Maker = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """A program, the arguments it is called with, and what is allowed of it."""

    function: types.FunctionType
    makers: tuple[Maker, ...]
    names: tuple[str, ...] = ()  # globals it changes: put back before each run
    rehits: bool = True  # whether fresh arguments of the first maker match the first entry
    reason: str = ""  # the reason id of what cannot be one graph
    raises: bool = False  # an exception leaves it, so that the original code raises it
    known: str = ""  # what is known to be wrong with it
    operations: int | None = None  # how many calls the first graph holds
    where: str = ""

    @property
    def name(self) -> str:
        return f"{self.where}.{self.function.__name__}"


class Collection:
    """The programs of one topic; an instance is the decorator."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.programs: list[Program] = []

    def __call__(self, *makers: Any, **settings: Any) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            ready = tuple(maker if callable(maker) else (lambda held=maker: copy.deepcopy(held)) for maker in makers)
            self.programs.append(Program(function, ready or (tensor,), where=self.topic, **settings))
            return function

        return add


def tensor() -> tuple[torch.Tensor]:
    """One small tensor."""
    return (torch.arange(1.0, 4.0),)


class Describer:
    """Describes values as nested tuples; an object met again is named by its number."""

    def __init__(self, storages: dict[int, int]) -> None:
        self.numbers: dict[int, int] = {}
        self.storages = storages
        self.kept: list[Any] = []

    def describe(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str, bytes, complex, type(Ellipsis), range, slice):
            return (kind.__name__, repr(value))
        if kind is float:
            return ("float", value.hex())
        if isinstance(value, (torch.dtype, torch.device, torch.Size, torch.layout)):
            return (kind.__name__, repr(value))
        if isinstance(value, enum.Enum):
            return ("enum", repr(value))
        if isinstance(value, type):
            return ("class", value.__qualname__)
        if isinstance(value, types.ModuleType):
            return ("module", value.__name__)
        if kind is tuple and all(type(part) in (int, str, bool, float, type(None)) for part in value):
            return ("tuple", *map(self.describe, value))  # a constant: which object it is is no business of anybody
        number = self.numbers.get(id(value))
        if number is not None:
            return ("again", number)
        self.numbers[id(value)] = len(self.numbers)
        self.kept.append(value)
        return (kind.__qualname__, *self.contents(value))

    def contents(self, value: Any) -> tuple[Any, ...]:
        """What is in a value that may be changed or met twice."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return (str(value.dtype), value.shape, value.strides, value.tobytes())
        if isinstance(value, dict):
            pairs = [(self.describe(key), self.describe(held)) for key, held in entries(value)]
            extra = (self.describe(getattr(value, "default_factory", None)),)
            return (*pairs, *extra, *self.attributes(value))
        if isinstance(value, (list, tuple)):
            base = list if isinstance(value, list) else tuple
            return (*[self.describe(part) for part in base.__iter__(value)], *self.attributes(value))
        if isinstance(value, deque):
            return (value.maxlen, *[self.describe(part) for part in deque.__iter__(value)])
        if isinstance(value, (set, frozenset)):
            return tuple(sorted(map(repr, [self.describe(part) for part in value])))
        if isinstance(value, (bytearray, int, float, str)):
            base_value = value
            return (repr(bytes(base_value) if isinstance(value, bytearray) else value.__class__.__mro__[-2](value)),)
        if isinstance(value, BaseException):
            chain = (value.__cause__, value.__context__, value.__suppress_context__)
            extra = value.exceptions if isinstance(value, BaseExceptionGroup) else ()
            return (str(value), self.describe(value.args), *map(self.describe, chain), *map(self.describe, extra))
        if isinstance(value, types.FunctionType):
            cells = [self.cell(cell) for cell in value.__closure__ or ()]
            parts = (value.__defaults__, value.__kwdefaults__, value.__dict__, value.__annotations__)
            return (value.__qualname__, *map(self.describe, parts), *cells)
        if isinstance(value, types.MethodType):
            return (self.describe(value.__self__), self.describe(value.__func__))
        if isinstance(value, (types.BuiltinFunctionType, types.GeneratorType, weakref.ref)):
            return (getattr(value, "__name__", ""),)
        return self.attributes(value)

    def cell(self, cell: Any) -> Any:
        number = self.numbers.get(id(cell))
        if number is not None:
            return ("again", number)
        self.numbers[id(cell)] = len(self.numbers)
        self.kept.append(cell)
        try:
            return ("cell", self.describe(cell.cell_contents))
        except ValueError:
            return ("empty cell",)

    def attributes(self, value: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        names = getattr(value, "__dict__", None)
        if isinstance(names, dict):
            found += [(name, self.describe(held)) for name, held in names.items()]
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__"):
                    mangled = f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") else name
                    try:
                        found.append((name, self.describe(object.__getattribute__(value, mangled))))
                    except AttributeError:
                        found.append((name, "unset"))
        if not found and type(value).__module__ in ("functools", "itertools", "_functools"):
            if hasattr(value, "func"):
                found = [self.describe(part) for part in (value.func, value.args, value.keywords)]
        return tuple(found)

    def tensor(self, value: torch.Tensor) -> tuple[Any, ...]:
        with torch._C.DisableTorchFunction():
            return self.plain_tensor(value)

    def plain_tensor(self, value: torch.Tensor) -> tuple[Any, ...]:
        facts = (str(value.dtype), tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad)
        plain = value.detach()
        pointer = plain.untyped_storage().data_ptr()
        storage = self.storages.setdefault(pointer, len(self.storages)) if pointer else None
        data = plain.contiguous().view(-1)
        bits = data.view(torch.uint8).tolist() if data.numel() and not data.is_complex() else data.tolist()
        grad = None if not value.is_leaf or value.grad is None else self.describe(value.grad)
        history = type(value.grad_fn).__name__
        return (*facts, storage, bits, grad, value.is_leaf, history, *self.attributes(value))


@dataclass
class Outcome:
    """What a call did."""

    description: Any
    printed: str
    warned: tuple[str, ...]
    random: Any
    error: BaseException | None = None


def observe(call: Callable[..., Any], args: tuple[Any, ...], names: dict[str, Any]) -> Outcome:
    """Run one call and describe what can be seen of it."""
    torch.manual_seed(7)
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        error = None
        value = None
        try:
            value = call(*args)
        except Exception as raised:
            error = raised
    own = re.compile(r"\[[a-z_]+\]$")  # stator's own warnings end with the id of a reason
    shown = tuple(str(row.message) for row in warned if not own.search(str(row.message)))
    random = torch.get_rng_state().sum().item()
    seen = {name: names[name] for name in names}
    description = Describer({}).describe((value, error, args, seen))
    return Outcome(description, printed.getvalue(), shown, random, error)


@contextlib.contextmanager
def recorded(*kinds: str) -> Iterator[list[events.Event]]:
    """The events of some kinds while the block runs."""
    seen: list[events.Event] = []
    stop = events.subscribe(seen.append, kinds)
    try:
        yield seen
    finally:
        stop()


def difference(left: Any, right: Any, path: str = "") -> str:
    """Where two descriptions part first."""
    if type(left) is tuple and type(right) is tuple and len(left) == len(right):
        for index, (one, two) in enumerate(zip(left, right, strict=True)):
            if one != two:
                return difference(one, two, f"{path}[{index}]")
    return f"at {path or 'the top'}: eager {left!r:.600}, compiled {right!r:.600}"


def compare(eager: Outcome, compiled: Outcome, what: str) -> None:
    """Fail unless two outcomes are the same."""
    if compiled.error is not None and eager.error is None:
        raise AssertionError(f"{what}: {compiled.error!r:.900}") from compiled.error
    assert eager.description == compiled.description, f"{what}: {difference(eager.description, compiled.description)}"
    assert eager.printed == compiled.printed, what
    assert eager.warned == compiled.warned, what
    assert eager.random == compiled.random, f"{what}: random numbers"


def run_program(program: Program) -> None:
    """Check one program."""
    loaded_before = set(sys.modules)
    stator.reset()
    torch._C._set_grad_enabled(True)
    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return module

    function = program.function
    space = function.__globals__
    before = {name: copy.deepcopy(space[name]) for name in program.names}
    compiled = stator.compile(function, backend=backend, fullgraph=not program.reason)

    def both(maker: Maker, what: str) -> None:
        outcomes = []
        for call in (function, compiled):
            fresh = copy.deepcopy(before)
            space.update(fresh)
            outcomes.append(observe(call, maker(), {name: space[name] for name in program.names}))
        compare(*outcomes, what)

    try:
        with recorded("fallback", "graph_break", "compile_start") as seen:
            first = program.makers[0]
            both(first, "first call")
            count = len([event for event in seen if event.kind == "compile_start"])
            both(first, "second call")
            again = len([event for event in seen if event.kind == "compile_start"])
            for number, maker in enumerate(program.makers[1:]):
                both(maker, f"call with other arguments {number}")
            both(first, "last call")
    finally:
        space.update(before)
    breaks = {event.fields["reason"] for event in seen if event.kind == "graph_break"}
    if program.raises:
        breaks -= {"program_raises", "operator_error"}
    elif not program.reason:
        assert not [event.fields for event in seen if event.kind == "fallback"]
    if program.reason:
        assert program.reason in breaks, f"no break for {program.reason}: {breaks}"
    else:
        assert not breaks, breaks
    if program.rehits and not program.reason:
        assert count == again, "the second call compiled again"
    if program.operations is not None:
        held = [node for node in graphs[0].graph.nodes if node.op in ("call_function", "call_method")]
        assert len(held) == program.operations, graphs[0].code
    peers = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules and name not in loaded_before]
    assert not peers, peers
