"""Fills the table of measured results in README.md from benchmarks/results/*.json.

Contract. Each row is a function from the stored results of one benchmark to a line; a row whose file is missing, or
made by another version of the benchmark, is left out and named on stderr. Nothing is measured here and no number
stands in README.md that does not come from a file a make target wrote.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
BEGIN, END = "<!-- results: written by `make readme` -->\n", "<!-- end of results -->\n"


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, by which target, and how to read its result."""

    what: str
    target: str
    file: str
    read: Callable[[Any], str]


def over_python(case: str) -> Callable[[Any], str]:
    def read(result: Any) -> str:
        case_result = result["cases"][case]
        ours = case_result["microseconds_over_python"]["stator"]
        peer = case_result["microseconds_over_python"]["torch.compile"]
        return f"{ours:.2f} µs; torch.compile {peer:.1f} µs ({peer / ours:.0f} x)"

    return read


def program(case: str) -> Callable[[Any], str]:
    def read(result: Any) -> str:
        seconds = result["seconds"][case]
        ours, eager, peer = (seconds[name] * 1e6 for name in ("stator", "eager", "torch.compile"))
        return f"{ours:.2f} µs; eager {eager:.1f} µs, torch.compile {peer:.1f} µs"

    return read


def kernels(threads: int) -> Callable[[Any], str]:
    def read(result: Any) -> str:
        rows = [row for row in result["rows"] if row["threads"] == threads and "eager" in row and "stator" in row]
        over_eager = statistics.geometric_mean(row["eager"] / row["stator"] for row in rows)
        text = f"{over_eager:.2f} x eager's speed over {len(rows)} workloads (geometric mean)"
        peers = [row["inductor"] / row["stator"] for row in rows if row.get("inductor")]
        if peers:
            text += f", {statistics.geometric_mean(peers):.2f} x torch.compile's over {len(peers)}"
        return text

    return read


ROWS = (
    Row("calling a compiled function of 1 tensor, over Python", "bench-overhead", "overhead", over_python("1 tensor")),
    Row("calling a module of 200 parameters, over Python", "bench-overhead", "overhead", over_python("200 parameters")),
    Row("a graph of one pointwise kernel on 8x8", "bench-program", "program", program("pointwise 8x8")),
    Row("20 times (mm 8x8, relu)", "bench-program", "program", program("20 x (mm 8x8, relu)")),
    Row("fused CPU kernels and small models, 1 thread", "bench-cpu", "cpu", kernels(1)),
    Row("fused CPU kernels and small models, 2 threads", "bench-cpu", "cpu", kernels(2)),
)  # fmt: skip


def machine_of(path: Path, result: Any) -> str:
    """Date and kind of machine of one result."""
    facts = result.get("machine", {})
    when = result.get("date") or facts.get("when") or datetime.fromtimestamp(path.stat().st_mtime).isoformat()
    cores = f", {facts['cores']} cores" if "cores" in facts else ""
    return f"{when[:10]}: {facts.get('processor') or facts.get('machine')}{cores}, torch {facts.get('torch')}"


def table() -> str:
    lines = ["| what | measured | again by |", "|---|---|---|"]
    machines: dict[str, str] = {}
    for row in ROWS:
        path = RESULTS / f"{row.file}.json"
        try:
            result = json.loads(path.read_text())
            lines.append(f"| {row.what} | {row.read(result)} | `make {row.target}` |")
        except (OSError, KeyError, ValueError) as error:
            print(f"{row.what}: left out, {row.file}.json: {error!r}", file=sys.stderr)
            continue
        machines[row.file] = machine_of(path, result)
    where = "; ".join(
        f"{', '.join(f for f in machines if machines[f] == m)}: {m}" for m in dict.fromkeys(machines.values())
    )
    return "\n".join(lines) + f"\n\nMeasured on a shared machine, in turns with what it is compared with ({where}).\n"


def main() -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    README.write_text(before + BEGIN + table() + END + after)


if __name__ == "__main__":
    main()
