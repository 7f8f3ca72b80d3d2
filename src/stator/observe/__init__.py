"""Everything stator can say about itself, made from the events of the other rooms.

Contract. The rooms below emit events and know nothing of this one; this one reads events and calls nobody. `start()` is
called once when stator is imported: it follows `STATOR_LOGS`, `STATOR_TRACE` and `config.progress`.

    records   an event as plain data       advice   the answer to a "why" in one line
    model     records folded to a session  graphs   an FX graph as text
    logs      STATOR_LOGS                  trace    STATOR_TRACE, in the format of tlparse
    report    one HTML file                explain  an object to look at and to test against
    metrics   counters, Prometheus         progress a terminal's line for long compiles
    doctor    is this installation well?
"""

from __future__ import annotations

from stator.observe import logs, metrics, progress, trace


def start() -> None:
    """Switch on what the environment asks for."""
    logs.start()
    trace.start()
    metrics.start()
    progress.start()
