"""Reasons that belong to: backend."""

from __future__ import annotations

from stator.reasons.row import Reason

ROWS: tuple[Reason, ...] = (
    Reason(
        id="native_runtime_unavailable",
        summary="compiled graphs run step by step from Python: {detail}",
        explanation="The native runtime calls libtorch's C interface. It looks for each function, finds out how tensors "
        "are laid out and runs a small program before it is used; where one of these fails nothing of it is used.",
        hint="Install a torch version that stator supports, and build stator's extension modules for this Python.",
    ),
)
