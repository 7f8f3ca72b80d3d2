"""Events as plain data: what a log line, a trace, a report and `explain` are all made from.

Contract. `render(event)` turns an event into a `Record` at the moment it is emitted, because what an event refers to (a
graph a backend rewrites, a code object, a user's value) may change or die right after. A record holds only what JSON
holds, so a record read back from a trace file equals the one that was written, and every view has one source.

Emitters may leave out fields marked `?` in `events.KINDS`; anything that is not plain data and has no row in
`_RENDERERS` becomes its `str`, never an error: observing must not break the program observed.
"""

from __future__ import annotations

import dis
import linecache
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stator.events import CompileId, Event, Location
from stator.observe.graphs import graph_text, operator_count, symbolic_sizes, value_text
from stator.values.source import ModesExpectation, SourceTree, TensorExpectation

Fields = dict[str, Any]
_LONGEST_VALUE = 300
_CONSTANT_SIZE = re.compile(r"^(?P<source>[A-Za-z_][^=<>]*?) == (?P<value>-?\d+)$")
_PLACE = re.compile(r"^(?P<file>[^\n]+?):(?P<line>\d+)(?: in (?P<function>\S+))?$")


@dataclass(frozen=True, slots=True)
class Record:
    """One event as plain data."""

    kind: str
    compile_id: CompileId | None
    time: float
    thread: int
    location: Location | None
    fields: Fields = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON form; `from_json` is its inverse."""
        where = None if self.location is None else location_json(self.location)
        key = None if self.compile_id is None else [self.compile_id.region, self.compile_id.entry]
        return {
            "kind": self.kind,
            "id": key,
            "time": round(self.time, 7),
            "thread": self.thread,
            "at": where,
            "fields": self.fields,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read back what `to_json` wrote."""
        key = data.get("id")
        return cls(
            kind=data["kind"],
            compile_id=None if key is None else CompileId(key[0], key[1]),
            time=data["time"],
            thread=data["thread"],
            location=location_from(data.get("at")),
            fields=dict(data["fields"]),
        )


def location_json(location: Location) -> list[Any]:
    """A location as `[file, line, function]`."""
    return [location.file, location.line, location.function]


def location_from(value: Any) -> Location | None:
    """A location from whatever form an emitter or a trace uses; None if it is none."""
    if isinstance(value, Location):
        return value
    if isinstance(value, list | tuple) and len(value) >= 2 and isinstance(value[0], str) and isinstance(value[1], int):
        return Location(value[0], value[1], value[2] if len(value) > 2 else "")
    if isinstance(value, str):
        match = _PLACE.match(value)
        return Location(match["file"], int(match["line"]), match["function"] or "") if match else None
    filename, line = getattr(value, "filename", None), getattr(value, "lineno", None)
    if isinstance(filename, str) and isinstance(line, int):  # a traceback's FrameSummary
        return Location(filename, line, getattr(value, "name", ""))
    return None


_remembered_lines: dict[tuple[str, int], str] = {}


def source_line(location: Location | None) -> str:
    """The user's source text there, stripped; empty if it cannot be read."""
    if location is None:
        return ""
    known = _remembered_lines.get((location.file, location.line))
    return linecache.getline(location.file, location.line).strip() if known is None else known


def remember_lines(lines: Iterable[tuple[str, int, str]]) -> None:
    """Source text a trace brought along: the files may be on another machine, or changed since."""
    _remembered_lines.update({(file, line): text for file, line, text in lines})


def locations(record: Record) -> Iterator[Location]:
    """The user lines a record points at, each once."""
    if record.location is not None:
        yield record.location
    fields = record.fields
    rows = fields.get({"guards": "guards", "recompile": "misses"}.get(record.kind, "")) or ()
    places = {id(row["at"]): row["at"] for row in rows if row["at"] is not None}  # one list for many guards
    for value in (fields.get("user_line"), *(fields.get("user_lines") or ()), *places.values()):
        location = location_from(value)
        if location is not None:
            yield location


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + " ..."


