"""After a capture anything may change: where the guards still hold, compiled code does what eager code does."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from capture_harness import Program, compare, observe
from mutations import all_places
from test_language import PROGRAMS

import stator

# What cannot be compared under changes: the programs whose point is an exception that leaves them, and known ones.
SUBJECTS = [program for program in PROGRAMS if not program.raises and not program.known and not program.reason]


def change_and_compare(program: Program, wanted: int | None, dynamic: bool | None) -> None:
    """Capture a program, then call it after each of `wanted` changes (all, for None)."""
    stator.reset()
    function = program.function
    space = function.__globals__
    before = {name: copy.deepcopy(space[name]) for name in program.names}
    compiled = stator.compile(function, backend="eager", dynamic=dynamic, recompile_limit=1000)
    maker = program.makers[0]

    def run(call: Any, position: int | None) -> Any:
        space.update(copy.deepcopy(before))
        args = maker()
        change = None if position is None else all_places(function, args)[position]
        if change is not None:
            change.make()
        try:
            return observe(call, args, {name: space[name] for name in program.names})
        finally:
            if change is not None:
                try:
                    change.undo()
                except (KeyError, IndexError):
                    pass  # the program took it away itself

    try:
        labels = [change.where for change in all_places(function, maker())]
        run(compiled, None)
        positions = list(range(len(labels)))
        if wanted is not None:
            random.Random(program.name).shuffle(positions)
        for position in positions[:wanted]:
            eager = run(function, position)
            compare(eager, run(compiled, position), f"after a change of {labels[position]}")
            compare(run(function, None), run(compiled, None), f"back from a change of {labels[position]}")
    finally:
        space.update(before)


@pytest.mark.parametrize("program", SUBJECTS, ids=lambda program: program.name)
def test_changes(program: Program) -> None:
    change_and_compare(program, 4, False)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", (False, None))
@pytest.mark.parametrize("program", SUBJECTS, ids=lambda program: program.name)
def test_all_changes(program: Program, dynamic: bool | None) -> None:
    change_and_compare(program, None, dynamic)
