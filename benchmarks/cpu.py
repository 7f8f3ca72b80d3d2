"""Compiled CPU code beside torch.compile and eager: run time, first call, and bandwidth.

Run by `make bench-cpu`. Each workload runs in its own process, one for each number of threads, so that first calls are
first calls; inside it stator, torch.compile (Inductor) and eager alternate and the minimum of many rounds counts.
Ratios above 1 mean stator is faster. Writes benchmarks/results/cpu.json.

    python benchmarks/cpu.py [--threads 1 2] [--only TEXT] [--no-peer] [--kernels]
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from cpu_workloads import WORKLOADS, Workload

RESULTS = Path(__file__).parent / "results" / "cpu.json"
SECONDS = 1.5  # of measuring for each contender
TOLERANCE = {torch.bfloat16: 5e-2, torch.float32: 2e-3}


def runner(workload: Workload, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """One call as the workload's kind wants it."""
    if workload.kind == "training":

        def train() -> Any:
            loss = function(*arguments).float().sum()
            loss.backward()
            return loss

        return train
    return lambda: function(*arguments)


def compilers(peer: bool) -> dict[str, Callable[[Any], Any]]:
    import stator

    contenders: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "stator": lambda f: stator.compile(f)}
    if peer:
        contenders["inductor"] = lambda f: torch.compile(f)
    return contenders


def measure(workload: Workload, peer: bool) -> dict[str, Any]:
    """First call and best time of each contender, in this process."""
    torch.manual_seed(0)
    function, arguments = workload.make()
    calls: dict[str, Callable[[], Any]] = {}
    row: dict[str, Any] = {"name": workload.name, "threads": torch.get_num_threads()}
    results: dict[str, Any] = {}
    with torch.set_grad_enabled(workload.kind == "training"):
        for name, compile_it in compilers(peer).items():
            call = runner(workload, compile_it(function), arguments)
            start = time.perf_counter()
            try:
                if workload.kind == "step":
                    call()
                else:
                    results[name] = [leaf for leaf in pytree.tree_leaves(call()) if isinstance(leaf, torch.Tensor)]
            except Exception as error:
                row[f"{name} error"] = f"{type(error).__name__}: {str(error)[:200]}"
                continue
            row[f"{name} first"] = time.perf_counter() - start
            calls[name] = call
        row["difference"] = difference(results.get("eager", []), results.get("stator", []))
        row.update(best_times(calls))
    return row


def difference(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest value of each result."""
    worst = 0.0
    for left, right in zip(expected, found, strict=False):
        left, right = left.detach().double(), right.detach().double()
        scale = max(left.abs().max().item(), 1e-6) if left.numel() else 1.0
        worst = max(worst, (left - right).abs().max().item() / scale if left.numel() else 0.0)
    return worst


def best_times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds a call, alternating in rounds."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, min(200, int(2e-3 / max(time.perf_counter() - start, 1e-7))))
    best = dict.fromkeys(calls, math.inf)
    end = time.perf_counter() + SECONDS * len(calls)
    while time.perf_counter() < end:
        for name, call in calls.items():
            count = repeats[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / count)
    return best


def in_process(workload: Workload, threads: int, peer: bool) -> dict[str, Any]:
    """Measure in a process of its own, with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "STATOR_CACHE_DIR": f"{folder}/stator",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "OMP_NUM_THREADS": str(threads),
        }
        os.mkdir(f"{folder}/stator", 0o700)
        command = [sys.executable, __file__, "--child", workload.name] + ([] if peer else ["--no-peer"])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            row: dict[str, Any] = json.loads(line)
            return row
    return {"name": workload.name, "threads": threads, "stator error": done.stderr[-400:]}


def show(row: dict[str, Any]) -> str:
    def ratio(other: str, suffix: str = "") -> str:
        mine, theirs = row.get(f"stator{suffix}"), row.get(f"{other}{suffix}")
        return f"{theirs / mine:7.2f}" if mine and theirs else "      -"

    mine = row.get("stator")
    took = f"{mine * 1e6:10.1f} us" if mine else "    failed   "
    text = f"{row['name']:26s} {row['threads']:2d} thr {took}  eager {ratio('eager')}x  inductor {ratio('inductor')}x"
    first = row.get("stator first")
    text += f"  first {first * 1e3:7.0f} ms ({ratio('inductor', ' first')}x)" if first else ""
    text += f"  diff {row.get('difference', math.nan):.0e}"
    return text + "".join(f"\n    {name}: {row[name]}" for name in row if name.endswith("error"))


def geometric_mean(rows: list[dict[str, Any]], other: str, suffix: str = "") -> float:
    ratios = [
        row[other + suffix] / row["stator" + suffix]
        for row in rows
        if row.get(other + suffix) and row.get("stator" + suffix)
    ]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--child", default="")
    options = parser.parse_args()
    if options.child:
        (workload,) = [entry for entry in WORKLOADS if entry.name == options.child]
        print(json.dumps(measure(workload, not options.no_peer)))
        return
    chosen = [workload for workload in WORKLOADS if options.only in workload.name]
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        for workload in chosen:
            rows.append(in_process(workload, threads, not options.no_peer))
            print(show(rows[-1]), flush=True)
    for other in ("inductor", "eager"):
        print(f"geometric mean over {other}: {geometric_mean(rows, other):.2f}x")
    print(f"first call over inductor: {geometric_mean(rows, 'inductor', ' first'):.1f}x")
    if not options.only:
        RESULTS.parent.mkdir(exist_ok=True)
        machine = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        RESULTS.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
