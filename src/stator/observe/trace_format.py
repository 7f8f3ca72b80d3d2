"""The lines of a trace: what the released `tlparse` reads, and our own records among them.

Contract. `Encoder.encode(record)` gives the lines of one record; `read(path)` gives all records back, equal to those
that were written. A line is a glog prefix and one JSON object; what is long follows it as a payload of lines that begin
with a tab, under its MD5. Each event becomes at most one record in tlparse's own vocabulary (`_NATIVE`: its pages for
the stack trie, graphs, guards, code, metrics), and one trace-viewer event (`chromium_event`), which tlparse passes on
to its timeline and which carries our whole record in its `args`. A text both need is written once: ours refers to the
payload by its MD5.

Reason. tlparse counts every top-level field it does not know as an error; the trace-viewer event is the one
place in its format where anything may stand. So the same file is a strict-clean tlparse trace and complete for us.

A trace of a killed process ends somewhere: `read` takes every record that is whole and says how much it left out.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stator.events import CompileId, Location
from stator.observe import advice
from stator.observe.records import Record, location_from, locations, source_line

_REFERENCE = "$payload"
_PATH = "stator/observe/trace.py:1"

# Kinds that are worth their bytes even when the file is almost full.
SHORT_KINDS = frozenset({"compile_start", "compile_end", "graph_break", "recompile", "fallback", "warning"})

# Name, metadata, payload (text, or data written as JSON), and the field of the record that the payload stands for.
Native = tuple[str, dict[str, Any], Any, str]


def dumps(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _clean(text: str) -> str:
    """`text` as it comes back from a file read line by line as UTF-8."""
    return text.replace("\r", "").encode("utf-8", "backslashreplace").decode("utf-8")


class Encoder:
    """Records to lines, for one file: interned file names, and what a compile's metrics need from its start."""

    def __init__(self, process: dict[str, Any]) -> None:
        self.process = process
        self.rank: int | None = process.get("rank")
        self.wall = time.time() - time.perf_counter()
        self.interned: dict[str, int] = {}
        self.lines: list[str] = []
        self.sources: set[tuple[str, int]] = set()
        self.starts: dict[CompileId, Record] = {}
        self.broken: dict[CompileId, list[str]] = {}

    def header(self) -> str:
        """The first line: who writes."""
        args = {"name": self.process.get("command", "python"), "stator_process": self.process}
        event = {"name": "process_name", "ph": "M", "ts": 0, "pid": self.process.get("pid", 0), "tid": 0, "args": args}
        self._line("chromium_event", {}, dumps(event), None, time.perf_counter(), 0)
        return self._take()

    def encode(self, record: Record, *, short: bool = False) -> str:
        """All lines of one record; `short` leaves the texts out."""
        if record.kind == "compile_start" and record.compile_id is not None:
            self.starts[record.compile_id] = record
            self.broken[record.compile_id] = []
        elif record.kind == "graph_break" and record.compile_id is not None:
            self.broken.setdefault(record.compile_id, []).append(advice.of_break(record).headline)
        native = _NATIVE.get(record.kind)
        references: dict[str, Any] = {}
        if native is not None:
            for name, metadata, payload, stands_for in native(self, record):
                if short and payload is not None:
                    continue
                text = payload if payload is None or isinstance(payload, str) else dumps(payload)
                digest = self._line(name, metadata, text, record.compile_id, record.time, record.thread)
                if digest is not None and stands_for:
                    form = "text" if isinstance(payload, str) else "json"
                    references[stands_for] = {_REFERENCE: digest, "form": form}
        self._own(record, references)
        self._sources(record)
        if record.kind == "compile_end" and record.compile_id is not None:
            self.starts.pop(record.compile_id, None)
            self.broken.pop(record.compile_id, None)
        return self._take()

    def _own(self, record: Record, references: dict[str, Any]) -> None:
        data = record.to_json()
        if references:
            data["fields"] = {**record.fields, **references}
        seconds = record.fields.get("seconds")
        begin = record.time + self.wall
        event: dict[str, Any] = {"name": _title(record), "cat": record.kind, "pid": self.process.get("pid", 0)}
        event["tid"] = record.thread
        if isinstance(seconds, float | int) and record.kind in ("stage", "compile_end", "break_run"):
            event.update(ph="X", ts=int((begin - seconds) * 1e6), dur=max(1, int(seconds * 1e6)))
        else:
            event.update(ph="i", s="t", ts=int(begin * 1e6))
        event["args"] = {"stator": data}
        self._line("chromium_event", {}, dumps(event), record.compile_id, record.time, record.thread)

    def _sources(self, record: Record) -> None:
        """The text of the user's lines, so that a report can be made on another machine."""
        new = []
        for location in locations(record):
            key = (location.file, location.line)
            if key not in self.sources:
                self.sources.add(key)
                new.append([*key, source_line(location)])
        if new:
            event = {"name": "stator_lines", "ph": "M", "ts": 0, "pid": 0, "tid": 0, "args": {"stator_lines": new}}
            self._line("chromium_event", {}, dumps(event), None, record.time, record.thread)

    def _line(
        self,
        name: str,
        metadata: dict[str, Any],
        payload: str | None,
        compile_id: CompileId | None,
        moment: float,
        thread: int,
    ) -> str | None:
        envelope: dict[str, Any] = {name: metadata}
        if self.rank is not None:
            envelope["rank"] = self.rank
        if compile_id is not None:
            envelope.update(frame_id=compile_id.region, frame_compile_id=compile_id.entry, attempt=0)
        digest = None
        if payload is not None:
            data = payload.replace("\r", "").encode("utf-8", "backslashreplace")
            payload = data.decode("utf-8")
            digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
            envelope["has_payload"] = digest
        self.lines.append(f"{self._prefix(moment, thread)}{_clean(dumps(envelope))}")
        if payload is not None:
            self.lines.append("\t" + payload.replace("\n", "\n\t"))
        return digest

    def _prefix(self, moment: float, thread: int) -> str:
        seconds = moment + self.wall
        clock = time.strftime("%m%d %H:%M:%S", time.gmtime(seconds))
        return f"V{clock}.{int(seconds % 1 * 1e6):06d} {thread} {_PATH}] "

    def _take(self) -> str:
        text = "\n".join(self.lines) + "\n"
        self.lines.clear()
        return text

    def discard(self) -> None:
        """Forget the lines of a record that could not be finished."""
        self.lines = [line for line in self.lines if '{"str":' in line]

    def frames(self, stack: list[Any], last: Location | None) -> list[dict[str, Any]]:
        """A stack as tlparse wants it: file names interned, outermost first."""
        frames = [(where, row[3] if len(row) > 3 else None) for row in stack if (where := location_from(row))]
        if last is not None and (not frames or frames[-1][0] != last):
            frames.append((last, None))
        return [
            {
                "line": location.line,
                "name": location.function,
                "filename": self.intern(location.file),
                "loc": code if code is not None else source_line(location),
            }
            for location, code in frames
        ]

    def intern(self, text: str) -> int:
        """The number of a file name, said once per file."""
        number = self.interned.get(text)
        if number is None:
            number = self.interned[text] = len(self.interned)
            prefix = self._prefix(time.perf_counter(), 0)
            self.lines.append(f"{prefix}{_clean(dumps({'str': [text, number]}))}")
        return number


