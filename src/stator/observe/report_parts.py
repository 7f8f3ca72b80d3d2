"""The parts of a report, each a function from a session to HTML.

Contract. A part with nothing to show is empty, so that a clean run has a short report. What search should find
separately has the class `item`; identities (`[0/1]`) link to the entry's card. The parts say the same words as
logs and `explain` do, because all take them from `advice`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from stator.events import CompileId, Location
from stator.observe import advice
from stator.observe.advice import Advice
from stator.observe.graphs import user_lines
from stator.observe.markup import Budget, Html, fold, join, tag
from stator.observe.model import Break, Entry, Kernel, Region, Session
from stator.observe.records import Record, location_from, source_line

STAGE_COLOURS = 8
_MOST_LANES = 80
_MOST_ADVICE = 5

CAUSES = {
    "first_call": "first call",
    "recompile": "recompile",
    "continuation": "continuation after a break",
    "backward": "backward",
}


def milliseconds(seconds: float) -> str:
    """A duration as people read it."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"


def size(count: int | None) -> str:
    """A number of bytes as people read it."""
    if count is None:
        return ""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def plural(count: int, noun: str) -> str:
    """`1 break`, `2 breaks`, `2 entries`."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else many}"


def section(key: str, title: str, *body: Any, note: str = "") -> Html:
    """One part under its heading."""
    return tag("section", tag("h2", title, tag("small", note) if note else ""), *body, id=key)


class Parts:
    """Everything one session shows. `prefix` keeps identities of several sessions apart."""

    def __init__(self, session: Session, budget: Budget, prefix: str = "") -> None:
        self.session = session
        self.budget = budget
        self.prefix = prefix

    def link(self, key: CompileId | None) -> Html:
        if key is None:
            return Html("")
        return tag("a", str(key), href=f"#{self.prefix}e{key.region}-{key.entry}", cls="nowrap")

    # -- overview

    def tiles(self) -> Html:
        session = self.session
        failed = sum(not entry.ok for entry in session.entries)
        hits, misses = session.cache["hit"], session.cache["miss"]
        rows: list[tuple[str, int | str, str]] = [
            ("", len(session.regions), "regions"),
            ("", len(session.entries), "compiles"),
            ("", len(session.graphs), "graphs"),
            ("", sum(graph.ops for graph in session.graphs), "operators"),
            ("break" if session.breaks else "", len(session.breaks), "breaks"),
            ("recompile" if session.recompiles else "", len(session.recompiles), "recompiles"),
            ("break" if session.fallbacks else "", len(session.fallbacks), "fallbacks"),
            ("error" if failed else "", failed, "errors"),
            ("", len(session.kernels), "kernels"),
            ("", milliseconds(session.seconds), "compiling"),
        ]
        tiles = [tag("div", tag("b", value), tag("span", name), cls=f"tile {cls}".strip()) for cls, value, name in rows]
        if hits or misses:
            tiles.append(tag("div", tag("b", f"{hits} / {hits + misses}"), tag("span", "cache hits"), cls="tile"))
        return tag("div", *tiles, cls="tiles")

    def first(self) -> Html:
        """What to look at first."""
        advices = self.session.advices()
        if not advices:
            return self.section("first", "What to do first", tag("p", "Nothing: no breaks, recompiles or fallbacks."))
        shown = [self.advice(item) for item in advices[:_MOST_ADVICE]]
        rest = advices[_MOST_ADVICE:]
        if rest:
            shown.append(fold(f"{len(rest)} more", *[self.advice(item) for item in rest]))
        return self.section("first", "What to do first", *shown)

    def advice(self, item: Advice) -> Html:
        """One advice: where, what, what to do."""
        kind = item.kind if item.kind in ("break", "recompile", "error") else ""
        cost = tag("span", milliseconds(item.seconds), cls="soft nowrap") if item.seconds else ""
        chips = [
            tag("span", item.kind, cls=f"chip {kind}".strip()),
            " ",
            tag("code", item.reason, cls="soft"),
            " ",
            cost,
        ]
        where = tag("span", advice.place(item.location), cls="where") if item.location else ""
        code = source_line(item.location)
        return tag(
            "div",
            tag("div", where, tag("span", *chips), cls="top"),
            tag("div", item.what),
            tag("div", item.action, cls="action") if item.action else "",
            tag("pre", code) if code else "",
            cls=f"card advice item {item.kind}",
        )

    def section(self, key: str, title: str, *body: Any, note: str = "") -> Html:
        return section(f"{self.prefix}{key}", title, *body, note=note)

    # -- timeline

    def timeline(self) -> Html:
        """Compiles by stage over time, one lane a region; the time in between is left out."""
        entries = [entry for entry in self.session.entries if entry.seconds > 0]
        if not entries:
            return Html("")
        starts = _compressed_starts(entries)
        whole = max(starts[entry.compile_id] + entry.seconds for entry in entries)
        names = list(self.session.stages)
        colours = {name: f"s{min(index, STAGE_COLOURS - 1)}" for index, name in enumerate(names)}
        lanes: dict[int, list[Entry]] = {}
        for entry in entries:
            lanes.setdefault(entry.compile_id.region, []).append(entry)
        rows = [
            self._lane(self.session.regions[key], row, starts, whole, colours)
            for key, row in list(lanes.items())[:_MOST_LANES]
        ]
        if len(lanes) > _MOST_LANES:
            rows.append(tag("p", f"and {len(lanes) - _MOST_LANES} more regions", cls="soft"))
        stages = self.session.stages
        legend = [
            tag("span", tag("i", cls=colours[name]), f"{name} {milliseconds(seconds)}")
            for name, seconds in stages.items()
        ]
        body = tag("div", *rows, tag("div", *legend, cls="legend"), cls="timeline")
        return self.section("timeline", "Where compile time went", body, note="time between compiles is left out")

    def _lane(
        self,
        region: Region,
        entries: list[Entry],
        starts: dict[CompileId, float],
        whole: float,
        colours: dict[str, str],
    ) -> Html:
        bars = []
        for entry in entries:
            known = sum(entry.stages.values()) or entry.seconds
            parts = [
                tag("i", cls=colours.get(name, "s7"), style=f"width:{seconds / known * 100:.2f}%")
                for name, seconds in entry.stages.items()
            ]
            shares = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in entry.stages.items())
            left, width = starts[entry.compile_id] / whole * 100, entry.seconds / whole * 100
            bars.append(
                tag(
                    "a",
                    *(parts or [tag("i", cls="s7", style="width:100%")]),
                    href=f"#{self.prefix}e{entry.compile_id.region}-{entry.compile_id.entry}",
                    title=f"{entry.compile_id} {entry.cause}: {milliseconds(entry.seconds)} ({shares})",
                    style=f"left:{left:.3f}%;width:{width:.3f}%",
                    cls=f"entry-bar {entry.state}",
                )
            )
        line = f":{region.location.line}" if region.location else ""
        name = tag("span", f"[{region.id}] {region.name}{line}", cls="name", title=str(region.location or region.name))
        return tag(
            "div",
            name,
            tag("div", *bars, cls="track"),
            tag("span", milliseconds(region.seconds), cls="time"),
            cls="lane",
        )

    # -- breaks and recompiles

    def breaks(self) -> Html:
        """Breaks, the most costly first."""
        rows = self.session.breaks
        if not rows:
            return Html("")
        most = max(item.seconds for item in rows) or 1.0
        head = tag(
            "tr", *[tag("th", name) for name in ("Where", "Why, and what to do")], tag("th", "Cost", cls="number")
        )
        body = [self._break(item, most) for item in rows]
        table = tag("div", tag("table", tag("thead", head), tag("tbody", *body)), cls="scroll")
        note = "by measured cost: time in plain Python and the extra compiles"
        return self.section("breaks", "Graph breaks", table, note=note)

    def _break(self, item: Break, most: float) -> Html:
        said = item.advice
        stack = [tag("li", f"{advice.place(location_from(frame))}: ", tag("code", frame[3])) for frame in item.stack]
        entries = [self.link(key) for key in dict.fromkeys(item.entries)][:12]
        ran = f"{item.runs} runs {milliseconds(item.run_seconds)}; " if item.runs else ""
        cost = [
            tag("b", milliseconds(item.seconds)),
            tag("span", tag("i", style=f"width:{item.seconds / most * 100:.0f}%"), cls="meter"),
            tag("div", f"{ran}compiling {milliseconds(item.compile_seconds)}", cls="soft"),
        ]
        where = [
            tag("div", advice.place(item.location), cls="nowrap"),
            tag("code", item.line or source_line(item.location)),
        ]
        why = [
            tag("div", said.what),
            tag("div", f"→ {said.action}" if said.action else ""),
            tag("code", said.reason, cls="soft"),
            " in ",
            *[part for key in entries for part in (key, " ")],
            fold("call stack", tag("ul", *stack, cls="plain")) if stack else "",
        ]
        return tag("tr", tag("td", *where), tag("td", *why), tag("td", *cost, cls="number"), cls="item")

    def recompiles(self) -> Html:
        """For each region: entry after entry, what changed, and which line cared."""
        chains = [region for region in self.session.regions.values() if any(e.recompile for e in region.entries)]
        cards = []
        for region in chains:
            steps = [self._step(entry) for entry in region.entries if entry.recompile is not None]
            title = [
                tag("b", f"[{region.id}] {region.name}"),
                tag("span", plural(len(steps), "recompile"), cls="chip recompile"),
            ]
            first = region.entries[0].compile_id
            cards.append(
                tag("div", tag("div", *title, cls="chain"), self._first_step(first), *steps, cls="card recompile item")
            )
        unclaimed = [
            item for item in self.session.recompiles if not any(e.recompile is item for e in self.session.entries)
        ]
        cards += [self.advice(item.advice) for item in unclaimed]
        return self.section("recompiles", "Recompiles", *cards) if cards else Html("")

    def _first_step(self, key: CompileId) -> Html:
        return tag("div", self.link(key), tag("span", "first call", cls="soft"), cls="chain")

    def _step(self, entry: Entry) -> Html:
        found = entry.recompile
        assert found is not None
        said = found.advice
        diff = [
            tag("code", found.changed),
            tag("code", found.old, cls="old"),
            "→",
            tag("code", found.new, cls="new"),
            tag("span", milliseconds(found.seconds), cls="soft"),
        ]
        others = [tag("li", miss["text"]) for miss in found.misses[1:]]
        return join(
            [
                tag("div", self.link(entry.compile_id), *diff, cls="chain"),
                tag("div", f"{advice.place(said.location)}: ", tag("code", source_line(said.location))),
                tag("div", f"→ {said.action}"),
                fold("why the other entries did not match", tag("ul", *others, cls="plain")) if others else "",
            ]
        )

    # -- regions and their entries

    def regions(self) -> Html:
        cards = [self._region(region) for region in self.session.regions.values()]
        return self.section("regions", "Regions and entries", *cards) if cards else Html("")

    def _region(self, region: Region) -> Html:
        summary = [
            tag("b", f"[{region.id}] {region.name}"),
            tag("span", region.state, cls=f"chip {region.state}"),
            tag("span", advice.place(region.location) if region.location else "", cls="soft"),
            tag("span", f"{plural(len(region.entries), 'entry')}, {milliseconds(region.seconds)}", cls="soft"),
        ]
        body = [self._entry(entry) for entry in region.entries]
        return fold(summary, *body, cls=f"card item {region.state}")

    def _entry(self, entry: Entry) -> Html:
        counts = entry.counts
        guards = counts.get("guards", len(entry.guards))
        ops = counts.get("ops", sum(graph.ops for graph in entry.graphs if graph.which == "captured"))
        facts = f"{milliseconds(entry.seconds)}, {plural(ops, 'operator')}, {plural(guards, 'guard')}"
        summary = [
            tag("b", str(entry.compile_id)),
            tag("span", entry.state, cls=f"chip {entry.state}"),
            tag("span", CAUSES.get(entry.cause, entry.cause)),
            tag("span", " of ", self.link(entry.parent), cls="soft") if entry.parent else "",
            tag("span", facts if entry.ended else "did not end", cls="soft"),
        ]
        body: list[Any] = []
        if entry.error:
            body.append(tag("pre", entry.error))
        body += [self.advice(item.advice) for item in entry.breaks]
        body += [self._graph(entry, index) for index in range(len(entry.graphs))]
        body += self._guards(entry)
        if entry.residual:
            body.append(self._code("residual program", entry.residual, f"the residual program of {entry.compile_id}"))
        body += [self._kernel(kernel, entry.compile_id) for kernel in entry.kernels]
        for schedule in entry.schedules:
            title = f"schedule{_memory(schedule)}"
            body.append(self._code(title, str(schedule.get("text", "")), f"the schedule of {entry.compile_id}"))
        for language, text in entry.output_code:
            body.append(self._code(f"output code ({language})", text, f"the output code of {entry.compile_id}"))
        for title, text in entry.bytecode:
            body.append(self._code(f"bytecode: {title}", text, f"{title} of {entry.compile_id}"))
        body += self._dynamic(entry)
        key = entry.compile_id
        return fold(summary, *body, cls=f"card {entry.state}", id=f"{self.prefix}e{key.region}-{key.entry}")

    def _code(self, title: str, text: str, name: str) -> Html:
        shown, note = self.budget.take(text, name)
        return fold(title, tag("pre", shown) if shown else "", tag("p", note, cls="soft") if note else "")

    def _graph(self, entry: Entry, index: int) -> Html:
        graph = entry.graphs[index]
        title = f"{graph.which} graph, {plural(graph.ops, 'operator')}"
        shown, note = self.budget.take(graph.text, f"the {graph.which} graph of {entry.compile_id}")
        rows = [
            part
            for location, code, nodes in user_lines(shown)
            for part in (self._user(location, code), tag("div", tag("pre", "\n".join(nodes)), cls="made"))
        ]
        return fold(
            title,
            tag("div", *rows, cls="beside") if rows else "",
            tag("p", note, cls="soft") if note else "",
        )

    @staticmethod
    def _user(location: Location | None, code: str = "") -> Html:
        if location is None:
            return tag("div", cls="user")
        text = code or source_line(location)
        return tag("div", tag("code", text), tag("span", advice.place(location)), cls="user")

    def _kernel(self, kernel: Kernel, key: CompileId) -> Html:
        moved = "".join(
            f", {verb} {size(count)}"
            for verb, count in (("reads", kernel.bytes_read), ("writes", kernel.bytes_written))
            if count is not None
        )
        shown, note = self.budget.take(kernel.text, f"kernel {kernel.name} of {key}")
        lines = [self._user(location) for location in kernel.user_lines] or [tag("div", cls="user")]
        made = tag("div", tag("pre", shown) if shown else tag("p", note, cls="soft"), cls="made")
        beside = tag("div", tag("div", *lines, cls="user"), made, cls="beside")
        return fold(f"kernel {kernel.name}{moved}", beside)

    def _guards(self, entry: Entry) -> list[Html]:
        """Guards by the user line that asked for them."""
        if not entry.guards:
            return []
        by_line: dict[Location | None, list[str]] = {}
        for row in entry.guards:
            by_line.setdefault(location_from(row.get("at")), []).append(row["text"])
        rows = []
        for location, texts in sorted(by_line.items(), key=lambda item: -len(item[1])):
            shown, note = self.budget.take("\n".join(texts), f"guards of {entry.compile_id}")
            who = self._user(location) if location else tag("div", "no user line", cls="user soft")
            rows += [who, tag("div", tag("pre", shown or note), cls="made")]
        return [fold(f"{plural(len(entry.guards), 'guard')}, by the line that asked", tag("div", *rows, cls="beside"))]

    def _dynamic(self, entry: Entry) -> list[Html]:
        if not entry.dynamic:
            return []
        rows = [tag("li", _dynamic_text(record)) for record in entry.dynamic]
        return [fold(plural(len(rows), "symbolic size"), tag("ul", *rows, cls="plain"))]

    # -- kernels, memory, the rest

    def kernels(self) -> Html:
        """Kernels and memory, largest traffic first."""
        rows = [(kernel, entry) for entry in self.session.entries for kernel in entry.kernels]
        if not rows:
            return Html("")
        rows.sort(key=lambda row: -((row[0].bytes_read or 0) + (row[0].bytes_written or 0)))
        head = tag(
            "tr",
            *[tag("th", name) for name in ("Kernel", "Computes", "In")],
            *[tag("th", name, cls="number") for name in ("Reads", "Writes")],
        )
        body = [
            tag(
                "tr",
                tag("td", tag("code", kernel.name)),
                tag(
                    "td",
                    *[tag("div", advice.place(at), ": ", tag("code", source_line(at))) for at in kernel.user_lines],
                ),
                tag("td", self.link(entry.compile_id)),
                tag("td", size(kernel.bytes_read), cls="number"),
                tag("td", size(kernel.bytes_written), cls="number"),
                cls="item",
            )
            for kernel, entry in rows[:200]
        ]
        schedules = [schedule for entry in self.session.entries for schedule in entry.schedules]
        arena = sum(schedule.get("arena_bytes") or 0 for schedule in schedules)
        buffers = sum(schedule.get("buffer_bytes") or 0 for schedule in schedules)
        memory = f"buffers {size(arena)}, without reuse {size(buffers)}" if buffers else ""
        parts: list[Any] = [tag("div", tag("table", tag("thead", head), tag("tbody", *body)), cls="scroll")]
        refused = Counter(
            (advice.of_refused_fusion(record).headline)
            for entry in self.session.entries
            for record in entry.fusions
            if not record.fields.get("fused")
        )
        fused = sum(bool(record.fields.get("fused")) for entry in self.session.entries for record in entry.fusions)
        if refused or fused:
            items = [tag("li", f"{text}{f' ({count} times)' if count > 1 else ''}") for text, count in refused.items()]
            parts.append(fold(f"{fused} fused, {sum(refused.values())} not fused", tag("ul", *items, cls="plain")))
        return self.section("kernels", "Kernels and memory", *parts, note=memory)

    def rest(self) -> Html:
        """Fallbacks, hints, warnings."""
        session = self.session
        cards = [self.advice(advice.of_fallback(record)) for record in session.fallbacks]
        cards += [self.advice(advice.of_hint(record)) for record in session.hints]
        cards += [tag("div", str(record.fields.get("text", "")), cls="card item") for record in session.warnings]
        return self.section("rest", "Fallbacks, hints and warnings", *cards) if cards else Html("")


def _memory(schedule: dict[str, Any]) -> str:
    counts = [f"{schedule[name]} {name}" for name in ("kernels", "externs") if schedule.get(name) is not None]
    return f": {', '.join(counts)}" if counts else ""


def _dynamic_text(record: Record) -> str:
    fields = record.fields
    at = location_from(fields.get("user_line")) or record.location
    where = f" ({advice.place(at)})" if at else ""
    return f"{fields.get('symbol', '')} = {fields.get('source', '')}: {fields.get('text', '')}{where}"


def _compressed_starts(entries: list[Entry]) -> dict[CompileId, float]:
    """When each compile began, with the time in which nothing compiled taken out."""
    starts: dict[CompileId, float] = {}
    removed, reached = 0.0, None
    for entry in sorted(entries, key=lambda item: item.start):
        if reached is None:
            removed = entry.start
        elif entry.start > reached:
            removed += entry.start - reached
        starts[entry.compile_id] = entry.start - removed
        reached = max(reached or 0.0, entry.start + entry.seconds)
    return starts
