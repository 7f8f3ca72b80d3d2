"""sin, cos and tan of float lanes by reduction with fused multiply-adds.

Method: x = n pi + r (n pi / 2 for tan) with pi in three pieces; the first difference is exact, what the second rounds
away is kept in a small tail, so r is known to about twice the precision. That holds while n is below 2**16. A vector
with a larger argument anywhere takes a second, cold path: the emitter's current block ends in a branch, and
`builder.block` is afterwards the block where both paths meet.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from stator.emit.cpu.math_calls import Sleef
from stator.emit.cpu.math_ir import Lanes, Value, lanes_of

PI = (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15)
HALF_PI = tuple(part / 2 for part in PI)
LIMIT = 100000.0
SIN = (
    -0.1666666716337204, 0.008333351463079453, -0.0001984327391255647, 2.7637679522740655e-06, -2.569835899635109e-08,
)  # fmt: skip
TAN = (
    0.3333335518836975, 0.13332480192184448, 0.05408034473657608, 0.02117796801030636, 0.011103447526693344,
    -0.00024726620176807046, 0.004541448317468166,
)  # fmt: skip


def _reduced(build: Lanes, x: Value, n: Value, parts: tuple[float, ...]) -> tuple[Value, Value]:
    """x - n * (the sum of parts) as a value and its tail.

    The first difference is exact, and a multiple of the last place of the second product, so the short form of an
    exact sum recovers what the second difference rounds away, whichever of the two is the larger.
    """
    first = build.fma(n, build.constant(-parts[0]), x)
    product = build.mul(n, build.constant(parts[1]))
    product_tail = build.fma(n, build.constant(parts[1]), build.neg(product))
    second = build.sub(first, product)
    lost = build.add(build.add(build.sub(second, first), product), product_tail)
    return second, build.fma(n, build.constant(-parts[2]), build.neg(lost))


def _sine(build: Lanes, r: Value, tail: Value) -> Value:
    square = build.mul(r, r)
    cube = build.mul(square, r)
    # The derivative of sin, to within a few percent, carries the tail.
    tail = build.mul(tail, build.fma(square, build.constant(-0.405), build.constant(1.0)))
    return build.add(r, build.fma(cube, build.polynomial(square, SIN), tail))


def _top_bit(build: Lanes, shifted: Value) -> Value:
    return build.builder.shl(shifted, build.integer_constant(build.bits - 1))


def _small_sin(build: Lanes, x: Value) -> Value:
    n, shifted = build.round_product(x, 0.3183098861837907)
    r, tail = _reduced(build, x, n, PI)
    result = build.flip_sign(_sine(build, r, tail), _top_bit(build, shifted))
    return build.select(build.compare("<", build.abs(x), build.constant(2.0**-13)), x, result)


def _small_cos(build: Lanes, x: Value) -> Value:
    """cos(x) = -sin(x - (k + 1/2) pi) for even k, its opposite for odd k."""
    magic = build.constant(1.5 * 2.0**23)
    scaled = build.fma(x, build.constant(0.3183098861837907), build.constant(-0.5))
    shifted = build.add(scaled, magic)
    n = build.add(build.sub(shifted, magic), build.constant(0.5))
    r, tail = _reduced(build, x, n, PI)
    sign = build.builder.xor(_top_bit(build, build.to_bits(shifted)), build.integer_constant(1 << (build.bits - 1)))
    return build.flip_sign(_sine(build, r, tail), sign)


def _small_tan(build: Lanes, x: Value) -> Value:
    n, shifted = build.round_product(x, 0.6366197723675814)
    r, tail = _reduced(build, x, n, HALF_PI)
    square = build.mul(r, r)
    cube = build.mul(square, r)
    # The derivative of tan, 1 + tan**2, carries the tail.
    tail = build.fma(tail, square, tail)
    tangent = build.add(r, build.fma(cube, build.polynomial(square, TAN), tail))
    odd = build.builder.icmp_signed("<", _top_bit(build, shifted), build.integer_constant(0))
    result = build.select(odd, build.div(build.constant(-1.0), tangent), tangent)
    return build.select(build.compare("<", build.abs(x), build.constant(2.0**-13)), x, result)


def any_lane(build: Lanes, condition: Value) -> Value:
    """One bit: whether the condition holds in some lane."""
    width = lanes_of(condition.type)
    if width is None:
        return condition
    packed = build.builder.bitcast(condition, ir.IntType(width))
    return build.builder.icmp_unsigned("!=", packed, ir.Constant(ir.IntType(width), 0))


def with_large_arguments(build: Lanes, x: Value, name: str, small: Callable[[Lanes, Value], Value]) -> Value:
    """`small(x)`, and the library's result in the lanes beyond its range, so that no lane depends on its neighbours."""
    builder = build.builder
    usual = small(build, x)
    beyond = build.compare(">=", build.abs(x), build.constant(LIMIT))
    large = any_lane(build, beyond)
    before = builder.block
    with builder.if_then(large, likely=False):
        rare = build.select(beyond, Sleef(name).emit(build, x), usual)
        inside = builder.block
    result = builder.phi(build.kind)
    result.add_incoming(usual, before)
    result.add_incoming(rare, inside)
    return result


def sin(build: Lanes, x: Value) -> Value:
    return with_large_arguments(build, x, "sin", _small_sin)


def cos(build: Lanes, x: Value) -> Value:
    return with_large_arguments(build, x, "cos", _small_cos)


def tan(build: Lanes, x: Value) -> Value:
    return with_large_arguments(build, x, "tan", _small_tan)
