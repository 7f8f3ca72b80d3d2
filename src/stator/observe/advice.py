"""The answer to a "why": the user's line, one sentence of what happened, one action, a stable id.

Contract. Each function takes the record of something worth telling and returns an `Advice`. Its `headline` is one line
that names the user's file and line, the cause and the action, in this order; logs, `explain` and reports all show this
line and nothing contradicts it. For breaks and fallbacks the words are the row of `reasons/`; for what has no
row there (a recompile, a refused fusion, a specialisation) the tables below are the rows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stator.events import Location
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
class MissAdvice:
    """One row: for which guards, and what the user can do so that the next such change does not compile again."""

    id: str
    kinds: frozenset[str]
    words: tuple[str, ...]  # one of these must stand in what was expected or found; empty: any
    action: str


# First row that fits. `{source}` is the value's name, `{root}` the variable it hangs on, `{dim}` a dimension.
MISS_ADVICE: tuple[MissAdvice, ...] = (
    MissAdvice(
        "recompile_requires_grad",
        frozenset({"TENSOR"}),
        ("requires_grad",),
        "Call it always with or always without gradients for {source}, or compile the two uses separately.",
    ),
    MissAdvice(
        "recompile_dtype",
        frozenset({"TENSOR"}),
        ("dtype", "float16", "bfloat16", "float64", "int64", "int32"),
        "Convert {source} to one dtype before the call.",
    ),
    MissAdvice(
        "recompile_device",
        frozenset({"TENSOR"}),
        ("device", "cuda"),
        "Move {source} to one device before the call.",
    ),
    MissAdvice(
        "recompile_stride",
        frozenset({"TENSOR", "EQUALS"}),
        ("stride",),
        "Call .contiguous() on {source} before the call, so that its memory layout is always the same.",
    ),
    MissAdvice(
        "recompile_size",
        frozenset({"TENSOR", "SIZES", "RANGE"}),
        (),
        "Mark the size dynamic: stator.mark_dynamic({root}, {dim}), or compile with dynamic=True.",
    ),
    MissAdvice(
        "recompile_number",
        frozenset({"EQUALS"}),
        ("number",),
        "Pass {source} as a tensor (torch.tensor(...)), so that its value is an input and not a constant.",
    ),
    MissAdvice(
        "recompile_constant",
        frozenset({"EQUALS"}),
        (),
        "{source} is a constant of the compiled code: keep it the same, or move what depends on it out of it.",
    ),
    MissAdvice(
        "recompile_object",
        frozenset({"IS", "IS_NOT", "CODE_IS", "SAME", "DIFFERENT"}),
        (),
        "Pass the same object for {source} each time: what is created anew for each call never matches.",
    ),
    MissAdvice(
        "recompile_type",
        frozenset({"TYPE_IS"}),
        (),
        "Pass one type for {source}, or compile one function per type.",
    ),
    MissAdvice(
        "recompile_container",
        frozenset({"LENGTH", "KEYS", "HAS_KEY", "LACKS_KEY", "MEMBERS"}),
        (),
        "Keep the number of items and the keys of {source} the same, or stack the items into one tensor.",
    ),
    MissAdvice(
        "recompile_attribute",
        frozenset({"LACKS_ATTR", "LOOKUP_ABSENT", "MODULE_CALL"}),
        (),
        "Set attributes and hooks of {source} before the first call and leave them alone after.",
    ),
    MissAdvice(
        "recompile_mode",
        frozenset({"MODES"}),
        (),
        "Call it under the same torch modes (grad mode, autocast, default dtype and device) each time.",
    ),
    MissAdvice("recompile", frozenset(), (), "Keep {source} the same between calls."),
)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text not in ("True", "False")


def _root(source: str) -> tuple[str, str]:
    """The tensor a size belongs to, and which dimension: `x.size(1)` -> `x`, `1`."""
    for step in (".size(", ".stride("):
        if step in source:
            tensor, _, rest = source.partition(step)
            return tensor, rest.partition(")")[0]
    return source, "dim"


def _changed_dimension(expected: str, actual: str) -> str:
    """The first dimension in which two shapes as text differ."""
    old, new = (
        text[text.find("[") + 1 : text.find("]")].split(",") if "[" in text else [] for text in (expected, actual)
    )
    if len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            if before.strip() != after.strip() and before.strip() != "*":
                return str(index)
    return "dim"


def of_recompile(record: Record, seconds: float = 0.0) -> Advice:
    """Which value changed, from what to what, which line of the user cared, and how to stop it."""
    fields = record.fields
    misses = fields.get("misses") or [{}]
    nearest = misses[0]
    source = str(nearest.get("source") or "an input")
    old = str(fields.get("old") if fields.get("old") is not None else nearest.get("expected", ""))
    new = str(fields.get("new") if fields.get("new") is not None else nearest.get("actual", ""))
    kind = str(nearest.get("kind", ""))
    words = f"{nearest.get('text', '')} {old} {new}"
    if _is_number(old) and _is_number(new):
        words += " number"
    location = location_from(fields.get("user_line")) or location_from(nearest.get("at")) or record.location
    for row in MISS_ADVICE:
        if (not row.kinds or kind in row.kinds) and (not row.words or any(word in words for word in row.words)):
            break
    root, dimension = _root(source)
    if dimension == "dim":
        dimension = _changed_dimension(old, new)
    change = f"{source} was {old} and is {new}" if old or new else str(nearest.get("text") or "no entry matched")
    action = row.action.format(source=source, root=root, dim=dimension)
    return Advice("recompile", location, sentence(f"recompiled because {change}"), action, row.id, seconds)


def of_specialisation(record: Record) -> Advice:
    """Which size became a constant, and which line asked."""
    fields = record.fields
    source = fields.get("source") or fields.get("symbol")
    value = f" {fields['value']}" if "value" in fields else ""
    what = f"{source} became the constant{value}: {fields.get('text', '')}"
    action = f"Remove the comparison with a constant on that line, or keep {source} at this value."
    location = location_from(fields.get("user_line")) or record.location
    return Advice("specialised", location, sentence(what), action, "specialised")


def of_refused_fusion(record: Record) -> Advice:
    """Which two loops stayed apart, and why."""
    fields = record.fields
    location = location_from(fields.get("user_line")) or record.location
    what = f"not fused: {fields.get('first')} and {fields.get('second')}: {fields.get('why')}"
    return Advice("fusion", location, sentence(what), "", "not_fused")


def of_hint(record: Record) -> Advice:
    """Something cheap to change; its text is sentence and action already."""
    location = location_from(record.fields.get("user_line")) or record.location
    return Advice("hint", location, sentence(str(record.fields.get("text", ""))), "", "perf_hint")


def of_error(record: Record, location: Location | None) -> Advice:
    """A compile that failed."""
    error = str(record.fields.get("error") or "the compile failed")
    first, _, _ = error.partition("\n")
    reason = str(record.fields.get("reason") or "compile_failed")
    what, action = reason_text(reason, None) if reason in REASONS else (sentence(first), "")
    return Advice("error", location, what, action or "See the report for the whole error.", reason)
