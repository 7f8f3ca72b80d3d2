"""Compiles a loop over arrays around one maths function, and compares results in units of the last place."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from stator.emit.cpu import math

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
_counter = itertools.count()
_engines: list[object] = []


def machine(features: str | None = None) -> llvm.TargetMachine:
    # Not "no optimisation": the level at which LLVM's own selection still folds and schedules, as the emitter uses it.
    flags = features if features is not None else llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name() if features is None else "x86-64", features=flags, opt=2, jit=True
    )


def compile_module(module: ir.Module, features: str | None = None) -> llvm.ExecutionEngine:
    module.triple = llvm.get_default_triple()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, machine(features))
    for name, address in math.addresses(math.external_names(module)).items():
        llvm.add_symbol(name, address)
    engine.finalize_object()
    _engines.append(engine)
    return engine


def loop(
    emit: Callable[..., ir.Value],
    inputs: list[ir.Type],
    output: ir.Type,
    width: int | None,
    features: str | None = None,
) -> Callable[..., np.ndarray]:
    """A function of numpy arrays, whose length is a multiple of the width, that applies `emit` to every vector."""
    module = ir.Module(f"maths_{next(_counter)}")
    index = ir.IntType(64)
    pointer = ir.PointerType()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [index] + [pointer] * (len(inputs) + 1)), "kernel")
    entry = function.append_basic_block("entry")
    body = function.append_basic_block("body")
    done = function.append_basic_block("done")
    builder = ir.IRBuilder(entry)
    builder.branch(body)
    builder.position_at_end(body)
    position = builder.phi(index)
    position.add_incoming(ir.Constant(index, 0), entry)

    def lanes(kind: ir.Type) -> ir.Type:
        return kind if width is None else ir.VectorType(kind, width)

    values = []
    for kind, base in zip(inputs, function.args[1:-1], strict=True):
        place = builder.gep(base, [position], source_etype=kind)
        load = builder.load(place, typ=lanes(kind))
        load.align = 1
        values.append(load)
    result = emit(builder, *values)
    place = builder.gep(function.args[-1], [position], source_etype=output)
    builder.store(result, place, align=1)
    following = builder.add(position, ir.Constant(index, width or 1))
    position.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, function.args[0]), body, done)
    builder.position_at_end(done)
    builder.ret_void()
    engine = compile_module(module, features)
    address = engine.get_function_address("kernel")
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (len(inputs) + 1))
    native = prototype(address)
    kinds = {"float": np.float32, "double": np.float64, "i16": np.uint16, "i32": np.int32, "i64": np.int64}
    out_kind = kinds[str(output)]

    def run(*arrays: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        size = arrays[0].size
        assert size % (width or 1) == 0
        out = np.empty(size, out_kind) if out is None else out
        native(size, *(a.ctypes.data for a in arrays), out.ctypes.data)
        return out

    def bind(*arrays: np.ndarray, out: np.ndarray) -> Callable[[], None]:
        """The same for timing: a call without arguments, whose addresses are already converted."""
        prepared = [ctypes.c_int64(out.size), *(ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out))]
        return lambda: native(*prepared)

    run.bind = bind  # type: ignore[attr-defined]
    run.source = str(module)  # type: ignore[attr-defined]
    run.assembly = lambda: machine(features).emit_assembly(llvm.parse_assembly(str(module)))  # type: ignore[attr-defined]
    return run


@functools.cache
def function(
    name: str,
    double: bool = False,
    style: str | None = None,
    width: int | None = 16,
    target: math.Target | None = None,
    features: str | None = None,
) -> Callable[..., np.ndarray]:
    kind = ir.DoubleType() if double else ir.FloatType()
    if name in math.UNARY:
        return loop(lambda b, x: math.emit_unary(b, name, x, style, target), [kind], kind, width, features)
    return loop(lambda b, x, y: math.emit_binary(b, name, x, y, style, target), [kind, kind], kind, width, features)


def ordered(values: np.ndarray) -> np.ndarray:
    """Floats as integers in the same order, so that neighbours differ by one; both zeros are zero."""
    bits = values.view(np.int32 if values.dtype == np.float32 else np.int64).astype(np.int64)
    lowest = np.int64(-(2**31) if values.dtype == np.float32 else -(2**63))
    with np.errstate(over="ignore"):
        return np.where(bits < 0, lowest - bits, bits)


def ulp_error(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|found - exact| in units of the last place of the exact value's own precision grid.

    `exact` has more precision than `found`. Where either is NaN or infinite both have to be; otherwise the error is
    infinite. An exact value that rounds to infinity may be found as infinity.
    """
    kind = found.dtype.type
    limits = np.finfo(kind)
    with np.errstate(all="ignore"):
        rounded = exact.astype(kind)
        magnitude = np.abs(exact)
        _, exponent = np.frexp(magnitude)
        exponent = np.maximum(exponent, limits.minexp + 1)
        spacing = np.ldexp(exact.dtype.type(1), exponent - limits.nmant - 1)
        error = np.abs(found.astype(exact.dtype) - exact) / spacing
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    error = np.where(same & ~np.isfinite(rounded), 0, error)
    odd = np.isnan(error) | (np.isnan(found) != np.isnan(rounded))
    return np.where(odd, np.inf, error).astype(np.float64)


def sign_mistakes(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Where a zero or number has the wrong sign bit; NaNs have none."""
    return (np.signbit(found) != np.signbit(exact)) & ~np.isnan(exact) & ~np.isnan(found)
