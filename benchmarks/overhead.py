"""What a call of a compiled function costs beyond the plain Python call, beside torch.compile with a null backend.

Run by `make bench-overhead`. All contenders run in one process, alternating; the minimum of many short rounds counts,
so that the ratios hold on a busy machine. Writes benchmarks/results/overhead.json.

The null backend computes nothing: its callable returns what the graph returned when it was compiled. So what is left
is the price of guards, of fetching the graph's inputs and of calling; "plain Python" is a function of the same
arguments that returns a constant.

"stator" is `stator.compile(f, backend=null)`; "machine" is the dispatcher with a guard tree made by hand
for the same function, i.e. the price of the native core by itself.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import stator
from stator._native import calibration, core
from stator.guards import compile_guards
from stator.guards.modes import read_modes
from stator.guards.reference import tensor_facts
from stator.values.source import Source, SourceTree

RESULTS = Path(__file__).parent / "results" / "overhead.json"
ROUNDS = 400
CALLS = 200


@dataclass
class Case:
    """One function, its arguments, what stator may add to its call, and who guards it by hand."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    budget: float
    guard: Callable[[SourceTree], list[Source]]


class Wide(torch.nn.Module):
    """Many parameters spread over submodules, all of them inputs of the graph."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(parameters // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def ten(a, b, c, d, e, f, g, h, i, j):  # type: ignore[no-untyped-def]
    return a + b + c + d + e + f + g + h + i + j


def guard_tensors(arguments: tuple[Any, ...]) -> Callable[[SourceTree], list[Source]]:
    def guard(tree: SourceTree) -> list[Source]:
        tree.state().guard("MODES", read_modes())
        for index, argument in enumerate(arguments):
            tree.local(index).guard("TENSOR", tensor_facts(argument))
        return []

    return guard


def guard_module(node: Source, module: torch.nn.Module, fetches: list[Source]) -> None:
    """What capture asks of a module it inlines: its type, no hooks, its parameters and children."""
    node.guard("TYPE_IS", type(module))
    node.guard("MODULE_CALL", None)
    for table, entries in (("_parameters", module._parameters), ("_modules", module._modules)):
        if not entries:
            continue
        held = node.child("ATTR", table)
        held.guard("TYPE_IS", type(entries))
        held.guard("KEYS", tuple(entries))
        for name, entry in entries.items():
            child = held.child("KEY", name)
            if table == "_modules":
                guard_module(child, entry, fetches)
            else:
                child.guard("TENSOR", tensor_facts(entry))
                fetches.append(child)


def guard_wide(module: Wide, x: torch.Tensor) -> Callable[[SourceTree], list[Source]]:
    def guard(tree: SourceTree) -> list[Source]:
        fetches: list[Source] = []
        tree.state().guard("MODES", read_modes())
        guard_module(tree.local(0), module, fetches)
        tree.local(1).guard("TENSOR", tensor_facts(x))
        return fetches

    return guard


def cases() -> list[Case]:
    x = torch.ones(2, 3)
    wide = torch.ones(2, 4)
    tensors = tuple(torch.ones(2, 3) for index in range(10))
    rows = [
        Case("1 tensor", one, (x,), 0.3, guard_tensors((x,))),
        Case("10 tensors", ten, tensors, 0.6, guard_tensors(tensors)),
    ]
    for parameters in (20, 200):
        module = Wide(parameters)
        budget = 4.0 * parameters / 200
        rows.append(Case(f"{parameters} parameters", Wide.forward, (module, wide), budget, guard_wide(module, wide)))
    return rows


def by_hand(case: Case) -> Callable[..., Any]:
    """A dispatcher with one entry, whose residual calls a graph that computes nothing."""
    tree = SourceTree()
    fetches = case.guard(tree)
    table = core.EntryTable()

    def no_entry(dispatcher: Any, function: Any, arguments: tuple[Any, ...]) -> Any:
        raise RuntimeError(f"the guards of {case.name} do not hold")

    names = ", ".join(f"v{index}" for index in range(len(case.arguments) + len(fetches)))
    inputs = ", ".join(f"v{index}" for index in range(len(case.arguments) + len(fetches)) if index or not fetches)
    namespace: dict[str, Any] = {"graph": lambda *_: (case.arguments[-1],)}
    exec(f"def residual({names}):\n (output,) = graph({inputs})\n return output", namespace)
    table.insert(core.Entry(compile_guards(tree, fetches), namespace["residual"]))
    return core.Dispatcher(case.function, table, no_entry)


def null_backend(graph: Any, inputs: Any) -> Any:
    """Answers with what the graph answered once."""
    answer = graph(*inputs)
    return lambda *_: answer


def contenders(case: Case) -> dict[str, Callable[..., Any]]:
    plain_name = ", ".join(f"v{index}" for index in range(len(case.arguments)))
    namespace: dict[str, Any] = {}
    exec(f"def plain({plain_name}): return v{len(case.arguments) - 1}", namespace)
    rows = {"python": namespace["plain"], "machine": by_hand(case)}
    if hasattr(stator, "compile"):
        rows["stator"] = stator.compile(case.function, backend=null_backend)
    rows["torch.compile"] = torch.compile(case.function, backend=null_backend)
    return rows


def loop(function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Seconds a call, the arguments written out so that no tuple is unpacked."""
    names = [f"a{index}" for index in range(len(arguments))]
    source = f"def run(f, {', '.join(names)}, n):\n for _ in n:\n  f({', '.join(names)})\n"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    start = time.perf_counter()
    namespace["run"](function, *arguments, range(CALLS))
    return (time.perf_counter() - start) / CALLS


def measure(case: Case) -> dict[str, float]:
    rows = contenders(case)
    best: dict[str, float] = {}
    for function in rows.values():
        for _ in range(3):
            function(*case.arguments)
    for _ in range(ROUNDS):
        for name, function in rows.items():
            seconds = loop(function, case.arguments)
            best[name] = min(best.get(name, seconds), seconds)
    return best


def main() -> int:
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    failed = False
    print(f"{'µs a call over plain Python':28}{'machine':>10}{'stator':>10}{'peer':>10}{'budget':>9}{'ratio':>8}")
    for case in cases():
        best = measure(case)
        over = {name: (seconds - best["python"]) * 1e6 for name, seconds in best.items() if name != "python"}
        ours = over.get("stator", over["machine"])
        ratio = over["torch.compile"] / max(ours, 1e-3)
        failed = failed or over["machine"] > case.budget
        stator_text = f"{over['stator']:10.3f}" if "stator" in over else f"{'-':>10}"
        print(
            f"{case.name:28}{over['machine']:10.3f}{stator_text}{over['torch.compile']:10.3f}{case.budget:9.2f}"
            f"{ratio:7.1f}x"
        )
        report[case.name] = {"microseconds_over_python": over, "budget": case.budget, "peer_over_ours": ratio}
    small, large = report["20 parameters"], report["200 parameters"]
    growth = {
        name: (large["microseconds_over_python"][name] - small["microseconds_over_python"][name]) / 180 * 1e3
        for name in large["microseconds_over_python"]
    }
    print("growth, ns a parameter:      ", {name: round(value, 1) for name, value in growth.items()})
    failed = failed or growth["machine"] > 15
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tensors": calibration()["tensors"],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps(
            {
                "date": datetime.date.today().isoformat(),
                "machine": machine,
                "cases": report,
                "growth_nanoseconds_a_parameter": growth,
            },
            indent=1,
        )
        + "\n"
    )
    print("over budget" if failed else "within budget")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
