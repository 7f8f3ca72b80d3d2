"""Exponentials and what is made of them, for float lanes and (exp and expm1 based ones) for double lanes.

exp of float lanes is Sleef's `exp_u10` operation by operation, written in place: ATen's vectorised kernels (sigmoid,
silu, gelu, softmax) call that function, so what is built from it here has their bits without a call. The rest is our
own.

Method: x = n ln 2 + r with n an integer, a minimax polynomial for r, and one final scaling by 2**n that rounds once, so
denormal results are right. Coefficients come from tests/emit_math/fit.py. The bounds that arguments are clamped to lie
just outside the range where the result is neither zero nor infinite, and clamping keeps NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from stator.emit.cpu.math_calls import Sleef
from stator.emit.cpu.math_ir import Lanes, Value


@dataclass(frozen=True, slots=True)
class ExpConstants:
    """What differs between the two precisions."""

    low: float  # below: exp is zero
    high: float  # above: exp is infinite
    minus_one: float  # below: expm1 is -1
    tiny: float  # below in magnitude: expm1(x), tanh(x), sinh(x) are x
    ln2_high: float  # ln 2 in two pieces
    ln2_low: float
    exp: tuple[float, ...]  # exp(r) = 1 + r + r*r*q(r)
    expm1: tuple[float, ...]  # the same, with a smaller error relative to r


LOG2_E = 1.4426950408889634
SINGLE = ExpConstants(
    low=-104.0,
    high=89.0,
    minus_one=-18.0,
    tiny=2.0**-13,
    ln2_high=0.693145751953125,
    ln2_low=1.428606765330187045e-06,
    exp=(
        0.5, 0.166666671633720397949219, 0.0416664853692054748535156, 0.00833336077630519866943359,
        0.00139304355252534151077271, 0.000198527617612853646278381,
    ),
    expm1=(
        0.5, 0.1666666716337204, 0.04166655242443085, 0.008333481848239899, 0.001392791629768908, 0.000196889610379003,
    ),
)  # fmt: skip
DOUBLE_ = ExpConstants(
    low=-746.0,
    high=710.0,
    minus_one=-38.0,
    tiny=2.0**-27,
    ln2_high=0.69314718055966295651160180568695068359375,
    ln2_low=0.28235290563031577122588448175013436025525412068e-12,
    exp=(
        0.166666666666666851703837, 0.0416666666666665047591422, 0.00833333333331652721664984,
        0.00138888888889774492207962, 0.000198412698960509205564975, 2.4801587159235472998791e-05,
        2.75572362911928827629423e-06, 2.75573911234900471893338e-07, 2.51112930892876518610661e-08,
        2.08860621107283687536341e-09,
    ),
    expm1=(
        0.5, 0.16666666666666677, 0.041666666666666574, 0.008333333333322078, 0.001388888888894304,
        0.00019841269885181897, 2.4801587197673208e-05, 2.75572450243389e-06, 2.755738728886832e-07,
        2.5108789622987984e-08, 2.087891381556535e-09,
    ),
)  # fmt: skip
EXP2 = (
    0.6931471824645996, 0.24022650718688965, 0.05550341680645943, 0.009618110954761505, 0.0013399359304457903,
    0.00015433228691108525,
)  # fmt: skip


def constants(build: Lanes) -> ExpConstants:
    return DOUBLE_ if build.double else SINGLE


def reduced(build: Lanes, x: Value) -> tuple[Value, Value, Value]:
    """n as a float, n as `integer_of` takes it, and r, for x = n ln 2 + r."""
    n, shifted, first = _nearly_reduced(build, x)
    return n, shifted, build.fma(n, build.constant(-constants(build).ln2_low), first)


def _nearly_reduced(build: Lanes, x: Value) -> tuple[Value, Value, Value]:
    """As `reduced`, with only the upper part of n ln 2 taken away, which is exact."""
    magic = build.constant(1.5 * 2.0**build.mantissa)
    moved = build.add(build.mul(x, build.constant(LOG2_E)), magic)
    n, shifted = build.sub(moved, magic), build.to_bits(moved)
    return n, shifted, build.fma(n, build.constant(-constants(build).ln2_high), x)


def exp_of_reduced(build: Lanes, r: Value) -> Value:
    coefficients = constants(build).exp
    one = build.constant(1.0)
    if build.double:
        q = build.fma(build.estrin(r, coefficients), r, build.constant(0.5))
        return build.fma(build.fma(q, r, one), r, one)
    return build.add(one, build.fma(build.mul(r, r), build.polynomial(r, coefficients), r))


def exp_clamped(build: Lanes, x: Value) -> Value:
    """exp for arguments already inside [low, high]."""
    n, shifted, r = reduced(build, x)
    return build.scale(exp_of_reduced(build, r), n, shifted)


def exp(build: Lanes, x: Value) -> Value:
    row = constants(build)
    return exp_clamped(build, build.clamp_below(build.clamp_above(x, row.high), row.low))


def exp_of_negative(build: Lanes, x: Value) -> Value:
    """exp where no argument is above zero."""
    return exp_clamped(build, build.clamp_below(x, constants(build).low))


def exp2(build: Lanes, x: Value) -> Value:
    x = build.clamp_below(build.clamp_above(x, 129.0), -151.0)
    n, shifted = build.round_product(x, 1.0)
    r = build.sub(x, n)
    q = build.polynomial(r, EXP2)
    return build.scale(build.fma(q, r, build.constant(1.0)), n, shifted)


def expm1_core(build: Lanes, x: Value) -> Value:
    """expm1 for arguments inside [minus_one, high]; loses the sign of zero."""
    row = constants(build)
    n, shifted, first = _nearly_reduced(build, x)
    r = build.fma(n, build.constant(-row.ln2_low), first)
    if build.double:
        lost = build.fma(n, build.constant(-row.ln2_low), build.sub(first, r))
        p = build.add(r, build.fma(build.mul(r, r), build.estrin(r, row.expm1), lost))
    else:
        p = build.fma(build.mul(r, r), build.polynomial(r, row.expm1), r)
    half = build.power_of_two(build.builder.sub(build.integer_of(shifted), build.integer_constant(1)))
    result = build.fma(p, half, build.sub(half, build.constant(0.5)))
    return build.add(result, result)


def keep_tiny(build: Lanes, x: Value, magnitude: Value, result: Value) -> Value:
    """x itself where f(x) = x: signs of zeros and denormals pass untouched."""
    return build.select(build.compare("<", magnitude, build.constant(constants(build).tiny)), x, result)


def expm1(build: Lanes, x: Value) -> Value:
    row = constants(build)
    result = expm1_core(build, build.clamp_below(build.clamp_above(x, row.high), row.minus_one))
    tiny = build.constant(row.tiny**2)
    return build.select(build.compare("<", build.abs(x), tiny), x, result)


def _sharpened(build: Lanes, numerator: Value, e: Value) -> Value:
    """numerator / (1 + e) for e in [0, 1], with what 1 + e rounds away brought back; 1 - e/2 stands for 1 / (1 + e)."""
    one = build.constant(1.0)
    denominator = build.add(e, one)
    quotient = build.div(numerator, denominator)
    lost = build.sub(e, build.sub(denominator, one))
    correction = build.mul(lost, build.fma(e, build.constant(-0.5), one))
    return build.fma(build.neg(quotient), correction, quotient)


def sigmoid(build: Lanes, x: Value) -> Value:
    """exp of the negative magnitude over one more than itself, so that nothing overflows and small results are kept."""
    e = exp_of_negative(build, build.neg(build.abs(x)))
    negative = build.compare("<", x, build.constant(0.0))
    return _sharpened(build, build.select(negative, e, build.constant(1.0)), e)


def silu(build: Lanes, x: Value) -> Value:
    """x sigmoid(x); x joins the product before the scaling, so that a denormal exp costs no precision."""
    bounded = build.clamp_below(build.neg(build.abs(x)), constants(build).low - 10.0)
    n, shifted, r = reduced(build, bounded)
    p = exp_of_reduced(build, r)
    negative = build.compare("<", x, build.constant(0.0))
    # As in torch silu(-inf) is NaN; x - x is zero for everything finite.
    factor = build.add(build.clamp_below(x, -2000.0), build.sub(x, x))
    numerator = build.select(negative, build.scale(build.mul(factor, p), n, shifted), x)
    result = _sharpened(build, numerator, build.scale(p, n, shifted))
    result = build.select(build.compare("==", x, build.constant(float("inf"))), x, result)
    return build.copysign(result, x)


def sigmoid_eager(build: Lanes, x: Value) -> Value:
    """ATen's own formula: 1 / (1 + exp(0 - x)), which is zero where exp overflows."""
    one = build.constant(1.0)
    return build.div(one, build.add(one, eager_exp(build, build.sub(build.constant(0.0), x))))


