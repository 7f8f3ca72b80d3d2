"""The small vocabulary in which the maths functions are written: lanes of one floating type, and what the host offers.

Contract. `Lanes(builder, type)` builds instructions over values of `type`, which is float, double, or a vector of
either with any number of lanes; the same code serves scalars. Nothing here carries fast-math flags: NaN, infinities and
signed zeros follow IEEE 754. Constants are written once as a splat, because no pass cleans up behind the emitter and
LLVM's reader is a noticeable part of a kernel's compile time.

Integer lanes have the width of the floating lanes (i32 beside float, i64 beside double), so that bit tricks are plain
integer arithmetic and never a conversion whose result would be undefined for NaN or infinity.
"""

from __future__ import annotations

import functools
import math
import platform
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import llvmlite.binding as llvm
from llvmlite import ir

Value: TypeAlias = ir.Value
FLOAT = ir.FloatType()
DOUBLE = ir.DoubleType()


@dataclass(frozen=True, slots=True)
class Target:
    """What of the host decides how a function is written; `bits` is the widest vector the maths library takes."""

    architecture: str
    bits: int
    features: frozenset[str]

    @property
    def scales_exponents(self) -> bool:
        """AVX-512 multiplies by a power of two, denormals and overflow included, in one instruction."""
        return "avx512f" in self.features

    @property
    def converts_half(self) -> bool:
        return "f16c" in self.features or self.architecture == "aarch64"


@functools.cache
def host_target() -> Target:
    """The machine this process runs on."""
    features = frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return Target("aarch64", 128, features)
    if "avx512f" in features:
        return Target("x86_64", 512, features)
    if "avx2" in features and "fma" in features:
        return Target("x86_64", 256, features)
    return Target("x86_64" if machine in ("x86_64", "amd64") else machine, 128, features)


class WrittenConstant(ir.Constant):  # type: ignore[misc]
    """A constant of vector type given by its text; llvmlite's own would take the text apart into lanes."""

    def __init__(self, kind: ir.Type, text: str) -> None:
        self.type = kind
        self.constant = text

    def _to_string(self) -> str:
        return f"{self.type} {self.constant}"

    def _get_reference(self) -> str:
        return self.constant


_SPLAT_SYNTAX = llvm.llvm_version_info >= (19, 0, 0)


def lanes_of(kind: ir.Type) -> int | None:
    """The number of lanes of a vector type, None for a scalar."""
    return kind.count if isinstance(kind, ir.VectorType) else None


def element_of(kind: ir.Type) -> ir.Type:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def with_element(kind: ir.Type, element: ir.Type) -> ir.Type:
    """The type with the lanes of `kind` and another element."""
    return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element


def splat(kind: ir.Type, value: float | int) -> ir.Constant:
    """`value` in every lane."""
    if not isinstance(kind, ir.VectorType):
        return ir.Constant(kind, value)
    if value == 0 and math.copysign(1.0, value) > 0:
        return zeros(kind)
    scalar = ir.Constant(kind.element, value)
    if _SPLAT_SYNTAX:
        return WrittenConstant(kind, f"splat ({kind.element} {scalar.get_reference()})")
    return ir.Constant(kind, [scalar] * kind.count)


