"""Graphs of the bodies of higher-order operators (the branches of `cond`, the step of a `scan`).

Contract. `forward_body` runs a body on stand-ins of its operands under a recorder of its own and returns a functional
graph module; `backward_body` returns one that takes operands and gradients of results, runs the body again and gives
the gradients of the operands asked for. Tensors of the enclosing trace that a body reaches by itself are `captured`:
they become operands, appended to those given.

A body may not write its operands; a result that is an operand is copied. A body that draws random numbers cannot be
run again, so it has no backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import _pop_mode_temporarily

from stator.aot import passes
from stator.aot.abstract import AbstractTensor, fresh
from stator.aot.export import to_graph_module
from stator.aot.functionalise import functionalise, root_of, written_handles
from stator.aot.recorder import Recorder
from stator.aot.refusal import refuse
from stator.aot.tape import CALL, INPUT, Step, like

aten = torch.ops.aten
RunBody = Callable[..., Any]


@dataclass
class Body:
    """A body as a graph module, the abstract values it returns, and what it captured of the enclosing trace."""

    module: torch.fx.GraphModule
    values: list[Any]
    captured: list[AbstractTensor] = field(default_factory=list)


class _BodyRecorder(Recorder):
    """Records a body; tensors of the enclosing trace become further inputs."""

    def __init__(self, outer: Recorder) -> None:
        super().__init__(locate=outer.line, decompositions=outer.decompositions)
        self.known: dict[int, AbstractTensor] = {}
        self.captured: list[AbstractTensor] = []

    def operand(self, tensor: Any, name: str) -> Any:
        """A stand-in for an operand of the enclosing trace."""
        if not isinstance(tensor, AbstractTensor):
            self.tape.inputs.append(Step(INPUT, name, value=tensor))
            return tensor
        made = fresh(tensor.shape, tensor.dtype, tensor.device, tensor.stride())
        self.adopt(made, name)
        self.known[id(tensor)] = made
        return made

    def adopt_foreign(self, tensor: AbstractTensor) -> AbstractTensor:
        found = self.known.get(id(tensor))
        if found is None:
            self.captured.append(tensor)
            found = self.operand(tensor, f"captured_{len(self.captured)}")
        return found


def _finish(
    recorder: _BodyRecorder, outputs: Sequence[Any], name: str, single: bool = False
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The functional graph of what was recorded."""
    tape = recorder.tape
    inputs = set(tape.inputs)
    for step in tape.steps:
        for handle in written_handles(step):
            if root_of(handle) in inputs:
                raise refuse("aot_higher_order", detail="writes an operand of its body", line=step.stack or "")
    handles = [output.op if isinstance(output, AbstractTensor) else output for output in outputs]
    worker = functionalise(tape)
    worker.model = tape.steps[-1] if tape.steps else None
    finals: list[Any] = []
    taken: set[Step] = set(inputs)
    for handle in handles:
        if not isinstance(handle, Step):
            finals.append(handle)
            continue
        step = worker.current(handle)
        if root_of(step) in taken:
            step = like(step, CALL, aten.clone.default, (step,), None, step.value)
            tape.steps.append(step)
        taken.add(root_of(step))
        finals.append(step)
    tape.outputs = finals
    passes.common_subexpressions(tape, {step for step in finals if isinstance(step, Step)})
    passes.dead_code(tape)
    values = [step.value if isinstance(step, Step) else step for step in finals]
    return to_graph_module(tape, name, single=single), values


def forward_body(outer: Recorder, run: RunBody, operands: Sequence[Any], name: str, single: bool = False) -> Body:
    """The graph of `run(*operands)`; captured tensors are its last inputs. `single`: it returns one bare value."""
    recorder = _BodyRecorder(outer)
    inner = [recorder.operand(tensor, f"operand_{place}") for place, tensor in enumerate(operands)]
    with _pop_mode_temporarily(), torch.no_grad(), recorder:
        result = run(recorder, *inner)
    outputs = [recorder.own(leaf) for leaf in pytree.tree_leaves(result)]
    module, values = _finish(recorder, outputs, name, single)
    return Body(module, values, recorder.captured)


def backward_body(
    outer: Recorder,
    run: RunBody,
    operands: Sequence[Any],
    wanted: Sequence[int],
    results: Sequence[int],
    name: str,
    arrange: Callable[[list[Any], list[Any]], list[Any]] | None = None,
) -> Body:
    """The graph from operands and gradients of `results` to gradients of the operands numbered in `wanted`.

    `arrange(operands, gradients)` orders the inputs of the graph; operands come first if it is not given.
    """
    recorder = _BodyRecorder(outer)
    inner = [recorder.operand(tensor, f"operand_{place}") for place, tensor in enumerate(operands)]
    leaves = [inner[place] for place in wanted]
    with _pop_mode_temporarily(), torch.enable_grad(), recorder:
        for leaf in leaves:
            leaf.requires_grad_(True)
        outputs = [recorder.own(leaf) for leaf in pytree.tree_leaves(run(recorder, *inner))]
        tangents = []
        for place in results:
            tangents.append(fresh(outputs[place].shape, outputs[place].dtype, outputs[place].device))
            recorder.adopt(tangents[-1], f"gradient_{place}")
        pairs = [
            (outputs[place], tangent)
            for place, tangent in zip(results, tangents, strict=True)
            if outputs[place].requires_grad
        ]
        found: Sequence[Any] = [None] * len(leaves)
        if pairs:
            recorder.backward = True
            found = _engine_run_backward(
                tuple(output for output, _ in pairs),
                tuple(tangent for _, tangent in pairs),
                False,
                False,
                tuple(leaves),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        with torch.no_grad():
            gradients = [
                torch.zeros_like(leaf) if gradient is None else gradient
                for leaf, gradient in zip(leaves, found, strict=True)
            ]
    if any(passes.has_effects(step) and not written_handles(step) for step in recorder.tape.steps):
        raise refuse("aot_higher_order", detail="draws random numbers in a body that is differentiated")
    if arrange is not None:
        by_tensor = {id(step.value): step for step in recorder.tape.inputs}
        recorder.tape.inputs = [by_tensor[id(tensor)] for tensor in arrange(inner, tangents)]
    module, values = _finish(recorder, gradients, name)
    return Body(module, values, recorder.captured)
