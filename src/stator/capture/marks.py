"""The marks that functions carry: stator's own and those of torch, which libraries already have in their source.

Contract. `mark_of(function)` is the mark or None. Marks are attributes on the function (torch's spelling) or membership
in a weak set here (`allow_in_graph` takes C functions, too, which have no attributes).

State: weak sets changed by the public decorators; reading needs no lock.
"""

from __future__ import annotations

import enum
import weakref
from typing import Any, NamedTuple


class Mark(enum.Enum):
    """What a mark says."""

    DISABLED = "never trace into it: run it as it is"
    ALLOWED = "record the call in the graph without looking inside"
    NONSTRICT = "trace it by running it on abstract tensors"
    CONSTANT = "call it while tracing and take its result for a constant"
    FORBIDDEN = "break the graph where it is called"


# Python modules that talk to the world outside of the program. A call into one runs as it is, as one operation: what it
# does inside is no business of a graph, and would break it many times.
RUN_WHOLE = frozenset(
    {
        "subprocess", "pickle", "_compat_pickle", "socket", "selectors", "ssl", "tempfile", "shutil", "urllib.request",
        "http.client", "zipfile", "tarfile", "gzip", "bz2", "lzma", "random", "queue", "threading", "uuid", "secrets",
        "traceback", "linecache", "pdb", "bdb", "sched", "shelve", "sqlite3.dbapi2", "webbrowser", "smtplib", "ftplib",
        "asyncio.runners", "asyncio.events", "concurrent.futures._base", "concurrent.futures.thread",
        "concurrent.futures.process", "multiprocessing.context", "multiprocessing.pool", "multiprocessing.queues",
        "multiprocessing.process", "multiprocessing.connection", "importlib", "importlib._bootstrap", "runpy",
        "torch.serialization", "torch.hub", "torch.multiprocessing.spawn", "torch.profiler.profiler",
        "torch.utils.data.dataloader",
    }
)  # fmt: skip
ATTRIBUTE = "_stator_mark"
_by_identity: weakref.WeakKeyDictionary[Any, Mark] = weakref.WeakKeyDictionary()
_strong: dict[int, tuple[Any, Mark]] = {}
forbidden: dict[int, Any] = {}  # what is marked so, by id: operations of torch, too, are looked up here


def set_mark(function: Any, mark: Mark) -> None:
    """Mark a callable."""
    forbidden.pop(id(function), None)
    if mark is Mark.FORBIDDEN:
        forbidden[id(function)] = function
    try:
        _by_identity[function] = mark
    except TypeError:  # builtins cannot be referenced weakly; they never die either
        _strong[id(function)] = (function, mark)


def clear_mark(function: Any) -> None:
    """Take a mark away again."""
    forbidden.pop(id(function), None)
    try:
        _by_identity.pop(function, None)
    except TypeError:
        _strong.pop(id(function), None)


class Substitute(NamedTuple):
    """What is captured in place of a function."""

    function: Any
    fold_constants: bool


_substitutes: dict[int, tuple[Any, Substitute]] = {}


def substitute(original: Any, replacement: Any, fold_constants: bool) -> None:
    """Capture `replacement` wherever `original` is called."""
    _substitutes[id(original)] = (original, Substitute(replacement, fold_constants))


def substitute_of(function: Any) -> Substitute | None:
    """What is captured in place of `function`, if anything."""
    if not _substitutes:
        return None
    row = _substitutes.get(id(function))
    return None if row is None else row[1]


def reason_of(function: Any) -> str:
    """Why a callable is disabled, in the words of who did it."""
    return str(getattr(function, "_torchdynamo_disable_msg", None) or "")


def shut_out_from_torch(function: Any) -> Any:
    """A method of torch's optimizers that torch's own compiler, once it ran, keeps itself out of: the original."""
    names = getattr(function, "__dict__", None) or {}
    original = names.get("_torchdynamo_orig_callable")
    module = getattr(original, "__module__", None) or ""
    return original if module.startswith("torch.optim.") else None


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
