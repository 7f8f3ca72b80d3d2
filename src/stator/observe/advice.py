"""The answer to a "why": the user's line, one sentence of what happened, one action, a stable id.

Contract. Each function takes the record of something worth telling and returns an `Advice`. Its `headline` is one line
that names the user's file and line, the cause and the action, in this order; logs, `explain` and reports all show this
line and nothing contradicts it. For breaks and fallbacks the words are the row of `reasons/`; for what has no
row there (a recompile, a refused fusion, a specialisation) the tables below are the rows.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stator.events import Location, is_own
from stator.observe.records import Record, location_from, source_line
from stator.reasons import REASONS


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to know, and what to do about it."""

    kind: str  # break, recompile, fallback, specialised, fusion, hint, error
    location: Location | None
    what: str
    action: str
    reason: str
    seconds: float = 0.0  # what it cost, measured; ranks the advice

    @property
    def headline(self) -> str:
        """The whole answer in one line."""
        where = f"{place(self.location)}: " if self.location else ""
        action = f" {self.action}" if self.action else ""
        return f"{where}{self.what}{action} [{self.reason}]"

    def __str__(self) -> str:
        code = source_line(self.location)
        return f"{self.headline}\n    {code}" if code else self.headline


def merged(advices: Iterable[Advice]) -> list[Advice]:
    """One advice for each line and action; what came more than once says so, and costs what all of them cost."""
    groups: dict[tuple[Any, ...], list[Advice]] = {}
    for one in advices:
        groups.setdefault((one.kind, one.location, one.reason, one.action), []).append(one)
    return [_together(group) if len(group) > 1 else group[0] for group in groups.values()]


def _together(group: list[Advice]) -> Advice:
    what = f"{group[0].what.rstrip('.')} (and {len(group) - 1} more like it)."
    return replace(group[0], what=what, seconds=sum(one.seconds for one in group))


def short_path(file: str) -> str:
    """A file as the user knows it: relative to the working directory where it lies below it."""
    try:
        return _relative(file, os.getcwd())
    except OSError:  # a working directory that is gone
        return file


@functools.lru_cache(4096)
def _relative(file: str, directory: str) -> str:
    return file.removeprefix(directory.rstrip("/") + "/")


def place(location: Location | None) -> str:
    """`model.py:12 in forward`."""
    if location is None:
        return "unknown line"
    function = f" in {location.function}" if location.function else ""
    return f"{short_path(location.file)}:{location.line}{function}"


def sentence(text: str) -> str:
    """`text` with one full stop at its end."""
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


class _Details(dict[str, str]):
    """What a reason's sentence may name; a name nobody filled stays readable."""

    def __missing__(self, key: str) -> str:
        return "..."


def reason_text(reason: str, detail: Any) -> tuple[str, str]:
    """The sentence and the action of a row of `reasons/`, with its detail filled in."""
    row = REASONS.get(reason)
    details = _Details(detail if isinstance(detail, Mapping) else {"detail": "" if detail is None else str(detail)})
    if row is None:
        return sentence(str(detail or reason.replace("_", " "))), ""
    what = row.summary.format_map(details)
    if details.get("detail") and "{detail" not in row.summary:
        what = f"{what.rstrip('.')} ({details['detail']})"
    return sentence(what), sentence(row.hint.format_map(details) if "{detail" in row.hint else row.hint)


def of_break(record: Record, seconds: float = 0.0) -> Advice:
    """Why a graph ended early."""
    reason = str(record.fields.get("reason", "unknown"))
    what, action = reason_text(reason, record.fields.get("detail"))
    location = record.location
    if location is None and record.fields.get("stack"):
        location = location_from(record.fields["stack"][-1])
    return Advice("break", location, f"graph break: {what}", action, reason, seconds)


def of_fallback(record: Record) -> Advice:
    """Why something ran another way than asked."""
    reason = str(record.fields.get("reason", "unknown"))
    what, action = reason_text(reason, record.fields.get("detail"))
    return Advice("fallback", record.location, what, action, reason)


@dataclass(frozen=True, slots=True)
class Change:
    """What was different this time: `name` was `old` and is `new`; `aspect` is a row of `ACTIONS`."""

    name: str
    old: str
    new: str
    aspect: str
    source: str = ""
    dimension: int | None = None

    @property
    def text(self) -> str:
        if self.aspect == "range":
            return f"{self.name} had to be {self.old} and is {self.new}"
        return f"{self.name} was {self.old} and is {self.new}" if self.old or self.new else self.name


