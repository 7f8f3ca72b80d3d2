"""Guards on sizes as data: postfix programs over sources, and sources pinned to a value.

Contract. `lower_guards(context)` gives the conditions under which every decision of the trace comes out as it did: for
integers that satisfy them all, running the traced code again would answer each question alike. The programs have the
form of `guards/size_program.py`: ("load", Source), ("const", int), and operators as 1-tuples.

A condition that the others imply is dropped. A condition the machine has no operators for (floats, powers with a
symbolic exponent, bit operators) pins the sources it reads to the values they have; so does one that 64 bits cannot
compute for the very values it was made with. That costs a recompile for other values, never a wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stator.events import Location
from stator.sizes.bounds import INF
from stator.sizes.expression import Algebra, Expr, Monomial
from stator.sizes.facts import Facts
from stator.sizes.printer import sides, take_remainders
from stator.values.source import Source

if TYPE_CHECKING:
    from stator.sizes.context import SizeContext

Operation = tuple[Any, ...]
LOWEST, HIGHEST = -(2**63), 2**63 - 1
MADE_NOT_NEGATIVE = frozenset({"SIZE", "STRIDE", "OFFSET"})  # steps whose values are never below zero


@dataclass(frozen=True, slots=True)
class LoweredGuard:
    """One program that must leave a value other than zero."""

    operations: tuple[Operation, ...]
    location: Location | None
    why: str
    text: str


@dataclass(frozen=True, slots=True)
class PinnedSource:
    """A source that must have exactly this int or float."""

    source: Source
    value: int | float
    location: Location | None
    why: str


@dataclass(frozen=True, slots=True)
class LoweredGuards:
    """Everything a trace assumed of its symbolic sizes."""

    programs: tuple[LoweredGuard, ...]
    pinned: tuple[PinnedSource, ...]


class NotLowerable(Exception):
    """The guard machine has no operator for this."""


@dataclass(frozen=True, slots=True)
class _Condition:
    expr: Expr
    location: Location | None
    why: str


def lower_guards(context: SizeContext) -> LoweredGuards:
    """See the module's contract."""
    pins: dict[Expr, tuple[Any, Location | None, str]] = {
        symbol: (entry.value, entry.location, entry.why) for symbol, entry in context.specialisations.items()
    }
    kept = _without_redundant(context, pins)
    programs: list[LoweredGuard] = []
    for condition in kept:
        try:
            operations = lower_expression(context, condition.expr)
            _check_64_bits(context, condition.expr)
        except NotLowerable:
            _pin_symbols(context, condition, pins)
            continue
        programs.append(LoweredGuard(operations, condition.location, condition.why, context.text(condition.expr)))
    programs = [program for program in programs if not _reads_only(context, program, pins)]
    shared: list[LoweredGuard] = []
    pinned: list[PinnedSource] = []
    for symbol, info in context.infos.items():
        if symbol in pins:
            pinned.extend(PinnedSource(source, *pins[symbol]) for source in info.sources)
            continue
        for source in info.sources[1:]:
            operations = (("load", source), ("load", info.sources[0]), ("eq",))
            shared.append(LoweredGuard(operations, info.location, "equal sizes", f"{source} == {info.sources[0]}"))
    return LoweredGuards((*shared, *programs), tuple(pinned))


def _pin_symbols(
    context: SizeContext, condition: _Condition, pins: dict[Expr, tuple[Any, Location | None, str]]
) -> None:
    for symbol in condition.expr.symbols:
        value = context.hint(symbol)
        if value is not None:
            pins.setdefault(symbol, (value, condition.location, condition.why))


def _check_64_bits(context: SizeContext, expr: Expr) -> None:
    """Refuse a condition whose products overflow for the example itself: its guard would never hold."""
    pending = [context.facts.expand(expr)]
    while pending:
        part = pending.pop()
        pending.extend(arg for arg in part.args if isinstance(arg, Expr))
        for monomial, factor in part.terms if part.kind == "poly" else ():
            atoms = [context.algebra.atoms[number] for number in monomial]
            pending.extend(atoms)
            size = abs(factor)
            for atom in atoms:
                size *= max(1, abs(context.hint(atom) or 0))
            if size * len(part.terms) > HIGHEST:
                raise NotLowerable("a product of more than 64 bits")


def _reads_only(
    context: SizeContext, program: LoweredGuard, pins: dict[Expr, tuple[Any, Location | None, str]]
) -> bool:
    """Whether it only reads sources that are pinned: then it holds as it held for the example."""
    sources = {operation[1] for operation in program.operations if operation[0] == "load"}
    pinned = {source for symbol in pins if symbol in context.infos for source in context.infos[symbol].sources}
    return sources <= pinned


def _declared(context: SizeContext) -> list[_Condition]:
    """The ranges symbols were declared with, where their sources do not give them anyway."""
    algebra = context.algebra
    found: list[_Condition] = []
    for symbol, info in context.infos.items():
        if not info.sources or symbol.type is not int:
            continue
        natural = info.sources[0].step in MADE_NOT_NEGATIVE
        why = info.constraints[-1].mark if info.constraints else "declared range"
        if info.low != -INF and not (info.low <= 0 and natural):
            found.append(_Condition(algebra.ge(symbol, algebra.integer(int(info.low))), info.location, why))
        if info.high != INF:
            found.append(_Condition(algebra.ge(algebra.integer(int(info.high)), symbol), info.location, why))
    return found


