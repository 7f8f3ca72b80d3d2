"""Logs: `STATOR_LOGS="graph_breaks,+recompiles,-cache"` and `set_logs(...)` over standard `logging`.

Contract. Each name of `NAMES` is a logger `stator.<name>`; `name` switches it on, `+name` on with all detail, and
`-name` off again (after `all`, say). `STATOR_LOGS_OUT` names a file to write to instead of stderr, `STATOR_LOGS=help`
prints the names. Where `STATOR_LOGS` is not set, those names of `TORCH_LOGS` that mean the same are understood; its
other names are left to torch. A record's message begins with one line: the user's file:line, one sentence, one action,
the reason id; the attributes `compile_id`, `location` and `reason` stand on the `LogRecord` for handlers of one's own.
A break at one line for one reason is logged once (`+graph_breaks`: each time).

Fallbacks and warnings are always logged, each once, at level WARNING: nothing falls back silently.

Reason. Whoever is not switched on does not subscribe, so a silent name costs the program nothing at all.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from stator import events
from stator.events import Event, Location
from stator.observe import advice
from stator.observe.guarded import guarded
from stator.observe.records import Record, location_from, render

LOGGER = logging.getLogger("stator")
_SEVERAL_LINES = "\n    "


@dataclass(frozen=True, slots=True)
class Line:
    """What a log says about one record: the text, and what a handler may filter by."""

    text: str
    location: Location | None
    reason: str = ""
    once: tuple[Any, ...] | None = None  # said once per process under this key, unless detail is asked for


@dataclass(frozen=True, slots=True)
class LogName:
    """One name: the event it shows, what it is for, and how a record reads without and with detail."""

    kind: str
    meaning: str
    line: Callable[[Record, bool], Line]


_BROKEN = re.compile(r"<stack \d+>")  # in a continuation, what the operation before it left


def _block(title: str, text: str, location: Location | None = None) -> Line:
    body = text.rstrip().replace("\n", _SEVERAL_LINES)
    return Line(f"{title}{_SEVERAL_LINES}{body}" if body else title, location)


def _break(record: Record, detail: bool) -> Line:
    said = advice.of_break(record)
    text = str(said)
    if detail and record.fields.get("stack"):
        frames = [f"{advice.place(location_from(frame))}: {frame[3]}" for frame in record.fields["stack"]]
        text += f"{_SEVERAL_LINES}called from (innermost last):" + "".join(f"{_SEVERAL_LINES}  {row}" for row in frames)
    return Line(text, said.location, said.reason, once=(said.location, said.reason, str(record.fields.get("detail"))))


def _recompile(record: Record, detail: bool) -> Line:
    said = advice.of_recompile(record)
    text = str(said)
    if detail:
        text += "".join(f"{_SEVERAL_LINES}{miss['text']}" for miss in record.fields.get("misses") or ())
    return Line(text, said.location, said.reason)


def _graph(title: str) -> Callable[[Record, bool], Line]:
    def line(record: Record, detail: bool) -> Line:
        return _block(f"{title} ({record.fields['ops']} operators)", record.fields["text"], record.location)

    return line


def _aot_graph(record: Record, detail: bool) -> Line:
    fields = record.fields
    return _block(f"{fields.get('which', '')} graph ({fields['ops']} operators)", fields["text"], record.location)


def _graph_sizes(record: Record, detail: bool) -> Line:
    sizes = record.fields.get("sizes")
    rows = sizes.items() if isinstance(sizes, Mapping) else ()
    return _block("graph input sizes", "\n".join(f"{name}: {size}" for name, size in rows), record.location)


def _guards(record: Record, detail: bool) -> Line:
    rows = record.fields["guards"]
    lines = []
    for row in rows:
        location = location_from(row["at"])
        lines.append(f"{row['text']}    # {advice.place(location)}" if location else row["text"])
    return _block(f"{len(rows)} guards", "\n".join(lines), record.location)


def _text(title: str) -> Callable[[Record, bool], Line]:
    def line(record: Record, detail: bool) -> Line:
        fields = record.fields
        name = " ".join(str(fields[key]) for key in ("title", "name", "language") if fields.get(key))
        lines = [location for value in fields.get("user_lines") or () if (location := location_from(value))]
        made_by = f" for {', '.join(advice.place(location) for location in lines)}" if lines else ""
        location = lines[0] if lines else record.location
        return _block(f"{title} {name}{made_by}".strip(), str(fields["text"]), location)

    return line


def _dynamic(record: Record, detail: bool) -> Line:
    fields = record.fields
    if fields.get("action") == "specialised":
        said = advice.of_specialisation(record)
        return Line(str(said), said.location, said.reason)
    location = location_from(fields.get("user_line")) or record.location
    text = str(fields.get("text", ""))
    if fields.get("action") == "made":
        symbol = str(fields.get("symbol"))
        text = f"symbolic: {text}" if symbol in text else f"symbolic: {symbol} = {text}"
    else:
        text = f"assumed: {text}"
    return Line(f"{_before(location)}{_BROKEN.sub('(what the broken operation returned)', text)}", location)


def _before(location: Location | None) -> str:
    return f"{advice.place(location)}: " if location else ""


def _hint(record: Record, detail: bool) -> Line:
    said = advice.of_hint(record)
    return Line(str(said), said.location, said.reason, once=(said.location, said.what))


def _fusion(record: Record, detail: bool) -> Line:
    fields = record.fields
    if not fields.get("fused"):
        said = advice.of_refused_fusion(record)
        return Line(said.headline, said.location, said.reason)
    why = f" ({fields['why']})" if fields.get("why") else ""
    return Line(f"{_before(record.location)}fused {fields['first']} and {fields['second']}{why}", record.location)


def _cache(record: Record, detail: bool) -> Line:
    fields = record.fields
    return Line(f"cache {fields.get('operation')}: {fields.get('kind_of')} {fields.get('key')}", record.location)


def _trace_source(record: Record, detail: bool) -> Line:
    fields = record.fields
    location = location_from([fields.get("file"), fields.get("line")]) or record.location
    return Line(f"{_before(location)}{str(fields.get('text', '')).strip()}", location)


def _trace_bytecode(record: Record, detail: bool) -> Line:
    fields = record.fields
    argument = fields.get("argument")
    shown = "" if argument is None else f" {argument}"
    return Line(f"{fields['opname']}{shown}    stack {fields.get('stack')}", record.location)


NAMES: dict[str, LogName] = {
    "graph_breaks": LogName(
        "graph_break", "why a graph ended early, and what to change; +: with the call stack", _break
    ),
    "graph_code": LogName("graph", "each captured graph as text, under the user's lines", _graph("captured graph")),
    "graph_sizes": LogName("graph", "the input sizes of each captured graph", _graph_sizes),
    "bytecode": LogName("bytecode", "code objects read and built", _text("bytecode of")),
    "trace_source": LogName("trace_source", "each user line the interpreter reaches", _trace_source),
    "trace_bytecode": LogName("trace_bytecode", "each instruction the interpreter executes", _trace_bytecode),
    "guards": LogName("guards", "what each entry assumes, and which user line asked", _guards),
    "recompiles": LogName(
        "recompile",
        "which value changed from what to what, and what to do",
        lambda record, _: _recompile(record, False),
    ),
    "recompiles_verbose": LogName(
        "recompile", "the same, with why every other entry did not match", lambda record, _: _recompile(record, True)
    ),
    "dynamic": LogName("dynamic", "symbolic sizes made, bounded and specialised", _dynamic),
    "aot_graphs": LogName("aot_graph", "functional forward, backward and inference graphs", _aot_graph),
    "aot_joint_graphs": LogName("aot_joint_graph", "joint forward and backward graphs", _graph("joint graph")),
    "output_code": LogName("output_code", "the generated code of each graph", _text("output code")),
    "kernel_code": LogName("kernel_code", "each generated kernel, with its user lines", _text("kernel")),
    "schedule": LogName("schedule", "the order of kernels and externs", _text("schedule")),
    "fusion": LogName("fusion", "what was fused, and why the rest was not", _fusion),
    "perf_hints": LogName("perf_hint", "cheap changes that would make it faster", _hint),
    "cache": LogName("cache", "reads and writes of the persistent caches", _cache),
}

# What TORCH_LOGS calls the same. Its names that are not here belong to other parts of torch.
TORCH_NAMES: dict[str, tuple[str, ...]] = {
    "graph": ("graph_code",),
    "aot_joint_graph": ("aot_joint_graphs",),
    "aot": ("aot_graphs",),
    "dynamo": ("graph_breaks", "recompiles", "guards"),
    "inductor": ("output_code", "fusion", "schedule"),
    "fsdp": (),
    **{name: (name,) for name in NAMES},
    "all": tuple(NAMES),
}


class _Formatter(logging.Formatter):
    """`stator [0/1] graph_breaks: model.py:12 in forward: text`, in colours on a terminal; the line once, not twice."""

    COLOURS = {
        logging.WARNING: "\033[33m",
        logging.ERROR: "\033[31m",
        logging.INFO: "\033[36m",
        logging.DEBUG: "\033[2m",
    }

    def __init__(self, colours: bool) -> None:
        super().__init__()
        self.colours = colours

    def format(self, record: logging.LogRecord) -> str:
        compile_id = getattr(record, "compile_id", None)
        location = getattr(record, "location", None)
        name = record.name.removeprefix("stator").removeprefix(".")
        parts = ["stator", str(compile_id) if compile_id else "[-/-]"]
        message = record.getMessage()
        if location is not None and not message.startswith(advice.place(location)):
            parts.append(f"{advice.short_path(location.file)}:{location.line}")
        parts.append(f"{name or record.levelname.lower()}:")
        head = " ".join(parts)
        if self.colours:
            head = f"{self.COLOURS.get(record.levelno, '')}{head}\033[0m"
        text = f"{head} {message}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment: notebooks and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class _Logs:
    """The switched-on names and the handler. One instance; changes are under a lock, reads are of replaced tuples."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ends: list[Callable[[], None]] = []
        self.handler: logging.Handler | None = None
        self.said: set[tuple[Any, ...]] = set()
        self.levels: dict[str, int] = {}
        self.always: Callable[[], None] | None = None

    def say(self, name: str, record: Record, detail: bool) -> None:
        line = NAMES[name].line(record, detail)
        if line.once is not None and not detail:
            key = (name, *line.once)
            if key in self.said:
                return
            self.said.add(key)
        level = logging.DEBUG if detail else logging.INFO
        self.log(logging.getLogger(f"stator.{name}"), level, line, record)

    def log(self, logger: logging.Logger, level: int, line: Line, record: Record) -> None:
        extra = {"compile_id": record.compile_id, "location": line.location, "reason": line.reason}
        logger.log(level, "%s", line.text, extra=extra)

    def warn(self, event: Event) -> None:
        """A fallback or a warning, once."""
        record = render(event)
        if record.kind == "fallback":
            said = advice.of_fallback(record)
            line = Line(str(said), said.location, said.reason)
        else:
            line = Line(f"{_before(record.location)}{record.fields.get('text', '')}", record.location)
        key = (record.kind, line.location, line.reason, line.text)
        if key not in self.said:
            self.said.add(key)
            self.log(LOGGER, logging.WARNING, line, record)

    def set(self, levels: Mapping[str, int], out: str | TextIO | None) -> None:
        with self.lock:
            for end in self.ends:
                end()
            self.ends.clear()
            self.said.clear()
            self._remove_handler()
            self.levels = dict(levels)
            if levels:
                self._add_handler(out)
            by_kind: dict[str, list[tuple[str, bool]]] = {}
            for name, level in levels.items():
                logging.getLogger(f"stator.{name}").setLevel(level)
                by_kind.setdefault(NAMES[name].kind, []).append((name, level <= logging.DEBUG))
            for kind, names in by_kind.items():
                self.ends.append(events.subscribe(guarded(self._receiver(tuple(names)), "a log"), {kind}))

    def _receiver(self, names: tuple[tuple[str, bool], ...]) -> Callable[[Event], None]:
        def receive(event: Event) -> None:
            record = render(event)
            for name, detail in names:
                self.say(name, record, detail)

        return receive

    def _add_handler(self, out: str | TextIO | None) -> None:
        if isinstance(out, str):
            self.handler = logging.FileHandler(out, delay=True)
        else:
            self.handler = _Stderr() if out is None else logging.StreamHandler(out)
        stream = None if isinstance(out, str) else (out or sys.stderr)
        self.handler.setFormatter(_Formatter(stream is not None and stream.isatty() and "NO_COLOR" not in os.environ))
        LOGGER.addHandler(self.handler)
        LOGGER.setLevel(logging.DEBUG)
        LOGGER.propagate = False  # else a root logger of the user's would print each line again

    def _remove_handler(self) -> None:
        if self.handler is not None:
            LOGGER.removeHandler(self.handler)
            self.handler.close()
            self.handler = None
        LOGGER.setLevel(logging.NOTSET)
        LOGGER.propagate = True


