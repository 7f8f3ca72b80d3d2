"""Symbolic sizes and numbers in functional tapes: stand-ins on the way in, computed sizes on the way out.

Contract. `Facts` says what an argument is known to be where that is more than its example: sizes, strides and offset
with symbols, or a symbolic number. While a tape is recorded and rewritten, symbolic numbers stand in the arguments of
its steps as they are. `settle(tape)` puts steps in their place: an input that is a number, `sym_size` and `sym_stride`
of an input tensor, and Python arithmetic over those; `missing(tape)` lists the symbols that no input tells.
`text(value, names)` is the same as Python source, for code around the graphs.

Why afterwards: the tape changes hands many times (functionalised, cut in two), and each of the two halves knows its
sizes from other inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode

from stator.aot.dynamo_free import settle_references
from stator.aot.refusal import refuse
from stator.aot.tape import CALL, Step, Tape, steps_in
from stator.capture.control import Break
from stator.capture.symbolic import COMPARISONS, IN_GRAPH, fold
from stator.sizes import Expr, SizeContext, SizeNode
from stator.sizes.expression import OPAQUE
from stator.sizes.function_rules import FUNCTIONS

aten = torch.ops.aten
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, slots=True)
class Facts:
    """An argument tensor with symbolic sizes, or a symbolic `number`."""

    shape: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()
    offset: Any = 0
    number: Any = None


def facts_of(example: Any, real: Any) -> Facts | None:
    """What a placeholder's example value tells beyond the real argument; None where that is nothing."""
    if type(example) in _SYMBOLIC:
        return Facts(number=example)
    shape, strides = getattr(example, "shape", None), getattr(example, "strides", None)
    if shape is None or strides is None or not isinstance(real, torch.Tensor):
        return None
    if not any(type(value) is torch.SymInt for value in (*shape, *strides)):
        return None
    if len(shape) != real.dim() or len(strides) != real.dim():
        raise refuse("aot_symbolic", detail="an argument whose number of dimensions changes in the program")
    return Facts(tuple(shape), tuple(strides), example.storage_offset())


def context_of(facts: Iterable[Facts | None]) -> SizeContext | None:
    """The context the symbols belong to."""
    for row in facts:
        if row is not None:
            for value in (row.number, *row.shape, *row.strides):
                if type(value) in _SYMBOLIC:
                    context: SizeContext = value.node.context
                    return context
    return None


def _lstm(first: Any, second: Any, *rest: Any) -> Any:
    """`torch.lstm` as torch writes it in Python: its C++ form counts elements, which symbolic sizes do not answer."""
    settle_references()
    overload = aten.lstm.data if isinstance(second, torch.Tensor) else aten.lstm.input
    return decomposition_table[overload](first, second, *rest)


IN_PYTHON: dict[Any, Callable[..., Any]] = {torch.lstm: _lstm}


