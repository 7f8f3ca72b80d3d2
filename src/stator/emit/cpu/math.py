"""The maths of generated CPU code: one row per function, and two entry points that build it into LLVM IR.

Contract. `emit_unary(builder, name, value)` and `emit_binary(builder, name, left, right)` take float or double, scalar
or vector with any number of lanes, and return a value of the same type. The emitted code branches on data only in sin,
cos and tan (a cold path for huge arguments), so after a call `builder.block` may be another block than before.

Each row has two forms for each precision. `fast` is what is quickest here within two units in the last place. `eager`
gives the bits that torch's own kernel gives for contiguous tensors: the same Sleef function, the same MKL function, or
the same single operation. `style=None` takes the row's default, which is eager's form wherever it costs no more than
about 15 % above the fast one. docs/maths-accuracy.md holds what was measured for every row.

Calls go to names that whoever links the module binds: see `external_names` and `addresses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llvmlite import ir

from stator.emit.cpu import math_erf, math_exp, math_log, math_round, math_trig
from stator.emit.cpu.math_calls import Implementation, Inline, Sleef, Vml, addresses, available, external_names
from stator.emit.cpu.math_convert import emit_from_bf16_bits, emit_from_f16, emit_to_bf16_bits, emit_to_f16
from stator.emit.cpu.math_ir import Lanes, Target, Value, host_target

__all__ = [
    "BINARY",
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

Style = Literal["fast", "eager"]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to compute a function in one precision."""

    implementation: Implementation
    cost: float  # of one element, in additions
    ulp: float  # the largest error found by the sweep; 0.5 is a single rounding


@dataclass(frozen=True, slots=True)
class Row:
    """One function: its forms by precision and style, its default style by precision, and what is special about it."""

    float_fast: Form
    float_eager: Form
    double_fast: Form
    double_eager: Form
    defaults: tuple[Style, Style]
    note: str = ""

    def form(self, double: bool, style: Style | None = None) -> Form:
        style = style or self.defaults[double]
        if double:
            return self.double_eager if style == "eager" else self.double_fast
        return self.float_eager if style == "eager" else self.float_fast


def _exact(function: object, cost: float, note: str = "") -> Row:
    """A function that every implementation gives the same bits for."""
    form = Form(Inline(function, "instruction"), cost, 0.5)  # type: ignore[arg-type]
    return Row(form, form, form, form, ("eager", "eager"), note)


def _both(fast: Form, eager: Form, double: Form, double_eager: Form, defaults: str, note: str = "") -> Row:
    """`defaults` is two letters, f(ast) or e(ager), for float and for double."""
    names: dict[str, Style] = {"f": "fast", "e": "eager"}
    return Row(fast, eager, double, double_eager, (names[defaults[0]], names[defaults[1]]), note)


def _sleef(stem: str, cost: float, double_cost: float, ulp: float = 1.0, accuracy: str = "u10") -> tuple[Form, Form]:
    call = Sleef(stem, accuracy)
    return Form(call, cost, ulp), Form(call, double_cost, ulp)


def _called(stem: str, cost: float, double_cost: float, ulp: float = 1.0, accuracy: str = "u10", note: str = "") -> Row:
    """Sleef in both styles: what eager calls, and the quickest there is."""
    single, double = _sleef(stem, cost, double_cost, ulp, accuracy)
    return Row(single, single, double, double, ("eager", "eager"), note)


def _vml(stem: str, name: str, cost: float, ulp: float = 0.6) -> Form:
    return Form(Vml(stem, Sleef(name)), cost, ulp)


def _fast(function: object, cost: float, ulp: float = 1.5) -> Form:
    return Form(Inline(function), cost, ulp)  # type: ignore[arg-type]


def _transcendental(
    function: object, name: str, stem: str, cost: float, vml_cost: float, double: Form, note: str = ""
) -> Row:
    """A polynomial for speed; eager goes through VML."""
    eager = _vml(stem, name, vml_cost)
    return Row(_fast(function, cost), eager, double, _vml(stem, name, 2 * vml_cost), ("fast", "fast"), note)


def _double_sleef(stem: str, cost: float, accuracy: str = "u10") -> Form:
    return Form(Sleef(stem, accuracy), cost, 1.0)


