"""`metrics()`: counters and histograms of this process, and their Prometheus text.

Contract. Only what happens when something compiles is counted as it happens, from kinds of events that are rare; hits
and misses of entries are counted natively where they occur anyway, and pulled from there at reading time through the
providers given to `provide_counts`. So metrics cost a call nothing. Break times are an exception: programs report them
only if somebody listened when they were compiled, so `time_breaks()` must be asked for before compiling.

Each counter has at most one label: `metrics().counters["graph_breaks"]["tensor_item"]`.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from stator import events
from stator.events import CompileId, Event
from stator.observe.guarded import guarded

# name -> (label, what it counts)
COUNTERS: dict[str, tuple[str, str]] = {
    "compiles": ("cause", "compiles begun, by what caused them"),
    "compile_errors": ("reason", "compiles that failed"),
    "graph_breaks": ("reason", "graphs that ended early"),
    "fallbacks": ("reason", "things that ran another way than asked"),
    "cache_operations": ("operation", "reads and writes of the persistent caches"),
    "hits": ("region", "calls an entry served"),
    "misses": ("region", "calls no entry matched"),
}

# name -> (label, what it measures); seconds
HISTOGRAMS: dict[str, tuple[str, str]] = {
    "compile_seconds": ("cause", "duration of whole compiles"),
    "stage_seconds": ("stage", "duration of the stages of compiles"),
    "break_seconds": ("reason", "time a broken operation ran in plain Python"),
    "guard_seconds": ("region", "duration of guard checks, where a source samples them (none does so far)"),
}

BOUNDS = (1e-6, 1e-5, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(slots=True)
class Histogram:
    """Observations in buckets; `buckets[i]` counts those up to `BOUNDS[i]`, the last those beyond."""

    count: int = 0
    sum: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def observe(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.buckets[bisect.bisect_left(BOUNDS, value)] += 1

    def copy(self) -> Histogram:
        return Histogram(self.count, self.sum, list(self.buckets))


@dataclass(frozen=True, slots=True)
class Count:
    """What a provider knows about one region or entry at this moment."""

    name: str  # hits, misses, or guard_seconds
    label: str
    value: float


@dataclass(slots=True)
class Metrics:
    """A copy of all counts at one moment."""

    counters: dict[str, dict[str, float]]
    histograms: dict[str, dict[str, Histogram]]

    def total(self, counter: str) -> float:
        """A counter over all its labels."""
        return sum(self.counters[counter].values())

    def to_prometheus(self) -> str:
        """Prometheus text exposition format, version 0.0.4."""
        lines: list[str] = []
        for name, (label, meaning) in COUNTERS.items():
            lines += [f"# HELP stator_{name}_total {meaning}", f"# TYPE stator_{name}_total counter"]
            for value, count in sorted(self.counters[name].items()):
                lines.append(f'stator_{name}_total{{{label}="{_escape(value)}"}} {_number(count)}')
        for name, (label, meaning) in HISTOGRAMS.items():
            lines += [f"# HELP stator_{name} {meaning}", f"# TYPE stator_{name} histogram"]
            for value, histogram in sorted(self.histograms[name].items()):
                key = f'{label}="{_escape(value)}"'
                below = 0
                for bound, count in zip((*BOUNDS, "+Inf"), histogram.buckets, strict=True):
                    below += count
                    lines.append(f'stator_{name}_bucket{{{key},le="{bound}"}} {below}')
                lines.append(f"stator_{name}_sum{{{key}}} {histogram.sum!r}")
                lines.append(f"stator_{name}_count{{{key}}} {histogram.count}")
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        lines = []
        for name, rows in self.counters.items():
            for value, count in sorted(rows.items()):
                lines.append(f"{name:18} {value:28} {_number(count)}")
        for name, samples in self.histograms.items():
            for value, histogram in sorted(samples.items()):
                mean = histogram.sum / histogram.count * 1e3
                lines.append(f"{name:18} {value:28} {histogram.count} x {mean:.3g} ms")
        return "\n".join(lines) or "nothing counted yet"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


class _Counting:
    """The live counts; one lock, taken only by rare events and readers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counters: dict[str, dict[str, float]] = {name: {} for name in COUNTERS}
        self.histograms: dict[str, dict[str, Histogram]] = {name: {} for name in HISTOGRAMS}
        self.causes: dict[CompileId | None, str] = {}  # of the compiles in flight
        self.providers: list[Callable[[], Iterable[Count]]] = []

    def add(self, counter: str, label: str, value: float = 1) -> None:
        with self.lock:
            rows = self.counters[counter]
            rows[label] = rows.get(label, 0) + value

    def observe(self, histogram: str, label: str, value: float) -> None:
        with self.lock:
            self.histograms[histogram].setdefault(label, Histogram()).observe(value)

    def receive(self, event: Event) -> None:
        fields = event.fields
        if event.kind == "compile_start":
            cause = str(fields.get("cause") or "first_call")
            self.causes[event.compile_id] = cause
            self.add("compiles", cause)
        elif event.kind == "compile_end":
            began = self.causes.pop(event.compile_id, "first_call")
            self.observe("compile_seconds", began, float(fields.get("seconds") or 0.0))
            for name, seconds in (fields.get("stages") or {}).items():
                self.observe("stage_seconds", str(name), float(seconds))
            if not fields.get("ok", True):
                self.add("compile_errors", str(fields.get("reason") or "unknown"))
        elif event.kind == "graph_break":
            self.add("graph_breaks", str(fields.get("reason")))
        elif event.kind == "fallback":
            self.add("fallbacks", str(fields.get("reason")))
        elif event.kind == "cache":
            self.add("cache_operations", str(fields.get("operation")))
        elif event.kind == "break_run":
            self.observe("break_seconds", str(fields.get("reason")), float(fields.get("seconds") or 0.0))


