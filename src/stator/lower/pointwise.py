"""Rows for operators that compute each element from the elements at the same place.

Contract. A row says how operands are promoted and which formula follows, in ATen's own order of operations, so that
results are bit-equal wherever the elementary functions are. The result's type is the traced one; formulas run in the
type ATen computes in (`f32` for half-precision operands) and are rounded once at the end.

    same      operands become the result type
    float     the same (integers were already promoted to a float by the trace)
    compare   operands become their common type, the result is a boolean
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator import config
from stator.loops import build
from stator.loops.build import apply, convert
from stator.loops.integers import Size
from stator.loops.ir import ALL, FLOATS, INTEGERS, SMALL_FLOATS, Expression, constant
from stator.lower.context import Lowering
from stator.lower.values import DTYPES, OPAQUE, Lazy, NotLowered, Number, Stored, Value, type_name

Formula = Callable[..., Expression]


@dataclass(frozen=True, slots=True)
class Row:
    formula: Formula
    promotion: str = "same"
    types: frozenset[str] = FLOATS | INTEGERS | frozenset({"b1"})  # types the formula computes in
    in_bfloat16: Formula | None = None  # where ATen's steps are another for bfloat16


# Formulas


def unary(operation: str) -> Formula:
    return lambda x: apply(operation, x)


def literal(value: float, like: Expression) -> Expression:
    return constant(value, like.type)


def add(x: Expression, y: Expression, alpha: Expression | None = None) -> Expression:
    if x.type == "b1":
        return apply("or", x, y if alpha is None else apply("and", y, alpha))
    if alpha is None or build.is_constant(alpha, 1):
        return apply("add", x, y)
    return apply("fma", y, alpha, x) if x.type in FLOATS else apply("add", x, apply("mul", y, alpha))


def sub(x: Expression, y: Expression, alpha: Expression | None = None) -> Expression:
    if x.type == "b1":
        raise NotLowered("subtraction of booleans")
    if alpha is None or build.is_constant(alpha, 1):
        return apply("sub", x, y)
    if build.is_constant(alpha, 0.0):
        return add(x, y, alpha)  # of an integer zero there is no negative one
    return add(x, y, apply("neg", alpha))


def mul(x: Expression, y: Expression) -> Expression:
    return apply("and", x, y) if x.type == "b1" else apply("mul", x, y)


def nonzero_divisor(y: Expression) -> None:
    """Integer division by zero is an error in eager: only constants are known not to be."""
    if y.operation != "constant" or y.attribute in (0, -1):
        raise NotLowered("integer division by a value that may be zero")


def floor_of_quotient(x: Expression, y: Expression) -> Expression:
    """Python's floor division, as ATen computes it for floats."""
    if x.type in INTEGERS:
        nonzero_divisor(y)
        quotient = apply("divide_truncating", x, y)
        remainder = apply("remainder_truncating", x, y)
        zero = literal(0, x)
        adjust = apply("and", apply("ne", remainder, zero), apply("lt", apply("xor", remainder, y), zero))
        return apply("where", adjust, apply("sub", quotient, literal(1, x)), quotient)
    remainder = apply("fmod", x, y)
    quotient = apply("div", apply("sub", x, remainder), y)
    zero = literal(0.0, x)
    signs = apply("ne", apply("lt", y, zero), apply("lt", remainder, zero))
    quotient = apply(
        "where", apply("and", apply("ne", remainder, zero), signs), apply("sub", quotient, literal(1, x)), quotient
    )
    low = apply("floor", quotient)
    low = apply(
        "where",
        apply("gt", apply("sub", quotient, low), literal(0.5, x)),
        apply("add", low, literal(1, x)),
        low,
    )
    exact = apply("where", apply("eq", quotient, zero), apply("copysign", zero, apply("div", x, y)), low)
    return apply("where", apply("eq", y, zero), apply("div", x, y), exact)


def divide(x: Expression, y: Expression, rounding_mode: str | None = None) -> Expression:
    if rounding_mode is None:
        return apply("div", x, y)
    if rounding_mode == "floor":
        return floor_of_quotient(x, y)
    if x.type in INTEGERS:
        nonzero_divisor(y)
        return apply("divide_truncating", x, y)
    return apply("trunc", apply("div", x, y))