def silu_eager(build: Lanes, x: Value) -> Value:
    """ATen's own formula: x / (1 + exp(-x))."""
    return build.div(x, build.add(build.constant(1.0), eager_exp(build, build.neg(x))))


def eager_exp(build: Lanes, x: Value) -> Value:
    """The exp of ATen's vectorised kernels."""
    return Sleef("exp").emit(build, x) if build.double else exp(build, x)


# tanh(x) = x + x**3 q(x*x) below 0.63
TANH = (
    -0.33333277702331543, 0.1333131194114685, -0.05372777581214905, 0.020597165450453758, -0.005655287299305201,
)  # fmt: skip


def tanh(build: Lanes, x: Value) -> Value:
    """Float: an odd polynomial near zero, 1 - 2 / (exp(2|x|) + 1) elsewhere."""
    magnitude = build.abs(x)
    doubled = build.clamp_above(build.add(magnitude, magnitude), 19.0)
    _, shifted, r = reduced(build, doubled)
    power = build.power_of_two(build.integer_of(shifted))
    one = build.constant(1.0)
    denominator = build.fma(exp_of_reduced(build, r), power, one)
    large = build.sub(one, build.div(build.constant(2.0), denominator))
    square = build.mul(x, x)
    small = build.fma(build.mul(square, build.polynomial(square, TANH)), magnitude, magnitude)
    return build.copysign(build.select(build.compare("<", magnitude, build.constant(0.63)), small, large), x)


