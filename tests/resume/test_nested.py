"""Breaks in nested calls, exceptions of broken operations, and long loops: traced once, compiled boundedly often."""

from __future__ import annotations

import time
from typing import Any

import breaking
import pytest
import torch
from breaks_harness import Counting, compare
from table_programs import build

import stator
from stator import events

NESTED = {
    # The two examples of the torch.compile documentation on nested graph breaks.
    "inner": """
def inner(y):
    y = y + 1
    stator.graph_break()
    return y + 2
def middle(y):
    y = y * 2
    y = inner(y)
    return y * 3
def program(y, log):
    y = y - 1
    y = middle(y)
    return y - 2
""",
    "print": """
def inner(y):
    y = y + 1
    print("break")
    stator.graph_break()
    return y + 2
def program(y, log):
    y = inner(y)
    return y * 2
""",
}


def arguments() -> tuple[Any, ...]:
    breaking.reset()
    return torch.arange(3.0) + 1, []


@pytest.mark.parametrize("name", NESTED)
def test_documented_examples(name: str) -> None:
    seen = compare(build(name, NESTED[name]), arguments)
    assert [one.comparable() for one in seen.compiled] == [one.comparable() for one in seen.eager]
    assert (seen.graphs, len(seen.breaks), seen.again) == (2, 1, 0)
    assert seen.executed == seen.operations


def deep(depth: int) -> str:
    text = "def level0(y):\n    y = y + 1\n    stator.graph_break()\n    return y + 2\n"
    for level in range(1, depth):
        text += f"def level{level}(y):\n    y = y * 2\n    y = level{level - 1}(y)\n    return y - 1\n"
    return text + f"def program(y, log):\n    return level{depth - 1}(y)\n"


@pytest.mark.parametrize("depth", [1, 2, 10])
def test_depth(depth: int) -> None:
    seen = compare(build(f"deep{depth}", deep(depth)), arguments)
    assert [one.comparable() for one in seen.compiled] == [one.comparable() for one in seen.eager]
    assert (seen.graphs, len(seen.breaks), seen.again) == (2, 1, 0)
    assert seen.executed == seen.operations == 2 * depth


def test_instructions_traced_are_linear_in_depth() -> None:
    def steps(depth: int) -> int:
        stator.reset()
        count = 0

        def step(event: events.Event) -> None:
            nonlocal count
            count += 1

        end = events.subscribe(step, {"trace_bytecode"})
        try:
            stator.compile(build(f"steps{depth}", deep(depth)), backend=Counting())(*arguments())
        finally:
            end()
        return count

    few, some, many = steps(5), steps(10), steps(20)
    assert many - some == 2 * (some - few)


