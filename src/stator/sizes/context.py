"""The symbolic sizes of one trace: their symbols, the decisions taken on them, and what those cost.

Contract. A `SizeContext` belongs to one trace and one thread. `symbol`, `symbol_float` and `unbacked` make
`torch.SymInt` / `torch.SymFloat` values that user code and torch's C++ shape functions compute with. A question
whose answer does not follow from what is known is answered by the example value (the hint) and recorded as a
`SizeGuard` with the user's line; without a hint it raises `DataDependentError`, which prints the `torch._check`
that would settle it. A `torch._check` on such a value teaches it, and becomes a `RuntimeAssert`.

0 and 1 are ordinary values: nothing here treats them apart. (They do not share a symbol by duck sizing: that two
dimensions are both 1 says nothing of the next call.)

Why guards are recorded as they are answered and not collected at the end: the line that is being traced is known
only then, and a specialised size is a constant from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from stator import events
from stator.events import Location
from stator.exc import ConstraintViolationError, DataDependentError
from stator.reasons import REASONS
from stator.sizes import torch_names
from stator.sizes.bounds import INF, Bound
from stator.sizes.expression import Algebra, Expr
from stator.sizes.facts import Contradiction, Facts
from stator.sizes.node import SizeNode
from stator.sizes.printer import text_of
from stator.values.source import Source

# torch does not annotate these
_SYM_INT: Any = torch.SymInt
_SYM_FLOAT: Any = torch.SymFloat
_SYM_MAX: Any = torch.sym_max


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """`expr` (a boolean expression) was decided to hold, for `why`, at the user's `location`."""

    expr: Expr
    location: Location | None
    why: str


@dataclass(frozen=True, slots=True)
class RuntimeAssert:
    """`expr` was promised by `torch._check`; the program tests it, and raises RuntimeError with `message`."""

    expr: Expr
    location: Location | None
    message: str


