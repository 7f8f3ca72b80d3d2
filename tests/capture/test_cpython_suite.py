"""A part of CPython's own test suite, every test method compiled (all of it: `make cpython-suite`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

QUICK = (
    "test_augassign test_binop test_bool test_class test_compare test_contains test_genexps "
    "test_keywordonlyarg test_listcomps test_named_expressions test_opcodes test_patma test_raise test_richcmp "
    "test_slice test_super test_unpack_ex test_with test_yield_from"
).split()
TOOL = Path(__file__).parent.parent.parent / "tools/cpython_suite.py"


@pytest.mark.skipif(importlib.util.find_spec("test.test_patma") is None, reason="this Python came without its tests")
def test_compiled_methods_do_what_they_do_in_plain_python() -> None:
    specification = importlib.util.spec_from_file_location("cpython_suite", TOOL)
    assert specification is not None and specification.loader is not None
    suite = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(suite)
    plain, compiled = suite.run(QUICK, jobs=1)
    passing = [name for name, row in plain.items() if row["outcome"] == "passed"]
    assert len(passing) > 400, len(passing)
    known = suite.known()
    found = {name: row["why"] for name, row in suite.differences(plain, compiled).items() if name not in known}
    assert not found
