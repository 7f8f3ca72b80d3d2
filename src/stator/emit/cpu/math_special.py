"""erf, erfc, erfinv and the two GELUs for float lanes. Coefficients come from tests/emit_math/fit.py."""

from __future__ import annotations

from stator.emit.cpu import math_exp, math_log
from stator.emit.cpu.math_calls import Sleef
from stator.emit.cpu.math_ir import Lanes, Value

# erf(a) = a + a q(a*a) below 0.925; ln(1 - erf(a)) = a q(a) from there to 4, where erf is one
ERF_SMALL = (
    0.12837916612625122, -0.37612631916999817, 0.11283698678016663, -0.026860270649194717, 0.005203844513744116,
    -0.000817654887214303, 8.510830230079591e-05,
)  # fmt: skip
ERF_LARGE = (
    -1.1285414695739746, -0.6356729865074158, -0.1051698550581932, 0.022576043382287025, -0.0028694167267531157,
    2.755435707513243e-05, 4.991454989067279e-05, -5.294653874443611e-06,
)  # fmt: skip
# The same in double below one; above it ln(1 - erf(a)) = q((a - 1) / 5) up to six
ERF_SMALL_DOUBLE = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954858, -0.02686617064507255, 0.005223977624773837,
    -0.0008548326978137638, 0.00012055331007889958, -1.4925592650820905e-05, 1.646095666225156e-06,
    -1.6349829582321092e-07, 1.4656408369961128e-08, -1.135940789084049e-09, 5.933760849752675e-11,
)  # fmt: skip
ERF_LARGE_DOUBLE = (
    -1.8496055099332482, -13.194837571173956, -21.077681408962167, -5.195137255812053, 6.271140896271468,
    -6.180946937907983, 3.7081986073383604, 2.0523686428937395, -10.601881622678327, 18.703923334083985,
    -19.694054673178968, 4.866907346537232, 31.8503353876185, -86.79574989763091, 141.9938585818927,
    -170.8228972391984, 155.91684748517704, -105.92450089970562, 50.64377647245727, -15.196146180397264,
    2.14863353890012,
)  # fmt: skip
# (1 + 2a) exp(a*a) erfc(a) = q(t), t = (a - 4) / (a + 4)
ERFC = (
    1.2329951524734497, -0.13962113857269287, 0.015379616059362888, 0.06809785962104797, -0.10103745758533478,
    0.0937214195728302, -0.06635752320289612, 0.03721757233142853, -0.016019422560930252, 0.005060280207544565,
    -0.0011220527812838554, -0.0006377198151312768,
)  # fmt: skip
ERFC_FIRST_LOST = -3.365563516766201e-08  # what rounding its first coefficient lost
# erfinv(x) = x q(w), w = -log(1 - x*x), below 5; x q(sqrt(w) - 3.2) above
ERFINV_CENTRE = (
    0.8862269520759583, 0.23201364278793335, 0.011549558490514755, -0.0023359176702797413, -0.00012649197014980018,
    4.492739026318304e-05, 3.1180707082967274e-06, -1.4364804883371107e-06, 4.487104021677624e-08,
    2.3720719610764718e-08, -3.2165412555684725e-09, 1.3285711419896984e-10,
)  # fmt: skip
ERFINV_TAIL = (
    3.0336365699768066, 1.0046924352645874, 0.00597353046759963, -0.0042940592393279076, 0.00294689554721117,
    -0.001993440091609955, 0.001094142789952457, -0.0003586717357393354, -4.064099630340934e-05,
    9.999717440223321e-05, -3.0385310310521163e-05,
)  # fmt: skip


def erf(build: Lanes, x: Value) -> Value:
    square = build.mul(x, x)
    small = build.fma(x, build.polynomial(square, ERF_SMALL), x)
    magnitude = build.clamp_above(build.abs(x), 4.0)
    logarithm = build.mul(magnitude, build.polynomial(magnitude, ERF_LARGE))
    _, shifted, r = math_exp.reduced(build, logarithm)
    scale = build.power_of_two(build.integer_of(shifted))
    rest = build.fma(math_exp.exp_of_reduced(build, r), build.neg(scale), build.constant(1.0))
    large = build.copysign(rest, x)
    return build.select(build.compare("<", magnitude, build.constant(0.925)), small, large)


def erf_double(build: Lanes, x: Value) -> Value:
    one = build.constant(1.0)
    square = build.mul(x, x)
    small = build.fma(x, build.estrin(square, ERF_SMALL_DOUBLE), x)
    magnitude = build.clamp_above(build.abs(x), 6.0)
    place = build.mul(build.sub(magnitude, one), build.constant(0.2))
    _, shifted, r = math_exp.reduced(build, build.estrin(place, ERF_LARGE_DOUBLE))
    scale = build.power_of_two(build.integer_of(shifted))
    large = build.copysign(build.fma(math_exp.exp_of_reduced(build, r), build.neg(scale), one), x)
    return build.select(build.compare("<", magnitude, one), small, large)


def erf_coarse(build: Lanes, x: Value) -> Value:
    """What ATen's vectorised kernels compute for 16-bit tensors: Abramowitz and Stegun 7.1.26, right to about 1e-7."""
    one = build.constant(1.0)
    t = build.div(one, build.fma(build.constant(0.3275911), build.abs(x), one))
    series = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    e = math_exp.eager_exp(build, build.neg(build.mul(x, x)))
    product = build.mul(build.neg(e), t)
    result = build.fma(product, build.polynomial(t, series), one)
    return build.flip_sign(result, build.sign_bit(x))


