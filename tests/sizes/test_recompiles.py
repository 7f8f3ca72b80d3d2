"""How often programs whose values vary compile again: the table of `recompile_programs.py`, stator's side of it."""

from __future__ import annotations

import json

import pytest
import recompile_table
from recompile_programs import PROGRAMS

KNOWN = json.loads(recompile_table.TABLE.read_text())


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    count, wrong = recompile_table.measured(name)
    assert (count, wrong) == (PROGRAMS[name].recompiles, "")
    peer = KNOWN[name]["peer"]
    if isinstance(peer, int):
        assert (count < peer, count > peer) == (bool(PROGRAMS[name].fewer), bool(PROGRAMS[name].more))


def test_the_table_is_that_of_these_programs() -> None:
    assert KNOWN.keys() == PROGRAMS.keys() and len(PROGRAMS) >= 80
    assert {name: row["stator"] for name, row in KNOWN.items()} == {
        name: row.recompiles for name, row in PROGRAMS.items()
    }
    assert sum(bool(row.more) for row in PROGRAMS.values()) <= 2
