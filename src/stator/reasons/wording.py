"""How a reason is said: the user's frame first, one sentence, one action, the reason id."""

from __future__ import annotations

from stator.reasons import REASONS


def describe_break(reason: str, detail: str, stack: str) -> str:
    """The message of a break, for an error or a log."""
    row = REASONS.get(reason)
    summary, hint = (row.summary, row.hint) if row is not None else (reason.replace("_", " "), "")
    sentence = (
        summary.format(detail=detail) if "{detail}" in summary else (f"{summary}: {detail}" if detail else summary)
    )
    lines = [f"{stack.rstrip()}", sentence]
    if hint:
        lines.append(f"Hint: {hint}")
    lines.append(f"[{reason}]")
    return "\n".join(lines)
