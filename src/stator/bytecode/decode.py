"""Decode code objects: what the interpreter, the resume builder and every analysis read instead of `dis`.

Contract. `decode(code)` gives the instructions of `code` without inline caches and with `EXTENDED_ARG` folded in,
each with its argument resolved (`versions.py` says how) and jumps as instruction *indexes*. It always reads
`co_code`, which CPython hands out free of specialisation and instrumentation. The result is immutable by
convention and shared: it is cached per code object for as long as that object lives and does not keep it alive.

`target` is the index the argument encodes. Two instructions do not land there: on 3.12 an exhausted `FOR_ITER` goes
one further (over `END_FOR`), on 3.13 two.

Why own code: decoding is on the path of a first call. It takes under a microsecond an instruction, `dis` two or three
times that for less: names and text to be taken apart again, offsets in place of indexes.

Thread safety: two threads may decode the same code at once; one result wins, both are equal.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from stator.bytecode.cache import CodeCache
from stator.bytecode.tables import NO_LOCATION, Location, parse_exceptions, parse_locations
from stator.bytecode.versions import DECODING, EXTENDED_ARG, Kind

# Bits of `DecodedCode.localsplus_kinds`.
LOCAL = 1
CELL = 2
FREE = 4


class PositionTable:
    """Source positions per code unit, parsed on first use: most code never fails, so most tables are never read."""

    __slots__ = ("_first_line", "_last_line", "_table", "_units")

    def __init__(self, table: bytes, first_line: int) -> None:
        self._table = table
        self._first_line = first_line
        self._units: list[Location] | None = None
        self._last_line = first_line

    def _parse(self) -> list[Location]:
        units: list[Location] = []
        for count, location in parse_locations(self._table, self._first_line):
            units += [location] * count
            if location.line is not None:
                self._last_line = location.line
        self._units = units
        return units

    def at(self, unit: int) -> Location:
        units = self._units or self._parse()
        return units[unit] if unit < len(units) else NO_LOCATION

    @property
    def last_line(self) -> int:
        """The line a run appended to the table counts from."""
        if self._units is None:
            self._parse()
        return self._last_line


class Instruction:
    """One instruction.

    `arg` is -1 for opcodes without argument; `target` is -1 for what does not jump. `push_null` (LOAD_GLOBAL) and
    `is_method` (LOAD_METHOD, LOAD_ATTR, LOAD_SUPER_ATTR) are the flags that change how many stack slots come out.
    """

    __slots__ = (
        "arg", "index", "is_method", "line", "offset", "opcode", "opname", "push_null", "table", "target", "value",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        offset: int,
        opname: str,
        opcode: int,
        arg: int,
        value: Any,
        line: int | None,
        push_null: bool,
        is_method: bool,
        table: PositionTable,
    ) -> None:
        self.index = index
        self.offset = offset
        self.opname = opname
        self.opcode = opcode
        self.arg = arg
        self.value = value
        self.target = -1
        self.line = line
        self.push_null = push_null
        self.is_method = is_method
        self.table = table

    @property
    def positions(self) -> Location:
        """(line, end line, column, end column), as `co_positions()` has it."""
        return self.table.at(self.offset >> 1)

    def __repr__(self) -> str:
        text = f"{self.index} {self.opname}"
        if self.arg >= 0:
            text += f" {self.arg}"
        if self.target >= 0:
            return f"{text} (to {self.target})"
        return text if self.value is None else f"{text} ({self.value!r})"


class Handler(NamedTuple):
    """Instructions `start` to `end` (exclusive) are guarded by the handler at `target`; all are indexes."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