class SymbolicCalls(TorchFunctionMode):
    """Inside, torch functions that C++ takes apart by concrete sizes go by the rules of `sizes.function_rules`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = FUNCTIONS.get(func) or IN_PYTHON.get(func)
        return (func if rule is None else rule)(*args, **(kwargs or {}))


def symbols_in(value: Any, found: list[Any]) -> None:
    """Adds the symbolic numbers among nested arguments to `found`."""
    kind = type(value)
    if kind in _SYMBOLIC:
        found.append(value)
    elif kind is list or kind is tuple or kind is torch.Size:
        for item in value:
            symbols_in(item, found)
    elif kind is dict:
        for item in value.values():
            symbols_in(item, found)
    elif kind is slice:
        symbols_in((value.start, value.stop, value.step), found)


def _known_by(inputs: Sequence[Step]) -> dict[Expr, tuple[Step, Any, int]]:
    """Symbols that an input tells: the input, and the operator (None: itself) and dimension that read them."""
    found: dict[Expr, tuple[Step, Any, int]] = {}
    rows: list[tuple[Any, Step, Any, int]] = []
    for step in inputs:
        value = step.value
        if type(value) in _SYMBOLIC:
            rows.insert(0, (value, step, None, 0))
        elif isinstance(value, torch.Tensor):
            rows.extend((size, step, aten.sym_size.int, dim) for dim, size in enumerate(value.shape))
    for step in inputs:
        if isinstance(step.value, torch.Tensor):
            rows.extend((size, step, aten.sym_stride.int, dim) for dim, size in enumerate(step.value.stride()))
    for value, step, how, dim in rows:
        if type(value) in _SYMBOLIC and isinstance(value.node, SizeNode):
            context = value.node.context
            for expr in (value.node.expr, context.simplified(value.node.expr)):
                if expr.kind == "symbol":
                    found.setdefault(expr, (step, how, dim))
    return found


def _in_tape(tape: Tape) -> list[Any]:
    found: list[Any] = []
    for step in tape.steps:
        symbols_in(step.args, found)
        symbols_in(step.kwargs, found)
    symbols_in(tape.outputs, found)
    return found


def missing(tape: Tape, values: bool) -> list[torch.SymInt]:
    """Symbols of the tape that none of its inputs tells; with `values`, those of what its steps yield too."""
    wanted = _in_tape(tape)
    if values:
        for step in (*tape.inputs, *tape.steps):
            parts = step.value if isinstance(step.value, (list, tuple)) else (step.value,)
            for part in parts:
                if isinstance(part, torch.Tensor):
                    symbols_in((part.shape, part.stride(), part.storage_offset()), wanted)
    known = _known_by(tape.inputs)
    lacking: dict[Expr, Any] = {}
    for value in wanted:
        context = value.node.context
        expr = _expressed(value, known)
        for symbol in expr.symbols:
            if symbol not in known:
                lacking.setdefault(symbol, context.number(symbol))
    return list(lacking.values())


def _expressed(value: Any, known: dict[Expr, Any]) -> Expr:
    """The value over symbols that are known, where that can be."""
    expr: Expr = value.node.expr
    if not expr.symbols <= known.keys():
        expr = value.node.context.simplified(expr)
    return expr


def _folded(value: Any, known: dict[Expr, Any], leaf: Callable[[Expr], Any], call: Callable[..., Any]) -> Any:
    try:
        return fold(value.node.context.algebra, _expressed(value, known), leaf, call, in_graph=True)
    except Break as unknown:
        raise refuse("aot_symbolic", detail=unknown.detail) from None


class _Computation:
    """Steps that compute an expression, each with the symbolic number it yields."""

    def __init__(
        self, context: SizeContext, leaf: Callable[[Expr], Any], call: Callable[[Callable[..., Any], Any, Any], Any]
    ) -> None:
        self.context = context
        self.leaf = leaf
        self.call = call

    def run(self, expr: Expr) -> Any:
        if expr.kind == "symbol":
            return self.leaf(expr)
        if expr.constant is not None or expr.kind in ("true", "false", "constant"):
            return expr.constant
        if expr.kind == "poly":
            return self._polynomial(expr)
        target = IN_GRAPH.get(expr.kind) or COMPARISONS.get(expr.kind)
        if target is None:
            target = OPAQUE[expr.kind][1] if expr.kind in OPAQUE else None
        if target is None:
            raise refuse("aot_symbolic", detail=f"a number made by {expr.kind}")
        parts = [self.run(part) if isinstance(part, Expr) else part for part in expr.args]
        return self.call(target, parts, self.context.number(expr))

    def _polynomial(self, expr: Expr) -> Any:
        total: Any = None
        for monomial, factor in expr.terms:
            term: Any = None
            for number in monomial:
                part = self.run(self.context.algebra.atoms[number])
                term = part if term is None else self._arithmetic(operator.mul, term, part)
            if term is None:
                term = factor
            elif factor != 1:
                term = self._arithmetic(operator.mul, term, factor)
            total = term if total is None else self._arithmetic(operator.add, total, term)
        return 0 if total is None else total

    def _arithmetic(self, target: Callable[..., Any], *parts: Any) -> Any:
        values = [part.value if isinstance(part, Step) else part for part in parts]
        return self.call(target, parts, target(*values))


def settle(tape: Tape) -> None:
    """Put steps in the place of symbolic numbers."""
    if not _in_tape(tape):
        return
    known = _known_by(tape.inputs)
    made: dict[Any, Step] = {}
    steps: list[Step] = []

    def call(target: Callable[..., Any], parts: Sequence[Any], value: Any) -> Any:
        if not steps_in(parts):
            return target(*parts)
        key = (target, *(id(part) if isinstance(part, Step) else (type(part), part) for part in parts))
        step = made.get(key)
        if step is None:
            step = made[key] = Step(CALL, target, tuple(parts), None, value)
            steps.append(step)
        return step

    def leaf(symbol: Expr) -> Step:
        row = known.get(symbol)
        if row is None:
            raise refuse("aot_symbolic", detail=f"no input tells {symbol.name}")
        step, how, dim = row
        if how is None:
            return step
        key = (how, step, dim)
        found = made.get(key)
        if found is None:
            size = step.value.shape[dim] if how is aten.sym_size.int else step.value.stride()[dim]
            found = made[key] = Step(CALL, how, (step, dim), None, size)
            steps.append(found)
        return found

    def lower(value: Any) -> Any:
        kind = type(value)
        if kind in _SYMBOLIC:
            context = value.node.context
            return _Computation(context, leaf, call).run(_expressed(value, known))
        if kind is list:
            return [lower(item) for item in value]
        if kind is tuple or kind is torch.Size:
            return tuple([lower(item) for item in value])
        if kind is slice:
            return slice(lower(value.start), lower(value.stop), lower(value.step))
        if kind is dict:
            return {key: lower(item) for key, item in value.items()}
        return value

    for step in tape.steps:
        found: list[Any] = []
        symbols_in(step.args, found)
        symbols_in(step.kwargs, found)
        if found:
            step.args, step.kwargs = lower(step.args), lower(step.kwargs)
            step.operands = steps_in((*step.args, *step.kwargs.values()))
        steps.append(step)
    tape.outputs = lower(tape.outputs)
    tape.steps = steps


def text(value: Any, inputs: Sequence[Step], names: Sequence[str]) -> str:
    """Python source of a number or a nested tuple or list of numbers, over arguments called `names`."""
    kind = type(value)
    if kind is list or kind is tuple or kind is torch.Size:
        inner = "".join(f"{text(item, inputs, names)}, " for item in value)
        return f"[{inner}]" if kind is list else f"({inner})"
    if kind not in _SYMBOLIC:
        return repr(value)
    known = _known_by(inputs)
    place = {step: name for step, name in zip(inputs, names, strict=False)}

    def leaf(symbol: Expr) -> str:
        row = known.get(symbol)
        if row is None:
            raise refuse("aot_symbolic", detail=f"no argument tells {symbol.name}")
        step, how, dim = row
        if how is None:
            return place[step]
        return f"{place[step]}.{'shape' if how is aten.sym_size.int else 'stride()'}[{dim}]"

    def call(target: Callable[..., Any], *parts: Any) -> str:
        written = _WRITTEN.get(target)
        if written is None:
            raise refuse("aot_symbolic", detail=f"a size made by {getattr(target, '__name__', target)}")
        return written.format(*parts)

    return str(_folded(value, known, leaf, call))


_WRITTEN: dict[Any, str] = {
    operator.add: "({} + {})", operator.sub: "({} - {})", operator.mul: "({} * {})", operator.floordiv: "({} // {})",
    operator.mod: "({} % {})", operator.truediv: "({} / {})", operator.pow: "({} ** {})",
    torch.sym_min: "min({}, {})", torch.sym_max: "max({}, {})",
}  # fmt: skip


def has_symbols(*values: Any) -> bool:
    """Whether any symbolic number is among nested arguments."""
    found: list[Any] = []
    symbols_in(values, found)
    return bool(found)
