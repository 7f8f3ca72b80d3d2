"""Weighted minimax polynomials (Remez exchange), coefficients rounded to the working precision one after the other.

This is where the coefficients in `stator.emit.cpu.math_*` come from: `python tests/emit_math/fit.py` prints them all.
Rounding the lowest coefficient first and fitting the rest again lets the later ones absorb its error.
"""

from __future__ import annotations

from collections.abc import Callable

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


def fit(
    target: Function, weight: Function, low: float, high: float, powers: list[int], kind: type = np.float32
) -> tuple[list[float], float]:
    """As `remez`, with every coefficient rounded to `kind`."""
    fixed: list[float] = []
    error = mp.mpf(0)
    for index in range(len(powers)):
        known = list(zip(fixed, powers, strict=False))
        found, error = remez(
            lambda x, known=known: target(x) - sum(mp.mpf(c) * x**p for c, p in known),
            weight,
            low,
            high,
            powers[index:],
        )
        fixed.append(float(kind(float(found[0]))))
    grid = [low + (high - low) * mp.mpf(i) / 997 for i in range(998)]
    error = max(
        abs(weight(x) * (target(x) - sum(mp.mpf(c) * x**p for c, p in zip(fixed, powers, strict=True)))) for x in grid
    )
    return fixed, float(error)


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


def log_core(f: mp.mpf) -> mp.mpf:
    return mp.log1p(f)


FITS: dict[str, tuple[Function, Function, float, float, list[int], type]] = {
    # exp(r) = 1 + r + r^2 q(r); the error counts as r^2 times q's
    "exp": (series(mp.exp, 2), lambda r: r * r * mp.exp(-r), -HALF, HALF, list(range(5)), np.float32),
    # expm1(r) = r + r^2 q(r), relative to expm1
    "expm1": (
        series(mp.exp, 2),
        lambda r: r * r / mp.expm1(r) if r else r,
        -HALF,
        HALF,
        list(range(6)),
        np.float32,
    ),
    "exp2": (
        series(lambda r: mp.exp(r * LN2), 1),
        lambda r: r,
        -0.505,
        0.505,
        list(range(6)),
        np.float32,
    ),
    # log1p(f) = f - f^2/2 + f^3 q(f), relative to log1p
    "log": (series(log_core, 3), lambda f: f**3 / mp.log1p(f) if f else f, -0.2929, 0.4143, list(range(9)), np.float32),
    # sin(r) = r + r^3 q(r^2)
    "sin": (square_series(mp.sin, 3), lambda s: s, 0.0, 2.53, list(range(5)), np.float32),
    "tan": (square_series(mp.tan, 3), lambda s: s, 0.0, 0.63, list(range(7)), np.float32),
    "log2_f64": (
        series(lambda f: mp.log1p(f) / LN2, 1),
        lambda f: f,
        -0.2929,
        0.4143,
        list(range(15)),
        np.float64,
    ),
    # erf(a) = a + a q(a^2) below one; above it ln(1 - erf(a)) is a polynomial in a
    "erf_small": (
        lambda s: mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1 if s else 2 / mp.sqrt(mp.pi) - 1,
        lambda s: mp.mpf(1),
        0.0,
        0.87,
        list(range(7)),
        np.float32,
    ),
    "erf_large": (
        lambda a: mp.log(mp.erfc(a)) / a,
        lambda a: a * mp.erfc(a) / mp.erf(a),
        0.9,
        4.0,
        list(range(8)),
        np.float32,
    ),
    "tanh_small": (square_series(mp.tanh, 3), lambda s: s, 0.0, 0.40, list(range(5)), np.float32),
    "asin": (square_series(mp.asin, 3), lambda s: s, 0.0, 0.2501, list(range(5)), np.float32),
    "log75": (series(log_core, 3), lambda f: f**3 / mp.log1p(f) if f else f, -0.251, 0.501, list(range(9)), np.float32),
    "sinh": (square_series(mp.sinh, 3), lambda s: s, 0.0, 1.01, list(range(4)), np.float32),
    "log2_f64_75": (
        series(lambda f: mp.log1p(f) / LN2, 1),
        lambda f: f,
        -0.251,
        0.501,
        list(range(15)),
        np.float64,
    ),
    "atan": (square_series(mp.atan, 3), lambda s: s, 0.0, 1.0, list(range(8)), np.float32),
    "exp_f64": (series(mp.exp, 2), lambda r: r * r * mp.exp(-r), -HALF, HALF, list(range(10)), np.float64),
    "expm1_f64": (
        series(mp.exp, 2),
        lambda r: r * r / mp.expm1(r) if r else r,
        -HALF,
        HALF,
        list(range(11)),
        np.float64,
    ),
}


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:] or FITS:
        coefficients, worst = fit(*FITS[name])
        print(f"{name}: error 2^{float(mp.log(worst, 2)):.2f}")
        print("    " + ", ".join(repr(c) for c in coefficients))
