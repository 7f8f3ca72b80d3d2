"""Which sizes and numbers from outside are symbolic in the next trace.

Contract. A `DynamicHistory` belongs to one place where calls arrive (a code object, or a continuation) and outlives
its entries and resets of the trace. `size` and `number` say how to treat one source whose value is at hand, and
remember the value. What turns one source dynamic turns no other. From the strongest say to the weakest:

    marks on the tensor         mark_unbacked, mark_dynamic, mark_static, maybe_mark_dynamic
    dynamic=False               constant
    dynamic={"x": {0: (1, 64)}} symbolic over that range, and an error where it cannot be
    config.dynamic_sources      symbolic
    dynamic=True                symbolic: sizes, and numbers among the arguments (0 and 1 once they change: a 1 that
                                never changes is one to broadcast)
    the profile                 symbolic: it was in an earlier process
    a second value              symbolic from then on (config.automatic_dynamic_shapes)
    otherwise                   constant

Sources are told apart by their structural paths. State: dictionaries of the history; the caller holds the lock of the
place while it compiles.
"""

from __future__ import annotations

import difflib
import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stator import config
from stator.exc import InvalidOption
from stator.sizes.lowering import HIGHEST, LOWEST
from stator.sizes.marks import NONE, Limits, Marks

Path = tuple[Any, ...]


class Treatment(enum.Enum):
    """How a trace holds a size or number from outside."""

    CONSTANT = "constant"
    SYMBOLIC = "symbolic"
    UNBACKED = "unbacked"


@dataclass(frozen=True, slots=True)
class Decision:
    """How to treat a source. `strict`: an error where it cannot be; `mark`: who said so, for messages."""

    treatment: Treatment
    low: int | None = None
    high: int | None = None
    strict: bool = False
    mark: str = ""


CONSTANT = Decision(Treatment.CONSTANT)


@dataclass(frozen=True, slots=True)
class Specification:
    """A checked `dynamic={...}`: source text -> dimension -> limits (a number: no dimensions, limits under None)."""

    rows: Mapping[str, Mapping[int | None, Limits]]

    def limits(self, source: str, dim: int | None, rank: int = 0) -> Limits | None:
        """The limits given for a dimension of a source, None if it is not listed."""
        row = self.rows.get(source)
        if row is None:
            return None
        if dim is None:
            return row.get(None)
        for listed in row:
            if listed is not None and not -rank <= listed < rank:
                raise _refused(f"{source!r} has {rank} dimensions, so there is no dimension {listed}")
        return row.get(dim, row.get(dim - rank))


