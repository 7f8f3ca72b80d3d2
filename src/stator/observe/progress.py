"""Progress: what a compile that takes more than a second is doing, on a terminal.

Contract. Nothing is shown for a compile shorter than `DELAY`, where stderr is no terminal, or when `config.progress` is
off; what was shown is wiped away when the work is done. The program never waits: it only notes where it is, and a
thread that sleeps while nothing compiles does the drawing.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from stator import config, events
from stator.events import Event
from stator.observe.guarded import guarded

DELAY = 1.0
_REDRAW = 0.1
KINDS = frozenset({"compile_start", "compile_end", "stage", "progress"})

# What runs after a stage that ended, for compiles that say only when stages end.
_NEXT = {"capture": "aot", "aot": "lower", "partition": "lower", "lower": "fuse", "fuse": "emit", "emit": "link"}


@dataclass(slots=True)
class _Work:
    """One compile in flight."""

    name: str
    began: float
    stage: str = "capture"
    done: int = 0
    total: int = 0

    def text(self) -> str:
        return f"{self.name}: {self.stage}"


class Progress:
    """Follows the compiles in flight and draws them."""

    def __init__(self, stream: TextIO, delay: float = DELAY) -> None:
        self.stream = stream
        self.delay = delay
        self.work: dict[int, list[_Work]] = {}  # thread -> its compiles, the innermost last
        self.lock = threading.Lock()
        self.busy = threading.Event()
        self.thread: threading.Thread | None = None
        self.end: Callable[[], None] | None = None

    def start(self) -> Progress:
        self.end = events.subscribe(guarded(self.receive, "progress"), KINDS)
        return self

    def stop(self) -> None:
        """Stop listening; a drawing in flight ends by itself."""
        if self.end is not None:
            self.end()
            self.end = None
        with self.lock:
            self.work.clear()

    def receive(self, event: Event) -> None:
        if event.kind == "compile_start":
            if config.progress:
                self._begin(event)
            return
        with self.lock:
            stack = self.work.get(event.thread)
            if not stack:
                return
            current, fields = stack[-1], event.fields
            if event.kind == "compile_end":
                stack.pop()
                if not stack:
                    del self.work[event.thread]
            elif event.kind == "stage":
                current.stage, current.done, current.total = _NEXT.get(fields["name"], fields["name"]), 0, 0
            else:
                current.stage, current.done, current.total = str(fields["stage"]), fields["done"], fields["total"]

    def _begin(self, event: Event) -> None:
        key = f"{event.compile_id} " if event.compile_id else ""
        work = _Work(f"{key}{event.fields.get('name', '')}", time.monotonic())
        with self.lock:
            self.work.setdefault(event.thread, []).append(work)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="stator-progress", daemon=True)
                self.thread.start()
        self.busy.set()

    def _slow(self) -> list[_Work]:
        now = time.monotonic()
        with self.lock:
            current = [stack[-1] for stack in self.work.values() if now - stack[0].began >= self.delay]
            if not self.work:
                self.busy.clear()
        return current

    def _run(self) -> None:
        while True:
            self.busy.wait()
            if self._slow():
                self._draw()
            time.sleep(min(_REDRAW, self.delay))

    def _draw(self) -> None:
        """Show what is slow until nothing is."""
        rich: Any = importlib.import_module("rich.progress")  # 50 ms, worth it only when a second has passed
        console: Any = importlib.import_module("rich.console").Console(file=self.stream)
        columns = [
            rich.SpinnerColumn(),
            rich.TextColumn("{task.description}"),
            rich.BarColumn(bar_width=24),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
        ]
        with rich.Progress(*columns, console=console, transient=True) as display:
            tasks: dict[int, tuple[Any, _Work]] = {}
            while current := self._slow():
                for key in [key for key in tasks if key not in map(id, current)]:
                    display.remove_task(tasks.pop(key)[0])
                for work in current:
                    if id(work) not in tasks:
                        tasks[id(work)] = (display.add_task(work.text(), total=None), work)
                    display.update(
                        tasks[id(work)][0], description=work.text(), completed=work.done, total=work.total or None
                    )
                time.sleep(_REDRAW)


_progress: list[Progress] = []


def start() -> None:
    """Follow compiles if stderr is a terminal; called once when stator is imported."""
    if not _progress and sys.stderr is not None and sys.stderr.isatty():
        _progress.append(Progress(sys.stderr).start())
