"""Expressions made with their first simplifications: what lowering calls instead of `ir.make`.

Laws of the rewrites here: each holds bit for bit for every operand, NaN, infinities and signed zeros included, and
each makes the expression smaller. `x + 0.0` stays (it turns -0.0 into 0.0), `x * 1.0` goes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from stator import config
from stator.loops import ir
from stator.loops.integers import Polynomial
from stator.loops.ir import COMPARISONS, FLOATS, INTEGERS, SMALL_FLOATS, Expression, constant, make

# Integer operations folded over constants. Floats are only folded where Python computes the very same bits (f64).
FOLDS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "abs": abs,
    "minimum": min, "maximum": max, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def is_constant(value: Expression, number: float | int | bool | None = None) -> bool:
    if value.operation != "constant":
        return False
    if number is None:
        return True
    found = value.attribute
    return found == number and (found != 0 or math.copysign(1, found) == math.copysign(1, number))


def apply(operation: str, *operands: Expression) -> Expression:
    """The operation over operands of one type (for `where`: of its second and third)."""
    type_ = "b1" if operation in COMPARISONS else operands[-1].type
    if operation in FOLDS and all(is_constant(operand) for operand in operands):
        kind = operands[0].type
        if kind in INTEGERS or kind == "b1":
            return constant(FOLDS[operation](*(operand.attribute for operand in operands)), type_)
    simpler = _simpler(operation, operands)
    return simpler if simpler is not None else make(operation, type_, operands)


def _simpler(operation: str, operands: tuple[Expression, ...]) -> Expression | None:
    first = operands[0]
    last = operands[-1]
    floating = last.type in FLOATS
    if operation == "mul":
        if is_constant(last, 1):
            return first  # x * 1 = x
        if is_constant(first, 1):
            return last  # 1 * x = x
    elif operation == "div" and is_constant(last, 1):
        return first  # x / 1 = x
    elif operation == "add":
        if is_constant(last, -0.0 if floating else 0):
            return first  # x + (-0) = x
        if is_constant(first, -0.0 if floating else 0):
            return last  # (-0) + x = x
    elif operation == "sub" and is_constant(last, 0):
        return first  # x - 0 = x
    elif operation in ("neg", "not") and first.operation == operation:
        return first.operands[0]  # --x = x
    elif operation in ("minimum", "maximum", "and", "or") and first is last:
        return first  # idempotent
    elif operation == "where":
        if is_constant(first):
            return operands[1] if first.attribute else operands[2]  # where(true, x, y) = x
        if operands[1] is operands[2]:
            return last  # where(c, x, x) = x
    elif operation in ("and", "or") and first.type == "b1":
        for one, other in ((first, last), (last, first)):
            if is_constant(one):
                keeps = one.attribute == (operation == "and")
                return other if keeps else one  # true & x = x; false & x = false
    return None


# Conversions that lose nothing: the inner one of two in a row can be skipped.
EXACT: frozenset[tuple[str, str]] = frozenset(
    [("bf16", "f32"), ("f16", "f32"), ("bf16", "f64"), ("f16", "f64"), ("f32", "f64")]
    + [("b1", other) for other in ir.TYPES if other != "b1"]
    + [("i8", "i16"), ("i8", "i32"), ("i8", "i64"), ("u8", "i16"), ("u8", "i32"), ("u8", "i64")]
    + [("i16", "i32"), ("i16", "i64"), ("i32", "i64")]
    + [(small, big) for small in ("i8", "u8", "i16") for big in ("f32", "f64")]
    + [("i32", "f64")]
)


def convert(value: Expression, type_: str) -> Expression:
    """The value in another type, as ATen's `to` converts on CPU."""
    if value.type == type_:
        return value
    if value.operation == "constant":
        folded = _convert_constant(value.attribute, value.type, type_)
        if folded is not None:
            return folded
    if value.operation == "index" and type_ in INTEGERS:
        return make("index", type_, (), value.attribute)
    if value.operation == "convert":
        inner = value.operands[0]
        if (inner.type, value.type) in EXACT:
            return convert(inner, type_)  # f64(f32(bf16 x)) = f64(bf16 x); bf16(f32(bf16 x)) = x
        if value.type in SMALL_FLOATS and inner.type == type_ == "f32" and config.numerics == "fast":
            return inner  # allowed by the user only: skips eager's rounding between fused operators
    return make("convert", type_, (value,))


def _convert_constant(value: Any, source: str, type_: str) -> Expression | None:
    if type_ == "b1":
        return constant(bool(value), type_)
    if source in INTEGERS or source == "b1":
        if type_ in FLOATS and abs(int(value)) < 1 << 24:
            return constant(value, type_)
        if type_ in INTEGERS:
            return constant(value, type_)
        return constant(value, type_) if type_ in SMALL_FLOATS and abs(int(value)) <= 256 else None
    if type_ in INTEGERS:
        return constant(int(value), type_) if math.isfinite(value) and abs(value) < 100 else None
    if type_ == "f64":
        return constant(value, type_)  # constants of f32, bf16, f16 are kept as written: see `number`
    return None


def number(value: bool | int | float, type_: str) -> Expression:
    """A Python number in a type, rounded once as storing it in a tensor would."""
    if type_ in SMALL_FLOATS:
        return convert(constant(value, "f32"), type_)
    return constant(value, type_)


def index_expression(index: int | Polynomial, type_: str = "i64") -> Expression:
    return ir.index_value(index, type_)
