"""The node behind `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`.

Contract. A `SizeNode` is an expression and the context it belongs to. torch's C++ shape functions call its methods by
name (`c10::SymNodeImpl` lists them), Python's magic methods on `torch.SymInt` do too. Arithmetic and comparisons make
new nodes and decide nothing, but for what Python itself would raise on (a divisor of zero); `guard_*`, `expect_*`,
`int_` and `bool_` decide, through the context, at the user's line.

It derives from torch's own node class only so that `isinstance` checks in torch hold: every public method is replaced
(a test compares the lists), none of the inherited state exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.fx.experimental.sym_node import SymNode

from stator.sizes import layout
from stator.sizes.expression import MATH_FUNCTIONS, Expr

if TYPE_CHECKING:
    from stator.sizes.context import SizeContext

_EXACT = 2**52  # below it, quotients of integers are exact enough in floats for floor and ceil to be those of integers


_TorchNode: Any = SymNode  # untyped: every method is replaced, with narrower operand types


class SizeNode(_TorchNode):  # type: ignore[misc]
    """One symbolic int, float or bool."""

    __slots__ = ("context", "expr", "pytype")

    def __init__(self, context: SizeContext, expr: Expr) -> None:
        self.context = context
        self.expr = expr
        self.pytype = expr.type

    # what it is
    @property
    def shape_env(self) -> SizeContext:
        return self.context

    @property
    def constant(self) -> Any:
        return self.expr.constant

    @property
    def hint(self) -> Any:
        return self.context.hint(self.expr)

    _hint = hint
    _expr = property(lambda self: self.expr)
    fx_node = None
    _optimized_summation = False

    def has_hint(self) -> bool:
        return self.context.hint(self.expr) is not None

    def require_hint(self, fallback: Any = None) -> Any:
        hint = self.hint
        if hint is None and fallback is None:
            raise self.context.data_dependent(self.expr)
        return fallback if hint is None else hint

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def nested_int_coeff(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return self.expr.constant is not None

    def maybe_as_int(self) -> int | None:
        if self.pytype is not int:
            return None
        # C++ asks this of every size, so the common answer is kept short
        value: int | None = self._settled() if self.context.facts.replacements else self.expr.constant
        return value

    def maybe_as_float(self) -> float | None:
        return self._settled() if self.pytype is float else None

    def maybe_as_bool(self) -> bool | None:
        return self.context.facts.decide(self.expr) if self.pytype is bool else None

    def constant_int(self) -> int | None:
        return self.expr.constant if self.pytype is int else None

    def constant_bool(self) -> bool | None:
        return self.expr.constant if self.pytype is bool else None

    def _settled(self) -> Any:
        return self.context.facts.simplify(self.expr).constant

    def clone(self) -> SizeNode:
        return self

    def with_shape_env(self, shape_env: Any) -> SizeNode:
        if shape_env is not self.context:
            raise ValueError("a symbolic size cannot move to another trace")
        return self

    def _graph_repr(self) -> str:
        return self.context.short_text(self.expr)

    def _value_eq(self, other: SymNode) -> bool:
        return isinstance(other, SizeNode) and self.expr is other.expr

    def _value_hash(self) -> int:
        return hash(self.expr)

    # making
    def _make(self, expr: Expr) -> SizeNode:
        return SizeNode(self.context, expr)

    def wrap_int(self, num: int) -> SizeNode:
        return SizeNode(self.context, self.context.algebra.integer(num))

    def wrap_float(self, num: float) -> SizeNode:
        return SizeNode(self.context, self.context.algebra.real(num))

    def wrap_bool(self, num: bool) -> SizeNode:
        return SizeNode(self.context, self.context.algebra.boolean(num))

    # decisions
    def guard_int(self, file: str, line: int) -> int:
        return int(self.context.specialise(self.expr))

    def guard_float(self, file: str, line: int) -> float:
        return float(self.context.specialise(self.expr))

    def guard_bool(self, file: str, line: int) -> bool:
        return self.context.decide(self.expr)

    def evaluate(self, size_oblivious: bool = False) -> Any:
        return self.context.evaluate_sym_node(self, size_oblivious)

    def int_(self) -> int:
        return self.guard_int("", 0)

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def expect_true(self, file: str, line: int) -> bool:
        return self.context.promise(self.expr)

    def expect_size(self, file: str, line: int) -> bool:
        return self.context.promise(self.context.algebra.ge0(self.expr))

    def guard_size_oblivious(self, file: str, line: int) -> bool:
        return self.context.decide_or(self.expr, False)

    def guard_or_false(self, file: str, line: int) -> bool:
        return self.context.decide_or(self.expr, False)

    def guard_or_true(self, file: str, line: int) -> bool:
        return self.context.decide_or(self.expr, True)

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.context.facts.decide(self.expr) is True

    # arithmetic
    def add(self, other: SizeNode) -> SizeNode:
        return self._binary("add", "fadd", other)

    def sub(self, other: SizeNode) -> SizeNode:
        return self._binary("sub", "fsub", other)

    def mul(self, other: SizeNode) -> SizeNode:
        return self._binary("mul", "fmul", other)

    def _binary(self, of_integers: Any, of_floats: Any, other: SizeNode) -> SizeNode:
        context = self.context
        algebra = context.algebra
        if self.pytype is int and other.pytype is int:
            return SizeNode(context, getattr(algebra, of_integers)(self.expr, other.expr))
        return SizeNode(context, algebra.opaque(of_floats, self._real(), other._real()))

    def _real(self) -> Expr:
        """As a float expression."""
        if self.pytype is float:
            return self.expr
        return self.context.algebra.opaque("to_float", self._whole())

    def _whole(self) -> Expr:
        """As an int expression; True is 1."""
        if self.pytype is not bool:
            return self.expr
        algebra = self.context.algebra
        return algebra.choose(self.expr, algebra.one, algebra.zero)

    def _not_zero(self, message: Any) -> None:
        """Python raises on a zero divisor, so that there is none is a guard (or, unbacked, a runtime assert)."""
        algebra = self.context.algebra
        nonzero = algebra.logical_not(algebra.eq0(self.expr))
        if not self.context.promise(nonzero):
            raise ZeroDivisionError(message)

    def int_floordiv(self, other: SizeNode) -> SizeNode:
        if self.pytype is not int or other.pytype is not int:
            quotient = self.context.algebra.opaque("fdiv", self._real(), other._real())
            return self._make(self.context.algebra.opaque("floor", quotient)).sym_float()
        other._not_zero("integer division or modulo by zero")
        return self._make(self.context.algebra.floordiv(self.expr, other.expr))

    floordiv = int_floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        if self.pytype is not int or other.pytype is not int:
            return self._make(self.context.algebra.opaque("fmod", self._real(), other._real()))
        other._not_zero("integer modulo by zero")
        return self._make(self.context.algebra.mod(self.expr, other.expr))

    def int_truediv(self, other: SizeNode) -> SizeNode:
        other._not_zero("division by zero")
        return self._make(self.context.algebra.opaque("truediv", self.expr, other.expr))

    def float_truediv(self, other: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.opaque("fdiv", self._real(), other._real()))

    def truediv(self, other: SizeNode) -> SizeNode:
        integers = self.pytype is int and other.pytype is int
        return self.int_truediv(other) if integers else self.float_truediv(other)

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.pow(self.expr, other.expr))

    def float_pow(self, other: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.opaque("fpow", self._real(), other._real()))

    def pow(self, other: SizeNode) -> SizeNode:
        if self.pytype is int and other.pytype is int:
            algebra = self.context.algebra
            if self.context.decide(algebra.ge0(other.expr)):
                return self.pow_by_natural(other)
        return self.float_pow(other)

    def neg(self) -> SizeNode:
        algebra = self.context.algebra
        if self.pytype is float:
            return self._make(algebra.opaque("fneg", self.expr))
        return self._make(algebra.negate(self._whole()))

    def pos(self) -> SizeNode:
        return self if self.pytype is not bool else self._make(self._whole())

    def abs(self) -> SizeNode:
        algebra = self.context.algebra
        if self.pytype is float:
            return self._make(algebra.opaque("fabs", self.expr))
        return self._make(algebra.maximum(self._whole(), algebra.negate(self._whole())))

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self._binary("minimum", "fmin", other)

    def sym_max(self, other: SizeNode) -> SizeNode:
        return self._binary("maximum", "fmax", other)

    def sym_sum(self, args: Sequence[SizeNode]) -> SizeNode:
        return self._make(self.context.algebra.sum(arg.expr for arg in args))

    def lshift(self, other: SizeNode) -> SizeNode:
        algebra = self.context.algebra
        count = other.expr.constant
        if count is not None and count >= 0:
            return self._make(algebra.scale(self.expr, 1 << count))
        return self._make(algebra.opaque("lshift", self.expr, other.expr))

    def rshift(self, other: SizeNode) -> SizeNode:
        algebra = self.context.algebra
        count = other.expr.constant
        if count is not None and count >= 0:
            return self._make(algebra.floordiv(self.expr, algebra.integer(1 << count)))
        return self._make(algebra.opaque("rshift", self.expr, other.expr))

    def bitwise_and(self, other: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.opaque("bit_and", self._whole(), other._whole()))

    def bitwise_or(self, other: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.opaque("bit_or", self._whole(), other._whole()))

    def bitwise_xor(self, other: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.opaque("bit_xor", self._whole(), other._whole()))

    # between integers and floats
    def sym_float(self) -> SizeNode:
        return self if self.pytype is float else self._make(self._real())

    def sym_int(self) -> SizeNode:
        return self.trunc()

    def floor(self) -> SizeNode:
        return self if self.pytype is int else self._make(self._rounded("floor"))

    def ceil(self) -> SizeNode:
        return self if self.pytype is int else self._make(self._rounded("ceil"))

    def trunc(self) -> SizeNode:
        return self if self.pytype is int else self._make(self._rounded("trunc"))

    def round(self, ndigits: int | None = None) -> SizeNode:
        if self.pytype is int:
            return self
        if ndigits is None:
            return self._make(self._rounded("round"))
        return self._make(self.context.algebra.opaque("fround", self.expr, ndigits))

    def _rounded(self, kind: Any) -> Expr:
        """To an integer. Of a ratio of integers it is integer arithmetic, for integers a float holds exactly."""
        algebra = self.context.algebra
        ratio = self._as_ratio(self.expr)
        if ratio is None or kind == "round":
            return algebra.opaque(kind, self.expr)
        over, under = ratio
        down, up = algebra.floordiv(over, under), algebra.negate(algebra.floordiv(algebra.negate(over), under))
        if kind == "trunc":
            return algebra.choose(algebra.ge0(over), down, up) if not self._not_negative(over) else down
        return down if kind == "floor" else up

    def _not_negative(self, expr: Expr) -> bool:
        return self.context.facts.decide(self.context.algebra.ge0(expr)) is True

    def _as_ratio(self, expr: Expr) -> tuple[Expr, Expr] | None:
        """`(p, q)` if the float is exactly rounded p / q of integers small enough, q positive; guards that they are."""
        algebra = self.context.algebra
        if expr.kind == "to_float":
            over, under = expr.args[0], algebra.one
        elif expr.kind == "truediv":
            over, under = expr.args
        elif expr.kind in ("fmul", "fdiv"):
            found = self._scaled(expr)
            if found is None:
                return None
            over, under = found
        else:
            return None
        limit = algebra.integer(_EXACT)
        if not self._not_negative(algebra.add(under, algebra.minus_one)):
            return None
        small = [algebra.ge(limit, side) for side in (over, algebra.negate(over), under)]
        if not all(self.context.static(question) or self.context.hint(question) for question in small):
            return None
        for question in small:
            self.context.assume(question, "a ratio of sizes is rounded exactly")
        return over, under

    def _scaled(self, expr: Expr) -> tuple[Expr, Expr] | None:
        """`float(p) * c` or `float(p) / c` for a constant that is a fraction of small integers, exactly."""
        algebra = self.context.algebra
        left, right = expr.args
        if expr.kind == "fmul" and left.constant is not None:
            left, right = right, left
        factor = right.constant
        if left.kind != "to_float" or factor is None or not math.isfinite(factor) or factor <= 0:
            return None
        over, under = factor.as_integer_ratio()
        if over >= 2**20 or under >= 2**20:
            return None
        if expr.kind == "fdiv":
            over, under = under, over
        return algebra.scale(left.args[0], over), algebra.integer(under)

    def is_integer(self) -> SizeNode:
        algebra = self.context.algebra
        if self.pytype is int:
            return self._make(algebra.true)
        return self._make(algebra.opaque("is_integer", self.expr))

    # comparisons and logic
    def _compare(self, other: SizeNode, of_integers: Callable[[Expr, Expr], Expr], of_floats: Any) -> SizeNode:
        if self.pytype is float or other.pytype is float:
            kind, swap, negate = of_floats
            left, right = (other._real(), self._real()) if swap else (self._real(), other._real())
            algebra = self.context.algebra
            answer = algebra.opaque(kind, left, right)
            return self._make(algebra.logical_not(answer) if negate else answer)
        question = of_integers(self._whole(), other._whole())
        settled = self.context.facts.decide(question)
        return self._make(question if settled is None else self.context.algebra.boolean(settled))

    def eq(self, other: SizeNode) -> SizeNode:
        algebra = self.context.algebra
        if self.pytype is bool and other.pytype is bool:
            return self._make(algebra.choose(self.expr, other.expr, algebra.logical_not(other.expr)))
        return self._compare(other, algebra.eq, ("feq", False, False))

    def ne(self, other: SizeNode) -> SizeNode:
        return self.eq(other).sym_not()

    def ge(self, other: SizeNode) -> SizeNode:
        return self._compare(other, self.context.algebra.ge, ("fle", True, False))

    def lt(self, other: SizeNode) -> SizeNode:
        return self._compare(other, self.context.algebra.lt, ("flt", False, False))

    def le(self, other: SizeNode) -> SizeNode:
        return other.ge(self)

    def gt(self, other: SizeNode) -> SizeNode:
        return other.lt(self)

    def sym_not(self) -> SizeNode:
        return self._make(self.context.algebra.logical_not(self.expr))

    def sym_and(self, other: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.logical_and(self.expr, other.expr))

    def sym_or(self, other: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.logical_or(self.expr, other.expr))

    and_ = sym_and
    or_ = sym_or

    def sym_ite(self, then_val: SizeNode, else_val: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.choose(self.expr, then_val.expr, else_val.expr))

    # layouts
    def is_contiguous(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        context = self.context
        return self._make(layout.is_contiguous(context.algebra, context.static, *_exprs(sizes, strides)))

    def is_channels_last_contiguous_2d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._make(layout.is_channels_last_contiguous(self.context.algebra, *_exprs(sizes, strides), rank=4))

    def is_channels_last_contiguous_3d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._make(layout.is_channels_last_contiguous(self.context.algebra, *_exprs(sizes, strides), rank=5))

    def is_channels_last_strides_2d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._make(layout.is_channels_last_strides(self.context.algebra, *_exprs(sizes, strides), rank=4))

    def is_channels_last_strides_3d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._make(layout.is_channels_last_strides(self.context.algebra, *_exprs(sizes, strides), rank=5))

    def is_non_overlapping_and_dense(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        context = self.context
        return self._make(
            layout.is_non_overlapping_and_dense(
                context.algebra, context.static, context.decide, *_exprs(sizes, strides)
            )
        )

    def is_non_overlapping_and_dense_indicator(
        self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]
    ) -> SizeNode:
        return self._make(self.is_non_overlapping_and_dense(sizes, strides)._whole())


def _exprs(sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> tuple[list[Expr], list[Expr]]:
    return [size.expr for size in sizes], [stride.expr for stride in strides]


def _math_method(name: str) -> Callable[[SizeNode], SizeNode]:
    def method(self: SizeNode) -> SizeNode:
        return self._make(self.context.algebra.opaque(name, self._real()))

    method.__name__ = f"sym_{name}"
    return method


for _name in ("str", "__str__", "__repr__"):  # not in the class body, where `str` would hide the type
    setattr(SizeNode, _name, SizeNode._graph_repr)
for _name in MATH_FUNCTIONS:
    setattr(SizeNode, f"sym_{_name}", _math_method(_name))
