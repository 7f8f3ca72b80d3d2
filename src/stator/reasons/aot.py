"""Reasons that belong to: aot."""

from __future__ import annotations

from stator.reasons.row import Reason

ROWS: tuple[Reason, ...] = ()
