"""Passes over functional tapes: dead code, common subexpressions.

Contract. In place, values unchanged. A step with effects is never dropped: one that draws random numbers moves the
generator even when nobody reads its result, one that returns nothing was called for what it does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload

from stator.aot.operators import facts
from stator.aot.tape import CALL, CONSTANT, ITEM, Step, Tape, map_steps, steps_in, substitute


def has_effects(step: Step) -> bool:
    """Whether a step does something besides yielding its value."""
    if step.kind != CALL:
        return False
    target = step.target
    if isinstance(target, HigherOrderOperator):
        return any(_body_has_effects(operand.value) for operand in step.operands if operand.kind == CONSTANT)
    if not isinstance(target, OpOverload):
        return bool(getattr(target, "has_effects", True))
    row = facts(target)
    return row.random or bool(row.written) or not row.returns


def _body_has_effects(body: Any) -> bool:
    if not isinstance(body, torch.fx.GraphModule):
        return False
    if "has_effects" not in body.meta:
        rows = [facts(node.target) for node in body.graph.nodes if isinstance(node.target, OpOverload)]
        inner = [module for module in body.children() if isinstance(module, torch.fx.GraphModule)]
        body.meta["has_effects"] = any(row.random or not row.returns for row in rows) or any(
            map(_body_has_effects, inner)
        )
    return bool(body.meta["has_effects"])


def dead_code(tape: Tape) -> None:
    """Drop the steps nothing needs."""
    needed: set[Step] = set(steps_in(tape.outputs))
    kept: list[Step] = []
    for step in reversed(tape.steps):
        if step in needed or has_effects(step):
            kept.append(step)
            needed.update(step.operands)
    kept.reverse()
    tape.steps = kept


def _key(value: Any) -> Any:
    """A hashable stand-in for an argument; floats by their bits, so that 0.0 and -0.0 differ."""
    kind = type(value)
    if kind is Step:
        return id(value)
    if kind is list or kind is tuple:
        return (kind, tuple([_key(item) for item in value]))
    if kind is float:
        return (kind, value.hex())
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator)):
        return (kind, id(value))
    return (kind, value)


def common_subexpressions(tape: Tape, distinct: set[Step]) -> None:
    """Compute equal things once. Steps in `distinct` keep memory of their own (they leave the graph)."""
    replaced: dict[Step, Step] = {}
    known: dict[Any, Step] = {}
    kept: list[Step] = []

    def current(step: Step) -> Step:
        return replaced.get(step, step)

    for step in tape.steps:
        if replaced:
            substitute(step, current)
        if step.kind == CONSTANT or step in distinct or not _repeatable(step):
            kept.append(step)
            continue
        try:
            key = (step.kind, step.target, _key(step.args), _key(tuple(step.kwargs.items())), id(step.region))
            other = known.setdefault(key, step)
        except TypeError:
            kept.append(step)
            continue
        if other is step:
            kept.append(step)
        else:
            replaced[step] = other
    tape.steps = kept
    tape.outputs = map_steps(current, tape.outputs)


def _repeatable(step: Step) -> bool:
    if step.kind == ITEM:
        return True
    return step.kind == CALL and isinstance(step.target, OpOverload) and not has_effects(step)
