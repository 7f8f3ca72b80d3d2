"""What happened, folded from records: regions, their entries, breaks by cost, chains of recompiles.

Contract. `fold(records)` never fails on an incomplete stream (a killed process, an entry whose start fell out of a
bounded trace): what is missing is empty. `Session` is plain data with a stable shape, made for tests to assert
on; `explain`, reports and `stator.metrics` views are made from it and nothing else.

A break's cost is measured: seconds its operation ran in plain Python (`break_run`) plus the compile time of the
continuations that exist only because of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stator.events import CompileId, Location
from stator.observe import advice
from stator.observe.advice import Advice
from stator.observe.records import Record, location_from


@dataclass(slots=True)
class Graph:
    """One graph of an entry as text: `captured`, `forward`, `backward`, `inference` or `joint`."""

    which: str
    text: str
    ops: int
    sizes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Kernel:
    """One generated kernel, and the user's lines it computes."""

    name: str
    text: str
    user_lines: list[Location]
    bytes_read: int | None = None
    bytes_written: int | None = None


@dataclass(slots=True)
class Break:
    """One place where graphs end, over all entries that end there."""

    location: Location | None
    reason: str
    detail: str
    line: str
    stack: list[list[Any]]
    record: Record
    entries: list[CompileId] = field(default_factory=list)
    runs: int = 0
    run_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """What the break cost, measured."""
        return self.run_seconds + self.compile_seconds

    @property
    def advice(self) -> Advice:
        return advice.of_break(self.record, self.seconds)


@dataclass(slots=True)
class Recompile:
    """One call that no entry matched."""

    name: str
    location: Location | None
    changed: str
    old: str
    new: str
    misses: list[dict[str, Any]]
    record: Record
    compile_id: CompileId | None
    seconds: float = 0.0

    @property
    def advice(self) -> Advice:
        return advice.of_recompile(self.record, self.seconds)


@dataclass(slots=True)
class Entry:
    """One compile of a region, and all it reported."""

    compile_id: CompileId
    cause: str = "first_call"
    start: float = 0.0
    seconds: float = 0.0
    ended: bool = False
    ok: bool = True
    error: str = ""
    reason: str = ""
    parent: CompileId | None = None
    stages: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)
    guards: list[dict[str, Any]] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    recompile: Recompile | None = None
    residual: str = ""
    output_code: list[tuple[str, str]] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    schedules: list[dict[str, Any]] = field(default_factory=list)
    fusions: list[Record] = field(default_factory=list)
    dynamic: list[Record] = field(default_factory=list)
    bytecode: list[tuple[str, str]] = field(default_factory=list)
    thread: int = 0

    @property
    def state(self) -> str:
        """`error`, `break`, `recompile` or `ok`: the worst thing to say about it."""
        if not self.ok:
            return "error"
        if self.breaks:
            return "break"
        return "recompile" if self.cause == "recompile" else "ok"


@dataclass(slots=True)
class Region:
    """A compiled function or a continuation, with its entries."""

    id: int
    name: str = "?"
    location: Location | None = None
    entries: list[Entry] = field(default_factory=list)

    @property
    def parent(self) -> CompileId | None:
        return self.entries[0].parent if self.entries else None

    @property
    def seconds(self) -> float:
        return sum(entry.seconds for entry in self.entries)

    @property
    def state(self) -> str:
        states = {entry.state for entry in self.entries}
        return next((state for state in ("error", "break", "recompile") if state in states), "ok")


