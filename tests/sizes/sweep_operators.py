"""Every operator of torch's operator database on meta tensors with symbolic sizes: `python sweep_operators.py --help`.

For each sample: the symbolic result must have the concrete result's shape, strides and dtype at the sizes it was
traced with; and wherever the guards hold for other sizes (0, 1 and larger ones), the concrete kernel must accept
them and give the shape that the symbolic result has there. The table `known_specialising.json` lists the operators
that need guards or specialise, and with what; a difference to it is a failure, and `--write` renews it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from stator.sizes import SizeContext, shapes
from stator.sizes.function_rules import symbolic_shapes
from stator.values.source import SourceTree

TABLE = pathlib.Path(__file__).with_name("known_specialising.json")
SAMPLES = 6
OTHER_SIZES = (0, 1, 3, 7)


class Sample:
    """One call, with its tensors made symbolic: equal sizes share a symbol; 0 and 1 stay constants."""

    def __init__(self, op: Any, sample: Any) -> None:
        self.op = op
        self.args = (sample.input, *sample.args)
        self.kwargs = {name: value for name, value in sample.kwargs.items() if name != "device"}
        self.context = SizeContext()
        self.tensor = SourceTree(("x",)).local(0)
        self.symbols: dict[int, Any] = {}

    def size(self, value: int) -> Any:
        if value < 2:
            return value
        if value not in self.symbols:
            source = self.tensor.child("SIZE", len(self.symbols))
            self.symbols[value] = self.context.symbol(source, value)
        return self.symbols[value]

    def symbolic(self, tensor: torch.Tensor) -> torch.Tensor:
        sizes = [self.size(size) for size in tensor.shape]
        return shapes.empty_strided(sizes, shapes.contiguous_strides(sizes), tensor.dtype, "meta")

    def concrete(self, values: dict[int, int]) -> Any:
        """The call on meta tensors with each size `old` replaced by `values[old]`."""

        def make(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty([values.get(size, size) for size in tensor.shape], dtype=tensor.dtype, device="meta")

        args, kwargs = pytree.tree_map_only(torch.Tensor, make, (self.args, self.kwargs))
        return facts_of(self.op(*args, **kwargs))

    def traced(self) -> list[tuple[Any, ...]]:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.symbolic, (self.args, self.kwargs))
        with symbolic_shapes():
            return facts_of(self.op(*args, **kwargs))

    def at(self, facts: list[tuple[Any, ...]], values: dict[int, int]) -> list[tuple[Any, ...]]:
        """Symbolic facts with the sizes put in."""
        context = self.context
        environment = {context.expr_of(symbol): values[old] for old, symbol in self.symbols.items()}

        def number(value: Any) -> int:
            return value if isinstance(value, int) else context.algebra.evaluate(context.expr_of(value), environment)

        return [(tuple(map(number, shape)), tuple(map(number, strides)), dtype) for shape, strides, dtype in facts]

    def guards_hold(self, values: dict[int, int]) -> bool:
        context = self.context
        environment = {context.expr_of(symbol): values[old] for old, symbol in self.symbols.items()}
        try:
            return all(context.algebra.evaluate(guard.expr, environment) for guard in context.guards)
        except ZeroDivisionError:
            return False


def facts_of(result: Any) -> list[tuple[Any, ...]]:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [
        (tuple(leaf.shape), tuple(leaf.stride()) if leaf.layout is torch.strided else (), leaf.dtype) for leaf in leaves
    ]


def significant(facts: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without the strides that no element tells: of dimensions of 0 or 1, and of empty tensors."""
    return [
        (shape, tuple(stride for size, stride in zip(shape, strides) if size > 1 and 0 not in shape), dtype)
        for shape, strides, dtype in facts
    ]


def samples_of(op: Any) -> Iterator[Sample]:
    dtype = next((each for each in (torch.float32, torch.int64, torch.complex64) if each in op.dtypes), None)
    if dtype is None:
        return
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
        tensors = [
            leaf for leaf in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if torch.is_tensor(leaf)
        ]
        if all(tensor.layout is torch.strided and tensor.is_contiguous() for tensor in tensors):
            yield Sample(op, sample)


def check(sample: Sample) -> tuple[str, str, str]:
    """(kind, detail, failure): kind is one of free, guards, specialises, refuses, skipped."""
    torch.manual_seed(0)
    try:
        expected = sample.concrete({})
    except Exception:  # no meta kernel, or data is needed: nothing to compare with
        return "skipped", "", ""
    torch.manual_seed(0)
    try:
        traced = sample.traced()
    except NotImplementedError as error:
        return "refuses", str(error).partition("\n")[0], ""
    except Exception as error:
        return "refuses", "", f"{type(error).__name__}: {str(error)[:200]}"
    own = {old: old for old in sample.symbols}
    found = sample.at(traced, own)
    if found != expected:
        return "free", "", f"traced {found}, the kernel gives {expected}"
    failure = ""
    for values in alternatives(sample):
        if not sample.guards_hold(values):
            continue
        try:
            there = sample.concrete(values)
        except Exception as error:
            failure = f"the guards hold at {values}, but the kernel says {str(error)[:120]}"
            break
        if significant(there) != significant(sample.at(traced, values)):
            failure = f"at {values} traced {sample.at(traced, values)}, the kernel gives {there}"
            break
    context = sample.context
    if context.specialisations:
        whys = sorted({entry.why or "a comparison" for entry in context.specialisations.values()})
        return "specialises", "; ".join(whys), failure
    if context.guards:
        return "guards", "; ".join(sorted({context.short_text(guard.expr) for guard in context.guards})), failure
    return "free", "", failure


def alternatives(sample: Sample) -> Iterator[dict[int, int]]:
    own = {old: old for old in sample.symbols}
    for old in own:
        for size in OTHER_SIZES:
            yield {**own, old: size}
    yield {old: old * 2 + 1 for old in own}


def sweep(names: list[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The table of operators that are not free, and the failures."""
    table: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for op in op_db:
        label = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if names and op.name not in names:
            continue
        try:
            samples = list(samples_of(op))
        except Exception:  # the database itself lacks a package or a device here
            continue
        counts: dict[str, int] = {}
        details: set[str] = set()
        for sample in samples:
            kind, detail, failure = check(sample)
            counts[kind] = counts.get(kind, 0) + 1
            if detail and kind != "guards":
                details.add(detail)
            if failure:
                failures.append(f"{label}: {failure}")
        worst = next((kind for kind in ("refuses", "specialises", "guards") if kind in counts), None)
        if worst:
            table[label] = {"worst": worst, "why": sorted(details)}
    return table, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operators of the database; all if none")
    parser.add_argument("--write", action="store_true", help="renew the table")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    table, failures = sweep(arguments.names)
    counts = {
        kind: sum(entry["worst"] == kind for entry in table.values()) for kind in ("refuses", "specialises", "guards")
    }
    print(counts, f"{len(failures)} failures")
    for failure in failures:
        print("FAILURE", failure)
    if arguments.write:
        TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
        return 0
    known = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    changed = {name for name in {*table, *known} if table.get(name) != known.get(name)}
    changed = {name for name in changed if not arguments.names or name.partition(".")[0] in arguments.names}
    for name in sorted(changed):
        print("CHANGED", name, known.get(name), "->", table.get(name))
    return 1 if failures or changed else 0


if __name__ == "__main__":
    sys.exit(main())
