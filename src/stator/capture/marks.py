"""The marks that functions carry: stator's own and those of torch, which libraries already have in their source.

Contract. `mark_of(function)` is the mark or None. Marks are attributes on the function (torch's spelling) or membership
in a weak set here (`allow_in_graph` takes C functions, too, which have no attributes).

State: weak sets changed by the public decorators; reading needs no lock.
"""

from __future__ import annotations

import enum
import weakref
from typing import Any


class Mark(enum.Enum):
    """What a mark says."""

    DISABLED = "never trace into it: run it as it is"
    ALLOWED = "record the call in the graph without looking inside"
    NONSTRICT = "trace it by running it on abstract tensors"
    CONSTANT = "call it while tracing and take its result for a constant"
    FORBIDDEN = "break the graph where it is called"


ATTRIBUTE = "_stator_mark"
_by_identity: weakref.WeakKeyDictionary[Any, Mark] = weakref.WeakKeyDictionary()
_strong: dict[int, tuple[Any, Mark]] = {}


def set_mark(function: Any, mark: Mark) -> None:
    """Mark a callable."""
    try:
        _by_identity[function] = mark
    except TypeError:  # builtins cannot be referenced weakly; they never die either
        _strong[id(function)] = (function, mark)


def clear_mark(function: Any) -> None:
    """Take a mark away again."""
    try:
        _by_identity.pop(function, None)
    except TypeError:
        _strong.pop(id(function), None)


def mark_of(function: Any) -> Mark | None:
    """The mark of a callable, torch's own spellings included."""
    try:
        mark = _by_identity.get(function)
    except TypeError:
        row = _strong.get(id(function))
        return None if row is None else row[1]
    if mark is not None:
        return mark
    names = getattr(function, "__dict__", None)
    if names:
        if names.get("_torchdynamo_disable"):
            return Mark.DISABLED
        if names.get("_dynamo_marked_constant"):
            return Mark.CONSTANT
    return None
