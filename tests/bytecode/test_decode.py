from __future__ import annotations

import dis
import gc
import re
import sys
import threading
import time
import types
from typing import Any

import pytest
from tests.bytecode.samples import long_function, standard_library

from stator.bytecode import CELL, FREE, LOCAL, decode
from stator.bytecode.decode import _decoded

WORDS = {"IS_OP": ("is", "is not"), "CONTAINS_OP": ("in", "not in")}
# `dis` shows these arguments without a value of its own.
VALUELESS = {"CALL_INTRINSIC_1", "CALL_INTRINSIC_2", "KW_NAMES", "LOAD_FAST_LOAD_FAST"}


def check(code: types.CodeType) -> None:
    decoded = decode(code)
    expected = [row for row in dis.get_instructions(code) if row.opname != "EXTENDED_ARG"]
    assert len(decoded.instructions) == len(expected)
    for index, (mine, theirs) in enumerate(zip(decoded.instructions, expected, strict=True)):
        assert (mine.index, mine.opname, mine.opcode, mine.offset) == (
            index,
            theirs.opname,
            theirs.opcode,
            theirs.offset,
        )
        assert mine.arg == (-1 if theirs.arg is None else theirs.arg)
        assert theirs.positions is not None and tuple(mine.positions) == tuple(theirs.positions)
        assert mine.line == theirs.positions.lineno
        check_value(decoded, mine, theirs, code)
    assert list(decoded.localsplus_names) == [
        code._varname_from_oparg(slot) for slot in range(len(decoded.localsplus_names))
    ]
    check_exceptions(decoded, code, len(expected))


def check_value(decoded: Any, mine: Any, theirs: Any, code: types.CodeType) -> None:
    if mine.target >= 0:
        assert decoded.index_of_offset[theirs.argval] == mine.target
        return
    if mine.opname in ("LOAD_CONST", "RETURN_CONST", "KW_NAMES"):
        assert mine.value is code.co_consts[mine.arg]
    elif mine.opname in WORDS:
        assert mine.value == WORDS[mine.opname][mine.arg]
    elif mine.opname == "BINARY_OP":
        assert mine.value == theirs.argrepr
    elif mine.opname == "COMPARE_OP":
        assert theirs.argval in (mine.value, f"bool({mine.value})")
    elif mine.value is not None and mine.opname not in VALUELESS:
        assert mine.value == theirs.argval
    if mine.opname == "LOAD_GLOBAL":
        assert mine.push_null == bool(re.search(r"NULL( \+|$)", theirs.argrepr) and theirs.argrepr != theirs.argval)
    if mine.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR"):
        assert mine.is_method == ("NULL|self" in theirs.argrepr)


def check_exceptions(decoded: Any, code: types.CodeType, count: int) -> None:
    def index(offset: int) -> int:
        return decoded.index_of_offset.get(offset, count)

    expected = [
        (index(row.start), index(row.end), index(row.target), row.depth, row.lasti)
        for row in dis._parse_exception_table(code)  # type: ignore[attr-defined]
    ]
    assert [tuple(row) for row in decoded.exceptions] == expected
    for i in range(count):
        inside = [row for row in decoded.exceptions if row.start <= i < row.end]
        assert decoded.handler_of[i] == (inside[0] if inside else None)


def test_agrees_with_dis_on_a_sample_of_the_standard_library() -> None:
    count = 0
    for code in standard_library(step=60):
        check(code)
        count += 1
    assert count > 100


@pytest.mark.slow
def test_agrees_with_dis_on_the_whole_standard_library() -> None:
    for code in standard_library():
        check(code)


def test_extended_arguments_are_folded_and_jumped_to() -> None:
    code = long_function(400)
    assert any(row.opname == "EXTENDED_ARG" for row in dis.get_instructions(code))
    check(code)


def test_specialised_code_decodes_as_compiled() -> None:
    def add(a: Any, b: Any) -> Any:
        total = 0
        for i in range(a):
            total = total + i * b
        return total

    before = [(row.opname, row.arg) for row in decode(add.__code__).instructions]
    for _ in range(200):
        add(20, 2)
    _decoded.clear()
    assert [(row.opname, row.arg) for row in decode(add.__code__).instructions] == before


def test_slots_of_arguments_that_are_cells() -> None:
    outer = 1

    def function(argument: Any, plain: Any, *rest: Any, key: Any = None, **more: Any) -> Any:
        local = 2
        other = 3
        return lambda: (argument, rest, local, outer), other

    decoded = decode(function.__code__)
    kinds = dict(zip(decoded.localsplus_names, decoded.localsplus_kinds, strict=True))
    assert kinds["argument"] == LOCAL | CELL and kinds["rest"] == LOCAL | CELL and kinds["plain"] == LOCAL
    assert kinds["local"] == CELL and kinds["outer"] == FREE and kinds["other"] == LOCAL
    assert (decoded.ncells, decoded.nfrees, decoded.argument_count) == (3, 1, 5)
    assert {name: decoded.localsplus_names[slot] for name, slot in decoded.cell_indexes.items()} == {
        "argument": "argument",
        "rest": "rest",
        "local": "local",
    }
    assert decoded.localsplus_names[decoded.free_indexes["outer"]] == "outer"


def test_every_unit_of_an_instruction_maps_to_it() -> None:
    seen: list[int] = []

    def inner() -> None:
        seen.append(sys._getframe(1).f_lasti)

    def outer() -> None:
        inner()

    outer()
    instruction = decode(outer.__code__).instructions[decode(outer.__code__).index_of_offset[seen[0]]]
    assert instruction.opname == "CALL"


def test_cached_per_object_and_collected_with_it() -> None:
    source = "def f():\n    return 1\n"
    codes = [compile(source, name, "exec") for name in ("<a>", "<b>")]
    assert codes[0] == codes[1]  # file names are no part of equality
    first, second = decode(codes[0]), decode(codes[1])
    assert first is not second and decode(codes[0]) is first and first.code is codes[0]
    gc.collect()
    before = len(_decoded)
    codes.clear()
    gc.collect()
    assert len(_decoded) == before - 2
    with pytest.raises(ReferenceError):
        _ = first.code


def test_threads_decode_the_same_code() -> None:
    codes = list(standard_library(step=400))
    results: list[list[int]] = []

    def work() -> None:
        results.append([len(decode(code).instructions) for code in codes])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(result == results[0] for result in results)


def test_is_faster_than_dis() -> None:
    codes = list(standard_library(step=200))

    def seconds(work: Any) -> float:
        best = 1e9
        for _ in range(3):
            _decoded.clear()
            start = time.perf_counter()
            for code in codes:
                work(code)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(decode) < seconds(lambda code: list(dis.get_instructions(code)))
