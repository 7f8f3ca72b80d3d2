"""Stop real frames at any instruction, and hand them over as `FrameState`s.

A program runs as CPython runs it, from copies of its code objects that call a hook before every instruction. The hook
can stop the program: it reads the running frames' slots out of memory (locals, cells, value stack with its NULLs), and
then makes each of these frames return on the spot, past all handlers, so that nothing of the user's runs any more.
It can also raise there, which is the reference for what an exception of that instruction does.

No interpreter is imitated, so that whatever the stopped state is, it is CPython's own.
"""

from __future__ import annotations

import ctypes
import operator
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from stator.bytecode import decode, insert, operation, operations_of, rebuild, stack_slots
from stator.bytecode.assemble import slots_moved_by_replace
from stator.bytecode.redirect import call_operations
from stator.bytecode.stack import after
from stator.resume.code import Completion, completion_of
from stator.resume.state import NULL, UNBOUND, ExceptionSlot, FrameState, LastInstruction

# Offsets of fields in CPython's `PyFrameObject` and `_PyInterpreterFrame`, 64 bit, 3.11 and 3.12.
FRAME_POINTER = 24
LOCALS_PLUS = 72

GENERATOR = 0x20


class Injected(Exception):
    """What the stepper raises at an instruction."""


@dataclass
class Stop:
    """A stopped program: its frames, innermost first, and what ran just before in the innermost."""

    frames: list[FrameState]
    previous: int


class NotRebuildable(Exception):
    """The stopped chain has a link that no rebuild can have: a frame of other code, or C code that calls back."""


