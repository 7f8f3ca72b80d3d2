"""Integers a program computes at run time: small expressions over input integers and tensor sizes.

Contract. An `IntExpr` is an immutable tree, equal to another by structure, built with Python's operators and the
static methods `minimum` and `maximum`. Constants fold while building, so an expression over constants is an `int`.
Division and modulo are Python's (towards minus infinity). `IntegerTable` numbers the distinct expressions of one
program and lists them in evaluation order, one `(operation, left, right)` row each: the native runtime walks that list,
so a subexpression used by a hundred kernels is computed once.

    operation   left            right           value
    CONSTANT    the integer     0               left
    INPUT       slot            0               an integer input, or the integer an operator returned
    SIZE        slot            dimension       size of a tensor
    STRIDE      slot            dimension       stride of a tensor
    OFFSET      slot            0               storage offset of a tensor
    others      row             row             arithmetic over two earlier rows
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CONSTANT, INPUT, SIZE, STRIDE, OFFSET, ADD, SUB, MUL, FLOORDIV, MOD, MIN, MAX, EQUAL, LESS, LESS_EQUAL = range(15)

NAMES = (
    "constant", "input", "size", "stride", "offset", "+", "-", "*", "//", "%", "min", "max", "==", "<", "<=",
)  # fmt: skip
LEAVES = frozenset({CONSTANT, INPUT, SIZE, STRIDE, OFFSET})
OF_SLOT = frozenset({INPUT, SIZE, STRIDE, OFFSET})

ARITHMETIC: dict[int, Callable[[int, int], int]] = {
    ADD: lambda left, right: left + right,
    SUB: lambda left, right: left - right,
    MUL: lambda left, right: left * right,
    FLOORDIV: lambda left, right: left // right,
    MOD: lambda left, right: left % right,
    MIN: min,
    MAX: max,
    EQUAL: lambda left, right: int(left == right),
    LESS: lambda left, right: int(left < right),
    LESS_EQUAL: lambda left, right: int(left <= right),
}


class IntExpr:
    """One node. `left` and `right` are nodes, or the integers a leaf needs."""

    __slots__ = ("_hash", "left", "operation", "right")

    def __init__(self, operation: int, left: Any, right: Any = 0) -> None:
        self.operation = operation
        self.left = left
        self.right = right
        self._hash = hash((operation, left, right))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, IntExpr) or self._hash != other._hash:
            return False
        return self.operation == other.operation and self.left == other.left and self.right == other.right

    def __repr__(self) -> str:
        if self.operation == CONSTANT:
            return str(self.left)
        if self.operation == INPUT:
            return f"i{self.left}"
        if self.operation in LEAVES:
            return f"{NAMES[self.operation]}(t{self.left}, {self.right})"
        if self.operation in (MIN, MAX):
            return f"{NAMES[self.operation]}({self.left!r}, {self.right!r})"
        return f"({self.left!r} {NAMES[self.operation]} {self.right!r})"

    def __add__(self, other: Integer) -> Integer:
        return combine(ADD, self, other)

    def __radd__(self, other: Integer) -> Integer:
        return combine(ADD, other, self)

    def __sub__(self, other: Integer) -> Integer:
        return combine(SUB, self, other)

    def __rsub__(self, other: Integer) -> Integer:
        return combine(SUB, other, self)

    def __mul__(self, other: Integer) -> Integer:
        return combine(MUL, self, other)

    def __rmul__(self, other: Integer) -> Integer:
        return combine(MUL, other, self)

    def __floordiv__(self, other: Integer) -> Integer:
        return combine(FLOORDIV, self, other)

    def __rfloordiv__(self, other: Integer) -> Integer:
        return combine(FLOORDIV, other, self)

    def __mod__(self, other: Integer) -> Integer:
        return combine(MOD, self, other)

    def __rmod__(self, other: Integer) -> Integer:
        return combine(MOD, other, self)

    def __neg__(self) -> Integer:
        return combine(SUB, 0, self)

    def equals(self, other: Integer) -> Integer:
        """1 where both are equal at run time, else 0 (`==` compares the expressions themselves)."""
        return combine(EQUAL, self, other)

    def less(self, other: Integer) -> Integer:
        return combine(LESS, self, other)

    def less_equal(self, other: Integer) -> Integer:
        return combine(LESS_EQUAL, self, other)

    @staticmethod
    def minimum(left: Integer, right: Integer) -> Integer:
        return combine(MIN, left, right)

    @staticmethod
    def maximum(left: Integer, right: Integer) -> Integer:
        return combine(MAX, left, right)

    def slots(self) -> frozenset[int]:
        """The slots whose integers or shapes it reads."""
        if self.operation in OF_SLOT:
            return frozenset({self.left})
        if self.operation == CONSTANT:
            return frozenset()
        left: frozenset[int] = self.left.slots()
        right: frozenset[int] = self.right.slots()
        return left | right


Integer = int | IntExpr

# (operation, the constant on the right) -> the expression itself: x + 0, x - 0, x * 1, x // 1
_RIGHT_IDENTITY = frozenset({(ADD, 0), (SUB, 0), (MUL, 1), (FLOORDIV, 1)})
_LEFT_IDENTITY = frozenset({(ADD, 0), (MUL, 1)})


def combine(operation: int, left: Integer, right: Integer) -> Integer:
    """`left operation right`, folded where both are constants or one is the operation's identity."""
    if isinstance(left, int) and isinstance(right, int):
        return ARITHMETIC[operation](left, right)
    if isinstance(right, int) and (operation, right) in _RIGHT_IDENTITY:
        return left
    if isinstance(left, int) and (operation, left) in _LEFT_IDENTITY:
        return right
    if operation in (MIN, MAX) and left == right:
        return left
    return IntExpr(operation, as_expression(left), as_expression(right))


def as_expression(value: Integer) -> IntExpr:
    return value if isinstance(value, IntExpr) else IntExpr(CONSTANT, int(value))


class IntegerTable:
    """The distinct expressions of one program, operands before their users."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.index: dict[IntExpr, int] = {}

    def add(self, value: Integer) -> int:
        """The row of a value."""
        expression = as_expression(value)
        index = self.index.get(expression)
        if index is not None:
            return index
        if expression.operation in LEAVES:
            row = (expression.operation, expression.left, expression.right)
        else:
            row = (expression.operation, self.add(expression.left), self.add(expression.right))
        self.rows.append(row)
        index = self.index[expression] = len(self.rows) - 1
        return index
