"""The table: kinds of break, in places, at depths 0 to 4: everything that can be seen of a run, and all counts.

That results, side effects, output, exceptions and tracebacks are eager's is asserted for each row and two calls. That
nothing but the broken operation ran outside of graphs is asserted by counting operations: eager Python's, and those
graphs executed. The rows of generators are the exceptions (see docs/where-compilation-resumes.md), and say so.
"""

from __future__ import annotations

import itertools
from typing import Any

import breaking
import pytest
import torch
from breaks_harness import compare
from table_programs import KINDS, PLACES, Kind, Place, build, source_of

NEUTRAL = next(kind for kind in KINDS if kind.name == "disabled")
DEPTHS = range(5)
# Each place at each depth, with kinds taken in turn; and each kind in these places.
TURNING = itertools.cycle(KINDS)
ROWS = [(place, NEUTRAL if place.neutral else next(TURNING), depth) for place in PLACES for depth in DEPTHS]
ROWS += [
    (place, kind, depth)
    for place in PLACES
    if place.name in ("top", "for_range", "in_try", "with_class", "middle_of_expression", "in_except")
    for kind in KINDS
    for depth in (0, 3)
]


def arguments() -> tuple[Any, ...]:
    breaking.reset()
    return torch.arange(3.0) + 1, []


def name(row: tuple[Place, Kind, int]) -> str:
    return f"{row[0].name}-{row[1].name}-{row[2]}"


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_row(row: tuple[Place, Kind, int]) -> None:
    place, kind, depth = row
    seen = compare(build(name(row), source_of(place, kind, depth)), arguments, state=breaking.state)
    for eager, compiled in zip(seen.eager, seen.compiled, strict=True):
        assert compiled.comparable() == eager.comparable()
    assert seen.fallbacks == []
    reasons = [event.fields["reason"] for event in seen.breaks]
    assert set(reasons) <= {*kind.breaks, *place.reasons}
    if place.exact:
        assert seen.executed == seen.operations
    if kind.varies:
        assert seen.again <= 2 * place.graphs
        return
    assert len(reasons) == place.breaks
    assert seen.graphs == (place.graphs if not depth else place.graphs_below or place.graphs)
    assert seen.again == place.again


def test_the_table_is_large() -> None:
    assert len({name(row) for row in ROWS}) >= 150
