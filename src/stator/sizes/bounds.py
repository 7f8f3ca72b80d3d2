"""Ranges of integer and float expressions, from the ranges of their symbols.

Contract. `Bounds.bounds(expr)` is a range that holds every value the expression takes while its symbols stay within
`ranges` and the comparisons in `known` hold; it may be too wide, never too narrow. Besides interval arithmetic it
knows the shapes sizes come in: a common factor, a remainder `p - d * (p // d)`, a minimum or maximum.
"""

from __future__ import annotations

import math
from typing import Any

from stator.sizes.expression import Algebra, Expr, Monomial

INF = math.inf
Bound = int | float
Range = tuple[Any, Any]
EVERYTHING: Range = (-INF, INF)
_CASES = 3  # minima and maxima in one sum that are told apart


def _times(left: Bound, right: Bound) -> Bound:
    if left == 0 or right == 0:
        return 0
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    return INF if (left > 0) == (right > 0) else -INF


def product(left: Range, right: Range) -> Range:
    corners = [_times(a, b) for a in left for b in right]
    return min(corners), max(corners)


def _plus(left: Bound, right: Bound) -> Bound:
    if isinstance(left, float):
        return left
    return right if isinstance(right, float) else left + right


def _floor_quotient(left: Bound, right: Bound) -> Bound:
    """The limit of `left // right` for a positive divisor."""
    if isinstance(left, float):
        return left
    if isinstance(right, float):
        return 0 if left >= 0 else -1
    return left // right


def plus_low(total: Bound, part: Bound) -> Bound:
    return -INF if total == -INF or part == -INF else _plus(total, part)


def plus_high(total: Bound, part: Bound) -> Bound:
    return INF if total == INF or part == INF else _plus(total, part)


def _power(operand: Range, count: int) -> Range:
    if count == 1:
        return operand
    low, high = operand
    corners = [_raise(low, count), _raise(high, count)]
    if low <= 0 <= high:
        corners.append(0)
    return min(corners), max(corners)


def _raise(base: Bound, count: int) -> Bound:
    if isinstance(base, int):
        return int(base**count)
    return INF if base > 0 or count % 2 == 0 else -INF


def _as_float(bound: Bound) -> float:
    try:
        return float(bound)
    except OverflowError:
        return INF if bound > 0 else -INF


