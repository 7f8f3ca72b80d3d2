"""What a graph break costs: when it runs, and when it is traced, beside torch.compile.

Run by `make bench-breaks`; writes benchmarks/results/breaks.json. All contenders run in one process, alternating; the
minimum of many short rounds counts.

**Executed.** A function with a break in it, against the same pieces by hand: what comes before the break and what comes
after it, each compiled by itself, with the broken operation called in between. The null backend computes nothing, so
that what is left is guards, calls, effects and the way over the break. `depth` calls stand around the break: by hand it
is still two pieces, since all callers' remainders are one graph.

**Traced.** Seconds of a first call, by the depth at which the break stands, with backend "eager" on both sides.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import stator

RESULTS = Path(__file__).parent / "results" / "breaks.json"
ROUNDS = 300
CALLS = 200
BUDGET = 2.0  # µs
DEPTHS = (1, 2, 5, 10, 20, 40)


def null(module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    """A backend whose programs give what the graph gave for its examples."""
    outputs = module.forward(*example_inputs)
    return lambda *_: outputs


@stator.disable
def opaque(value: Any) -> int:
    return 3


def before(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def after(x: torch.Tensor, value: int) -> torch.Tensor:
    return x * value


def flat(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    value = opaque(x)
    return x * value


def first(x: torch.Tensor) -> torch.Tensor:
    return flat(x)


def second(x: torch.Tensor) -> torch.Tensor:
    return first(x)


def nested(x: torch.Tensor) -> torch.Tensor:
    return second(x)


def looped(x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = x + 1
        opaque(x)
    return x


def best(functions: dict[str, Callable[..., Any]], x: torch.Tensor) -> dict[str, float]:
    """Microseconds of a call of each, the minimum over alternating rounds."""
    lowest = dict.fromkeys(functions, float("inf"))
    for _ in range(ROUNDS):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                function(x)
            lowest[name] = min(lowest[name], (time.perf_counter() - start) / CALLS * 1e6)
    return lowest


def executed() -> dict[str, Any]:
    one, two = stator.compile(before, backend=null), stator.compile(after, backend=null)
    turn = stator.compile(before, backend=null)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        x = one(x)
        return two(x, opaque(x))  # type: ignore[no-any-return]

    def loop_by_hand(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = turn(x)
            opaque(x)
        return x

    functions = {
        "by_hand": by_hand,
        "break": stator.compile(flat, backend=null),
        "break_below_three_calls": stator.compile(nested, backend=null),
    }
    x = torch.ones(3)
    for function in functions.values():
        for _ in range(3):
            function(x)
    found = best(functions, x)
    looping = {"loop_by_hand": loop_by_hand, "loop": stator.compile(looped, backend=null)}
    for function in looping.values():
        for _ in range(3):
            function(x)
    turns = best(looping, x)
    return {
        "microseconds": {**found, **turns},
        "over_by_hand": {
            "break": found["break"] - found["by_hand"],
            "break_below_three_calls": found["break_below_three_calls"] - found["by_hand"],
            "break_in_a_loop": (turns["loop"] - turns["loop_by_hand"]) / 10,
        },
    }


def deep(depth: int) -> Callable[..., Any]:
    """A function with a break `depth` calls below, each with an operation before and after."""
    text = "def level0(y):\n    y = y + 1\n    stop()\n    return y + 2\n"
    for level in range(1, depth):
        text += f"def level{level}(y):\n    y = y * 2\n    y = level{level - 1}(y)\n    return y - 1\n"
    names: dict[str, Any] = {"stop": torch._dynamo.graph_break}
    exec(compile(text, f"<deep {depth}>", "exec"), names)
    return names[f"level{depth - 1}"]  # type: ignore[no-any-return]


def traced(compile_: Callable[..., Any], reset: Callable[[], None]) -> dict[int, float]:
    found: dict[int, float] = {}
    for depth in DEPTHS:
        for _ in range(3):
            reset()
            function = compile_(deep(depth), backend="eager")
            start = time.perf_counter()
            function(torch.ones(3))
            found[depth] = min(found.get(depth, 1e9), time.perf_counter() - start)
    return found


def main() -> int:
    peer = "--no-peer" not in sys.argv
    run = executed()
    traces = {"stator": traced(stator.compile, stator.reset)}
    if peer:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
        traces["torch.compile"] = traced(torch.compile, torch._dynamo.reset)
    report = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "budget_microseconds": BUDGET,
        "executed": run,
        "first_call_seconds_by_depth": traces,
    }
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    over = [name for name, value in run["over_by_hand"].items() if value > BUDGET]
    if over:
        print(f"over the budget of {BUDGET} µs: {', '.join(over)}")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
