"""A plan as people read it: one line a step, with the user's line behind it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch

from stator.runtime.plan import Allocate, Expect, Extern, Item, Kernel, Plan, Release, Slot, Step, View, declarations


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value) if isinstance(value, (Slot, str)) else str(value)


def operator_name(op: Any) -> str:
    """How people call an operator or a Python function."""
    return str(op) if isinstance(op, torch._ops.OpOverload) else str(getattr(op, "__qualname__", op))


def note(what: str, line: str | None) -> str:
    """What is added to an error that a step raised: the user's line."""
    return f"stator: while running {what}" + (f" for {line}" if line else "")


def step_text(step: Step) -> str:
    """One step without its user line."""
    match step:
        case Allocate(slot, memory):
            return f"{slot!r} = {slot.kind} {memory}"
        case View():
            shape = f"{_value(step.sizes)} strides {_value(step.strides)} + {step.offset}"
            return f"{step.slot!r} = view {step.base!r} {shape}"
        case Kernel():
            arguments = ", ".join([*map(repr, step.tensors), *map(str, step.ints)])
            return f"{step.name}({arguments}) over {step.total} by {step.grain}"
        case Extern():
            left = ", ".join(map(repr, step.results))
            arguments = ", ".join(
                f"{declared.name}={_value(value)}" if declared is not None and declared.kwarg_only else _value(value)
                for declared, value in zip_longest(declarations(step.op), step.arguments)
            )
            return f"{left + ' = ' if left else ''}{operator_name(step.op)}({arguments})"
        case Expect():
            return f"{step.slot!r} = {step.base!r} as {step.memory}"
        case Item(slot, source, index):
            return f"{slot!r} = {source!r}[{index}]"
        case Release(slots):
            return "release " + ", ".join(map(repr, slots))


def describe(plan: Plan, way: Callable[[Extern], str] | None = None) -> str:
    """The whole program; `way` says how an operator is reached."""
    lines = [f"program {plan.name}({', '.join(map(repr, plan.inputs))})"]
    for index, tensor in plan.constants.items():
        lines.append(f"    t{index} = constant {tuple(tensor.shape)} {tensor.dtype}")
    for step in plan.steps:
        text = step_text(step)
        remarks = []
        if isinstance(step, Extern) and way is not None:
            remarks.append(way(step))
        if isinstance(step, (Kernel, Extern)) and step.line:
            remarks.append(step.line)
        lines.append(f"    {text}" + (f"  # {'; '.join(remarks)}" if remarks else ""))
    lines.append(f"    return {', '.join(map(_value, plan.outputs))}")
    return "\n".join(lines)