_logs = _Logs()


def help_text() -> str:
    """The table that `STATOR_LOGS=help` prints."""
    rows = [f"  {name:20} {row.meaning}" for name, row in NAMES.items()]
    return (
        "STATOR_LOGS: names separated by commas; +name adds detail, -name takes it away again.\n"
        + "\n".join(rows)
        + "\n  all                  every name above\n"
        "STATOR_LOGS_OUT=file writes there instead of stderr.\n"
        'Example: STATOR_LOGS="graph_breaks,+recompiles" python train.py'
    )


def parse(spec: str, names: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, int]:
    """Names and levels of a `STATOR_LOGS` text; with `names`, of a `TORCH_LOGS` text, whose other names are skipped."""
    levels: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in spec.split(","))):
        sign = word[0] if word[0] in "+-" else ""
        name = word.removeprefix(sign)
        if names is not None:
            chosen = names.get(name, ())
        elif name == "all":
            chosen = tuple(NAMES)
        elif name in NAMES:
            chosen = (name,)
        else:
            near = difflib.get_close_matches(name, [*NAMES, "all", "help"], 1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no log is named {name!r}{guess} The names: {', '.join(NAMES)}, all, help")
        for one in chosen:
            if sign == "-":
                levels.pop(one, None)
            else:
                levels[one] = logging.DEBUG if sign == "+" else logging.INFO
    return levels


def set_logs(spec: str = "", *, out: str | TextIO | None = None, **names: bool | int) -> None:
    """Choose the logs: `set_logs("graph_breaks,+dynamic")` or `set_logs(graph_breaks=True, dynamic=logging.DEBUG)`.

    It replaces what was chosen before; `set_logs()` switches all off. `out` is a file name or a stream.
    """
    if spec.strip() == "help":
        print(help_text())
        return
    levels = parse(spec)
    for name, level in names.items():
        chosen = parse(name)
        if level is False:
            for one in chosen:
                levels.pop(one, None)
        else:
            levels.update(dict.fromkeys(chosen, logging.INFO if level is True else int(level)))
    _logs.set(levels, out)


def enabled() -> dict[str, int]:
    """The names that are on, with their levels."""
    return dict(_logs.levels)


def forget_said() -> None:
    """What was logged once may be logged once again: `stator.reset()` starts afresh."""
    _logs.said.clear()


def start(environment: Mapping[str, str] = os.environ) -> None:
    """Follow the environment; called once when stator is imported. Fallbacks and warnings are heard from here on."""
    if _logs.always is None:
        _logs.always = events.subscribe(guarded(_logs.warn, "the log of fallbacks"), {"fallback", "warning"})
    out = environment.get("STATOR_LOGS_OUT") or None
    own, torchs = environment.get("STATOR_LOGS"), environment.get("TORCH_LOGS")
    if own is not None and own.strip() == "help":
        print(help_text(), file=sys.stderr)
    elif own is not None:
        try:
            _logs.set(parse(own), out)
        except ValueError as error:
            raise ValueError(f"environment variable STATOR_LOGS: {error}") from None
    elif torchs:
        _logs.set(parse(torchs, TORCH_NAMES), out)
