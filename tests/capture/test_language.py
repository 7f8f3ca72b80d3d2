"""Programs in plain Python, by topic: each captured as one graph, and no different from eager in any respect."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from capture_harness import Program, run_program

FILES = sorted(path.stem for path in Path(__file__).parent.glob("programs_*.py"))
PROGRAMS = [program for name in FILES for program in importlib.import_module(name).program.programs]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program(program: Program) -> None:
    if not program.known:
        run_program(program)
        return
    with pytest.raises(AssertionError):
        run_program(program)
