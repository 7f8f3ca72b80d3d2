"""`explain`: run something once, and get what happened as an object.

Contract. `Explanation` has `.graphs .breaks .recompiles .guards .residual .times .suggestions` and `.result`: plain
data with a stable shape, made for tests to assert on. `str()` of it begins with the one line that answers "why", then
the tables; a notebook shows the whole report, `to_html(path)` writes it. Both are made from the same session.

`recording()` explains whatever is compiled inside a `with` block, over several calls; `explain(fn, compile=...)`
compiles `fn` afresh and explains the calls of the result.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stator import events
from stator.events import CompileId, Event, Location
from stator.observe import advice, report
from stator.observe.advice import Advice
from stator.observe.guarded import guarded
from stator.observe.model import Break, Graph, Recompile, Session, fold
from stator.observe.records import Record, location_from, render, source_line
from stator.observe.report_parts import milliseconds, plural
from stator.observe.trace import UNTRACED, process_facts

_MOST_ROWS = 10
_MOST_PROGRAMS = 3


@dataclass(frozen=True, slots=True)
class GuardLine:
    """One guard of one entry: what it assumes, and the user's line that asked."""

    compile_id: CompileId
    source: str
    kind: str
    text: str
    location: Location | None


class Explanation:
    """What happened while something ran."""

    def __init__(self, session: Session, result: Any = None) -> None:
        self.session = session
        self.result = result

    @property
    def graphs(self) -> list[Graph]:
        """The captured graphs, in order."""
        return self.session.graphs

    @property
    def breaks(self) -> list[Break]:
        """The graph breaks, the most costly first."""
        return self.session.breaks

    @property
    def recompiles(self) -> list[Recompile]:
        """The recompiles, in order."""
        return self.session.recompiles

    @property
    def guards(self) -> list[GuardLine]:
        """The guards of all entries."""
        return [
            GuardLine(entry.compile_id, row["source"], row["kind"], row["text"], location_from(row["at"]))
            for entry in self.session.entries
            for row in entry.guards
        ]

    @property
    def residual(self) -> dict[CompileId, str]:
        """The residual program of each entry as text."""
        return {entry.compile_id: entry.residual for entry in self.session.entries if entry.residual}

    @property
    def times(self) -> dict[str, float]:
        """Seconds by stage, and `total`."""
        return {**self.session.stages, "total": self.session.seconds}

    @property
    def suggestions(self) -> list[Advice]:
        """What to do, the most worthwhile first."""
        return self.session.advices()

    @property
    def headline(self) -> str:
        """The answer in one line."""
        suggestions = self.suggestions
        if suggestions:
            return suggestions[0].headline
        session = self.session
        if not session.entries:
            return "nothing was compiled"
        ops = sum(graph.ops for graph in session.graphs)
        return f"{plural(len(session.graphs), 'graph')} with {plural(ops, 'operator')}: nothing to change"

    def __str__(self) -> str:
        session = self.session
        counts = ", ".join(
            [
                plural(len(session.graphs), "graph"),
                plural(sum(graph.ops for graph in session.graphs), "operator"),
                plural(len(session.breaks), "break"),
                plural(len(session.recompiles), "recompile"),
                plural(len(session.fallbacks), "fallback"),
            ]
        )
        stages = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in session.stages.items())
        lines = [
            self.headline,
            "",
            counts,
            f"compiling: {milliseconds(session.seconds)}{f' ({stages})' if stages else ''}",
        ]
        breaks = [(item.seconds, item.advice) for item in session.breaks]
        lines += _table("breaks, by measured cost", breaks)
        lines += _table("recompiles", [(item.seconds, item.advice) for item in session.recompiles])
        lines += _table("also", [(0.0, said) for said in self.suggestions if said.kind not in ("break", "recompile")])
        lines += self._guard_lines()
        lines += self._residual_lines()
        return "\n".join(lines)

    def _residual_lines(self) -> list[str]:
        """What is left in Python of the entries that end at a break."""
        broken = ("make.recover", "make.arrived")
        ending = [row for row in self.residual.items() if any(sign in row[1] for sign in broken)]
        lines = []
        for name, text in ending[:_MOST_PROGRAMS]:
            lines += ["", f"what is left in Python of {name}", *(f"  {line}" for line in text.rstrip().splitlines())]
        if len(ending) > _MOST_PROGRAMS:
            lines += ["", f"and {plural(len(ending) - _MOST_PROGRAMS, 'more program')}: see .residual"]
        return lines

    def _guard_lines(self) -> list[str]:
        by_line: dict[Location | None, int] = {}
        for guard in self.guards:
            by_line[guard.location] = by_line.get(guard.location, 0) + 1
        if not by_line:
            return []
        ranked = sorted(by_line.items(), key=lambda item: -item[1])
        rows = [
            f"  {count:5}  {advice.place(where) if where else 'no line'}  {source_line(where)}"
            for where, count in ranked[:_MOST_ROWS]
        ]
        if len(ranked) > _MOST_ROWS:
            rows.append(f"         and {plural(len(ranked) - _MOST_ROWS, 'more line')}")
        return ["", f"{plural(len(self.guards), 'guard')}, by the line that asked", *rows]

    __repr__ = __str__

    def to_html(self, path: str | Path) -> Path:
        """Write the report."""
        return report.write(path, [self.session], "stator explain")

    def _repr_html_(self) -> str:
        document = report.render([self.session], "stator explain")
        style = "width:100%;height:640px;border:1px solid #8884;border-radius:8px"
        return f'<iframe style="{style}" srcdoc="{html.escape(document)}"></iframe>'


def _table(title: str, rows: list[tuple[float, Advice]]) -> list[str]:
    if not rows:
        return []
    lines = ["", title]
    for seconds, said in rows[:_MOST_ROWS]:
        cost = milliseconds(seconds) if seconds else ""
        lines.append(f"  {cost:>7}  {said.headline}")
        code = source_line(said.location)
        if code:
            lines.append(f"             {code}")
    if len(rows) > _MOST_ROWS:
        lines.append(f"           and {len(rows) - _MOST_ROWS} more")
    return lines


class Recording:
    """Collects what is compiled inside `with`; `explanation()` may be asked at any time, also inside."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._end: Callable[[], None] | None = None

    def __enter__(self) -> Recording:
        self._end = events.subscribe(guarded(self._receive, "a recording"), set(events.KINDS) - UNTRACED)
        return self

    def __exit__(self, *_: object) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def _receive(self, event: Event) -> None:
        self.records.append(render(event))

    def explanation(self, result: Any = None) -> Explanation:
        """What has happened so far."""
        return Explanation(fold(self.records, process_facts()), result)


def recording() -> Recording:
    """`with recording() as seen: ...; print(seen.explanation())`."""
    return Recording()


def explain(fn: Callable[..., Any], *, compile: Callable[..., Any], **options: Any) -> Callable[..., Explanation]:
    """A callable that runs `fn` compiled with `options` and returns the explanation of all its calls so far.

    `compile` is the public `stator.compile`: the view does not know the stages it looks at.
    """
    seen = Recording()
    with seen:
        compiled = compile(fn, **options)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        with seen:
            result = compiled(*args, **kwargs)
        return seen.explanation(result)

    return explained
