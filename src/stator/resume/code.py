"""Code objects that re-enter a function in the middle: same body, same lines, same handlers, another way in.

Contract. `resume_function(code, index, shape)` is a copy of `code` that, called without arguments, continues at
instruction `index` with the locals and the value stack handed to it. It is cached per (code, index, shape), so that a
break in a loop builds one. The copy keeps name, file, lines, columns and handlers: tracebacks cannot tell it apart.

How. Exception handling is table based since 3.11, so any instruction can be jumped to once the stack is as it expects:

    JUMP_FORWARD entry       the whole prefix: its size depends on the body's alone, so shifted tables are made once
    body                     unchanged, byte by byte
    entry:                   COPY_FREE_VARS; for generators RETURN_GENERATOR, POP_TOP
                             unpack what was saved: locals are stored, the rest is the stack
                             put NULLs and exception states in their places
        guarded by           RESUME; what `mode` says; JUMP_BACKWARD to the body
        index's handler

- What was saved comes as an iterator in one extra closure cell, behind the function's own. So no slot of the frame
  moves and the body needs no new numbers; and neither the caller nor an argument tuple keeps a local alive that the
  body has dropped. The cell is emptied first, so `locals()` does not show it.
- The entry lies behind the body, since `f_locals` looks for MAKE_CELL *before* the running instruction to tell a cell
  from a value.
- RESUME is where signals are taken, so it stands where the handlers are in force already: a `with` block that is
  re-entered is always left again.
- An exception state is re-made by PUSH_EXC_INFO, from the bottom up, so that each keeps the one below it.

Modes (`Mode`): run the instruction; take its result as given; or call something at its place, under its line and
handler, for its result or for what it raises.

Thread safety: caches are filled by single dict operations; two threads may build the same object, one wins.
"""

from __future__ import annotations

import types
from enum import IntEnum
from typing import NamedTuple

from stator import events
from stator.bytecode import CodeCache, DecodedCode, Instruction, Operation, decode
from stator.bytecode.assemble import put_instruction
from stator.bytecode.redirect import call_operations
from stator.bytecode.stack import EXCEPTION, NULL, POP_ONLY
from stator.bytecode.tables import (
    NO_LOCATION,
    ExceptionRow,
    encode_exceptions,
    encode_locations,
    parse_exceptions,
    shift_locations,
)
from stator.bytecode.versions import CACHE_UNITS, OPCODES, VERSION

SAVED = ".saved"
_VARARGS = 0x04 | 0x08
_OPTIMIZED = 0x01
ASYNC_GENERATOR_FLAG = 0x200
GENERATOR_FLAGS = 0x20 | 0x80 | ASYNC_GENERATOR_FLAG


class Mode(IntEnum):
    """What happens first once the frame stands."""

    __hash__ = int.__hash__  # shapes are keys: an enumeration hashes its name, in Python

    BEFORE = 0  # the instruction itself runs
    RESULT = 1  # the top of the saved stack is the instruction's result
    CALL = 2  # the top of the saved stack is called in the instruction's place, for its result
    RAISE = 3  # the top of the saved stack is called in the instruction's place, and raises


class Shape(NamedTuple):
    """What a resume code object has to know of the frame it restores; the values come with the call.

    `bound` has a bit for each slot that holds something; `stack` a letter for each stack slot, bottom first, as in
    `bytecode.stack` (a payload or thunk included). `converted` says that below the result there lies a callable the
    result still has to go through.
    """

    bound: int
    stack: str
    mode: Mode = Mode.BEFORE
    converted: bool = False


class Completion(IntEnum):
    """What an instruction does with the value its callee returns."""

    PUSH = 0
    DISCARD = 1
    METHOD = 2  # pushed with a NULL beside it, as method loads do
    TRUTH = 3  # `in`
    UNTRUTH = 4  # `not in`
    BRANCH = 5  # the jump is taken by its truth
    KEEP_OR_BRANCH = 6  # `and` and `or` of 3.11: the operand below stays if the jump is taken
    ITERATE = 7  # pushed above the iterator; StopIteration ends the loop