class Picks(ir.Constant):  # type: ignore[misc]
    """The lanes a shuffle picks, as text written once."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self.type = ir.VectorType(ir.IntType(32), len(places))
        self.constant = [ir.Constant(ir.IntType(32), place) for place in places]
        self.text = "<" + ", ".join(f"i32 {place}" for place in places) + ">"

    def _to_string(self) -> str:
        return f"{self.type} {self.text}"

    def _get_reference(self) -> str:
        return self.text


@functools.cache
def picks(places: tuple[int, ...]) -> Picks:
    return Picks(places)


def zeros(kind: ir.Type) -> ir.Constant:
    return WrittenConstant(kind, "zeroinitializer")


def mangled(kind: ir.Type) -> str:
    """The suffix by which LLVM names an overload of an intrinsic."""
    element = element_of(kind)
    names = {ir.FloatType: "f32", ir.DoubleType: "f64", ir.HalfType: "f16"}
    scalar = names.get(type(element)) or f"i{element.width}"
    lanes = lanes_of(kind)
    return scalar if lanes is None else f"v{lanes}{scalar}"


def declare(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """The external function `name`, declared once per module."""
    known = module.globals.get(name)
    return known if known is not None else ir.Function(module, kind, name)


class Lanes:
    """Builds over one floating type. Methods return values; names are those of the operation."""

    def __init__(self, builder: ir.IRBuilder, kind: ir.Type, target: Target | None = None) -> None:
        self.builder = builder
        self.kind = kind
        self.target = target or host_target()
        self.element = element_of(kind)
        self.width = lanes_of(kind)
        self.double = isinstance(self.element, ir.DoubleType)
        self.bits = 64 if self.double else 32
        self.mantissa = 52 if self.double else 23
        self.bias = 1023 if self.double else 127
        self.integer = with_element(kind, ir.IntType(self.bits))

    def at(self, kind: ir.Type) -> Lanes:
        """The same builder over another type."""
        return Lanes(self.builder, kind, self.target)

    @property
    def module(self) -> ir.Module:
        return self.builder.module

    # constants

    def constant(self, value: float) -> ir.Constant:
        return splat(self.kind, value)

    def integer_constant(self, value: int) -> ir.Constant:
        sign = 1 << (self.bits - 1)
        return splat(self.integer, (value + sign) % (2 * sign) - sign)

    def from_bits(self, pattern: int) -> ir.Constant:
        """The float with this bit pattern in every lane."""
        if self.double:
            return self.constant(struct.unpack("<d", struct.pack("<Q", pattern))[0])
        return self.constant(struct.unpack("<f", struct.pack("<I", pattern))[0])

    # arithmetic

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        function = declare(
            self.module, f"llvm.{name}.{mangled(self.kind)}", ir.FunctionType(self.kind, [self.kind] * len(arguments))
        )
        return self.builder.call(function, arguments)

    def fma(self, left: Value, right: Value, addend: Value) -> Value:
        return self.intrinsic("fma", left, right, addend)

    def add(self, left: Value, right: Value) -> Value:
        return self.builder.fadd(left, right)

    def sub(self, left: Value, right: Value) -> Value:
        return self.builder.fsub(left, right)

    def mul(self, left: Value, right: Value) -> Value:
        return self.builder.fmul(left, right)

    def div(self, left: Value, right: Value) -> Value:
        return self.builder.fdiv(left, right)

    def neg(self, value: Value) -> Value:
        return self.builder.fneg(value)

    def abs(self, value: Value) -> Value:
        return self.intrinsic("fabs", value)

    def sqrt(self, value: Value) -> Value:
        return self.intrinsic("sqrt", value)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Horner's scheme, lowest coefficient first."""
        result: Value = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.constant(coefficient))
        return result

    def estrin(self, x: Value, coefficients: Sequence[float]) -> Value:
        """The same polynomial as a tree: for long ones, where Horner's chain of dependent steps would be waited for."""
        terms: list[Value] = [self.constant(c) for c in coefficients]
        while len(terms) > 1:
            pairs = [self.fma(terms[i + 1], x, terms[i]) for i in range(0, len(terms) - 1, 2)]
            if len(terms) % 2:
                pairs.append(terms[-1])
            terms = pairs
            if len(terms) > 1:
                x = self.mul(x, x)
        return terms[0]

    # choices

    def compare(self, relation: str, left: Value, right: Value) -> Value:
        """Ordered comparison: false where a side is NaN, except that `!=` is true there."""
        if relation == "!=":
            return self.builder.fcmp_unordered("!=", left, right)
        return self.builder.fcmp_ordered(relation, left, right)

    def is_nan(self, value: Value) -> Value:
        return self.builder.fcmp_unordered("uno", value, value)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return self.builder.select(condition, yes, no)

    def clamp_above(self, value: Value, bound: float) -> Value:
        """min(value, bound); NaN stays NaN."""
        limit = self.constant(bound)
        return self.select(self.compare(">", value, limit), limit, value)

    def clamp_below(self, value: Value, bound: float) -> Value:
        """max(value, bound); NaN stays NaN."""
        limit = self.constant(bound)
        return self.select(self.compare("<", value, limit), limit, value)

    # bits

    def to_bits(self, value: Value) -> Value:
        return self.builder.bitcast(value, self.integer)

    def of_bits(self, value: Value) -> Value:
        return self.builder.bitcast(value, self.kind)

    def sign_bit(self, value: Value) -> Value:
        """The sign bit alone, as integer lanes."""
        return self.builder.and_(self.to_bits(value), self.integer_constant(1 << (self.bits - 1)))

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    def flip_sign(self, value: Value, sign: Value) -> Value:
        """`value` with its sign flipped where the integer lanes `sign` have the top bit."""
        return self.of_bits(self.builder.xor(self.to_bits(value), sign))

    def round_product(self, value: Value, factor: float) -> tuple[Value, Value]:
        """value * factor rounded to an integer below 2**(mantissa - 1): as a float, and shifted in integer lanes.

        Adding 1.5 * 2**mantissa leaves the integer in the low bits, which spares a conversion undefined for NaN.
        """
        magic = self.constant(1.5 * 2.0**self.mantissa)
        shifted = self.fma(value, self.constant(factor), magic)
        return self.sub(shifted, magic), self.to_bits(shifted)

    def integer_of(self, shifted: Value) -> Value:
        """The integer that `round_product` left in the low bits."""
        magic = ((self.bias + self.mantissa) << self.mantissa) | (1 << (self.mantissa - 1))
        return self.builder.sub(shifted, self.integer_constant(magic))

    def power_of_two(self, exponent: Value) -> Value:
        """2**exponent for integer lanes whose exponent is that of a normal number."""
        biased = self.builder.add(exponent, self.integer_constant(self.bias))
        return self.of_bits(self.builder.shl(biased, self.integer_constant(self.mantissa)))

    def scale(self, value: Value, exponent: Value, shifted: Value) -> Value:
        """`value` * 2**n rounded once, overflow and denormals included, for |n| below twice the exponent range.

        `exponent` is n as a float, `shifted` the integer lanes from `round_product`.
        """
        if self.target.scales_exponents and self._scalef_lanes():
            return self._scalef(value, exponent)
        exact = self.integer_of(shifted)
        half = self.builder.ashr(exact, self.integer_constant(1))
        rest = self.builder.sub(exact, half)
        return self.mul(self.mul(value, self.power_of_two(half)), self.power_of_two(rest))

    def _scalef_lanes(self) -> bool:
        return self.width is not None and self.width * self.bits % 512 == 0

    def _scalef(self, value: Value, exponent: Value) -> Value:
        """AVX-512's own instruction, 512 bits at a time."""
        lanes = 512 // self.bits
        part = ir.VectorType(self.element, lanes)
        mask = ir.IntType(lanes)
        function = declare(
            self.module,
            f"llvm.x86.avx512.mask.scalef.p{'d' if self.double else 's'}.512",
            ir.FunctionType(part, [part, part, part, mask, ir.IntType(32)]),
        )

        def call(left: Value, right: Value) -> Value:
            keep = zeros(part)
            return self.builder.call(
                function, [left, right, keep, ir.Constant(mask, -1), ir.Constant(ir.IntType(32), 4)]
            )

        return in_parts(self.builder, call, lanes, value, exponent)


