"""Graphs with values that only the run time knows: compiled in pieces, between which those values are read.

Contract. `in_segments(gm, compile_piece)` gives a callable like that of a backend for a captured graph in which nodes
are marked `at_run_time` (`item`, `nonzero`, assertions on such values). These run as they are, in order; what stands
between them is compiled when it first runs, with the real values at hand. A piece that cannot be compiled without a
decision on a size that nobody guards runs as it is, and says so (`unbacked_piece`).

Why pieces: a kernel needs the sizes of its results before it starts, and a size out of `nonzero` is known after.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from stator import events
from stator.exc import StatorError

Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
Node = torch.fx.Node
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def has_run_time_values(gm: torch.fx.GraphModule) -> bool:
    """Whether a captured graph must be compiled in pieces."""
    return any(node.op != "placeholder" and node.meta.get("at_run_time") for node in gm.graph.nodes)


@dataclass
class Piece:
    """Nodes that are compiled together, or (`alone`) one that runs as it is."""

    nodes: list[Node] = field(default_factory=list)
    alone: bool = False
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    compiled: Callable[..., Any] | None = None


def in_segments(gm: torch.fx.GraphModule, compile_piece: Compile) -> Callable[..., Any]:
    """See the module's contract."""
    pieces = list(_pieces(gm))
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    results = gm.graph.output_node().args[0]
    _connect(pieces, results)
    lock = threading.Lock()

    def run(*args: Any) -> Any:
        known: dict[Node, Any] = dict(zip(placeholders, args, strict=True))
        for piece in pieces:
            if piece.alone:
                (node,) = piece.nodes
                known[node] = _run_node(gm, node, known)
                continue
            values = [known[node] for node in piece.inputs]
            if piece.compiled is None:
                with lock:
                    if piece.compiled is None:
                        piece.compiled = _compile(gm, piece, compile_piece, values)
            known.update(zip(piece.outputs, piece.compiled(*values), strict=True))
        return torch.fx.node.map_arg(results, known.__getitem__)

    return run


def _pieces(gm: torch.fx.GraphModule) -> Iterator[Piece]:
    """The nodes in order. Numbers made of run-time values go before the open piece; what reads tensors closes it."""
    numbers: set[Node] = set()
    current = Piece()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        late = any(part in numbers for part in node.all_input_nodes)
        is_number = _is_number(node)
        if node.meta.get("at_run_time") or (is_number and _is_size(node)):
            if current.nodes:
                yield current
                current = Piece()
            if is_number:
                numbers.add(node)
            yield Piece([node], alone=True)
        elif late and is_number:
            numbers.add(node)
            yield Piece([node], alone=True)
        else:
            current.nodes.append(node)
    if current.nodes:
        yield current


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("example_value", 0), _NUMBERS)


def _is_size(node: Node) -> bool:
    return node.target is torch.ops.aten.sym_size.int


def _connect(pieces: list[Piece], results: Any) -> None:
    """Which values each piece takes, and which of its values others take."""
    wanted: set[Node] = set()
    torch.fx.node.map_arg(results, wanted.add)
    for piece in reversed(pieces):
        inside = set(piece.nodes)
        piece.outputs = [node for node in piece.nodes if node in wanted]
        taken = dict.fromkeys(
            part
            for node in piece.nodes
            for part in node.all_input_nodes
            if part not in inside and part.op != "get_attr"
        )
        piece.inputs = list(taken)
        wanted.update(taken)


def _run_node(gm: torch.fx.GraphModule, node: Node, known: dict[Node, Any]) -> Any:
    args = torch.fx.node.map_arg(node.args, known.__getitem__)
    kwargs = torch.fx.node.map_arg(node.kwargs, known.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    target: Any = node.target
    return target(*args, **kwargs)


def _compile(gm: torch.fx.GraphModule, piece: Piece, compile_piece: Compile, values: list[Any]) -> Callable[..., Any]:
    module = _module_of(gm, piece)
    unknown = [node for node in piece.inputs if "example_value" not in node.meta]
    try:
        if unknown:
            raise StatorError(f"the size {unknown[0].name} has no formula")
        with _frozen(piece):
            return compile_piece(module, values)
    except (StatorError, RuntimeError) as error:
        events.emit("fallback", reason="unbacked_piece", detail=str(error).split("\n", 1)[0])
        return module.forward


def _frozen(piece: Piece) -> Any:
    """The guards are out: nothing may be decided on sizes any more."""
    for node in piece.inputs:
        value = node.meta.get("example_value")
        for number in (value, *getattr(value, "shape", ())):
            if isinstance(number, (torch.SymInt, torch.SymFloat)):
                return number.node.context.frozen()
    return nullcontext()


def _module_of(gm: torch.fx.GraphModule, piece: Piece) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in piece.inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in piece.nodes:
        for part in node.all_input_nodes:
            if part.op == "get_attr" and part not in copies:
                copies[part] = graph.node_copy(part)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in piece.outputs))
    return torch.fx.GraphModule(gm, graph)