class Stepper:
    """Instrumented copies of functions, and the hook they call."""

    def __init__(self) -> None:
        self.originals: dict[types.CodeType, tuple[types.CodeType, list[int]]] = {}
        self.copies: dict[types.CodeType, types.CodeType] = {}
        self.codes: list[types.CodeType] = []
        self.target: tuple[int, int, int] | None = None
        self.action = "stop"
        self.hits: dict[tuple[int, int], int] = {}
        self.last_in_frame: dict[int, int] = {}
        self.handled: dict[int, BaseException | None] = {}
        self.stopped: Stop | NotRebuildable | None = None
        self.off = False

    # -- instrumenting

    def function(self, function: types.FunctionType) -> types.FunctionType:
        copy = types.FunctionType(
            self.code(function.__code__),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy

    def code(self, code: types.CodeType) -> types.CodeType:
        """The instrumented copy of `code`, of the code objects in its constants too."""
        known = self.copies.get(code)
        if known is not None:
            return known
        number = len(self.codes)
        self.codes.append(code)
        decoded = decode(code)
        constants: list[Any] = [
            self.code(value) if isinstance(value, types.CodeType) else value for value in code.co_consts
        ]
        none = len(constants)
        constants.append(None)
        before: dict[int, Any] = {}
        for index in stoppable(code):
            before[index] = hook_operations(len(constants), none, index, decoded.instructions[index].positions)
            constants.append(self.hook_at(number, index))
        operations, handlers = insert(operations_of(decoded), decoded.exceptions, before)
        copy = rebuild(code, operations, handlers, co_consts=tuple(constants), co_stacksize=code.co_stacksize + 4)
        original_of: list[int] = []
        for index in range(len(decoded.instructions)):
            original_of += [index] * (len(before.get(index, ())) + 1)
        self.originals[copy] = (code, original_of)
        self.copies[code] = copy
        return copy

    def hook_at(self, number: int, index: int) -> Callable[[], bool]:
        def hook() -> bool:
            return self.hook(number, index, sys._getframe(1))

        return hook

    # -- running

    def run(self, function: Callable[[], Any], target: tuple[int, int, int] | None, action: str = "stop") -> Any:
        """Run `function` up to the target (code number, instruction, hit); its outcome if that is not reached."""
        self.target = target
        self.action = action
        self.hits = {}
        self.last_in_frame = {}
        self.handled = {}
        self.stopped = None
        self.off = False

        def until_done() -> Any:
            try:
                return function()
            finally:
                self.off = True

        return outcome(until_done)

    def hook(self, number: int, index: int, frame: types.FrameType) -> bool:
        if self.off:
            return False
        if self.stopped is not None:
            return True
        key = (number, index)
        count = self.hits[key] = self.hits.get(key, 0) + 1
        previous = self.last_in_frame.get(id(frame), -1)
        self.last_in_frame[id(frame)] = index
        self.handled[id(frame)] = sys.exception()
        if self.target is None or self.target != (number, index, count):
            return False
        if self.action == "raise":
            self.off = True
            raise Injected("here")
        try:
            self.stopped = Stop(self.read_chain(frame, index), previous)
        except NotRebuildable as reason:
            self.stopped = reason
        return True

    # -- reading frames

    def read_chain(self, frame: types.FrameType, index: int) -> list[FrameState]:
        states: list[FrameState] = []
        frames: list[types.FrameType] = []
        current: types.FrameType | None = frame
        while current is not None and current.f_code.co_filename != __file__:
            row = self.originals.get(current.f_code)
            if row is None:
                raise NotRebuildable(f"a frame of {current.f_code.co_qualname}")
            code, original_of = row
            if not code.co_flags & 1:
                raise NotRebuildable(f"{code.co_qualname} is a class body")
            if states:
                index = original_of[decode(current.f_code).index_of_offset[current.f_lasti]]
            opname = decode(code).instructions[index].opname
            generator_inside = bool(states) and bool(states[-1].code.co_flags & GENERATOR)
            if states and (opname not in CALLERS or (generator_inside and opname not in ("FOR_ITER", "SEND"))):
                raise NotRebuildable(f"a call by {opname}")
            state = self.read_frame(current, code, original_of, index, innermost=not states)
            if generator_inside:
                held = [value for value in state.stack if type(value) is types.GeneratorType]
                states[-1].generator = next(value for value in held if value.gi_frame is frames[-1])
            if states and states[-1].code.co_name == "__init__":
                state.convert = partial(instance_of, states[-1].locals[0])
            elif states and opname == "COMPARE_OP" and states[-1].code.co_name == "__eq__":
                # `!=` that falls back on `__eq__`
                state.convert = operator.not_ if decode(code).instructions[index].value == "!=" else None
            elif states and opname == "BEFORE_WITH":
                state.stack[-1] = states[-1].locals[0].__exit__
            states.append(state)
            frames.append(current)
            current = current.f_back
        return states

    def read_frame(
        self, frame: types.FrameType, code: types.CodeType, original_of: list[int], index: int, innermost: bool
    ) -> FrameState:
        decoded = decode(code)
        letters = stack_slots(decoded)[index]
        assert letters is not None
        if not innermost:
            letters = letters_during_call(code, index, letters)
        slot = raw_slots(frame)
        count = len(decoded.localsplus_names)
        moved = slots_moved_by_replace(code)
        locals_ = [slot(moved.get(number, number), UNBOUND) for number in range(count - decoded.nfrees)]
        cells = tuple(slot(moved.get(number, number), UNBOUND) for number in range(count - decoded.nfrees, count))
        running = decode(frame.f_code)
        base = len(running.localsplus_names)
        stack: list[Any] = [slot(base + height, NULL) for height in range(len(letters))]
        handled = self.handled[id(frame)]
        for height in reversed(range(len(letters))):
            if letters[height] == "e":
                assert handled is not None
                below = stack[height]
                stack[height] = ExceptionSlot(handled)
                handled = below
            elif letters[height] == "i":
                stack[height] = LastInstruction(original_of[running.index_of_offset[2 * stack[height]]])
        return FrameState(code, index, locals_, frame.f_globals, cells, stack)


def instance_of(instance: Any, result: None) -> Any:
    """What calling a class makes of its `__init__`."""
    assert result is None
    return instance


# What may have called an inner Python frame, and have it called again.
CALLERS = {
    "CALL", "CALL_FUNCTION_EX", "FOR_ITER", "SEND", "BINARY_OP", "BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR",
    "STORE_ATTR", "DELETE_ATTR", "LOAD_ATTR", "LOAD_METHOD", "COMPARE_OP", "CONTAINS_OP", "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_TRUE",
    "POP_JUMP_BACKWARD_IF_FALSE", "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "UNARY_NEGATIVE", "UNARY_INVERT",
    "BEFORE_WITH", "GET_ITER", "WITH_EXCEPT_START", "FORMAT_VALUE", "STORE_SLICE", "BINARY_SLICE", "LOAD_SUPER_ATTR",
}  # fmt: skip


def letters_during_call(code: types.CodeType, index: int, before: str) -> str:
    """The stack slots an instruction leaves in place while what it calls runs."""
    row = decode(code).instructions[index]
    if row.opname == "FOR_ITER":
        return before
    if row.opname == "SEND":
        return before[:-1]
    behind = after(row.opcode, row.arg, before, False)
    how = completion_of(row)
    if how == Completion.METHOD:
        return behind[:-2]
    if how in (Completion.DISCARD, Completion.BRANCH):
        return behind
    if how == Completion.KEEP_OR_BRANCH:
        return before
    return behind[:-1]


def stoppable(code: types.CodeType) -> list[int]:
    """Instructions a call can stand in front of: behind the prologue, and not between parts that belong together."""
    instructions = decode(code).instructions
    start = [row.opname for row in instructions].index("RESUME")
    return [
        row.index
        for row in instructions[start + 1 :]
        if instructions[row.index - 1].opname not in ("KW_NAMES", "PRECALL") and row.opname not in ("RESUME", "END_FOR")
    ]


def hook_operations(hook: int, none: int, index: int, location: Any) -> list[Any]:
    """if hook(): return None"""
    jump = "POP_JUMP_FORWARD_IF_FALSE" if sys.version_info < (3, 12) else "POP_JUMP_IF_FALSE"
    return [
        operation("PUSH_NULL", location=location),
        operation("LOAD_CONST", hook, location=location),
        *call_operations(0, location),
        operation(jump, 0, index, location),
        operation("LOAD_CONST", none, location=location),
        operation("RETURN_VALUE", location=location),
    ]


def raw_slots(frame: types.FrameType) -> Callable[[int, Any], Any]:
    """Reads a slot of a running frame; the second argument stands for NULL."""
    interpreter_frame = ctypes.c_void_p.from_address(id(frame) + FRAME_POINTER).value
    assert interpreter_frame is not None
    base = interpreter_frame + LOCALS_PLUS

    def read(slot: int, empty: Any) -> Any:
        address = base + 8 * slot
        if ctypes.c_void_p.from_address(address).value is None:
            return empty
        return ctypes.py_object.from_address(address).value

    return read


# -- outcomes


def outcome(function: Callable[[], Any]) -> tuple[Any, ...]:
    """What calling `function` gives, in a form that compares: values by their text, exceptions with tracebacks."""

    def isolated() -> Iterator[Any]:
        # A generator has an exception state of its own, which abandoned handlers may leave dirty.
        yield function()

    try:
        return ("returned", repr(next(isolated())))
    except BaseException as error:
        failure = error
    return ("raised", described(failure, 0))


def described(error: BaseException | None, depth: int) -> Any:
    if error is None or depth > 5:
        return None
    rows = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.endswith("cases.py"):
            positions = list(code.co_positions())[traceback.tb_lasti // 2]
            assert positions[0] == traceback.tb_lineno
            rows.append((code.co_name, positions))
        elif code.co_filename != __file__:
            rows.append((code.co_name, code.co_filename))
        traceback = traceback.tb_next
    inner = ()
    if isinstance(error, BaseExceptionGroup):
        inner = tuple(described(part, depth + 1) for part in error.exceptions)
    return (
        type(error).__name__,
        str(error),
        tuple(rows),
        described(error.__cause__, depth + 1),
        described(error.__context__, depth + 1),
        error.__suppress_context__,
        inner,
    )
