"""Expressions as Python text: for guards people read, messages, and generated code.

Contract. The text is valid Python that computes the expression, given names for its symbols (and `math`, for the
float functions). Comparisons are split so that both sides are sums with positive coefficients, and remainders, which
the algebra stores as `p - d * (p // d)`, are recognised.
"""

from __future__ import annotations

from collections.abc import Callable

from stator.sizes.expression import MATH_FUNCTIONS, Algebra, Expr, Monomial

_SUM, _PRODUCT, _ATOM = 1, 2, 3  # how tightly a text binds

# kind -> form; every operand stands in brackets of its own where it needs them
FORMS: dict[str, tuple[str, int]] = {
    "pow": ("{} ** {}", _PRODUCT),
    "ite": ("({1} if {0} else {2})", _ATOM),
    "fite": ("({1} if {0} else {2})", _ATOM),
    "floor": ("math.floor({})", _ATOM),
    "ceil": ("math.ceil({})", _ATOM),
    "trunc": ("math.trunc({})", _ATOM),
    "round": ("round({})", _ATOM),
    "lshift": ("({} << {})", _ATOM),
    "rshift": ("({} >> {})", _ATOM),
    "bit_and": ("({} & {})", _ATOM),
    "bit_or": ("({} | {})", _ATOM),
    "bit_xor": ("({} ^ {})", _ATOM),
    "to_float": ("float({})", _ATOM),
    "truediv": ("({} / {})", _ATOM),
    "fadd": ("({} + {})", _ATOM),
    "fsub": ("({} - {})", _ATOM),
    "fmul": ("({} * {})", _ATOM),
    "fdiv": ("({} / {})", _ATOM),
    "fmod": ("({} % {})", _ATOM),
    "fpow": ("({} ** {})", _ATOM),
    "fmin": ("min({}, {})", _ATOM),
    "fmax": ("max({}, {})", _ATOM),
    "fneg": ("(-{})", _ATOM),
    "fabs": ("abs({})", _ATOM),
    "fround": ("round({}, {})", _ATOM),
    "feq": ("({} == {})", _ATOM),
    "flt": ("({} < {})", _ATOM),
    "fle": ("({} <= {})", _ATOM),
    "is_integer": ("({}).is_integer()", _ATOM),
    "not": ("(not {})", _ATOM),
    **{name: ("math." + name + "({})", _ATOM) for name in MATH_FUNCTIONS},
}

OPERATORS = {"eq": "==", "ge": ">=", "le": "<=", "lt": "<"}
NameOf = Callable[[Expr], str]


def text_of(algebra: Algebra, expr: Expr, name_of: NameOf = lambda symbol: symbol.name) -> str:
    """Python text of `expr`; `name_of` names its symbols."""
    return _Printer(algebra, name_of).expression(expr)[0]


def sides(algebra: Algebra, comparison: Expr) -> tuple[Expr, Expr, str]:
    """`(p, q, operator)` for an eq0 or ge0: the constant alone on the right where it can be, no negative terms."""
    operand: Expr = comparison.args[0]
    offset = operand.terms[0][1] if not operand.terms[0][0] else 0
    variable = algebra.add(operand, algebra.integer(-offset))
    rest, remainders = take_remainders(algebra, variable)
    signs = {factor > 0 for _, factor in rest.terms} | {times > 0 for times, _, _ in remainders}
    if signs == {False}:
        return algebra.negate(variable), algebra.integer(offset), "eq" if comparison.kind == "eq0" else "le"
    if signs == {True} or remainders:
        return variable, algebra.integer(-offset), "eq" if comparison.kind == "eq0" else "ge"
    positive = algebra.polynomial({monomial: factor for monomial, factor in operand.terms if factor > 0})
    negative = algebra.polynomial({monomial: -factor for monomial, factor in operand.terms if factor < 0})
    if comparison.kind == "eq0":  # the older symbol on the left
        return (positive, negative, "eq") if variable.terms[0][1] > 0 else (negative, positive, "eq")
    if offset == -1:  # p >= q + 1
        return algebra.sub(negative, algebra.one), positive, "lt"
    return positive, negative, "ge"


