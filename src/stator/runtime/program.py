"""Build one program per graph: the entry that the lowering calls, and the callable that the user's call reaches.

Contract. A `ProgramBuilder` takes steps in execution order and `build` returns a callable: `program(*inputs) -> tuple`,
inputs in the order their slots were made. Nothing in a program depends on when it was built; it may run in several
threads at once. Inputs are written only by kernels and operators that were given that slot as destination.

Memory. Nobody needs to say when a slot dies: `build` releases each right after the last step that may read its
memory, views and operators that alias their arguments included. Slots made with `arena=True` share one block by
those lifetimes; a slot whose memory an output may share is allocated by ATen whatever was asked, so no result ever
points into the arena.

Operators run below autograd, with no grad recorded, exactly as given: the builder neither decomposes nor reorders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stator.runtime import lifetimes, native
from stator.runtime.integers import INPUT, OFFSET, SIZE, STRIDE, Integer, IntExpr
from stator.runtime.plan import (
    HOLDS_INTEGER,
    HOLDS_TENSOR,
    Allocate,
    Expect,
    Extern,
    Item,
    Kernel,
    Memory,
    Output,
    Plan,
    Slot,
    Step,
    View,
    leaves,
    reads,
)
from stator.runtime.text import operator_name

__all__ = ["IntExpr", "Integer", "ProgramBuilder", "Slot"]

# How a schema's return type is held.
RESULT_KINDS: dict[str, str] = {
    "Tensor": "tensor",
    "Optional[Tensor]": "optional",
    "List[Tensor]": "list",
    "int": "integer",
    "SymInt": "integer",
    "bool": "integer",
}


class ProgramBuilder:
    """Collects one program. Methods that make something return its `Slot`."""

    def __init__(self, name: str) -> None:
        self.plan = Plan(name)
        self._memory: dict[int, Memory] = {}
        self._freed: set[int] = set()
        self._built = False

    # inputs

    def input_tensor(self) -> Slot:
        """The next input, a tensor."""
        return self._input("tensor_input")

    def input_int(self) -> Slot:
        """The next input, an int; `integer(slot)` is its value in expressions."""
        return self._input("integer_input")

    def input_object(self) -> Slot:
        """The next input, anything: only operators called from Python can take it."""
        return self._input("object_input")

    def constant(self, tensor: torch.Tensor) -> Slot:
        """A tensor the program keeps alive and reads."""
        slot = self._slot("constant")
        self.plan.constants[slot.index] = tensor
        return slot

    # integers

    def integer(self, slot: Slot) -> IntExpr:
        """The value of an integer slot."""
        if self._own(slot).kind not in HOLDS_INTEGER:
            raise ValueError(f"{slot!r} is a {slot.kind}, which has no integer value")
        return IntExpr(INPUT, slot.index)

    def size(self, slot: Slot, dimension: int) -> Integer:
        """A size of a tensor slot; `dimension` counts from the front."""
        return self._shape(slot, SIZE, dimension)

    def stride(self, slot: Slot, dimension: int) -> Integer:
        """A stride of a tensor slot, in elements."""
        return self._shape(slot, STRIDE, dimension)

    def storage_offset(self, slot: Slot) -> IntExpr:
        """The storage offset of a tensor slot that came from outside, in elements."""
        return IntExpr(OFFSET, self._tensor(slot).index)

    # steps

    def empty(
        self,
        sizes: Sequence[Integer],
        strides: Sequence[Integer],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        arena: bool = False,
    ) -> Slot:
        """Uninitialised memory: scratch shared with other steps (`arena`), or a tensor of its own."""
        if len(sizes) != len(strides):
            raise ValueError(f"{len(sizes)} sizes but {len(strides)} strides")
        slot = self._slot("arena" if arena else "empty")
        memory = Memory(tuple(sizes), tuple(strides), dtype, torch.device(device))
        self._memory[slot.index] = memory
        self._step(Allocate(slot, memory))
        return slot

    def view(self, slot: Slot, sizes: Sequence[Integer], strides: Sequence[Integer], offset: Integer = 0) -> Slot:
        """The memory of `slot` under other sizes and strides, `offset` elements after the slot's own first element."""
        if len(sizes) != len(strides):
            raise ValueError(f"{len(sizes)} sizes but {len(strides)} strides")
        view = self._slot("view")
        known = self._memory.get(slot.index)
        if known is not None:
            self._memory[view.index] = Memory(tuple(sizes), tuple(strides), known.dtype, known.device)
        self._step(View(view, self._tensor(slot), tuple(sizes), tuple(strides), offset))
        return view

    def kernel(
        self,
        address: int,
        owner: object,
        name: str,
        tensors: Sequence[Slot],
        ints: Sequence[Integer],
        total: Integer,
        grain: int = 1,
        user_line: str | None = None,
    ) -> None:
        """Run generated code over [0, total), in shares of at least `grain`; `owner` keeps the code alive."""
        if grain < 1:
            raise ValueError(f"a grain of {grain} is no share of work")
        slots = tuple(self._tensor(slot) for slot in tensors)
        self._step(Kernel(address, owner, name, slots, tuple(ints), total, grain, user_line))

    def extern(
        self,
        op: torch._ops.OpOverload,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        user_line: str | None = None,
        instead: Callable[..., Any] | None = None,
    ) -> list[Slot]:
        """Call an operator; one slot per return of its schema.

        Arguments hold slots, lists of slots, expressions and constants. An operator writes into memory of the program
        by its `out` overload: `extern(aten.mm.out, (a, b), {"out": slot})`. Where the call fails, `instead` is called
        with its arguments, to raise another exception.
        """
        arguments = self._schema_order(op, args, dict(kwargs or {}))
        kinds = [RESULT_KINDS.get(str(declared.type), "object") for declared in op._schema.returns]
        made = [self._slot(kind) for kind in kinds]
        self._step(Extern(op, arguments, tuple(made), user_line, instead))
        return made

    def python(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        results: Sequence[str] = ("tensor",),
        user_line: str | None = None,
    ) -> list[Slot]:
        """Call a Python function by position; `results` are kinds of slots (`SLOT_KINDS`), one is returned bare."""
        for kind in results:
            if kind not in ("tensor", "optional", "list", "integer", "object"):
                raise ValueError(f"a function cannot return {kind!r}")
        made = [self._slot(kind) for kind in results]
        self._step(Extern(function, tuple(args), tuple(made), user_line))
        return made

    def expect(
        self,
        slot: Slot,
        sizes: Sequence[Integer],
        strides: Sequence[Integer],
        dtype: torch.dtype,
        op: Any,
        user_line: str | None = None,
    ) -> Slot:
        """What an operator left in `slot`, as the trace described it: kernels read it so."""
        expected = self._slot("tensor")
        memory = Memory(tuple(sizes), tuple(strides), dtype, torch.device("cpu"))
        self._memory[expected.index] = memory
        view = any(result.alias_info is not None for result in getattr(getattr(op, "_schema", None), "returns", ()))
        self._step(Expect(expected, self._tensor(slot), memory, operator_name(op), view, user_line))
        return expected

    def mutated(self, slot: Slot) -> None:
        """State that kernels write this input: its version counter moves when the program has run, as eager's does."""
        if self._own(slot).kind != "tensor_input":
            raise ValueError(f"{slot!r} is a {slot.kind}, not an input")
        if slot not in self.plan.mutated:
            self.plan.mutated = (*self.plan.mutated, slot)

    def item(self, slot: Slot, index: int) -> Slot:
        """An entry of a list of tensors that an operator returned."""
        if self._own(slot).kind != "list":
            raise ValueError(f"{slot!r} is a {slot.kind}, not a list of tensors")
        entry = self._slot("tensor")
        self._step(Item(entry, slot, index))
        return entry

    def free(self, slot: Slot) -> None:
        """State that nothing after this reads the slot; a later use is an error. Memory is released either way."""
        self._own(slot)
        self._freed.add(slot.index)

    def outputs(self, values: Sequence[Output]) -> None:
        """What the program returns."""
        for value in values:
            if isinstance(value, Slot):
                self._use(value)
        self.plan.outputs = tuple(values)

    def build(self) -> Any:
        """The finished program; the builder is spent."""
        if self._built:
            raise RuntimeError(f"{self.plan.name} was already built")
        self._built = True
        return native.compile_plan(lifetimes.settle(self.plan))

    # checks

    def _slot(self, kind: str) -> Slot:
        slot = Slot(len(self.plan.slots), kind)
        self.plan.slots.append(slot)
        return slot

    def _input(self, kind: str) -> Slot:
        slot = self._slot(kind)
        self.plan.inputs = (*self.plan.inputs, slot)
        return slot

    def _own(self, slot: Slot) -> Slot:
        slots = self.plan.slots
        if not isinstance(slot, Slot) or slot.index >= len(slots) or slots[slot.index] is not slot:
            raise ValueError(f"{slot!r} is no slot of {self.plan.name}")
        return slot

    def _use(self, slot: Slot) -> Slot:
        if self._own(slot).index in self._freed:
            raise ValueError(f"{slot!r} is used after it was freed")
        return slot

    def _tensor(self, slot: Slot) -> Slot:
        if self._use(slot).kind not in HOLDS_TENSOR:
            raise ValueError(f"{slot!r} is a {slot.kind}, not a tensor")
        return slot

    def _shape(self, slot: Slot, operation: int, dimension: int) -> Integer:
        if dimension < 0:
            raise ValueError("dimensions count from the front")
        known = self._memory.get(self._tensor(slot).index)
        if known is not None:
            return (known.sizes if operation == SIZE else known.strides)[dimension]
        return IntExpr(operation, slot.index, dimension)

    def _step(self, step: Step) -> None:
        for value in reads(step):
            if isinstance(value, Slot):
                self._use(value)
        self.plan.steps.append(step)

    def _schema_order(self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments in schema order with defaults filled in, refusing what does not fit the schema."""
        ordered: list[Any] = []
        for position, declared in enumerate(op._schema.arguments):
            if position < len(args):
                if declared.kwarg_only or declared.name in kwargs:
                    raise TypeError(f"{op} takes {declared.name!r} once, by name")
                ordered.append(args[position])
            elif declared.name in kwargs:
                ordered.append(kwargs.pop(declared.name))
            elif declared.has_default_value():
                ordered.append(declared.default_value)
            else:
                raise TypeError(f"{op} lacks its argument {declared.name!r}")
        if kwargs or len(args) > len(ordered):
            raise TypeError(f"{op} was given arguments its schema does not have: {sorted(kwargs)}")
        for value in leaves(ordered):
            if isinstance(value, torch.Tensor):
                raise TypeError(f"a tensor in the arguments of {op}: make it a constant() or an input")
        return tuple(ordered)
