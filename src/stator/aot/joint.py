"""From a torch-level graph to one functional tape of its forward and backward operators.

Contract. `trace_joint(module, inputs, names, decompositions)` runs the graph once on abstract tensors with autograd
above the recorder, differentiates what leaves it, and returns a `Joint`: a functional tape whose outputs are

    [new contents of written inputs..., direct outputs..., bases..., gradients of the inputs that need them...]

and, as data, how the runtime puts the user's outputs together from those (`Output`) and what it writes back
(`Write`). Nothing here knows how that is run; `wrapper` generates that code.

Which outputs leave the graph directly, and which are made again outside:
    an input itself                        -> the caller's own object
    a view of an input                     -> the views taken again of the caller's tensor
    the only tensor that shows its memory  -> as it is
    one of several that share memory       -> their base leaves the graph, the views are taken again of it
so that results alias each other and the arguments exactly as eager results do, autograd's view relations included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch.autograd.graph import _engine_run_backward

from stator.aot import passes
from stator.aot.abstract import AbstractTensor, Storage, fresh, view_of
from stator.aot.functionalise import functionalise, root_of, view_chain, written_handles
from stator.aot.interpret import Interpreter, restored_modes
from stator.aot.pointwise import is_dense
from stator.aot.recorder import Recorder
from stator.aot.refusal import refuse
from stator.aot.symbolic import Facts, SymbolicCalls, context_of
from stator.aot.tape import CALL, INPUT, Step, Tape, like
from stator.aot.tracing import check_plain, recording

aten = torch.ops.aten
Replay = tuple[tuple[Any, tuple[Any, ...], dict[str, Any], int | None], ...]  # operator, arguments, which result


@dataclass
class Output:
    """How one of the user's outputs comes about. `kind`:

    constant  `value` itself
    input     argument `index`
    view      `replay` applied to argument `index`
    result    result `index` of the graph
    derived   `replay` applied to result `index` of the graph
    same      the user's output number `index`, again
    """

    kind: str
    index: int = -1
    value: Any = None
    replay: Replay = ()
    detach: bool = False


@dataclass
class Write:
    """An argument the graph changes: result `result` (None: contents unchanged) is copied into argument `index`."""

    index: int
    result: int | None
    tracked: bool  # autograd sees the change
    layout: tuple[tuple[Any, ...], tuple[Any, ...], Any] | None = None  # sizes, strides, offset it has afterwards
    inside: bool = False  # the graph itself copies the contents, and they are none of its results; see `inplace`


@dataclass
class Base:
    """A tensor made for arguments that share memory, one of which is written: they become views of it.

    `source` is how the runtime gets it: ("input", n) argument n itself, ("base", n) what argument n is a view of,
    ("flat", n) all of argument n's memory in one dimension. `offsets` are the members' places in that memory.
    """

    members: tuple[int, ...]
    source: tuple[str, int]
    offsets: tuple[int, ...]


class _SharedMemory(Exception):
    """Arguments turn out to share memory that is written; the trace starts again with a base for each group."""

    def __init__(self, groups: list[list[int]]) -> None:
        super().__init__()
        self.groups = groups


@dataclass
class Joint:
    """A functional joint tape and what surrounds it. Results are the outputs that are no gradients."""

    tape: Tape
    results: int
    outputs: list[Output]
    writes: list[Write]
    tangent_of: list[int]  # per tangent: the result it is the gradient of
    gradient_of: list[int]  # per gradient output of the tape: the argument it belongs to
    adopted: list[torch.Tensor] = field(default_factory=list)  # arguments beyond those given, see `_adopt`
    bases: list[Base] = field(default_factory=list)
    differentiable: list[bool] = field(default_factory=list)  # per result
    backward_error: str | None = None  # what autograd raises for this program when asked for gradients
    out_spec: Any = None
    inputs: int = 0
    made: list[Any] = field(default_factory=list)  # every abstract tensor of the trace

    def let_go(self) -> None:
        """Cut abstract tensors off their steps, when nobody will ask for them again.

        Graphs show the tensors for good, autograd holds them where no garbage collector looks, and each would keep
        the whole trace alive.
        """
        for tensor in self.made:
            if type(tensor) is AbstractTensor:
                tensor.op = tensor.recorder = None
        self.made.clear()


class _Fresh(torch.autograd.Function):
    """Makes an abstract input that is no leaf, as the real one is none, so that it may be written in place."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        assert isinstance(leaf, AbstractTensor)
        made = view_of(leaf, leaf.shape, leaf.stride())
        leaf.recorder.bind(made, leaf.op)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def trace_joint(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    names: Sequence[str],
    owned: Mapping[int, int],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    known: Sequence[Facts | None] = (),
) -> Joint:
    """See the module. `owned` maps the id of a tensor the module holds to the number of the input that carries it.
    `known` tells what the first inputs are beyond their examples: symbolic sizes and numbers."""
    groups: list[list[int]] = []
    while True:
        recorder = Recorder(decompositions=decompositions)
        try:
            joint = _Tracing(recorder, module, inputs, names, owned, groups, known).run()
            joint.made = recorder.alive[:]
            return joint
        except _SharedMemory as found:
            groups = groups + found.groups
        finally:
            recorder.close()


