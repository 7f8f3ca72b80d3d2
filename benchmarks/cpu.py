"""Compiled CPU code beside torch.compile and eager: run time, first call, memory and bandwidth.

Run by `make bench-cpu`. Each number comes from a process of its own (`cpu_child.py`); inside it stator, torch.compile
(Inductor) and eager alternate and the minimum of many rounds counts. Ratios above 1 mean stator is better. Results are
merged into benchmarks/results/cpu.json by workload and number of threads, so they can be measured in pieces.

    prepare   fill the caches of both compilers under --caches, so that `run` does not wait for compilers
    run       seconds a call, with 1 and 2 threads
    first     the first call in a fresh process: with empty caches, then with the caches that call has filled
    memory    peak of allocated bytes in a call
    show      print what is stored
    table     write what is stored into docs/performance.md

    python benchmarks/cpu.py run [--threads 1 2] [--only TEXT] [--contenders eager stator inductor] [--caches DIR]
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from cpu_workloads import WORKLOADS, Workload

RESULTS = Path(__file__).parent / "results" / "cpu.json"
CHILD = Path(__file__).parent / "cpu_child.py"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- results: written by `benchmarks/cpu.py table` -->\n", "<!-- end of results -->\n"
Row = dict[str, Any]


def child(what: str, workload: Workload, threads: int, caches: Path, contenders: list[str], seconds: float) -> Row:
    """The numbers of one process, with both compilers' caches in a folder."""
    folders = {"STATOR_CACHE_DIR": caches / "stator", "TORCHINDUCTOR_CACHE_DIR": caches / "inductor"}
    for folder in folders.values():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = {**os.environ, **{name: str(folder) for name, folder in folders.items()}}
    environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, str(CHILD), what, workload.name, "--contenders", *contenders, "--seconds", str(seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            row: Row = json.loads(line)
            return row
    return {"error": done.stderr[-400:]}


def first_calls(workload: Workload, threads: int, contenders: list[str]) -> Row:
    """Each compiler with empty caches, then once more with what it left there."""
    row: Row = {}
    for name in contenders:
        if name == "eager":
            continue
        with tempfile.TemporaryDirectory() as folder:
            for state in ("cold", "warm"):
                found = child("first", workload, threads, Path(folder), [name], 0)
                row.update({f"{key} {state}": value for key, value in found.items()})
    return row


def ratio(row: Row, other: str, suffix: str = "") -> float | None:
    """How many times another contender needs."""
    mine, theirs = row.get(f"stator{suffix}"), row.get(f"{other}{suffix}")
    return theirs / mine if mine and theirs else None


def show(row: Row) -> str:
    def times(other: str, suffix: str = "") -> str:
        found = ratio(row, other, suffix)
        return f"{found:6.2f}x" if found else "      -"

    mine = row.get("stator")
    text = f"{row['name']:28s} {row['threads']} thr " + (f"{mine * 1e6:9.1f} us" if mine else " " * 12)
    text += f"  eager {times('eager')}  inductor {times('inductor')}"
    if row.get("copy"):
        text += f"  copy {times('copy')}"
    for state in ("cold", "warm"):
        found = row.get(f"stator first {state}")
        if found:
            text += f"  {state} {found * 1e3:5.0f} ms {times('inductor', f' first {state}')}"
    if row.get("stator peak") is not None:
        text += f"  peak {row['stator peak'] / 1e6:.1f} MB, eager {row['eager peak'] / 1e6:.1f}"
    return text + "".join(f"\n    {name}: {row[name]}" for name in row if name.endswith("error"))


def geometric_mean(rows: list[Row], other: str, suffix: str = "") -> str:
    ratios = [found for row in rows if (found := ratio(row, other, suffix))]
    if not ratios:
        return "-"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.2f}x over {len(ratios)} rows, lowest {min(ratios):.2f}x"


def summary(rows: list[Row]) -> str:
    lines = []
    for threads in sorted({row["threads"] for row in rows}):
        chosen = [row for row in rows if row["threads"] == threads]
        for other in ("inductor", "eager"):
            lines.append(f"{threads} threads, {other}: {geometric_mean(chosen, other)}")
    for state in ("cold", "warm"):
        lines.append(f"first call {state}, inductor: {geometric_mean(rows, 'inductor', f' first {state}')}")
    return "\n".join(lines)