@dataclass(slots=True)
class Session:
    """One process (and rank) as far as its records tell."""

    process: dict[str, Any] = field(default_factory=dict)
    regions: dict[int, Region] = field(default_factory=dict)
    breaks: list[Break] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    fallbacks: list[Record] = field(default_factory=list)
    warnings: list[Record] = field(default_factory=list)
    hints: list[Record] = field(default_factory=list)
    specialised: list[Record] = field(default_factory=list)
    cache: Counter[str] = field(default_factory=Counter)
    dropped: int = 0

    @property
    def entries(self) -> list[Entry]:
        """All entries in the order their compiles began."""
        entries = [entry for region in self.regions.values() for entry in region.entries]
        return sorted(entries, key=lambda entry: entry.start)

    @property
    def graphs(self) -> list[Graph]:
        """The captured graphs."""
        return [graph for entry in self.entries for graph in entry.graphs if graph.which == "captured"]

    @property
    def kernels(self) -> list[Kernel]:
        return [kernel for entry in self.entries for kernel in entry.kernels]

    @property
    def seconds(self) -> float:
        """Compile time in all."""
        return sum(entry.seconds for entry in self.entries)

    @property
    def stages(self) -> dict[str, float]:
        """Compile time by stage, in the order in which stages run."""
        total: Counter[str] = Counter()
        for entry in self.entries:
            total.update(entry.stages)
        return dict(total)

    def advices(self) -> list[Advice]:
        """All there is to tell, what to look at first first: errors, then by measured cost, then the rest."""
        errors = []
        for entry in self.entries:
            if not entry.ok:
                fields = {"error": entry.error, "reason": entry.reason}
                record = Record("compile_end", entry.compile_id, 0.0, 0, None, fields)
                errors.append(advice.of_error(record, self.regions[entry.compile_id.region].location))
        costly = advice.merged([*(item.advice for item in self.breaks), *(item.advice for item in self.recompiles)])
        costly.sort(key=lambda item: -item.seconds)
        rest = [advice.of_fallback(record) for record in self.fallbacks]
        rest += [advice.of_specialisation(record) for record in self.specialised]
        for entry in self.entries:
            rest += [advice.of_refused_fusion(record) for record in entry.fusions if not record.fields.get("fused")]
        rest.sort(key=lambda item: item.location is None)  # what points at a line can be acted on
        hints = [advice.of_hint(record) for record in self.hints]
        return list(dict.fromkeys([*errors, *costly, *hints, *rest]))


