"""Runs programs of the generator eagerly and compiled, and says where they differ.

    python tests/capture/fuzzing.py FIRST COUNT [--breaking] [--seconds S]

Contract. `differences(seed, breaking)` gives what can be seen of a program's two compiled calls that eager Python shows
otherwise: results, arguments, globals, output, exceptions with the functions and lines of their tracebacks.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import linecache
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "resume")]

import breaking as library  # noqa: E402
from breaks_harness import Seen, observe, plain  # noqa: E402
from program_generator import write  # noqa: E402

import stator  # noqa: E402

NAMES = ("Broken", "contextlib", "functools", "opaque", "refuse", "stator", "time", "torch")


def build(text: str, name: str) -> dict[str, Any]:
    """The globals of a program that is ready to run."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names: dict[str, Any] = {key: getattr(library, key, None) for key in NAMES}
    names |= {"itertools": itertools, "__name__": name, "time": time, "functools": functools}
    exec(compile(text, file, "exec"), names)
    return names


def arguments(names: dict[str, Any], turn: int) -> tuple[Any, ...]:
    library.reset()
    x = torch.arange(3.0) + turn
    return x, [3, 1, 2][: 3 - turn % 2], {"a": 1, "b": turn}, names["Derived"](2, torch.ones(3)), []


def calls(text: str, name: str, compiled: bool) -> list[Seen]:
    """What three calls show; the third has other arguments."""
    names = build(text, name)
    program = stator.compile(names["program"], backend="eager") if compiled else names["program"]
    seen = []
    for turn in (0, 0, 1):
        state = functools.partial(lambda: [names["COUNT"], plain(names["NAMES"]), library.state()])
        seen.append(observe(program, lambda turn=turn: arguments(names, turn), state))
    return seen


def differences(seed: int, breaking: bool) -> list[str]:
    """What compiled code shows otherwise than eager Python."""
    text = write(seed, breaking)
    stator.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, compiled = calls(text, f"program{seed}", False), calls(text, f"program{seed}", True)
    linecache.cache.pop(f"<program{seed}>", None)
    found = []
    for turn, (left, right) in enumerate(zip(eager, compiled, strict=True)):
        for what in ("result", "output", "error", "frames", "state"):
            one, other = getattr(left, what), getattr(right, what)
            if one != other:
                found.append(f"call {turn}, {what}: {_around(repr(one), repr(other))}")
    return found


def _around(eager: str, compiled: str) -> str:
    """Where two texts part."""
    start = next((at for at, pair in enumerate(zip(eager, compiled, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, start - 60)
    return f"\n  eager    ...{eager[start : start + 200]}\n  compiled ...{compiled[start : start + 200]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--breaking", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    failed = []
    done = 0
    for seed in range(asked.first, asked.first + asked.count):
        if time.monotonic() > end:
            break
        done += 1
        try:
            with contextlib.redirect_stderr(None):
                found = differences(seed, asked.breaking)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            failed.append(seed)
            print(f"seed {seed}: {found[0][:1500]}", flush=True)
    print(f"{done} programs, {len(failed)} differ: {failed[:40]}")
    return bool(failed)


if __name__ == "__main__":
    with stator.config.patch(dynamic_profile=False):
        sys.exit(main())
