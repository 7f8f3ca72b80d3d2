"""Logarithms, and pow by way of a logarithm in double.

Method: x = m 2**e with m around one, a minimax polynomial for log1p(m - 1), and e added in two pieces. Coefficients
come from tests/emit_math/fit.py. On AVX-512 the exponent and the mantissa come from instructions that already treat
zeros, denormals, infinities and negative numbers as a logarithm needs them.
"""

from __future__ import annotations

from llvmlite import ir

from stator.emit.cpu import math_exp
from stator.emit.cpu.math_ir import DOUBLE, Lanes, Value, declare, in_parts, with_element, zeros

LN2 = 0.6931471805599453
# The upper part is rounded down, so that both parts of infinity * ln 2 have the same sign.
LN2_HIGH = 0.693115234375
LN2_LOW = LN2 - LN2_HIGH
# log1p(f) = f - f*f/2 + f**3 q(f) for m in [sqrt(1/2), sqrt(2)) and for m in [3/4, 3/2)
LOG = (
    0.3333331346511841, -0.25000157952308655, 0.2000221163034439, -0.16659867763519287, 0.14210361242294312,
    -0.12541227042675018, 0.1209338828921318, -0.10961706191301346, 0.0543183796107769,
)  # fmt: skip
LOG_75 = (
    0.33333340287208557, -0.2500016987323761, 0.1999957263469696, -0.16655020415782928, 0.14276619255542755,
    -0.12732358276844025, 0.11703583598136902, -0.09098386764526367, 0.037441935390233994,
)  # fmt: skip
# log2(1 + f) = f q(f) in double, to 2**-37
LOG2_DOUBLE = (
    1.4426950408818235, -0.7213475204410982, 0.48089834927067976, -0.360673763535745, 0.28853879545972194,
    -0.2404486640006598, 0.20610744767731978, -0.18036500193890592, 0.16016545308803984, -0.14358676964344907,
    0.13164292662232197, -0.12736513587706008, 0.1204081111605139, -0.08504154087367086, 0.029265874957344066,
)  # fmt: skip


def _avx512(build: Lanes, name: str, immediate: int | None, x: Value) -> Value:
    """getexp or getmant, 512 bits at a time."""
    lanes = 512 // build.bits
    part, mask, word = ir.VectorType(build.element, lanes), ir.IntType(lanes), ir.IntType(32)
    middle = [] if immediate is None else [word]
    function = declare(
        build.module,
        f"llvm.x86.avx512.mask.{name}.p{'d' if build.double else 's'}.512",
        ir.FunctionType(part, [part, *middle, part, mask, word]),
    )
    argument = [] if immediate is None else [ir.Constant(word, immediate)]
    tail = [zeros(part), ir.Constant(mask, -1), ir.Constant(word, 4)]
    return in_parts(build.builder, lambda value: build.builder.call(function, [value, *argument, *tail]), lanes, x)


def _has_instructions(build: Lanes) -> bool:
    """For any number of lanes, padded if need be: remaining lanes must get the bits that whole vectors get."""
    return build.target.scales_exponents


def split_by_instruction(build: Lanes, x: Value) -> tuple[Value, Value]:
    """f in [-1/4, 1/2) and e as a float, with x = (1 + f) 2**e; NaN for negative x, e infinite for zero and infinity.

    The instruction's interval is [3/4, 3/2) and its sign control makes negative numbers NaN and both zeros one.
    """
    mantissa = _avx512(build, "getmant", 0b1111, x)
    one = build.constant(1.0)
    exponent = _avx512(build, "getexp", None, x)
    exponent = build.select(build.compare("<", mantissa, one), build.add(exponent, one), exponent)
    return build.sub(mantissa, one), exponent


def split_by_bits(build: Lanes, x: Value, start: int) -> tuple[Value, Value, Value]:
    """m - 1, e as a float and e as integer lanes, for positive normal x; `start` is the bit pattern of the least m."""
    bits = build.to_bits(x)
    shift = build.integer_constant(build.mantissa)
    exponent = build.builder.ashr(build.builder.sub(bits, build.integer_constant(start)), shift)
    mantissa = build.of_bits(build.builder.sub(bits, build.builder.shl(exponent, shift)))
    return build.sub(mantissa, build.constant(1.0)), build.builder.sitofp(exponent, build.kind), exponent


