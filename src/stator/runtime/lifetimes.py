"""When memory dies: releases after last uses, and which slots may lie in the arena.

Contract. `settle` completes a plan: each slot made inside the program is released right after the last step that
needs it; an arena slot whose memory an output may share becomes an ordinary allocation; `plan.arena` gives the
lifetime of each arena slot in steps.

A tensor that ATen allocated lives as long as any tensor over its storage, so only views, which may be bare
pointers, prolong it. Arena memory has no such owner: whatever may share it prolongs it. "May share" follows views and
operators: an argument with an alias mark in the schema, and every argument of an operator that is composed of others
(`reshape` returns its argument where it can, unmarked) or that is not ATen's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from stator.runtime.integers import IntExpr
from stator.runtime.plan import (
    HOLDS_TENSOR,
    Expect,
    Extern,
    Item,
    Plan,
    Release,
    Slot,
    Step,
    View,
    declarations,
    leaves,
    reads,
    results,
)

# Held from outside for as long as the call lasts: never released.
OUTSIDE = frozenset({"tensor_input", "integer_input", "object_input", "constant"})
OWNING = HOLDS_TENSOR | {"list", "object"}


# Operators that are no composites and return their argument's memory all the same.
UNMARKED = frozenset({"aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::unsafe_chunk", "aten::lift"})


def unmarked_aliases(op: Any) -> bool:
    """Whether a result may share memory with an argument without a mark in the schema."""
    if not isinstance(op, torch._ops.OpOverload):
        return True
    if op._schema.is_mutable:
        return False
    if op._schema.name in UNMARKED:
        return True
    return op.namespace not in ("aten", "prims") or op._can_decompose()


def sharers(step: Step) -> list[Slot]:
    """The slots whose memory the results of a step may share."""
    match step:
        case View() | Expect():
            return [step.base]
        case Item():
            return [step.source]
        case Extern():
            arguments: Iterable[Any] = step.arguments
            if not unmarked_aliases(step.op):
                pairs = zip(declarations(step.op), step.arguments, strict=True)
                arguments = [argument for declared, argument in pairs if declared.alias_info is not None]
            return [value for value in leaves(list(arguments)) if isinstance(value, Slot)]
        case _:
            return []


def settle(plan: Plan) -> Plan:
    """The plan with releases placed and arena slots decided."""
    shared = {slot.index: {slot.index} for slot in plan.slots}  # itself and what its memory may be part of
    needed = {slot.index: {slot.index} for slot in plan.slots}  # itself and what must outlive its use
    last: dict[int, int] = {}
    for position, step in enumerate(plan.steps):
        origins = {origin for slot in sharers(step) for origin in shared[slot.index]}
        for result in results(step):
            shared[result.index] |= origins
            if isinstance(step, (View, Expect)):
                needed[result.index] |= needed[step.base.index]
            else:
                needed[result.index] |= {origin for origin in origins if plan.slots[origin].kind == "arena"}
            last.update(dict.fromkeys(needed[result.index], position))
        for value in reads(step):
            for index in value.slots() if isinstance(value, IntExpr) else {value.index}:
                last.update(dict.fromkeys(needed[index], position))
    kept: set[int] = set()
    for output in plan.outputs:
        if isinstance(output, Slot):
            kept |= shared[output.index]
        elif isinstance(output, IntExpr):
            kept |= output.slots()
    return _with_releases(_without_shared_arena(plan, kept), last, kept)


def _without_shared_arena(plan: Plan, kept: set[int]) -> Plan:
    """Arena slots that outputs may share become allocations of their own."""
    moved = {slot: Slot(slot.index, "empty") for slot in plan.slots if slot.kind == "arena" and slot.index in kept}
    if not moved:
        return plan

    def replaced(value: object) -> object:
        if isinstance(value, Slot):
            return moved.get(value, value)
        if isinstance(value, (list, tuple)):
            return type(value)(replaced(entry) for entry in value)
        return value

    def step_with(step: Step) -> Step:
        changes = {entry.name: replaced(getattr(step, entry.name)) for entry in dataclasses.fields(step)}
        return dataclasses.replace(step, **changes)  # type: ignore[arg-type]

    return dataclasses.replace(
        plan,
        slots=[moved.get(slot, slot) for slot in plan.slots],
        steps=[step_with(step) for step in plan.steps],
        outputs=tuple(moved.get(value, value) if isinstance(value, Slot) else value for value in plan.outputs),
    )


def _with_releases(plan: Plan, last: dict[int, int], kept: set[int]) -> Plan:
    """Releases after last uses; arena lifetimes count the steps of the finished list."""
    dying: dict[int, list[Slot]] = {}
    for slot in plan.slots:
        if slot.kind not in OUTSIDE and slot.index not in kept and slot.index in last:
            dying.setdefault(last[slot.index], []).append(slot)
    steps: list[Step] = []
    born: dict[int, int] = {}
    arena: dict[int, tuple[int, int]] = {}
    for position, step in enumerate(plan.steps):
        born.update((result.index, len(steps)) for result in results(step))
        steps.append(step)
        dead = dying.get(position, ())
        arena.update((slot.index, (born[slot.index], len(steps) - 1)) for slot in dead if slot.kind == "arena")
        released = tuple(slot for slot in dead if slot.kind in OWNING)
        if released:
            steps.append(Release(released))
    return dataclasses.replace(plan, steps=steps, arena=arena)
