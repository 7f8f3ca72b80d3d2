"""Functional ATen graphs for tests: traced from functions, or built by hand with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.aot import trace
from stator.emit.cpu import Options, compile_graph
from stator.runtime.program import ProgramBuilder


def compiled(function: Callable[..., Any], *inputs: Any) -> Any:
    """A function of tensors that returns a list, as a program."""
    return compile_graph(trace(function)(*inputs), inputs, options=Options(ProgramBuilder))


class Described:
    """What a node's `meta["val"]` has to tell: shape, strides, type."""

    layout = torch.strided
    is_sparse = is_quantized = False

    def __init__(self, shape: Sequence[Any], dtype: torch.dtype = torch.float32) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.device = torch.device("cpu")

    def stride(self) -> tuple[Any, ...]:
        steps: list[Any] = []
        step: Any = 1
        for size in reversed(self.shape):
            steps.append(step)
            step = step * size
        return tuple(reversed(steps))

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj


class GraphByHand:
    """`input(shape)` and `call(op, *args, shape=...)` return nodes; `program(*results)` compiles."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.count = 0

    def input(self, shape: Sequence[Any], dtype: torch.dtype = torch.float32) -> torch.fx.Node:
        node = self.graph.placeholder(f"in{self.count}")
        self.count += 1
        node.meta["val"] = Described(shape, dtype)
        return node

    def call(self, operator: Any, *arguments: Any, shape: Sequence[Any], dtype: torch.dtype = torch.float32) -> Any:
        node = self.graph.call_function(operator, arguments)
        node.meta["val"] = Described(shape, dtype)
        return node

    def program(self, *results: torch.fx.Node) -> Any:
        self.graph.output(tuple(results))
        module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        return compile_graph(module, (), options=Options(ProgramBuilder))