class _Tracing:
    """One run of `trace_joint`."""

    def __init__(
        self,
        recorder: Recorder,
        module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        names: Sequence[str],
        owned: Mapping[int, int],
        groups: Sequence[Sequence[int]] = (),
        known: Sequence[Facts | None] = (),
    ) -> None:
        self.recorder = recorder
        self.groups = groups
        self.known = known
        if groups and context_of(known) is not None:
            raise refuse("aot_aliased_inputs", detail="arguments of symbolic sizes")
        self.bases: list[Base] = []
        self.module = module
        self.inputs = list(inputs)
        self.names = list(names)
        self.given = len(inputs)
        self.adopted: dict[int, int] = {}
        self.owned = owned
        self.leaves: list[Any] = []  # what gradients are taken of
        self.met: dict[int, torch.Tensor] = {}  # leaves that autograd met themselves, before the recorder did
        self.values: list[Any] = []  # what the program gets
        self.memory_of: dict[int, Storage] = {}

    def run(self) -> Joint:
        recorder = self.recorder
        for name, value in zip(self.names, self.inputs, strict=True):
            self._add_input(name, value)
        for group in self.groups:
            self._add_base(group)
        self.given = len(self.inputs)
        recorder.adopt_real = self._adopt
        with recording(recorder), restored_modes(), self._calls():
            owned = {identity: self.values[place] for identity, place in self.owned.items()}
            placeholders = sum(1 for node in self.module.graph.nodes if node.op == "placeholder")
            result = Interpreter(recorder, owned).run(self.module, self.values[:placeholders])
        leaves, out_spec = pytree.tree_flatten(result)
        leaves = [recorder.own(leaf) for leaf in leaves]
        joint = Joint(recorder.tape, 0, [], [], [], [], out_spec=out_spec, inputs=len(self.inputs))
        joint.adopted = self.inputs[self.given :]
        joint.bases = self.bases
        self._plan_writes(joint)
        result_tensors = self._plan_outputs(joint, leaves)
        self._differentiate(joint, result_tensors)
        self._functionalise(joint, result_tensors)
        return joint

    def _calls(self) -> Any:
        return nullcontext() if context_of(self.known) is None else SymbolicCalls()

    def _adopt(self, real: torch.Tensor) -> AbstractTensor:
        """A tensor that code reaches by itself becomes an argument the runtime passes: it may be written or trained."""
        known = self.adopted.get(id(real))
        if known is None:
            known = self.adopted[id(real)] = len(self.inputs)
            self.inputs.append(real)
            name = f"captured_{known}"
            self.names.append(name)
            with torch._C._DisableTorchDispatch():
                self._add_input(name, real)
            if real.requires_grad:
                self.met[known] = real
        return self.values[known]  # type: ignore[no-any-return]

    # --- inputs ------------------------------------------------------------------------------------------------
    def _add_input(self, name: str, value: Any) -> None:
        place = len(self.values)
        facts = self.known[place] if place < len(self.known) else None
        if not isinstance(value, torch.Tensor):
            value = value if facts is None else facts.number
            self.recorder.tape.inputs.append(Step(INPUT, name, value=value))
            self.leaves.append(None)
            self.values.append(value)
            return
        check_plain(value)
        key = value.untyped_storage()._cdata if value.layout is torch.strided else id(value)
        sizes: dict[str, Any] = {}
        if facts is not None:
            sizes = {"size": facts.shape, "stride": facts.strides, "offset": facts.offset}
        made = self.recorder.input(name, value, memory=self.memory_of.get(key), **sizes)
        self.memory_of[key] = made.memory
        self.leaves.append(made)
        if value.requires_grad:
            made.requires_grad_(True)
            if not value.is_leaf:
                with torch.enable_grad():
                    made = _Fresh.apply(made)  # type: ignore[no-untyped-call]
        self.values.append(made)

    def _add_base(self, group: Sequence[int]) -> None:
        members = [self.inputs[place] for place in group]
        found = _find_base(members, group)
        if found is None:
            raise refuse("aot_aliased_inputs", detail=", ".join(self.names[place] for place in group))
        real, source = found
        number = len(self.inputs)
        self.inputs.append(real)
        self.names.append(f"base_{number}")
        self.memory_of.pop(real.untyped_storage()._cdata)
        self._add_input(self.names[number], real)
        base = self.values[number]
        with recording(self.recorder):
            for place, member in zip(group, members, strict=True):
                self.leaves[place] = None
                self.values[place] = base.as_strided(member.shape, member.stride(), member.storage_offset())
        self.bases.append(Base(tuple(group), source, tuple(int(member.storage_offset()) for member in members)))

    # --- what is written ---------------------------------------------------------------------------------------
    def _plan_writes(self, joint: Joint) -> None:
        written: dict[int, bool] = {}
        shared: list[list[int]] = []
        memories: dict[Any, list[Any]] = {}
        for step in self.recorder.tape.steps:
            for handle in written_handles(step):
                memories.setdefault(handle.value.memory, []).append(handle)
        for memory in memories:
            owners = [
                place
                for place, leaf in enumerate(self.leaves)
                if isinstance(leaf, AbstractTensor) and leaf.memory is memory
            ]
            if len(owners) > 1:
                shared.append(owners)
            for place in owners:
                written[place] = True
        if shared:
            raise _SharedMemory(shared)
        for place, leaf in enumerate(self.leaves):
            if not isinstance(leaf, AbstractTensor):
                continue
            value = self.values[place]
            layout = None
            if value.op is not self.recorder.tape.inputs[place]:
                layout = (tuple(value.shape), tuple(value.stride()), value.storage_offset())
            if place in written or layout is not None:
                tracked = value.requires_grad and not value.is_leaf and value.grad_fn is not None
                real = self.inputs[place]
                tracked = tracked and (not real.requires_grad or not _is_fresh(value))
                joint.writes.append(Write(place, 0 if place in written else None, tracked, layout=layout))

    # --- what is returned --------------------------------------------------------------------------------------
    def _plan_outputs(self, joint: Joint, leaves: list[Any]) -> list[AbstractTensor]:
        """Fill `joint.outputs`; returns the abstract tensors of the graph's results, written inputs first."""
        results: list[AbstractTensor] = []
        for write in joint.writes:
            if write.result is not None:
                write.result = len(results)
                results.append(self.values[write.index])
        objects = {id(value): place for place, value in enumerate(self.values) if isinstance(value, AbstractTensor)}
        for place, leaf in enumerate(self.leaves):
            if isinstance(leaf, AbstractTensor):
                objects.setdefault(id(leaf), place)
        input_steps = {step: place for place, step in enumerate(self.recorder.tape.inputs)}
        sharers: dict[Storage, set[int]] = {}
        for leaf in leaves:
            if isinstance(leaf, AbstractTensor):
                sharers.setdefault(leaf.memory, set()).add(id(leaf))
        seen: dict[int, int] = {}
        placed: dict[int, int] = {}  # id of an abstract tensor -> its result
        for number, leaf in enumerate(leaves):
            if not isinstance(leaf, AbstractTensor):
                joint.outputs.append(self._plain_output(leaf))
            elif id(leaf) in seen:
                joint.outputs.append(Output("same", seen[id(leaf)]))
            elif id(leaf) in objects:
                joint.outputs.append(Output("input", objects[id(leaf)]))
            else:
                joint.outputs.append(self._tensor_output(leaf, input_steps, sharers, placed, results))
            if isinstance(leaf, AbstractTensor):
                seen.setdefault(id(leaf), number)
        return results

    def _plain_output(self, leaf: Any) -> Output:
        return Output("constant", value=leaf)

    def _tensor_output(
        self,
        leaf: AbstractTensor,
        input_steps: dict[Step, int],
        sharers: dict[Storage, set[int]],
        placed: dict[int, int],
        results: list[AbstractTensor],
    ) -> Output:
        root = root_of(leaf.op)
        source = input_steps.get(root)
        if source is not None:
            base = self.values[source]
            return Output("view", source, replay=_replay(leaf, root), detach=_detaches(base, leaf))
        base = leaf
        if len(sharers[leaf.memory]) > 1 and isinstance(root.value, AbstractTensor):
            base = self.recorder.moved.get(root, root.value)
        if id(base) not in placed:
            placed[id(base)] = len(results)
            results.append(base)
        if base is leaf:
            return Output("result", placed[id(base)])
        replay = _replay(leaf, root) if base is root.value else _restride(leaf)
        return Output("derived", placed[id(base)], replay=replay, detach=_detaches(base, leaf))

    # --- gradients ---------------------------------------------------------------------------------------------
    def _differentiate(self, joint: Joint, results: list[AbstractTensor]) -> None:
        recorder = self.recorder
        joint.results = len(results)
        tracked = {write.result: write.tracked for write in joint.writes if write.result is not None}
        joint.differentiable = [tensor.requires_grad and tracked.get(n, True) for n, tensor in enumerate(results)]
        targets = [
            place
            for place, leaf in enumerate(self.leaves)
            if isinstance(leaf, AbstractTensor) and self.inputs[place].requires_grad
        ]
        self.gradients: list[Any] = []
        sources = [n for n, wanted in enumerate(joint.differentiable) if wanted]
        if not sources or not targets:
            joint.differentiable = [False] * len(results)
            return
        tangents: list[AbstractTensor] = []
        for number in sources:
            tangents.append(_tangent(results[number]))
            recorder.adopt(tangents[-1], f"tangent_{number}")
        recorder.backward = True
        forward_steps = len(recorder.tape.steps)
        with recording(recorder), restored_modes():
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    torch.set_autocast_enabled(device, False)
            try:
                self.gradients = self._gradients(results, sources, targets, tangents)
            except RuntimeError as error:
                if not _is_users_error(error):
                    raise
                # Eager raises this when, and only when, the gradient is asked for.
                joint.backward_error = str(error).partition("\nwhile tracing")[0]
                del recorder.tape.steps[forward_steps:]
                self.gradients = [None] * len(targets)
        recorder.backward = False
        joint.tangent_of = sources
        joint.gradient_of = [
            place for place, gradient in zip(targets, self.gradients, strict=True) if gradient is not None
        ]
        self.gradients = [gradient for gradient in self.gradients if gradient is not None]

    def _gradients(
        self, results: list[AbstractTensor], sources: list[int], targets: list[int], tangents: list[Any]
    ) -> list[Any]:
        outputs = tuple(results[number] for number in sources)
        leaves = tuple(self.met.get(place, self.leaves[place]) for place in targets)
        # torch.autograd.grad says the same, but imports sympy to look at the tangents.
        return list(
            _engine_run_backward(
                outputs, tuple(tangents), False, False, leaves, allow_unreachable=True, accumulate_grad=False
            )
        )

    # --- the functional tape -----------------------------------------------------------------------------------
    def _functionalise(self, joint: Joint, results: list[AbstractTensor]) -> None:
        tape = self.recorder.tape
        handles = [tensor.op for tensor in results]
        for write in joint.writes:
            if write.result is not None:
                handles[write.result] = tape.inputs[write.index]
        gradients = [gradient.op for gradient in self.gradients]
        worker = functionalise(tape)
        worker.model = tape.steps[-1] if tape.steps else None
        finals = [worker.current(handle) for handle in handles]
        worker_steps = worker.kept if worker.kept else tape.steps
        tape.steps = worker_steps
        outputs = [*finals, *[worker.current(gradient) for gradient in gradients]]
        outputs = _distinct(tape, outputs, joint.results)
        tape.outputs = list(outputs)
        passes.common_subexpressions(tape, set(outputs))
        passes.dead_code(tape)


