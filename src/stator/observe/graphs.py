"""A graph as text: one line a node, under the user's line that made it.

Contract. `graph_text(graph_module)` renders an FX graph, and the graphs of its higher-order operators, in the form
people know from torch (`# File: model.py:12 in forward, code: ...` above the nodes of that line), which our own
report reads back (`user_lines`). It only reads; it never formats a tensor's values.

Reason. `GraphModule.print_readable` takes some 30 µs a node and re-generates Python code. A trace renders every
graph while the program compiles, so this one is an order of magnitude cheaper.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.fx import GraphModule, Node

from stator.events import Location, is_users

# The names torch's own dumps use.
DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.complex64: "c64", torch.complex128: "c128", torch.bool: "b8", torch.uint8: "u8",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip

_LONGEST_ARGUMENT = 400
_HEADER = re.compile(r"^\s*# File: (?P<file>.*):(?P<line>\d+) in (?P<function>.*?), code: ?(?P<code>.*)$")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>.*)$')


def value_text(value: Any) -> str:
    """The type of a node's value: `f32[8, 16]`, `Sym(s0)`, a tuple of these; empty if nothing is known."""
    if isinstance(value, torch.Tensor):
        name = DTYPE_NAMES.get(value.dtype) or str(value.dtype).removeprefix("torch.")
        return f"{name}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"Sym({value})"
    if isinstance(value, tuple | list):
        return f"({', '.join(value_text(item) for item in value)})"
    return "" if value is None else type(value).__name__


def target_text(node: Node) -> str:
    """What a node calls: `torch.relu`, `torch.ops.aten.add.Tensor`, `.view`."""
    target = node.target
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    if module in ("_operator", "operator"):
        return f"operator.{name}"
    if module in ("torch._C._nn", "torch._C._VariableFunctions", "torch._VariableFunctionsClass"):
        module = "torch.nn.functional" if module.endswith("_nn") else "torch"
    name = name.rpartition("_VariableFunctionsClass.")[2]
    return f"{module}.{name}" if module and module != "builtins" else name


def _arguments(node: Node) -> str:
    text = repr(node.args)[1:-1]
    text = text.removesuffix(",")
    if node.kwargs:
        named = ", ".join(f"{name}={value!r}" for name, value in node.kwargs.items())
        text = f"{text}, {named}" if text else named
    return text if len(text) <= _LONGEST_ARGUMENT else text[:_LONGEST_ARGUMENT] + " ..."


def _node_line(node: Node) -> str:
    meta = node.meta
    kind = value_text(meta["example_value"] if "example_value" in meta else meta.get("val"))
    left = f'{node.name}: "{kind}"' if kind else node.name
    if node.op == "placeholder":
        return f"{left} = input({node.target})" if node.target != node.name else f"{left} = input()"
    if node.op == "output":
        return f"return {node.args[0]!r}"
    if node.op == "get_attr":
        return f"{left} = self.{node.target}"
    if node.op == "call_method":
        receiver, _, rest = _arguments(node).partition(", ")
        return f"{left} = {receiver}.{node.target}({rest})"
    if node.op == "call_module":
        return f"{left} = self.{node.target}({_arguments(node)})"
    return f"{left} = {target_text(node)}({_arguments(node)})"


def _header(stack_trace: str) -> str:
    """The comment above the nodes of one user line: the innermost frame outside torch, else the innermost."""
    lines = stack_trace.rstrip().splitlines()
    found = ""
    for index in range(len(lines) - 1, -1, -1):
        match = _FRAME.match(lines[index])
        if match:
            code = lines[index + 1].strip() if index + 1 < len(lines) else ""
            header = f"# File: {match['file']}:{match['line']} in {match['function']}, code: {code}"
            if is_users(match["file"]):
                return header
            found = found or header
    return found


def graph_text(module: Any, name: str = "forward") -> str:
    """The whole graph as text; a backend's callable that is no FX graph is named by its type."""
    graph = getattr(module, "graph", None)
    if graph is None:
        return f"# no FX graph: {type(module).__name__}"
    lines = [f"{name}:"]
    headers: dict[str, str] = {}
    current = ""
    for node in graph.nodes:
        stack_trace = node.meta.get("stack_trace") or node.stack_trace
        if stack_trace:
            header = headers.get(stack_trace)
            if header is None:
                header = headers[stack_trace] = _header(stack_trace)
            if header and header != current:
                current = header
                lines.append(f"    {header}")
        lines.append(f"    {_node_line(node)}")
    if isinstance(module, torch.nn.Module):
        for child_name, child in module.named_children():
            if isinstance(child, GraphModule):
                lines.append("")
                lines.append(graph_text(child, f"{name}.{child_name}"))
    return "\n".join(lines)


def operator_count(module: Any) -> int:
    """How many operators a graph calls."""
    graph = getattr(module, "graph", None)
    if graph is None:
        return 0
    return sum(node.op in ("call_function", "call_method", "call_module") for node in graph.nodes)


def symbolic_sizes(module: Any) -> dict[str, str]:
    """The sizes of those inputs of a graph of which some are symbolic."""
    found = {}
    for node in getattr(getattr(module, "graph", None), "nodes", ()):
        shape = getattr(node.meta.get("example_value"), "shape", ()) if node.op == "placeholder" else ()
        if any(isinstance(size, torch.SymInt) for size in shape):
            found[node.name] = str(tuple(shape))
    return found


def user_lines(text: str) -> list[tuple[Location | None, str, list[str]]]:
    """A rendered graph as groups: the user's line, its source text, and the nodes made there."""
    groups: list[tuple[Location | None, str, list[str]]] = [(None, "", [])]
    for line in text.splitlines():
        match = _HEADER.match(line)
        if match:
            location = Location(match["file"], int(match["line"]), match["function"])
            groups.append((location, match["code"], []))
        else:
            groups[-1][2].append(line.removeprefix("    "))
    return [group for group in groups if group[2]]
