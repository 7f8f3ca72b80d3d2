"""The maths of generated CPU code: one row per function, and two entry points that build it into LLVM IR.

Contract. `emit_unary(builder, name, value)` and `emit_binary(builder, name, left, right)` take float or double, scalar
or vector with any number of lanes, and return a value of the same type. The emitted code branches on data only in sin,
cos and tan (a cold path for huge arguments), so after a call `builder.block` may be another block than before. Each row
has up to three forms (`Style`):

- `fast`: what is quickest here with an error below two units in the last place;
- `eager`: the bits that torch's own operator gives for contiguous tensors of that dtype: the same Sleef function, the
  same MKL function, or the same single operation;
- `half`: for float lanes that hold 16-bit numbers, the bits that torch's operator gives for those dtypes once rounded
  (proved by trying all 65536 numbers; ATen computes those by other functions than float tensors).

`style=None` takes the row's default: eager's form wherever it costs no more than about 15 % above the fast one. What
each form was measured at, error and cost, stands in `MEASURED` and docs/maths-accuracy.md, both written by
`make sweep-maths`. Calls go to names that whoever links the module binds: see `external_names` and `addresses`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llvmlite import ir

from stator.emit.cpu import math_exp, math_inverse, math_log, math_round, math_special, math_trig
from stator.emit.cpu.math_calls import Implementation, Inline, Libm, Sleef, Vml, addresses, available, external_names
from stator.emit.cpu.math_convert import emit_from_bf16_bits, emit_from_f16, emit_to_bf16_bits, emit_to_f16
from stator.emit.cpu.math_ir import Lanes, Target, Value, host_target
from stator.emit.cpu.math_measured import MEASURED

__all__ = [
    "BINARY",
    "MEASURED",
    "UNARY",
    "Row",
    "Target",
    "addresses",
    "available",
    "emit_binary",
    "emit_from_bf16_bits",
    "emit_from_f16",
    "emit_to_bf16_bits",
    "emit_to_f16",
    "emit_unary",
    "external_names",
    "host_target",
]

Style = Literal["fast", "eager", "half"]
Precision = Literal["float", "double"]


@dataclass(frozen=True, slots=True)
class Row:
    """The forms of one function; a double form that is None means that ATen's own kernel has to be called."""

    fast: Implementation
    eager: Implementation
    half: Implementation
    fast_double: Implementation | None
    eager_double: Implementation | None
    default: Style
    default_double: Style
    note: str = ""

    def implementation(self, double: bool, style: Style | None = None) -> Implementation:
        style = style or (self.default_double if double else self.default)
        if not double:
            return {"fast": self.fast, "eager": self.eager, "half": self.half}[style]
        chosen = self.eager_double if style == "eager" else self.fast_double
        if chosen is None:
            raise NotImplementedError("this function has no form for double lanes")
        return chosen

    def supports(self, double: bool) -> bool:
        return not double or self.fast_double is not None


Function = Callable[..., Value]


def _single(function: Function, note: str = "", kind: str = "instruction") -> Row:
    """One form for everything, whose bits are eager's too."""
    form = Inline(function, kind)
    return Row(form, form, form, form, form, "eager", "eager", note)


def _library(form: Implementation, note: str = "") -> Row:
    """The library function that eager calls, and nothing quicker known."""
    return Row(form, form, form, form, form, "eager", "eager", note)


def _vml(
    name: str,
    stem: str,
    fast: Function,
    fast_double: Function | None = None,
    half: Implementation | Literal["fast"] = "fast",
    accuracy: str = "u10",
    note: str = "",
) -> Row:
    """Eager's float and double kernels are MKL's, reached through memory: much slower than computing it here."""
    sleef = Sleef(name, accuracy)
    eager, polynomial = Vml(stem, sleef), Inline(fast)
    double = sleef if fast_double is None else Inline(fast_double)
    return Row(polynomial, eager, polynomial if half == "fast" else half, double, eager, "fast", "fast", note)