class DecodedCode:
    """The decoded form of one code object, which it refers to weakly."""

    __slots__ = (
        "__weakref__", "_code", "argument_count", "cell_indexes", "exceptions", "flags", "free_indexes", "handler_of",
        "handlers",
        "index_of_offset", "instructions", "localsplus_kinds", "localsplus_names", "name", "ncells", "nfrees",
        "nlocals", "positions", "qualname",
    )  # fmt: skip

    def __init__(self, code: types.CodeType) -> None:
        self._code = weakref.ref(code)
        self.handlers: list[Any] | None = None  # for each instruction, who interprets it: the interpreter's own
        self.name = code.co_name
        self.qualname = code.co_qualname
        self.flags = code.co_flags
        self.nlocals = code.co_nlocals
        # Bound by position on entry: arguments, keyword-only arguments, *args, **kwargs.
        self.argument_count = (
            code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        )
        self._name_slots(code)
        self.positions = PositionTable(code.co_linetable, code.co_firstlineno)
        self.instructions, index_of_unit = _decode_instructions(code, self.localsplus_names, self.positions)
        # Every code unit maps to its instruction: `f_lasti` of a calling frame may point into the call's caches.
        self.index_of_offset: dict[int, int] = dict(
            zip(range(0, 2 * len(index_of_unit), 2), index_of_unit, strict=True)
        )
        self.exceptions: list[Handler] = []
        self.handler_of: list[Handler | None] = [None] * len(self.instructions)
        index_of_unit.append(len(self.instructions))
        for start, end, target, depth, lasti in parse_exceptions(code.co_exceptiontable):
            row = Handler(index_of_unit[start], index_of_unit[end], index_of_unit[target], depth, lasti)
            self.exceptions.append(row)
            self.handler_of[row.start : row.end] = [row] * (row.end - row.start)

    def _name_slots(self, code: types.CodeType) -> None:
        """Lay out the frame: locals (some of them cells too), further cells, free variables."""
        names = code.co_varnames
        kinds = [LOCAL] * len(names)
        self.ncells = len(code.co_cellvars)
        self.nfrees = len(code.co_freevars)
        # Slot of each of co_cellvars, in that order; a local captured by a nested function has one slot, not two.
        self.cell_indexes: dict[str, int] = {}
        if code.co_cellvars:
            slots = {name: slot for slot, name in enumerate(names)}
            for name in code.co_cellvars:
                slot = slots.get(name, len(kinds))
                self.cell_indexes[name] = slot
                if slot < len(kinds):
                    kinds[slot] |= CELL
                else:
                    names += (name,)
                    kinds.append(CELL)
        self.free_indexes: dict[str, int] = {name: len(names) + i for i, name in enumerate(code.co_freevars)}
        self.localsplus_names: tuple[str, ...] = names + code.co_freevars
        self.localsplus_kinds: tuple[int, ...] = (*kinds, *[FREE] * self.nfrees)

    def start_of(self, index: int) -> int:
        """Where instruction `index` begins, its EXTENDED_ARGs included: what jumps to it aim at."""
        offset = self.instructions[index].offset
        while offset and self.index_of_offset[offset - 2] == index:
            offset -= 2
        return offset

    @property
    def code(self) -> types.CodeType:
        """The code object; whoever uses this must hold it."""
        code = self._code()
        if code is None:
            raise ReferenceError(f"the code object of {self.qualname} is gone")
        return code


def _value_of(
    kind: int, arg: int, shift: int, words: Sequence[Any], code: types.CodeType, slots: tuple[str, ...]
) -> Any:
    """The value of the rarer kinds of argument."""
    if kind == Kind.COMPARE:
        return words[arg >> shift]
    if kind == Kind.PAIR:
        return slots[arg >> 4], slots[arg & 15]
    if kind == Kind.SMALL:
        return arg
    return words[arg] if arg < len(words) else None


def _decode_instructions(
    code: types.CodeType, slots: tuple[str, ...], positions: PositionTable
) -> tuple[tuple[Instruction, ...], list[int]]:
    """The instructions, and per code unit the index of the instruction it belongs to."""
    raw = code.co_code
    consts = code.co_consts
    names = code.co_names
    size = len(raw)
    lines: list[int | None] = []
    for start, end, line in code.co_lines():
        lines += [line] * ((end - start) >> 1)
    instructions: list[Instruction] = []
    index_of_unit: list[int] = []
    jumps: list[tuple[Instruction, int]] = []
    offset = index = extended = 0
    while offset < size:
        opcode = raw[offset]
        index_of_unit.append(index)
        if opcode == EXTENDED_ARG:
            extended = (extended | raw[offset + 1]) << 8
            offset += 2
            continue
        opname, caches, has_arg, kind, shift, flag, words = DECODING[opcode]
        arg = raw[offset + 1] | extended if has_arg else -1
        extended = 0
        value: Any = None
        push_null = is_method = False
        if kind == 3:  # LOCAL
            value = slots[arg]
        elif kind == 1:  # CONST
            value = consts[arg]
        elif kind == 2:  # NAME
            value = names[arg >> shift]
            if flag:
                push_null = flag == "push_null" and bool(arg & 1)
                is_method = flag == "always_method" or (flag == "is_method" and bool(arg & 1))
        elif 0 < kind < 10:
            value = _value_of(kind, arg, shift, words, code, slots)
        instruction = Instruction(
            index, offset, opname, opcode, arg, value, lines[offset >> 1], push_null, is_method, positions
        )
        instructions.append(instruction)
        offset += 2
        if caches:
            index_of_unit += [index] * caches
            offset += 2 * caches
        if kind >= 10:  # FORWARD, BACKWARD
            jumps.append((instruction, (offset >> 1) + (arg if kind == 10 else -arg)))
        index += 1
    for instruction, unit in jumps:
        instruction.target = index_of_unit[unit]
    return tuple(instructions), index_of_unit


_decoded: CodeCache[DecodedCode] = CodeCache()


def decode(code: types.CodeType) -> DecodedCode:
    """The decoded form of `code`, made once."""
    return _decoded.get(code) or _decoded.put(code, DecodedCode(code))