def _title(record: Record) -> str:
    """The name of a bar or mark in a timeline."""
    fields = record.fields
    if record.kind == "stage":
        return str(fields.get("name"))
    key = f"{record.compile_id} " if record.compile_id else ""
    return f"{key}{record.kind}"


def _compile_start(encoder: Encoder, record: Record) -> Iterator[Native]:
    fields = record.fields
    last = location_from([fields.get("file"), fields.get("line"), fields.get("name", "")]) or record.location
    yield "dynamo_start", {"stack": encoder.frames(fields.get("stack") or [], last)}, None, ""


def _compile_end(encoder: Encoder, record: Record) -> Iterator[Native]:
    fields = record.fields
    start = encoder.starts.get(record.compile_id) if record.compile_id else None
    stages = fields.get("stages") or {}
    seconds = float(fields.get("seconds") or 0.0)
    front = float(stages.get("capture", 0.0))
    metrics: dict[str, Any] = {
        "cache_size": record.compile_id.entry if record.compile_id else 0,
        "guard_count": fields.get("guards"),
        "graph_op_count": fields.get("ops"),
        "entire_frame_compile_time_s": seconds,
        "backend_compile_time_s": max(0.0, seconds - front),
        "code_gen_time_s": stages.get("emit"),
        "start_time": record.time + encoder.wall - seconds,
        "restart_reasons": encoder.broken.get(record.compile_id, []) if record.compile_id else [],
    }
    if start is not None:
        metrics["co_name"] = str(start.fields.get("name", ""))
        metrics["co_filename"] = str(start.fields.get("file", ""))
        metrics["co_firstlineno"] = int(start.fields.get("line") or 0)
    if not fields.get("ok", True):
        error = str(fields.get("error") or "unknown error")
        metrics["fail_type"] = error.partition(":")[0].partition("\n")[0] or "error"
        metrics["fail_reason"] = error
        location = record.location or (start.location if start else None)
        if location is not None:
            metrics["fail_user_frame_filename"] = location.file
            metrics["fail_user_frame_lineno"] = location.line
    yield "compilation_metrics", metrics, None, ""


