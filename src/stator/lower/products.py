"""Rows for products of matrices: contractions of the loop language, with their addend as what follows them.

Contract. These rows are used only where the target says it multiplies better than ATen's library on this machine
(`Lowering.products`), for the element types and sizes its tiles suit; every other call stays with ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stator.loops.build import apply
from stator.loops.integers import Size, atoms, coefficient_of
from stator.loops.ir import constant, loop_variables
from stator.lower.context import Lowering
from stator.lower.values import Lazy, NotLowered, Number, Stored, Value

PRODUCT_TYPES = frozenset({"f32", "f64"})
# Fewer rows than these read the matrix once for little work: memory bounds them, and the library streams it better.
LEAST_ROWS, LEAST_COLUMNS, LEAST_SUMMED = 4, 8, 4


def product(lowering: Lowering, left: Value, right: Value) -> Value:
    """left @ right, the last two dimensions, batches before them."""
    if not lowering.products:
        raise NotLowered("the library multiplies")
    if left.type != right.type or left.type not in PRODUCT_TYPES:
        raise NotLowered(f"a product of {left.dtype}")
    *batch, rows, summed = left.sizes
    columns = right.sizes[-1]
    for size, least in ((rows, LEAST_ROWS), (columns, LEAST_COLUMNS), (summed, LEAST_SUMMED)):
        if isinstance(size, int) and size < least:
            raise NotLowered("a product of so few rows, columns or terms")
    if not isinstance(columns, int) or not isinstance(summed, int):
        raise NotLowered("a product over symbolic columns or terms")
    sizes = (*batch, rows, columns, summed)
    one, other = factor(lowering, left), factor(lowering, right)

    def element(indices: tuple[Size, ...]) -> Any:
        *outer, row, column, term = indices
        return apply("mul", one.at((*outer, row, term)), other.at((*outer, term, column)))

    *_, row, column, term = loop_variables(sizes)
    for node, moving in zip(element(loop_variables(sizes)).operands, ((row, term), (term, column)), strict=True):
        if not all(isinstance(coefficient_of(node.attribute[1], atom), int) for size in moving for atom in atoms(size)):
            raise NotLowered("a product of matrices with symbolic strides")
    return lowering.reduce("contraction", sizes, (len(sizes) - 1,), left.dtype, element, keep=False)


def factor(lowering: Lowering, value: Value) -> Value:
    """A factor in memory. Another order of what lies there is read in place: a panel is copied anyway."""
    if isinstance(value, Lazy) and value.stored is None and value.expression.operation == "load":
        return value
    return lowering.store(value)


def with_addend(lowering: Lowering, added: Value, left: Value, right: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * added + alpha * (left @ right)."""
    if isinstance(beta, Number) or isinstance(alpha, Number):
        raise NotLowered("a product scaled by a number known later")
    result = product(lowering, left, right)
    assert isinstance(result, Stored)
    if beta == 0 and alpha == 1:
        return result
    wide = None if beta == 0 else lowering.broadcast(added, result.sizes)

    def scaled(value: Any, factor: Any) -> Any:
        return value if factor == 1 else apply("mul", value, constant(factor, result.type))

    def element(indices: tuple[Size, ...]) -> Any:
        value = scaled(result.at(indices), alpha)
        return value if wide is None else apply("add", value, scaled(wide.at(indices), beta))

    return lowering.lazy(result.sizes, result.dtype, element)


RULES: dict[str, Callable[..., Any]] = {
    "mm.default": product,
    "bmm.default": product,
    "addmm.default": with_addend,
    "baddbmm.default": with_addend,
}
