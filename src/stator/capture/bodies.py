"""Functions that an operation of the graph runs: interpreted into graphs of their own.

Contract. `trace_body` interprets a function of the program on abstract tensors while the tracer records into a graph
of its own, and gives that graph with what came out. Tensors (and sizes) of the enclosing trace that the body uses are
*lifted*: they become inputs of the body, and operands of the operation that runs it. A body that does anything but
compute breaks the graph: it runs as often as the operation says, so an effect of it could be neither replayed nor
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from stator.capture.changes import Changes, caller_step
from stator.capture.control import Break, Restart, UserException
from stator.capture.graph import GraphBuilder
from stator.tensors import engine
from stator.tensors.abstract import AbstractTensor

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


class BodyBuilder(GraphBuilder):
    """The graph of a body; what comes from outside of it is lifted."""

    def __init__(self, outer: GraphBuilder) -> None:
        super().__init__(outer.stack_trace, outer.location)
        self.outer = outer
        self.sizes = outer.sizes
        self.module_stack = outer.module_stack
        self.lifted: dict[int, tuple[Any, torch.fx.Node]] = {}  # by identity: the outer value and its stand-in
        self.numbers: list[tuple[Any, torch.fx.Node]] = []
        self.written: list[AbstractTensor] = []  # lifted tensors that had been written before

    def node_of(self, tensor: AbstractTensor) -> torch.fx.Node:
        owner = tensor.node if tensor.node is not None else tensor.producer
        if owner is not None and owner.graph is self.graph:
            return super().node_of(tensor)
        row = self.lifted.get(id(tensor))
        if row is None:
            if tensor.mutated:
                tensor.mutated = False
                self.written.append(tensor)
            row = self.lifted[id(tensor)] = (tensor, self.parameter(tensor, "free"))
        return row[1]

    def parameter(self, value: Any, name: str) -> torch.fx.Node:
        """A further input."""
        node = self._placeholder(name)
        node.meta["example_value"] = value
        return node

    def stand_in(self, tensor: AbstractTensor, shape: Any = None, strides: Any = None) -> AbstractTensor:
        """An input that is a tensor like another one (or of the sizes given)."""
        made = AbstractTensor(
            tensor.shape if shape is None else torch.Size(shape),
            tensor.strides if strides is None else tuple(strides),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            not tensor.requires_grad,
        )
        made.node = self.parameter(made, "arg")
        return made

    def lift_number(self, source: Any, value: Any) -> torch.fx.Node:
        node = self.parameter(value, "size")
        self.numbers.append((value, node))
        return node

    def guard_tensor(self, tensor: AbstractTensor) -> None:
        self.outer.guard_tensor(tensor)

    def lifted_values(self) -> list[Any]:
        """What the operation must pass along after the body's own arguments."""
        return [value for value, _ in self.lifted.values()] + [value for value, _ in self.numbers]

    def align(self, values: Sequence[Any]) -> None:
        """Have exactly these lifted inputs, in this order, after all others."""
        nodes = {identity: node for identity, (_, node) in self.lifted.items()}
        nodes.update({id(value): node for value, node in self.numbers})
        last = self._last_placeholder
        for value in values:
            node = nodes.get(id(value))
            if node is None:
                node = self.parameter(value, "free")
            elif node is not self._last_placeholder:
                assert self._last_placeholder is not None and last is not None
                self._last_placeholder.append(node)
                self._last_placeholder = node

    def finish(self, results: Any, name: str) -> torch.fx.GraphModule:
        """The body as a module that returns `results` (nodes)."""
        self.graph.output(results)
        return torch.fx.GraphModule(self.attributes, self.graph, name)


class Body:
    """A body that was interpreted: its graph, and what it returned."""

    def __init__(self, builder: BodyBuilder, result: Any) -> None:
        self.builder = builder
        self.result = result

    def own_result(self, tensor: AbstractTensor, taken: set[int]) -> AbstractTensor:
        """A result in memory of its own: what aliases an operand or another result is copied."""
        root = tensor
        while root.base is not None:
            root = root.base
        inside = root.node if root.node is not None else root.producer
        foreign = inside is None or inside.graph is not self.builder.graph or inside.op == "placeholder"
        if foreign or id(root) in taken:
            copied = engine.compute(torch.Tensor.clone, (tensor,), {})
            copied.node = self.builder.call(torch.clone, (tensor,), {}, copied)
            return copied  # type: ignore[no-any-return]
        taken.add(id(root))
        return tensor


def refuse(tracer: Tracer, detail: str, reason: str = "higher_order_body") -> Restart:
    """Traced again, the program breaks off before the operation: what the body did so far is forgotten."""
    return Restart(caller_step(tracer), Break(reason, detail))


def trace_body(
    tracer: Tracer,
    function: Any,
    make_args: Any,
    what: str,
    kwargs: dict[str, Any] | None = None,
) -> Body:
    """Interpret `function(*make_args(builder))`."""
    outer = tracer.graph
    builder = BodyBuilder(outer)
    args = make_args(builder)
    before = Changes(tracer, (function, args, kwargs))
    tracer.graph = builder
    if tracer.generaliser is not None:
        tracer.generaliser.graph = builder
    try:
        result = tracer.call(function, list(args), dict(kwargs or {}))
    except UserException as error:
        raise refuse(tracer, f"a function given to {what} raises {type(error.value).__name__}") from None
    finally:
        tracer.graph = outer
        if tracer.generaliser is not None:
            tracer.generaliser.graph = outer
    changed = before.changed(tracer)
    if changed:
        raise refuse(tracer, f"a function given to {what} {changed}")
    if any(value.mutated for value, _ in builder.lifted.values()):
        raise refuse(tracer, f"a function given to {what} writes a tensor it was not the one to make")
    if any(node.meta["example_value"].mutated for node in builder.placeholders if _is_tensor(node)):
        raise refuse(tracer, f"a function given to {what} writes its argument")
    for tensor in builder.written:
        tensor.mutated = True
    return Body(builder, result)


def _is_tensor(node: torch.fx.Node) -> bool:
    return type(node.meta["example_value"]) is AbstractTensor
