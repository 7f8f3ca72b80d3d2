"""Size expressions as guards: a postfix program over integers read from sources.

Contract. A `SizeProgram` is a tuple of operations run on a stack of 64-bit integers; it holds when it leaves one
value that is not zero. Division and remainder round towards minus infinity as Python's do, truth values are 0 and 1.
Anything without an answer in 64 bits (overflow, division by zero, a load that is no exact integer) makes the
guard fail, never the program: a failed guard only costs a recompile.

It is data and not an expression tree because the native machine runs it as it stands, and a miss prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stator.values.source import Source

LOWEST, HIGHEST = -(2**63), 2**63 - 1
Operation = tuple[Any, ...]


def _floor_divide(left: int, right: int) -> int | None:
    return left // right if right else None


def _modulo(left: int, right: int) -> int | None:
    return left % right if right else None


# name -> (operands, meaning, how it is printed). `load` and `const` push; the rest replace their operands.
OPERATIONS: dict[str, tuple[int, Callable[..., int | None], str]] = {
    "add": (2, lambda left, right: left + right, "({} + {})"),
    "sub": (2, lambda left, right: left - right, "({} - {})"),
    "mul": (2, lambda left, right: left * right, "({} * {})"),
    "floordiv": (2, _floor_divide, "({} // {})"),
    "mod": (2, _modulo, "({} % {})"),
    "min": (2, min, "min({}, {})"),
    "max": (2, max, "max({}, {})"),
    "neg": (1, lambda value: -value, "-{}"),
    "eq": (2, lambda left, right: int(left == right), "({} == {})"),
    "ne": (2, lambda left, right: int(left != right), "({} != {})"),
    "lt": (2, lambda left, right: int(left < right), "({} < {})"),
    "le": (2, lambda left, right: int(left <= right), "({} <= {})"),
    "gt": (2, lambda left, right: int(left > right), "({} > {})"),
    "ge": (2, lambda left, right: int(left >= right), "({} >= {})"),
    "and": (2, lambda left, right: int(bool(left) and bool(right)), "({} and {})"),
    "or": (2, lambda left, right: int(bool(left) or bool(right)), "({} or {})"),
    "not": (1, lambda value: int(not value), "(not {})"),
}


@dataclass(frozen=True)
class SizeProgram:
    """`operations`: ("load", Source), ("const", int), or a row of OPERATIONS as a 1-tuple."""

    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        depth = 0
        for operation in self.operations:
            name = operation[0]
            if name == "const" and not LOWEST <= operation[1] <= HIGHEST:
                raise ValueError(f"the constant {operation[1]} does not fit 64 bits")
            operands = 0 if name in ("load", "const") else OPERATIONS[name][0]
            if depth < operands:
                raise ValueError(f"{name} lacks an operand in a size program")
            depth += 1 - operands
        if depth != 1:
            raise ValueError("a size program leaves exactly one value")

    def sources(self) -> tuple[Source, ...]:
        """The sources it reads, first use first."""
        return tuple(dict.fromkeys(operation[1] for operation in self.operations if operation[0] == "load"))

    def depth(self) -> int:
        """The deepest its stack gets."""
        depth = deepest = 0
        for operation in self.operations:
            depth += 1 if operation[0] in ("load", "const") else 1 - OPERATIONS[operation[0]][0]
            deepest = max(deepest, depth)
        return deepest

    def holds(self, values: Mapping[Source, Any]) -> bool:
        """Whether it is true for these values of its sources."""
        return bool(self.value(values))

    def value(self, values: Mapping[Source, Any]) -> int | None:
        """What it computes, None where it has no answer."""
        stack: list[int] = []
        for operation in self.operations:
            name = operation[0]
            result: Any
            if name == "const":
                result = int(operation[1])
            elif name == "load":
                result = values[operation[1]]
                if type(result) is not int and type(result) is not bool:
                    return None
                result = int(result)
            else:
                operands, meaning, _ = OPERATIONS[name]
                arguments = stack[len(stack) - operands :]
                del stack[len(stack) - operands :]
                result = meaning(*arguments)
            if result is None or not LOWEST <= result <= HIGHEST:
                return None
            stack.append(result)
        return stack[-1]

    def __str__(self) -> str:
        stack: list[str] = []
        for operation in self.operations:
            name = operation[0]
            if name in ("load", "const"):
                stack.append(str(operation[1]))
                continue
            operands, _, form = OPERATIONS[name]
            arguments = stack[len(stack) - operands :]
            del stack[len(stack) - operands :]
            stack.append(form.format(*arguments))
        text = stack[-1]
        return text[1:-1] if text.startswith("(") and text.endswith(")") and _is_one_group(text) else text


def _is_one_group(text: str) -> bool:
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and position < len(text) - 1:
            return False
    return True
