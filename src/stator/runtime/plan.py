"""What a program is before anything runs it: slots, steps and outputs, as data.

Contract. A `Plan` is complete: the reference execution (`reference.py`) and the native one (`_native/program`) both
read it and nothing else, so they can be compared step by step, and `describe` prints what either runs. Slots are
numbered in the order they were made. A step reads slots made before it. Devices are data; nothing here assumes a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from stator.runtime.integers import Integer, IntExpr

# kind of a slot -> what it holds
SLOT_KINDS: dict[str, str] = {
    "tensor_input": "a tensor the caller passes",
    "integer_input": "an integer the caller passes",
    "object_input": "any other object the caller passes, for operators that take it",
    "constant": "a tensor the program owns and never writes",
    "empty": "a fresh tensor, allocated by ATen",
    "arena": "scratch inside the arena",
    "view": "another slot's memory under other sizes and strides",
    "tensor": "a tensor an operator returned",
    "optional": "a tensor an operator returned, or none",
    "list": "a list of tensors an operator returned",
    "integer": "an integer an operator returned",
    "object": "anything else an operator returned",
}
HOLDS_TENSOR = frozenset({"tensor_input", "constant", "empty", "arena", "view", "tensor", "optional"})
HOLDS_INTEGER = frozenset({"integer_input", "integer"})


@dataclass(frozen=True, slots=True)
class Slot:
    """A place of one builder's program."""

    index: int
    kind: str

    def __repr__(self) -> str:
        return f"{'i' if self.kind in HOLDS_INTEGER else 't'}{self.index}"


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes and strides in elements, dtype and device of memory a program makes."""

    sizes: tuple[Integer, ...]
    strides: tuple[Integer, ...]
    dtype: torch.dtype
    device: torch.device

    def elements(self) -> Integer:
        """How many elements the memory spans, gaps between strides included."""
        last: Integer = 1
        for size, stride in zip(self.sizes, self.strides, strict=True):
            last = last + (size - 1) * stride
        if not self.sizes:
            return 1
        # A size of zero makes the extent zero: min(1, product) is 0 or 1 for sizes that are never negative.
        some: Integer = 1
        for size in self.sizes:
            some = some * IntExpr.minimum(size, 1)
        return IntExpr.maximum(last, 0) * some

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.sizes))
        strides = ", ".join(map(str, self.strides))
        return f"{str(self.dtype).removeprefix('torch.')}[{shape}] strides ({strides}) on {self.device}"


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make an empty tensor; in the arena where `slot.kind` says so."""

    slot: Slot
    memory: Memory


@dataclass(frozen=True, slots=True)
class View:
    """`slot` is `base` seen under other sizes and strides, `offset` elements after the base's own first element."""

    slot: Slot
    base: Slot
    sizes: tuple[Integer, ...]
    strides: tuple[Integer, ...]
    offset: Integer


@dataclass(frozen=True, slots=True)
class Kernel:
    """Call `void (*)(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end)` over [0, total)."""

    address: int
    owner: Any
    name: str
    tensors: tuple[Slot, ...]
    ints: tuple[Integer, ...]
    total: Integer
    grain: int
    line: str | None


@dataclass(frozen=True, slots=True)
class Extern:
    """Call an operator: `arguments` in schema order, defaults filled in; `results` follow the schema's returns.

    Or call a Python function, its arguments by position. Where an operator fails, `instead` is called from Python with
    the arguments, to raise what the caller should see.
    """

    op: torch._ops.OpOverload | Callable[..., Any]
    arguments: tuple[Any, ...]
    results: tuple[Slot, ...]
    line: str | None
    instead: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Expect:
    """`slot` is what an operator left in `base`, in the type and under the sizes and strides that the trace said: the
    same tensor where it is so, which it nearly always is, else a copy. Kernels read memory under those strides."""

    slot: Slot
    base: Slot
    memory: Memory
    what: str
    view: bool  # a view is laid out as its argument is, which the trace may have seen otherwise
    line: str | None


@dataclass(frozen=True, slots=True)
class Item:
    """`slot` is entry `index` of a list of tensors."""

    slot: Slot
    source: Slot
    index: int


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing reads these slots any more: their memory goes back now."""

    slots: tuple[Slot, ...]


Step = Allocate | View | Kernel | Extern | Expect | Item | Release
Output = Slot | IntExpr | int | None


@dataclass
class Plan:
    """A whole program."""

    name: str
    inputs: tuple[Slot, ...] = ()
    slots: list[Slot] = field(default_factory=list)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    outputs: tuple[Output, ...] = ()
    mutated: tuple[Slot, ...] = ()
    # Slot index -> first and last step that needs the slot's arena memory.
    arena: dict[int, tuple[int, int]] = field(default_factory=dict)


def leaves(value: Any) -> Iterator[Any]:
    """The slots, integers and plain values inside an operator's argument."""
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from leaves(entry)
    elif isinstance(value, dict):
        for entry in value.values():
            yield from leaves(entry)
    else:
        yield value


def reads(step: Step) -> Iterator[Slot | IntExpr]:
    """Every slot and expression a step needs, results excepted."""
    match step:
        case Allocate(memory=memory):
            values: list[Any] = [*memory.sizes, *memory.strides]
        case View():
            values = [step.base, *step.sizes, *step.strides, step.offset]
        case Kernel():
            values = [*step.tensors, *step.ints, step.total]
        case Extern():
            values = list(leaves(step.arguments))
        case Expect():
            values = [step.base, *step.memory.sizes, *step.memory.strides]
        case Item():
            values = [step.source]
        case Release():
            values = []
    for value in values:
        if isinstance(value, (Slot, IntExpr)):
            yield value


def declarations(op: torch._ops.OpOverload | Callable[..., Any]) -> list[Any]:
    """What an operator's schema says of each argument; nothing for a Python function."""
    return list(op._schema.arguments) if isinstance(op, torch._ops.OpOverload) else []


def results(step: Step) -> tuple[Slot, ...]:
    """The slots a step fills."""
    match step:
        case Allocate() | View() | Expect() | Item():
            return (step.slot,)
        case Extern():
            return step.results
        case _:
            return ()