def plain(value: Any) -> Any:
    """`value` as JSON data."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):  # JSON has no infinities
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Location):
        return location_json(value)
    if isinstance(value, CompileId):
        return [value.region, value.entry]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return _short(str(value))


def expected_text(expected: Any) -> str:
    """How people read what a guard expects."""
    if isinstance(expected, TensorExpectation):
        sizes = ", ".join("*" if size is None else str(size) for size in expected.sizes)
        kind = "" if expected.kind.__name__ == "Tensor" else f"{expected.kind.__name__} "
        grad = ", requires_grad" if expected.requires_grad else ""
        return f"{kind}{str(expected.dtype).removeprefix('torch.')}[{sizes}] on {expected.device}{grad}"
    if isinstance(expected, ModesExpectation):
        read = {name: getattr(expected, name) for name in expected.__dataclass_fields__}
        return ", ".join(f"{name}={value}" for name, value in read.items() if value is not None)
    if isinstance(expected, type):
        return expected.__qualname__
    if isinstance(expected, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return expected.__qualname__
    if isinstance(expected, types.CodeType):
        return expected.co_qualname
    if isinstance(expected, types.ModuleType):
        return expected.__name__
    return _short(repr(expected))


# Guard kind -> the assumption in words, from the source's name and what is expected.
GUARD_TEXT: dict[str, str] = {
    "TYPE_IS": "type({source}) is {expected}",
    "IS": "{source} is {expected}",
    "IS_NOT": "{source} is not {expected}",
    "EQUALS": "{source} == {expected}",
    "LENGTH": "len({source}) == {expected}",
    "KEYS": "list({source}) == {expected}",
    "HAS_KEY": "{expected} in {source}",
    "LACKS_KEY": "{expected} not in {source}",
    "MEMBERS": "{source} == {expected}",
    "LACKS_ATTR": "{source} has no attribute {expected} of its own",
    "LOOKUP_ABSENT": "{source} defines no {expected}",
    "TENSOR": "{source} is {expected}",
    "MODULE_CALL": "calling {source} goes straight to forward (no hooks)",
    "CODE_IS": "{source} still runs the code of {expected}",
    "SAME": "{source} is {expected}",
    "DIFFERENT": "{source} is none of {expected}",
    "MODES": "{expected}",
    "SIZES": "{expected}",
    "RANGE": "{source} lies within {expected}",
    "ITERATOR": "{source} is a live {expected}",
}


def guard_rows(tree: Any) -> list[dict[str, Any]]:
    """All guards of a tree: what each assumes, and the user's line that asked for it."""
    if not isinstance(tree, SourceTree):
        return [{"source": "", "kind": "", "text": _short(str(item)), "at": None} for item in _items(tree)]
    names: dict[int, str] = {}
    places: dict[tuple[int, str], list[Any]] = {}
    rows: list[dict[str, Any]] = []
    described = tree.describe_step
    for node in tree.nodes():
        base = "" if node.parent is None else names[id(node.parent)]
        name = names[id(node)] = described(base, node.step, node.key)
        for guard in node.guards.values():
            form = GUARD_TEXT.get(guard.kind, "{source}: " + guard.kind + " {expected}")
            at = None
            location = guard.location
            if location is not None:
                key = (location.line, location.file)
                at = places.get(key)  # one list for all guards of a line
                if at is None:
                    at = places[key] = location_json(location)
            text = form.format(source=name, expected=expected_text(guard.expected))
            rows.append({"source": name, "kind": guard.kind, "text": text, "at": at})
    return rows


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else str(value).splitlines()


def miss_row(miss: Any) -> dict[str, Any]:
    """Why one entry did not match, as data: an `events.Miss` or one of `guards`; a text is taken as it is."""
    location = location_from(getattr(miss, "location", None))
    row: dict[str, Any] = {"entry": plain(getattr(miss, "entry", None))}
    row |= {name: str(getattr(miss, name, "")) for name in ("source", "kind", "expected", "actual")}
    return {**row, "at": None if location is None else location_json(location), "text": str(miss)}


def _code_text(code: Any) -> str:
    if not isinstance(code, types.CodeType):
        return str(code)
    return dis.Bytecode(code).dis()


def _graph(fields: Fields) -> Fields:
    module = fields.pop("graph_module", None)
    rendered = {"text": graph_text(module), "ops": operator_count(module), **plain(fields)}
    sizes = fields.get("sizes")
    if isinstance(sizes, Mapping):
        symbolic = symbolic_sizes(module)
        rendered["sizes"] = {
            str(name): f"{symbolic[name]}, here {_size_text(size)}" if name in symbolic else _size_text(size)
            for name, size in sizes.items()
        }
    return rendered


def _size_text(size: Any) -> str:
    if isinstance(size, str):
        return size
    if isinstance(size, tuple | list):
        return str(tuple(size))
    return value_text(size) or str(size)


def _frames(fields: Fields) -> Fields:
    stack = [location for frame in fields.pop("stack", None) or () if (location := location_from(frame))]
    return {**plain(fields), "stack": [[*location_json(frame), source_line(frame)] for frame in stack]}


def _bytecode(fields: Fields) -> Fields:
    return {"title": str(fields.get("title", "")), "text": _code_text(fields.get("code"))}


def _recompile(fields: Fields) -> Fields:
    misses = fields.pop("misses", None) or ()
    return {**plain(fields), "misses": [miss_row(miss) for miss in misses]}


def _dynamic(fields: Fields) -> Fields:
    """What happened to the size, where the emitter says it only in words: equal to a number is a specialisation."""
    rendered: Fields = plain(fields)
    if "action" not in rendered:
        constant = _CONSTANT_SIZE.match(str(rendered.get("text", "")))
        rendered["action"] = "specialised" if constant else "made" if rendered.get("source") else "bounded"
        if constant:
            rendered |= {"source": constant["source"], "value": int(constant["value"])}
    return rendered


def _guards(fields: Fields) -> Fields:
    return {"guards": guard_rows(fields.get("tree"))}


_RENDERERS: dict[str, Callable[[Fields], Fields]] = {
    "compile_start": _frames,
    "graph": _graph,
    "aot_graph": _graph,
    "aot_joint_graph": _graph,
    "graph_break": _frames,
    "bytecode": _bytecode,
    "dynamic": _dynamic,
    "guards": _guards,
    "recompile": _recompile,
}


def render(event: Event) -> Record:
    """The record of an event, made while what the event refers to is still as it was."""
    renderer = _RENDERERS.get(event.kind)
    fields = plain(event.fields) if renderer is None else renderer(dict(event.fields))
    location = event.location or location_from(event.fields.get("user_line"))
    return Record(event.kind, event.compile_id, event.time, event.thread, location, fields)
