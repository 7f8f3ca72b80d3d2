"""Write code objects: the inverse of `decode`, for code whose instructions moved or grew.

Contract. `assemble(operations, handlers)` turns operations (jumps and handlers by index) into `co_code`,
`co_exceptiontable` and `co_linetable`; arguments get the fewest `EXTENDED_ARG` that fit, caches are zero.
`rebuild(code, ...)` puts them into a copy of `code`. A decoded code object assembles to the same bytes.
The body's order is never changed here, so a jump keeps its direction and its opcode.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stator.bytecode.decode import DecodedCode, Handler, decode
from stator.bytecode.tables import NO_LOCATION, ExceptionRow, Location, encode_exceptions, encode_locations
from stator.bytecode.versions import CACHE_UNITS, DECODING, EXTENDED_ARG, OPCODES, Kind


class Operation:
    """An instruction to be written; `target` is the index of the operation it jumps to, -1 for none."""

    __slots__ = ("arg", "location", "opcode", "target")

    def __init__(self, opcode: int, arg: int = 0, target: int = -1, location: Location = NO_LOCATION) -> None:
        self.opcode = opcode
        self.arg = max(arg, 0)
        self.target = target
        self.location = location

    def __repr__(self) -> str:
        return f"{DECODING[self.opcode][0]} {self.arg if self.target < 0 else f'to {self.target}'}"


def operation(name: str, arg: int = 0, target: int = -1, location: Location = NO_LOCATION) -> Operation:
    """An operation by its opcode's name."""
    return Operation(OPCODES[name], arg, target, location)


class Assembled(NamedTuple):
    """The three byte strings, and per operation the code unit it starts at (one more at the end: the size)."""

    code: bytes
    exceptions: bytes
    locations: bytes
    starts: list[int]


def operations_of(decoded: DecodedCode) -> list[Operation]:
    """The instructions of a decoded code object, ready to be changed."""
    return [Operation(row.opcode, row.arg, row.target, row.positions) for row in decoded.instructions]


def _extensions(arg: int) -> int:
    return 0 if arg < 0x100 else 1 if arg < 0x10000 else 2 if arg < 0x1000000 else 3


def _lay_out(operations: Sequence[Operation]) -> tuple[list[int], list[int], list[int]]:
    """Arguments with jumps resolved, extension counts and starts: grown to the least fixpoint."""
    args = [row.arg for row in operations]
    extensions = [_extensions(arg) for arg in args]
    jumps = [index for index, row in enumerate(operations) if row.target >= 0]
    for index in jumps:
        args[index] = extensions[index] = 0
    while True:
        starts = []
        unit = 0
        for row, extended in zip(operations, extensions, strict=True):
            starts.append(unit)
            unit += extended + 1 + CACHE_UNITS[row.opcode]
        starts.append(unit)
        grown = False
        for index in jumps:
            row = operations[index]
            distance = starts[row.target] - starts[index + 1]
            if DECODING[row.opcode][3] == Kind.BACKWARD:
                distance = -distance
            if distance < 0:
                raise ValueError(f"{row!r} at {index} cannot jump in that direction")
            args[index] = distance
            if _extensions(distance) > extensions[index]:
                extensions[index] = _extensions(distance)
                grown = True
        if not grown:
            return args, extensions, starts


def put_instruction(out: bytearray, opcode: int, arg: int, extended: int | None = None) -> None:
    """Append one instruction with its extensions and caches."""
    for shift in range(8 * (_extensions(arg) if extended is None else extended), 0, -8):
        out.append(EXTENDED_ARG)
        out.append(arg >> shift & 255)
    out.append(opcode)
    out.append(arg & 255)
    caches = CACHE_UNITS[opcode]
    if caches:
        out += bytes(2 * caches)


