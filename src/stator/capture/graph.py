"""The FX graph under construction: nodes for torch operations, placeholders for what comes from outside.

Contract. The graph is what any backend registered with torch expects: torch-level calls, parameters and buffers
lifted to placeholders, `meta["example_value"]`, `meta["stack_trace"]`, `meta["nn_module_stack"]`. Placeholders stand in
the order of first use and are named after the expression that reaches them (`L_self_modules_linear_parameters_weight_`,
`L_xs_0_`, `G_scale_`), operations after the local variable that first holds their
result. A tensor from outside becomes a placeholder, and is guarded, only when it is used.
"""

from __future__ import annotations

import dataclasses
import linecache
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from stator.capture.control import Break
from stator.capture.symbolic import EXACT, SYMBOLIC, fold
from stator.events import Location, is_own
from stator.sizes import SizeContext
from stator.tensors.abstract import AbstractTensor
from stator.values.arrays import is_scalar
from stator.values.constants import is_constant
from stator.values.source import Source, TensorExpectation

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9]+")
_ANNOTATED = re.compile(r': "(?:Tensor|Parameter|Buffer)\((\w+\[[^"()]*\][^"()]*)\)"')
_SIZES = frozenset({"SIZE", "STRIDE", "OFFSET"})
_stack_lines: dict[tuple[str, int, str], str] = {}  # by file, line and function


def stack_line(code: types.CodeType, line: int) -> str:
    """One frame of a stack trace as Python prints it; nothing for a frame of stator's own."""
    key = (code.co_filename, line, code.co_name)
    text = _stack_lines.get(key)
    if text is None:
        source = linecache.getline(code.co_filename, line).strip()
        text = "" if is_own(code.co_filename) else f'  File "{code.co_filename}", line {line}, in {code.co_name}\n'
        if source and text:
            text += f"    {source}\n"
        if len(_stack_lines) > 100_000:
            _stack_lines.clear()
        _stack_lines[key] = text
    return text


class GraphCode(torch.fx.graph.CodeGen):
    """Writes a graph as Python; tensors are annotated as those of any captured graph: `"f32[3]"`."""

    def _gen_python_code(self, *args: Any, **kwargs: Any) -> Any:
        code = super()._gen_python_code(*args, **kwargs)
        return dataclasses.replace(code, src=_ANNOTATED.sub(r': "\1"', code.src)) if kwargs.get("verbose") else code


