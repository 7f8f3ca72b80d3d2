"""The state of running frames as plain values, and how to let them run on.

Contract. A `FrameState` is one frame, stopped at an instruction. `run_chain(frames, ...)` lets a chain of frames, the
innermost first, run to its end in plain Python and gives what the outermost returns; results, side effects,
exceptions and tracebacks (names, lines, columns) are those of frames that never stopped. `prepare_chain` gives the
function whose call does so, for a caller that wants no frame of its own in between.

What the innermost frame goes on with is one of

    nothing            the instruction at `index` has not run; its operands are on the stack
    payload=value      the instruction's result; its operands are off the stack
    exception=error    the instruction raised it; its operands may be on the stack or not

Every outer frame stands at the instruction that called the next inner one, operands off the stack (as CPython has it
during a call). It calls the inner one again at that place, so that what comes back, or is raised, passes exactly where
it would have. An inner generator frame is made into a new generator, which takes the place of the old one.

States are used up: their values move into the frames, so that nothing outlives its last use in the user's code.

Not here: class bodies and modules, which are called through C; and generators somebody else holds on to, which keep
the frame they have.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from typing import Any, Final

from stator.bytecode import decode
from stator.bytecode.stack import EXCEPTION, POSITION, VALUE
from stator.bytecode.stack import NULL as NULL_LETTER
from stator.resume.code import (
    ASYNC_GENERATOR_FLAG,
    GENERATOR_FLAGS,
    Completion,
    Mode,
    Shape,
    completion_of,
    resume_function,
    unit_of,
)


class _Sentinel:
    """A named marker that is none of the user's values."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


UNBOUND: Final = _Sentinel("UNBOUND")  # a local without a value
NULL: Final = _Sentinel("NULL")  # a stack slot without a value
ABSENT: Final = _Sentinel("ABSENT")  # no payload


@dataclass(frozen=True, slots=True)
class ExceptionSlot:
    """Where PUSH_EXC_INFO kept the previous exception; `exception` is the one that is being handled since.

    A handler that cleans up copies the slot (COPY 3) and pops the copy; of equal slots only the topmost counts.
    """

    exception: BaseException


@dataclass(frozen=True, slots=True)
class LastInstruction:
    """Where a handler keeps the instruction that raised; `index` is that instruction's."""

    index: int


@dataclass(slots=True, eq=False)
class FrameState:
    """One frame. `locals` has all slots but the free variables', cell variables as cells; `stack` is bottom first."""

    code: types.CodeType
    index: int
    locals: list[Any]
    globals: dict[str, Any]
    cells: tuple[types.CellType, ...] = ()
    stack: list[Any] = field(default_factory=list)
    # What stands for this frame's generator in the frames outside of it.
    generator: Any = None
    # Called with what the inner frame returns, where C code would have looked at it: `__init__`, `__eq__`, ...
    convert: Callable[[Any], Any] | None = None
    builtins: dict[str, Any] | None = None
    function: types.FunctionType | None = None


def _take_stack(stack: list[Any], code: types.CodeType, saved: list[Any]) -> str:
    """Append to `saved` what is handed over for each stack slot, top first; returns the slots' letters."""
    letters = []
    topmost: list[ExceptionSlot] = []
    for value in reversed(stack):
        kind = type(value)
        letter = VALUE
        if value is NULL:
            letter = NULL_LETTER
            value = None
        elif kind is ExceptionSlot:
            if not any(value is above for above in topmost):
                topmost.append(value)
                letter = EXCEPTION
            value = value.exception
        elif kind is LastInstruction:
            letter = POSITION
            value = unit_of(code, value.index)
        letters.append(letter)
        saved.append(value)
    letters.reverse()
    return "".join(letters)


def make_function(state: FrameState, mode: Mode = Mode.BEFORE, payload: Any = ABSENT) -> types.FunctionType:
    """A function that, called once without arguments, is the frame running on; uses `state` up."""
    stack = state.stack
    converted = payload is not ABSENT and state.convert is not None
    if converted:
        stack.append(state.convert)
    if payload is not ABSENT:
        stack.append(payload)
    code = state.code
    saved = []
    bound = 0
    bit = 1
    for value in state.locals:
        if value is not UNBOUND:
            bound |= bit
            saved.append(value)
        bit <<= 1
    letters = _take_stack(stack, code, saved)
    state.locals = []
    state.stack = []
    resumed = resume_function(code, state.index, Shape(bound, letters, mode, converted))
    # Declared arguments need a value; it is never seen.
    defaults = (None,) * resumed.co_argcount
    return types.FunctionType(resumed, state.globals, None, defaults, (*state.cells, types.CellType(iter(saved))))


def _throw(exception: BaseException, traceback: types.TracebackType | None) -> None:
    """Raise `exception` as if it came out of the C code that was called here.

    `raise` adds this frame to the traceback and replaces the context; neither happened in the user's program. The
    context does end, though, in what is being handled here, which was not in place when the exception was made.
    """
    _end_context(exception, sys.exception())
    context = exception.__context__
    try:
        raise exception
    finally:
        exception.__traceback__ = traceback
        exception.__context__ = context