def cell(row: Row, other: str, suffix: str = "") -> str:
    found = ratio(row, other, suffix)
    return f"{found:.2f}" if found else ""


def table(rows: dict[tuple[str, int], Row]) -> str:
    """One line for each workload: how many times its time the others need."""
    lines = [
        "| workload | µs, 1 thread | Inductor | eager | copy | µs, 2 threads | Inductor | eager "
        "| first call, ms | Inductor | warm, ms | Inductor |",
        "|---|" + "---:|" * 11,
    ]
    for name in dict.fromkeys(name for name, _ in rows):
        one, two = rows.get((name, 1), {}), rows.get((name, 2), {})
        first = two if "stator first cold" in two else one
        cells = [f"{one['stator'] * 1e6:.1f}" if "stator" in one else ""]
        cells += [cell(one, other) for other in ("inductor", "eager", "copy")]
        cells += [f"{two['stator'] * 1e6:.1f}" if "stator" in two else ""]
        cells += [cell(two, other) for other in ("inductor", "eager")]
        for state in ("cold", "warm"):
            took = first.get(f"stator first {state}")
            cells += [f"{took * 1e3:.0f}" if took else "", cell(first, "inductor", f" first {state}")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n```text\n" + summary(list(rows.values())) + "\n```\n"


def write_page(rows: dict[tuple[str, int], Row]) -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table(rows) + END + rest.split(END)[1])


def stored() -> dict[tuple[str, int], Row]:
    if not RESULTS.exists():
        return {}
    names = {workload.name for workload in WORKLOADS}
    rows = json.loads(RESULTS.read_text())["rows"]
    return {(row["name"], row["threads"]): row for row in rows if row["name"] in names}


def store(rows: dict[tuple[str, int], Row]) -> None:
    machine = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    order = {workload.name: place for place, workload in enumerate(WORKLOADS)}
    ordered = sorted(rows.values(), key=lambda row: (row["threads"], order[row["name"]]))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine, "rows": ordered}, indent=1) + "\n")


def merged(old: Row, new: Row, again: bool) -> Row:
    """What was measured before, and now; with `again`, of each contender's times the lower one."""
    kept = {name: value for name, value in old.items() if not name.endswith("error")}
    for name, value in new.items():
        lower = again and isinstance(value, float) and name in kept
        kept[name] = min(kept[name], value) if lower else value
    return kept


def measure(options: argparse.Namespace, workload: Workload, threads: int) -> Row:
    if options.what == "first":
        return first_calls(workload, threads, options.contenders)
    what = "memory" if options.what == "memory" else "run"
    seconds = 0 if options.what == "prepare" else options.seconds
    return child(what, workload, threads, options.caches, options.contenders, seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("prepare", "run", "first", "memory", "show", "table"))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--names", nargs="+", help="whole names")
    parser.add_argument("--contenders", nargs="+", default=["eager", "stator", "inductor"])
    parser.add_argument("--caches", type=Path, default=Path(tempfile.gettempdir()) / f"stator-bench-{os.getuid()}")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring, for each contender")
    parser.add_argument("--again", action="store_true", help="more rounds of the same code: keep the lower times")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    rows = stored()
    if options.what == "table":
        write_page(rows)
        return
    for threads in options.threads:
        for workload in WORKLOADS:
            if options.only not in workload.name or (options.names and workload.name not in options.names):
                continue
            key = workload.name, threads
            if options.what == "show":
                print(show(rows[key]) if key in rows else f"{workload.name}: not measured")
                continue
            row: Row = {"name": workload.name, "threads": threads, **measure(options, workload, threads)}
            print(show(row), flush=True)
            if options.what != "prepare":
                rows[key] = merged(rows.get(key, {}), row, options.again)
                if not options.dry:
                    store(rows)
    print(summary([row for row in rows.values() if row["threads"] in options.threads]))


if __name__ == "__main__":
    main()
