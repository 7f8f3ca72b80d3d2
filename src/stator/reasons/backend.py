"""Reasons that belong to: backend."""

from __future__ import annotations

from stator.reasons.row import Reason

ROWS: tuple[Reason, ...] = ()
