"""Writes docs/reasons.md from the table of reasons; `--check` only says whether the page is current."""

from __future__ import annotations

import sys
from pathlib import Path

from stator.reasons import REASONS, Reason, aot, backend, capture, dynamic

PAGE = Path(__file__).parents[1] / "docs" / "reasons.md"
SECTIONS = {
    "Capture: why a graph ends": capture.ROWS,
    "Dynamic shapes": dynamic.ROWS,
    "Ahead of time": aot.ROWS,
    "Backends and the runtime": backend.ROWS,
}
HEAD = """# Reasons

Every reason stator has to end a graph, to refuse, or to run something another way than asked. The ids are stable: they
stand in logs, errors, traces and reports. Written by `make reasons-page` from `stator.reasons.REASONS`, which
`stator reasons` prints.
"""


def sentence(text: str) -> str:
    """The text as one sentence, with dots for what is filled in when it happens."""
    text = text.replace("{detail}", "...").strip()
    return text if text.endswith(".") else text + "."


def paragraph(row: Reason) -> str:
    parts = (f"### `{row.id}`", sentence(row.summary), row.explanation, f"**What to do:** {sentence(row.hint)}", "")
    return "\n\n".join(parts)


def page() -> str:
    parts = [HEAD]
    for title, rows in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [paragraph(row) for row in sorted(rows, key=lambda row: row.id)]
    if sum(map(len, SECTIONS.values())) != len(REASONS):
        raise SystemExit("a file of reasons has no section in tools/reasons_page.py")
    return "\n".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return PAGE.read_text() != text
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