# Their result is no single value: state what they leave on the stack, and stand before the next instruction.
_NO_SINGLE_RESULT = frozenset(
    {"UNPACK_SEQUENCE", "UNPACK_EX", "SEND", "RAISE_VARARGS", "RERAISE", "RETURN_GENERATOR", "END_ASYNC_FOR"}
)


def completion_of(row: Instruction) -> Completion:
    """How `row` completes."""
    name = row.opname
    if name == "FOR_ITER":
        return Completion.ITERATE
    if name.startswith("POP_JUMP"):
        return Completion.BRANCH
    if name.startswith("JUMP_IF"):
        return Completion.KEEP_OR_BRANCH
    if row.is_method or row.push_null:
        return Completion.METHOD
    if name == "CONTAINS_OP":
        return Completion.UNTRUTH if row.arg else Completion.TRUTH
    if name in _NO_SINGLE_RESULT:
        raise ValueError(f"{name} cannot be resumed by its result")
    return Completion.DISCARD if name in POP_ONLY else Completion.PUSH


class _Template:
    """What all resume code objects of one code share. Holds no reference to the code itself."""

    __slots__ = (
        "argument_count",
        "body",
        "built",
        "generator_index",
        "last_line",
        "locations",
        "prefix",
        "rows",
        "start_index",
    )

    def __init__(self, code: types.CodeType, decoded: DecodedCode) -> None:
        if not code.co_flags & _OPTIMIZED:
            raise ValueError(f"{code.co_qualname}: only functions can be re-entered, not modules or class bodies")
        body = code.co_code
        prefix = bytearray()
        put_instruction(prefix, OPCODES["JUMP_FORWARD"], len(body) >> 1)
        self.prefix = len(prefix) >> 1
        self.body = bytes(prefix) + body
        self.locations = shift_locations(code.co_linetable, self.prefix)
        self.last_line = decoded.positions.last_line
        self.rows = [
            ExceptionRow(start + self.prefix, end + self.prefix, target + self.prefix, depth, lasti)
            for start, end, target, depth, lasti in parse_exceptions(code.co_exceptiontable)
        ]
        # `replace` gives a cell the slot of a local only among arguments, so as many locals are declared as such.
        merged = [slot for slot in decoded.cell_indexes.values() if slot < decoded.nlocals]
        # And `super()` wants one argument at least to be declared.
        wants_one = "__class__" in code.co_freevars and decoded.nlocals > 0
        self.argument_count = max([*merged, 0 if wants_one else -1]) + 1
        names = [row.opname for row in decoded.instructions]
        self.generator_index = names.index("RETURN_GENERATOR") if code.co_flags & GENERATOR_FLAGS else -1
        self.start_index = names.index("RESUME")
        self.built: dict[tuple[int, Shape], types.CodeType] = {}


_templates: CodeCache[_Template] = CodeCache()


def _template(code: types.CodeType) -> _Template:
    return _templates.get(code) or _templates.put(code, _Template(code, decode(code)))


def unit_of(code: types.CodeType, index: int) -> int:
    """The code unit, in every resume code object of `code`, of instruction `index`: what RERAISE restores from."""
    return _template(code).prefix + (decode(code).instructions[index].offset >> 1)


