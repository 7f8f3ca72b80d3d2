"""`stator report DIR -o report.html`: one HTML file that needs nothing else.

Contract. No network, no fonts, no libraries: it opens from a mail on a phone, prints, and follows light and dark. Its
size is bounded (`LIMIT`): code and graphs beyond that stay in the trace, and the report says so. Several ranks or
processes stand side by side, with the rows marked where they diverge; details are shown once per different rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from stator.observe.markup import Budget, Html, join, tag
from stator.observe.model import Session, fold
from stator.observe.records import remember_lines
from stator.observe.report_parts import Parts, milliseconds, plural, section
from stator.observe.trace_format import Trace, read

LIMIT = 2_400_000

SECTIONS = (
    ("first", "Do first"),
    ("ranks", "Ranks"),
    ("timeline", "Time"),
    ("breaks", "Breaks"),
    ("recompiles", "Recompiles"),
    ("kernels", "Kernels"),
    ("regions", "Regions"),
    ("rest", "Other"),
)


def _template(name: str) -> str:
    return (resources.files("stator.observe") / "templates" / name).read_text(encoding="utf-8")


def load(path: str | Path) -> list[Session]:
    """The sessions of a trace directory (or of one trace file), ranks in order."""
    place = Path(path)
    if place.is_dir():
        files = sorted(place.glob("*.log"))
    elif place.is_file():
        files = [place]
    else:
        raise FileNotFoundError(f"no trace there: {place}")
    if not files:
        raise FileNotFoundError(f"no trace file (*.log) in {place}; run with STATOR_TRACE={place}")
    sessions = [_session(read(file)) for file in files]
    return sorted(sessions, key=lambda session: (session.process.get("rank") or 0, session.process.get("started") or 0))


def _session(trace: Trace) -> Session:
    remember_lines(trace.lines)
    session = fold(trace.records, trace.process)
    session.dropped = trace.unread
    return session


def label(session: Session, index: int) -> str:
    """How a session is called: by its rank, else by its process."""
    rank = session.process.get("rank")
    if rank is not None:
        return f"rank {rank}"
    pid = session.process.get("pid")
    return f"process {pid}" if pid is not None else f"process {index}"


def signature(session: Session) -> tuple[Any, ...]:
    """What must be equal between ranks that run the same program: everything but times and identities."""
    return tuple(row[1:] for row in _rows(session).values())


def _rows(session: Session) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Per region: its state, and what its entries did."""
    rows: dict[tuple[str, str], tuple[Any, ...]] = {}
    for region in session.regions.values():
        key = (region.name, str(region.location))
        while key in rows:
            key = (key[0], key[1] + "'")
        done = tuple(
            (
                entry.cause,
                entry.state,
                tuple(graph.ops for graph in entry.graphs),
                tuple(item.reason for item in entry.breaks),
                (entry.recompile.old, entry.recompile.new) if entry.recompile else None,
            )
            for entry in region.entries
        )
        rows[key] = (region, region.state, done)
    return rows


def diverging(sessions: Sequence[Session]) -> list[tuple[str, str]]:
    """The regions (name, location) that are not the same on all ranks."""
    tables = [_rows(session) for session in sessions]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    return [key for key in keys if len({table[key][1:] if key in table else None for table in tables}) > 1]


def _ranks(sessions: Sequence[Session]) -> Html:
    if len(sessions) < 2:
        return Html("")
    tables = [_rows(session) for session in sessions]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    differs = set(diverging(sessions))
    head = tag("tr", tag("th", "Region"), *[tag("th", label(session, index)) for index, session in enumerate(sessions)])
    body = []
    for key in sorted(keys, key=lambda key: key not in differs):
        cells = [_rank_cell(table.get(key)) for table in tables]
        mark = tag("span", "diverges", cls="chip break") if key in differs else ""
        first = tag("td", tag("b", key[0]), " ", mark, tag("div", key[1].rstrip("'"), cls="soft"))
        body.append(tag("tr", first, *cells, cls="item differs" if key in differs else "item"))
    note = f"{len(differs)} of {plural(len(keys), 'region')} diverge" if differs else "all the same"
    table = tag("div", tag("table", tag("thead", head), tag("tbody", *body)), cls="scroll")
    return section("ranks", "Side by side", table, note=note)


