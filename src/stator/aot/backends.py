"""Backends on top of ahead-of-time autograd.

Contract. `backend(fw_compiler, bw_compiler, inference_compiler, decompositions, partition)` makes a function
`(gm, example_inputs) -> callable`, what a frontend calls a backend. The compilers get functional ATen graph modules
(`meta["val"]`: an abstract tensor on every node) with example inputs, and return a callable of the same arguments
that returns a tuple or list.

    fw_compiler           forward of a graph that will be differentiated: results, then what the backward keeps
    bw_compiler           its backward; `fw_compiler` if not given. Compiled when the first backward runs: a forward
                          whose gradient nobody asks for never pays for one, and the first result comes sooner
    inference_compiler    graphs without gradients; `fw_compiler` if not given. With an attribute `writes_inputs` that
                          is true, its graphs end with `copy_` into the inputs they change (see `inplace`)

`aot_eager` runs the graphs as they are; `aot_eager_decomp_partition` with the decompositions and the partitioner an
optimising backend would use. Their results tell at which stage a difference from eager arises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx

from stator import events
from stator.aot import decompositions as decomposition_sets
from stator.aot.absent import without
from stator.aot.abstract import AbstractTensor, tracing
from stator.aot.export import Compiler, to_graph_module
from stator.aot.inplace import write_inside
from stator.aot.interpret import lift
from stator.aot.joint import Joint, trace_joint
from stator.aot.partition import Partitioner, Split, partition
from stator.aot.segments import has_run_time_values, in_segments
from stator.aot.symbolic import Facts, context_of, facts_of, missing, settle
from stator.aot.tape import INPUT, Step, Tape
from stator.aot.wrapper import Plan, base_of, build
from stator.capture.plain_operators import as_plain
from stator.exc import Unsupported
from stator.sizes import SizeContext

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def backend(
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    inference_compiler: Compiler | None = None,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    partition: Partitioner = "min-cut",
) -> Backend:
    """A backend that hands functional ATen graphs to the given compilers."""

    def compile_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if has_run_time_values(gm):
            return in_segments(gm, compile_graph)
        return _compile(
            gm,
            list(example_inputs),
            fw_compiler,
            bw_compiler or fw_compiler,
            inference_compiler or fw_compiler,
            decompositions,
            partition,
        )

    return compile_graph


def _compile(
    gm: torch.fx.GraphModule,
    inputs: list[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler,
    inference_compiler: Compiler,
    decompositions: Mapping[Any, Callable[..., Any]] | None,
    how: Partitioner,
) -> Callable[..., Any]:
    names = [str(node.target) for node in gm.graph.nodes if node.op == "placeholder"]
    owned = lift(gm)
    every = [*inputs, *owned.values()]
    every_name = [*names, *_owned_names(owned, names)]
    known = [
        facts_of(node.meta.get("example_value"), value)
        for node, value in zip((node for node in gm.graph.nodes if node.op == "placeholder"), inputs, strict=False)
    ]
    places = {id(tensor): len(inputs) + place for place, tensor in enumerate(owned.values())}
    try:
        with _tracing(context_of(known)):
            return _compiled(
                gm, inputs, owned, every, every_name, places, known, fw_compiler, bw_compiler, inference_compiler,
                decompositions, how,
            )  # fmt: skip
    except Unsupported as error:
        if error.reason not in ("aot_aliased_inputs", "aot_symbolic"):
            raise
        events.emit("fallback", reason=error.reason, detail=error.detail)
        return as_plain(gm).forward


@contextmanager
def _tracing(context: SizeContext | None) -> Iterator[None]:
    """Around a trace with symbols. The program's own decisions are guarded: what is asked here is for 0 and 1 alike."""
    if context is None:
        yield
        return
    outer, tracing.context = tracing.context, context
    try:
        with context.presuming(always=True):
            yield
    finally:
        tracing.context = outer


def _compiled(
    gm: torch.fx.GraphModule,
    inputs: list[Any],
    owned: Mapping[str, torch.Tensor],
    every: list[Any],
    names: list[str],
    places: Mapping[int, int],
    known: Sequence[Facts | None],
    fw_compiler: Compiler,
    bw_compiler: Compiler,
    inference_compiler: Compiler,
    decompositions: Mapping[Any, Callable[..., Any]] | None,
    how: Partitioner,
) -> Callable[..., Any]:
    with events.stage("aot"):
        joint = trace_joint(gm, every, names, places, decompositions, known)
    every += [base_of(base, every) for base in joint.bases] + joint.adopted
    if any(joint.differentiable):
        plan = _training(joint, every, fw_compiler, bw_compiler, how)
    else:
        plan = _inference(joint, every, inference_compiler)
    plan.owned, plan.adopted, plan.eager = list(owned.values()), joint.adopted, as_plain(gm).forward
    plan.tensor_inputs = [isinstance(value, torch.Tensor) for value in inputs]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    plan.distinct_memories = len({value.untyped_storage()._cdata for value in tensors})
    joint.let_go()
    return build(plan)