# What changed -> what the user can do so that the next such change does not compile again. The id of the advice is
# `recompile_<aspect>`. `{source}` is the value's name, `{tensor}` the tensor a size belongs to, `{dim}` its dimension.
ACTIONS: dict[str, str] = {
    "size": "Mark the size dynamic: stator.mark_dynamic({tensor}, {dim}), or compile with dynamic=True.",
    "range": "Mark the size dynamic with its bounds: stator.mark_dynamic({tensor}, {dim}, min=..., max=...).",
    "rank": "Reshape {source} to one number of dimensions before the call.",
    "stride": "Call {tensor}.contiguous() before the call, so that its memory layout is always the same.",
    "dtype": "Convert {source} to one dtype before the call.",
    "device": "Move {source} to one device before the call.",
    "requires_grad": "Call it always with or always without gradients for {source}.",
    "number": "Pass {source} as a tensor (torch.tensor(...)), so that its value is an input and not a constant.",
    "constant": "{source} is a constant of the compiled code: keep it the same, or take what depends on it out.",
    "object": "Pass the same object for {source} each time: what is created anew for each call never matches.",
    "type": "Pass one type for {source}, or compile one function per type.",
    "container": "Keep the number of items and the keys of {source} the same, or stack the items into one tensor.",
    "attribute": "Set attributes and hooks of {source} before the first call and leave them alone after.",
    "mode": "Call it under the same torch modes (grad mode, autocast, default dtype and device) each time.",
    "broken": "Use it as a tensor instead of a Python value, or remove the break before it.",
    "value": "Keep {source} the same between calls.",
}

_ASPECTS: dict[str, str] = {
    "TYPE_IS": "type", "ITERATOR": "type", "IS": "object", "IS_NOT": "object", "CODE_IS": "object", "SAME": "object",
    "DIFFERENT": "object", "LENGTH": "container", "KEYS": "container", "HAS_KEY": "container",
    "LACKS_KEY": "container", "MEMBERS": "container", "LACKS_ATTR": "attribute", "LOOKUP_ABSENT": "attribute",
    "MODULE_CALL": "attribute", "MODES": "mode", "SIZES": "size", "RANGE": "range", "EQUALS": "constant",
}  # fmt: skip

