"""Handlers of the instructions that raise, catch and match exceptions.

The exception being handled is the tracer's, as it is the thread's in CPython: a callee's bare `raise` sees the
caller's. Tracebacks of caught exceptions are not modelled frame by frame: code that looks at them breaks the graph,
and an exception that leaves the traced function is raised again by the original code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stator.bytecode import Instruction
from stator.capture.control import Break, UserException
from stator.capture.frame import ExceptionSlot, Frame
from stator.capture.opcodes import opcode

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


@opcode("PUSH_EXC_INFO")
def push_exc_info(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    error = frame.stack.pop()
    frame.stack.append(ExceptionSlot(tracer.handled))
    frame.stack.append(error)
    tracer.handled = error


@opcode("POP_EXCEPT")
def pop_except(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    slot = frame.stack.pop()
    tracer.handled = slot.previous


@opcode("CHECK_EXC_MATCH")
def check_exc_match(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    error, wanted = frame.stack[-2:]
    for one in wanted if type(wanted) is tuple else (wanted,):
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            text = "catching classes that do not inherit from BaseException is not allowed"
            raise UserException(TypeError(text))
    frame.stack[-1] = isinstance(error, wanted)


@opcode("CHECK_EG_MATCH")
def check_eg_match(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    group, wanted = frame.stack[-2:]
    for one in wanted if type(wanted) is tuple else (wanted,):
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            text = "catching classes that do not inherit from BaseException is not allowed"
            raise UserException(TypeError(text))
        if issubclass(one, BaseExceptionGroup):
            text = "catching ExceptionGroup with except* is not allowed. Use except instead."
            raise UserException(TypeError(text))
    if not isinstance(group, BaseExceptionGroup):
        if isinstance(group, wanted):
            match: Any = (
                ExceptionGroup("", (group,)) if isinstance(group, Exception) else BaseExceptionGroup("", (group,))
            )
            rest = None
        else:
            match, rest = None, group
    else:
        match, rest = tracer.native(group.split, wanted)
    frame.stack[-2] = rest
    frame.stack[-1] = match
    if match is not None:
        tracer.handled = match


@opcode("PREP_RERAISE_STAR")
def prep_reraise_star(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    original, raised = frame.stack[-2:]
    value = tracer.regroup(original, raised)
    frame.stack.pop()
    frame.stack[-1] = value


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(AssertionError)


def _made(tracer: Tracer, value: Any) -> BaseException:
    """An exception from what was raised: an instance, or a class to call."""
    if isinstance(value, type) and issubclass(value, BaseException):
        value = tracer.call(value, [], {})
    if not isinstance(value, BaseException):
        raise UserException(TypeError("exceptions must derive from BaseException"))
    return value


@opcode("RAISE_VARARGS")
def raise_varargs(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg == 0:
        if tracer.handled is None:
            raise UserException(RuntimeError("No active exception to reraise"))
        raise UserException(tracer.handled)
    if instruction.arg == 2:
        cause = frame.stack[-1]
        error = _made(tracer, frame.stack[-2])
        if cause is not None:
            if isinstance(cause, type) and issubclass(cause, BaseException):
                cause = tracer.call(cause, [], {})
            elif not isinstance(cause, BaseException):
                raise UserException(TypeError("exception causes must derive from BaseException"))
        if tracer.world.is_outside(error):
            raise Break("c_writes_object", "the cause of an exception made outside")
        error.__cause__ = cause
    else:
        error = _made(tracer, frame.stack[-1])
    raise UserException(error)


@opcode("RERAISE")
def reraise(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    error = frame.stack[-1]
    raise UserException(error)


@opcode("CLEANUP_THROW")
def cleanup_throw(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    # stack: sub-iterator, last sent value, exception
    error = frame.stack[-1]
    if not isinstance(error, StopIteration):
        raise UserException(error)
    del frame.stack[-3:]
    frame.stack.append(None)
    frame.stack.append(error.value)
