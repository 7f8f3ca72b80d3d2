"""The code that runs around compiled graphs: straight-line Python, generated for one graph.

Contract. `build(plan)` returns a callable with the torch-level graph's signature. The text of what it generates
is its attribute `source`, what it was generated from its attribute `plan`. With gradients it is one
`torch.autograd.Function` with generated `forward` and `backward`; without, a plain function. What is known when the
graph is made (which results are written back, which are views of what, which gradients exist) is spelled out line by
line, and nothing of it is looked up in a call.

    call      -> forward graph (below autograd) -> write-backs -> outputs put together
    backward  -> kept values, gradients completed and laid out as traced -> backward graph

The forward runs with autograd's dispatch keys off: results that share memory are then plain tensors, which users may
write in place as in eager, and nothing is recorded that would be thrown away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from stator import events
from stator.aot.joint import Base, Joint, Output, whole_memory
from stator.aot.refusal import refuse
from stator.aot.symbolic import has_symbols, text
from stator.aot.tape import Step


@dataclass
class Plan:
    """What `build` needs to know."""

    joint: Joint
    forward: Callable[..., Any]
    compile_backward: Callable[[tuple[bool, ...]], Callable[..., Any]] | None  # given which gradients are absent
    kept: list[tuple[str, int]]
    kept_is_tensor: list[bool]
    tangents: list[torch.Tensor]  # abstract gradients, in order of `joint.tangent_of`
    owned: Sequence[torch.Tensor]  # tensors the module brought along, passed after the caller's arguments
    adopted: Sequence[torch.Tensor] = field(default=(), kw_only=True)  # tensors code reached by itself, passed last
    eager: Callable[..., Any] | None = field(default=None, kw_only=True)  # the torch-level graph, for arguments that
    # share memory in another way than when the graph was made
    below_autograd: bool
    values: int  # further outputs of the forward, after its results
    tensor_inputs: Sequence[bool] = ()  # per argument of the caller
    distinct_memories: int | None = None  # how many memories they had between them when the graph was made
    backward: Callable[..., Any] | None = None
    backwards: dict[tuple[bool, ...], Callable[..., Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    compile_id: events.CompileId | None = None

    def ensure_backward(self) -> Callable[..., Any]:
        """The compiled backward; compiled by whoever asks first."""
        self.backward = self.partial_backward((False,) * len(self.tangents))
        return self.backward

    def partial_backward(self, absent: tuple[bool, ...]) -> Callable[..., Any]:
        """The backward for calls in which some results have no gradient; see `absent`."""
        with self.lock:
            found = self.backwards.get(absent)
            if found is None:
                assert self.compile_backward is not None
                if self.compile_id is None:
                    found = self.compile_backward(absent)
                else:
                    with events.compiling(self.compile_id):
                        found = self.compile_backward(absent)
                self.backwards[absent] = found
            return found


class _NoDoubleBackward(torch.autograd.Function):
    """Stands behind gradients that were asked for with a graph of their own."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> Any:
        return tuple(tensor.detach() if isinstance(tensor, torch.Tensor) else None for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise refuse("aot_double_backward")


class _Code:
    """Lines of a function under construction, and the objects its names stand for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}

    def add(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def name(self, stem: str, value: Any) -> str:
        """A global name for an object."""
        label = f"{stem}{len(self.names)}"
        self.names[label] = value
        return label

    def function(self, label: str) -> Callable[..., Any]:
        text = "\n".join(self.lines) + "\n"
        exec(compile(text, "<stator runtime wrapper>", "exec"), self.names)
        made: Callable[..., Any] = self.names[label]
        made.source = text  # type: ignore[attr-defined]
        return made


def build(plan: Plan) -> Callable[..., Any]:
    """See the module."""
    code = _Code()
    joint = plan.joint
    given = joint.inputs - len(plan.owned) - len(joint.bases) - len(plan.adopted)
    names = [f"a{place}" for place in range(given)]
    arguments = names + [code.name("owned", tensor) for tensor in plan.owned]
    arguments += [f"b{place}" for place in range(len(joint.bases))]
    arguments += [code.name("adopted", tensor) for tensor in plan.adopted]
    code.names["forward"] = plan.forward
    code.names["below_autograd"] = torch._C._AutoDispatchBelowADInplaceOrView
    code.names["no_grad"] = torch.no_grad
    differentiable = any(plan.joint.differentiable)
    if differentiable:
        _function(code, plan, arguments)
    code.add(0, f"def call({', '.join(names)}):")
    _memory_check(code, plan, arguments, given)
    if differentiable:
        results = [f"r{place}" for place in range(plan.joint.results)]
        returned = [name for place, name in enumerate(results) if _leaves(plan, place)]
        target = f"{', '.join(returned)}{',' if len(returned) == 1 else ''} = " if returned else ""
        written = {write.index for write in joint.writes}
        passed = [
            f"(a{place} if a{place}.grad_fn is None else a{place}.detach())"  # no gradient: its history is not asked
            if place < len(plan.tensor_inputs) and plan.tensor_inputs[place] and place < given
            and place not in joint.gradient_of and place not in written else name
            for place, name in enumerate(arguments)
        ]  # fmt: skip
        code.add(1, f"{target}apply({', '.join(passed)})")
        _write_backs(code, plan, arguments, tracked=True)
    else:
        _run_forward(code, plan, arguments, 1)
        _write_backs(code, plan, arguments, tracked=False)
    _outputs(code, plan, arguments)
    call = code.function("call")
    call.plan = plan  # type: ignore[attr-defined]
    return call


def _memory_check(code: _Code, plan: Plan, arguments: list[str], given: int) -> None:
    """What the graph takes for granted about shared memory, if it writes arguments; else it takes nothing."""
    joint = plan.joint
    written = [write.index for write in joint.writes if write.result is not None]
    if not written:
        return
    code.names.update(plan=plan, shares_as_traced=_shares_as_traced, base_of=base_of, joint_bases=joint.bases)
    tensors = [place for place in range(given) if plan.tensor_inputs[place]]
    row = "".join(f"{arguments[place]}.untyped_storage()._cdata, " for place in tensors)
    every = f"({', '.join(arguments[:given])},)"
    if plan.distinct_memories is not None and not joint.bases:
        code.add(1, f"if len({{{row}}}) != {plan.distinct_memories} and not shares_as_traced(plan, {every}):")
    else:
        code.add(1, f"if not shares_as_traced(plan, {every}):")
    code.add(2, f"return plan.eager({', '.join(arguments[:given])})")
    for place in range(len(joint.bases)):
        code.add(1, f"b{place} = base_of(joint_bases[{place}], {every})")


def base_of(base: Base, arguments: Sequence[Any]) -> torch.Tensor:
    """The tensor a group of arguments are views of."""
    kind, number = base.source
    if kind == "input":
        return arguments[number]  # type: ignore[no-any-return]
    if kind == "base":
        return arguments[number]._base  # type: ignore[no-any-return]
    return whole_memory(arguments[number])


def _shares_as_traced(plan: Plan, arguments: Sequence[Any]) -> bool:
    """Whether written arguments share memory with just those they shared it with when the graph was made."""
    joint = plan.joint
    keys = [value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None for value in arguments]
    group_of: dict[int, int] = {}
    for number, base in enumerate(joint.bases):
        first = arguments[base.members[0]]
        root = first if first._base is None else first._base
        for place, offset in zip(base.members, base.offsets, strict=True):
            member = arguments[place]
            group_of[place] = number
            if keys[place] != keys[base.members[0]] or member.storage_offset() != offset:
                return False
            if base.source[0] != "flat" and member is not root and member._base is not root:
                return False
    written = {write.index for write in joint.writes if write.result is not None and write.index < len(arguments)}
    written.update(group_of)
    for place in written:
        for other, key in enumerate(keys):
            if other != place and key == keys[place] and key is not None:
                if group_of.get(other, -1) != group_of.get(place, -2):
                    return False
    return True


def _leaves(plan: Plan, result: int) -> bool:
    """Whether a result leaves the autograd function; contents of untracked writes are copied inside it."""
    return all(write.result != result or write.tracked for write in plan.joint.writes)


def _run_forward(code: _Code, plan: Plan, arguments: list[str], depth: int) -> None:
    names = [f"r{place}" for place in range(plan.joint.results)] + [f"v{place}" for place in range(plan.values)]
    target = f"{', '.join(names)}{',' if len(names) == 1 else ''} = " if names else ""
    if plan.below_autograd:
        code.add(depth, "with below_autograd():")
        depth += 1
    code.add(depth, f"{target}forward({', '.join(arguments)})")


def _function(code: _Code, plan: Plan, arguments: list[str]) -> None:
    joint = plan.joint
    code.add(0, f"def run_forward(ctx, {', '.join(arguments)}):")
    _run_forward(code, plan, arguments, 1)
    _write_backs(code, plan, arguments, tracked=False)
    source = {"input": lambda place: arguments[place], "result": lambda place: f"r{place}"}
    kept = [source.get(kind, lambda place: f"v{place}")(place) for kind, place in plan.kept]
    tensors = [name for name, tensor in zip(kept, plan.kept_is_tensor, strict=True) if tensor]
    numbers = [name for name, tensor in zip(kept, plan.kept_is_tensor, strict=True) if not tensor]
    if tensors:
        code.add(1, f"ctx.save_for_backward({', '.join(tensors)})")
    if numbers:
        code.add(1, f"ctx.numbers = ({', '.join(numbers)},)")
    returned = [place for place in range(joint.results) if _leaves(plan, place)]
    fixed = [f"r{place}" for place in returned if not joint.differentiable[place]]
    if fixed:
        code.add(1, f"ctx.mark_non_differentiable({', '.join(fixed)})")
    joint_inputs = joint.tape.inputs[: joint.inputs]
    for place, tangent in zip(joint.tangent_of, plan.tangents, strict=True):
        if has_symbols(tangent.stride()):
            code.add(1, f"ctx.stride{place} = {text(tuple(tangent.stride()), joint_inputs, arguments)}")
    code.add(1, "ctx.set_materialize_grads(False)")
    code.add(1, f"return ({''.join(f'r{place}, ' for place in returned)})")
    _backward(code, plan, arguments, returned)
    namespace: dict[str, Any] = code.names
    exec(compile("\n".join(code.lines) + "\n", "<stator runtime wrapper>", "exec"), namespace)
    members = {
        "forward": staticmethod(namespace["run_forward"]),
        "backward": staticmethod(namespace["run_backward"]),
    }
    function = type("CompiledFunction", (torch.autograd.Function,), members)
    code.names["apply"] = super(torch.autograd.Function, function).apply  # type: ignore[misc]


def _backward(code: _Code, plan: Plan, arguments: list[str], returned: list[int]) -> None:
    joint = plan.joint
    gradients = [f"g{place}" for place in returned]
    code.add(0, f"def run_backward(ctx, {', '.join(gradients)}):")
    if joint.backward_error is not None:
        code.add(1, f"raise {code.name('error', RuntimeError)}({joint.backward_error!r})")
        return
    code.names.update(plan=plan, is_grad_enabled=torch.is_grad_enabled, lay_out=_lay_out, settle_graph=_settle_graph)
    for place, tangent in zip(joint.tangent_of, plan.tangents, strict=True):
        if has_symbols(tangent.stride()):
            code.add(1, f"if g{place} is not None and g{place}.stride() != ctx.stride{place}:")
            code.add(2, f"g{place} = lay_out(g{place}, ctx.stride{place})")
        else:
            code.add(1, f"if g{place} is not None and g{place}.stride() != {tuple(tangent.stride())!r}:")
            code.add(2, f"g{place} = lay_out(g{place}, {tuple(tangent.stride())!r})")
    tensors = iter(range(sum(plan.kept_is_tensor)))
    numbers = iter(range(len(plan.kept_is_tensor)))
    if any(plan.kept_is_tensor):
        code.add(1, "saved = ctx.saved_tensors")
    plain = all(plan.kept_is_tensor)
    passed = ["*saved"] if plain and plan.kept else []
    if not plain:
        passed = [
            f"saved[{next(tensors)}]" if kind else f"ctx.numbers[{next(numbers)}]" for kind in plan.kept_is_tensor
        ]
    passed += [f"g{place}" for place in joint.tangent_of]
    missing = [f"g{place} is None" for place in joint.tangent_of]
    code.add(1, f"if {' or '.join(missing)}:")
    code.add(2, f"run = plan.partial_backward(({', '.join(missing)},))")
    code.add(1, "else:")
    code.add(2, "run = plan.backward or plan.ensure_backward()")
    made = [f"d{place}" for place in joint.gradient_of]
    target = f"{', '.join(made)}{',' if len(made) == 1 else ''} = " if made else ""
    code.add(1, "with below_autograd():")
    code.add(2, f"{target}run({', '.join(passed)})")
    if made:
        tangents = ", ".join(f"g{place}" for place in joint.tangent_of)
        saved = "*saved, " if any(plan.kept_is_tensor) else ""
        code.add(1, "if is_grad_enabled():")
        code.add(2, f"{target}settle_graph(({', '.join(made)},), {saved}{tangents})")
    by_argument = {place: f"d{place}" for place in joint.gradient_of}
    code.add(1, f"return ({''.join(by_argument.get(place, 'None') + ', ' for place in range(joint.inputs))})")


def _lay_out(gradient: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A gradient in the layout that was traced."""
    for length, have, wanted in zip(gradient.shape, gradient.stride(), strides, strict=True):
        if length != 1 and have != wanted:
            made = torch.empty_strided(gradient.shape, strides, dtype=gradient.dtype, device=gradient.device)
            return made.copy_(gradient)
    return gradient


def _settle_graph(made: Sequence[Any], *sources: Any) -> Any:
    """Gradients asked for with `create_graph=True`: usable, but a reasoned error when differentiated again."""
    return _NoDoubleBackward.apply(len(made), *made, *sources)  # type: ignore[no-untyped-call]


def _write_backs(code: _Code, plan: Plan, arguments: list[str], tracked: bool) -> None:
    for write in plan.joint.writes:
        if write.result is not None and not write.inside and write.tracked == tracked:
            if tracked or not plan.below_autograd:
                code.add(1, f"{arguments[write.index]}.copy_(r{write.result})")
            else:
                code.add(1, "with no_grad():")
                code.add(2, f"{arguments[write.index]}.copy_(r{write.result})")


def _outputs(code: _Code, plan: Plan, arguments: list[str]) -> None:
    joint_inputs = plan.joint.tape.inputs[: plan.joint.inputs]
    made: list[str] = []
    for number, output in enumerate(plan.joint.outputs):
        made.append(_output(code, number, output, arguments, made, joint_inputs))
    for write in plan.joint.writes:
        if write.layout is not None:
            size, stride, offset = write.layout
            code.add(1, "with no_grad():")
            layout = text((size, stride, offset), joint_inputs, arguments)
            code.add(2, f"{arguments[write.index]}.as_strided_(*{layout})")
    spec = plan.joint.out_spec
    plain = spec is None or (spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children()))
    inner = "".join(f"{name}, " for name in made)
    if plain:
        code.add(1, f"return ({inner})")
    else:
        code.names.update(tree_unflatten=pytree.tree_unflatten, out_spec=spec)
        code.add(1, f"return tree_unflatten([{inner}], out_spec)")