def _owned_names(owned: Mapping[str, torch.Tensor], taken: Sequence[str]) -> list[str]:
    names: list[str] = []
    for path in owned:
        name = path.replace(".", "_")
        while name in taken or name in names:
            name += "_"
        names.append(name)
    return names


def _inference(joint: Joint, inputs: Sequence[Any], compiler: Compiler) -> Plan:
    if getattr(compiler, "writes_inputs", False):
        write_inside(joint)
    settle(joint.tape)
    module = to_graph_module(joint.tape, "Inference")
    events.emit("aot_graph", which="inference", graph_module=module)
    requires = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    return Plan(joint, compiler(module, inputs), None, [], [], [], (), below_autograd=requires, values=0)


def _training(
    joint: Joint, inputs: Sequence[Any], fw_compiler: Compiler, bw_compiler: Compiler, how: Partitioner
) -> Plan:
    if events.wanted("aot_joint_graph"):
        events.emit("aot_joint_graph", graph_module=to_graph_module(joint.tape, "Joint"))
    tangents = [step.value for step in joint.tape.inputs[joint.inputs :]]
    with events.stage("partition"):
        split = partition(joint, how)
    _keep_symbols(split, joint)
    forward = to_graph_module(split.forward, "Forward")
    events.emit("aot_graph", which="forward", graph_module=forward)
    backward_tape = split.backward
    kinds = [isinstance(step.value, torch.Tensor) for step in backward_tape.inputs[: len(split.kept)]]

    def compile_backward(absent: tuple[bool, ...]) -> Callable[..., Any]:
        if not any(absent):
            return _compile_tape(backward_tape, bw_compiler)
        return _partial(backward_tape, len(split.kept), absent, bw_compiler)

    return Plan(
        joint,
        fw_compiler(forward, inputs),
        compile_backward,
        split.kept,
        kinds,
        tangents,
        (),
        below_autograd=True,
        values=_further(split, joint),
        compile_id=events.current_compile_id(),
    )


def _compile_tape(tape: Tape, compiler: Compiler) -> Callable[..., Any]:
    module = to_graph_module(tape, "Backward")
    events.emit("aot_graph", which="backward", graph_module=module)
    return compiler(module, [step.value for step in tape.inputs])


def _partial(tape: Tape, kept: int, absent: tuple[bool, ...], compiler: Compiler) -> Callable[..., Any]:
    """The backward without some gradients, called as if all were there, with `None` in the places of those absent."""
    tangents = tape.inputs[kept:]
    short = without(tape, {step for step, gone in zip(tangents, absent, strict=True) if gone})
    mask = [output is not None for output in short.outputs]
    if not any(mask):
        return lambda *_: (None,) * len(mask)
    short.outputs = [output for output in short.outputs if output is not None]
    compiled = _compile_tape(short, compiler)
    present = [place for place, gone in enumerate(absent) if not gone]

    def run(*values: Any) -> tuple[Any, ...]:
        made = iter(compiled(*values[:kept], *[values[kept + place] for place in present]))
        return tuple([next(made) if there else None for there in mask])

    return run


def _keep_symbols(split: Split, joint: Joint) -> None:
    """Sizes the backward needs and no tensor it gets tells come from the forward, as numbers."""
    lacking = missing(split.backward, values=True)
    for symbol in lacking:
        place = len(split.kept)
        split.backward.inputs.insert(place, Step(INPUT, f"size_{place}", value=symbol))
        split.kept.append(("value", len(split.forward.outputs) - joint.results))
        split.forward.outputs.append(symbol)
    settle(split.forward)
    settle(split.backward)


def _further(split: Split, joint: Joint) -> int:
    return len(split.forward.outputs) - joint.results


def run_as_is(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A compiler that changes nothing."""
    run: Callable[..., Any] = module.forward
    return run


aot_eager: Backend = backend(run_as_is, partition="default")
aot_eager_decomp_partition: Backend = backend(run_as_is, decompositions=decomposition_sets.CORE, partition="min-cut")


def graphs_of(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> dict[str, torch.fx.GraphModule]:
    """The graphs a backend would be handed, by name: for people and tests."""
    found: dict[str, torch.fx.GraphModule] = {}

    def keep(which: str) -> Compiler:
        def compiler(module: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
            found[which] = module
            return run_as_is(module, example)

        return compiler

    backend(keep("forward"), keep("backward"), keep("inference"))(gm, inputs)
    return found


def tape_values(tape: Tape) -> list[Any]:
    """Abstract values of a tape's inputs."""
    return [step.value for step in tape.inputs if isinstance(step.value, AbstractTensor)]
