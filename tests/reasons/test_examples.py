"""Each reason is raised by its example, and each name that the source raises is a row."""

import ast
import pathlib

import pytest

import stator
from stator import events
from stator.reasons import REASONS

SOURCE = pathlib.Path(stator.__file__).parent
WITH_EXAMPLES = [row for row in REASONS.values() if row.example and "stator.compile" in row.example]


@pytest.mark.parametrize("row", WITH_EXAMPLES, ids=lambda row: row.id)
def test_example_meets_its_reason(row):
    seen = []

    def note(event):
        seen.append(event.fields["reason"])

    stator.reset()
    unsubscribe = events.subscribe(note, {"graph_break", "fallback"})
    try:
        namespace = {}
        exec(row.example, namespace)
        namespace["example"]()
    finally:
        unsubscribe()
    assert row.id in seen


def raised_names():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Break" and node.args:
                if isinstance(node.args[0], ast.Constant):
                    yield node.args[0].value, f"{path}:{node.lineno}"


def test_every_raised_reason_is_a_row():
    assert not [where for name, where in raised_names() if name not in REASONS]


def test_rows_are_worded_for_people():
    for row in REASONS.values():
        assert row.summary.strip() and row.explanation.strip() and row.hint.strip(), row.id