def parse_specification(value: Any, function: Callable[..., Any]) -> Specification | bool | None:
    """`dynamic=` of `stator.compile`, checked against the parameters of `function` where it is declared."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, Mapping):
        raise _refused(f"it is None, True, False or a mapping from parameters to dimensions, not {value!r}")
    names = _parameters(function)
    rows: dict[str, Mapping[int | None, Limits]] = {}
    for source, row in value.items():
        if not isinstance(source, str):
            raise _refused(f"a parameter is named by a string, not {source!r}")
        base = source.replace("[", ".").partition(".")[0]
        if names is not None and base not in names:
            near = difflib.get_close_matches(base, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(sorted(names)) or 'none'}"
            raise _refused(f"there is no parameter {base!r}{hint}")
        rows[source] = _row(source, row)
    return Specification(rows)


def _parameters(function: Callable[..., Any]) -> set[str] | None:
    """Names a specification may start with; None where a function does not tell."""
    target = inspect.unwrap(getattr(function, "forward", function))
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None
    return set(parameters) | {"self"}


def _row(source: str, row: Any) -> Mapping[int | None, Limits]:
    if isinstance(row, Mapping):
        if not row:
            raise _refused(f"{source!r} lists no dimension")
        for dim in row:
            if type(dim) is not int:
                raise _refused(f"a dimension of {source!r} is an int, not {dim!r}")
        return {dim: _limits(f"{source!r}, dimension {dim}", limits, sizes=True) for dim, limits in row.items()}
    if isinstance(row, (set, frozenset, list)) and row and all(type(dim) is int for dim in row):
        return dict.fromkeys(row, (None, None))
    return {None: _limits(repr(source), row, sizes=False)}


def _limits(what: str, limits: Any, sizes: bool) -> Limits:
    if limits is None or limits is True:
        return None, None
    if not isinstance(limits, (tuple, list)) or len(limits) != 2:
        raise _refused(f"the range of {what} is (min, max) or None, not {limits!r}")
    low, high = limits
    for bound in (low, high):
        if bound is not None and (type(bound) is not int or (sizes and bound < 0)):
            kind = "an int that is not negative" if sizes else "an int"
            raise _refused(f"a bound of {what} is {kind} or None, not {bound!r}")
    if low is not None and high is not None and low > high:
        raise _refused(f"the range of {what}, ({low}, {high}), is empty")
    return low, high


def _refused(detail: str) -> InvalidOption:
    return InvalidOption(f"dynamic=...: {detail} [dynamic_specification]", reason="dynamic_specification")


class DynamicHistory:
    """What one place has seen of its sources, and what follows for the next trace."""

    def __init__(
        self,
        dynamic: Specification | bool | None = None,
        profiled: Iterable[str] = (),
        on_dynamic: Callable[[str], None] | None = None,
    ) -> None:
        """`profiled`: source texts that start dynamic; `on_dynamic(text)` hears of each that turns dynamic."""
        self.dynamic = dynamic
        self.profiled = frozenset(profiled)
        self.on_dynamic = on_dynamic
        self.first: dict[Path, Any] = {}
        self.varying: set[Path] = set()
        self.ranks: dict[Path, int] = {}
        self.shapeless: set[Path] = set()  # tensors seen with several ranks

    def rank(self, path: Path, rank: int) -> None:
        """A tensor comes with so many dimensions. One that came with another number varies in all of its sizes."""
        if self.ranks.setdefault(path, rank) != rank and config.automatic_dynamic_shapes:
            self.shapeless.add(path)

    def size(
        self, path: Path, source: str, dim: int, value: int, marks: Marks = NONE, rank: int = 1, constant: bool = False
    ) -> Decision:
        """A size of the tensor at `source` (its text; `path` its steps). `constant`: sizes of a parameter or buffer."""
        marked = self._by_marks(source, dim, marks)
        if marked is not None:
            return marked
        if self.dynamic is False:
            return CONSTANT
        declared = self._by_specification(source, dim, rank)
        if declared is not None:
            return declared
        text = f"{source}.size({dim})"
        where = (*path, ("SIZE", dim))
        if constant:
            return CONSTANT
        varies = self._varies(where, text, value) or path in self.shapeless
        if varies or self._starts_dynamic(source, text):
            return Decision(Treatment.SYMBOLIC, mark="a second size")
        eager = self.dynamic is True or not config.assume_static_by_default
        if eager and value not in (0, 1):
            return Decision(Treatment.SYMBOLIC, mark="dynamic=True")
        return CONSTANT

    def number(
        self, path: Path, source: str, value: int | float, given: bool = False, remember: bool = True
    ) -> Decision:
        """An int or float of the user's. `given`: the caller passes it, so that `dynamic=True` speaks of it."""
        if isinstance(value, bool) or self.dynamic is False:
            return CONSTANT
        if isinstance(value, int) and not LOWEST <= value <= HIGHEST:
            return CONSTANT  # guards compute in 64 bits
        declared = self._by_specification(source, None, 0)
        if declared is not None:
            return declared
        if config.specialize_int if isinstance(value, int) else config.specialize_float:
            return CONSTANT
        if self._varies(path, source, value, remember) or self._starts_dynamic(source, source):
            return Decision(Treatment.SYMBOLIC, mark="a second value")
        if self.dynamic is True and given and value not in (0, 1):
            return Decision(Treatment.SYMBOLIC, mark="dynamic=True")
        return CONSTANT

    def _by_marks(self, source: str, dim: int, marks: Marks) -> Decision | None:
        if not marks:
            return None
        call = f"({source}, {dim})"
        if dim in marks.unbacked:
            strict = dim in marks.strict_unbacked
            return Decision(Treatment.UNBACKED, *marks.unbacked[dim], strict=strict, mark=f"mark_unbacked{call}")
        if dim in marks.dynamic:
            return Decision(Treatment.SYMBOLIC, *marks.dynamic[dim], strict=True, mark=f"mark_dynamic{call}")
        if dim in marks.static:
            return CONSTANT
        if dim in marks.maybe_dynamic:
            return Decision(Treatment.SYMBOLIC, mark=f"maybe_mark_dynamic{call}")
        return None

    def _by_specification(self, source: str, dim: int | None, rank: int) -> Decision | None:
        if not isinstance(self.dynamic, Specification):
            return None
        limits = self.dynamic.limits(source, dim, rank)
        if limits is None:
            return None
        at = source if dim is None else f"{source}: {{{dim}: ...}}"
        return Decision(Treatment.SYMBOLIC, *limits, strict=True, mark=f"dynamic={{{at}}}")

    def _starts_dynamic(self, source: str, text: str) -> bool:
        if config.dynamic_profile and text in self.profiled:
            return True
        listed = config.dynamic_sources
        return bool(listed) and bool({source, text} & named_sources(listed))

    def _varies(self, path: Path, text: str, value: int | float, remember: bool = True) -> bool:
        """Whether the source was seen with another value; remembers this one."""
        path = (*path, type(value))  # another kind of value is not another value of its kind
        if path in self.varying:
            return bool(config.automatic_dynamic_shapes)
        if not remember:
            return not _same(self.first.get(path, value), value) and bool(config.automatic_dynamic_shapes)
        if _same(self.first.setdefault(path, value), value) or not config.automatic_dynamic_shapes:
            return False
        self.varying.add(path)
        if self.on_dynamic is not None:
            self.on_dynamic(text)
        return True


def _same(known: int | float, value: int | float) -> bool:
    """Whether two values are one to a guard: NaN is NaN."""
    return known == value or (known != known and value != value)


def named_sources(text: str) -> frozenset[str]:
    """The sources `config.dynamic_sources` lists, in our spelling: `L['x']` is `x`, as torch spells locals."""
    names = (part.strip().replace('"', "'") for part in text.split(","))
    return frozenset(_without_locals(name) for name in names if name)


def _without_locals(name: str) -> str:
    if name.startswith("L['"):
        local, _, rest = name[3:].partition("']")
        return local + rest
    return name