def assemble(operations: Sequence[Operation], handlers: Iterable[Handler] = (), first_line: int = 1) -> Assembled:
    """Bytes, exception table and line table of `operations`; `first_line` is the `co_firstlineno` they will go with."""
    args, extensions, starts = _lay_out(operations)
    out = bytearray()
    runs: list[tuple[int, Location]] = []
    for index, row in enumerate(operations):
        put_instruction(out, row.opcode, args[index], extensions[index])
        units = starts[index + 1] - starts[index]
        if runs and runs[-1][1] == row.location:
            runs[-1] = (runs[-1][0] + units, row.location)
        else:
            runs.append((units, row.location))
    exceptions = [
        ExceptionRow(starts[row.start], starts[row.end], starts[row.target], row.depth, row.lasti) for row in handlers
    ]
    return Assembled(bytes(out), encode_exceptions(exceptions), encode_locations(runs, first_line), starts)


def insert(
    operations: Sequence[Operation], handlers: Iterable[Handler], before: Mapping[int, Sequence[Operation]]
) -> tuple[list[Operation], list[Handler]]:
    """Put new operations in front of some: a jump to an old one arrives at the new ones, under the same handler.

    Targets of the new operations are old indexes too; they arrive behind the new ones, at the old one itself.
    """
    moved = []
    itself = []
    result: list[Operation] = []
    for index, row in enumerate(operations):
        moved.append(len(result))
        result += before.get(index, ())
        itself.append(len(result))
        result.append(row)
    moved.append(len(result))
    old = set(map(id, operations))
    for row in result:
        if row.target >= 0:
            # An exhausted FOR_ITER steps over the END_FOR at its target: nothing may come between.
            direct = id(row) not in old or operations[row.target].opcode == OPCODES.get("END_FOR")
            row.target = (itself if direct else moved)[row.target]
    return result, [
        row._replace(start=moved[row.start], end=moved[row.end], target=moved[row.target]) for row in handlers
    ]


def slots_moved_by_replace(code: types.CodeType) -> dict[int, int]:
    """The slots of `code` that move when `code.replace` lays the frame out anew, and where to.

    It gives a cell a slot of its own unless it is an argument, but the compiler (inlined comprehensions of 3.12)
    may also have merged it with a plain local.
    """
    decoded = decode(code)
    names = code.co_varnames
    arguments = set(names[: decoded.argument_count])
    moved: dict[int, int] = {}
    slot = len(names)
    for name in code.co_cellvars:
        if name not in arguments:
            moved[decoded.cell_indexes[name]] = slot
            slot += 1
    first_free = len(decoded.localsplus_names) - decoded.nfrees
    for index in range(decoded.nfrees):
        moved[first_free + index] = slot + index
    return {old: new for old, new in moved.items() if old != new}


def rebuild(
    code: types.CodeType, operations: Sequence[Operation], handlers: Iterable[Handler], **changes: Any
) -> types.CodeType:
    """A copy of `code` with another body; `changes` as for `code.replace`, apart from names of locals and cells."""
    moved = slots_moved_by_replace(code)
    if moved:
        operations = [_with_moved_slots(row, moved) for row in operations]
        # The local such a cell was merged with is left behind unused, under a name that no cell has.
        changes["co_varnames"] = tuple(
            f".{name}" if slot in moved else name for slot, name in enumerate(code.co_varnames)
        )
    code_bytes, exceptions, locations, _ = assemble(operations, handlers, code.co_firstlineno)
    return code.replace(co_code=code_bytes, co_exceptiontable=exceptions, co_linetable=locations, **changes)


def _with_moved_slots(row: Operation, moved: Mapping[int, int]) -> Operation:
    kind = DECODING[row.opcode][3]
    if kind == Kind.LOCAL and row.arg in moved:
        return Operation(row.opcode, moved[row.arg], row.target, row.location)
    if kind == Kind.PAIR and (row.arg >> 4 in moved or row.arg & 15 in moved):
        first, second = (moved.get(slot, slot) for slot in (row.arg >> 4, row.arg & 15))
        if max(first, second) > 15:
            raise ValueError(f"slots {first} and {second} do not fit one {DECODING[row.opcode][0]}")
        return Operation(row.opcode, first << 4 | second, row.target, row.location)
    return row
