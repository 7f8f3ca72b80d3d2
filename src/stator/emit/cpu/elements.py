"""Single operations of the loop language as LLVM instructions, over scalars or vectors alike.

Contract. A value of a loop type lives in registers as its `register_type`: bfloat16 as a float whose low half is zero
(so converting to `f32` is free and rounding is one integer sequence), float16 as half, booleans as i1. In memory it is
its `memory_type`. Integers wrap; comparisons and minima treat NaN as the loop language says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from stator.emit.cpu import math
from stator.emit.cpu.math_ir import Target, declare, lanes_of, mangled, splat, spread, with_element
from stator.loops.ir import FLOATS, INTEGERS, TYPES, Buffer

Value = Any

_REGISTERS: dict[str, ir.Type] = {
    "f64": ir.DoubleType(), "f32": ir.FloatType(), "f16": ir.HalfType(), "bf16": ir.FloatType(), "b1": ir.IntType(1),
    **{name: ir.IntType(TYPES[name] * 8) for name in INTEGERS},
}  # fmt: skip
_MEMORY: dict[str, ir.Type] = {**_REGISTERS, "bf16": ir.IntType(16), "b1": ir.IntType(8)}

COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def register_type(name: str, lanes: int | None) -> ir.Type:
    element = _REGISTERS[name]
    return element if lanes is None else ir.VectorType(element, lanes)


def memory_type(name: str, lanes: int | None) -> ir.Type:
    element = _MEMORY[name]
    return element if lanes is None else ir.VectorType(element, lanes)


def constant(number: Any, name: str, lanes: int | None) -> Value:
    kind = register_type(name, lanes)
    if name == "b1":
        number = int(bool(number))
    elif name in INTEGERS:
        bits = TYPES[name] * 8
        number = (int(number) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    return splat(kind, number)


class Elements:
    """Builds operations at a builder's position."""

    def __init__(self, builder: ir.IRBuilder, target: Target) -> None:
        self.builder = builder
        self.target = target
        self.streamed: frozenset[Buffer] = frozenset()  # what is stored past the cache

    def alike(self, values: Sequence[Value]) -> list[Value]:
        """Scalars spread to the lanes of the vectors among them."""
        widths = {lanes_of(value.type) for value in values} - {None}
        if not widths or len({lanes_of(value.type) for value in values}) == 1:
            return list(values)
        (width,) = widths
        return [value if lanes_of(value.type) else self.spread(value, width) for value in values]

    def spread(self, value: Value, lanes: int | None) -> Value:
        if lanes is None or lanes_of(value.type):
            return value
        if isinstance(value, ir.Constant):
            return splat(ir.VectorType(value.type, lanes), value.constant)
        return spread(self.builder, value, lanes)

    def apply(self, operation: str, type_: str, operands: Sequence[Value], types: Sequence[str]) -> Value:
        """`operation` giving `type_`, over operands of the given loop types."""
        if operation == "convert":
            return self.convert(operands[0], types[0], type_)
        values = self.alike(operands)
        if operation in COMPARE:
            return self.compare(operation, values[0], values[1], types[0])
        if operation == "where":
            return self.builder.select(*values)
        maker = getattr(self, f"make_{operation}", None)
        if maker is not None:
            return maker(type_, *values)
        if type_ in FLOATS:
            return self.elementary(operation, values)
        raise KeyError(f"no instruction for {operation} over {type_}")

    def elementary(self, operation: str, values: Sequence[Value]) -> Value:
        if len(values) == 1:
            return math.emit_unary(self.builder, operation, values[0], target=self.target)
        return math.emit_binary(self.builder, operation, values[0], values[1], target=self.target)

    def compare(self, operation: str, left: Value, right: Value, type_: str) -> Value:
        sign = COMPARE[operation]
        if type_ in FLOATS or type_ in ("f16", "bf16"):
            if sign == "!=":
                return self.builder.fcmp_unordered(sign, left, right)
            return self.builder.fcmp_ordered(sign, left, right)
        if type_ in ("u8", "b1"):
            return self.builder.icmp_unsigned(sign, left, right)
        return self.builder.icmp_signed(sign, left, right)

    # arithmetic

    def make_add(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.fadd(left, right) if type_ in FLOATS else self.builder.add(left, right)

    def make_sub(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.fsub(left, right) if type_ in FLOATS else self.builder.sub(left, right)

    def make_mul(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.fmul(left, right) if type_ in FLOATS else self.builder.mul(left, right)

    def make_div(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.fdiv(left, right)

    def make_fma(self, type_: str, left: Value, right: Value, addend: Value) -> Value:
        return self.intrinsic("fma", left, right, addend)

    def make_neg(self, type_: str, value: Value) -> Value:
        return self.builder.fneg(value) if type_ in FLOATS else self.builder.neg(value)

    def make_abs(self, type_: str, value: Value) -> Value:
        if type_ in FLOATS:
            return self.intrinsic("fabs", value)
        negative = self.builder.icmp_signed("<", value, splat(value.type, 0))
        return self.builder.select(negative, self.builder.neg(value), value)

    def make_minimum(self, type_: str, left: Value, right: Value) -> Value:
        return self._extreme("minimum", "<", type_, left, right)

    def make_maximum(self, type_: str, left: Value, right: Value) -> Value:
        return self._extreme("maximum", ">", type_, left, right)

    def _extreme(self, name: str, sign: str, type_: str, left: Value, right: Value) -> Value:
        if type_ in FLOATS:
            return self.elementary(name, [left, right])
        compare = self.builder.icmp_unsigned if type_ in ("u8", "b1") else self.builder.icmp_signed
        return self.builder.select(compare(sign, left, right), left, right)

    def make_divide_truncating(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.udiv(left, right) if type_ == "u8" else self.builder.sdiv(left, right)

    def make_remainder_truncating(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.urem(left, right) if type_ == "u8" else self.builder.srem(left, right)

    def make_shift_left(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.shl(left, right)

    def make_shift_right(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.lshr(left, right) if type_ == "u8" else self.builder.ashr(left, right)

    def make_and(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.and_(left, right)

    def make_or(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.or_(left, right)

    def make_xor(self, type_: str, left: Value, right: Value) -> Value:
        return self.builder.xor(left, right)

    def make_not(self, type_: str, value: Value) -> Value:
        return self.builder.xor(value, splat(value.type, -1 if type_ != "b1" else 1))

    def intrinsic(self, name: str, *values: Value) -> Value:
        kind = values[0].type
        function = declare(
            self.builder.module, f"llvm.{name}.{mangled(kind)}", ir.FunctionType(kind, [kind] * len(values))
        )
        return self.builder.call(function, values)

    def masked_load(self, address: Value, kind: ir.Type, mask: Value, align: int) -> Value:
        """Lanes side by side in memory, zero where the mask is off."""
        i32 = ir.IntType(32)
        signature = ir.FunctionType(kind, [ir.PointerType(), i32, mask.type, kind])
        function = declare(self.builder.module, f"llvm.masked.load.{mangled(kind)}.p0", signature)
        return self.builder.call(function, [address, ir.Constant(i32, align), mask, splat(kind, 0)])

    def store_past_cache(self, value: Value, address: Value, align: int) -> None:
        """Store a whole aligned vector without reading its line first."""
        flag = self.builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        self.builder.store(value, address, align=align).set_metadata("nontemporal", flag)

    def finish_streams(self) -> None:
        """What was stored past the cache is seen by other threads before anything that follows."""
        if self.streamed and self.target.architecture == "x86_64":
            kind = ir.FunctionType(ir.VoidType(), [])
            self.builder.call(declare(self.builder.module, "llvm.x86.sse.sfence", kind), [])

    # conversions

    def convert(self, value: Value, source: str, target: str) -> Value:
        """As ATen converts on CPU: floats to integers towards zero, anything to boolean by comparison with zero."""
        if source == target:
            return value
        lanes = lanes_of(value.type)
        kind = register_type(target, lanes)
        if target == "b1":
            zero = splat(value.type, 0)
            if isinstance(value.type.element if lanes else value.type, ir.IntType):
                return self.builder.icmp_signed("!=", value, zero)
            return self.builder.fcmp_unordered("!=", value, zero)
        if source in INTEGERS or source == "b1":
            return self._from_integer(value, source, target, lanes)
        if target in INTEGERS:
            return self._to_integer(value, source, target, lanes)
        return self._between_floats(value, source, target, kind, lanes)

    def _from_integer(self, value: Value, source: str, target: str, lanes: int | None) -> Value:
        unsigned = source in ("u8", "b1")
        if target in INTEGERS:
            kind = register_type(target, lanes)
            if TYPES[target] > TYPES[source] or source == "b1":
                return self.builder.zext(value, kind) if unsigned else self.builder.sext(value, kind)
            if TYPES[target] == TYPES[source]:
                return value
            return self.builder.trunc(value, kind)
        through = "f64" if target == "f64" else "f32"
        kind = register_type(through, lanes)
        wide = self.builder.uitofp(value, kind) if unsigned else self.builder.sitofp(value, kind)
        return self.convert(wide, through, target)

    def _to_integer(self, value: Value, source: str, target: str, lanes: int | None) -> Value:
        """Out-of-range values are undefined in C++ as well; here they are the smallest i64."""
        if source == "f16":
            value, source = self.convert(value, "f16", "f32"), "f32"
        wide = register_type("i64", lanes)
        whole = self._float_to_i64(value, wide)
        return whole if target == "i64" else self.builder.trunc(whole, register_type(target, lanes))

    def _float_to_i64(self, value: Value, wide: ir.Type) -> Value:
        """x86's conversion gives the smallest integer for what does not fit, as eager shows; LLVM's is undefined."""
        kind = value.type
        limit = splat(kind, 9223372036854775808.0)
        inside = self.builder.fcmp_ordered("<", self.intrinsic("fabs", value), limit)
        safe = self.builder.select(inside, value, splat(kind, 0.0))
        return self.builder.select(inside, self.builder.fptosi(safe, wide), splat(wide, -(1 << 63)))

    def _between_floats(self, value: Value, source: str, target: str, kind: ir.Type, lanes: int | None) -> Value:
        if source == "bf16":  # already a float
            return value if target == "f32" else self.convert(value, "f32", target)
        if target == "bf16":
            single = value if source == "f32" else self.convert(value, source, "f32")
            return self.round_to_bf16(single)
        if TYPES[source] < TYPES[target]:
            return self.builder.fpext(value, kind)
        if source == "f64" and target == "f16":  # ATen goes through float
            value = self.builder.fptrunc(value, register_type("f32", lanes))
        return self.builder.fptrunc(value, kind)

    def round_to_bf16(self, value: Value) -> Value:
        """A float with its low 16 bits rounded away, to nearest even; NaN stays NaN."""
        integer = with_element(value.type, ir.IntType(32))
        bits = self.builder.bitcast(value, integer)
        odd = self.builder.and_(self.builder.lshr(bits, splat(integer, 16)), splat(integer, 1))
        rounded = self.builder.add(self.builder.add(bits, splat(integer, 0x7FFF)), odd)
        cut = self.builder.and_(rounded, splat(integer, -65536))
        nan = self.builder.fcmp_unordered("uno", value, value)
        quiet = splat(integer, -65536 if self.target.architecture == "x86_64" else 0x7FC00000)
        return self.builder.bitcast(self.builder.select(nan, quiet, cut), value.type)

    # memory

    def from_memory(self, raw: Value, type_: str) -> Value:
        if type_ == "b1":
            return self.builder.icmp_unsigned("!=", raw, splat(raw.type, 0))
        if type_ == "bf16":
            return math.emit_from_bf16_bits(self.builder, raw)
        return raw

    def to_memory(self, value: Value, type_: str) -> Value:
        lanes = lanes_of(value.type)
        if type_ == "b1":
            return self.builder.zext(value, memory_type("b1", lanes))
        if type_ == "bf16":
            integer = with_element(value.type, ir.IntType(32))
            bits = self.builder.lshr(self.builder.bitcast(value, integer), splat(integer, 16))
            return self.builder.trunc(bits, memory_type("bf16", lanes))
        return value

    def lane(self, value: Value, number: int) -> Value:
        return self.builder.extract_element(value, ir.Constant(ir.IntType(32), number))

    def fold(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """All lanes of a vector combined into a scalar, halves first."""
        width = value.type.count
        while width > 2:
            width //= 2
            value = combine(self._half(value, 0, width), self._half(value, width, width))
        return combine(self.lane(value, 0), self.lane(value, 1)) if width == 2 else self.lane(value, 0)

    def _half(self, value: Value, start: int, count: int) -> Value:
        order = ir.Constant(
            ir.VectorType(ir.IntType(32), count), [ir.Constant(ir.IntType(32), start + k) for k in range(count)]
        )
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), order)