class Bounds:
    """What is known of the sizes of things."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.ranges: dict[Expr, Range] = {}
        self.known: dict[Expr, int] = {}  # p -> k: p + k >= 0, for p without a constant term
        self._bounds: dict[Expr, Range] = {}

    def bounds(self, expr: Expr) -> Range:
        """A range that holds every value of an int or float expression; of floats, NaN apart."""
        constant = expr.constant
        if constant is not None:
            return constant, constant
        found = self.ranges.get(expr) if expr.kind == "symbol" else self._bounds.get(expr)
        if found is None:
            low, high = self._compute_bounds(expr)
            if expr in self.ranges:  # an opaque atom that was compared
                low, high = max(low, self.ranges[expr][0]), min(high, self.ranges[expr][1])
            found = self._bounds[expr] = (low, high)
        return found

    def _compute_bounds(self, expr: Expr) -> Range:
        kind, args = expr.kind, expr.args
        if kind == "poly":
            return self._bounds_of_sum(expr)
        if kind == "floordiv":
            return self._bounds_of_quotient(self.bounds(args[0]), self.bounds(args[1]))
        if kind in ("min", "max", "fmin", "fmax"):
            choose = min if kind in ("min", "fmin") else max
            ranges = [self.bounds(arg) for arg in args]
            return choose(low for low, _ in ranges), choose(high for _, high in ranges)
        if kind in ("ite", "fite"):
            first, second = self.bounds(args[1]), self.bounds(args[2])
            return min(first[0], second[0]), max(first[1], second[1])
        if kind == "pow":
            (low, _), (least, _) = self.bounds(args[0]), self.bounds(args[1])
            return (1, INF) if low >= 1 and least >= 0 else (0 if low >= 0 else -INF, INF)
        if kind in ("floor", "ceil", "trunc", "round"):
            low, high = self.bounds(args[0])
            return (
                low if abs(low) == INF else math.floor(low),
                high if abs(high) == INF else math.ceil(high),
            )
        if kind == "to_float":
            return tuple(_as_float(bound) for bound in self.bounds(args[0]))  # type: ignore[return-value]
        if kind == "truediv":
            return self._bounds_of_ratio(self.bounds(args[0]), self.bounds(args[1]))
        return EVERYTHING

    def _bounds_of_sum(self, expr: Expr) -> Range:
        algebra = self.algebra
        low: Bound = 0
        high: Bound = 0
        for monomial, factor in expr.terms:
            part = self._bounds_of_monomial(monomial)
            part = product(part, (factor, factor))
            low, high = plus_low(low, part[0]), plus_high(high, part[1])
        if low == -INF or high == INF:
            for method in (self._bounds_by_factor, self._bounds_by_remainder, self._bounds_by_cases):
                tighter = method(expr)
                low, high = max(low, tighter[0]), min(high, tighter[1])
        offset = expr.terms[0][1] if not expr.terms[0][0] else 0
        base = expr if not offset else algebra.add(expr, algebra.integer(-offset))
        known = self.known.get(base)
        if known is not None:  # base >= -known
            low = max(low, offset - known)
        known = self.known.get(algebra.negate(base))
        if known is not None:  # base <= known
            high = min(high, offset + known)
        return low, high

    def _bounds_of_monomial(self, monomial: Monomial) -> Range:
        result: Range = (1, 1)
        previous, count = None, 0
        for number in (*monomial, None):
            if number == previous:
                count += 1
                continue
            if previous is not None:
                result = product(result, _power(self.bounds(self.algebra.atoms[previous]), count))
            previous, count = number, 1
        return result

    def _bounds_by_factor(self, expr: Expr) -> Range:
        """Of a*b - a as a * (b - 1)."""
        common = set(expr.terms[0][0])
        for monomial, _ in expr.terms:
            common &= set(monomial)
        if not common or len(expr.terms) < 2:
            return EVERYTHING
        number = min(common)
        rest: dict[Monomial, int] = {}
        for monomial, factor in expr.terms:
            position = monomial.index(number)
            rest[monomial[:position] + monomial[position + 1 :]] = factor
        return product(self.bounds(self.algebra.atoms[number]), self.bounds(self.algebra.polynomial(rest)))

    def _bounds_by_remainder(self, expr: Expr) -> Range:
        """Where d * (p // d) stands in it: that is p - r with r in [0, d - 1], for a positive d of one term."""
        algebra = self.algebra
        for monomial, factor in expr.terms:
            for number in monomial:
                atom = algebra.atoms[number]
                if atom.kind != "floordiv" or len(atom.args[1].terms) != 1 or self.bounds(atom.args[1])[0] <= 0:
                    continue
                dividend, divisor = atom.args
                whole = algebra.mul(divisor, atom)
                if whole.terms[0][0] != monomial or factor % whole.terms[0][1]:
                    continue
                times = factor // whole.terms[0][1]
                most = algebra.add(algebra.sub(expr, algebra.scale(whole, times)), algebra.scale(dividend, times))
                least = algebra.sub(most, algebra.scale(algebra.add(divisor, algebra.minus_one), times))
                if times < 0:
                    least, most = most, least
                return self.bounds(least)[0], self.bounds(most)[1]
        return EVERYTHING

    def _bounds_by_cases(self, expr: Expr) -> Range:
        """A `min` or `max` in it is one of its operands."""
        atoms = {self.algebra.atoms[number] for monomial, _ in expr.terms for number in monomial}
        extremes = [atom for atom in atoms if atom.kind in ("min", "max")]
        if not 1 <= len(extremes) <= _CASES:
            return EVERYTHING
        atom = min(extremes, key=lambda each: each.number)
        cases = [self.bounds(self._with(expr, atom, chosen)) for chosen in atom.args]
        return min(low for low, _ in cases), max(high for _, high in cases)

    def _with(self, expr: Expr, atom: Expr, value: Expr) -> Expr:
        """`expr` with `value` for `atom`."""
        return self.algebra.rebuild(expr, lambda part: value if part is atom else part)

    @staticmethod
    def _bounds_of_quotient(dividend: Range, divisor: Range) -> Range:
        if divisor[0] > 0:
            corners = [_floor_quotient(a, b) for a in dividend for b in divisor]
            return min(corners), max(corners)
        reach = max(abs(dividend[0]), abs(dividend[1]))
        return -reach, reach

    @staticmethod
    def _bounds_of_ratio(dividend: Range, divisor: Range) -> Range:
        if divisor[0] <= 0 or INF in (abs(dividend[0]), abs(dividend[1]), divisor[1]):
            low: Bound = 0.0 if dividend[0] >= 0 and divisor[0] > 0 else -INF
            return low, INF
        corners = [a / b for a in dividend for b in divisor]
        return min(corners), max(corners)
