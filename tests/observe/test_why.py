"""Twenty times "why": the first line of the answer names the user's line, the cause and an action."""

import importlib.util
import textwrap

import pytest
import why

import stator
from stator.observe import explain
from stator.reasons import REASONS

needs_compile = pytest.mark.skipif(not hasattr(stator, "compile"), reason="stator.compile is not built yet")


def load(program, directory):
    path = directory / f"{program.name}.py"
    path.write_text("import torch\n" + textwrap.dedent(program.text))
    spec = importlib.util.spec_from_file_location(program.name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = [number for number, line in enumerate(path.read_text().splitlines(), 1) if "# here" in line]
    return module, path, lines


def test_the_table():
    assert len(why.PROGRAMS) == 20 and len({program.name for program in why.PROGRAMS}) == 20
    assert {program.question for program in why.PROGRAMS} == {"break", "recompile", "fuse", "slow", "specialise"}


@needs_compile
@pytest.mark.parametrize("program", why.PROGRAMS, ids=lambda program: program.name)
def test_the_first_line_of_the_answer(program, tmp_path, capsys):
    if "mark_dynamic" in program.text and not hasattr(stator, "mark_dynamic"):
        pytest.skip("stator.mark_dynamic is not built yet")
    module, path, lines = load(program, tmp_path)
    stator.reset()
    with explain.recording() as seen:
        module.run(stator.compile)
    first = str(seen.explanation()).splitlines()[0]
    raised = capsys.readouterr().out
    if raised:  # a program that must not compile at all answers with its error
        first = " ".join(raised.splitlines()[:6])
    answer, _, reason = first.rpartition(" [")
    missing = [said.reason for said in seen.explanation().breaks if said.reason not in REASONS]
    if missing:
        pytest.skip(f"the reason {missing[0]!r} has no row in stator/reasons yet, so there are no words to check")
    for text in program.says:
        assert text in answer, first
    assert any(text in answer for text in program.do), first
    if program.dynamic_line:
        assert any(f"{path.name}:{line}" in first or f'{path.name}", line {line}' in first for line in lines), first
