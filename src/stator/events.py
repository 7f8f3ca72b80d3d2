"""The event bus: every stage reports what it does through it, and nothing else does.

Contract. A stage calls `emit(kind, **fields)`; observers (`observe/`) subscribe. A record carries the compile
identity `[region/entry]`, a monotonic time, the thread, the user's file and line where there is one, and the
kind's own fields. The kinds are rows of `KINDS`: a kind that has no row cannot be emitted, so that the table is
the documentation of everything stator can say about itself.

With no subscriber `emit` returns after one truth test, and nothing is ever emitted on the path of a cache hit.

State: the tuple of subscribers is replaced, never mutated, so emitting threads need no lock. The current
compile identity is per thread (one thread compiles while others call).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# kind -> what it reports. Fields beyond the common ones are named in the text.
KINDS: dict[str, str] = {
    "compile_start": "a region or continuation begins to compile: name, file, line, cause",
    "compile_end": "it ended: ok, seconds, stages (name -> seconds), graphs, ops, guards",
    "stage": "one stage of a compile ended: name, seconds",
    "progress": "long work moved on: stage, done, total",
    "graph": "a torch-level graph was captured: graph_module, sizes",
    "graph_break": "a graph ended early: reason, detail, stack (frames of the user), line",
    "fallback": "something ran another way than asked: reason, detail",
    "bytecode": "a code object was read or built: title, code",
    "trace_source": "the interpreter reached a new user line: file, line, text",
    "trace_bytecode": "the interpreter executes an instruction: opname, argument, stack",
    "guards": "an entry's guards: tree",
    "recompile": "no entry matched: name, misses (explanations, nearest first), old, new, user_line",
    "dynamic": "a symbolic size was made, bounded or specialised: text, symbol, source, user_line",
    "residual": "the residual program of an entry: text",
    "aot_graph": "a functional graph: which (forward, backward, inference), graph_module",
    "aot_joint_graph": "a joint forward and backward graph: graph_module",
    "output_code": "the generated code of a graph: text, language",
    "kernel_code": "one generated kernel: name, text, user_lines",
    "schedule": "the order of kernels and externs of a program: text",
    "fusion": "two loops fused, or why not: first, second, fused, why",
    "perf_hint": "something cheap the user could change: text, user_line",
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
_subscribers: tuple[tuple[Callable[[Event], None], frozenset[str] | None], ...] = ()
_subscribers_lock = threading.Lock()


def subscribe(receiver: Callable[[Event], None], kinds: set[str] | None = None) -> Callable[[], None]:
    """Deliver every event (of `kinds`, if given) to `receiver`; returns the function that ends it."""
    global _subscribers
    for kind in kinds or ():
        if kind not in KINDS:
            raise ValueError(f"no such event kind: {kind!r}")
    row = (receiver, None if kinds is None else frozenset(kinds))
    with _subscribers_lock:
        _subscribers = (*_subscribers, row)

    def unsubscribe() -> None:
        global _subscribers
        with _subscribers_lock:
            _subscribers = tuple(other for other in _subscribers if other is not row)

    return unsubscribe


def wanted(kind: str) -> bool:
    """Whether anybody listens to `kind`: ask before building an expensive field."""
    return any(kinds is None or kind in kinds for _, kinds in _subscribers)


def emit(kind: str, location: Location | None = None, **fields: Any) -> None:
    """Report one event to whoever listens."""
    if not _subscribers:
        return
    if kind not in KINDS:
        raise ValueError(f"no such event kind: {kind!r}")
    event = Event(kind, _current.compile_id, time.perf_counter(), threading.get_ident(), location, fields)
    for receiver, kinds in _subscribers:
        if kinds is None or kind in kinds:
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
    if not _subscribers:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        emit("stage", name=name, seconds=time.perf_counter() - start)