def remainder(x: Expression, y: Expression) -> Expression:
    """The sign follows the divisor."""
    zero = literal(0, x)
    if x.type in INTEGERS:
        nonzero_divisor(y)
        rest = apply("remainder_truncating", x, y)
        adjust = apply("and", apply("ne", rest, zero), apply("lt", apply("xor", rest, y), zero))
    else:
        rest = apply("fmod", x, y)
        signs = apply("ne", apply("lt", y, zero), apply("lt", rest, zero))
        adjust = apply("and", apply("ne", rest, zero), signs)
    return apply("where", adjust, apply("add", rest, y), rest)


def fmod(x: Expression, y: Expression) -> Expression:
    if x.type in INTEGERS:
        nonzero_divisor(y)
        return apply("remainder_truncating", x, y)
    return apply("fmod", x, y)


def power(x: Expression, y: Expression) -> Expression:
    """ATen's own special exponents first; an integer power only by a small constant."""
    if y.operation == "constant":
        exponent = y.attribute
        if exponent == 2:
            return apply("mul", x, x)
        if exponent == 3:
            return apply("mul", apply("mul", x, x), x)
        if exponent == 1:
            return x
        if x.type in FLOATS:
            special = {0.5: lambda: apply("sqrt", x), -0.5: lambda: rsqrt(x), -1: lambda: reciprocal(x)}
            special[-2] = lambda: reciprocal(apply("mul", x, x))
            if exponent in special:
                return special[exponent]()
    if x.type not in FLOATS:
        raise NotLowered("an integer power")
    return apply("pow", x, y)


def power_of_bfloat16(x: Expression, y: Expression) -> Expression:
    """ATen multiplies bfloat16 values one by one, each product rounded; float16 it computes in `f32`."""
    if build.is_constant(y, 3) or build.is_constant(y, -2):
        square = convert(convert(apply("mul", x, x), "bf16"), "f32")
        return apply("mul", square, x) if y.attribute == 3 else reciprocal(square)
    return power(x, y)


def reciprocal(x: Expression) -> Expression:
    return apply("div", literal(1, x), x)


def rsqrt(x: Expression) -> Expression:
    return apply("div", literal(1, x), apply("sqrt", x))


def sigmoid(x: Expression) -> Expression:
    one = literal(1, x)
    return apply("div", one, apply("add", one, apply("exp", apply("neg", x))))


def absolute(x: Expression) -> Expression:
    return x if x.type in ("b1", "u8") else apply("abs", x)


def sign(x: Expression) -> Expression:
    if x.type == "b1":
        return x
    zero, one = literal(0, x), literal(1, x)
    above = apply("where", apply("gt", x, zero), one, zero)
    if x.type == "u8":
        return above
    return apply("where", apply("lt", x, zero), literal(-1, x), above)


def relu(x: Expression) -> Expression:
    return apply("maximum", x, literal(0, x))


def leaky_relu(x: Expression, slope: Expression | None = None) -> Expression:
    slope = literal(0.01, x) if slope is None else slope
    return apply("where", apply("gt", x, literal(0, x)), x, apply("mul", x, slope))


def threshold(x: Expression, limit: Expression, value: Expression) -> Expression:
    return apply("where", apply("le", x, limit), value, x)


def threshold_backward(gradient: Expression, x: Expression, limit: Expression) -> Expression:
    return apply("where", apply("le", x, limit), literal(0, x), gradient)


def clamp(x: Expression, low: Expression | None = None, high: Expression | None = None) -> Expression:
    if low is not None:
        x = minmax("maximum")(x, low)
    return x if high is None else minmax("minimum")(x, high)


def is_nan(x: Expression) -> Expression:
    return apply("ne", x, x) if x.type in FLOATS else constant(False, "b1")


def is_infinite(x: Expression) -> Expression:
    if x.type not in FLOATS:
        return constant(False, "b1")
    return apply("eq", apply("abs", x), literal(math.inf, x))


def ignoring_nan(operation: str) -> Formula:
    """fmax and fmin: the other one where one is NaN."""

    def formula(x: Expression, y: Expression) -> Expression:
        if x.type not in FLOATS:
            return minmax(operation)(x, y)
        return apply("where", is_nan(x), y, apply("where", is_nan(y), x, apply(operation, x, y)))

    return formula


