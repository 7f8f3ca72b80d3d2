"""Conversions between float lanes and the bits of the two 16-bit formats, rounding to nearest even as torch does.

bfloat16 is rounded in integer arithmetic: AVX512-BF16's own conversion flushes denormals to zero. A NaN becomes the
pattern that ATen's vectorised conversion gives. float16 uses the processor's conversion, which LLVM emits inline where
there is one (F16C, AVX-512, NEON) and calls a support routine for elsewhere.
"""

from __future__ import annotations

from llvmlite import ir

from stator.emit.cpu.math_ir import FLOAT, Lanes, Target, Value, host_target, splat, with_element

HALF = ir.HalfType()
SHORT = ir.IntType(16)


def emit_to_bf16_bits(builder: ir.IRBuilder, value: Value, target: Target | None = None) -> Value:
    """float lanes to i16 lanes holding bfloat16 bits."""
    build = Lanes(builder, value.type, target)
    bits = build.to_bits(value)
    upper = builder.lshr(bits, build.integer_constant(16))
    odd = builder.and_(upper, build.integer_constant(1))
    rounded = builder.add(builder.add(bits, build.integer_constant(0x7FFF)), odd)
    short = with_element(value.type, SHORT)
    result = builder.trunc(builder.lshr(rounded, build.integer_constant(16)), short)
    quiet = -1 if (target or host_target()).architecture == "x86_64" else 0x7FC0
    return builder.select(build.is_nan(value), splat(short, quiet), result)


def emit_from_bf16_bits(builder: ir.IRBuilder, bits: Value) -> Value:
    """i16 lanes holding bfloat16 bits to float lanes; exact, NaN bits kept."""
    integer = with_element(bits.type, ir.IntType(32))
    wide = builder.shl(builder.zext(bits, integer), splat(integer, 16))
    return builder.bitcast(wide, with_element(bits.type, FLOAT))


def emit_to_f16(builder: ir.IRBuilder, value: Value) -> Value:
    """float lanes to i16 lanes holding float16 bits."""
    half = builder.fptrunc(value, with_element(value.type, HALF))
    return builder.bitcast(half, with_element(value.type, SHORT))


def emit_from_f16(builder: ir.IRBuilder, bits: Value) -> Value:
    """i16 lanes holding float16 bits to float lanes; exact."""
    half = builder.bitcast(bits, with_element(bits.type, HALF))
    return builder.fpext(half, with_element(bits.type, FLOAT))