_TENSOR = re.compile(
    r"(?:(?P<kind>\w+) )?(?P<dtype>\w+)\[(?P<sizes>[^\]]*)\] on (?P<device>[\w:]+)"
    r"(?:, strides \((?P<strides>[^)]*)\))?(?P<rest>.*)"
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_SIZE = re.compile(r"^(?P<tensor>.*)\.(?P<what>size|stride)\((?P<dim>\d+)\)$")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _tensor_change(source: str, old: str, new: str) -> Change | None:
    """In what two descriptions of a tensor differ, the most telling first; None if they are no such descriptions."""
    before, after = _TENSOR.fullmatch(old), _TENSOR.fullmatch(new)
    if before is None or after is None:
        return None
    if before["kind"] != after["kind"]:
        return Change(f"type({source})", before["kind"] or "Tensor", after["kind"] or "Tensor", "type", source)
    for name in ("dtype", "device"):
        if before[name] != after[name]:
            return Change(f"{source}.{name}", before[name], after[name], name, source)
    sizes, now = _parts(before["sizes"]), _parts(after["sizes"])
    if len(sizes) != len(now):
        return Change(f"{source}.dim()", str(len(sizes)), str(len(now)), "rank", source)
    grads = ["requires_grad" in match["rest"] for match in (before, after)]
    if grads[0] != grads[1]:
        return Change(f"{source}.requires_grad", str(grads[0]), str(grads[1]), "requires_grad", source)
    for index, (one, other) in enumerate(zip(sizes, now, strict=True)):
        if one != other and one != "*":
            return Change(f"{source}.size({index})", one, other, "size", source, index)
    if before["strides"] != after["strides"]:
        return Change(f"{source}.stride()", f"({before['strides']})", f"({after['strides']})", "stride", source)
    return None


def _mode_change(old: str, new: str) -> Change:
    """The first mode that differs, out of `name=value` pairs; only the wrong ones are in `new`."""
    name, _, value = (_parts(new) or [new])[0].partition("=")
    before = dict(part.partition("=")[::2] for part in _parts(old))
    return Change(name or "a torch mode", before.get(name, old), value, "mode", "the torch modes")


def change_of(record: Record) -> Change:
    """What was different, by the nearest entry's first guard that failed."""
    fields = record.fields
    nearest = (fields.get("misses") or [{}])[0]
    kind, source = str(nearest.get("kind") or ""), str(nearest.get("source") or "")
    old, new = (
        str(nearest.get(key) or ("" if fields.get(name) is None else fields[name]))
        for key, name in (("expected", "old"), ("actual", "new"))
    )
    if not source:
        return Change(str(nearest.get("text") or "an input changed"), old, new, "value", "the input")
    if kind == "MODES":
        return _mode_change(old, new)
    tensor = _tensor_change(source, old, new) if kind == "TENSOR" else None
    if tensor is not None:
        return tensor
    place_in_tensor = _SIZE.match(source)
    if place_in_tensor is not None:
        aspect = "range" if kind == "RANGE" else place_in_tensor["what"]
        return Change(source, old, new, aspect, source, int(place_in_tensor["dim"]))
    if kind == "LENGTH":
        return Change(f"len({source})", old.removeprefix("length "), new.removeprefix("length "), "container", source)
    if kind == "TYPE_IS":
        old, new = (text.removeprefix("type ").removeprefix("builtins.") for text in (old, new))
        return Change(f"type({source})", old, new, "type", source)
    if source.startswith("<stack"):
        return Change("what the broken operation returned", old, new, "broken", source)
    aspect = "number" if kind in ("EQUALS", "RANGE") and _is_number(new) else _ASPECTS.get(kind, "value")
    return Change(source, old, new, aspect, source)


def of_recompile(record: Record, seconds: float = 0.0) -> Advice:
    """Which value changed, from what to what, which line of the user cared, and how to stop it."""
    change = change_of(record)
    fields = record.fields
    nearest = (fields.get("misses") or [{}])[0]
    candidates = (location_from(fields.get("user_line")), location_from(nearest.get("at")), record.location)
    location = next((where for where in candidates if where is not None and not is_own(where.file)), None)
    inside = _SIZE.match(change.source)
    tensor = inside["tensor"] if inside else change.source
    dimension = "dim" if change.dimension is None else change.dimension
    action = ACTIONS[change.aspect].format(source=change.source, tensor=tensor, dim=dimension)
    what = sentence(f"recompiled because {change.text}")
    return Advice("recompile", location, what, action, f"recompile_{change.aspect}", seconds)


def of_specialisation(record: Record) -> Advice:
    """Which size became a constant, and which line asked."""
    fields = record.fields
    source = fields.get("source") or fields.get("symbol")
    value = f" {fields['value']}" if "value" in fields else ""
    what = f"{source} became the constant{value}, because this line needs {fields.get('text', 'it')}"
    action = f"Remove the comparison with a constant on that line, or keep {source} at this value."
    location = location_from(fields.get("user_line")) or record.location
    return Advice("specialised", location, sentence(what), action, "specialised")


def of_refused_fusion(record: Record) -> Advice:
    """Which two loops stayed apart, and why."""
    fields = record.fields
    location = location_from(fields.get("user_line")) or record.location
    what = f"not fused: {fields.get('first')} and {fields.get('second')}: {fields.get('why')}"
    extern = "ATen's own kernel" in str(fields.get("why"))
    action = "Do elementwise work all before or all after that line, not on both sides of it." if extern else ""
    return Advice("fusion", location, sentence(what), action, "not_fused")


def of_hint(record: Record) -> Advice:
    """Something cheap to change; its text is sentence and action already."""
    location = location_from(record.fields.get("user_line")) or record.location
    return Advice("hint", location, sentence(str(record.fields.get("text", ""))), "", "perf_hint")


def of_error(record: Record, location: Location | None) -> Advice:
    """A compile that failed."""
    error = str(record.fields.get("error") or "the compile failed")
    reason = str(record.fields.get("reason") or "compile_failed")
    frames = list(_FRAME.finditer(error))
    if not frames:
        return Advice("error", location, sentence(error.partition("\n")[0]), "", reason)
    # An error of ours: the user's frames, one sentence, one action, the id.
    last = frames[-1]
    location = Location(last["file"], int(last["line"]), last["function"])
    said = [line.strip() for line in error[last.end() :].splitlines() if line.strip()]
    said = [line for line in said if line != f"[{reason}]" and line != source_line(location)]
    hints = [line for line in said if line.startswith("Hint:")]
    words = [line for line in said if line not in hints]
    action = hints[0].removeprefix("Hint:").strip() if hints else ""
    return Advice("error", location, sentence(words[0] if words else error.partition("\n")[0]), action, reason)