def minmax(operation: str) -> Formula:
    logical = {"maximum": "or", "minimum": "and"}[operation]
    return lambda x, y: apply(logical if x.type == "b1" else operation, x, y)


def logical(operation: str) -> Formula:
    def formula(*operands: Expression) -> Expression:
        return apply(operation, *(convert(operand, "b1") for operand in operands))

    return formula


def addcmul(x: Expression, first: Expression, second: Expression, value: Expression | None = None) -> Expression:
    scaled = first if value is None or build.is_constant(value, 1) else apply("mul", value, first)
    return apply("add", x, apply("mul", scaled, second))


def addcdiv(x: Expression, first: Expression, second: Expression, value: Expression | None = None) -> Expression:
    scaled = first if value is None or build.is_constant(value, 1) else apply("mul", value, first)
    return apply("add", x, apply("div", scaled, second))


def lerp(start: Expression, end: Expression, weight: Expression) -> Expression:
    """ATen's form: exact at both ends."""
    difference = apply("sub", end, start)
    near_start = apply("lt", apply("abs", weight), literal(0.5, weight))
    coefficient = apply("where", near_start, weight, apply("sub", weight, literal(1, weight)))
    base = apply("where", near_start, start, end)
    return apply("fma", coefficient, difference, base)


def shift(operation: str) -> Formula:
    def formula(x: Expression, y: Expression) -> Expression:
        if y.operation != "constant" or not 0 <= y.attribute < 8:
            raise NotLowered("a shift by a value that may be out of range")
        return apply(operation, x, y)

    return formula


def hardtanh(x: Expression, low: Expression | None = None, high: Expression | None = None) -> Expression:
    return clamp(x, literal(-1, x) if low is None else low, literal(1, x) if high is None else high)


def select(condition: Expression, x: Expression, y: Expression) -> Expression:
    return apply("where", convert(condition, "b1"), x, y)


def _unary_floats(*names: str) -> dict[str, Row]:
    return {name: Row(unary(name), "float", FLOATS) for name in names}


ROUNDING = {
    name: Row(lambda x, n=name: x if x.type in INTEGERS else apply(n, x)) for name in ("floor", "ceil", "trunc")
}
COMPARE = {name: Row(lambda x, y, n=name: apply(n, x, y), "compare") for name in ("lt", "le", "gt", "ge", "eq", "ne")}

# Operator (any overload that fits the formula's arguments) -> its row.
ROWS: dict[str, Row] = {
    **_unary_floats(
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma",
    ),
    **ROUNDING,
    **COMPARE,
    "add": Row(add),
    "sub": Row(sub),
    "rsub": Row(lambda x, y, alpha=None: sub(y, x, alpha)),
    "mul": Row(mul),
    "div": Row(divide),
    "true_divide": Row(divide),
    "floor_divide": Row(floor_of_quotient),
    "remainder": Row(remainder),
    "fmod": Row(fmod),
    "pow": Row(power, in_bfloat16=power_of_bfloat16),
    "neg": Row(unary("neg")),
    "abs": Row(absolute),
    "sign": Row(sign),
    "sgn": Row(sign),
    "square": Row(lambda x: apply("mul", x, x)),
    "reciprocal": Row(reciprocal, "float", FLOATS),
    "rsqrt": Row(rsqrt, "float", FLOATS),
    "sigmoid": Row(sigmoid, "float", FLOATS),
    "round": Row(lambda x: x if x.type in INTEGERS else apply("round", x)),
    "frac": Row(lambda x: apply("sub", x, apply("trunc", x)), types=FLOATS),
    "relu": Row(relu),
    "leaky_relu": Row(leaky_relu, types=FLOATS),
    "threshold": Row(threshold),
    "threshold_backward": Row(threshold_backward),
    "hardtanh": Row(hardtanh),
    "clamp": Row(clamp),
    "clamp_min": Row(clamp),
    "clamp_max": Row(lambda x, high: clamp(x, None, high)),
    "maximum": Row(minmax("maximum")),
    "minimum": Row(minmax("minimum")),
    "fmax": Row(ignoring_nan("maximum")),
    "fmin": Row(ignoring_nan("minimum")),
    "atan2": Row(lambda x, y: apply("atan2", x, y), "float", FLOATS),
    "hypot": Row(lambda x, y: apply("hypot", x, y), types=FLOATS),
    "copysign": Row(lambda x, y: apply("copysign", x, y), "float", FLOATS),
    "bitwise_and": Row(lambda x, y: apply("and", x, y)),
    "bitwise_or": Row(lambda x, y: apply("or", x, y)),
    "bitwise_xor": Row(lambda x, y: apply("xor", x, y)),
    "bitwise_not": Row(unary("not")),
    "bitwise_left_shift": Row(shift("shift_left")),
    "bitwise_right_shift": Row(shift("shift_right")),
    "logical_and": Row(logical("and"), "compare"),
    "logical_or": Row(logical("or"), "compare"),
    "logical_xor": Row(logical("xor"), "compare"),
    "logical_not": Row(lambda x: apply("not", convert(x, "b1")), "compare"),
    "isnan": Row(is_nan, "compare"),
    "isinf": Row(is_infinite, "compare"),
    "isfinite": Row(
        lambda x: (
            apply("lt", apply("abs", x), literal(math.inf, x)) if x.type in FLOATS else constant(True, "b1")
        ),
        "compare",
    ),
    "signbit": Row(
        lambda x: (
            apply("lt", apply("copysign", literal(1, x), x), literal(0, x))
            if x.type in FLOATS
            else apply("lt", x, literal(0, x))
            if x.type != "b1"
            else constant(False, "b1")
        ),
        "compare",
    ),
    "addcmul": Row(addcmul, types=FLOATS | INTEGERS),
    "addcdiv": Row(addcdiv, types=FLOATS),
    "lerp": Row(lerp, types=FLOATS),
    "where": Row(select, "where", ALL),
    "masked_fill": Row(lambda x, mask, value: select(mask, value, x), "masked_fill", ALL),
}  # fmt: skip