UNARY: dict[str, Row] = {
    "exp": _transcendental(math_exp.exp, "exp", "Exp", 6, 40, _fast(math_exp.exp, 16)),
    "log": _transcendental(math_log.log, "log", "Ln", 8, 40, _double_sleef("log", 20)),
    "log2": _transcendental(math_log.log2, "log2", "Log2", 8, 40, _double_sleef("log2", 22)),
    "log10": _transcendental(math_log.log10, "log10", "Log10", 8, 40, _double_sleef("log10", 22)),
    "tanh": _transcendental(math_exp.tanh, "tanh", "Tanh", 10, 60, _fast(math_exp.tanh_double, 24)),
    "erf": _transcendental(math_erf.erf, "erf", "Erf", 12, 50, _double_sleef("erf", 90)),
    "sin": _transcendental(math_trig.sin, "sin", "Sin", 9, 50, _double_sleef("sin", 40)),
    "cos": _transcendental(math_trig.cos, "cos", "Cos", 9, 50, _double_sleef("cos", 50)),
    "tan": _transcendental(math_trig.tan, "tan", "Tan", 14, 60, _double_sleef("tan", 60)),
    "sqrt": _exact(math_round.sqrt, 3),
    "rsqrt": _exact(math_round.rsqrt, 5),
    "reciprocal": _exact(math_round.reciprocal, 3),
    "floor": _exact(math_round.floor, 1),
    "ceil": _exact(math_round.ceil, 1),
    "trunc": _exact(math_round.trunc, 1),
    "round": _exact(math_round.round_half_even, 1, "half to even"),
    "sigmoid": _both(
        _fast(math_exp.sigmoid, 10), _fast(math_exp.sigmoid_eager, 9), _fast(math_exp.sigmoid, 24),
        _fast(math_exp.sigmoid_eager, 26), "ee",
    ),
    "silu": _both(
        _fast(math_exp.silu, 11), _fast(math_exp.silu_eager, 9), _fast(math_exp.silu, 26),
        _fast(math_exp.silu_eager, 26), "ee",
    ),
    "expm1": _both(_fast(math_exp.expm1, 8), _sleef("expm1", 20, 40)[0], _fast(math_exp.expm1, 18),
                   _sleef("expm1", 20, 40)[1], "ff"),
    "exp2": _both(_fast(math_exp.exp2, 5), _sleef("exp2", 5, 12)[0], _sleef("exp2", 5, 12)[1],
                  _sleef("exp2", 5, 12)[1], "ff"),
    "log1p": _both(_fast(math_log.log1p, 10), _sleef("log1p", 14, 38)[0], _sleef("log1p", 14, 38)[1],
                   _sleef("log1p", 14, 38)[1], "fe"),
    "sinh": _both(_fast(math_exp.sinh, 10), _sleef("sinh", 25, 45)[0], _sleef("sinh", 25, 45)[1],
                  _sleef("sinh", 25, 45)[1], "fe"),
    "cosh": _both(_fast(math_exp.cosh, 8), _sleef("cosh", 25, 45)[0], _sleef("cosh", 25, 45)[1],
                  _sleef("cosh", 25, 45)[1], "fe"),
}  # fmt: skip

BINARY: dict[str, Row] = {
    "pow": _both(_fast(math_log.pow_, 20), _sleef("pow", 60, 120)[0], _sleef("pow", 60, 120)[1],
                 _sleef("pow", 60, 120)[1], "fe"),
    "atan2": _called("atan2", 30, 60),
    "hypot": _called("hypot", 10, 20, 0.5, "u05"),
    "fmod": _called("fmod", 20, 30, 0.5, ""),
    "nextafter": _called("nextafter", 5, 10, 0.5, ""),
    "copysign": _exact(math_round.copysign, 1),
    "minimum": _exact(math_round.minimum, 2),
    "maximum": _exact(math_round.maximum, 2),
    "fmin": _exact(math_round.fmin, 2),
    "fmax": _exact(math_round.fmax, 2),
    "remainder": _exact(math_round.remainder, 25),
    "floor_divide": _exact(math_round.floor_divide, 30),
}  # fmt: skip


def emit_unary(
    builder: ir.IRBuilder, name: str, value: Value, style: Style | None = None, target: Target | None = None
) -> Value:
    """`name`(value), lane by lane."""
    build = Lanes(builder, value.type, target)
    return UNARY[name].form(build.double, style).implementation.emit(build, value)


def emit_binary(
    builder: ir.IRBuilder,
    name: str,
    left: Value,
    right: Value,
    style: Style | None = None,
    target: Target | None = None,
) -> Value:
    """`name`(left, right), lane by lane; both sides of one type."""
    build = Lanes(builder, left.type, target)
    return BINARY[name].form(build.double, style).implementation.emit(build, left, right)