def take_remainders(algebra: Algebra, operand: Expr) -> tuple[Expr, list[tuple[int, Expr, Expr]]]:
    """`(rest, [(k, p, d), ...])` with `operand = rest + sum of k * (p % d)`, as far as remainders are visible."""
    found: list[tuple[int, Expr, Expr]] = []
    for monomial, _ in operand.terms:
        for number in monomial:
            atom = algebra.atoms[number]
            if atom.kind != "floordiv":
                continue
            dividend, divisor = atom.args
            remainder = algebra.mod(dividend, divisor)
            times = _times_contained(operand, remainder)
            if times:
                operand = algebra.sub(operand, algebra.scale(remainder, times))
                found.append((times, dividend, divisor))
    return operand, found


def _times_contained(operand: Expr, part: Expr) -> int:
    """k, where every term of `k * part` is a term of `operand`; 0 if none."""
    terms = dict(operand.terms)
    (monomial, factor), *_ = part.terms
    times, rest = divmod(terms.get(monomial, 0), factor)
    if rest or not times:
        return 0
    return times if all(terms.get(other) == times * value for other, value in part.terms) else 0


class _Printer:
    def __init__(self, algebra: Algebra, name_of: NameOf) -> None:
        self.algebra = algebra
        self.name_of = name_of

    def expression(self, expr: Expr) -> tuple[str, int]:
        """Text, and how tightly it binds."""
        kind = expr.kind
        if kind == "symbol":
            return self.name_of(expr), _ATOM
        if kind == "poly":
            return self.sum(expr)
        if kind in ("true", "false", "constant"):
            value = expr.constant
            text = repr(value) if value == value and abs(value) != float("inf") else f"float('{value}')"
            return text, _ATOM if not text.startswith("-") else _SUM
        if kind == "floordiv":
            return f"{self.bound(expr.args[0], _PRODUCT)} // {self.bound(expr.args[1], _ATOM)}", _PRODUCT
        if kind in ("min", "max"):
            return f"{kind}({', '.join(self.bound(arg, 0) for arg in expr.args)})", _ATOM
        if kind in ("and", "or"):
            return "(" + f" {kind} ".join(self.bound(arg, _ATOM) for arg in expr.args) + ")", _ATOM
        if kind in ("eq0", "ge0"):
            return self.comparison(expr), _SUM
        if kind == "not" and expr.args[0].kind == "eq0":
            return self.comparison(expr.args[0]).replace(" == ", " != ", 1), _SUM
        form, binding = FORMS[kind]
        return form.format(*(self.bound(arg, _ATOM) if isinstance(arg, Expr) else repr(arg) for arg in expr.args)), (
            binding
        )

    def bound(self, expr: Expr, at_least: int) -> str:
        text, binding = self.expression(expr)
        return text if binding >= at_least else f"({text})"

    def sum(self, expr: Expr) -> tuple[str, int]:
        rest, remainders = take_remainders(self.algebra, expr)
        parts = [(factor, self.product(monomial)) for monomial, factor in rest.terms if monomial]
        for times, dividend, divisor in remainders:
            parts.append((times, f"({self.bound(dividend, _PRODUCT)} % {self.bound(divisor, _ATOM)})"))
        if rest.terms and not rest.terms[0][0]:
            parts.append((rest.terms[0][1], ""))
        parts.sort(key=lambda part: part[0] < 0)
        text = ""
        for factor, product in parts:
            size = str(abs(factor)) if not product else product if abs(factor) == 1 else f"{abs(factor)}*{product}"
            sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
            text += sign + size
        if not parts:
            return "0", _ATOM
        if len(parts) > 1 or parts[0][0] < 0:
            return text, _SUM
        if text.startswith("(") and remainders:
            return text[1:-1], _PRODUCT
        return text, _ATOM if text.isidentifier() or text.isdigit() else _PRODUCT

    def product(self, monomial: Monomial) -> str:
        return "*".join(self.bound(self.algebra.atoms[number], _ATOM) for number in monomial)

    def comparison(self, expr: Expr) -> str:
        left, right, operator = sides(self.algebra, expr)
        return f"{self.expression(left)[0]} {OPERATORS[operator]} {self.expression(right)[0]}"
