"""Backward graphs for results nobody took a gradient of.

Contract. When a program differentiates only some results of a graph (the loss of a model that also returns logits),
autograd hands the backward no gradient for the others. `without(tape, absent)` gives the backward tape for that case:
what depends on absent gradients alone is gone, as in eager, where those operators never run. Filling in zeros would
cost their whole computation, and give NaN where eager gives none (zero times infinity).

A value is *absent* if it is linear in absent gradients only. `add` of an absent and a present value is the present one.
An operator no rule knows gets zeros, which is always right up to zero times infinity.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from stator.aot import passes
from stator.aot.operators import facts
from stator.aot.tape import CALL, ITEM, Step, Tape, like, map_steps

aten = torch.ops.aten

# Linear in all of their tensor arguments together, or in each one: absent if any of those arguments is.
_PRODUCTS = frozenset("mul mm bmm matmul dot mv".split())
# Linear in the first argument.
_LINEAR = frozenset(
    """
    neg sum mean clone _to_copy div expand view _unsafe_view reshape permute transpose t unsqueeze squeeze select slice
    alias detach cumsum flip roll repeat index_select gather constant_pad_nd tril triu native_dropout_backward
    masked_fill diagonal as_strided contiguous to sum_to_size
    """.split()
)
# Sums: absent only if all of their tensor arguments are.
_SUMS = frozenset("add sub cat stack".split())


def _absent_result(step: Step, absent: set[Step]) -> bool:
    """Whether the result of a step with some absent operand is absent."""
    if step.kind == ITEM:
        return step.args[0] in absent
    if step.kind != CALL or not isinstance(step.target, OpOverload):
        return False
    name = facts(step.target).name
    if name in _PRODUCTS:
        return True
    if name in _SUMS:
        return all(operand in absent for operand in step.operands)
    first = step.args[0] if step.args else None
    if name == "masked_fill":
        return first in absent and step.args[2] == 0
    if name in _LINEAR or facts(step.target).view or name.endswith(("_backward", "_backward_data")):
        return isinstance(first, Step) and first in absent
    return False


def _present_part(step: Step, absent: set[Step]) -> Step | None:
    """`a` for `add(a, absent)`, where nothing but the value of `a` makes the result."""
    if step.kind != CALL or step.target is not aten.add.Tensor or step.kwargs.get("alpha", 1) != 1:
        return None
    if len(step.args) != 2 or len(step.operands) != 2:
        return None
    parts = [operand for operand in step.operands if operand not in absent]
    if len(parts) != 1:
        return None
    present = parts[0]
    have, want = present.value, step.value
    same = have.shape == want.shape and have.dtype is want.dtype and have.stride() == want.stride()
    return present if same else None


def without(tape: Tape, absent_inputs: set[Step]) -> Tape:
    """The tape for absent gradients; outputs that are absent are `None`."""
    absent = set(absent_inputs)
    replaced: dict[Step, Step] = {}
    zeros: dict[Step, Step] = {}
    steps: list[Step] = []

    def current(operand: Step) -> Step:
        operand = replaced.get(operand, operand)
        if operand not in absent:
            return operand
        if operand not in zeros:
            shape, value = list(operand.value.shape), operand.value
            made = like(
                operand, CALL, aten.zeros.default, (shape,), {"dtype": value.dtype, "device": value.device}, value
            )
            zeros[operand] = made
            steps.append(made)
        return zeros[operand]

    for step in tape.steps:
        if any(replaced.get(operand, operand) in absent for operand in step.operands):
            if _absent_result(step, absent):
                absent.add(step)
                continue
            present = _present_part(step, absent)
            if present is not None:
                replaced[step] = replaced.get(present, present)
                continue
        made = like(
            step, step.kind, step.target, map_steps(current, step.args), map_steps(current, step.kwargs), step.value
        )
        replaced[step] = made
        steps.append(made)
    result = Tape()
    result.inputs = [step for step in tape.inputs if step not in absent_inputs]
    result.steps = steps
    result.constants = tape.constants
    result.outputs = [
        None if isinstance(step, Step) and replaced.get(step, step) in absent else map_steps(current, step)
        for step in tape.outputs
    ]
    passes.dead_code(result)
    return result