_counting = _Counting()
_KINDS = frozenset({"compile_start", "compile_end", "graph_break", "fallback", "cache"})
_ends: list[Callable[[], None]] = []
_break_ends: list[Callable[[], None]] = []


def provide_counts(provider: Callable[[], Iterable[Count]]) -> Callable[[], None]:
    """Pull `provider`'s counts whenever metrics are read; returns the function that ends it."""
    _counting.providers.append(provider)

    def end() -> None:
        if provider in _counting.providers:
            _counting.providers.remove(provider)

    return end


def entry_hits(region: str, table: Any) -> Count:
    """The hits of one region, from its native `EntryTable` (whose order of entries changes as hot ones move up)."""
    return Count("hits", region, sum(entry.hits for entry in table.entries))


def time_breaks(on: bool = True) -> None:
    """Measure how long broken operations run, in programs compiled from now on."""
    while _break_ends:
        _break_ends.pop()()
    if on:
        _break_ends.append(events.subscribe(guarded(_counting.receive, "metrics"), {"break_run"}))


def metrics() -> Metrics:
    """All counts at this moment."""
    with _counting.lock:
        counters = {name: dict(rows) for name, rows in _counting.counters.items()}
        histograms = {
            name: {label: histogram.copy() for label, histogram in rows.items()}
            for name, rows in _counting.histograms.items()
        }
    for provider in tuple(_counting.providers):
        for count in provider():
            if count.name in counters:
                counters[count.name][count.label] = counters[count.name].get(count.label, 0) + count.value
            else:
                histograms[count.name].setdefault(count.label, Histogram()).observe(count.value)
    return Metrics(counters, histograms)


def reset() -> None:
    """Count from zero again."""
    with _counting.lock:
        for counts in _counting.counters.values():
            counts.clear()
        for samples in _counting.histograms.values():
            samples.clear()


def start() -> None:
    """Begin to count; called once when stator is imported."""
    if not _ends:
        _ends.append(events.subscribe(guarded(_counting.receive, "metrics"), _KINDS))
