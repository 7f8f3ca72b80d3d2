"""One table of every reason to break a graph, refuse, or fall back.

Contract. A reason is a row with a stable id; code that breaks, refuses or falls back names a row, never writes a
message of its own. The rows live in the folder's files by the stage that raises them, and `REASONS` is their
union. Tests prove that each row is raised by its example and documented; `stator reasons` prints the table.
"""

from __future__ import annotations

from stator.reasons import aot, backend, capture, dynamic
from stator.reasons.row import Reason

REASONS: dict[str, Reason] = {}
for _rows in (capture.ROWS, dynamic.ROWS, aot.ROWS, backend.ROWS):
    for _row in _rows:
        if _row.id in REASONS:
            raise ValueError(f"two reasons with the id {_row.id!r}")
        REASONS[_row.id] = _row

__all__ = ["REASONS", "Reason"]
