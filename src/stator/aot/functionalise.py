"""From a tape with views and in-place operators to one whose steps never change.

Contract. `functionalise(tape)` rewrites a tape in place and returns what became of the tensors that outlive it.
On the recorded tape a step is a *handle*: the name of a tensor whose contents in-place operators change. Handles
that share memory form a tree, the root being the step that made the memory, the edges being view operators. Each
root has a current value; writing a handle scatters the new contents up to its root, and a handle read later is
shown anew from there. Memory that nothing writes costs nothing: its steps stay as they are.

    laws  1. order of steps with effects is kept
          2. the current value of a handle has the sizes, strides and dtype of the handle
          3. values of different memories never share memory where both leave the tape (checked by `joint`)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from stator.aot.abstract import AbstractTensor, Storage, evaluate, map_tensors
from stator.aot.operators import argument, complete, facts, functional_variant
from stator.aot.tape import CALL, ITEM, Step, Tape, like, map_steps, steps_in
from stator.aot.views import scatter
from stator.aot.writes import WriteCopies

aten = torch.ops.aten


def parent_of(step: Step) -> Step | None:
    """The handle whose memory `step` shows; None for the root of a memory."""
    if step.kind == ITEM:
        call = step.args[0]
        if call.kind != CALL or not isinstance(call.target, OpOverload):
            return None
        row = facts(call.target)
        place = 0 if row.tensor_list_result else step.target
        alias = row.returns[place] if place < len(row.returns) else None
        if alias is None or alias[1]:
            return None
        owner = argument(row, alias[0], call.args, call.kwargs)
        return owner if isinstance(owner, Step) else None
    if step.kind == CALL and isinstance(step.target, OpOverload):
        row = facts(step.target)
        if row.view and not row.tensor_list_result and len(row.returns) == 1 and row.returns[0] is not None:
            owner = argument(row, row.returns[0][0], step.args, step.kwargs)
            return owner if isinstance(owner, Step) else None
    return None


def root_of(step: Step) -> Step:
    """The step that made the memory `step` shows."""
    parent = parent_of(step)
    while parent is not None:
        step, parent = parent, parent_of(parent)
    return step


def view_chain(step: Step) -> list[Step]:
    """The handles from just below the root down to `step`."""
    chain: list[Step] = []
    parent = parent_of(step)
    while parent is not None:
        chain.append(step)
        step, parent = parent, parent_of(parent)
    chain.reverse()
    return chain


def written_handles(step: Step) -> list[Step]:
    """The handles an in-place step writes, in order."""
    if step.kind != CALL or not isinstance(step.target, OpOverload):
        return []
    row = facts(step.target)
    found: list[Step] = []
    for position in row.written:
        found.extend(steps_in((argument(row, position, step.args, step.kwargs),)))
    return found


class Functionaliser:
    """The rewriting of one tape."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.kept: list[Step] = []
        self.version: dict[Storage, int] = {}
        self.roots: dict[Step, Step] = {}  # root handle -> its current value
        self.shown: dict[Step, tuple[int, Step]] = {}  # handle -> (version, its current value)
        self.moved: dict[tuple[Step, int], tuple[Step, int]] = {}  # a result of a rewritten step -> where it is now
        self.model: Step | None = None  # the step whose line and phase new steps take over

    def run(self) -> None:
        for step in self.tape.steps:
            self.model = step
            handles = written_handles(step)
            if handles:
                self._rewrite_write(step, handles)
                continue
            if step.kind == ITEM and (step.args[0], step.target) in self.moved:
                made, place = self.moved[step.args[0], step.target]
                step.args, step.operands, step.target = (made,), [made], place
            elif any(self._tracked(operand) for operand in step.operands):
                self._refresh_operands(step)
            self.kept.append(step)
        self.tape.steps = self.kept

    def _tracked(self, step: Step) -> bool:
        value = step.value
        return isinstance(value, AbstractTensor) and value.memory in self.version

    def current(self, handle: Step) -> Step:
        """The step with the present contents of a handle."""
        value = handle.value
        if not isinstance(value, AbstractTensor) or value.memory not in self.version:
            return handle
        version = self.version[value.memory]
        known = self.shown.get(handle)
        if known is not None and known[0] == version:
            return known[1]
        parent = parent_of(handle)
        if parent is None:
            made = self.roots.get(handle, handle)
        else:
            made = self._show(handle, parent)
        self.shown[handle] = (version, made)
        return made

    def _show(self, handle: Step, parent: Step) -> Step:
        base = self.current(parent)
        if handle.kind == ITEM:
            call = handle.args[0]
            args = map_steps(lambda step: base if step is parent else self.current(step), call.args)
            shown = self._append(like(handle, CALL, call.target, args, call.kwargs, None))
            shown.value = self._evaluate(call.target, args, call.kwargs)
            item = like(handle, ITEM, handle.target, (shown,), None, shown.value[handle.target])
            return self._append(item)
        args = map_steps(lambda step: base if step is parent else self.current(step), handle.args)
        return self.write(handle.target, *args, **handle.kwargs)

    def _refresh_operands(self, step: Step) -> None:
        """Let a step that reads tracked memory read its present contents."""
        if parent_of(step) is not None or self._shows_several(step):
            # A view is a handle: it keeps its parent, so that the chain of views stays readable.
            return
        step.args = map_steps(self.current, step.args)
        step.kwargs = map_steps(self.current, step.kwargs)
        step.operands = steps_in((*step.args, *step.kwargs.values()))

    @staticmethod
    def _shows_several(step: Step) -> bool:
        return step.kind == ITEM or (
            step.kind == CALL and isinstance(step.target, OpOverload) and facts(step.target).view
        )

    # --- writing -----------------------------------------------------------------------------------------------
    def _rewrite_write(self, step: Step, handles: list[Step]) -> None:
        op = step.target
        row = facts(op)
        args = map_steps(self.current, step.args)
        kwargs = map_steps(self.current, step.kwargs)
        if op is aten.copy_.default:
            self.assign(handles[0], self._copied(handles[0], args[0], args[1]))
            return
        variant = functional_variant(op)
        # A random operator fills memory in the order it lies in: a variant in another layout would draw differently.
        ordered = not row.random or all(handle.value.is_contiguous() for handle in handles)
        if variant is not None and ordered and not _lists_alias(handles):
            args, kwargs = complete(op, args, kwargs)
            made = self.write(variant, *args, **kwargs)
            fresh = self._results_written(made, handles)
        else:
            target = WriteCopies(op)
            made = self._append(like(step, CALL, target, args, kwargs, self._evaluate(target, args, kwargs)))
            fresh = [self._item(made, place) for place in range(len(made.value) - len(handles), len(made.value))]
        self._redirect_results(step, made)
        for handle, new in zip(handles, fresh, strict=True):
            self.assign(handle, self._fitted(handle, new))

    def _results_written(self, made: Step, handles: list[Step]) -> list[Step]:
        """The new contents among the results of a functional variant: its last results, in order of writing."""
        value = made.value
        if isinstance(value, AbstractTensor):
            return [made]
        return [self._item(made, place) for place in range(len(value) - len(handles), len(value))]

    def _redirect_results(self, step: Step, made: Step) -> None:
        """Results of an operator that also writes, other than what it writes, now come from its replacement."""
        fresh = [place for place, alias in enumerate(facts(step.target).returns) if alias is None]
        if not fresh or facts(step.target).tensor_list_result:
            return
        if isinstance(step.value, AbstractTensor):
            self.version[step.value.memory] = 0
            self.roots[step] = self._item(made, 0)
        for place, original in enumerate(fresh):
            self.moved[step, original] = (made, place)

    def assign(self, handle: Step, new: Step) -> None:
        """The contents of a handle are now those of `new`."""
        parent = parent_of(handle)
        memory = handle.value.memory
        if parent is None:
            self.version[memory] = self.version.get(memory, 0) + 1
            self.roots[handle] = new
            self.shown[handle] = (self.version[memory], new)
            return
        owner = _shown_twice_of(handle)
        if owner is None:
            owner = parent
            combined = scatter(self.write, handle, self.current(parent), new)
        else:
            combined = self._scattered_through(handle, owner, new)
        self.assign(owner, self._fitted(owner, combined))
        self.shown[handle] = (self.version[memory], new)

    def _scattered_through(self, handle: Step, owner: Step, new: Step) -> Step:
        """`owner` with the elements `handle` shows replaced, whatever views stand between them."""
        shown, offset = handle.value, handle.value.storage_offset() - owner.value.storage_offset()
        sizes, strides = list(shown.shape), list(shown.stride())
        return self.write(aten.as_strided_scatter.default, self.current(owner), new, sizes, strides, offset)

    def _copied(self, handle: Step, old: Step, source: Any) -> Step:
        """The result of `old.copy_(source)`; in memory of its own where it is not scattered into some anyway."""
        if isinstance(source, Step) and _same_layout(handle.value, source.value):
            return self.write(aten.clone.default, source) if parent_of(handle) is None else source
        return self.write(aten.copy.default, old, source)

    def _fitted(self, handle: Step, new: Step) -> Step:
        """`new` in the dtype and layout of the handle it becomes."""
        wanted, have = handle.value, new.value
        if have.dtype is not wanted.dtype:
            new = self.write(aten._to_copy.default, new, dtype=wanted.dtype)
            have = new.value
        if tuple(have.shape) != tuple(wanted.shape):
            new = self.write(aten.expand.default, new, list(wanted.shape))
            have = new.value
        if not _same_strides(have, wanted):
            model = self.write(
                aten.new_empty_strided.default, new, list(wanted.shape), list(wanted.stride()), dtype=wanted.dtype
            )
            new = self.write(aten.copy.default, model, new)
        return new

    # --- new steps ---------------------------------------------------------------------------------------------
    def write(self, op: Any, *args: Any, **kwargs: Any) -> Step:
        assert self.model is not None
        if op is aten.reshape.default:
            return self._reshape(args[0], args[1])
        return self._append(like(self.model, CALL, op, args, kwargs, self._evaluate(op, args, kwargs)))

    def _reshape(self, step: Step, size: list[Any]) -> Step:
        try:
            return self.write(aten.view.default, step, size)
        except (RuntimeError, ValueError):
            dense = self.write(aten.clone.default, step, memory_format=torch.contiguous_format)
            return self.write(aten.view.default, dense, size)

    def _item(self, step: Step, place: int) -> Step:
        return self._append(like(step, ITEM, place, (step,), None, step.value[place]))

    def _append(self, step: Step) -> Step:
        self.kept.append(step)
        return step

    def _evaluate(self, op: Any, args: Any, kwargs: Any) -> Any:
        low_args = map_steps(lambda step: step.value, args)
        low_kwargs = map_steps(lambda step: step.value, kwargs)
        if isinstance(op, WriteCopies):
            return op.abstract(low_args, low_kwargs)
        value = evaluate(op, low_args, low_kwargs)
        return map_tensors(lambda tensor: tensor, value)


