"""How long a broken operation runs, for programs built while somebody listens to `break_run`.

Contract. A residual program calls its `BreakTimer` right after the operation, raised or not; the timer reports what
the operation took. Programs built while nobody listens have no timer at all, so that a hit emits nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from stator import events
from stator.events import CompileId, Location


@dataclass(frozen=True, slots=True)
class BreakTimer:
    """Reports the runs of one broken operation."""

    reason: str
    location: Location | None
    compile_id: CompileId | None

    def start(self) -> float:
        return time.perf_counter()

    def stop(self, started: float) -> None:
        seconds = time.perf_counter() - started
        if self.compile_id is not None:
            with events.compiling(self.compile_id):
                events.emit("break_run", location=self.location, reason=self.reason, seconds=seconds)