def _sleef(
    name: str,
    fast: Function,
    fast_double: Function | None = None,
    half: Implementation | Literal["fast"] = "fast",
    note: str = "",
) -> Row:
    """Eager calls Sleef; a polynomial is quicker."""
    eager, polynomial = Sleef(name), Inline(fast)
    double = eager if fast_double is None else Inline(fast_double)
    default_double: Style = "eager" if fast_double is None else "fast"
    half_form = polynomial if half == "fast" else half
    return Row(polynomial, eager, half_form, double, eager, "fast", default_double, note)


def _formula(fast: Function, eager: Function, default: Style, note: str = "") -> Row:
    """Eager is a formula over ATen's vectorised functions that can be written in place."""
    quick, same = Inline(fast), Inline(eager, "ATen's formula")
    return Row(quick, same, same, quick, same, default, default, note)


_LIBM_NOTE = "eager calls the C library for each element"
UNARY: dict[str, Row] = {
    # exponentials
    "exp": _vml("exp", "Exp", math_exp.exp, math_exp.exp, note="float: the bits of Sleef's exp_u10"),
    "exp2": _sleef("exp2", math_exp.exp2),
    "expm1": _sleef("expm1", math_exp.expm1, math_exp.expm1),
    "sigmoid": _formula(
        math_exp.sigmoid, math_exp.sigmoid_eager, "eager", "eager's is 0 where exp(-x) overflows, below -88.7 or -709.8"
    ),
    "silu": _formula(
        math_exp.silu, math_exp.silu_eager, "eager", "NaN at -inf, as in torch; eager's is -0 where exp(-x) overflows"
    ),
    "softplus": _formula(math_special.softplus, math_special.softplus_eager, "fast", "beta 1; eager's is x above 20"),
    # hyperbolic
    "tanh": _vml("tanh", "Tanh", math_exp.tanh, math_exp.tanh_double),
    "sinh": _sleef("sinh", math_exp.sinh, half=Sleef("sinh"), note="Sleef's is infinite from 88.73 or 709.79 on"),
    "cosh": _sleef("cosh", math_exp.cosh, half=Sleef("cosh"), note="Sleef's is infinite from 88.73 or 709.79 on"),
    "asinh": Row(
        Inline(math_log.asinh), Libm("asinh"), Libm("asinh"), Libm("asinh"), Libm("asinh"), "fast", "eager", _LIBM_NOTE
    ),
    "acosh": Row(
        Inline(math_log.acosh), Libm("acosh"), Libm("acosh"), Libm("acosh"), Libm("acosh"), "fast", "eager", _LIBM_NOTE
    ),
    "atanh": _library(Sleef("atanh")),
    # logarithms
    "log": _vml("log", "Ln", math_log.log),
    "log2": _vml("log2", "Log2", math_log.log2),
    "log10": _vml("log10", "Log10", math_log.log10),
    "log1p": _sleef("log1p", math_log.log1p),
    # trigonometric
    "sin": _vml("sin", "Sin", math_trig.sin, half=Sleef("sin", "u35")),
    "cos": _vml("cos", "Cos", math_trig.cos),
    "tan": _vml("tan", "Tan", math_trig.tan, half=Sleef("tan")),
    "asin": _vml("asin", "Asin", math_inverse.asin, half=Sleef("asin")),
    "acos": _vml("acos", "Acos", math_inverse.acos, half=Sleef("acos")),
    "atan": _vml("atan", "Atan", math_inverse.atan),
    # error function
    "erf": _vml(
        "erf", "Erf", math_special.erf, math_special.erf_double, half=Inline(math_special.erf_coarse, "ATen's formula")
    ),
    "erfc": _vml("erfc", "Erfc", math_special.erfc, accuracy="u15"),
    "erfinv": Row(
        Inline(math_special.erfinv),
        Vml("ErfInv", Inline(math_special.erfinv)),
        Inline(math_special.erfinv),
        None,
        None,
        "fast",
        "fast",
        "no form for double: ATen's kernel",
    ),
    "gelu": Row(
        Inline(math_special.gelu),
        Inline(math_special.gelu_coarse, "ATen's formula"),
        Inline(math_special.gelu_coarse, "ATen's formula"),
        Inline(math_special.gelu_double),
        Inline(math_special.gelu_double),
        "fast",
        "fast",
        "float: eager's bits only without oneDNN, which has a kernel of its own",
    ),
    "gelu_tanh": Row(
        Inline(math_special.gelu_tanh),
        Inline(math_special.gelu_tanh_eager, "ATen's formula"),
        Inline(math_special.gelu_tanh_eager, "ATen's formula"),
        Inline(math_special.gelu_tanh),
        Inline(math_special.gelu_tanh_eager, "ATen's formula"),
        "fast",
        "fast",
    ),
    "lgamma": _library(Sleef("lgamma")),
    # roots and quotients
    "sqrt": Row(
        Inline(math_round.sqrt, "instruction"),
        Vml("Sqrt", Inline(math_round.sqrt, "instruction")),
        Inline(math_round.sqrt, "instruction"),
        Inline(math_round.sqrt, "instruction"),
        Vml("Sqrt", Inline(math_round.sqrt, "instruction")),
        "fast",
        "fast",
        "rounded correctly; eager's MKL kernel is not, by one unit for every sixth float",
    ),
    "rsqrt": _single(math_round.rsqrt, "1 / sqrt(x), two roundings as eager"),
    "reciprocal": _single(math_round.reciprocal),
    # rounding
    "floor": _single(math_round.floor),
    "ceil": _single(math_round.ceil),
    "trunc": _single(math_round.trunc),
    "round": _single(math_round.round_half_even, "half to even"),
    "frac": _single(math_round.frac),
    "abs": _single(math_round.absolute),
    "neg": _single(math_round.negate),
}