def _shown_twice_of(handle: Step) -> Step | None:
    """What the topmost view above `handle` that shows an element more than once is a view of; None without such."""
    for step in view_chain(handle)[:-1]:
        value = step.value
        if isinstance(value, AbstractTensor) and _overlaps(value.shape, value.stride()):
            return parent_of(step)
    return None


def _overlaps(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether elements may share memory: a dimension's step does not clear what the smaller steps reach."""
    reached = 0
    known = [(step, size) for step, size in zip(strides, sizes, strict=True) if type(step) is int and type(size) is int]
    for step, size in sorted(known):
        if size > 1:
            if step <= reached:
                return True
            reached += step * (size - 1)
    return False


def _lists_alias(handles: list[Step]) -> bool:
    """Whether an operator writes one memory through two of its arguments."""
    memories = [handle.value.memory for handle in handles]
    return len(set(map(id, memories))) != len(memories)


def _same_strides(one: torch.Tensor, other: torch.Tensor) -> bool:
    for length, first, second in zip(one.shape, one.stride(), other.stride(), strict=True):
        if length != 1 and first != second:
            return False
    return True


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype is other.dtype
        and one.device == other.device
        and tuple(one.shape) == tuple(other.shape)
        and _same_strides(one, other)
    )


def functionalise(tape: Tape) -> Functionaliser:
    """Rewrite the tape; ask the result for the `current` value of a handle at the tape's end."""
    worker = Functionaliser(tape)
    if any(written_handles(step) for step in tape.steps):
        worker.run()
    return worker
