"""Loop programs as text: what `output_code` shows, and what identifies a kernel to the cache.

Contract. `show_kernel` is complete: two kernels whose canonical texts are equal compute the same thing from the same
list of arguments. The canonical form numbers buffers in argument order and leaves out names people chose.
"""

from __future__ import annotations

from collections.abc import Sequence

from stator.loops.integers import Atom, Size
from stator.loops.ir import Buffer, Expression, Kernel, Stage, Store
from stator.loops.spaces import extent


class Namer:
    """Names of buffers and locals; values used more than once get a name of their own."""

    def __init__(self, kernel: Kernel, canonical: bool) -> None:
        self.buffers: dict[Buffer, str] = {}
        self.locals: dict[str, str] = {}
        listed = [*kernel.buffers, *kernel.scratch]
        for k, buffer in enumerate(listed):
            self.buffers[buffer] = f"b{k}" if canonical else buffer.name
        names = [name for stage in kernel.stages for name, _ in stage.row_values]
        names += [a.name for stage in kernel.stages for a in stage.accumulations]
        for k, name in enumerate(names):
            self.locals[name] = f"l{k}" if canonical else name
        self.shown: dict[Expression, str] = {}
        self.lines: list[str] = []

    def size(self, value: Size) -> str:
        if isinstance(value, int):
            return str(value)
        parts = []
        for monomial, coefficient in sorted(value.terms.items(), key=lambda item: (-len(item[0]), item[0])):
            factors = [self.atom(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts) if len(parts) == 1 else f"({' + '.join(parts)})"

    def atom(self, atom: Atom) -> str:
        if atom.kind == "Fetched":
            return f"[{self.value(atom.left)}]"
        if atom.kind in ("Quotient", "Remainder"):
            sign = "//" if atom.kind == "Quotient" else "%"
            return f"({self.size(atom.left)} {sign} {self.size(atom.right)})"
        if atom.kind == "Least":
            return f"min({self.size(atom.left)}, {self.size(atom.right)})"
        return atom.key

    def value(self, node: Expression) -> str:
        """The node's name, defined on a line of its own unless it is a leaf."""
        if node.operation == "constant":
            return f"{node.attribute!r}:{node.type}"
        if node.operation == "local":
            return self.locals.get(node.attribute, str(node.attribute))
        found = self.shown.get(node)
        if found is not None:
            return found
        text = self.formula(node)
        name = f"t{len(self.shown)}"
        self.shown[node] = name
        self.lines.append(f"{name}: {node.type} = {text}")
        return name

    def formula(self, node: Expression) -> str:
        if node.operation == "load":
            buffer, index = node.attribute
            return f"{self.buffers[buffer]}[{self.size(index)}]"
        if node.operation == "index":
            return f"index {self.size(node.attribute)}"
        return f"{node.operation}({', '.join(self.value(operand) for operand in node.operands)})"


def show_kernel(kernel: Kernel, canonical: bool = False) -> str:
    """One kernel as text."""
    namer = Namer(kernel, canonical)
    lines: list[str] = []
    arguments = ", ".join(f"{namer.buffers[buffer]}: {buffer.type}" for buffer in kernel.buffers)
    sizes = "".join(f", {atom.key}" for atom in kernel.symbols)
    lines.append(f"kernel {'' if canonical else kernel.name}({arguments}{sizes})")
    if not canonical and kernel.lines:
        lines.append(f"  # from {', '.join(kernel.lines)}")
    for buffer in kernel.scratch:
        sizes = ", ".join(namer.size(size) for size in buffer.sizes)
        lines.append(f"  scratch {namer.buffers[buffer]}: {buffer.type}[{sizes}]")
    lines.append(f"  parallel {_ranges(namer, kernel.outer)}")
    for number, stage in enumerate(kernel.stages):
        lines.extend(_stage(namer, kernel, number, stage))
    return "\n".join(lines)


def _ranges(namer: Namer, atoms: Sequence[Atom]) -> str:
    return ", ".join(f"{atom.key} < {namer.size(extent(atom))}" for atom in atoms) or "once"


def _stage(namer: Namer, kernel: Kernel, number: int, stage: Stage) -> list[str]:
    lines: list[str] = [f"    stage {number}"]

    def flush(indent: str) -> None:
        lines.extend(indent + line for line in namer.lines)
        namer.lines.clear()

    def stores(listed: Sequence[Store], indent: str) -> None:
        shown = [f"{namer.buffers[s.buffer]}[{namer.size(s.index)}] = {namer.value(s.value)}" for s in listed]
        flush(indent)
        lines.extend(indent + line for line in shown)

    for name, value in stage.row_values:
        shown = namer.value(value)
        flush("      ")
        lines.append(f"      {namer.locals[name]} = {shown}")
    stores(stage.row_stores, "      ")
    if not stage.accumulations and not stage.stores:
        return lines
    if kernel.inner:
        lines.append(f"      for {_ranges(namer, kernel.inner)}")
    for accumulation in stage.accumulations:
        shown = namer.value(accumulation.value)
        flush("        ")
        lines.append(f"        {namer.locals[accumulation.name]} = {accumulation.kind} of {shown}")
    stores(stage.stores, "        ")
    return lines