def _end_context(exception: BaseException, handled: BaseException | None) -> None:
    """Let the context chain of `exception` end in `handled`, and nowhere in a circle."""
    chain = [exception]
    while (context := chain[-1].__context__) is not None and not any(context is other for other in chain):
        chain.append(context)
    if handled is None or any(handled is other for other in chain):
        return
    link = handled
    for _ in range(len(chain) + 1000):  # a chain of handled exceptions may be circular by the user's doing
        below = link.__context__
        if below is None:
            break
        if below is exception:
            link.__context__ = None
            break
        link = below
    chain[-1].__context__ = handled


def _below_catcher(exception: BaseException) -> types.TracebackType | None:
    """The traceback without the frame that caught the exception: one that is still running."""
    traceback = exception.__traceback__
    if traceback is None:
        return None
    catcher = traceback.tb_frame
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame is not catcher:
        frame = frame.f_back
    if frame is not None:
        while traceback is not None and traceback.tb_frame is catcher:
            traceback = traceback.tb_next
    return traceback


def _innermost(state: FrameState, payload: Any, exception: BaseException | None) -> types.FunctionType:
    if exception is None:
        return make_function(state, Mode.BEFORE if payload is ABSENT else Mode.RESULT, payload)
    # Handlers need what lies below their depth; operands and the converter were the instruction's.
    handler = decode(state.code).handler_of[state.index]
    depth = 0 if handler is None else handler.depth
    if len(state.stack) < depth:
        raise ValueError(f"{state.code.co_qualname}: handlers at {state.index} need a stack of {depth}")
    state.convert = None
    return make_function(state, Mode.RAISE, partial(_throw, exception, _below_catcher(exception)))


def _replace_everywhere(frames: Sequence[FrameState], old: Any, new: Any) -> None:
    """Put a new generator where the frames outside hold the one it continues."""
    for state in frames:
        state.locals = [new if value is old else value for value in state.locals]
        state.stack = [new if value is old else value for value in state.stack]
        for value in (*state.locals, *state.cells):
            if type(value) is types.CellType and value != types.CellType() and value.cell_contents is old:
                value.cell_contents = new


def _enclose(inner: FrameState, thunk: types.FunctionType, outer: Sequence[FrameState]) -> types.FunctionType:
    """The next outer frame, running on with what `thunk`, the inner one, gives."""
    state = outer[0]
    row = decode(state.code).instructions[state.index]
    if inner.code.co_flags & GENERATOR_FLAGS:
        generator = thunk()
        if inner.generator is not None:
            _replace_everywhere(outer, inner.generator, generator)
        if row.opname == "FOR_ITER":
            state.stack[-1] = generator
            return make_function(state)
        if row.opname == "SEND":
            state.stack[-1:] = [generator, None]  # what was sent has arrived in the generator's state already
            return make_function(state)
        return make_function(state, Mode.CALL, generator.__next__)
    if completion_of(row) == Completion.ITERATE:
        return make_function(state, Mode.CALL, starmap(thunk, ((),)))
    return make_function(state, Mode.CALL, thunk)


class _Unseen:
    """What is raised inside does not show the frame that has the `with` statement."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: types.TracebackType | None) -> None:
        if error is not None and traceback is not None:
            error.__traceback__ = traceback.tb_next


_unseen = _Unseen()


def prepare_chain(
    frames: Sequence[FrameState], payload: Any = ABSENT, exception: BaseException | None = None
) -> types.FunctionType:
    """A function that, called once without arguments, lets the frames run on; `frames[0]` is the innermost."""
    thunk = _innermost(frames[0], payload, exception)
    for position in range(1, len(frames)):
        thunk = _enclose(frames[position - 1], thunk, frames[position:])
    return thunk


def run_chain(frames: Sequence[FrameState], payload: Any = ABSENT, exception: BaseException | None = None) -> Any:
    """Let the frames run on; what the outermost returns or raises, without a trace of this function.

    Call it outside of any handler: a handled exception would be seen by the frames.
    """
    thunk = prepare_chain(frames, payload, exception)
    with _unseen:
        return thunk()


def call_resume(state: FrameState, payload: Any = ABSENT) -> Any:
    """Let one frame run on: with the result of its instruction, or by running the instruction."""
    thunk = prepare_chain((state,), payload)
    with _unseen:
        return thunk()


def raise_resume(state: FrameState, exception: BaseException) -> Any:
    """Let one frame run on with `exception` raised by its instruction."""
    thunk = prepare_chain((state,), exception=exception)
    with _unseen:
        return thunk()


def resume_generator(
    state: FrameState, payload: Any = ABSENT, exception: BaseException | None = None
) -> types.GeneratorType[Any, Any, Any]:
    """A new generator in place of one that was running: its first step continues at the instruction."""
    generator: types.GeneratorType[Any, Any, Any] = prepare_chain((state,), payload, exception)()
    return generator


def resume_suspended(state: FrameState) -> types.GeneratorType[Any, Any, Any]:
    """A new generator or coroutine in place of one that is suspended at a YIELD_VALUE, the yielded value off its stack.

    It yields once more, unseen, in the original instruction, so that `send`, `throw`, `close` and `gi_yieldfrom` find
    what they would have found.
    """
    row = decode(state.code).instructions[state.index]
    if row.opname != "YIELD_VALUE" or state.code.co_flags & ASYNC_GENERATOR_FLAG:
        raise ValueError(
            f"{state.code.co_qualname}: not a generator or coroutine suspended at instruction {state.index}"
        )
    state.stack.append(None)
    generator = resume_generator(state)
    generator.send(None)
    return generator
