"""Weighted minimax polynomials (Remez exchange), coefficients rounded to the working precision one after the other.

This is where the coefficients in `stator.emit.cpu.math_*` come from: `python tests/emit_math/fit.py` prints them all.
Rounding the lowest coefficient first and fitting the rest again lets the later ones absorb its error. exp's own
coefficients are Sleef's, whose bits it gives.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np

mp.mp.prec = 200
Function = Callable[[mp.mpf], mp.mpf]


def remez(
    target: Function, weight: Function, low: float, high: float, powers: list[int]
) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients c_k for `powers` that make max |weight * (target - sum c_k x^p_k)| least, and that maximum."""
    count = len(powers) + 1
    middle, half = mp.mpf(low + high) / 2, mp.mpf(high - low) / 2
    nodes = [middle - half * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / count) for i in range(count)]
    grid = [middle - half * mp.cos(mp.pi * i / 600) for i in range(601)]
    goals, weights = [target(x) for x in grid], [weight(x) for x in grid]
    best: tuple[list[mp.mpf], mp.mpf] = ([], mp.inf)
    for _ in range(12):
        system, right = mp.matrix(count, count), mp.matrix(count, 1)
        for row, x in enumerate(nodes):
            scale = weight(x)
            for column, power in enumerate(powers):
                system[row, column] = scale * x**power
            system[row, count - 1] = (-1) ** row
            right[row] = scale * target(x)
        solved = mp.lu_solve(system, right)
        coefficients = [solved[i] for i in range(count - 1)]
        errors = [
            w * (g - sum(c * x**p for c, p in zip(coefficients, powers, strict=True)))
            for x, g, w in zip(grid, goals, weights, strict=True)
        ]
        worst = max(abs(e) for e in errors)
        if worst < best[1]:
            best = (coefficients, worst)
        runs: list[int] = []
        for i, error in enumerate(errors):
            if runs and (errors[runs[-1]] > 0) == (error > 0):
                if abs(error) > abs(errors[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > count:
            runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
        if len(runs) < count:
            break
        nodes = [grid[i] for i in runs]
    return best


def rounded(target: Function, weight: Function, low: float, high: float, powers: list[int], kind: type) -> list[float]:
    """As `remez`, with every coefficient rounded on its own: enough where they fall off quickly."""
    return [float(kind(float(c))) for c in remez(target, weight, low, high, powers)[0]]


def refitted(target: Function, weight: Function, low: float, high: float, powers: list[int], kind: type) -> list[float]:
    """As `remez`, with the lowest coefficient rounded and the others fitted again, and so on upwards."""
    fixed: list[float] = []
    for index in range(len(powers)):
        known = list(zip(fixed, powers, strict=False))
        found, _ = remez(
            lambda x, known=known: target(x) - sum(mp.mpf(c) * x**p for c, p in known),
            weight,
            low,
            high,
            powers[index:],
        )
        fixed.append(float(kind(float(found[0]))))
    return fixed


@dataclass(frozen=True)
class Fit:
    """One table of coefficients: where it stands, what it approximates in x with which weight, and where."""

    place: str
    target: Function
    weight: Function
    low: float
    high: float
    count: int
    kind: type = np.float32
    method: Callable[..., list[float]] = refitted

    def coefficients(self) -> list[float]:
        return self.method(self.target, self.weight, self.low, self.high, list(range(self.count)), self.kind)

    def error(self, coefficients: list[float]) -> float:
        grid = [self.low + (self.high - self.low) * mp.mpf(i) / 397 for i in range(398)]
        difference = lambda x: self.target(x) - sum(mp.mpf(c) * x**k for k, c in enumerate(coefficients))
        return float(max(abs(self.weight(x) * difference(x)) for x in grid))


def series(function: Function, order: int) -> Function:
    """`function(x)` less its Taylor polynomial below x**order, over x**order, safe at zero."""
    terms = mp.taylor(function, 0, order + 14)

    def value(x: mp.mpf) -> mp.mpf:
        if abs(x) < mp.mpf("1e-3"):
            return sum(c * x**k for k, c in enumerate(terms[order:]))
        return (function(x) - sum(c * x**k for k, c in enumerate(terms[:order]))) / x**order

    return value


def square_series(function: Function, order: int) -> Function:
    """For an odd or even `function`: q(s) with function(x) = (Taylor below order) + x**order * q(x*x)."""
    inner = series(function, order)
    return lambda s: inner(mp.sqrt(s))


LN2 = mp.log(2)
HALF = float(LN2 / 2) * 1.001


ROOT_PI = mp.sqrt(mp.pi)


def relative_to(function: Function, power: int) -> Function:
    """The weight of an error in q where function(x) = ... + x**power q(x) and the result's own size counts."""
    return lambda x: x**power / function(x) if x else mp.mpf(0)


def erfc_scaled(t: mp.mpf) -> mp.mpf:
    """(1 + 2a) exp(a*a) erfc(a) at a = 4 (1 + t) / (1 - t)."""
    a = 4 * (1 + t) / (1 - t)
    return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)


def erfinv_centre(w: mp.mpf) -> mp.mpf:
    x = mp.sqrt(1 - mp.exp(-w)) if w else mp.mpf(0)
    return mp.erfinv(x) / x if x else ROOT_PI / 2


def erfinv_tail(t: mp.mpf) -> mp.mpf:
    """erfinv(x) / x at -log(1 - x*x) = (3.2 + t)**2, by Newton's method on erfc, which keeps 1 - x."""
    w = (mp.mpf(3.2) + t) ** 2
    x = mp.sqrt(1 - mp.exp(-w))
    rest, y = mp.exp(-w) / (1 + x), mp.sqrt(w)
    for _ in range(60):
        difference = mp.erfc(y) - rest
        y += difference * ROOT_PI / 2 * mp.exp(y * y)
        if abs(difference) < rest * mp.mpf(10) ** -30:
            break
    return y / x


def erf_excess(s: mp.mpf) -> mp.mpf:
    return mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1 if s else 2 / ROOT_PI - 1


def log_erfc(v: mp.mpf) -> mp.mpf:
    return mp.log(mp.erfc(1 + 5 * v))


LOG_REST = series(mp.log1p, 3)
LOG2_REST = series(lambda x: mp.log1p(x) / LN2, 1)
EVEN: Function = lambda s: s
FLAT: Function = lambda s: mp.mpf(1)

FITS = [
    Fit("math_exp.SINGLE.expm1", series(mp.exp, 2), relative_to(mp.expm1, 2), -HALF, HALF, 6),
    Fit("math_exp.EXP2", series(lambda r: mp.exp(r * LN2), 1), EVEN, -0.505, 0.505, 6),
    Fit("math_exp.TANH", square_series(mp.tanh, 3), EVEN, 0.0, 0.40, 5),
    Fit("math_exp.SINH", square_series(mp.sinh, 3), EVEN, 0.0, 1.01, 4),
    Fit(
        "math_exp.DOUBLE_.expm1[1:]", series(mp.exp, 3), relative_to(mp.expm1, 3), -HALF, HALF, 10, np.float64, rounded
    ),
    Fit("math_log.LOG", LOG_REST, relative_to(mp.log1p, 3), -0.2929, 0.4143, 9),
    Fit("math_log.LOG_75", LOG_REST, relative_to(mp.log1p, 3), -0.251, 0.501, 9),
    Fit("math_log.LOG2_DOUBLE", LOG2_REST, EVEN, -0.251, 0.501, 15, np.float64),
    Fit("math_trig.SIN", square_series(mp.sin, 3), EVEN, 0.0, 2.53, 5),
    Fit("math_trig.TAN", square_series(mp.tan, 3), EVEN, 0.0, 0.63, 7),
    Fit("math_inverse.ASIN", square_series(mp.asin, 3), EVEN, 0.0, 0.2501, 5),
    Fit("math_inverse.ATAN", square_series(mp.atan, 3), EVEN, 0.0, 1.0, 8),
    Fit("math_special.ERF_SMALL", erf_excess, FLAT, 0.0, 0.87, 7),
    Fit("math_special.ERF_LARGE", lambda a: mp.log(mp.erfc(a)) / a, lambda a: a * mp.erfc(a) / mp.erf(a), 0.9, 4.0, 8),
    Fit("math_special.ERF_SMALL_DOUBLE", erf_excess, FLAT, 0.0, 1.01, 13, np.float64, rounded),
    Fit(
        "math_special.ERF_LARGE_DOUBLE", log_erfc, lambda v: mp.erfc(1 + 5 * v) / mp.erf(1 + 5 * v), -0.0001, 1.0, 21,
        np.float64, rounded,
    ),
    Fit("math_special.ERFC", erfc_scaled, lambda t: 1 / erfc_scaled(t), -1.0, 0.4401, 12, method=rounded),
    Fit("math_special.ERFINV_CENTRE", erfinv_centre, lambda w: 1 / erfinv_centre(w), 0.0, 5.0, 12, method=rounded),
    Fit("math_special.ERFINV_TAIL", erfinv_tail, lambda t: 1 / erfinv_tail(t), -0.97, 1.0, 11, method=rounded),
]  # fmt: skip


def in_source(place: str) -> list[float]:
    """The table as it stands in the source."""
    module, expression = place.split(".", 1)
    loaded = importlib.import_module(f"stator.emit.cpu.{module}")
    return list(eval(expression, vars(loaded)))


if __name__ == "__main__":
    import sys

    for row in FITS:
        if not sys.argv[1:] or row.place in sys.argv[1:]:
            found = row.coefficients()
            print(f"{row.place}: error 2^{float(mp.log(row.error(found), 2)):.2f}")
            print("    " + ", ".join(repr(c) for c in found))