def _guards(encoder: Encoder, record: Record) -> Iterator[Native]:
    rows = []
    asked: dict[int, tuple[str, int | None]] = {0: ("", None)}
    for row in record.fields["guards"]:
        at, text = row["at"], row["text"]
        place, number = asked.get(id(at) if at else 0, ("", -1))
        if number == -1:
            # The first guard of a line brings the place along; later ones name it by its number.
            place = f"    # {advice.place(location_from(at))}"
            asked[id(at)] = place, len(asked) - 1
        # tlparse shows `code`, so it names the user's line too; the rest of a row is ours.
        where = at if number == -1 else number
        rows.append(
            {"code": text + place, "text": len(text), "source": row["source"], "kind": row["kind"], "at": where}
        )
    yield "dynamo_guards", {}, rows, "guards"


def _dynamic(encoder: Encoder, record: Record) -> Iterator[Native]:
    fields = record.fields
    stack = encoder.frames([], location_from(fields.get("user_line")) or record.location)
    symbol, source = str(fields.get("symbol", "")), str(fields.get("source", ""))
    text, value = str(fields.get("text", "")), str(fields.get("value", ""))
    if fields.get("action") == "specialised":
        metadata = {"symbol": symbol, "sources": [source], "value": value, "reason": text, "user_stack": stack}
        yield "symbolic_shape_specialization", metadata, None, ""
    else:
        yield "guard_added_fast", {"expr": f"{symbol} ({source}): {text}", "user_stack": stack}, None, ""


def _artifact(name: str, key: str) -> Callable[[Encoder, Record], Iterator[Native]]:
    """A text of ours as a page of its own."""

    def native(encoder: Encoder, record: Record) -> Iterator[Native]:
        yield "artifact", {"name": name, "encoding": "string"}, record.fields[key], key

    return native


def _said(name: str, say: Callable[[Record], advice.Advice]) -> Callable[[Encoder, Record], Iterator[Native]]:
    """An advice as a page of its own."""

    def native(encoder: Encoder, record: Record) -> Iterator[Native]:
        yield "artifact", {"name": name, "encoding": "string"}, str(say(record)), ""

    return native