@dataclass(frozen=True, slots=True)
class Specialisation:
    """A symbol became the constant `value`."""

    symbol: Expr
    value: int | float
    location: Location | None
    why: str


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the user said of a symbol. `strict`: it must stay dynamic over [low, high]; else a wish."""

    low: Bound
    high: Bound
    strict: bool
    mark: str  # how the user said it, for messages: `mark_dynamic(x, 0)`


@dataclass(slots=True)
class SymbolInfo:
    """One symbol: where it is read, its example value (None: unbacked) and its declared range."""

    symbol: Expr
    sources: list[Source]
    hint: int | float | None
    low: Bound
    high: Bound
    label: str  # how messages call it
    location: Location | None = None
    constraints: list[Constraint] = field(default_factory=list)


def _no_location() -> Location | None:
    return None


class SizeContext:
    """See the module's contract. `location` says which user line is being traced."""

    def __init__(self, location: Callable[[], Location | None] = _no_location, duck: bool = True) -> None:
        torch_names.install()
        self.algebra = Algebra()
        self.facts = Facts(self.algebra)
        self.location = location
        self.duck = duck
        self.on_assert: Callable[[Expr, str], None] | None = None  # hears of promises the program must check
        self.guards: list[SizeGuard] = []
        self.asserts: list[RuntimeAssert] = []
        self.specialisations: dict[Expr, Specialisation] = {}
        self.infos: dict[Expr, SymbolInfo] = {}
        self.by_source: dict[Source, torch.SymInt | torch.SymFloat] = {}
        self._hint_values: dict[Expr, Any] = {}
        self._hints: dict[Expr, Any] = {}
        self._ducks: dict[tuple[int, Bound, Bound], Expr] = {}
        self._several: dict[Expr, Expr] = {}
        self._backed = 0
        self._unbacked = 0
        self._frozen = False
        self._shape_only = False
        self._presuming = False
        self._presuming_always = False

    # symbols
    def symbol(
        self,
        source: Source,
        hint: int,
        low: int | None = 0,
        high: int | None = None,
        duck: bool = True,
        label: str = "",
    ) -> torch.SymInt:
        """The symbolic integer read from `source`; asking again for a source gives the same one."""
        made = self.by_source.get(source)
        if made is None:
            bounds = (-INF if low is None else low, INF if high is None else high)
            expr = self._ducks.get((hint, *bounds)) if duck and self.duck and hint not in (0, 1) else None
            if expr is not None and self.facts.simplify(expr).constant is None:
                self.infos[expr].sources.append(source)
            else:
                expr = self._declare(f"s{self._backed}", int, hint, bounds, label or str(source), [source])
                self._backed += 1
                if duck and hint not in (0, 1):
                    self._ducks[hint, *bounds] = expr
            made = self.by_source[source] = self.integer(expr)
        return made  # type: ignore[return-value]

    def symbol_float(self, source: Source, hint: float, label: str = "") -> torch.SymFloat:
        """The symbolic float read from `source`."""
        made = self.by_source.get(source)
        if made is None:
            name = f"f{self._backed}"
            self._backed += 1
            expr = self._declare(name, float, hint, (-INF, INF), label or str(source), [source])
            made = self.by_source[source] = _SYM_FLOAT(SizeNode(self, expr))
        return made  # type: ignore[return-value]

    def unbacked(
        self, label: str, low: int | None = 0, high: int | None = None, source: Source | None = None
    ) -> torch.SymInt:
        """A fresh integer known only at run time; `label` says what it is: `x.item()`, `nonzero(mask).size(0)`.

        With a `source` it is an input whose example value must not be used (`mark_unbacked`); its range is guarded.
        """
        made = self.by_source.get(source) if source is not None else None
        if made is None:
            bounds = (-INF if low is None else low, INF if high is None else high)
            expr = self._declare(f"u{self._unbacked}", int, None, bounds, label, [] if source is None else [source])
            self._unbacked += 1
            made = self.integer(expr)
            if source is not None:
                self.by_source[source] = made
        return made  # type: ignore[return-value]

    def unbacked_float(self, label: str) -> torch.SymFloat:
        """A fresh float known only at run time."""
        expr = self._declare(f"uf{self._unbacked}", float, None, (-INF, INF), label, [])
        self._unbacked += 1
        made: torch.SymFloat = _SYM_FLOAT(SizeNode(self, expr))
        return made

    def _declare(
        self,
        name: str,
        type_: type,
        hint: int | float | None,
        bounds: tuple[Bound, Bound],
        label: str,
        sources: list[Source],
    ) -> Expr:
        if hint is not None and not bounds[0] <= hint <= bounds[1] and hint == hint:
            raise ValueError(f"{label} is {hint}, outside of the declared range [{bounds[0]}, {bounds[1]}]")
        expr = self.algebra.symbol(name, type_)
        self.infos[expr] = SymbolInfo(expr, sources, hint, bounds[0], bounds[1], label, self.location())
        if hint is not None:
            self._hint_values[expr] = hint
        self.facts.declare(expr, *bounds, eliminate_first=hint is None)
        events.emit("dynamic", self.location(), text=f"{name} = {label}", symbol=name, source=label, user_line=None)
        return expr

    def number(self, expr: Expr) -> Any:
        """The SymInt, SymFloat or SymBool of an expression of this context."""
        made: Any = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}[expr.type]
        return made(SizeNode(self, expr))

    def integer(self, expr: Expr) -> torch.SymInt:
        """The SymInt of an expression of this context."""
        made: torch.SymInt = _SYM_INT(SizeNode(self, expr))
        return made

    def expr_of(self, value: Any) -> Expr:
        """The expression of a Python number or of a SymInt, SymFloat, SymBool of this context."""
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            node = value.node
            if not isinstance(node, SizeNode) or node.context is not self:
                raise ValueError(f"{value} belongs to another trace")
            expr: Expr = node.expr
            return expr
        return self.algebra.of_value(value)

    def concrete(self, value: Any) -> Any:
        """A Python number if the value is known to be constant, else `value` itself."""
        constant = self.facts.simplify(self.expr_of(value)).constant
        return value if constant is None else constant

    def simplified(self, expr: Expr) -> Expr:
        """`expr` under what is known, over symbols that have sources."""
        return self.facts.expand(self.facts.simplify(expr))

    # what is known
    def hint(self, expr: Expr) -> Any:
        """The example value, None where an unbacked symbol takes part that is not known by others."""
        if expr in self._hints:
            return self._hints[expr]
        value = None
        if expr.symbols <= self._hint_values.keys():
            value = self.algebra.evaluate(expr, self._hint_values)
        else:
            simpler = self.simplified(expr)
            if simpler is not expr and simpler.symbols <= self._hint_values.keys():
                value = self.algebra.evaluate(simpler, self._hint_values)
        if value is not None:
            self._hints[expr] = value
        return value

    def text(self, expr: Expr) -> str:
        """`expr` as the user's own names: `x.size(0) * 2`."""
        return text_of(self.algebra, self.facts.expand(expr), lambda symbol: self.infos[symbol].label)

    def short_text(self, expr: Expr) -> str:
        """`expr` by symbol names: `2*s0`."""
        return text_of(self.algebra, expr)

    def static(self, question: Expr) -> bool | None:
        """The answer without a guard, or None."""
        return self.facts.decide(question)

    # decisions
    def decide(self, question: Expr, why: str = "") -> bool:
        """The answer, by a guard where it does not follow from what is known."""
        answer = self.facts.decide(question)
        if answer is None and self._presuming:
            answer = self.presumption(question)
        if answer is not None:
            return answer
        hint = self.hint(question)
        if hint is None:
            raise self.data_dependent(question)
        answer = bool(hint)
        self.assume(question if answer else self.algebra.logical_not(question), why)
        return answer

    def decide_or(self, question: Expr, otherwise: bool, why: str = "") -> bool:
        """Like `decide`, but `otherwise` where only the run time knows."""
        answer = self.facts.decide(question)
        if answer is None and self._presuming:
            answer = self.presumption(question)
        if answer is not None:
            return answer
        if self._shape_only or self.hint(question) is None:
            return otherwise
        return self.decide(question, why)

    def presume(self, question: Expr, why: str = "") -> bool:
        """Like `decide`, but without a guard where the answer follows for sizes of two and more.

        For questions whose answer does not matter where a size is 0 or 1: how dimensions are ordered by stride, say,
        as one without a second element is never stepped along.
        """
        with self.presuming():
            return self.decide(question, why)

    def presumption(self, question: Expr) -> bool | None:
        """The answer for sizes of two and more, unless the example at hand is the exception."""
        answer = self.facts.decide(self._of_several(question))
        if self._presuming_always:
            return answer
        hint = self.hint(question) if answer is not None else None
        return None if hint is not None and bool(hint) is not answer else answer

    def _of_several(self, expr: Expr) -> Expr:
        """`expr` over t + 2 in place of each size s, t not negative."""
        algebra = self.algebra
        simpler = self.facts.simplify(expr)

        def shifted(part: Expr) -> Expr:
            if part.kind != "symbol" or part.type is not int:
                return algebra.rebuild(part, shifted)
            low, high = self.facts.bounds(part)
            if low < 0 or low > 1 or high < 2:
                return part
            found = self._several.get(part)
            if found is None:
                extra = algebra.symbol(f"{part.name}_several")
                self.facts.declare(extra, 0, INF)
                found = self._several[part] = algebra.add(extra, algebra.integer(2))
            return found

        return shifted(simpler)

    def assume(self, truth: Expr, why: str = "") -> None:
        """Guard that `truth`, which holds for the hints, holds."""
        if self._frozen:
            raise RuntimeError(f"a guard on sizes after the trace: {self.short_text(truth)}")
        if self.facts.decide(truth) is True:
            return
        truth = self.simplified(truth)
        location = self.location()
        self.guards.append(SizeGuard(truth, location, why))
        self._learn(truth, location, why)

    def assume_stride(self, held: torch.SymInt, stride: Any, sizes: Sequence[Any]) -> None:
        """Guard that a tensor's stride is what its sizes make it; of an empty tensor it may be anything."""
        algebra = self.algebra
        truth = algebra.eq(self.expr_of(held), self.expr_of(stride))
        for size in sizes:
            if isinstance(size, torch.SymInt):
                truth = algebra.logical_or(algebra.eq0(self.simplified(self.expr_of(size))), truth)
        self.assume(truth)

    def promise(self, truth: Expr, message: str = "") -> bool:
        """`torch._check(truth)`: teach it. False if it is known not to hold."""
        answer = self.facts.decide(truth)
        if answer is None and self.hint(truth) is not None:
            return self.decide(truth, "torch._check")
        if answer is None:
            location = self.location()
            simpler = self.simplified(truth)
            text = message or f"Expected {self.text(simpler)}, promised by torch._check, but it does not hold"
            if self._frozen:
                raise RuntimeError(f"a promise on sizes after the trace: {self.short_text(truth)}")
            self.asserts.append(RuntimeAssert(simpler, location, text))
            if self.on_assert is not None:
                self.on_assert(simpler, text)
            self._learn(simpler, location, "torch._check")
        return answer is not False

    def _learn(self, truth: Expr, location: Location | None, why: str) -> None:
        count = len(self.facts.fixed)
        try:
            self.facts.learn(truth)
        except Contradiction as error:
            raise DataDependentError(
                _message(location, "data_dependent_size", f"{self.text(truth)} contradicts an earlier torch._check"),
                reason="data_dependent_size",
            ) from error
        for symbol in self.facts.fixed[count:]:
            self._specialised(symbol, location, why)
        if events.wanted("dynamic"):
            events.emit("dynamic", location, text=self.text(truth), symbol="", source="", user_line=location)
        self._check_constraints(truth, location)

    def _specialised(self, symbol: Expr, location: Location | None, why: str) -> None:
        info = self.infos.get(symbol)
        if info is None:
            return
        value = self.facts.simplify(symbol).constant
        self.specialisations[symbol] = Specialisation(symbol, value, location, why)
        for constraint in info.constraints:
            if constraint.strict and constraint.low < constraint.high:
                raise ConstraintViolationError(
                    _message(
                        location,
                        "dynamic_mark_specialised",
                        f"{info.label} was marked by {constraint.mark}, but this line makes it the constant {value}",
                    ),
                    reason="dynamic_mark_specialised",
                )

    def specialise(self, expr: Expr, why: str = "") -> Any:
        """The value of an int or float expression, which is a constant from here on."""
        constant = self.facts.simplify(expr).constant
        if constant is not None:
            return constant
        value = self.hint(expr)
        if value is None:
            raise self.data_dependent(expr)
        if expr.type is int:
            self.assume(self.algebra.eq(expr, self.algebra.integer(value)), why or "used as a plain int")
        else:
            self._specialise_floats(expr, why or "used as a plain float")
        return value

    def _specialise_floats(self, expr: Expr, why: str) -> None:
        """A float expression is a constant once its symbols are: there is no equality that says less."""
        for symbol in sorted(expr.symbols, key=lambda each: each.number):
            if symbol in self.specialisations or self.facts.simplify(symbol).constant is not None:
                continue
            if symbol.type is int:
                self.specialise(symbol, why)
                continue
            value = self._hint_values[symbol]
            location = self.location()
            self.specialisations[symbol] = Specialisation(symbol, value, location, why)
            self.facts.replacements[symbol] = self.algebra.real(value)
            self.facts.forget_caches()
            self._specialised_float(symbol, location)

    def _specialised_float(self, symbol: Expr, location: Location | None) -> None:
        if events.wanted("dynamic"):
            text = f"{self.infos[symbol].label} is the constant {self.specialisations[symbol].value}"
            events.emit("dynamic", location, text=text, symbol=symbol.name, source="", user_line=location)

    def data_dependent(self, question: Expr) -> DataDependentError:
        """The error for a question only the run time can answer."""
        location = self.location()
        simpler = self.simplified(question)
        if simpler.type is not bool:
            value = self.short_text(simpler)
            detail = f"the value of `{value}` is needed here"
            action = f"torch._check({value} == <its value>)"
        else:
            detail = f"whether `{self.short_text(simpler)}` is needed here"
            opposite = self.short_text(self.algebra.logical_not(simpler))
            action = f"torch._check({self.short_text(simpler)})  # or: torch._check({opposite})"
        names = ", ".join(
            f"{symbol.name} is {self.infos[symbol].label}"
            + (f" of {self.infos[symbol].location}" if self.infos[symbol].location else "")
            for symbol in sorted(simpler.symbols, key=lambda each: each.number)
            if symbol in self.infos and self.infos[symbol].hint is None
        )
        text = _message(location, "data_dependent_size", f"{detail}, and only the run time knows it ({names})")
        return DataDependentError(f"{text}\n  {action}", reason="data_dependent_size")

    # the user's constraints
    def constrain(
        self, value: torch.SymInt, low: int | None, high: int | None, *, strict: bool, mark: str = "mark_dynamic"
    ) -> None:
        """The user promises `low <= value <= high` (guarded), and, if strict, asks that it stays dynamic there."""
        expr = self.expr_of(value)
        info = self.infos[expr]
        constraint = Constraint(-INF if low is None else low, INF if high is None else high, strict, mark)
        if info.hint is not None and not constraint.low <= info.hint <= constraint.high:
            raise ConstraintViolationError(
                _message(
                    self.location(),
                    "dynamic_mark_specialised",
                    f"{mark} promises {info.label} in [{constraint.low}, {constraint.high}], but it is {info.hint}",
                ),
                reason="dynamic_mark_specialised",
            )
        info.low, info.high = max(info.low, constraint.low), min(info.high, constraint.high)
        algebra = self.algebra
        if low is not None:
            self.facts.learn(algebra.ge(expr, algebra.integer(low)))
        if high is not None:
            self.facts.learn(algebra.ge(algebra.integer(high), expr))
        info.constraints.append(constraint)

    def _check_constraints(self, truth: Expr, location: Location | None) -> None:
        """A strict range the user gave must not be narrowed by a guard."""
        for symbol in truth.symbols:
            info = self.infos.get(symbol)
            if info is None or not info.constraints:
                continue
            low, high = self.facts.bounds(symbol)
            for constraint in info.constraints:
                given = constraint.low > 0 or constraint.high < INF
                if constraint.strict and given and (low > constraint.low >= 0 or high < constraint.high):
                    raise ConstraintViolationError(
                        _message(
                            location,
                            "dynamic_mark_specialised",
                            f"{info.label} was marked by {constraint.mark} for [{constraint.low}, {constraint.high}], "
                            f"but this line needs {self.text(truth)}",
                        ),
                        reason="dynamic_mark_specialised",
                    )

    # names torch's own Python shape functions ask a node's `shape_env` for
    def evaluate_sym_node(
        self, node: SizeNode, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Any:
        if node.expr.type is not bool:
            return self.specialise(node.expr)
        return self.decide(node.expr) if fallback_value is None else self.decide_or(node.expr, fallback_value)

    def _maybe_evaluate_static(self, expr: Expr, **_: Any) -> Any:
        return self.facts.decide(expr) if expr.type is bool else self.facts.simplify(expr).constant

    def _constrain_range(self, expr: Expr, low: Any, high: Any) -> None:
        algebra = self.algebra
        if low is not None and low > -(2**63):
            self.promise(algebra.ge(expr, algebra.integer(int(low))))
        if high is not None and high < 2**63 - 1:
            self.promise(algebra.ge(algebra.integer(int(high)), expr))

    _constrain_range_for_size = _constrain_range

    def is_unbacked_symint(self, expr: Expr) -> bool:
        return expr in self.infos and self.infos[expr].hint is None

    @contextmanager
    def presuming(self, always: bool = False) -> Iterator[None]:
        """Inside, every decision is taken as `presume` takes it; `always`: whatever the example at hand is.

        For traces of a program whose own decisions are guarded already.
        """
        outer = self._presuming, self._presuming_always
        self._presuming, self._presuming_always = True, always or self._presuming_always
        try:
            yield
        finally:
            self._presuming, self._presuming_always = outer

    @contextmanager
    def shape_only(self) -> Iterator[None]:
        """Inside, a tensor is made for its sizes and strides: what C++ asks to find its storage's size is left open."""
        outer, self._shape_only = self._shape_only, True
        try:
            yield
        finally:
            self._shape_only = outer

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, a question that would need a new guard is a defect: the guards of this trace are already out."""
        self._frozen = True
        try:
            yield
        finally:
            self._frozen = False

    def contiguous_strides(self, sizes: Sequence[Any]) -> list[Any]:
        """The strides of a fresh contiguous tensor, ints where they are constants."""
        strides: list[Any] = [1]
        for size in reversed(sizes[1:]):
            strides.append(strides[-1] * (_SYM_MAX(size, 1) if isinstance(size, torch.SymInt) else max(size, 1)))
        return strides[::-1][: len(sizes)]


def _message(location: Location | None, reason: str, detail: str) -> str:
    where = f"{location}" + (f", in {location.function}" if location and location.function else "")
    return f"{where if location else 'while tracing'}: {detail}. {REASONS[reason].hint} [{reason}]"
