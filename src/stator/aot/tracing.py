"""Non-strict tracing: run a function once on stand-ins and keep the operators it ran.

Contract. `trace(fn, mode=...)(*args)` returns a `GraphModule` of ATen operators that takes what `fn` takes and
returns what it returns (any registered pytree). Python runs as it is and leaves no mark in the graph: arguments that
are no tensors, sizes and captured values become constants, listed in `graph_module.meta`:

    meta["constants"]        name of the attribute -> where the tensor came from
    meta["specialisations"]  sentences: what the graph takes for granted

    mode="fake"      tensors without values; reading one is an error
    mode="symbolic"  the same, with sizes that stay symbolic
    mode="real"      operators also run on the real arguments; values read are frozen into the graph
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo

from stator.aot import lazy_symbolic, passes
from stator.aot.abstract import AbstractTensor, tracing
from stator.aot.checkpointing import settle_checkpoint
from stator.aot.dynamo_free import settle_transforms
from stator.aot.export import to_graph_module
from stator.aot.functionalise import written_handles
from stator.aot.lines import user_line
from stator.aot.recorder import Recorder
from stator.aot.refusal import refuse
from stator.aot.symbolic import SymbolicCalls, settle
from stator.aot.tape import CALL, INPUT, Step, like, map_steps, substitute
from stator.sizes.context import SizeContext
from stator.values.source import Source, SourceTree

MODES = ("fake", "real", "symbolic")


def trace(
    fn: Callable[..., Any], mode: str = "fake", *, allow_real_inputs: bool = False
) -> Callable[..., torch.fx.GraphModule]:
    """A function that takes `fn`'s arguments and returns the graph `fn` ran on them."""
    if mode not in MODES:
        raise refuse("aot_mode", detail=repr(mode))

    def traced(*args: Any, **kwargs: Any) -> torch.fx.GraphModule:
        return _trace(fn, mode, allow_real_inputs, args, kwargs)

    return traced