def _graph(name: str) -> Callable[[Encoder, Record], Iterator[Native]]:
    def native(encoder: Encoder, record: Record) -> Iterator[Native]:
        yield name, {}, record.fields["text"], "text"

    return native


def _aot_graph(encoder: Encoder, record: Record) -> Iterator[Native]:
    which = record.fields.get("which")
    yield f"aot_{which if which in ('backward', 'inference') else 'forward'}_graph", {}, record.fields["text"], "text"


def _output_code(encoder: Encoder, record: Record) -> Iterator[Native]:
    name = f"{record.fields.get('language') or 'code'}.txt"
    yield "inductor_output_code", {"filename": name}, record.fields["text"], "text"


_NATIVE: dict[str, Callable[[Encoder, Record], Iterator[Native]]] = {
    "compile_start": _compile_start,
    "compile_end": _compile_end,
    "graph": _graph("dynamo_output_graph"),
    "aot_graph": _aot_graph,
    "aot_joint_graph": _graph("aot_joint_graph"),
    "guards": _guards,
    "dynamic": _dynamic,
    "output_code": _output_code,
    "residual": _artifact("stator_residual_program", "text"),
    "kernel_code": _artifact("stator_kernel", "text"),
    "schedule": _artifact("stator_schedule", "text"),
    "graph_break": _said("dynamo_graph_break_reason", advice.of_break),
    "recompile": _said("recompile_reasons", advice.of_recompile),
}


@dataclass(slots=True)
class Trace:
    """One trace file read back."""

    path: Path
    process: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    lines: list[tuple[str, int, str]] = field(default_factory=list)
    unread: int = 0  # lines that are no record: a cut end, a disk that was full


def _raw_records(path: Path) -> Iterator[tuple[dict[str, Any] | None, str | None]]:
    """Each envelope with its payload; None for a line that is none."""
    envelope: dict[str, Any] | None = None
    payload: list[str] = []
    with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for line in file:
            line = line.removesuffix("\n")
            if line.startswith("\t"):
                payload.append(line[1:])
                continue
            if envelope is not None:
                yield envelope, "\n".join(payload) if "has_payload" in envelope else None
            payload = []
            envelope = _envelope(line)
            if envelope is None:
                yield None, None
    if envelope is not None:
        yield envelope, "\n".join(payload) if "has_payload" in envelope else None


def _envelope(line: str) -> dict[str, Any] | None:
    _, found, text = line.partition("] ")
    try:
        value = json.loads(text) if found else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read(path: str | Path) -> Trace:
    """All whole records of a trace file."""
    trace = Trace(Path(path))
    payloads: dict[str, str] = {}
    for envelope, payload in _raw_records(trace.path):
        if envelope is None:
            trace.unread += 1
        elif "chromium_event" not in envelope:
            if payload is not None:
                payloads[envelope["has_payload"]] = payload
        else:
            try:
                args = json.loads(payload or "")["args"]
                if "stator_process" in args:
                    trace.process = args["stator_process"]
                elif "stator_lines" in args:
                    trace.lines += args["stator_lines"]
                elif "stator" in args:
                    trace.records.append(_resolved(Record.from_json(args["stator"]), payloads))
            except (ValueError, KeyError, TypeError, IndexError):
                trace.unread += 1
    return trace


def _guard_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    places: list[Any] = []
    found = []
    for row in rows:
        at = row["at"]
        if type(at) is int:
            at = places[at]
        elif at is not None:
            places.append(at)
        found.append({"source": row["source"], "kind": row["kind"], "text": row["code"][: row["text"]], "at": at})
    return found


def _resolved(record: Record, payloads: dict[str, str]) -> Record:
    for name, value in record.fields.items():
        if isinstance(value, dict) and _REFERENCE in value:
            text = payloads[value[_REFERENCE]]
            is_text = value.get("form") == "text"
            record.fields[name] = text if is_text else _guard_rows(json.loads(text))
    return record
