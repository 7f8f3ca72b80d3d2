"""What `benchmarks/cpu.py` runs in processes of their own: one workload, one kind of number, printed as a JSON line.

    python benchmarks/cpu_child.py run|first|memory WORKLOAD [--contenders eager stator inductor] [--seconds S]

`run`: seconds a call, contenders alternating, minimum of rounds; `first`: seconds from before the compiler's import to
the first result, one contender; `memory`: peak bytes allocated above what was there before the call.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from cpu_workloads import WORKLOADS, Workload

Call = Callable[[], Any]


def runner(workload: Workload, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Call:
    """One call as the workload's kind wants it."""
    if workload.kind == "training":

        def train() -> Any:
            loss = function(*arguments).float().sum()
            loss.backward()
            return loss

        return train
    return lambda: function(*arguments)


def compiler(name: str) -> Callable[[Any], Any]:
    """The contender's compiler, imported now."""
    if name == "stator":
        import stator

        return stator.compile
    return torch.compile if name == "inductor" else lambda function: function


def difference(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest value of each result."""
    worst = 0.0
    for left, right in zip(expected, found, strict=True):
        left, right = left.detach().double(), right.detach().double()
        if left.numel():
            worst = max(worst, (left - right).abs().max().item() / max(left.abs().max().item(), 1e-6))
    return worst


def run(workload: Workload, contenders: list[str], seconds: float) -> dict[str, Any]:
    """Best time of each contender, and how far stator's result is from eager's."""
    function, arguments = workload.make()
    row: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    results: dict[str, Any] = {}
    for name in contenders:
        call = runner(workload, compiler(name)(function), arguments)
        try:
            made = call()
        except Exception as error:
            row[f"{name} error"] = f"{type(error).__name__}: {str(error)[:300]}"
            continue
        if workload.kind != "step":
            results[name] = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        calls[name] = call
    if "eager" in results and "stator" in results:
        row["difference"] = difference(results["eager"], results["stator"])
    results.clear()
    if workload.bytes_moved is not None:
        moved = workload.bytes_moved(arguments)
        source, target = torch.zeros(moved // 8), torch.empty(moved // 8)
        calls["copy"] = lambda: target.copy_(source)
    row.update(best_times(calls, seconds))
    return row


def best_times(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Seconds a call, alternating in rounds."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, min(200, int(2e-3 / max(time.perf_counter() - start, 1e-7))))
    best = dict.fromkeys(calls, math.inf)
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for name, call in calls.items():
            count = repeats[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / count)
    return best


def first(workload: Workload, contender: str) -> dict[str, Any]:
    """Seconds to the first result; eager has run before, so that libraries are loaded."""
    function, arguments = workload.make()
    runner(workload, function, arguments)()
    start = time.perf_counter()
    runner(workload, compiler(contender)(function), arguments)()
    return {f"{contender} first": time.perf_counter() - start}


def memory(workload: Workload, contenders: list[str]) -> dict[str, Any]:
    """Bytes allocated at the worst moment of a call, above what was allocated before it."""
    row: dict[str, Any] = {}
    for name in contenders:
        if name == "stator":
            allocate_apart()
        function, arguments = workload.make()
        call = runner(workload, compiler(name)(function), arguments)
        for _ in range(3):
            call()
        forget_gradients()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            call()
        total = peak = 0
        events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        for event in sorted(events, key=lambda event: event.start_ns()):
            total += event.nbytes()
            peak = max(peak, total)
        row[f"{name} peak"] = peak
    return row


def forget_gradients() -> None:
    """As a training loop does before each step: else a compiled backward holds new gradients beside the old ones."""
    for parameter in [entry for entry in gc.get_objects() if isinstance(entry, torch.nn.Parameter)]:
        parameter.grad = None


def allocate_apart() -> None:
    """Let torch's allocator, which the profiler sees, make what programs lay into their arenas, and keep no memory
    between calls. An arena needs at most 256 KB more than what is alive in it (`_native/program/memory.c`)."""
    from stator.runtime import lifetimes, native

    connected = native.runtime()
    assert connected is not None
    connected.module.connect_kept([])
    usual = lifetimes._without_shared_arena

    def apart(plan: Any, kept: set[int]) -> Any:
        return usual(plan, kept | {slot.index for slot in plan.slots if slot.kind == "arena"})

    lifetimes._without_shared_arena = apart


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "first", "memory"))
    parser.add_argument("workload")
    parser.add_argument("--contenders", nargs="+", default=["eager", "stator", "inductor"])
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    (workload,) = [entry for entry in WORKLOADS if entry.name == options.workload]
    torch.manual_seed(0)
    with torch.set_grad_enabled(workload.kind == "training"):
        if options.what == "run":
            row = run(workload, options.contenders, options.seconds)
        elif options.what == "first":
            row = first(workload, options.contenders[0])
        else:
            row = memory(workload, options.contenders)
    print(json.dumps(row))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
