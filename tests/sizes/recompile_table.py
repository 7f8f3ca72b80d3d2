"""Runs the programs of `recompile_programs.py` under stator, torch.compile and eager: `make table-recompiles`.

Each program is run by stator twice: with a backend that runs graphs as they are, where graphs are counted, and with
stator's own compiler. Results must be those of eager Python in both. torch.compile runs in a process of its own. The
measured table goes to tests/sizes/recompiles.json, which the tests compare with; exit status 1 if a number is not
the expected one, is above torch.compile's (or below) where the row does not say why, or results are not eager's.

    --names one_size pad      only these, nothing written          --no-peer     keep torch.compile's numbers
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from recompile_programs import PROGRAMS

TABLE = Path(__file__).with_name("recompiles.json")


class Eager:
    """The program as it is."""

    @staticmethod
    def compile(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        return function

    @staticmethod
    def graph_break() -> None:
        pass

    @staticmethod
    def mark_dynamic(*_: Any, **__: Any) -> None:
        pass

    maybe_mark_dynamic = mark_static = mark_unbacked = mark_dynamic


class Compiled:
    """A program compiled by stator or torch.compile; counts the graphs that reach the backend."""

    def __init__(self, peer: bool, backend: Any = None) -> None:
        self.graphs = 0
        self.backend = backend
        if peer:
            import torch._dynamo as module

            self._compile: Callable[..., Any] = torch.compile
        else:
            import stator as module

            module.config.dynamic_profile = False
            self._compile = module.compile
        module.reset()
        self.graph_break = module.graph_break
        self.mark_dynamic = module.mark_dynamic
        self.maybe_mark_dynamic = module.maybe_mark_dynamic
        self.mark_static = module.mark_static
        self.mark_unbacked = module.mark_unbacked if not peer else module.decorators.mark_unbacked

    def compile(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return self._compile(function, backend=self.backend or self._count, **options)

    def _count(self, module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        self.graphs += 1
        return module.forward


def run(name: str, system: Any) -> tuple[list[Any], int]:
    """The results of a program's calls, and how many graphs came after the first."""
    random.seed(0)
    torch.manual_seed(0)
    results, first = [], None
    for result in PROGRAMS[name].run(system):
        results.append(result)
        if first is None:
            first = getattr(system, "graphs", 0)
    return results, getattr(system, "graphs", 0) - (first or 0)


def same(left: Any, right: Any) -> bool:
    """Equal results: tensors to the rounding of fused kernels, all else exactly."""
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and left.shape == right.shape
            and left.dtype == right.dtype
            and torch.allclose(left, right, rtol=1e-5, atol=1e-6, equal_nan=True)
        )
    if isinstance(left, (tuple, list)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return (
            isinstance(right, dict) and left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
        )
    return type(left) is type(right) and left == right


def peer_counts(names: list[str]) -> Iterator[tuple[str, int | str]]:
    """torch.compile's numbers, from a process of its own; a text where it fails."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--peer", "--names", *names], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("["):
            name, count = json.loads(line)
            yield name, count
    process.wait()


def print_peer_counts(names: list[str]) -> None:
    import logging

    logging.disable(logging.WARNING)
    torch._dynamo.config.recompile_limit = 64
    for name in names:
        expected, _ = run(name, Eager)
        try:
            found, count = run(name, Compiled(peer=True))
            answer: Any = count if same(expected, found) else "other results than eager"
        except Exception as error:
            answer = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error).strip() else ''}"
        print(json.dumps([name, answer]), flush=True)


def measured(name: str) -> tuple[int | str, str]:
    """stator's number, and what is wrong, if anything is."""
    expected, _ = run(name, Eager)
    count: int | str = "failed"
    for backend in (None, "stator"):
        try:
            found, graphs = run(name, Compiled(False, backend))
        except Exception as error:
            traceback.print_exc(limit=-4)
            return count, f"{backend or 'counting'}: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
        if backend is None:
            count = graphs
        if not same(expected, found):
            return count, f"{backend or 'counting'}: other results than eager"
    return count, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    if arguments.peer:
        print_peer_counts(arguments.names)
        return 0
    known = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    peers = {} if arguments.no_peer else dict(peer_counts(arguments.names))
    table, bad = {}, 0
    for name in arguments.names:
        row = PROGRAMS[name]
        count, wrong = measured(name)
        peer = peers.get(name, known.get(name, {}).get("peer"))
        if not wrong and count != row.recompiles:
            wrong = f"expected {row.recompiles}"
        if not wrong and isinstance(peer, int) and isinstance(count, int):
            if (count > peer) != bool(row.more):
                wrong = "says why it needs more, but does not" if row.more else "more than torch.compile"
            elif (count < peer) != bool(row.fewer):
                wrong = "says why it needs fewer, but does not" if row.fewer else "fewer, and does not say why"
        bad += bool(wrong)
        table[name] = {"stator": count, "peer": peer}
        print(f"{name:42} stator {count!s:6} torch.compile {peer!s:6} {wrong}", flush=True)
    print(f"{len(table)} programs, {bad} not as expected")
    if set(table) == set(PROGRAMS):
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
