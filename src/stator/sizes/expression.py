"""Symbolic integers, floats and booleans as canonical, interned terms.

Contract. An `Algebra` makes all expressions of one trace. Expressions are immutable; within one algebra two
expressions that are built equal *are* the same object, so equality and hashing cost nothing. Every rewrite done here
holds for all values the symbols can take for which the original has a value (a divisor is not zero); rewrites that
need a fact (a range, an equality) live in `facts.py`. Arithmetic is Python's: unbounded integers, division and
remainder round towards minus infinity, floats are never re-associated.

Why polynomials: nearly every size is a sum of products of sizes, and two of them are equal exactly if their canonical
polynomials are, so the questions a trace asks most often (is this view's element count the input's?) are answered by
object identity.

    type   kind       args                         meaning
    int    poly       ()                           sum of `terms`: (monomial, coefficient); a monomial is a sorted
                                                   tuple of atom numbers, () is the constant term
    int    symbol     (name,)                      an atom; so are all int rows below
    int    floordiv   (p, d)                       p // d
    int    min, max   (p, ...)                     of two or more
    int    pow        (p, n)                       p ** n, n >= 0 symbolic
    int    ite        (b, p, q)                    p if b else q
    int    floor, ceil, trunc, round   (f,)        of a float
    int    lshift, rshift, bit_and, bit_or, bit_xor   (p, q)
    float  constant   (value,)
    float  symbol     (name,)
    float  to_float   (p,)                         float(p)
    float  truediv    (p, q)                       p / q of integers
    float  fadd, fsub, fmul, fdiv, fmod, fpow, fmin, fmax    (f, g)
    float  fneg, fabs, fround, sqrt, ...           (f,) or (f, digits)
    float  fite       (b, f, g)
    bool   true, false
    bool   eq0, ge0   (p,)                         p == 0, p >= 0
    bool   feq, flt, fle, is_integer               of floats
    bool   not        (b,)                         only over float rows: a NaN keeps `not (f < g)` from being `f >= g`
    bool   and, or    (b, ...)                     of two or more

`p % d` is `p - d * (p // d)`: one form for both makes `d * (p // d) + p % d` be `p` by cancellation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Monomial = tuple[int, ...]
Terms = tuple[tuple[Monomial, int], ...]


class Expr:
    """One interned term. Made by an `Algebra` only."""

    __slots__ = ("args", "kind", "number", "symbols", "terms", "type")

    def __init__(
        self, kind: str, type_: type, args: tuple[Any, ...], terms: Terms, symbols: frozenset[Expr] | None, number: int
    ) -> None:
        self.kind = kind
        self.type = type_
        self.args = args
        self.terms = terms
        self.symbols: frozenset[Expr] = frozenset((self,)) if symbols is None else symbols
        self.number = number  # creation order: a stable order for the canonical form

    @property
    def constant(self) -> Any:
        """The value, or None where the expression is no constant."""
        kind = self.kind
        if kind == "poly":
            terms = self.terms
            if not terms:
                return 0
            return terms[0][1] if len(terms) == 1 and not terms[0][0] else None
        if kind == "true":
            return True
        if kind == "false":
            return False
        return self.args[0] if kind == "constant" else None

    @property
    def is_constant(self) -> bool:
        return not self.symbols and self.constant is not None

    # torch's `free_symbols` walks look at these names
    @property
    def free_symbols(self) -> frozenset[Expr]:
        return self.symbols

    @property
    def is_number(self) -> bool:
        return not self.symbols and self.type is not bool

    @property
    def is_Boolean(self) -> bool:
        return self.type is bool

    @property
    def is_Symbol(self) -> bool:
        return self.kind == "symbol"

    @property
    def name(self) -> str:
        return str(self.args[0]) if self.kind == "symbol" else str(self)

    def __repr__(self) -> str:
        return self.kind if not self.args else f"{self.kind}{self.args}"


def _divide(left: Any, right: Any) -> float:
    return float(left / right)


# Opaque operators: kind -> (type of the result, its value). Python decides what an error is.
OPAQUE: dict[str, tuple[type, Callable[..., Any]]] = {
    "floordiv": (int, operator.floordiv),
    "min": (int, min),
    "max": (int, max),
    "pow": (int, operator.pow),
    "ite": (int, lambda condition, yes, no: yes if condition else no),
    "floor": (int, math.floor),
    "ceil": (int, math.ceil),
    "trunc": (int, math.trunc),
    "round": (int, round),
    "lshift": (int, operator.lshift),
    "rshift": (int, operator.rshift),
    "bit_and": (int, operator.and_),
    "bit_or": (int, operator.or_),
    "bit_xor": (int, operator.xor),
    "to_float": (float, float),
    "truediv": (float, _divide),
    "fadd": (float, operator.add),
    "fsub": (float, operator.sub),
    "fmul": (float, operator.mul),
    "fdiv": (float, _divide),
    "fmod": (float, operator.mod),
    "fpow": (float, operator.pow),
    "fmin": (float, min),
    "fmax": (float, max),
    "fneg": (float, operator.neg),
    "fabs": (float, abs),
    "fround": (float, round),
    "fite": (float, lambda condition, yes, no: yes if condition else no),
    "feq": (bool, operator.eq),
    "flt": (bool, operator.lt),
    "fle": (bool, operator.le),
    "is_integer": (bool, float.is_integer),
    "eq0": (bool, lambda value: value == 0),
    "ge0": (bool, lambda value: value >= 0),
    "not": (bool, operator.not_),
    "and": (bool, lambda *values: all(values)),
    "or": (bool, lambda *values: any(values)),
}
MATH_FUNCTIONS = ("sqrt", "exp", "log", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2")
for _name in MATH_FUNCTIONS:
    OPAQUE[_name] = (float, getattr(math, _name))

FLOAT_COMPARISONS = frozenset({"feq", "flt", "fle", "is_integer"})


class Algebra:
    """Makes and remembers the expressions of one trace; used by one thread at a time."""

    def __init__(self) -> None:
        self.atoms: list[Expr] = []  # atom number -> int expression
        self._count = 0
        self._by_terms: dict[Terms, Expr] = {}
        self._opaque: dict[tuple[Any, ...], Expr] = {}
        self._sums: dict[tuple[Expr, Expr], Expr] = {}
        self._products: dict[tuple[Expr, Expr], Expr] = {}
        self._quotients: dict[tuple[Expr, Expr], Expr] = {}
        self._powers: dict[tuple[Expr, int], Expr] = {}
        self.true = self._new("true", bool, (), (), frozenset())
        self.false = self._new("false", bool, (), (), frozenset())
        self.zero = self.integer(0)
        self.one = self.integer(1)
        self.minus_one = self.integer(-1)

    # making
    def _new(
        self, kind: str, type_: type, args: tuple[Any, ...], terms: Terms, symbols: frozenset[Expr] | None
    ) -> Expr:
        self._count += 1
        return Expr(kind, type_, args, terms, symbols, self._count)

    def _atom(self, kind: str, args: tuple[Any, ...], symbols: frozenset[Expr] | None) -> Expr:
        """A new int expression that is a variable to polynomials."""
        terms = (((len(self.atoms),), 1),)
        made = self._new(kind, int, args, terms, symbols)
        self.atoms.append(made)
        self._by_terms[terms] = made
        return made

    def symbol(self, name: str, type_: type = int) -> Expr:
        """A fresh symbol; asking twice for a name gives two symbols."""
        if type_ is int:
            return self._atom("symbol", (name,), None)
        return self._new("symbol", type_, (name,), (), None)

    def integer(self, value: int) -> Expr:
        terms: Terms = (((), value),) if value else ()
        found = self._by_terms.get(terms)
        if found is None:
            found = self._by_terms[terms] = self._new("poly", int, (), terms, frozenset())
        return found

    def real(self, value: float) -> Expr:
        # the sign of zero and the bits of a NaN are part of the identity
        key = ("constant", value, math.copysign(1.0, value))
        found = self._opaque.get(key)
        if found is None:
            found = self._opaque[key] = self._new("constant", float, (value,), (), frozenset())
        return found

    def boolean(self, value: bool) -> Expr:
        return self.true if value else self.false

    def polynomial(self, terms: Mapping[Monomial, int]) -> Expr:
        """The canonical expression of a sum; zero coefficients are dropped."""
        key = tuple(sorted((monomial, factor) for monomial, factor in terms.items() if factor))
        found = self._by_terms.get(key)
        if found is None:
            numbers = {number for monomial, _ in key for number in monomial}
            symbols = frozenset().union(*(self.atoms[number].symbols for number in numbers))
            found = self._by_terms[key] = self._new("poly", int, (), key, symbols)
        return found

    def opaque(self, kind: str, *args: Any) -> Expr:
        """An operator without rewrites; constants fold where Python gives a value."""
        key = (kind, *args)
        found = self._opaque.get(key)
        if found is not None:
            return found
        type_, meaning = OPAQUE[kind]
        operands = [arg for arg in args if isinstance(arg, Expr)]
        if all(operand.is_constant for operand in operands):
            value = meaning(*(arg.constant if isinstance(arg, Expr) else arg for arg in args))
            found = self.of_value(type_(value))
        else:
            symbols = frozenset().union(*(operand.symbols for operand in operands))
            if type_ is int:
                found = self._atom(kind, args, symbols)
            else:
                found = self._new(kind, type_, args, (), symbols)
        self._opaque[key] = found
        return found

    def of_value(self, value: Any) -> Expr:
        """The constant expression of a Python number."""
        if isinstance(value, bool):
            return self.boolean(value)
        return self.integer(value) if isinstance(value, int) else self.real(value)

    # integers
    def add(self, left: Expr, right: Expr) -> Expr:
        key = (left, right)
        found = self._sums.get(key)
        if found is None:
            terms = dict(left.terms)
            for monomial, factor in right.terms:
                terms[monomial] = terms.get(monomial, 0) + factor
            found = self._sums[key] = self.polynomial(terms)
        return found

    def scale(self, operand: Expr, factor: int) -> Expr:
        return self.polynomial({monomial: value * factor for monomial, value in operand.terms})

    def negate(self, operand: Expr) -> Expr:
        return self.mul(operand, self.minus_one)

    def sub(self, left: Expr, right: Expr) -> Expr:
        return self.add(left, self.mul(right, self.minus_one))

    def mul(self, left: Expr, right: Expr) -> Expr:
        key = (left, right)
        found = self._products.get(key)
        if found is None:
            terms: dict[Monomial, int] = {}
            for first, factor in left.terms:
                for second, other in right.terms:
                    monomial = tuple(sorted(first + second)) if first and second else first or second
                    terms[monomial] = terms.get(monomial, 0) + factor * other
            found = self._products[key] = self.polynomial(terms)
        return found

    def sum(self, operands: Iterable[Expr]) -> Expr:
        terms: dict[Monomial, int] = {}
        for operand in operands:
            for monomial, factor in operand.terms:
                terms[monomial] = terms.get(monomial, 0) + factor
        return self.polynomial(terms)

    def product(self, operands: Iterable[Expr]) -> Expr:
        result = self.one
        for operand in operands:
            result = self.mul(result, operand)
        return result

    def pow(self, base: Expr, exponent: Expr) -> Expr:
        """`base ** exponent` for an exponent that is not negative."""
        count = exponent.constant
        if count is None:
            return self.one if base is self.one else self.opaque("pow", base, exponent)
        if count < 0:
            raise ValueError("an integer power needs an exponent that is not negative")
        key = (base, count)
        found = self._powers.get(key)
        if found is None:
            found, square = self.one, base
            while count:
                if count & 1:
                    found = self.mul(found, square)
                count >>= 1
                if count:
                    square = self.mul(square, square)
            self._powers[key] = found
        return found

    def mod(self, left: Expr, right: Expr) -> Expr:
        return self.sub(left, self.mul(right, self.floordiv(left, right)))

    def floordiv(self, left: Expr, right: Expr) -> Expr:
        """`left // right` for a divisor that is not zero."""
        key = (left, right)
        found = self._quotients.get(key)
        if found is None:
            divisor = right.constant
            if divisor == 0:
                raise ZeroDivisionError("integer division or modulo by zero")
            if divisor is not None:
                found = self._divide_by_constant(left, divisor)
            else:
                found = self._divide_by_expression(left, right)
            self._quotients[key] = found
        return found

    def _divide_by_constant(self, left: Expr, divisor: int) -> Expr:
        if divisor < 0:  # p // -d = -p // d
            left, divisor = self.negate(left), -divisor
        whole: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, factor in left.terms:  # (d*q + r) // d = q + r // d
            whole[monomial], rest[monomial] = divmod(factor, divisor)
        offset = rest.pop((), 0)
        common = math.gcd(divisor, *rest.values())
        if common > 1:  # (g*p + k) // (g*d) = (p + k//g) // d
            rest = {monomial: factor // common for monomial, factor in rest.items()}
            offset, divisor = offset // common, divisor // common
        if not any(rest.values()):
            return self.polynomial(whole)  # 0 <= offset < divisor
        if divisor == 1:
            return self.add(self.polynomial(whole), self.add(self.polynomial(rest), self.integer(offset)))
        inner = self._inner_quotient(rest)
        if inner is not None:  # (p//a + k) // b = (p + k*a) // (a*b) for a, b > 0
            dividend, by = inner
            moved = self.add(dividend, self.integer(offset * by))
            return self.add(self.polynomial(whole), self.floordiv(moved, self.integer(by * divisor)))
        if offset:
            rest[()] = offset
        atom = self.opaque("floordiv", self.polynomial(rest), self.integer(divisor))
        return self.add(self.polynomial(whole), atom)

    def _inner_quotient(self, terms: dict[Monomial, int]) -> tuple[Expr, int] | None:
        """`(p, a)` if the sum is exactly `p // a` for a positive constant."""
        live = [(monomial, factor) for monomial, factor in terms.items() if factor]
        if len(live) != 1 or live[0][1] != 1 or len(live[0][0]) != 1:
            return None
        atom = self.atoms[live[0][0][0]]
        if atom.kind != "floordiv":
            return None
        by = atom.args[1].constant
        return (atom.args[0], by) if by is not None and by > 0 else None

    def _divide_by_expression(self, left: Expr, right: Expr) -> Expr:
        if len(right.terms) == 1:
            quotient, rest = self._divide_by_monomial(left, right)
        else:  # a partial quotient of a sum has no canonical choice: all or nothing
            exact = self.exact_quotient(left, right)
            if exact is not None:
                return exact
            quotient, rest = self.zero, left
        if rest is self.zero:
            return quotient
        rest, right = self._without_common_factor(rest, right)
        if right.constant is not None:
            return self.add(quotient, self.floordiv(rest, right))
        if right.terms[-1][1] < 0:  # p // -d = -p // d
            rest, right = self.negate(rest), self.negate(right)
        return self.add(quotient, self.opaque("floordiv", rest, right))

    def _divide_by_monomial(self, left: Expr, right: Expr) -> tuple[Expr, Expr]:
        """`(q, r)`: the terms that `right` divides, divided, and the others."""
        by, factor = right.terms[0]
        quotient: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, value in left.terms:
            reduced = _monomial_quotient(monomial, by)
            if reduced is None or value % factor:
                rest[monomial] = value
            else:
                quotient[reduced] = value // factor
        return self.polynomial(quotient), self.polynomial(rest)

    def exact_quotient(self, left: Expr, right: Expr) -> Expr | None:
        """`q` with `left = q * right` as polynomials, if there is one of at most 64 terms."""
        lead, factor = max(right.terms, key=_degree_order)
        quotient: dict[Monomial, int] = {}
        rest = left
        while rest is not self.zero:
            monomial, value = max(rest.terms, key=_degree_order)
            reduced = _monomial_quotient(monomial, lead)
            if reduced is None or value % factor or len(quotient) == 64:
                return None
            quotient[reduced] = value // factor
            rest = self.sub(rest, self.mul(self.polynomial({reduced: value // factor}), right))
        return self.polynomial(quotient)

    def _without_common_factor(self, left: Expr, right: Expr) -> tuple[Expr, Expr]:
        """Cancel the integer and the monomial that divide every term of both (they are not zero, as `right` is not)."""
        terms = left.terms + right.terms
        content = math.gcd(*(factor for _, factor in terms))
        common = list(right.terms[0][0])
        for monomial, _ in terms:
            remaining = list(monomial)
            kept = []
            for number in common:
                if number in remaining:
                    remaining.remove(number)
                    kept.append(number)
            common = kept
        if content == 1 and not common:
            return left, right

        def reduced(operand: Expr) -> Expr:
            return self.polynomial(
                {_monomial_quotient(monomial, tuple(common)) or (): f // content for monomial, f in operand.terms}
            )

        return reduced(left), reduced(right)

    def minimum(self, *operands: Expr) -> Expr:
        return self._extreme("min", operands)

    def maximum(self, *operands: Expr) -> Expr:
        return self._extreme("max", operands)

    def _extreme(self, kind: str, operands: tuple[Expr, ...]) -> Expr:
        flat: list[Expr] = []
        for operand in operands:
            flat.extend(operand.args if operand.kind == kind else (operand,))
        kept: list[Expr] = []
        for candidate in flat:  # of p and p + k one always wins
            for index, other in enumerate(kept):
                distance = self.sub(candidate, other).constant
                if distance is not None:
                    if (distance > 0) == (kind == "max"):
                        kept[index] = candidate
                    break
            else:
                kept.append(candidate)
        if len(kept) == 1:
            return kept[0]
        return self.opaque(kind, *sorted(dict.fromkeys(kept), key=lambda operand: operand.number))

    # booleans
    def eq(self, left: Expr, right: Expr) -> Expr:
        return self.eq0(self.sub(left, right))

    def ge(self, left: Expr, right: Expr) -> Expr:
        return self.ge0(self.sub(left, right))

    def lt(self, left: Expr, right: Expr) -> Expr:
        return self.ge0(self.add(self.sub(right, left), self.minus_one))

    def eq0(self, operand: Expr) -> Expr:
        """`operand == 0`, divided by its content, leading coefficient positive."""
        value = operand.constant
        if value is not None:
            return self.boolean(value == 0)
        offset, content = self._offset_and_content(operand)
        if offset % content:
            return self.false
        sign = 1 if operand.terms[-1][1] > 0 else -1
        if content * sign != 1:
            operand = self.polynomial({monomial: factor // (content * sign) for monomial, factor in operand.terms})
        return self.opaque("eq0", operand)

    def ge0(self, operand: Expr) -> Expr:
        """`operand >= 0`, divided by its content; the constant rounds down, as the rest is an integer."""
        value = operand.constant
        if value is not None:
            return self.boolean(value >= 0)
        _, content = self._offset_and_content(operand)
        if content != 1:
            operand = self.polynomial({monomial: factor // content for monomial, factor in operand.terms})
        inner = self._bounded_quotient(operand)
        return self.ge0(inner) if inner is not None else self.opaque("ge0", operand)

    def _bounded_quotient(self, operand: Expr) -> Expr | None:
        """q for which `operand >= 0` is `q >= 0`, where it is `p // d + k` or `k - p // d`, d a positive constant."""
        monomial, factor = operand.terms[-1]
        if len(operand.terms) > 2 or len(monomial) != 1 or factor not in (1, -1) or len(operand.terms[0][0]) > 1:
            return None
        offset = 0 if len(operand.terms) == 1 else operand.terms[0][1]
        if len(operand.terms) == 2 and operand.terms[0][0]:
            return None
        atom = self.atoms[monomial[0]]
        if atom.kind != "floordiv" or (atom.args[1].constant or 0) <= 0:
            return None
        dividend: Expr = atom.args[0]
        divisor = atom.args[1].constant
        if factor == 1:  # p // d >= -k  is  p >= -k * d
            return self.add(dividend, self.integer(offset * divisor))
        return self.sub(self.integer(offset * divisor + divisor - 1), dividend)  # p // d <= k  is  p < (k + 1) * d

    @staticmethod
    def _offset_and_content(operand: Expr) -> tuple[int, int]:
        terms = operand.terms
        offset = 0 if terms[0][0] else terms[0][1]
        return offset, math.gcd(*(factor for monomial, factor in terms if monomial))

    def logical_not(self, operand: Expr) -> Expr:
        kind = operand.kind
        if kind == "ge0":  # not p >= 0  is  -p - 1 >= 0
            return self.ge0(self.add(self.negate(operand.args[0]), self.minus_one))
        if kind in ("true", "false"):
            return self.boolean(kind == "false")
        if kind == "not":
            inner: Expr = operand.args[0]
            return inner
        if kind == "and":
            return self.logical_or(*(self.logical_not(arg) for arg in operand.args))
        if kind == "or":
            return self.logical_and(*(self.logical_not(arg) for arg in operand.args))
        return self.opaque("not", operand)

    def logical_and(self, *operands: Expr) -> Expr:
        return self._connective("and", operands, self.true, self.false)

    def logical_or(self, *operands: Expr) -> Expr:
        return self._connective("or", operands, self.false, self.true)

    def _connective(self, kind: str, operands: tuple[Expr, ...], neutral: Expr, absorbing: Expr) -> Expr:
        kept: dict[Expr, None] = {}
        part: Expr
        for operand in operands:
            for part in operand.args if operand.kind == kind else (operand,):
                if part is absorbing:
                    return absorbing
                if part is not neutral:
                    kept[part] = None
        if any(self.logical_not(part) in kept for part in kept if part.kind not in ("and", "or")):
            return absorbing  # b and not b; b or not b
        if len(kept) < 2:
            return next(iter(kept), neutral)
        return self.opaque(kind, *sorted(kept, key=lambda part: part.number))

    def choose(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """`yes if condition else no`."""
        if yes is no:
            return yes
        decided = condition.constant
        if decided is not None:
            return yes if decided else no
        if yes.type is bool:
            return self.logical_or(self.logical_and(condition, yes), self.logical_and(self.logical_not(condition), no))
        return self.opaque("ite" if yes.type is int else "fite", condition, yes, no)

    # values
    def rebuild(self, expr: Expr, of: Callable[[Expr], Expr]) -> Expr:
        """`expr` made anew with `of(operand)` for each operand (for a polynomial: for each atom)."""
        kind = expr.kind
        if kind == "poly":
            parts: dict[Monomial, int] = {}
            for monomial, factor in expr.terms:
                product = self.product(of(self.atoms[number]) for number in monomial)
                for other, value in product.terms:
                    parts[other] = parts.get(other, 0) + value * factor
            return self.polynomial(parts)
        if kind in ("symbol", "true", "false", "constant"):
            return expr
        args = tuple(of(arg) if isinstance(arg, Expr) else arg for arg in expr.args)
        if args == expr.args:
            return expr
        return self.apply(kind, *args)

    def apply(self, kind: str, *args: Any) -> Expr:
        """The operator `kind` through its rewrites."""
        builder = _BUILDERS.get(kind)
        return self.opaque(kind, *args) if builder is None else builder(self, *args)

    def evaluate(self, expr: Expr, values: Mapping[Expr, Any]) -> Any:
        """The value of `expr` where its symbols have these values, by Python's own arithmetic."""
        kind = expr.kind
        if kind == "symbol":
            return values[expr]
        if kind == "poly":
            total = 0
            for monomial, factor in expr.terms:
                for number in monomial:
                    factor *= self.evaluate(self.atoms[number], values)
                total += factor
            return total
        if kind in ("true", "false", "constant"):
            return expr.constant
        if kind in ("ite", "fite"):
            condition, yes, no = expr.args
            return self.evaluate(yes if self.evaluate(condition, values) else no, values)
        if kind in ("and", "or"):  # a later operand may only have a value where the earlier ones allow it
            stop = kind == "or"
            undefined: ZeroDivisionError | None = None
            for arg in expr.args:
                try:
                    if self.evaluate(arg, values) is stop:
                        return stop
                except ZeroDivisionError as error:
                    undefined = error
            if undefined is not None:
                raise undefined
            return not stop
        return OPAQUE[kind][1](*(self.evaluate(arg, values) if isinstance(arg, Expr) else arg for arg in expr.args))


def _degree_order(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    """Orders terms by degree first, compatibly with multiplication."""
    return len(term[0]), term[0]


def _monomial_quotient(monomial: Monomial, by: Monomial) -> Monomial | None:
    """The monomial without the factors of `by`, None where it lacks one."""
    if not by:
        return monomial
    remaining = list(monomial)
    for number in by:
        if number not in remaining:
            return None
        remaining.remove(number)
    return tuple(remaining)


_BUILDERS: dict[str, Callable[..., Expr]] = {
    "floordiv": Algebra.floordiv,
    "min": Algebra.minimum,
    "max": Algebra.maximum,
    "pow": Algebra.pow,
    "ite": Algebra.choose,
    "fite": Algebra.choose,
    "eq0": Algebra.eq0,
    "ge0": Algebra.ge0,
    "not": Algebra.logical_not,
    "and": Algebra.logical_and,
    "or": Algebra.logical_or,
}