SQRT_HALF_BITS = 0x3F3504F3
THREE_QUARTERS_BITS = 0x3FE8000000000000


def special_logarithm(build: Lanes, x: Value, result: Value) -> Value:
    """The result where x is positive and finite; -inf for zeros, inf for inf, NaN for negative numbers and NaN."""
    zero, infinity = build.constant(0.0), build.constant(float("inf"))
    other = build.select(build.compare("<", x, zero), build.constant(float("nan")), x)
    other = build.select(build.compare("==", x, zero), build.constant(float("-inf")), other)
    usual = build.builder.and_(build.compare(">", x, zero), build.compare("<", x, infinity))
    return build.select(usual, result, other)


def _tail(build: Lanes, f: Value, coefficients: tuple[float, ...]) -> Value:
    """log1p(f) - f."""
    square = build.mul(f, f)
    q = build.polynomial(f, coefficients)
    return build.fma(build.mul(square, f), q, build.mul(square, build.constant(-0.5)))


def _split(build: Lanes, x: Value) -> tuple[Value, Value, Value, bool]:
    """f, e, log1p(f) - f, and whether special arguments still have to be seen to."""
    if _has_instructions(build):
        f, exponent = split_by_instruction(build, x)
        return f, exponent, _tail(build, f, LOG_75), False
    denormal = build.compare("<", x, build.constant(2.0**-126))
    scaled = build.select(denormal, build.mul(x, build.constant(2.0**23)), x)
    f, exponent, _ = split_by_bits(build, scaled, SQRT_HALF_BITS)
    exponent = build.sub(exponent, build.select(denormal, build.constant(23.0), build.constant(0.0)))
    return f, exponent, _tail(build, f, LOG), True


def log(build: Lanes, x: Value) -> Value:
    f, exponent, tail, special = _split(build, x)
    low = build.fma(exponent, build.constant(LN2_LOW), tail)
    result = build.fma(exponent, build.constant(LN2_HIGH), build.add(f, low))
    return special_logarithm(build, x, result) if special else result


def _log_base(build: Lanes, x: Value, factor: tuple[float, float], unit: tuple[float, float]) -> Value:
    """(e ln 2 + log1p(f)) times `factor`, each constant in two parts; `unit` is ln 2 * factor."""
    f, exponent, tail, special = _split(build, x)
    low = build.mul(build.add(f, tail), build.constant(factor[1]))
    low = build.fma(tail, build.constant(factor[0]), low)
    if unit[1]:
        low = build.fma(exponent, build.constant(unit[1]), low)
    rest = build.fma(f, build.constant(factor[0]), low)
    result = build.fma(exponent, build.constant(unit[0]), rest)
    return special_logarithm(build, x, result) if special else result


def log2(build: Lanes, x: Value) -> Value:
    return _log_base(build, x, (1.44140625, 0.0012887908889634), (1.0, 0.0))


def log10(build: Lanes, x: Value) -> Value:
    return _log_base(build, x, (0.43359375, 0.0007007319032518), (0.301025390625, 4.605038981195e-06))


def _log_of_sum(build: Lanes, total: Value, lost: Value, halvings: Value | None = None) -> Value:
    """log(total + lost), plus ln 2 for each of `halvings`; what rounding lost is brought to the mantissa's scale."""
    f, exponent, e = split_by_bits(build, total, SQRT_HALF_BITS)
    # Nothing is lost from numbers as large as the bound, which keeps the power of two a normal number.
    bound = build.integer_constant(build.bias - 1)
    e = build.select(build.builder.icmp_signed(">", e, bound), bound, e)
    f = build.fma(lost, build.power_of_two(build.builder.sub(build.integer_constant(0), e)), f)
    if halvings is not None:
        exponent = build.add(exponent, halvings)
    low = build.fma(exponent, build.constant(LN2_LOW), _tail(build, f, LOG))
    result = build.fma(exponent, build.constant(LN2_HIGH), build.add(f, low))
    return special_logarithm(build, total, result)


def log1p(build: Lanes, x: Value) -> Value:
    one = build.constant(1.0)
    total = build.add(x, one)
    above = build.compare(">", x, one)
    larger, smaller = build.select(above, x, one), build.select(above, one, x)
    result = _log_of_sum(build, total, build.add(build.sub(larger, total), smaller))
    return build.select(build.compare("<", build.abs(x), build.constant(2.0**-25)), x, result)