# Formulas whose string arguments choose a variant.
KEYWORDS = frozenset({"rounding_mode"})
# Of these ATen reads a number, or a tensor without dimensions, in the type it computes in; all other operands of
# another type than the common one are first rounded to that: name -> positions (-1: by name).
UNROUNDED_SCALARS: dict[str, frozenset[int]] = {
    "mul": frozenset({0, 1}), "div": frozenset({1}), "true_divide": frozenset({1}), "addcmul": frozenset({-1}),
    "addcdiv": frozenset({-1}),
}  # fmt: skip


def computing_type(type_: str) -> str:
    """What ATen computes in for tensors of a type."""
    return "f32" if type_ in SMALL_FLOATS else type_


def promote(operands: Sequence[Any]) -> torch.dtype:
    """The common type of tensors and numbers, as `torch.result_type` finds it."""
    ranks: dict[int, torch.dtype] = {}  # 0: numbers, 1: tensors without dimensions, 2: the others
    for operand in operands:
        if isinstance(operand, (Stored, Lazy)):
            rank, dtype = (2 if operand.sizes else 1), operand.dtype
        elif isinstance(operand, bool):
            rank, dtype = 0, torch.bool
        elif isinstance(operand, Number):
            rank, dtype = 0, torch.get_default_dtype() if operand.type is float else torch.bool
        elif isinstance(operand, float):
            rank, dtype = 0, torch.get_default_dtype()
        elif isinstance(operand, complex):
            raise NotLowered("a complex number")
        else:
            rank, dtype = 0, torch.int64
        ranks[rank] = torch.promote_types(ranks[rank], dtype) if rank in ranks else dtype
    best: torch.dtype | None = None
    for rank in (2, 1, 0):
        if rank not in ranks:
            continue
        if best is None or _category(ranks[rank]) > _category(best):
            best = ranks[rank]
    assert best is not None
    return best


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


def is_scalar(value: Any) -> bool:
    """A number, or a tensor without dimensions."""
    return not isinstance(value, (Stored, Lazy)) or not value.sizes