LOOPS = {
    "range": "for i in range(len(log)):\n        y = y + 1\n        opaque(y)\n        y = y * 0.5",
    "while": "i = 0\n    while i < len(log):\n"
    "        y = y + i\n        opaque(y)\n        i += 1\n        y = y * 0.5",
    "list": "for item in list(log):\n        y = y + item\n        opaque(y)\n        y = y * 0.5",
    "enumerate": "for i, item in enumerate(log):\n        y = y + item * i\n        opaque(y)\n        y = y * 0.5",
    "some turns": "for i in range(len(log)):\n"
    "        y = y + 1\n        if i % 3 == 0:\n            opaque(y)\n        y = y * 0.5",
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_compile_a_bounded_number_of_entries(name: str) -> None:
    program = build(name, f"def program(y, log):\n    {LOOPS[name]}\n    return y\n")
    seen = compare(program, lambda: (torch.ones(3), list(range(40))), calls=1)
    assert [one.comparable() for one in seen.compiled] == [one.comparable() for one in seen.eager]
    assert seen.graphs <= 8
    assert seen.executed == seen.operations
    assert seen.fallbacks == []


def test_a_long_loop_needs_no_stack() -> None:
    program = build(
        "long", "def program(y, n):\n    for i in range(n):\n        y = y + 1\n        opaque(y)\n    return y\n"
    )
    backend = Counting()
    compiled = stator.compile(program, backend=backend)
    assert torch.equal(compiled(torch.zeros(2), 10_000), torch.full((2,), 10_000.0))
    assert len(backend.graphs) <= 5
    start = time.perf_counter()
    compiled(torch.zeros(2), 10_000)
    assert time.perf_counter() - start < 5
    assert len(backend.graphs) <= 6


RAISING = {
    "no handler": """
def inner(y, log):
    return refuse(y + 1)
def program(y, log):
    return inner(y * 2, log) + 1
""",
    "caught outside": """
def inner(y, log):
    y = y + 1
    return refuse(y)
def program(y, log):
    try:
        z = inner(y * 2, log)
    except Broken as error:
        z = y * 3
    return z + 1
""",
    "text used": """
def program(y, log):
    try:
        z = refuse(y * 2)
    except Broken as error:
        log.append(str(error))
        z = y * 3
    return z + 1
""",
    "kept": """
def program(y, log):
    try:
        z = refuse(y * 2)
    except Broken as error:
        log.append(error)
        z = y * 3
    return z + 1
""",
    "other handler": """
def inner(y, log):
    try:
        return refuse(y + 1)
    except KeyError:
        return 3
def program(y, log):
    return inner(y * 2, log) + 1
""",
    "raised again": """
def inner(y, log):
    try:
        return refuse(y + 1)
    except Broken:
        log.append(1)
        raise
def program(y, log):
    return inner(y * 2, log) + 1
""",
    "raised from": """
def inner(y, log):
    try:
        return refuse(y + 1)
    except Broken as error:
        raise KeyError("other") from error
def program(y, log):
    return inner(y * 2, log) + 1
""",
    "raised while handling": """
def inner(y, log):
    try:
        return refuse(y + 1)
    except Broken:
        return {}["missing"]
def program(y, log):
    return inner(y * 2, log) + 1
""",
    "finally": """
def inner(y, log):
    try:
        return refuse(y + 1)
    finally:
        log.append(y * 2)
def program(y, log):
    try:
        inner(y * 2, log)
    except Broken:
        pass
    return y + 1
""",
    "break in handler": """
def inner(y, log):
    try:
        return refuse(y + 1)
    except Broken:
        log.append(opaque(y))
        return y * 4
def program(y, log):
    return inner(y * 2, log) + 1
""",
    "swallowed by with": """
def program(y, log):
    with Noted(log, swallow=True):
        y = y + 1
        refuse(y)
    return y * 2
""",
    "through with": """
def program(y, log):
    with Noted(log), noted(log):
        y = y + 1
        refuse(y)
    return y * 2
""",
    "traceback": """
def inner(y, log):
    return refuse(y + 1)
def program(y, log):
    import traceback
    try:
        inner(y * 2, log)
    except Broken as error:
        log.append([(row.name, row.lineno) for row in traceback.extract_tb(error.__traceback__)])
    return y + 1
""",
    "after a break": """
def inner(y, log):
    opaque(y)
    raise KeyError("after")
def program(y, log):
    return inner(y * 2, log) + 1
""",
    "without a break": """
def inner(y, log):
    log.append(y)
    raise KeyError("plain")
def program(y, log):
    return inner(y * 2, log) + 1
""",
    "operator": """
def inner(y, log):
    return y @ torch.ones(7, 7)
def program(y, log):
    opaque(y)
    return inner(y * 2, log) + 1
""",
    "in a loop": """
def program(y, log):
    for i in range(4):
        try:
            y = y + 1
            refuse(y) if i % 2 else opaque(y)
        except Broken:
            log.append(i)
            continue
        y = y * 2
    return y
""",
    "in a comprehension": """
def act(y, i):
    if i == 2:
        refuse(y)
    return y * i
def program(y, log):
    return [act(y, i) for i in range(4)]
""",
}


@pytest.mark.parametrize("name", RAISING)
def test_exceptions(name: str) -> None:
    seen = compare(build(name, RAISING[name]), arguments, calls=3, state=breaking.state)
    for eager, compiled in zip(seen.eager, seen.compiled, strict=True):
        assert compiled.comparable() == eager.comparable()
    assert seen.fallbacks == []
    if name in ("caught outside", "text used", "finally", "swallowed by with", "in a loop"):
        assert seen.executed == seen.operations


RUN_ON = "def program(y, n):\n    y = y + 1\n    opaque(y)\n    return y * n\n"


def test_break_once_a_call_compiles_two_entries_for_any_number() -> None:
    backend = Counting()
    compiled = stator.compile(build("numbers", RUN_ON), backend=backend)
    for number in range(2, 12):
        assert torch.equal(compiled(torch.ones(2), number), torch.full((2,), 2.0 * number))
    assert len(backend.graphs) <= 5
