"""Time per operation of symbolic sizes: `python benchmarks/sizes.py`.

Each line is the minimum over rounds, in microseconds; `fresh` builds expressions never seen before, `again` meets
them in the algebra's tables. The torch column is the same statement on torch's own symbolic integers
(`--torch`; it imports sympy and torch's fake tensors), as a ratio over ours.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
from collections.abc import Callable

import torch

from stator.sizes import SizeContext
from stator.values.source import SourceTree

Statement = Callable[[torch.SymInt, torch.SymInt, int], object]

STATEMENTS: dict[str, Statement] = {
    "add constant, fresh": lambda a, b, i: a + i,
    "add symbol, again": lambda a, b, i: a + b,
    "mul constant, fresh": lambda a, b, i: a * i,
    "mul symbol, again": lambda a, b, i: a * b,
    "floordiv, fresh": lambda a, b, i: a // i,
    "mod, fresh": lambda a, b, i: a % i,
    "max, fresh": lambda a, b, i: torch.sym_max(a, i),
    "compare, not decided": lambda a, b, i: a == b,
    "compare, decided": lambda a, b, i: a >= 0,
    "compare and branch": lambda a, b, i: bool(a * b == b * a),
}


def ours() -> tuple[torch.SymInt, torch.SymInt]:
    sizes = SizeContext()
    tensor = SourceTree(("x",)).local(0)
    return sizes.symbol(tensor.child("SIZE", 0), 8), sizes.symbol(tensor.child("SIZE", 1), 6)


def of_torch() -> tuple[torch.SymInt, torch.SymInt]:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.DYNAMIC])
    tensor = mode.from_tensor(torch.empty(8, 6), symbolic_context=dynamic)
    return tensor.shape[0], tensor.shape[1]


def microseconds(
    statement: Statement, make: Callable[[], tuple[torch.SymInt, torch.SymInt]], count: int = 300
) -> float:
    best = float("inf")
    for _ in range(7):
        a, b = make()
        numbers = itertools.count(2)
        statement(a, b, 1)
        gc.collect()
        gc.disable()  # as timeit does: torch's heap is large, and whoever collects pays for all of it
        start = time.perf_counter()
        for _ in range(count):
            statement(a, b, next(numbers))
        best = min(best, (time.perf_counter() - start) / count)
        gc.enable()
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", action="store_true", help="also time torch's own symbolic integers")
    arguments = parser.parse_args()
    for name, statement in STATEMENTS.items():
        mine = microseconds(statement, ours)
        line = f"{name:24} {mine:7.2f} us"
        if arguments.torch:
            line += f"   torch {microseconds(statement, of_torch, 60) / mine:6.1f} x"
        print(line)


if __name__ == "__main__":
    main()
