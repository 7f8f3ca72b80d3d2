"""From tape to `torch.fx.GraphModule`, the form other stages, backends and people read.

Contract. `to_graph_module` writes the steps that the outputs need, in tape order (plus whatever has effects, see
`passes.dead_code`), with `meta["val"]` the abstract value and `meta["stack_trace"]` the user's line on every node.
Inputs come first and in order, used or not. A tape can be exported more than once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from stator.aot.tape import CALL, CONSTANT, ITEM, Step, Tape


def _name(step: Step) -> str:
    target = step.target
    if isinstance(target, OpOverload):
        return target._schema.name.partition("::")[2]
    return str(getattr(target, "__name__", target))


def to_graph_module(
    tape: Tape, class_name: str = "Graph", codegen: Any = None, single: bool = False
) -> torch.fx.GraphModule:
    """The tape as a graph module of class name `class_name`; `single` returns the one output bare."""
    graph = torch.fx.Graph()
    nodes: dict[Step, torch.fx.Node] = {}

    def lower(value: Any) -> Any:
        kind = type(value)
        if kind is Step:
            return nodes[value]
        if kind is list:
            return [lower(item) for item in value]
        if kind is tuple:
            return tuple([lower(item) for item in value])
        if kind is slice:
            return slice(lower(value.start), lower(value.stop), lower(value.step))
        if kind is dict:
            return {key: lower(item) for key, item in value.items()}
        return value

    for step in tape.inputs:
        node = graph.create_node("placeholder", step.target, name=step.target)
        node.meta["val"] = step.value
        nodes[step] = node
    for step in tape.steps:
        if step.kind == CALL:
            name = _name(step)
            kwargs = lower(step.kwargs) if step.kwargs else {}
            node = graph.create_node("call_function", step.target, lower(step.args), kwargs, name)
        elif step.kind == ITEM:
            node = graph.create_node("call_function", operator.getitem, (nodes[step.args[0]], step.target), {}, "item")
        elif step.kind == CONSTANT:
            node = graph.create_node("get_attr", step.target, name=step.target)
        else:
            continue
        node.meta["val"] = step.value
        if step.stack is not None:
            node.meta["stack_trace"] = step.stack
        if step.backward:
            node.meta["partitioner_tag"] = "is_backward"
        nodes[step] = node
    outputs = tape.outputs[0] if single else tuple(tape.outputs)
    output = graph.output(lower(outputs))
    output.meta["val"] = None
    if codegen is not None:
        graph.set_codegen(codegen)
    used = {step.target for step in tape.steps if step.kind == CONSTANT}
    module = torch.fx.GraphModule(_Root(tape, used), graph, class_name)
    return module


class _Root(torch.nn.Module):
    """Holds the constants of a tape under their names, as a graph module expects its root to."""

    def __init__(self, tape: Tape, names: set[str]) -> None:
        super().__init__()
        for name in names:
            value = tape.constants[name]
            if isinstance(value, (torch.nn.Parameter, torch.nn.Module)):
                setattr(self, name, value)
            elif isinstance(value, torch.Tensor):
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)


def from_graph_module(module: torch.fx.GraphModule) -> Tape:
    """A tape again, from a graph a user's partitioner or pass has made."""
    tape = Tape()
    steps: dict[torch.fx.Node, Step] = {}

    def lift(value: Any) -> Any:
        to_step: Any = steps.__getitem__
        return torch.fx.node.map_arg(value, to_step)

    for node in module.graph.nodes:
        if node.op == "placeholder":
            step = Step("input", node.target, value=node.meta.get("val"))
            tape.inputs.append(step)
        elif node.op == "get_attr":
            step = Step(CONSTANT, node.target, value=node.meta.get("val"))
            tape.constants[node.target] = _attribute(module, node.target)
            tape.steps.append(step)
        elif node.op == "output":
            tape.outputs = list(lift(node.args[0]))
            continue
        elif node.target is operator.getitem and isinstance(node.args[1], int):
            step = Step(ITEM, node.args[1], (steps[node.args[0]],), None, node.meta.get("val"))
            tape.steps.append(step)
        else:
            step = Step(CALL, node.target, _plain(lift(node.args)), dict(lift(node.kwargs)), node.meta.get("val"))
            tape.steps.append(step)
        step.stack = node.meta.get("stack_trace")
        steps[node] = step
    return tape


def _plain(value: Any) -> Any:
    """fx keeps lists and tuples in classes of its own; a tape has the plain ones."""
    if isinstance(value, (list, torch.fx.immutable_collections.immutable_list)):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value


def _attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
