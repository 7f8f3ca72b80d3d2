"""The reference execution of a plan, in Python: slow, short, and what the native runtime is tested against.

It is also what runs where the native runtime cannot: a torch whose libraries lack something the native runtime
probes for (see `native.py`). Same results, same errors, same notes on errors; every tensor is a separate allocation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from stator.events import emit
from stator.exc import StatorError
from stator.runtime import integers
from stator.runtime.integers import IntExpr
from stator.runtime.plan import Allocate, Expect, Extern, Item, Kernel, Plan, Release, Slot, Step, View
from stator.runtime.text import note, operator_name

KernelFunction = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64
)

LEAF_VALUES: dict[int, Callable[[Any, int], int]] = {
    integers.INPUT: lambda value, _: int(value),
    integers.SIZE: lambda value, dimension: int(value.size(dimension)),
    integers.STRIDE: lambda value, dimension: int(value.stride(dimension)),
    integers.OFFSET: lambda value, _: int(value.storage_offset()),
}


def evaluate(value: Any, slots: list[Any]) -> int:
    """An integer expression over what the slots hold now."""
    if not isinstance(value, IntExpr):
        return int(value)
    if value.operation == integers.CONSTANT:
        return int(value.left)
    if value.operation in integers.LEAVES:
        return LEAF_VALUES[value.operation](slots[value.left], value.right)
    return integers.ARITHMETIC[value.operation](evaluate(value.left, slots), evaluate(value.right, slots))


def argument(value: Any, slots: list[Any]) -> Any:
    """An operator's argument with slots and expressions replaced by what they stand for."""
    if isinstance(value, Slot):
        return slots[value.index]
    if isinstance(value, IntExpr):
        return evaluate(value, slots)
    if isinstance(value, (list, tuple)):
        return [argument(entry, slots) for entry in value]
    return value


def call_operator(op: Any, arguments: list[Any]) -> Any:
    """Call an operator with its arguments in schema order, or a function with its arguments by position."""
    if not isinstance(op, torch._ops.OpOverload):
        return op(*arguments)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for declared, value in zip(op._schema.arguments, arguments, strict=True):
        if declared.kwarg_only:
            named[declared.name] = value
        else:
            positional.append(value)
    return op(*positional, **named)


def below_autograd() -> int:
    """The dispatch keys a program runs without: autograd and autocast, which the graph has behind it."""
    with torch._C._AutoDispatchBelowAutograd():
        keys = int(torch._C._dispatch_tls_local_exclude_set().raw_repr())
    for name in dir(torch._C.DispatchKey):
        if name.startswith("Autocast"):
            keys |= int(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr())
    return keys


EXCLUDED_KEYS = below_autograd()


class ReferenceProgram:
    """Calls like the native program does."""

    native = False

    def __init__(self, plan: Plan, why: str, description: Callable[[], str]) -> None:
        self.plan = plan
        self.why = why
        self.describe = description

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        plan = self.plan
        if len(inputs) != len(plan.inputs):
            raise TypeError(f"{plan.name} takes {len(plan.inputs)} inputs, {len(inputs)} were given")
        slots: list[Any] = [None] * len(plan.slots)
        for slot, value in zip(plan.inputs, inputs, strict=True):
            slots[slot.index] = check_input(slot, value)
        for index, constant in plan.constants.items():
            slots[index] = constant
        excluded = torch._C.DispatchKeySet.from_raw_repr(EXCLUDED_KEYS)
        with torch._C._ExcludeDispatchKeyGuard(excluded), torch._C.DisableTorchFunctionSubclass():
            for step in plan.steps:
                run_step(step, slots)
        if plan.mutated:
            torch._C._increment_version([slots[slot.index] for slot in plan.mutated])
        return tuple(
            slots[output.index] if isinstance(output, Slot) else None if output is None else evaluate(output, slots)
            for output in plan.outputs
        )


def check_input(slot: Slot, value: Any) -> Any:
    """Refuse an input of another kind than the program was built for."""
    if slot.kind == "tensor_input" and not isinstance(value, torch.Tensor):
        raise TypeError(f"input {slot!r} takes a tensor, not {type(value).__name__}")
    if slot.kind == "integer_input" and not isinstance(value, int):
        raise TypeError(f"input {slot!r} takes an int, not {type(value).__name__}")
    return value


def run_step(step: Step, slots: list[Any]) -> None:
    match step:
        case Allocate(slot, memory):
            sizes = [evaluate(size, slots) for size in memory.sizes]
            strides = [evaluate(stride, slots) for stride in memory.strides]
            slots[slot.index] = torch.empty_strided(sizes, strides, dtype=memory.dtype, device=memory.device)
        case View():
            base = slots[step.base.index]
            sizes = [evaluate(size, slots) for size in step.sizes]
            strides = [evaluate(stride, slots) for stride in step.strides]
            offset = base.storage_offset() + evaluate(step.offset, slots)
            slots[step.slot.index] = torch.as_strided(base, sizes, strides, offset)
        case Kernel():
            run_kernel(step, slots)
        case Extern():
            run_extern(step, slots)
        case Expect(slot, base, memory):
            shape = tuple(evaluate(size, slots) for size in memory.sizes)
            layout = tuple(evaluate(stride, slots) for stride in memory.strides)
            found = slots[base.index]
            slots[slot.index] = as_expected(found, shape, layout, dtype=memory.dtype, what=step.what, view=step.view)
        case Item(slot, source, index):
            slots[slot.index] = slots[source.index][index]
        case Release(released):
            for slot in released:
                slots[slot.index] = None


def run_kernel(step: Kernel, slots: list[Any]) -> None:
    total = evaluate(step.total, slots)
    if total <= 0:
        return
    buffers = (ctypes.c_void_p * max(len(step.tensors), 1))(*[slots[slot.index].data_ptr() for slot in step.tensors])
    values = (ctypes.c_int64 * max(len(step.ints), 1))(*[evaluate(value, slots) for value in step.ints])
    KernelFunction(step.address)(buffers, values, 0, total)


def run_extern(step: Extern, slots: list[Any]) -> None:
    arguments = [argument(value, slots) for value in step.arguments]
    try:
        try:
            returned = call_operator(step.op, arguments)
        except Exception:
            if step.instead is None:
                raise
            returned = step.instead(*arguments)
    except Exception as error:
        error.add_note(note(operator_name(step.op), step.line))
        raise
    if len(step.results) == 1:
        returned = (returned,)
    for slot, value in zip(step.results, returned or (), strict=True):
        slots[slot.index] = value


_reported: set[str] = set()


def as_expected(
    tensor: Any, sizes: tuple[int, ...], strides: tuple[int, ...], *, dtype: torch.dtype, what: str, view: bool
) -> torch.Tensor:
    """The tensor in a type and under strides: itself where it is so, else a copy, reported once for each operator."""
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != sizes:
        found = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise StatorError(f"{what} gave {found}, its shape function promised {sizes}", reason="operator_broke_promise")
    pairs = zip(sizes, tensor.stride(), strides, strict=True)
    if tensor.dtype == dtype and (tensor.numel() == 0 or all(size == 1 or one == other for size, one, other in pairs)):
        return tensor
    if what not in _reported and not view:
        _reported.add(what)
        emit("fallback", reason="operator_broke_promise", detail=f"{what} gave {tensor.dtype} {tuple(tensor.stride())}")
    return torch.empty_strided(sizes, strides, dtype=dtype, device=tensor.device).copy_(tensor)
