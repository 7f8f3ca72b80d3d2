"""Errors of this stage, made from the rows of `reasons/aot.py`.

Contract. `refuse(reason_id, detail=..., line=...)` returns (never raises) the exception of a row: the user's line
first where it is known, the row's sentence, its hint, and the id in brackets.
"""

from __future__ import annotations

from stator.exc import DataDependentError, StatorError, Unsupported
from stator.reasons import REASONS

_DATA_DEPENDENT = frozenset({"aot_value_read", "aot_dynamic_output"})


def refuse(reason: str, detail: str = "", line: str = "") -> StatorError:
    """The exception for one reason."""
    row = REASONS[reason]
    message = row.summary.format(detail=detail)
    where = f"{line}\n" if line else ""
    kind = DataDependentError if reason in _DATA_DEPENDENT else Unsupported
    return kind(f"{where}{message}\n  {row.hint} [{reason}]", reason=reason, detail=detail)