def _output(
    code: _Code, number: int, output: Output, arguments: list[str], made: list[str], inputs: Sequence[Step]
) -> str:
    if output.kind == "constant" and has_symbols(output.value):
        return text(output.value, inputs, arguments)
    if output.kind == "constant":
        return code.name("constant", output.value)
    if output.kind == "input":
        return arguments[output.index]
    if output.kind == "same":
        return made[output.index]
    if output.kind == "result":
        return f"r{output.index}"
    source = arguments[output.index] if output.kind == "view" else f"r{output.index}"
    return _replayed(code, f"o{number}", source, output, arguments, inputs)


def _replayed(
    code: _Code, label: str, source: str, output: Output, arguments: list[str], inputs: Sequence[Step]
) -> str:
    expression, replay, detach = source, output.replay, output.detach
    if detach or not replay:
        expression = f"{expression}.detach()" if detach else f"{expression}.view_as({expression})"
    for op, args, kwargs, item in replay:
        callee = code.name("view", op)
        extra = f", *{code.name('args', args)}" if args else ""
        if has_symbols(args):
            parts = (text(arg, inputs, arguments) if has_symbols(arg) else code.name("arg", arg) for arg in args)
            extra = f", {', '.join(parts)}"
        named = f", **{code.name('kwargs', kwargs)}" if kwargs else ""
        expression = f"{callee}({expression}{extra}{named})"
        if item is not None:
            expression = f"{expression}[{item}]"
    code.add(1, f"{label} = {expression}")
    return label