def _find_base(members: Sequence[torch.Tensor], group: Sequence[int]) -> tuple[torch.Tensor, tuple[str, int]] | None:
    """A tensor all members are views of, and how the runtime finds it."""
    for place, member in zip(group, members, strict=True):
        base = member if member._base is None else member._base
        if all(other is base or other._base is base for other in members) and base.storage_offset() == 0:
            inside = next((n for n, other in zip(group, members, strict=True) if other is base), None)
            return base, ("base", place) if inside is None else ("input", inside)
    first = members[0]
    if any(member.requires_grad or member.dtype is not first.dtype for member in members):
        return None
    return whole_memory(first), ("flat", group[0])


def whole_memory(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's memory in one dimension."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty((0,), dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


_USERS_ERRORS = ("modified by an inplace operation", "Trying to backward through the graph a second time")


def _is_users_error(error: RuntimeError) -> bool:
    return any(text in str(error) for text in _USERS_ERRORS)


def _is_fresh(value: AbstractTensor) -> bool:
    """Whether a non-leaf input has still the history it came with."""
    return type(value.grad_fn).__name__ == "_FreshBackward"


def _detaches(base: AbstractTensor, leaf: AbstractTensor) -> bool:
    return base.requires_grad and not leaf.requires_grad


def _replay(leaf: AbstractTensor, root: Step) -> Replay:
    rows: list[Any] = []
    for step in view_chain(leaf.op):
        if step.kind == "item":
            call = step.args[0]
            rows.append((call.target, call.args[1:], dict(call.kwargs), step.target))
        else:
            rows.append((step.target, step.args[1:], dict(step.kwargs), None))
    return tuple(rows)


def _restride(leaf: AbstractTensor) -> Replay:
    return ((aten.as_strided.default, (list(leaf.shape), list(leaf.stride()), leaf.storage_offset()), {}, None),)


def _tangent(result: AbstractTensor) -> AbstractTensor:
    """The abstract gradient of a result: dense, in the result's own layout where that is dense."""
    stride = result.stride() if is_dense(result.shape, result.stride()) else None
    return fresh(result.shape, result.dtype, result.device, stride)


def _distinct(tape: Tape, outputs: list[Step], results: int) -> list[Step]:
    """Results in memory of their own: none an input's, none another result's."""
    taken: set[Step] = set(tape.inputs)
    distinct: list[Step] = []
    for number, step in enumerate(outputs):
        root = root_of(step)
        if root in taken and number < results:
            copy = like(step, CALL, aten.clone.default, (step,), None, step.value)
            tape.steps.append(copy)
            step = root = copy
        taken.add(root)
        distinct.append(step)
    return distinct