class Computation:
    """One call of a row: which operands take part, in which type, over which shape."""

    def __init__(self, lowering: Lowering, name: str, row: Row, result: Any) -> None:
        self.lowering = lowering
        self.name = name
        self.row = row
        self.sizes = lowering.sizes(result.shape)
        self.result = type_name(result.dtype)
        self.dtype = result.dtype
        self.layout = lowering.sizes(result.stride())

    def run(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> Lazy:
        if self.result == OPAQUE:
            raise NotLowered(f"results of type {self.dtype}")
        named = {name: value for name, value in keywords.items() if value is not None or name in KEYWORDS}
        operands = [*arguments, *(value for name, value in named.items() if name not in KEYWORDS)]
        if named.get("rounding_mode") == "trunc" and self.result in SMALL_FLOATS:
            raise NotLowered("a truncated quotient in half precision: ATen rounds before it truncates")
        type_ = self._type(arguments, operands)
        if type_ not in self.row.types:
            raise NotLowered(f"{self.name} over {type_}")
        self.exempt = {
            position
            for position in UNROUNDED_SCALARS.get(self.name, ())
            if position < 0 or (position < len(arguments) and is_scalar(arguments[position]))
        }
        prepared = [self._operand(value) for value in arguments]
        prepared_named = {name: value if name in KEYWORDS else self._operand(value) for name, value in named.items()}

        def element(indices: tuple[Size, ...]) -> Expression:
            def read(position: int, value: Any) -> Any:
                small = "" if position in self.exempt or type_ != "f32" else self.small
                return self._read(value, indices, self._operand_type(position, type_), small)

            values = [read(position, value) for position, value in enumerate(prepared)]
            named_values = {
                name: value if name in KEYWORDS else read(-1, value) for name, value in prepared_named.items()
            }
            formula = self.row.in_bfloat16 if self.small == "bf16" and self.row.in_bfloat16 else self.row.formula
            return convert(formula(*values, **named_values), self.result)

        lazy = self.lowering.lazy(self.sizes, self.dtype, element)
        lazy.layout = self.layout
        return lazy

    def _type(self, arguments: Sequence[Any], operands: Sequence[Any]) -> str:
        given = [value for value in operands if value is not None]
        if any(isinstance(value, (Stored, Lazy)) and value.type == OPAQUE for value in given):
            raise NotLowered("operands of a type the loop language lacks")
        promotion = self.row.promotion
        common = type_name(promote(given)) if promotion == "compare" else self.result
        self.small = common if common in SMALL_FLOATS else ""
        if promotion == "compare":
            return computing_type(common)
        if promotion in ("where", "masked_fill"):
            return self.result
        return computing_type(self.result)

    def _operand_type(self, position: int, type_: str) -> str:
        mask = {"where": 0, "masked_fill": 1}.get(self.row.promotion)
        return "b1" if position == mask else type_

    def _operand(self, value: Any) -> Any:
        if isinstance(value, (Stored, Lazy)):
            return self.lowering.broadcast(value, self.sizes)
        if isinstance(value, torch.SymInt):
            return self.lowering.size(value)
        if isinstance(value, Number):
            self.lowering.number(value)
            return value
        if value is None or isinstance(value, (bool, int, float)) or hasattr(value, "terms"):
            return value
        raise NotLowered(f"an argument of type {type(value).__name__}")

    def _read(self, value: Any, indices: tuple[Size, ...], type_: str, small: str) -> Expression | None:
        """An operand in the type computed in, rounded to the half type `small` before if eager's numbers are wanted."""
        if value is None:
            return None
        if config.numerics == "fast":
            small = ""
        if isinstance(value, (Stored, Lazy)):
            element = value.at(indices)
            return convert(convert(element, small) if small else element, type_)
        if hasattr(value, "terms"):
            return convert(build.index_expression(value), type_)
        if isinstance(value, Number):
            assert value.memory is not None
            if type_ in INTEGERS or (type_ == "b1" and value.type is float):
                raise NotLowered("a float where integers are computed")
            number = value.memory.at(())
            return convert(convert(number, small) if small else number, type_)
        if isinstance(value, float) and (type_ in INTEGERS or type_ == "b1"):
            raise NotLowered("a float where integers are computed")
        if small:
            value = torch.tensor(value, dtype=DTYPES[small]).item()
        return build.number(value, type_)


def rule(name: str, row: Row) -> Callable[..., Any]:
    def lower(lowering: Lowering, *arguments: Any, **keywords: Any) -> Value:
        return Computation(lowering, name, row, lowering.current).run(arguments, keywords)

    vars(lower)["takes_numbers"] = True
    return lower


RULES: dict[str, Callable[..., Any]] = {name: rule(name, row) for name, row in ROWS.items()}
