"""The two side tables of a code object: exception handlers and source locations, read and written.

Contract. Both tables count in code units of two bytes. `parse_*` and `encode_*` are inverse up to how runs are
split: a location run covers at most eight units, so equal neighbours come back joined. The formats are those of
CPython's `Objects/exception_handling_notes.txt` and `Objects/locations.md`; they are the same in 3.11 to 3.14.
"""

from __future__ import annotations

from typing import NamedTuple


class Location(NamedTuple):
    """Lines from 1, columns in UTF-8 bytes from 0; None where unknown. The order is that of `co_positions()`."""

    line: int | None
    end_line: int | None
    column: int | None
    end_column: int | None


NO_LOCATION = Location(None, None, None, None)


class ExceptionRow(NamedTuple):
    """Units `start` to `end` (exclusive) are guarded: cut the stack to `depth`, push `lasti` if set, go to `target`."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def parse_exceptions(table: bytes) -> list[ExceptionRow]:
    """The rows of a `co_exceptiontable`, in order; units, not bytes."""
    rows = []
    position = 0
    size = len(table)
    numbers = [0, 0, 0, 0]
    while position < size:
        for field in range(4):
            byte = table[position]
            number = byte & 63
            while byte & 64:
                position += 1
                byte = table[position]
                number = number << 6 | byte & 63
            position += 1
            numbers[field] = number
        start, length, target, depth_lasti = numbers
        rows.append(ExceptionRow(start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1)))
    return rows


def _big_endian(number: int, first: int, out: bytearray) -> None:
    """A six-bit-group number, most significant group first, as exception tables have it."""
    shift = 0
    while number >> shift + 6:
        shift += 6
    while shift:
        out.append(number >> shift & 63 | 64 | first)
        first = 0
        shift -= 6
    out.append(number & 63 | first)


def encode_exceptions(rows: list[ExceptionRow]) -> bytes:
    """A `co_exceptiontable`; rows must be in order and must not overlap."""
    out = bytearray()
    for start, end, target, depth, lasti in rows:
        _big_endian(start, 128, out)
        _big_endian(end - start, 0, out)
        _big_endian(target, 0, out)
        _big_endian(depth << 1 | lasti, 0, out)
    return bytes(out)


def _varint(table: bytes, position: int) -> tuple[int, int]:
    byte = table[position]
    number = byte & 63
    shift = 0
    while byte & 64:
        position += 1
        byte = table[position]
        shift += 6
        number |= (byte & 63) << shift
    return number, position + 1


def _signed(number: int) -> int:
    return -(number >> 1) if number & 1 else number >> 1


def parse_locations(table: bytes, first_line: int) -> list[tuple[int, Location]]:
    """Runs of a `co_linetable`: how many units, and where they come from."""
    runs = []
    position = 0
    size = len(table)
    line = first_line
    while position < size:
        head = table[position]
        position += 1
        code = head >> 3 & 15
        units = (head & 7) + 1
        if code < 10:  # short: column and length packed, same line
            second = table[position]
            position += 1
            column = code << 3 | second >> 4
            location = Location(line, line, column, column + (second & 15))
        elif code < 13:  # one line, columns in a byte each
            line += code - 10
            location = Location(line, line, table[position], table[position + 1])
            position += 2
        elif code == 13:  # a line without columns
            delta, position = _varint(table, position)
            line += _signed(delta)
            location = Location(line, line, None, None)
        elif code == 14:  # anything
            delta, position = _varint(table, position)
            line += _signed(delta)
            end_delta, position = _varint(table, position)
            column, position = _varint(table, position)
            end_column, position = _varint(table, position)
            location = Location(
                line, line + end_delta, column - 1 if column else None, end_column - 1 if end_column else None
            )
        else:
            location = NO_LOCATION
        runs.append((units, location))
    return runs


def _put_varint(number: int, out: bytearray) -> None:
    while number >= 64:
        out.append(number & 63 | 64)
        number >>= 6
    out.append(number)


def _put_signed(number: int, out: bytearray) -> None:
    _put_varint(-number << 1 | 1 if number < 0 else number << 1, out)


def _put_location(units: int, location: Location, line: int, out: bytearray) -> int:
    """Write one run of at most eight units; returns the line the next run counts from."""
    start, end, column, end_column = location
    size = units - 1
    if start is None:
        out.append(0x80 | 15 << 3 | size)
        return line
    delta = start - line
    if column is None or end_column is None or end is None:
        if end is None or end == start:
            out.append(0x80 | 13 << 3 | size)
            _put_signed(delta, out)
            return start
    elif end == start:
        if delta == 0 and column < 80 and 0 <= end_column - column < 16:
            out.append(0x80 | column >> 3 << 3 | size)
            out.append((column & 7) << 4 | end_column - column)
            return start
        if 0 <= delta < 3 and column < 128 and end_column < 128:
            out.append(0x80 | 10 + delta << 3 | size)
            out.append(column)
            out.append(end_column)
            return start
    out.append(0x80 | 14 << 3 | size)
    _put_signed(delta, out)
    _put_varint((start if end is None else end) - start, out)
    _put_varint(0 if column is None else column + 1, out)
    _put_varint(0 if end_column is None else end_column + 1, out)
    return start


def encode_locations(runs: list[tuple[int, Location]], first_line: int) -> bytes:
    """A `co_linetable` for runs of any length."""
    out = bytearray()
    line = first_line
    for units, location in runs:
        while units > 8:
            line = _put_location(8, location, line, out)
            units -= 8
        if units:
            line = _put_location(units, location, line, out)
    return bytes(out)


def shift_locations(table: bytes, units: int) -> bytes:
    """`table` behind `units` new code units that have no source line.

    Runs without a location leave the running line untouched, so the table itself needs no re-encoding.
    """
    full, rest = divmod(units, 8)
    prefix = b"\xff" * full
    return prefix + bytes((0xF8 | rest - 1,)) + table if rest else prefix + table