class _Entry:
    """The entry of one resume code object, written instruction by instruction."""

    def __init__(self, decoded: DecodedCode, template: _Template) -> None:
        self.decoded = decoded
        self.template = template
        self.out = bytearray(template.body)

    def put(self, name: str, arg: int = 0) -> None:
        put_instruction(self.out, OPCODES[name], arg)

    def put_operations(self, operations: list[Operation]) -> None:
        for row in operations:
            put_instruction(self.out, row.opcode, row.arg)

    def jump_into_body(self, index: int) -> None:
        """JUMP_BACKWARD to an instruction of the body, with as many extensions as its own distance needs."""
        target = self.template.prefix + (self.decoded.start_of(index) >> 1)
        behind = (len(self.out) >> 1) + 1 + CACHE_UNITS[OPCODES["JUMP_BACKWARD"]]
        distance = behind - target
        for extensions in range(4):
            if distance + extensions < 1 << 8 * (extensions + 1):
                put_instruction(self.out, OPCODES["JUMP_BACKWARD"], distance + extensions, extensions)
                return

    def restore(self, code: types.CodeType, index: int, shape: Shape) -> None:
        """Cells, locals and stack."""
        decoded = self.decoded
        self.put("COPY_FREE_VARS", decoded.nfrees + 1)
        if index > self.template.generator_index >= 0:
            self.put("RETURN_GENERATOR")
            self.put("POP_TOP")
        saved = len(decoded.localsplus_names)
        self.put("LOAD_DEREF", saved)
        self.put("DELETE_DEREF", saved)
        slots = [slot for slot in range(saved - decoded.nfrees) if shape.bound >> slot & 1]
        self.put("UNPACK_SEQUENCE", len(slots) + len(shape.stack))
        for slot in slots:
            self.put("STORE_FAST", slot)
        for slot in range(self.template.argument_count):
            if not shape.bound >> slot & 1:
                self.put("DELETE_FAST", slot)
        for height, letter in enumerate(shape.stack):
            if letter in (NULL, EXCEPTION):
                self._replace_slot(len(shape.stack) - height, letter)

    def _replace_slot(self, depth: int, letter: str) -> None:
        """Turn the placeholder `depth` from the top into what the unpacking could not bring."""
        if depth > 1:
            self.put("SWAP", depth)
        if letter == EXCEPTION:
            self.put("PUSH_EXC_INFO")
            self.put("POP_TOP")
        else:
            self.put("POP_TOP")
            self.put("PUSH_NULL")
        if depth > 1:
            self.put("SWAP", depth)

    def call(self) -> None:
        """Call what lies on top."""
        self.put("PUSH_NULL")
        if VERSION < (3, 13):
            self.put("SWAP", 2)
        self.put_operations(call_operations(0, NO_LOCATION))

    def convert(self) -> None:
        """[callable, value] -> callable(value)"""
        self.put("PUSH_NULL")
        if VERSION < (3, 13):
            self.put("SWAP", 3)
        self.put("SWAP", 2)
        self.put_operations(call_operations(1, NO_LOCATION))

    def complete(self, index: int) -> None:
        """Do with the value on top what the instruction does with its callee's, and go on behind it."""
        row = self.decoded.instructions[index]
        how = completion_of(row)
        if how in (Completion.BRANCH, Completion.KEEP_OR_BRANCH):
            self._branch(row, keep=how == Completion.KEEP_OR_BRANCH)
            return
        if how == Completion.DISCARD:
            self.put("POP_TOP")
        elif how == Completion.METHOD:
            self.put("PUSH_NULL")
            if VERSION < (3, 13):
                self.put("SWAP", 2)
        elif how in (Completion.TRUTH, Completion.UNTRUTH):
            if VERSION >= (3, 13):
                self.put("TO_BOOL")
            self.put("UNARY_NOT")
            if how == Completion.TRUTH:
                self.put("UNARY_NOT")
        self.jump_into_body(index + 1)

    def _branch(self, row: Instruction, keep: bool) -> None:
        """Jump as `row` would, by the truth of the value on top."""
        name = _FORWARD_BRANCH["FALSE" if "FALSE" in row.opname else "TRUE"]
        if VERSION >= (3, 13):
            self.put("TO_BOOL")
        begin = len(self.out) + 2 * (1 + CACHE_UNITS[OPCODES[name]])
        ahead = self._ahead(begin)
        ahead._fall_through(row, keep)
        self.put(name, (len(ahead.out) - begin) >> 1)
        self._fall_through(row, keep)
        self.jump_into_body(row.target)

    def _fall_through(self, row: Instruction, keep: bool) -> None:
        if keep:
            self.put("POP_TOP")
        self.jump_into_body(row.index + 1)

    def _ahead(self, begin: int) -> _Entry:
        """A draft starting at byte `begin`: how long something gets, before what jumps over it is written."""
        draft = _Entry(self.decoded, self.template)
        draft.out = bytearray(begin)
        return draft

    def iterate(self, row: Instruction) -> None:
        """[iterator, thunk iterator]: one step of the thunk's, with the loop's ways out."""
        begin = len(self.out) + 2 * (1 + CACHE_UNITS[OPCODES["FOR_ITER"]])
        ahead = self._ahead(begin)
        ahead._step_into(row)
        self.put("FOR_ITER", (len(ahead.out) - begin) >> 1)
        self._step_into(row)
        for name in _EXHAUSTED:
            self.put(name)
        self.put("POP_TOP")
        self.jump_into_body(row.target + len(_EXHAUSTED))

    def _step_into(self, row: Instruction) -> None:
        self.put("SWAP", 2)
        self.put("POP_TOP")
        self.jump_into_body(row.index + 1)