def _trace(
    fn: Callable[..., Any], mode: str, allow_real_inputs: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.GraphModule:
    leaves, in_spec = pytree.tree_flatten((args, kwargs))
    argument_names, names = _names(fn, args, kwargs)
    sources: dict[str, str] = {}

    def meet_real(tensor: torch.Tensor) -> None:
        description = _describe(fn, tensor)
        if not allow_real_inputs:
            raise refuse("aot_real_tensor", detail=description, line=recorder.line() or "")
        sources[f"_tensor_constant{len(recorder.tape.constants)}"] = description

    context = SizeContext() if mode == "symbolic" else None
    recorder = Recorder(real=mode == "real", locate=user_line, on_real_tensor=meet_real)
    try:
        abstract_leaves = [
            _abstract_leaf(recorder, context, name, leaf) for name, leaf in zip(names, leaves, strict=True)
        ]
        call_args, call_kwargs = pytree.tree_unflatten(abstract_leaves, in_spec)
        with following(context), recording(recorder), SymbolicCalls() if context else nullcontext():
            result = fn(*call_args, **call_kwargs)
        out_leaves, out_spec = pytree.tree_flatten(result)
        recorder.tape.outputs = [_lower_output(recorder, leaf) for leaf in out_leaves]
        _protect_literals(recorder)
        settle(recorder.tape)
        passes.dead_code(recorder.tape)
        signature = _PyTreeInfo(argument_names, in_spec, out_spec)
        module = to_graph_module(recorder.tape, getattr(fn, "__name__", type(fn).__name__), _PyTreeCodeGen(signature))
        module.meta["mode"] = mode
        module.meta["constants"] = {name: sources.get(name, "made while tracing") for name in recorder.tape.constants}
        module.meta["specialisations"] = _specialisations(names, leaves, recorder, context)
        return module
    finally:
        recorder.close()


def _protect_literals(recorder: Recorder) -> None:
    """A literal that the program writes is copied first, so that the graph starts anew each time."""
    written = {handle.value.memory for step in recorder.tape.steps for handle in written_handles(step)}
    steps: list[Step] = []
    copies: dict[Step, Step] = {}
    for step in recorder.tape.steps:
        if copies:
            substitute(step, lambda operand: copies.get(operand, operand))
        steps.append(step)
        if step in recorder.literals and step.value.memory in written:
            copies[step] = like(step, CALL, torch.ops.aten.clone.default, (step,), None, step.value)
            steps.append(copies[step])
    recorder.tape.steps = steps
    recorder.tape.outputs = map_steps(lambda step: copies.get(step, step), recorder.tape.outputs)


@contextmanager
def following(context: SizeContext | None) -> Iterator[None]:
    """Around a trace whose sizes are symbols of `context`."""
    outer, tracing.context = tracing.context, context or tracing.context
    try:
        yield
    finally:
        tracing.context = outer


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Everything a trace needs around it: the mode, one autograd thread, no inference mode."""
    settle_transforms()
    settle_checkpoint()
    lazy_symbolic.install()
    inference = torch.is_inference_mode_enabled()
    with (
        torch.inference_mode(False) if inference else nullcontext(),
        torch.no_grad() if inference else nullcontext(),
        torch.autograd.set_multithreading_enabled(False),
        recorder,
    ):
        yield


def _abstract_leaf(recorder: Recorder, context: SizeContext | None, name: str, leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        recorder.tape.inputs.append(Step(INPUT, name, value=leaf))
        return leaf
    check_plain(leaf)
    sizes: dict[str, Any] = {}
    if context is not None and leaf.dim() > 0:
        sizes = symbolic_sizes(context, SourceTree((name,)).local(0), leaf)
    made = recorder.input(name, leaf, **sizes)
    if leaf.requires_grad:
        made.requires_grad_(True)
    return made


def symbolic_sizes(context: SizeContext, source: Source, tensor: torch.Tensor) -> dict[str, Any]:
    """Symbolic sizes for a real tensor, and strides that follow from them where it is dense."""
    size = [context.symbol(source.child("SIZE", dim), length) for dim, length in enumerate(tensor.shape)]
    order = sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), -dim))
    stride: list[Any] = list(tensor.stride())
    step: Any = 1
    real_step = 1
    for dim in order:
        if tensor.stride(dim) == real_step:
            stride[dim] = step
        step = stride[dim] * size[dim]
        real_step = tensor.stride(dim) * max(tensor.shape[dim], 1)
    return {"size": size, "stride": stride}


def check_plain(tensor: torch.Tensor) -> None:
    """Refuse tensor subclasses that dispatch by themselves."""
    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, AbstractTensor):
        return
    dispatch = getattr(kind, "__torch_dispatch__", None)
    if dispatch is not None and dispatch is not torch._C._disabled_torch_dispatch_impl:
        raise refuse("aot_subclass", detail=kind.__name__)


def _lower_output(recorder: Recorder, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        with torch.no_grad():
            return recorder.own(leaf).op
    return recorder.lower(leaf, [])


def _names(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[str], list[str]]:
    """A name per argument, and one per leaf: the parameter's name, with its path where it holds several."""
    try:
        called = fn.forward if isinstance(fn, torch.nn.Module) else fn
        bound = inspect.signature(called).bind(*args, **kwargs)
        parameters = list(bound.signature.parameters.values())
    except (TypeError, ValueError):
        parameters = []
    prefixes = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    owners = [prefixes[place] if place < len(prefixes) else f"argument{place}" for place in range(len(args))]
    taken: set[str] = set()
    names: list[str] = []
    for owner, value in [*zip(owners, args, strict=True), *kwargs.items()]:
        for parts in _paths(value):
            name = f"{owner}_{parts}" if parts else owner
            name = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_") or "argument"
            while name in taken:
                name += "_"
            taken.add(name)
            names.append(name)
    return [*owners, *kwargs], names


def _paths(value: Any) -> list[str]:
    """A name for each leaf within an argument."""
    try:
        rows = [path for path, _ in pytree.tree_flatten_with_path(value)[0]]
    except ValueError:  # a user's class that does not name its children
        return [str(place) for place in range(len(pytree.tree_leaves(value)))]
    return [
        "_".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
        for path in rows
    ]


def _specialisations(names: list[str], leaves: list[Any], recorder: Recorder, context: SizeContext | None) -> list[str]:
    found: list[str] = []
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            if context is None:
                found.append(f"{name} has size {tuple(leaf.shape)}")
        else:
            found.append(f"{name} is the constant {leaf!r}")
    guards = [] if context is None else [f"{context.text(guard.expr)} holds" for guard in context.guards]
    return found + recorder.specialised + guards


def _describe(fn: Callable[..., Any], tensor: torch.Tensor) -> str:
    """How the user calls a tensor the function reaches without being given it."""
    shape = f"{type(tensor).__name__} of size {tuple(tensor.shape)}"
    for name, value in _reachable(fn):
        if value is tensor:
            return f"`{name}`, a {shape}"
        if isinstance(value, torch.nn.Module):
            for path, inner in [*value.named_parameters(), *value.named_buffers()]:
                if inner is tensor:
                    return f"`{name}.{path}`, a {shape}"
    return f"a {shape}"


def _reachable(fn: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Names and values a function sees outside of its arguments."""
    owner = getattr(fn, "__self__", None)
    if isinstance(fn, torch.nn.Module):
        yield "self", fn
    elif isinstance(owner, torch.nn.Module):
        yield "self", owner
    function = inspect.unwrap(getattr(fn, "__func__", fn)) if callable(fn) else fn
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
