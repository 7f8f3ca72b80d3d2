"""Functions that round nothing, or once by the hardware: nearby integers, minimum and maximum, fmod and its kin."""

from __future__ import annotations

from stator.emit.cpu.math_calls import Sleef
from stator.emit.cpu.math_ir import Lanes, Value

FMOD = Sleef("fmod", "")


def sqrt(build: Lanes, x: Value) -> Value:
    return build.sqrt(x)


def rsqrt(build: Lanes, x: Value) -> Value:
    return build.div(build.constant(1.0), build.sqrt(x))


def reciprocal(build: Lanes, x: Value) -> Value:
    return build.div(build.constant(1.0), x)


def floor(build: Lanes, x: Value) -> Value:
    return build.intrinsic("floor", x)


def ceil(build: Lanes, x: Value) -> Value:
    return build.intrinsic("ceil", x)


def trunc(build: Lanes, x: Value) -> Value:
    return build.intrinsic("trunc", x)


def round_half_even(build: Lanes, x: Value) -> Value:
    return build.intrinsic("roundeven", x)


def frac(build: Lanes, x: Value) -> Value:
    return build.sub(x, build.intrinsic("trunc", x))


def absolute(build: Lanes, x: Value) -> Value:
    return build.abs(x)


def negate(build: Lanes, x: Value) -> Value:
    return build.neg(x)


def copysign(build: Lanes, magnitude: Value, sign: Value) -> Value:
    return build.copysign(magnitude, sign)


def minimum(build: Lanes, left: Value, right: Value) -> Value:
    """torch.minimum: NaN wins; of two zeros the right one, as the processor's min gives it."""
    smaller = build.select(build.compare("<", left, right), left, right)
    return build.select(build.is_nan(left), left, smaller)


def maximum(build: Lanes, left: Value, right: Value) -> Value:
    """torch.maximum: NaN wins; of two zeros the right one, as the processor's max gives it."""
    larger = build.select(build.compare(">", left, right), left, right)
    return build.select(build.is_nan(left), left, larger)


def fmin(build: Lanes, left: Value, right: Value) -> Value:
    """torch.fmin: a number wins over NaN; of two zeros the left one."""
    smaller = build.select(build.compare("<", right, left), right, left)
    return build.select(build.is_nan(left), right, smaller)


def fmax(build: Lanes, left: Value, right: Value) -> Value:
    """torch.fmax: a number wins over NaN; of two zeros the left one."""
    larger = build.select(build.compare(">", right, left), right, left)
    return build.select(build.is_nan(left), right, larger)


def fmod(build: Lanes, x: Value, y: Value) -> Value:
    """C's fmod, exact: the result has the sign of x."""
    return FMOD.emit(build, x, y)


def remainder(build: Lanes, x: Value, y: Value) -> Value:
    """Python's %: the result has the sign of y."""
    zero = build.constant(0.0)
    rest = fmod(build, x, y)
    differ = build.builder.xor(build.compare("<", y, zero), build.compare("<", rest, zero))
    wrong = build.builder.and_(build.compare("!=", rest, zero), differ)
    return build.select(wrong, build.add(rest, y), rest)


def floor_divide(build: Lanes, x: Value, y: Value) -> Value:
    """Python's //, by way of the remainder, so that it agrees with it where x / y rounds up to an integer."""
    zero, one = build.constant(0.0), build.constant(1.0)
    rest = fmod(build, x, y)
    plain = build.div(x, y)
    infinity = build.constant(float("inf"))
    overflows = build.builder.and_(
        build.compare("==", build.abs(plain), infinity), build.compare("<", build.abs(x), infinity)
    )
    # As in ATen: Sleef's fmod is not to be trusted where the quotient overflows.
    quotient = build.div(build.select(overflows, x, build.sub(x, rest)), y)
    differ = build.builder.xor(build.compare("<", y, zero), build.compare("<", rest, zero))
    wrong = build.builder.and_(build.compare("!=", rest, zero), differ)
    quotient = build.select(wrong, build.sub(quotient, one), quotient)
    floored = build.intrinsic("floor", quotient)
    short = build.compare(">", build.sub(quotient, floored), build.constant(0.5))
    floored = build.select(short, build.add(floored, one), floored)
    floored = build.select(build.compare("==", quotient, zero), build.copysign(zero, plain), floored)
    return build.select(build.compare("==", y, zero), plain, floored)
