"""Traces: `STATOR_TRACE=dir` writes what happened to a file, one per process and rank.

Contract. The emitting thread renders a record (see `records`) and hands it to a queue; it never waits for the disk. A
writer thread encodes and writes each record with one `write`, so what was written outlives a `SIGKILL`. It writes as
soon as no compile is under way, and every `_PATIENCE` seconds while one is: each time it wakes it takes the interpreter
from the thread that compiles. The queue is bounded: a disk that is too slow loses records, and the trace says how many.
The file is bounded (`config.trace_size_mb`): when it is nearly full only the short records are written. A forked child
writes a file of its own. Files are readable by their owner only: they hold source lines.

The name is what `tlparse --all-ranks-html` looks for; where the rank becomes known late the file is renamed then.

Kinds left out, because they cost more than they tell: see `UNTRACED`; logs have them.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from stator import config, events
from stator.events import Event
from stator.observe.guarded import guarded
from stator.observe.records import Record, render
from stator.observe.trace_format import SHORT_KINDS, Encoder

UNTRACED = frozenset({"trace_source", "trace_bytecode", "bytecode", "progress", "aot_joint_graph"})
# What these refer to is read only once it is emitted (see values/source), so the writer renders them.
_LATE = frozenset({"guards"})
_QUEUE_LENGTH = 20_000
_NEARLY_FULL = 0.9
_PATIENCE = 0.2  # seconds


def current_rank() -> int | None:
    """This process's rank in a distributed job, if it is in one."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


def process_facts() -> dict[str, Any]:
    """Who writes a trace."""
    return {
        "pid": os.getpid(),
        "rank": current_rank(),
        "command": " ".join([os.path.basename(sys.executable or "python"), *sys.argv])[:500],
        "directory": os.getcwd(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "started": time.time(),
        "started_clock": time.perf_counter(),
    }


class TraceWriter:
    """One trace, from `start` to `close`."""

    def __init__(self, directory: str | Path, size_mb: int | None = None) -> None:
        self.directory = Path(directory)
        self.limit = (config.trace_size_mb if size_mb is None else size_mb) * 1024 * 1024
        self.unsubscribe: Callable[[], None] | None = None
        self._begin()

    def _begin(self) -> None:
        """State of one process; a forked child begins again."""
        self.queue: deque[Record | Event] = deque()
        self.awake = threading.Event()
        self.idle = threading.Event()
        self.idle.set()
        self.compiling: set[Any] = set()  # the compiles under way, and whether there is none
        self.settled = threading.Event()
        self.settled.set()
        self.closed = False
        self.lost = 0
        self.left_out = 0
        self.size = 0
        self.descriptor = -1
        self.path: Path | None = None
        self.encoder: Encoder | None = None
        self.thread: threading.Thread | None = None

    def start(self) -> TraceWriter:
        """Create the directory and listen."""
        self.directory.mkdir(parents=True, exist_ok=True)
        kinds = set(events.KINDS) - UNTRACED
        self.unsubscribe = events.subscribe(guarded(self.receive, "the trace"), kinds)
        return self

    def receive(self, event: Event) -> None:
        """Hand one event over."""
        if self.closed:
            return
        if event.kind == "compile_start":
            self.compiling.add(event.compile_id)
            self.settled.clear()
        elif event.kind == "compile_end":
            self.compiling.discard(event.compile_id)
            if not self.compiling:
                self.settled.set()
        if len(self.queue) >= _QUEUE_LENGTH:
            self.lost += 1
            return
        self.idle.clear()
        self.queue.append(event if event.kind in _LATE else render(event))
        if self.thread is None:
            self._start_thread()
        self.awake.set()

    def _start_thread(self) -> None:
        with _writers_lock:
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="stator-trace", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        while True:
            if not self.compiling:
                self.awake.wait()
            self.awake.clear()
            self.settled.wait(_PATIENCE)
            try:
                self._write_all()
            except OSError as error:  # a full disk, a directory that is gone: say so once, and stop
                self.closed = True
                self.queue.clear()
                events.emit("warning", text=f"the trace in {self.directory} ends here: {error}")
            if not self.queue:
                self.idle.set()
                if self.closed:
                    return

    def _write_all(self) -> None:
        while self.queue:
            handed_over = self.queue.popleft()
            record = render(handed_over) if isinstance(handed_over, Event) else handed_over
            try:
                self._write(record)
            except (TypeError, ValueError, KeyError, AttributeError) as error:  # a record nobody foresaw
                self._put_note(f"a record of kind {record.kind!r} could not be written: {error!r}", record)

    def _open(self) -> Encoder:
        encoder = self.encoder = Encoder(process_facts())
        self.path = self.directory / self._name(encoder.rank)
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._put(encoder.header())
        return encoder

    def _name(self, rank: int | None) -> str:
        middle = "" if rank is None else f"rank_{rank}_"
        return f"dedicated_log_torch_trace_{middle}{os.getpid()}_{secrets.token_hex(4)}.log"

    def _put(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        self.size += len(data)
        while data:
            data = data[os.write(self.descriptor, data) :]

    def _write(self, record: Record) -> None:
        encoder = self.encoder or self._open()
        if encoder.rank is None and (rank := current_rank()) is not None and self.path is not None:
            encoder.rank = rank
            self.path = self.path.rename(self.directory / self._name(rank))
        if self.lost:
            lost, self.lost = self.lost, 0
            self._put_note(f"the disk was too slow: {lost} records were lost here", record)
        if self.size < self.limit * _NEARLY_FULL:
            self._put(encoder.encode(record))
            return
        if not self.left_out:
            self._put_note("the trace is nearly full: from here on only short records", record)
        self.left_out += 1
        if record.kind in SHORT_KINDS and self.size < self.limit:
            self._put(encoder.encode(record, short=True))

    def _put_note(self, text: str, beside: Record) -> None:
        encoder = self.encoder or self._open()
        encoder.discard()
        note = Record("warning", None, beside.time, beside.thread, None, {"text": text})
        self._put(encoder.encode(note))

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything handed over so far is written."""
        self.settled.set()
        self.awake.set()
        done = self.thread is None or self.idle.wait(timeout)
        if self.compiling:
            self.settled.clear()
        return done

    def close(self) -> None:
        """Stop listening, write what is left, close the file."""
        if self.unsubscribe is not None:
            self.unsubscribe()
            self.unsubscribe = None
        self.flush()
        self.closed = True
        self.awake.set()
        if self.thread is not None:
            self.thread.join(1.0)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


_writers: list[TraceWriter] = []
_writers_lock = threading.Lock()


def set_trace(directory: str | Path | None, *, size_mb: int | None = None) -> TraceWriter | None:
    """Write a trace into `directory` from now on; None ends it."""
    while _writers:
        _writers.pop().close()
    if directory is None:
        return None
    writer = TraceWriter(directory, size_mb).start()
    _writers.append(writer)
    return writer


def flush() -> None:
    """Everything handed over so far is in the files when this returns."""
    for writer in _writers:
        writer.flush()


def _close_all() -> None:
    set_trace(None)


def _after_fork() -> None:
    global _writers_lock
    _writers_lock = threading.Lock()
    for writer in _writers:
        if writer.descriptor >= 0:
            os.close(writer.descriptor)
        writer._begin()


def start(environment: Mapping[str, str] = os.environ) -> None:
    """Follow the environment; called once when stator is imported."""
    directory = environment.get("STATOR_TRACE")
    if directory:
        set_trace(directory)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