def take(builder: ir.IRBuilder, value: Value, start: int, count: int) -> Value:
    """Lanes [start, start + count) of a vector; lanes past its end are undefined."""
    width = value.type.count
    if start == 0 and count == width:
        return value
    indices = [ir.Constant(ir.IntType(32), start + i if start + i < width else ir.Undefined) for i in range(count)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), count), indices)
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


def join(builder: ir.IRBuilder, parts: Sequence[Value], width: int) -> Value:
    """The parts one after the other, cut to `width` lanes."""
    joined = list(parts)
    while len(joined) > 1:
        paired = []
        for index in range(0, len(joined) - 1, 2):
            left, right = joined[index], joined[index + 1]
            total = left.type.count + right.type.count
            if left.type.count != right.type.count:
                right = take(builder, right, 0, left.type.count)
            order = ir.Constant(
                ir.VectorType(ir.IntType(32), total), [ir.Constant(ir.IntType(32), i) for i in range(total)]
            )
            paired.append(builder.shuffle_vector(left, right, order))
        if len(joined) % 2:
            paired.append(joined[-1])
        joined = paired
    return take(builder, joined[0], 0, width)


def in_parts(builder: ir.IRBuilder, call: Callable[..., Value], lanes: int, *values: Value) -> Value:
    """Applies `call`, which works on exactly `lanes` lanes, to values with any number of lanes or none.

    Too narrow a value is padded with copies of its first lane, so that padding never computes on undefined bits.
    """
    width = lanes_of(values[0].type)
    if width is None:
        first = call(*(spread(builder, value, lanes) for value in values))
        return builder.extract_element(first, ir.Constant(ir.IntType(32), 0))
    if width == lanes:
        return call(*values)
    starts = range(0, width, lanes)
    parts = [call(*(_padded(builder, value, start, lanes) for value in values)) for start in starts]
    return join(builder, parts, width)


def spread(builder: ir.IRBuilder, value: Value, lanes: int) -> Value:
    """A scalar in every lane of a vector."""
    kind = ir.VectorType(value.type, lanes)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    mask = picks((0,) * lanes)
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), mask)


def _padded(builder: ir.IRBuilder, value: Value, start: int, lanes: int) -> Value:
    width = value.type.count
    indices = [start + i if start + i < width else start for i in range(lanes)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [ir.Constant(ir.IntType(32), i) for i in indices])
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)
