"""Random programs, eager and compiled: nothing that can be seen differs, with and without graph breaks in them.

`make fuzz` runs as many more as there is time for. A seed that failed once belongs into `FOUND`.
"""

from __future__ import annotations

import pytest
from fuzzing import calls, differences

CHUNK = 100
CHUNKS = [(first, breaking) for first in range(0, 1000, CHUNK) for breaking in (False, True)]
# Seeds that showed a defect, now mended: what a broken operation raises, walks over dicts that change, symbolic
# members of sets, exceptions that pass context managers.
FOUND = (0, 10, 100, 160, 189, 208, 209)

KNOWN = """
def produce(log):
    try:
        yield 1
        yield 2
    finally:
        log.append("closed")
def program(x, items, table, holder, log):
    for one in produce(log):
        opaque(x)
        break
    log.append("behind")
    return x
"""


@pytest.mark.parametrize("first, breaking", CHUNKS)
def test_random_programs(first: int, breaking: bool) -> None:
    failed = {seed: found for seed in range(first, first + CHUNK) if (found := differences(seed, breaking))}
    assert not failed, f"{len(failed)} of {CHUNK} differ: " + "; ".join(f"{seed}: {failed[seed][0]}" for seed in failed)


@pytest.mark.parametrize("seed", FOUND)
def test_mended(seed: int) -> None:
    assert differences(seed, True) == []


@pytest.mark.xfail(strict=True, reason="a generator made before a break is real behind it; dropping it is not modelled")
def test_generator_left_early_behind_a_break_is_closed_at_once() -> None:
    text = "class Derived:\n    def __init__(self, n, t): pass\nCOUNT = NAMES = 0\n" + KNOWN
    eager, compiled = calls(text, "known", False), calls(text, "known", True)
    assert [seen.comparable() for seen in compiled] == [seen.comparable() for seen in eager]
