from __future__ import annotations

import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bytecode.samples import long_function, standard_library

from stator.bytecode import Location, assemble, decode, insert, operation, operations_of, rebuild, stack_size
from stator.bytecode.tables import (
    ExceptionRow,
    encode_exceptions,
    encode_locations,
    parse_exceptions,
    parse_locations,
    shift_locations,
)


def check_round_trip(code: types.CodeType) -> None:
    decoded = decode(code)
    assembled = assemble(operations_of(decoded), decoded.exceptions, code.co_firstlineno)
    assert assembled.code == code.co_code
    assert assembled.exceptions == code.co_exceptiontable
    copy = code.replace(co_linetable=assembled.locations)
    assert list(copy.co_positions()) == list(code.co_positions())
    assert line_of_each_unit(copy) == line_of_each_unit(code)


def line_of_each_unit(code: types.CodeType) -> list[int | None]:
    return [line for start, end, line in code.co_lines() for _ in range(start, end, 2)]


def check_stack(code: types.CodeType) -> None:
    # Where CPython asks for more, it counts blocks that were optimised away.
    assert stack_size(decode(code)) <= code.co_stacksize


def test_round_trip_on_a_sample_of_the_standard_library() -> None:
    sizes = []
    for code in standard_library(step=60):
        check_round_trip(code)
        check_stack(code)
        sizes.append(stack_size(decode(code)) == code.co_stacksize)
    assert sum(sizes) > 0.99 * len(sizes) > 100


@pytest.mark.slow
def test_round_trip_on_the_whole_standard_library() -> None:
    for code in standard_library():
        check_round_trip(code)
        check_stack(code)


def test_round_trip_with_extended_arguments() -> None:
    check_round_trip(long_function(400))


def test_insertion_grows_jumps_and_keeps_behaviour() -> None:
    code = long_function(90)
    decoded = decode(code)
    names = {f"name{i}": i for i in range(90)}
    expected: list[float] = []
    types.FunctionType(code, dict(names))(1, expected)
    padding = [operation("NOP") for _ in range(40)]
    before = {
        row.index: [operation("NOP", location=row.positions) for _ in padding]
        for row in decoded.instructions
        if row.opname in ("LOAD_FAST", "STORE_FAST")
    }
    operations, handlers = insert(operations_of(decoded), decoded.exceptions, before)
    grown = rebuild(code, operations, handlers)
    assert len(grown.co_code) > 40000
    got: list[float] = []
    types.FunctionType(grown, dict(names))(1, got)
    assert got == expected and len(got) > 100


def test_targets_of_inserted_operations_arrive_behind_them() -> None:
    def function(x: int) -> list[int]:
        seen = []
        for i in range(3):
            if i != x:
                seen.append(i)
        return seen

    code = function.__code__
    decoded = decode(code)
    index = next(row.index for row in decoded.instructions if row.opname == "STORE_FAST" and row.value == "i")
    # A jump over a NOP to the old instruction itself, in front of it.
    new = [operation("JUMP_FORWARD", target=index), operation("NOP")]
    operations, handlers = insert(operations_of(decoded), decoded.exceptions, {index: new})
    assert types.FunctionType(rebuild(code, operations, handlers), {"range": range})(1) == [0, 2]


def test_a_jump_in_the_wrong_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="direction"):
        assemble([operation("NOP"), operation("JUMP_FORWARD", target=0)])


def test_rebuilding_keeps_cells_that_are_plain_locals() -> None:
    """Inlined comprehensions (3.12) merge a cell with a local that is no argument; `code.replace` does not."""

    def function(n: int) -> tuple[list[int], str, int]:
        i = "outer"
        scale = 3
        free = [lambda x=i: (x, i, scale, n) for i in range(n)]
        return [f()[1] for f in free], i, scale

    decoded = decode(function.__code__)
    copy = rebuild(function.__code__, operations_of(decoded), decoded.exceptions)
    assert types.FunctionType(copy, {"range": range})(3) == function(3) == ([2, 2, 2], "outer", 3)


numbers = st.integers(0, 1 << 20)
lines = st.none() | st.integers(1, 5000)
locations = st.builds(
    lambda line, more, column, width: Location(
        line,
        None if line is None else line + more,
        None if line is None else column,
        None if line is None or column is None else column + width,
    ),
    lines,
    st.integers(0, 3),
    st.none() | st.integers(0, 300),
    st.integers(0, 200),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), locations), max_size=20), st.integers(1, 3000), st.integers(0, 40))
def test_locations_round_trip(runs: list[tuple[int, Location]], first_line: int, shift: int) -> None:
    table = encode_locations(runs, first_line)
    units = [location for count, location in runs for _ in range(count)]
    assert [place for count, place in parse_locations(table, first_line) for _ in range(count)] == units
    shifted = shift_locations(table, shift)
    assert [place for count, place in parse_locations(shifted, first_line) for _ in range(count)] == [
        *[Location(None, None, None, None)] * shift,
        *units,
    ]
    template = long_function(1)
    read = list(template.replace(co_linetable=table, co_firstlineno=first_line).co_positions())
    assert [tuple(place) for place in units[: len(read)]] == read[: len(units)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, st.integers(0, 200), st.booleans()), max_size=20))
def test_exception_tables_round_trip(rows: list[tuple[int, int, int, int, bool]]) -> None:
    table = [ExceptionRow(start, start + size, target, depth, lasti) for start, size, target, depth, lasti in rows]
    assert parse_exceptions(encode_exceptions(table)) == table