BINARY: dict[str, Row] = {
    "pow": _sleef("pow", math_log.power, note="C99's special cases"),
    "atan2": _library(Sleef("atan2")),
    "hypot": _library(Sleef("hypot", "u05")),
    "fmod": _library(Sleef("fmod", ""), "exact; sign of the left side"),
    "remainder": _single(math_round.remainder, "Python's %", "Sleef fmod"),
    "floor_divide": _single(math_round.floor_divide, "Python's //", "Sleef fmod"),
    "nextafter": _library(Sleef("nextafter", "")),
    "copysign": _single(math_round.copysign),
    "minimum": _single(math_round.minimum, "NaN if either is NaN"),
    "maximum": _single(math_round.maximum, "NaN if either is NaN"),
    "fmin": _single(math_round.fmin, "the number if either is NaN"),
    "fmax": _single(math_round.fmax, "the number if either is NaN"),
}


def cost(name: str, double: bool = False, style: Style | None = None) -> float:
    """Time of one element as a multiple of an addition's, both from cache: what the fusion model adds up."""
    row = UNARY.get(name) or BINARY[name]
    precision: Precision = "double" if double else "float"
    chosen = style or (row.default_double if double else row.default)
    return MEASURED[name, precision, chosen].cost


def _emit(table: dict[str, Row], builder: ir.IRBuilder, name: str, style: Style | None, target: Target | None,
          *values: Value) -> Value:  # fmt: skip
    build = Lanes(builder, values[0].type, target)
    return table[name].implementation(build.double, style).emit(build, *values)


def emit_unary(
    builder: ir.IRBuilder, name: str, value: Value, style: Style | None = None, target: Target | None = None
) -> Value:
    """`name`(value), lane by lane."""
    return _emit(UNARY, builder, name, style, target, value)


def emit_binary(
    builder: ir.IRBuilder,
    name: str,
    left: Value,
    right: Value,
    style: Style | None = None,
    target: Target | None = None,
) -> Value:
    """`name`(left, right), lane by lane; both sides of one type."""
    return _emit(BINARY, builder, name, style, target, left, right)
