"""Writes docs/break-table.md: every row of the table of breaks, run again, with its counts; `make table-breaks`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import breaking  # noqa: E402
from breaks_harness import compare  # noqa: E402
from more_programs import PROGRAMS  # noqa: E402
from table_programs import PLACES, build, source_of  # noqa: E402
from test_break_table import ROWS, arguments, name  # noqa: E402

import stator  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "break-table.md"
HEAD = """# The table of graph breaks

Programs with a break of each kind in each place, at depths 0 to 4: run eagerly and compiled, twice or three times.
*same* says that results, side effects, output, exceptions and tracebacks (functions and lines) were those of eager
Python. *operators* are the operations graphs executed, of those eager Python executed, in a first call; where they
differ, the rest ran in plain Python as part of the broken operation. Written by `make table-breaks` from
`tests/resume/table_programs.py` and `tests/resume/more_programs.py`, whose tests assert all of it.
"""


def main() -> int:
    lines = [HEAD, f"{len(ROWS) + len(PROGRAMS)} programs.\n"]
    wrong = 0
    by_place: dict[str, list[str]] = {place.name: [] for place in PLACES}
    for place, kind, depth in ROWS:
        seen = compare(
            build(name((place, kind, depth)), source_of(place, kind, depth)), arguments, state=breaking.state
        )
        same = [one.comparable() for one in seen.eager] == [one.comparable() for one in seen.compiled]
        wrong += not same
        by_place[place.name].append(
            f"| {kind.name} | {depth} | {seen.graphs} | {len(seen.breaks)} | {seen.executed} of {seen.operations} "
            f"| {'yes' if same else '**no**'} |"
        )
    for title, rows in by_place.items():
        lines += [f"## {title.replace('_', ' ')}\n", "| kind | depth | graphs | breaks | operators | same |"]
        lines += ["|---|---|---|---|---|---|", *rows, ""]
    lines += ["## Programs of their own\n", "| program | graphs | breaks | operators | same |", "|---|---|---|---|---|"]
    for title, (_, _, text) in PROGRAMS.items():
        seen = compare(build(title, text.strip()), arguments, calls=3, state=breaking.state)
        same = [one.comparable() for one in seen.eager] == [one.comparable() for one in seen.compiled]
        wrong += not same
        lines.append(
            f"| {title.replace('_', ' ')} | {seen.graphs} | {len(seen.breaks)} | {seen.executed} of {seen.operations} "
            f"| {'yes' if same else '**no**'} |"
        )
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"{len(ROWS) + len(PROGRAMS)} programs, {wrong} differ: {PAGE}")
    return bool(wrong)


if __name__ == "__main__":
    with stator.config.patch(dynamic_profile=False):  # what an earlier run learnt would change counts
        sys.exit(main())
