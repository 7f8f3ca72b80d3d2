"""asin, acos and atan of float lanes: odd polynomials on the half of the range nearer to zero, and identities beyond.

Coefficients come from tests/emit_math/fit.py. Both halves share one polynomial, whose argument is selected before it.
"""

from __future__ import annotations

from stator.emit.cpu.math_ir import Lanes, Value

# f(s) = s + s**3 q(s*s)
ASIN = (
    0.16666753590106964, 0.07495249062776566, 0.04547666013240814, 0.02414812333881855, 0.042219821363687515,
)  # fmt: skip
ATAN = (
    -0.3333316743373871, 0.1999414563179016, -0.142142653465271, 0.10679126530885696, -0.07580916583538055,
    0.04355696216225624, -0.01658298447728157, 0.0029749725945293903,
)  # fmt: skip
HALF_PI = (1.5707963705062866, -4.371138828673793e-08)


def _arcsine(build: Lanes, x: Value) -> tuple[Value, Value, Value]:
    """Whether |x| > 1/2, then s and asin(s) - s, where s is sqrt((1 - |x|) / 2) for those and |x| for the others."""
    magnitude = build.abs(x)
    large = build.compare(">", magnitude, build.constant(0.5))
    halved = build.fma(magnitude, build.constant(-0.5), build.constant(0.5))
    square = build.select(large, halved, build.mul(x, x))
    s = build.select(large, build.sqrt(halved), magnitude)
    return large, s, build.mul(build.mul(s, square), build.polynomial(square, ASIN))


def asin(build: Lanes, x: Value) -> Value:
    large, s, rest = _arcsine(build, x)
    twice, quarter = build.add(s, s), build.constant(HALF_PI[0])
    difference = build.sub(quarter, twice)
    lost = build.sub(build.sub(quarter, difference), twice)
    lost = build.add(lost, build.fma(rest, build.constant(-2.0), build.constant(HALF_PI[1])))
    beyond = build.add(difference, lost)
    return build.copysign(build.select(large, beyond, build.add(s, rest)), x)


def acos(build: Lanes, x: Value) -> Value:
    large, s, rest = _arcsine(build, x)
    negative = build.compare("<", x, build.constant(0.0))
    zero = build.constant(0.0)
    twice_rest, twice = build.add(rest, rest), build.add(s, s)
    right = build.add(twice, twice_rest)
    low = build.constant(2 * HALF_PI[1])
    left = build.add(build.sub(build.constant(2 * HALF_PI[0]), twice), build.sub(low, twice_rest))
    signed_s, signed_rest = build.copysign(s, x), build.flip_sign(rest, build.sign_bit(x))
    middle = build.sub(
        build.constant(HALF_PI[0]), build.sub(build.add(signed_s, signed_rest), build.constant(HALF_PI[1]))
    )
    result = build.select(large, build.select(negative, left, right), middle)
    return build.add(result, zero)


def atan(build: Lanes, x: Value) -> Value:
    magnitude = build.abs(x)
    one = build.constant(1.0)
    large = build.compare(">", magnitude, one)
    s = build.select(large, build.div(build.constant(-1.0), magnitude), magnitude)
    square = build.mul(s, s)
    rest = build.mul(build.mul(s, square), build.polynomial(square, ATAN))
    offset = build.select(large, build.constant(HALF_PI[0]), build.constant(0.0))
    offset_low = build.select(large, build.constant(HALF_PI[1]), build.constant(0.0))
    return build.copysign(build.add(offset, build.add(s, build.add(rest, offset_low))), x)
