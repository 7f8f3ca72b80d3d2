"""Splits a joint tape into forward and backward: what to keep between them, and what to compute twice.

Contract. `partition(joint, how)` returns a `Split`: two functional tapes,

    forward    inputs of the joint  ->  [results..., kept values...]
    backward   [kept values..., gradients of results...]  ->  gradients of inputs

`how="default"` keeps every forward value the backward reads. `how="min-cut"` keeps the cheapest set of values from
which the backward can compute what it reads: a minimum cut through the forward graph, each value weighing its bytes
(twice if the forward would not have had to write it out anyway). A callable gets `(joint graph module, number of
results)` and returns the two graph modules.

    laws  1. random operators and operators in `operators.EXPENSIVE` never run twice, nor what has effects
          2. a value of an input that the program writes is never taken from the input in the backward
          3. inside a checkpointed region (`step.region`) the reverse of 1 holds: nothing is kept that stays inside
          4. never more bytes are kept than `default` keeps; `config.activation_memory_budget` lowers that further
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from stator import config
from stator.aot.abstract import AbstractTensor, evaluate, fresh
from stator.aot.export import from_graph_module, to_graph_module
from stator.aot.functionalise import parent_of, root_of
from stator.aot.joint import Joint
from stator.aot.maxflow import INFINITE, Network
from stator.aot.operators import EXPENSIVE, REDUCTIONS, facts
from stator.aot.passes import has_effects
from stator.aot.random import STATE_BYTES, rng_state, with_rng_state
from stator.aot.tape import CALL, CONSTANT, INPUT, ITEM, Step, Tape, like, map_steps, substitute

Partitioner = str | Callable[[torch.fx.GraphModule, int], tuple[torch.fx.GraphModule, torch.fx.GraphModule]]


@dataclass
class Split:
    """Two tapes and what passes between them, in the order the backward takes it.

    `kept` holds ("input", number), ("result", number), or ("value", number among the forward's further outputs).
    """

    forward: Tape
    backward: Tape
    kept: list[tuple[str, int]]


def size_in_bytes(step: Step) -> int:
    """Bytes of a step's value (symbolic sizes by their hint)."""
    value = step.value
    if not isinstance(value, torch.Tensor):
        return 8
    total = value.element_size()
    for length in value.shape:
        total *= _hint(length)
    return int(total)


def _hint(length: Any) -> int:
    if isinstance(length, int):
        return length
    hint = getattr(length.node, "hint", None)
    return 4096 if hint is None else int(hint)


class _Plan:
    """What each step of a joint tape is: where it must run, whether it may run again."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.tape = joint.tape
        self.tangents = set(self.tape.inputs[joint.inputs :])
        self.primals = self.tape.inputs[: joint.inputs]
        self.results: list[Step] = self.tape.outputs[: joint.results]
        self.gradients: list[Step] = self.tape.outputs[joint.results :]
        self._protect_written_inputs()
        self.written = {self.primals[write.index] for write in joint.writes if write.result is not None}
        self.backward = self._backward_steps()
        self.reads_written = self._readers_of_written()
        self.needed = self._crossing()

    def _protect_written_inputs(self) -> None:
        """Law 2: what the backward reads of a written input is a copy made in the forward."""
        written = {self.primals[write.index] for write in self.joint.writes if write.result is not None}
        if not written:
            return
        dependent = self._after_tangents()
        copies: dict[Step, Step] = {}

        def protected(operand: Step) -> Step:
            if operand in dependent or not isinstance(operand.value, AbstractTensor) or root_of(operand) not in written:
                return operand
            if operand not in copies:
                value = evaluate(torch.ops.aten.clone.default, (operand.value,), {})
                copies[operand] = like(operand, CALL, torch.ops.aten.clone.default, (operand,), None, value)
            return copies[operand]

        for step in self.tape.steps:
            if (step in dependent or step.backward) and parent_of(step) is None:
                substitute(step, protected)
        self.gradients = [protected(step) for step in self.gradients]
        steps: list[Step] = [copies[source] for source in self.primals if source in copies]
        for step in self.tape.steps:
            steps.append(step)
            if step in copies:
                steps.append(copies[step])
        self.tape.steps = steps

    def _after_tangents(self) -> set[Step]:
        after: set[Step] = set(self.tangents)
        for step in self.tape.steps:
            if any(operand in after for operand in step.operands):
                after.add(step)
        return after

    def _backward_steps(self) -> set[Step]:
        """Steps of the backward: those that depend on gradients, and those only it needs."""
        backward = self._after_tangents()
        forward_needs: set[Step] = set(self.results)
        for step in reversed(self.tape.steps):
            if step in forward_needs or (has_effects(step) and step not in backward and not step.backward):
                forward_needs.add(step)
                forward_needs.update(step.operands)
        for step in self.tape.steps:
            if step not in forward_needs and step.backward and step.kind != CONSTANT:
                if step.kind != ITEM or step.args[0] in backward:
                    backward.add(step)
        return backward

    def _readers_of_written(self) -> set[Step]:
        found: set[Step] = set()
        for step in self.tape.steps:
            if (step not in self.backward and any(operand in self.written for operand in step.operands)) or parent_of(
                step
            ) in found:
                found.add(step)
        return found

    def _crossing(self) -> list[Step]:
        """Forward values that backward steps read, in order of first use."""
        crossing: dict[Step, None] = {}
        for step in self.tape.steps:
            if step in self.backward:
                for operand in step.operands:
                    if operand not in self.backward and operand not in self.tangents and operand.kind != CONSTANT:
                        crossing[operand] = None
        for step in self.gradients:
            if step not in self.backward and step not in self.tangents and step.kind != CONSTANT:
                crossing[step] = None
        return list(crossing)

    def may_repeat(self, step: Step, allowed: frozenset[Step] = frozenset()) -> bool:
        """Whether the backward may run a forward step again."""
        if step.kind == ITEM:
            return self.may_repeat(step.args[0], allowed)
        if step.kind != CALL or step in self.reads_written:
            return False
        if step.region is not None:
            return True
        if not isinstance(step.target, OpOverload) or has_effects(step):
            return False
        if step in allowed:
            return True
        row = facts(step.target)
        if row.name in EXPENSIVE or row.name in REDUCTIONS or row.random:
            return False
        return row.pointwise or row.view or row.name in _CHEAP

    def views_input(self, step: Step) -> bool:
        """Whether a step is a view of an input that nothing writes, so that keeping the input keeps it too."""
        root = root_of(step)
        return root is not step and root.kind == INPUT and root not in self.written


_CHEAP = frozenset(
    """
    clone _to_copy copy full zeros ones empty full_like zeros_like ones_like empty_like new_zeros new_ones new_full
    new_empty new_empty_strided empty_strided arange scalar_tensor cat constant_pad_nd slice_scatter select_scatter
    diagonal_scatter as_strided_scatter tril triu where masked_fill flip roll repeat stack native_dropout_backward
    expand eye linspace fill zero reshape
    """.split()
)


def _default_kept(plan: _Plan) -> list[Step]:
    kept: dict[Step, None] = {}
    for step in plan.needed:
        if plan.views_input(step):
            kept[root_of(step)] = None
        elif step.region is not None and step not in plan.results and plan.may_repeat(step):
            _keep_sources(plan, step, kept, set())
        elif step.kind == CALL and isinstance(step.value, (tuple, list)):
            kept.update(dict.fromkeys(_items_of(plan, step)))
        else:
            kept[step] = None
    return list(kept)


def _keep_sources(plan: _Plan, step: Step, kept: dict[Step, None], seen: set[Step]) -> None:
    """Law 3: keep what a checkpointed region starts from."""
    if step in seen:
        return
    seen.add(step)
    if step.region is None or not plan.may_repeat(step) or step.kind in (INPUT, CONSTANT):
        if step.kind != CONSTANT:
            kept[root_of(step) if plan.views_input(step) else step] = None
        return
    for operand in step.operands:
        _keep_sources(plan, operand, kept, seen)


def _items_of(plan: _Plan, call: Step) -> list[Step]:
    return [step for step in plan.tape.steps if step.kind == ITEM and step.args[0] is call]


def _cut(plan: _Plan, allowed: frozenset[Step], plain: bool) -> list[Step] | None:
    """The cheapest values to keep: a minimum cut between what must stay and what the backward reads."""
    relevant: dict[Step, int] = {}
    pending = list(plan.needed)
    while pending:
        step = pending.pop()
        if step in relevant or step.kind == CONSTANT:
            continue
        relevant[step] = len(relevant)
        if step.kind == INPUT or not plan.may_repeat(step, allowed):
            continue
        pending.extend(step.operands)
    source, sink = 2 * len(relevant), 2 * len(relevant) + 1
    network = Network(2 * len(relevant) + 2)
    outside = _used_outside_region(plan)
    materialised = _materialised(plan)
    for step, place in relevant.items():
        network.connect(2 * place, 2 * place + 1, _weight(plan, step, outside, materialised, plain))
        if step.kind == INPUT or not plan.may_repeat(step, allowed):
            network.connect(source, 2 * place, INFINITE)
        else:
            for operand in dict.fromkeys(step.operands):
                if operand in relevant:
                    network.connect(2 * relevant[operand] + 1, 2 * place, INFINITE)
    for step in plan.needed:
        if step in relevant:
            network.connect(2 * relevant[step] + 1, sink, INFINITE)
    side = network.minimum_cut(source, sink)
    if side is None:
        return None
    return [step for step, place in relevant.items() if side[2 * place] and not side[2 * place + 1]]


def _weight(plan: _Plan, step: Step, outside: set[Step], materialised: set[Step], plain: bool) -> int:
    if step.kind == INPUT:
        return INFINITE if step in plan.written else 1
    if not isinstance(step.value, AbstractTensor):
        return 1 if isinstance(step.value, (int, torch.SymInt)) else INFINITE
    if step.region is not None and step not in outside:
        return INFINITE
    if plan.views_input(step):
        return 2  # shares the input's memory, but the input itself is as good
    size = max(size_in_bytes(step), 1)
    if plain or step in materialised:
        return size
    return 2 * size


def _used_outside_region(plan: _Plan) -> set[Step]:
    found: set[Step] = set(plan.results)
    for step in plan.tape.steps:
        for operand in step.operands:
            if operand.region is not None and step.region != operand.region:
                found.add(operand)
    return found


def _materialised(plan: _Plan) -> set[Step]:
    """Values a fusing compiler writes to memory in the forward anyway."""
    found: set[Step] = set(plan.results)
    for step in plan.tape.steps:
        if step in plan.backward:
            continue
        if step.kind == CALL and isinstance(step.target, OpOverload):
            row = facts(step.target)
            if row.name in EXPENSIVE:
                found.add(step)
                found.update(root_of(operand) for operand in step.operands)
        elif step.kind == ITEM and step.args[0] in found:
            found.add(step)
    return found


def kept_bytes(plan: _Plan, kept: Sequence[Step]) -> int:
    """Bytes kept beyond the inputs, each memory counted once."""
    total, seen = 0, set()
    for step in kept:
        root = root_of(step)
        if (root.kind == INPUT and root not in plan.written) or root in seen:
            continue
        seen.add(root)
        total += size_in_bytes(root) if isinstance(root.value, torch.Tensor) else size_in_bytes(step)
    return total


def _min_cut_kept(plan: _Plan) -> list[Step]:
    baseline = _default_kept(plan)
    limit = kept_bytes(plan, baseline)
    for plain in (False, True):
        kept = _cut(plan, frozenset(), plain)
        if kept is not None and kept_bytes(plan, kept) <= limit:
            break
    else:
        kept = baseline
    budget = float(config.activation_memory_budget)
    if budget < 1.0 and kept_bytes(plan, kept) > budget * limit:
        return _within_budget(plan, kept, budget * limit)
    return kept


def _within_budget(plan: _Plan, kept: list[Step], limit: float) -> list[Step]:
    """Allow more operators to run twice, the cheapest per byte first, until the kept bytes fit."""
    candidates = [
        step
        for step in plan.tape.steps
        if step.kind == CALL and step not in plan.backward and isinstance(step.target, OpOverload)
        and not has_effects(step) and not plan.may_repeat(step) and step not in plan.reads_written
    ]  # fmt: skip
    candidates.sort(key=lambda step: _work(step) / max(size_in_bytes(step), 1))
    low, high, best = 0, len(candidates), kept
    while low < high:
        middle = (low + high) // 2
        found = _cut(plan, frozenset(candidates[: middle + 1]), True)
        if found is not None and kept_bytes(plan, found) <= limit:
            best, high = found, middle
        else:
            if found is not None and kept_bytes(plan, found) < kept_bytes(plan, best):
                best = found
            low = middle + 1
    return best


def _work(step: Step) -> int:
    """A rough count of operations: for products, result times inner length; else what is read."""
    read = sum(size_in_bytes(operand) for operand in step.operands)
    if facts(step.target).name in EXPENSIVE:
        inner = [operand.value.shape[-1] for operand in step.operands if isinstance(operand.value, torch.Tensor)
                 and operand.value.dim() > 0]  # fmt: skip
        return max(size_in_bytes(step), 1) * max([_hint(length) for length in inner], default=1)
    return read


class _Splitter:
    """Writes the two tapes for a set of kept values."""

    def __init__(self, plan: _Plan, kept: Sequence[Step]) -> None:
        self.plan = plan
        self.kept = list(dict.fromkeys(kept))
        self.forward = Tape()
        self.backward = Tape()
        self.states: dict[Step, Step] = {}
        self.made: dict[Step, Step] = {}
        self.placed: set[Step] = set()

    def split(self) -> Split:
        plan = self.plan
        for step in self.kept:
            entry = Step(INPUT, _kept_name(step, len(self.backward.inputs)), value=step.value)
            self.made[step] = entry
            self.backward.inputs.append(entry)
        for step in plan.tape.steps:
            if step in plan.backward:
                self._emit(step)
        outputs = [self._emit(step) for step in plan.gradients]
        self.backward.outputs = list(outputs)
        states = list(self.states.values())
        self.backward.inputs.extend(states)
        self.backward.inputs.extend(step for step in plan.tape.inputs if step in plan.tangents)
        self.backward.constants = plan.tape.constants
        forward_states = self._forward_tape()
        primals = {step: place for place, step in enumerate(plan.primals)}
        results = {step: place for place, step in enumerate(plan.results)}
        values: list[Step] = []
        kept: list[tuple[str, int]] = []
        for step in [*self.kept, *forward_states]:
            if step in primals:
                kept.append(("input", primals[step]))
            elif step in results:
                kept.append(("result", results[step]))
            else:
                kept.append(("value", len(values)))
                values.append(step)
        self.forward.outputs = [*plan.results, *values]
        return Split(self.forward, self.backward, kept)

    def _forward_tape(self) -> list[Step]:
        plan = self.plan
        needed: set[Step] = {*plan.results, *self.kept}
        states: dict[Step, Step] = {}
        lines: list[Step] = []
        for step in reversed(plan.tape.steps):
            if step in plan.backward:
                continue
            if step in needed or has_effects(step):
                needed.update(step.operands)
                lines.append(step)
                if step in self.states:
                    device = _device(step)
                    states[step] = like(step, CALL, rng_state, (device,), None, self.states[step].value)
                    lines.append(states[step])
        lines.reverse()
        self.forward.inputs = plan.primals
        self.forward.steps = lines
        self.forward.constants = plan.tape.constants
        return [states[step] for step in self.states]

    def _emit(self, step: Step) -> Step:
        """The backward's step for a step of the joint tape, written down with all it needs."""
        pending = [step]
        while pending:
            current = pending[-1]
            if current in self.made:
                pending.pop()
                continue
            missing = [operand for operand in current.operands if operand not in self.made and operand.kind != INPUT]
            if current.kind == INPUT:
                self.made[current] = current
                pending.pop()
                continue
            if missing:
                pending.extend(reversed(missing))
                continue
            pending.pop()
            self._write(current)
        return self.made[step]

    def _write(self, step: Step) -> None:
        def lower(operand: Step) -> Step:
            found = self.made.get(operand)
            if found is None:
                if operand not in self.plan.tangents:
                    raise AssertionError(f"the backward reads {operand!r}, which is not kept")
                found = operand
            return found

        args, kwargs = map_steps(lower, step.args), map_steps(lower, step.kwargs)
        target = step.target
        if step not in self.plan.backward and step.kind == CALL and has_effects(step):
            device = _device(step)
            state = Step(INPUT, f"rng_state_{len(self.states)}", value=_state_value(device))
            self.states[step] = state
            target, args = with_rng_state, (state, device, step.target, *args)
        made = Step(step.kind, target, args, kwargs, step.value, step.stack)
        made.backward = True
        self.made[step] = made
        self.backward.steps.append(made)


def _device(step: Step) -> torch.device:
    value = step.value[0] if isinstance(step.value, (tuple, list)) else step.value
    device: torch.device = value.device
    return device


def _state_value(device: torch.device) -> AbstractTensor:
    return fresh((STATE_BYTES.get(device.type, 16),), torch.uint8, torch.device("cpu"))


def _kept_name(step: Step, place: int) -> str:
    if step.kind == INPUT:
        return str(step.target)
    target = step.args[0].target if step.kind == ITEM else step.target
    name = getattr(target, "_opname", None) or getattr(target, "__name__", "value")
    return f"{name}_kept_{place}"


def partition(joint: Joint, how: Partitioner) -> Split:
    """See the module."""
    if callable(how):
        return _by_callable(joint, how)
    plan = _Plan(joint)
    if how == "default":
        kept = _default_kept(plan)
    elif how == "min-cut":
        kept = _min_cut_kept(plan)
    else:
        raise ValueError(f"partition must be 'min-cut', 'default' or a callable, not {how!r}")
    return _Splitter(plan, kept).split()


def _by_callable(joint: Joint, how: Callable[..., Any]) -> Split:
    module = to_graph_module(joint.tape, "Joint")
    forward_module, backward_module = how(module, joint.results)
    forward, backward = from_graph_module(forward_module), from_graph_module(backward_module)
    values = range(len(forward.outputs) - joint.results)
    return Split(forward, backward, [("value", place) for place in values])