def _rank_cell(row: tuple[Any, ...] | None) -> Html:
    if row is None:
        return tag("td", tag("span", "not compiled", cls="soft"))
    region = row[0]
    changes = [f"{e.recompile.old} → {e.recompile.new}" for e in region.entries if e.recompile]
    ops = sum(graph.ops for entry in region.entries for graph in entry.graphs if graph.which == "captured")
    return tag(
        "td",
        tag("span", region.state, cls=f"chip {region.state}"),
        f" {plural(len(region.entries), 'entry')}, {plural(ops, 'operator')}, {milliseconds(region.seconds)}",
        *[tag("div", change, cls="soft") for change in changes],
    )


def headline(sessions: Sequence[Session]) -> str:
    """The verdict in one sentence."""
    first = sessions[0]
    errors = sum(not entry.ok for entry in first.entries)
    counts = [
        plural(len(first.graphs), "graph"),
        plural(len(first.breaks), "break"),
        plural(len(first.recompiles), "recompile"),
    ]
    if errors:
        counts.insert(0, plural(errors, "error"))
    return f"{', '.join(counts)}; {milliseconds(first.seconds)} compiling"


def render(sessions: Sequence[Session], title: str = "stator report") -> str:
    """The whole document."""
    if not sessions:
        raise ValueError("a report needs at least one session")
    budget = Budget(LIMIT)
    parts: list[Html] = [_ranks(sessions)]
    shown: dict[tuple[Any, ...], str] = {}
    for index, session in enumerate(sessions):
        name = label(session, index)
        twin = shown.get(signature(session))
        if twin is not None:
            parts.append(tag("p", f"{name} compiled the same as {twin}.", cls="soft"))
            continue
        shown[signature(session)] = name
        parts.append(_session_body(session, budget, name if len(sessions) > 1 else "", f"p{index}" if index else ""))
    process = sessions[0].process
    about = [
        process.get("command") or title,
        *(f"{key} {process[key]}" for key in ("torch", "python") if key in process),
    ]
    head = [tag("h1", headline(sessions)), tag("div", " · ".join(map(str, about)), cls="soft")]
    body = join([*head, *parts])
    nav = join(tag("a", name, href=f"#{key}") for key, name in SECTIONS if f'id="{key}"' in body)
    notes = []
    if budget.left_out:
        notes.append(f"{budget.left_out} texts were left out to keep this file small; the traces hold them.")
    if any(session.dropped for session in sessions):
        notes.append("A trace ends in the middle of a record: its process was killed or its disk was full.")
    values = {
        "title": escape(f"{title}: {headline(sessions)}"),
        "css": _template("report.css"),
        "nav": nav,
        "body": body,
        "footer": escape(" ".join(notes) or "All that the traces hold is here."),
        "js": _template("report.js"),
    }
    document = _template("report.html")
    pieces = document.split("{{")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, _, after = piece.partition("}}")
        out += [values[name], after]
    return "".join(out)


def _session_body(session: Session, budget: Budget, name: str, prefix: str) -> Html:
    parts = Parts(session, budget, prefix)
    sections = [parts.first(), parts.timeline(), parts.breaks(), parts.recompiles(), parts.kernels(), parts.regions()]
    title = tag("h2", name) if name else ""
    return join([title, parts.tiles(), *sections, parts.rest()])


def write(path: str | Path, sessions: Sequence[Session], title: str = "stator report") -> Path:
    """Write the report of some sessions to a file."""
    target = Path(path)
    target.write_text(render(sessions, title), encoding="utf-8")
    return target