def _log1p_or_log_twice(build: Lanes, t: Value, magnitude: Value) -> Value:
    """log(1 + t), and where the magnitude is too large to be squared log(2 magnitude) in its place."""
    zero, one = build.constant(0.0), build.constant(1.0)
    huge = build.compare(">", magnitude, build.constant(2.0**24))
    total = build.add(t, one)
    above = build.compare(">", t, one)
    larger, smaller = build.select(above, t, one), build.select(above, one, t)
    lost = build.add(build.sub(larger, total), smaller)
    total, lost = build.select(huge, magnitude, total), build.select(huge, zero, lost)
    return _log_of_sum(build, total, lost, build.select(huge, one, zero))


def asinh(build: Lanes, x: Value) -> Value:
    """log1p(a + a*a / (1 + sqrt(1 + a*a)))."""
    one = build.constant(1.0)
    a = build.abs(x)
    square = build.mul(a, a)
    root = build.sqrt(build.add(square, one))
    t = build.add(a, build.div(square, build.add(root, one)))
    result = build.copysign(_log1p_or_log_twice(build, t, a), x)
    return build.select(build.compare("<", a, build.constant(2.0**-12)), x, result)


def acosh(build: Lanes, x: Value) -> Value:
    """log1p(s + sqrt(s s + 2s)) for s = x - 1, which is exact near one."""
    one = build.constant(1.0)
    s = build.sub(x, one)
    t = build.add(s, build.sqrt(build.fma(s, s, build.add(s, s))))
    result = _log1p_or_log_twice(build, t, x)
    return build.select(build.compare("<", x, one), build.constant(float("nan")), result)


def _log2_in_double(build: Lanes, magnitude: Value) -> Value:
    """log2 of non-negative numbers that come from float, so never denormal here; -inf and inf for zero and inf."""
    if _has_instructions(build):
        f, exponent = split_by_instruction(build, magnitude)
    else:
        f, exponent, _ = split_by_bits(build, magnitude, THREE_QUARTERS_BITS)
    result = build.fma(f, build.estrin(f, LOG2_DOUBLE), exponent)
    return result if _has_instructions(build) else special_logarithm(build, magnitude, result)


def power(build: Lanes, x: Value, y: Value) -> Value:
    """C99's pow. |x|**y is 2**(y log2|x|) with the product in double, so its error stays below 2**-29 of the result."""
    wide = build.at(with_element(build.kind, DOUBLE))
    magnitude = build.abs(x)
    product = wide.mul(
        build.builder.fpext(y, wide.kind), _log2_in_double(wide, build.builder.fpext(magnitude, wide.kind))
    )
    product = wide.clamp_below(wide.clamp_above(product, 160.0), -160.0)
    n, _ = wide.round_product(product, 1.0)
    r = build.builder.fptrunc(wide.sub(product, n), build.kind)
    exponent = build.builder.fptrunc(n, build.kind)
    q = build.polynomial(r, math_exp.EXP2)
    _, shifted = build.round_product(exponent, 1.0)
    result = build.scale(build.fma(q, r, build.constant(1.0)), exponent, shifted)
    return _special_power(build, x, y, magnitude, result)


def _special_power(build: Lanes, x: Value, y: Value, magnitude: Value, result: Value) -> Value:
    one, zero, infinity = build.constant(1.0), build.constant(0.0), build.constant(float("inf"))
    builder = build.builder
    whole = build.compare("==", build.intrinsic("trunc", y), y)
    halved = build.mul(y, build.constant(0.5))
    odd = builder.and_(whole, build.compare("!=", build.intrinsic("trunc", halved), halved))
    negative = builder.and_(build.compare("<", x, zero), build.compare("<", magnitude, infinity))
    result = build.select(builder.and_(negative, builder.not_(whole)), build.constant(float("nan")), result)
    sign = build.select(odd, build.sign_bit(x), build.integer_constant(0))
    result = build.flip_sign(result, sign)
    endless = builder.and_(build.compare("==", magnitude, one), build.compare("==", build.abs(y), infinity))
    certain = builder.or_(builder.or_(build.compare("==", x, one), build.compare("==", y, zero)), endless)
    return build.select(certain, one, result)
