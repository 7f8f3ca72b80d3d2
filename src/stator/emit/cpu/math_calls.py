"""Calls into the vector maths libraries that torch itself carries, Sleef and MKL's VML, and into the C library.

Contract. A call is made to a *name*, declared in the module, so that an object file can be cached and linked again in
another process; `addresses(names)` says where each one is in this process, for whoever links. `available(name)` tells
before emission whether a name exists here, and every implementation has a further fallback, at last the C library lane
by lane.

Sleef is what ATen's vectorised kernels call, so its results are eager's bits. VML is what ATen's plain exp, log, sin
and others call on x86 builds with MKL; it works on arrays, so lanes pass through the stack, which costs several times
the function itself and is there for those who need eager's very bits.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from llvmlite import ir

from stator.emit.cpu.math_ir import Lanes, Value, declare, in_parts, lanes_of

# The mode ATen passes to VML: high accuracy, denormals kept, errors ignored.
_VML_MODE = 0x2 | 0x00140000 | 0x100


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    found = sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
    return (*(ctypes.CDLL(str(path)) for path in found), ctypes.CDLL(None), *_libm())


def _libm() -> tuple[ctypes.CDLL, ...]:
    try:
        return (ctypes.CDLL("libm.so.6"),)
    except OSError:
        return ()


@functools.cache
def _address(name: str) -> int | None:
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


def available(name: str) -> bool:
    return _address(name) is not None


def addresses(names: Iterable[str]) -> dict[str, int]:
    """Where these symbols are in this process; a missing one is an error that names it."""
    found = {name: _address(name) for name in names}
    missing = sorted(name for name, address in found.items() if address is None)
    if missing:
        raise LookupError(f"no library in this process exports {', '.join(missing)}")
    return {name: address for name, address in found.items() if address is not None}


def external_names(module: ir.Module) -> list[str]:
    """The names a module declares and does not define, LLVM's own left out: what has to be bound when it is linked."""
    return [
        name
        for name, value in module.globals.items()
        if isinstance(value, ir.Function) and value.is_declaration and not name.startswith("llvm.")
    ]


def sleef_symbol(build: Lanes, stem: str, accuracy: str) -> tuple[str, int] | None:
    """Sleef's name of a function for these lanes, and how many lanes it takes."""
    widest = build.target.bits // build.bits
    letter = "d" if build.double else "f"
    width = build.width or widest
    for lanes in (width, widest):
        if lanes * build.bits in (128, 256, 512) and lanes <= widest:
            name = f"Sleef_{stem}{letter}{lanes}" + (f"_{accuracy}" if accuracy else "")
            if available(name):
                return name, lanes
    return None


def call_sleef(build: Lanes, stem: str, accuracy: str, *values: Value) -> Value | None:
    """Calls `Sleef_<stem>`, or returns None where this host has none."""
    symbol = sleef_symbol(build, stem, accuracy)
    if symbol is None:
        return None
    name, lanes = symbol
    part = ir.VectorType(build.element, lanes)
    function = declare(build.module, name, ir.FunctionType(part, [part] * len(values)))
    return in_parts(build.builder, lambda *parts: build.builder.call(function, parts), lanes, *values)


def call_libm(build: Lanes, stem: str, *values: Value) -> Value:
    """The C library's function, one lane after the other."""
    name = stem if build.double else f"{stem}f"
    function = declare(build.module, name, ir.FunctionType(build.element, [build.element] * len(values)))
    width = lanes_of(build.kind)
    if width is None:
        return build.builder.call(function, values)
    result: Value = ir.Constant(build.kind, ir.Undefined)
    for lane in range(width):
        index = ir.Constant(ir.IntType(32), lane)
        arguments = [build.builder.extract_element(value, index) for value in values]
        result = build.builder.insert_element(result, build.builder.call(function, arguments), index)
    return result


def call_vml(build: Lanes, stem: str, value: Value) -> Value | None:
    """MKL's array function on these lanes by way of the stack, or None where torch has no MKL."""
    name = f"vm{'d' if build.double else 's'}{stem}"
    if not available(name):
        return None
    pointer = ir.PointerType()
    word, long = ir.IntType(32), ir.IntType(64)
    function = declare(build.module, name, ir.FunctionType(ir.VoidType(), [word, pointer, pointer, long]))
    builder = build.builder
    entry = builder.function.entry_basic_block
    with builder.goto_block(entry):
        if entry.instructions:
            builder.position_before(entry.instructions[0])
        slots = [builder.alloca(build.kind) for _ in range(2)]
    for slot in slots:
        slot.align = 64
    builder.store(value, slots[0])
    count = ir.Constant(word, build.width or 1)
    plain = [builder.bitcast(slot, pointer) for slot in slots]
    builder.call(function, [count, plain[0], plain[1], ir.Constant(long, _VML_MODE)])
    return builder.load(slots[1])


@dataclass(frozen=True, slots=True)
class Inline:
    """Instructions in place, for any number of lanes."""

    function: Callable[..., Value]
    kind: str = "polynomial"

    def emit(self, build: Lanes, *values: Value) -> Value:
        return self.function(build, *values)

    @property
    def label(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Sleef:
    """A vectorised function of Sleef; the C library where the host has none."""

    stem: str
    accuracy: str = "u10"

    def emit(self, build: Lanes, *values: Value) -> Value:
        called = call_sleef(build, self.stem, self.accuracy, *values)
        return called if called is not None else call_libm(build, self.stem, *values)

    @property
    def label(self) -> str:
        return f"Sleef {self.stem}{'_' * bool(self.accuracy)}{self.accuracy}"


@dataclass(frozen=True, slots=True)
class Vml:
    """MKL's array function; where torch was built without MKL, what ATen computes then."""

    stem: str
    otherwise: Sleef | Libm | Inline

    def emit(self, build: Lanes, *values: Value) -> Value:
        called = call_vml(build, self.stem, *values)
        return called if called is not None else self.otherwise.emit(build, *values)

    @property
    def label(self) -> str:
        return f"VML {self.stem}"


@dataclass(frozen=True, slots=True)
class Libm:
    """The C library, lane by lane."""

    stem: str

    def emit(self, build: Lanes, *values: Value) -> Value:
        return call_libm(build, self.stem, *values)

    @property
    def label(self) -> str:
        return f"libm {self.stem}"


Implementation = Inline | Sleef | Vml | Libm
