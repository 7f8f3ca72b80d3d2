"""Programs beyond the table: all that can be seen of three calls, and how many graphs and breaks the first had."""

from __future__ import annotations

from typing import Any

import breaking
import pytest
import torch
from breaks_harness import compare
from more_programs import PROGRAMS
from table_programs import build


def arguments() -> tuple[Any, ...]:
    breaking.reset()
    return torch.arange(3.0) + 1, []


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    graphs, breaks, text = PROGRAMS[name]
    seen = compare(build(name, text.strip()), arguments, calls=3, state=breaking.state)
    for eager, compiled in zip(seen.eager, seen.compiled, strict=True):
        assert compiled.comparable() == eager.comparable()
    assert (seen.graphs, len(seen.breaks)) == (graphs, breaks), [event.fields["reason"] for event in seen.breaks]
    assert seen.fallbacks == []