class _Folder:
    """Applies one record after the other; one method a kind."""

    def __init__(self) -> None:
        self.session = Session()
        self.entries: dict[CompileId, Entry] = {}
        self.breaks: dict[tuple[Any, ...], Break] = {}
        self.runs: list[Record] = []
        self.unclaimed: dict[int, Recompile] = {}  # thread -> a recompile reported before its compile began

    def entry(self, record: Record) -> Entry | None:
        if record.compile_id is None:
            return None
        entry = self.entries.get(record.compile_id)
        if entry is None:
            key = record.compile_id
            entry = self.entries[key] = Entry(key, start=record.time, thread=record.thread)
            region = self.session.regions.setdefault(key.region, Region(key.region))
            region.entries.append(entry)
        return entry

    def apply(self, record: Record) -> None:
        handler = getattr(self, record.kind, None)
        if handler is not None:
            handler(record, self.entry(record))

    def compile_start(self, record: Record, entry: Entry | None) -> None:
        if entry is None:
            return
        fields = record.fields
        entry.cause = str(fields.get("cause") or "first_call")
        entry.start, entry.thread = record.time, record.thread
        claimed = self.unclaimed.pop(record.thread, None)
        if claimed is not None and entry.cause == "recompile" and entry.recompile is None:
            entry.recompile = claimed
        parent = fields.get("parent")
        entry.parent = CompileId(*parent) if isinstance(parent, list) and len(parent) == 2 else None
        region = self.session.regions[entry.compile_id.region]
        if region.name == "?":
            region.name = str(fields.get("name", "?")).partition(" at ")[0]  # where it is, is its location
            location = location_from([fields.get("file"), fields.get("line"), region.name])
            region.location = location or record.location

    def compile_end(self, record: Record, entry: Entry | None) -> None:
        if entry is None:
            return
        fields = record.fields
        entry.ended, entry.ok = True, bool(fields.get("ok", True))
        entry.seconds = float(fields.get("seconds") or 0.0)
        entry.error, entry.reason = str(fields.get("error") or ""), str(fields.get("reason") or "")
        if fields.get("stages"):
            entry.stages = _whole_stages({str(k): float(v) for k, v in fields["stages"].items()}, entry.stages)
        entry.counts = {name: int(fields[name]) for name in ("graphs", "ops", "guards") if _is_int(fields.get(name))}

    def stage(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            name = str(record.fields["name"])
            entry.stages[name] = entry.stages.get(name, 0.0) + float(record.fields["seconds"])

    def _add_graph(self, which: str, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            fields = record.fields
            sizes = fields.get("sizes")
            entry.graphs.append(
                Graph(which, fields["text"], int(fields["ops"]), sizes if isinstance(sizes, dict) else {})
            )

    def graph(self, record: Record, entry: Entry | None) -> None:
        self._add_graph("captured", record, entry)

    def aot_graph(self, record: Record, entry: Entry | None) -> None:
        self._add_graph(str(record.fields.get("which", "forward")), record, entry)

    def aot_joint_graph(self, record: Record, entry: Entry | None) -> None:
        self._add_graph("joint", record, entry)

    def graph_break(self, record: Record, entry: Entry | None) -> None:
        fields = record.fields
        location = advice.of_break(record).location
        detail = fields.get("detail")
        key = (location, fields.get("reason"))
        found = self.breaks.get(key)
        if found is None:
            found = self.breaks[key] = Break(
                location=location,
                reason=str(fields.get("reason", "")),
                detail="" if detail is None else str(detail),
                line=str(fields.get("line", "")),
                stack=list(fields.get("stack") or ()),
                record=record,
            )
        if entry is not None:
            found.entries.append(entry.compile_id)
            entry.breaks.append(found)

    def break_run(self, record: Record, entry: Entry | None) -> None:
        self.runs.append(record)

    def guards(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            entry.guards = record.fields["guards"]

    def recompile(self, record: Record, entry: Entry | None) -> None:
        fields = record.fields
        change = advice.change_of(record)
        found = Recompile(
            name=str(fields.get("name", "")),
            location=advice.of_recompile(record).location,
            old=change.old,
            new=change.new,
            changed=change.name,
            misses=fields.get("misses") or [],
            record=record,
            compile_id=record.compile_id,
        )
        self.session.recompiles.append(found)
        if entry is None or entry.ended:
            self.unclaimed[record.thread] = found
        else:
            entry.recompile = found
            entry.cause = "recompile"

    def residual(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            entry.residual = record.fields["text"]

    def bytecode(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            entry.bytecode.append((record.fields["title"], record.fields["text"]))

    def output_code(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            entry.output_code.append((str(record.fields.get("language", "")), record.fields["text"]))

    def kernel_code(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            fields = record.fields
            lines = [location for line in fields.get("user_lines") or () if (location := location_from(line))]
            read, written = fields.get("bytes_read"), fields.get("bytes_written")
            entry.kernels.append(Kernel(str(fields.get("name", "")), fields["text"], lines, read, written))

    def schedule(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            entry.schedules.append(record.fields)

    def fusion(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            entry.fusions.append(record)

    def dynamic(self, record: Record, entry: Entry | None) -> None:
        if entry is not None:
            entry.dynamic.append(record)
        if record.fields.get("action") == "specialised":
            self.session.specialised.append(record)

    def fallback(self, record: Record, entry: Entry | None) -> None:
        self.session.fallbacks.append(record)

    def warning(self, record: Record, entry: Entry | None) -> None:
        self.session.warnings.append(record)

    def perf_hint(self, record: Record, entry: Entry | None) -> None:
        self.session.hints.append(record)

    def cache(self, record: Record, entry: Entry | None) -> None:
        self.session.cache[str(record.fields.get("operation"))] += 1

    def finish(self) -> Session:
        """Costs that need the whole stream."""
        for entry in self.entries.values():
            parent = self.entries.get(entry.parent) if entry.parent else None
            if entry.cause == "continuation" and parent is not None and parent.breaks:
                parent.breaks[-1].compile_seconds += entry.seconds
            if entry.recompile is not None:
                entry.recompile.seconds = entry.seconds
        for record in self.runs:
            found = self._broken_at(record)
            if found is not None:
                found.runs += 1
                found.run_seconds += float(record.fields.get("seconds") or 0.0)
        self.session.breaks = sorted(self.breaks.values(), key=lambda item: -item.seconds)
        return self.session

    def _broken_at(self, record: Record) -> Break | None:
        reason = record.fields.get("reason")
        if record.location is not None:
            for (location, name), found in self.breaks.items():
                if name == reason and location and _same_line(location, record.location):
                    return found
        entry = self.entries.get(record.compile_id) if record.compile_id else None
        return entry.breaks[-1] if entry is not None and entry.breaks else None


def _whole_stages(whole: dict[str, float], parts: dict[str, float]) -> dict[str, float]:
    """The stages of a compile, its `backend` split into the parts that reported themselves."""
    inner = {name: seconds for name, seconds in parts.items() if name not in whole}
    stages: dict[str, float] = {}
    for name, seconds in whole.items():
        if name == "backend" and inner:
            stages |= inner
            seconds = max(0.0, seconds - sum(inner.values()))
        stages[name] = seconds
    return stages


def _same_line(one: Location, other: Location) -> bool:
    return one.line == other.line and one.file == other.file


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def fold(records: Iterable[Record], process: dict[str, Any] | None = None) -> Session:
    """Everything the records tell, as one `Session`."""
    folder = _Folder()
    for record in records:
        folder.apply(record)
    session = folder.finish()
    session.process = process or {}
    return session