class GraphBuilder:
    """One graph and what its placeholders stand for."""

    def __init__(self, stack_trace: Callable[[], str], location: Callable[[], Location | None]) -> None:
        self.graph = torch.fx.Graph()
        self.graph.set_codegen(GraphCode())
        self.stack_trace = stack_trace
        self.location = location
        self.module_stack: dict[str, tuple[str, Any]] = {}
        self.placeholders: list[torch.fx.Node] = []
        self.inputs: list[tuple[Source, AbstractTensor | Any]] = []  # parallel to placeholders
        self.attributes: dict[str, Any] = {}  # submodules and constants that get_attr nodes name
        self.operations = 0
        self._last_placeholder: torch.fx.Node | None = None
        self._names: dict[str, int] = {}
        self._guarded: set[int] = set()
        self.sizes: SizeContext | None = None
        self._symbol_nodes: dict[Any, torch.fx.Node] = {}
        self._tellers: dict[Any, tuple[torch.fx.Node, int | None]] = {}

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> torch.fx.Node:
        """Record a call; a tensor's method is recorded as such."""
        if "from" in kwargs:  # `random_` and `uniform_` take a word that a graph's text cannot name an argument by
            named = dict(kwargs)
            args = (*args, named.pop("from"), *([named.pop("to")] if "to" in named else ()))
            kwargs = named
        kind, target = "call_function", function
        if (
            type(function) is types.MethodDescriptorType
            or type(function) is types.WrapperDescriptorType
            or (type(function) is types.FunctionType and function.__qualname__.startswith("Tensor."))
        ):
            kind, target = "call_method", function.__name__
        node = self.graph.create_node(kind, target, self.argument(args), self.argument(kwargs))
        self.operations += 1
        node.meta["example_value"] = value
        node.meta["stack_trace"] = self.stack_trace()
        if self.module_stack:
            node.meta["nn_module_stack"] = dict(self.module_stack)
        return node

    def argument(self, value: Any) -> Any:
        """A value as a node's argument."""
        kind = type(value)
        if kind is AbstractTensor:
            return self.node_of(value)
        if kind is tuple or kind is list:
            return kind([self.argument(part) for part in value])
        if kind is dict:
            return {key: self.argument(part) for key, part in value.items()}
        if kind is slice:
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        if kind in SYMBOLIC:
            return self.number(value)
        if is_constant(value):
            # Torch takes Python's number types for its own; the code of a graph can only write the latter.
            return DTYPES.get(value, value) if kind is type else value
        if is_scalar(value) and value.dtype.char in "?ild":  # Python's own numbers under another name
            return value.item()
        if isinstance(value, tuple):
            return tuple(self.argument(part) for part in value)
        if isinstance(value, list):
            return [self.argument(part) for part in value]
        if kind is types.FunctionType or isinstance(value, torch.fx.Node):
            return value
        raise Break("graph_argument", f"a {kind.__name__}")

    def node_of(self, tensor: AbstractTensor) -> torch.fx.Node:
        """The node that computes a tensor, made now if need be."""
        node = tensor.node
        if node is not None:
            if node.graph is not self.graph:
                raise Break("tensor_without_origin", "a tensor made inside of a higher-order operator")
            return node
        if tensor.producer is not None:
            node = tensor.producer
            if node.graph is not self.graph:
                raise Break("tensor_without_origin", "a tensor made inside of a higher-order operator")
            for position in tensor.index:
                node = self.graph.call_function(operator.getitem, (node, position))
            node.meta["example_value"] = tensor
            node.meta["stack_trace"] = tensor.producer.meta["stack_trace"]
            tensor.node = node
            if tensor.held_as is not None:
                node._rename(tensor.held_as)
            return node
        if tensor.source is None:
            raise Break("tensor_without_origin", repr(tensor))
        return self.lift(tensor, tensor.source)

    def lift(self, tensor: AbstractTensor, source: Source) -> torch.fx.Node:
        """Make a tensor from outside an input of the graph."""
        self.guard_tensor(tensor)
        node = self._placeholder(input_name(source))
        node.meta["example_value"] = tensor
        tensor.node = node
        self.inputs.append((source, tensor))
        return node

    def number(self, value: Any) -> Any:
        """A symbolic number as a node: the symbols are inputs, what is made of them is computed in the graph."""
        context = self.sizes
        assert context is not None
        expr = context.simplified(context.expr_of(value))

        def leaf(symbol: Any) -> torch.fx.Node:
            node = self._symbol_nodes.get(symbol)
            if node is None:
                node = self.symbol_node(symbol)
            return node

        def call(function: Any, *parts: Any) -> torch.fx.Node:
            node = self.graph.call_function(function, parts)
            values = [part.meta.get("example_value") if isinstance(part, torch.fx.Node) else part for part in parts]
            if function in EXACT and None not in values:
                node.meta["example_value"] = function(*values)
            return node

        return fold(context.algebra, expr, leaf, call, in_graph=True)

    def tells(self, value: Any, node: torch.fx.Node, dim: int | None) -> None:
        """A symbol without a source is the result of a node, or a size of it."""
        self._tellers[value.node.expr] = (node, dim)

    def symbol_node(self, symbol: Any) -> torch.fx.Node:
        """The node that gives a symbol's value: an input, or what a node at run time tells."""
        found = self._symbol_nodes.get(symbol)
        if found is not None:
            return found
        context = self.sizes
        assert context is not None
        sources = context.infos[symbol].sources
        if sources:
            node = self.lift_number(sources[0], context.number(symbol))
        else:
            teller = self._tellers.get(symbol)
            if teller is None:
                raise Break("graph_argument", "a size known at run time only")
            node, dim = teller
            if dim is not None:
                node = self.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                node.meta["example_value"] = context.number(symbol)
        self._symbol_nodes[symbol] = node
        return node

    def assert_at_run_time(self, truth: Any, message: str) -> None:
        """The program promised what only the run time can check."""
        assert self.sizes is not None
        condition = self.number(self.sizes.number(truth))
        node = self.graph.call_function(torch.ops.aten._assert_scalar.default, (condition, message))
        node.meta["at_run_time"] = True
        self.operations += 1

    def lift_number(self, source: Source, value: Any) -> torch.fx.Node:
        """Make a symbolic number an input of the graph."""
        node = self._placeholder(str(value) if source.step in _SIZES else input_name(source))
        node.meta["example_value"] = value
        self.inputs.append((source, value))
        return node

    def name(self, tensor: AbstractTensor, variable: str) -> None:
        """A local variable holds the tensor: its node is called so, unless an earlier one named it."""
        tensor.held_as = variable
        if tensor.node is not None and tensor.node.op != "placeholder":
            tensor.node._rename(variable)

    def _placeholder(self, name: str) -> torch.fx.Node:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        if count:
            name = f"{name}_{count}"
        if self._last_placeholder is None:
            with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
                node = self.graph.placeholder(name)
        else:
            with self.graph.inserting_after(self._last_placeholder):
                node = self.graph.placeholder(name)
        self._last_placeholder = node
        self.placeholders.append(node)
        return node

    def guard_tensor(self, tensor: AbstractTensor) -> None:
        """What is known of a tensor from outside is used."""
        source = tensor.source
        if source is None or tensor.real is None or id(tensor) in self._guarded:
            return
        self._guarded.add(id(tensor))
        if tensor.layout is torch.jagged:
            source.guard("TYPE_IS", tensor.kind, self.location())
            return
        with torch._C.DisableTorchFunctionSubclass():
            source.guard("TENSOR", expectation_of(tensor), self.location())
            strides = tensor.real.stride() if tensor.real.layout is torch.strided else ()
        if self.sizes is not None:
            for dim, (stride, real) in enumerate(zip(tensor.strides, strides, strict=True)):
                if type(stride) in SYMBOLIC and type(real) is int:
                    held = self.sizes.symbol(source.child("STRIDE", dim), real, duck=False)
                    self.sizes.assume_stride(held, stride, tensor.shape)

    def attach(self, name: str, value: Any) -> torch.fx.Node:
        """A submodule or constant held by the graph module."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        unique = f"{name}_{count}"
        self.attributes[unique] = value
        return self.graph.get_attr(unique)


DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def input_name(source: Source) -> str:
    """The name of an input in the graph, as the ecosystem forms it: from the expression that reaches the value."""
    scope = "G" if source.is_global() else "L"
    return _NOT_IN_NAMES.sub("_", f"{scope}_{source}{'_' if source.is_variable() else ''}")


def expectation_of(abstract: AbstractTensor) -> TensorExpectation:
    """What a TENSOR guard expects of an input: its sizes and strides, but for the symbolic ones."""
    tensor = abstract.real
    assert tensor is not None
    strided = tensor.layout is torch.strided
    symbolic = any(type(size) in SYMBOLIC for size in (*abstract.shape, *abstract.strides))
    sizes: tuple[int | None, ...] = tuple(tensor.shape)
    strides: tuple[int | None, ...] | None = tuple(tensor.stride()) if strided else None
    if symbolic and strides is not None:
        sizes = tuple(None if type(one) in SYMBOLIC else real for one, real in zip(abstract.shape, sizes, strict=True))
        strides = tuple(
            None if type(one) in SYMBOLIC else real for one, real in zip(abstract.strides, strides, strict=True)
        )
    return TensorExpectation(
        kind=type(tensor),
        dtype=tensor.dtype,
        device=tensor.device,
        requires_grad=tensor.requires_grad,
        sizes=sizes,
        strides=strides,
        layout=tensor.layout,
        is_inference=tensor.is_inference(),
        is_conj=strided and tensor.is_conj(),
        is_neg=strided and tensor.is_neg(),
    )