def _erfc_quotient(build: Lanes, a: Value) -> tuple[Value, Value]:
    """(1 + 2a) exp(a*a) erfc(a) / (1 + 2a) as a value and what its three roundings lost."""
    one, four = build.constant(1.0), build.constant(4.0)
    t = build.div(build.sub(a, four), build.add(a, four))
    inner = build.polynomial(t, ERFC[1:])
    first = build.constant(ERFC[0])
    p = build.fma(inner, t, first)
    p_lost = build.add(build.fma(inner, t, build.sub(first, p)), build.constant(ERFC_FIRST_LOST))
    twice = build.add(a, a)
    divisor = build.add(twice, one)
    larger = build.compare(">", twice, one)
    high, low = build.select(larger, twice, one), build.select(larger, one, twice)
    divisor_lost = build.add(build.sub(high, divisor), low)
    quotient = build.div(p, divisor)
    rest = build.fma(build.neg(quotient), divisor, p)
    rest = build.add(build.fma(build.neg(quotient), divisor_lost, rest), p_lost)
    # p is within a tenth of 1.1, so 1 / divisor is quotient / 1.1 closely enough for a correction.
    return quotient, build.mul(build.mul(rest, quotient), build.constant(0.9))


def erfc(build: Lanes, x: Value) -> Value:
    """exp(-a*a) times a quotient, each with what its roundings lost, and scaled last for the sake of denormals."""
    one = build.constant(1.0)
    a = build.clamp_above(build.abs(x), 11.0)
    quotient, quotient_lost = _erfc_quotient(build, a)
    square = build.mul(a, a)
    square_lost = build.fma(a, a, build.neg(square))
    n, shifted, r = math_exp.reduced(build, build.neg(square))
    w = build.fma(build.mul(r, r), build.polynomial(r, math_exp.SINGLE.exp), r)
    e = build.add(w, one)
    e_lost = build.fma(build.neg(square_lost), e, build.sub(w, build.sub(e, one)))
    product = build.mul(e, quotient)
    lost = build.fma(e, quotient, build.neg(product))
    lost = build.fma(e_lost, quotient, build.fma(e, quotient_lost, lost))
    result = build.scale(build.add(product, lost), n, shifted)
    result = build.select(build.compare("<", x, build.constant(0.0)), build.sub(build.constant(2.0), result), result)
    small = build.fma(build.neg(x), build.polynomial(build.mul(x, x), ERF_SMALL), build.sub(one, x))
    return build.select(build.compare("<", a, build.constant(0.5)), small, result)


def erfinv(build: Lanes, x: Value) -> Value:
    one = build.constant(1.0)
    w = build.neg(math_log.log(build, build.fma(build.neg(x), x, one)))
    centre = build.polynomial(w, ERFINV_CENTRE)
    tail = build.polynomial(build.sub(build.sqrt(w), build.constant(3.2)), ERFINV_TAIL)
    result = build.mul(x, build.select(build.compare("<", w, build.constant(5.0)), centre, tail))
    edge = build.compare("==", build.abs(x), one)
    return build.select(edge, build.copysign(build.constant(float("inf")), x), result)


def gelu(build: Lanes, x: Value) -> Value:
    """x/2 (1 + erf(x / sqrt 2))."""
    inner = build.mul(x, build.constant(0.7071067811865476))
    return build.mul(build.mul(x, build.constant(0.5)), build.add(build.constant(1.0), erf(build, inner)))


def gelu_coarse(build: Lanes, x: Value) -> Value:
    inner = build.mul(x, build.constant(0.7071067811865476))
    return build.mul(build.mul(x, build.constant(0.5)), build.add(build.constant(1.0), erf_coarse(build, inner)))


def gelu_double(build: Lanes, x: Value) -> Value:
    inner = build.mul(x, build.constant(0.7071067811865476))
    return build.mul(build.mul(x, build.constant(0.5)), build.add(build.constant(1.0), erf_double(build, inner)))


def softplus(build: Lanes, x: Value) -> Value:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|))."""
    e = math_exp.exp_of_negative(build, build.neg(build.abs(x)))
    rest = Sleef("log1p").emit(build, e) if build.double else math_log.log1p(build, e)
    return build.add(build.clamp_below(x, 0.0), rest)


def softplus_eager(build: Lanes, x: Value) -> Value:
    """ATen's own formula, with its defaults: x itself above 20."""
    usual = Sleef("log1p").emit(build, math_exp.eager_exp(build, x))
    return build.select(build.compare(">", x, build.constant(20.0)), x, usual)


def _gelu_tanh_inner(build: Lanes, x: Value) -> Value:
    cube = build.mul(build.mul(x, x), x)
    return build.mul(build.constant(0.7978845608028654), build.fma(build.constant(0.044715), cube, x))


def gelu_tanh(build: Lanes, x: Value) -> Value:
    """x/2 (1 + tanh(u)) written as x / (1 + exp(-2u)), which spares a polynomial and keeps the negative tail."""
    doubled = build.mul(_gelu_tanh_inner(build, x), build.constant(-2.0))
    return build.div(x, build.add(build.constant(1.0), math_exp.exp(build, doubled)))


def gelu_tanh_eager(build: Lanes, x: Value) -> Value:
    """ATen's own formula, with the product and sum that its compiler fused."""
    curve = Sleef("tanh").emit(build, _gelu_tanh_inner(build, x))
    return build.mul(build.mul(x, build.constant(0.5)), build.add(build.constant(1.0), curve))