def tanh_double(build: Lanes, x: Value) -> Value:
    """e / (e + 2) for e = expm1(2|x|), with what the sum rounds away brought back into the quotient."""
    magnitude = build.abs(x)
    doubled = build.clamp_above(build.add(magnitude, magnitude), 40.0)
    e = expm1_core(build, doubled)
    two = build.constant(2.0)
    total = build.add(e, two)
    larger = build.compare(">", e, two)
    lost = build.add(build.sub(build.select(larger, e, two), total), build.select(larger, two, e))
    quotient = build.div(e, total)
    # 1 / total is (1 - quotient) / 2.
    half = build.constant(0.5)
    correction = build.mul(lost, build.fma(build.neg(quotient), half, half))
    quotient = build.fma(build.neg(quotient), correction, quotient)
    return keep_tiny(build, x, magnitude, build.copysign(quotient, x))


SINH = (0.1666666716337204, 0.008333312347531319, 0.00019842342589981854, 2.7860594400408445e-06)


def half_exp(build: Lanes, magnitude: Value) -> Value:
    """exp(magnitude) / 2, finite as long as sinh and cosh are."""
    n, shifted, r = reduced(build, build.clamp_above(magnitude, 90.0))
    one_less = build.builder.sub(shifted, build.integer_constant(1))
    return build.scale(exp_of_reduced(build, r), build.sub(n, build.constant(1.0)), one_less)


def sinh(build: Lanes, x: Value) -> Value:
    magnitude = build.abs(x)
    e = half_exp(build, magnitude)
    large = build.copysign(build.sub(e, build.div(build.constant(0.25), e)), x)
    square = build.mul(x, x)
    small = build.fma(build.mul(square, x), build.polynomial(square, SINH), x)
    small = keep_tiny(build, x, magnitude, small)
    return build.select(build.compare("<", magnitude, build.constant(1.0)), small, large)


def cosh(build: Lanes, x: Value) -> Value:
    e = half_exp(build, build.abs(x))
    return build.add(e, build.div(build.constant(0.25), e))
