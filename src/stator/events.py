"""The event bus: every stage reports what it does through it, and nothing else does.

Contract. A stage calls `emit(kind, **fields)`; observers (`observe/`) subscribe. A record carries the compile
identity `[region/entry]`, a monotonic time, the thread, the user's file and line where there is one, and the
kind's own fields. The kinds are rows of `KINDS`: a kind that has no row cannot be emitted, so that the table is
the documentation of everything stator can say about itself.

With no subscriber of its kind `emit` returns after one look-up and one truth test, and nothing is emitted on the
path of a cache hit (but `break_run`, which a program reports only if somebody listened when it was compiled).

State: the table of receivers is replaced, never mutated, so emitting threads need no lock. The current
compile identity is per thread (one thread compiles while others call).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep

# kind -> what it reports, then its fields. `name?` may be left out; every other field is always there.
# "lines" are `Location`s; a "stack" is the user's frames as `Location`s, outermost first.
KINDS: dict[str, str] = {
    "compile_start": "a region or continuation begins to compile: name (qualified, of the function), file, line, "
    "cause (first_call, recompile, continuation, backward), parent? (CompileId that is continued), "
    "stack? (of the caller)",
    "compile_end": "it ended: ok, seconds, stages (name -> seconds), graphs, ops, guards (how many of each), "
    "error? (text), reason? (id)",
    "stage": "one stage of a compile ended: name, seconds",
    "progress": "long work moved on: stage, done, total",
    "graph": "a torch-level graph was captured: graph_module, sizes (input name -> shape)",
    "graph_break": "a graph ended early: reason (id), detail (fills the reason's sentence), stack, line (its text)",
    "break_run": "a broken operation ran in plain Python; only programs compiled while somebody listened to this kind "
    "report it: reason (id), seconds",
    "fallback": "something ran another way than asked: reason (id), detail",
    "bytecode": "a code object was read or built: title, code",
    "trace_source": "the interpreter reached a new user line: file, line, text",
    "trace_bytecode": "the interpreter executes an instruction: opname, argument, stack (depth or values)",
    "guards": "an entry's guards: tree (SourceTree)",
    "recompile": "no entry matched: name, misses (Miss, the nearest entry's first), old, new, user_line (Location)",
    "dynamic": "a symbolic size was made, bounded or specialised: text, symbol, source, user_line (Location), "
    "action? (made, bounded, specialised), value?",
    "residual": "the residual program of an entry: text",
    "aot_graph": "a functional graph: which (forward, backward, inference), graph_module",
    "aot_joint_graph": "a joint forward and backward graph: graph_module",
    "output_code": "the generated code of a graph: text, language",
    "kernel_code": "one generated kernel: name, text, user_lines (Locations), bytes_read?, bytes_written?",
    "schedule": "the order of kernels and externs of a program: text, arena_bytes? (all buffers, reused), "
    "buffer_bytes? (the same without reuse), kernels?, externs? (how many)",
    "fusion": "two loops fused, or why not: first, second, fused, why, user_line? (Location)",
    "perf_hint": "something cheap the user could change: text, user_line (Location)",
    "cache": "a persistent cache was read or written: operation (hit, miss, store, evict, corrupt), key, kind_of",
    "warning": "a message for the user that is no error: text",
}


@dataclass(frozen=True, slots=True)
class CompileId:
    """`[region/entry]`: which compiled region, and which of its cache entries."""

    region: int
    entry: int

    def __str__(self) -> str:
        return f"[{self.region}/{self.entry}]"


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's source."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Miss:
    """Why one entry did not match a call: the first guard that failed, and the user's line that asked for it."""

    entry: int
    source: str
    kind: str
    expected: str
    actual: str
    location: Location | None = None

    def __str__(self) -> str:
        line = f", asked for at {self.location}" if self.location else ""
        return f"entry {self.entry}: {self.source} was {self.expected}, is {self.actual} ({self.kind}{line})"


def is_own(file: str) -> bool:
    """Whether a source file is stator's: no user is shown its frames."""
    return file.startswith(_OWN_FOLDER)


def is_users(file: str) -> bool:
    """Whether a source file is neither torch's nor stator's: its frames are what a user means by "my line"."""
    return not file.startswith((_TORCH_FOLDER, _OWN_FOLDER))


@dataclass(frozen=True, slots=True)
class Event:
    """One record."""

    kind: str
    compile_id: CompileId | None
    time: float
    thread: int
    location: Location | None
    fields: dict[str, Any] = field(default_factory=dict)


class _Current(threading.local):
    compile_id: CompileId | None = None


_current = _Current()
# kind -> who listens to it. The dict of tuples is replaced as a whole, never mutated.
_receivers: dict[str, tuple[Callable[[Event], None], ...]] = dict.fromkeys(KINDS, ())
_receivers_lock = threading.Lock()


def subscribe(receiver: Callable[[Event], None], kinds: Iterable[str] | None = None) -> Callable[[], None]:
    """Deliver every event (of `kinds`, if given) to `receiver`; returns the function that ends it."""
    global _receivers
    wanted_kinds = frozenset(KINDS if kinds is None else kinds)
    for kind in wanted_kinds:
        if kind not in KINDS:
            raise ValueError(f"no such event kind: {kind!r}")

    def deliver(event: Event) -> None:
        receiver(event)

    with _receivers_lock:
        _receivers = {kind: (*row, deliver) if kind in wanted_kinds else row for kind, row in _receivers.items()}

    def unsubscribe() -> None:
        global _receivers
        with _receivers_lock:
            _receivers = {
                kind: tuple(other for other in row if other is not deliver) for kind, row in _receivers.items()
            }

    return unsubscribe


def wanted(kind: str) -> bool:
    """Whether anybody listens to `kind`: ask before building an expensive field."""
    return bool(_receivers[kind])


def emit(kind: str, location: Location | None = None, **fields: Any) -> None:
    """Report one event to whoever listens."""
    try:
        receivers = _receivers[kind]
    except KeyError:
        raise ValueError(f"no such event kind: {kind!r}") from None
    if not receivers:
        return
    event = Event(kind, _current.compile_id, time.perf_counter(), threading.get_ident(), location, fields)
    for receiver in receivers:
        receiver(event)


def current_compile_id() -> CompileId | None:
    """The identity of what this thread compiles now."""
    return _current.compile_id


@contextmanager
def compiling(compile_id: CompileId) -> Iterator[None]:
    """Events of this thread belong to `compile_id` inside."""
    outer = _current.compile_id
    _current.compile_id = compile_id
    try:
        yield
    finally:
        _current.compile_id = outer


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Time a stage and report it."""
    if not _receivers["stage"]:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        emit("stage", name=name, seconds=time.perf_counter() - start)