_FORWARD_BRANCH = {
    when: f"POP_JUMP_FORWARD_IF_{when}" if VERSION < (3, 12) else f"POP_JUMP_IF_{when}" for when in ("TRUE", "FALSE")
}
# What an exhausted FOR_ITER steps over at its target.
_EXHAUSTED: tuple[str, ...] = () if VERSION < (3, 12) else ("END_FOR",) if VERSION < (3, 13) else ("END_FOR", "POP_TOP")


def resume_function(code: types.CodeType, index: int, shape: Shape) -> types.CodeType:
    """The code object that re-enters `code` at instruction `index`; see `state.make_function` for how to call it."""
    template = _template(code)
    key = (index, shape)
    known = template.built.get(key)
    if known is None:
        known = template.built[key] = _build(code, template, index, shape)
        events.emit("bytecode", title=f"{code.co_qualname}, entered at instruction {index}", code=known)
    return known


def _build(code: types.CodeType, template: _Template, index: int, shape: Shape) -> types.CodeType:
    decoded = decode(code)
    row = decoded.instructions[index]
    entry = _Entry(decoded, template)
    begin = len(entry.out) >> 1
    if row.opname == "COPY_FREE_VARS":
        index += 1  # must not run again: it would leak what it overwrites
    elif shape.mode == Mode.BEFORE and row.opname in ("PRECALL", "CALL"):
        while decoded.instructions[index - 1].opname in ("KW_NAMES", "PRECALL"):
            index -= 1  # keyword names are handed to the call outside of the frame: they must be set again
    row = decoded.instructions[index]
    entry.restore(code, index, shape)
    guarded = len(entry.out) >> 1
    if index > template.start_index:
        entry.put("RESUME")
    if shape.mode == Mode.BEFORE:
        entry.jump_into_body(index)
    elif shape.mode == Mode.RAISE:
        entry.call()
        entry.put("RETURN_VALUE")
    elif shape.mode == Mode.CALL and completion_of(row) == Completion.ITERATE:
        entry.iterate(row)
    else:
        if shape.mode == Mode.CALL:
            entry.call()
        if shape.converted:
            entry.convert()
        entry.complete(index)
    end = len(entry.out) >> 1
    rows = template.rows
    handler = decoded.handler_of[index]
    if handler is not None:
        target = template.prefix + (decoded.start_of(handler.target) >> 1)
        rows = [*rows, ExceptionRow(guarded, end, target, handler.depth, handler.lasti)]
    return code.replace(
        co_code=bytes(entry.out),
        co_exceptiontable=encode_exceptions(rows),
        co_linetable=template.locations + encode_locations([(end - begin, row.positions)], template.last_line),
        co_argcount=template.argument_count,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~_VARARGS,
        co_freevars=(*code.co_freevars, SAVED),
        co_stacksize=max(code.co_stacksize, shape.bound.bit_count() + len(shape.stack) + 1, len(shape.stack) + 4),
    )