def _without_redundant(context: SizeContext, pins: dict[Expr, tuple[Any, Location | None, str]]) -> list[_Condition]:
    """The conditions, strongest kinds first, each dropped that those before it imply."""
    algebra = context.algebra
    facts = Facts(algebra)
    for symbol, info in context.infos.items():
        if symbol.type is int:
            natural = info.sources and info.sources[0].step in MADE_NOT_NEGATIVE
            facts.declare(symbol, 0 if natural else -INF, INF)
    for symbol, (value, _, _) in pins.items():
        if symbol.type is int:
            facts.learn(algebra.eq(symbol, algebra.integer(value)))
    conditions = _declared(context) + [
        _Condition(guard.expr, guard.location, guard.why) for guard in context.guards if not _is_pin(guard.expr, pins)
    ]
    strongest: dict[Expr, int] = {}
    for condition in conditions:  # of s >= 2 and s >= 5 only the second counts
        if condition.expr.kind == "ge0":
            base, offset = _base_and_offset(algebra, condition.expr.args[0])
            strongest[base] = min(offset, strongest.get(base, offset))
    kept: list[_Condition] = []
    for condition in sorted(conditions, key=_strength):
        if condition.expr.kind == "ge0":
            base, offset = _base_and_offset(algebra, condition.expr.args[0])
            if offset > strongest[base]:
                continue
        if facts.decide(condition.expr) is True:
            continue
        kept.append(condition)
        facts.learn(condition.expr)
    order = {id(condition): position for position, condition in enumerate(conditions)}
    return sorted(kept, key=lambda condition: order[id(condition)])


def _is_pin(expr: Expr, pins: dict[Expr, Any]) -> bool:
    return bool(expr.symbols) and all(symbol in pins for symbol in expr.symbols)


def _base_and_offset(algebra: Algebra, operand: Expr) -> tuple[Expr, int]:
    offset = operand.terms[0][1] if not operand.terms[0][0] else 0
    return algebra.add(operand, algebra.integer(-offset)), offset


def _strength(condition: _Condition) -> int:
    """Equalities tell most, then ranges of one symbol, then comparisons, then the rest."""
    expr = condition.expr
    if expr.kind == "eq0":
        return 0
    if expr.kind == "ge0":
        return 1 if len(expr.symbols) == 1 else 2
    return 3


def lower_expression(context: SizeContext, expr: Expr) -> tuple[Operation, ...]:
    """The postfix program of an int or bool expression over symbols that have sources; NotLowerable otherwise."""
    operations: list[Operation] = []
    _Lowering(context, operations).push(context.facts.expand(expr))
    return tuple(operations)


class _Lowering:
    def __init__(self, context: SizeContext, operations: list[Operation]) -> None:
        self.context = context
        self.algebra = context.algebra
        self.operations = operations

    def push(self, expr: Expr) -> None:
        kind = expr.kind
        if kind == "symbol":
            info = self.context.infos.get(expr)
            if info is None or not info.sources or expr.type is not int:
                raise NotLowerable(expr.name)
            self.operations.append(("load", info.sources[0]))
        elif kind == "poly":
            self.sum(expr)
        elif kind in ("eq0", "ge0"):
            left, right, operator = sides(self.algebra, expr)
            self.push(left)
            self.push(right)
            self.operations.append((operator,))
        elif kind == "not" and expr.args[0].kind == "eq0":
            self.push(expr.args[0])
            self.operations[-1] = ("ne",)
        elif kind in ("true", "false"):
            self.operations.append(("const", int(expr.constant)))
        elif kind in ("min", "max", "and", "or"):
            self.push(expr.args[0])
            for arg in expr.args[1:]:
                self.push(arg)
                self.operations.append((kind,))
        elif kind == "floordiv":
            self.binary("floordiv", *expr.args)
        elif kind == "ite":  # c * p + (1 - c) * q
            condition, yes, no = expr.args
            self.binary("mul", condition, yes)
            self.push(self.algebra.logical_not(condition))
            self.push(no)
            self.operations += [("mul",), ("add",)]
        elif kind == "not":
            self.push(expr.args[0])
            self.operations.append(("not",))
        else:
            raise NotLowerable(kind)

    def binary(self, operator: str, left: Expr, right: Expr) -> None:
        self.push(left)
        self.push(right)
        self.operations.append((operator,))

    def sum(self, expr: Expr) -> None:
        rest, remainders = take_remainders(self.algebra, expr)
        parts = [(factor, monomial, None) for monomial, factor in rest.terms]
        parts += [(times, (), (dividend, divisor)) for times, dividend, divisor in remainders]  # type: ignore[misc]
        parts.sort(key=lambda part: part[0] < 0)  # what is subtracted comes last
        if not parts:
            self.constant(0)
        for position, (factor, monomial, remainder) in enumerate(parts):
            negative = factor < 0 and position > 0
            self.term(abs(factor) if negative else factor, monomial, remainder)
            if position:
                self.operations.append(("sub",) if negative else ("add",))

    def term(self, factor: int, monomial: Monomial, remainder: tuple[Expr, Expr] | None) -> None:
        first = True
        if remainder is not None:
            self.binary("mod", *remainder)
            first = False
        for number in monomial:
            self.push(self.algebra.atoms[number])
            if not first:
                self.operations.append(("mul",))
            first = False
        if first:
            self.constant(factor)
        elif factor != 1:
            self.constant(factor)
            self.operations.append(("mul",))

    def constant(self, value: int) -> None:
        if not LOWEST <= value <= HIGHEST:
            raise NotLowerable(str(value))
        self.operations.append(("const", value))
