"""The shape of one row of the table of reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """Why stator left the ordinary path.

    `id` never changes once published. `summary` is one sentence that may hold `{detail}`. `explanation` says why
    it must be so. `hint` is one action for the user. `example` is a program (source text defining `example()`)
    that raises it; empty only where no program can (an interrupted write, a full disk).
    """

    id: str
    summary: str
    explanation: str
    hint: str
    example: str = ""
