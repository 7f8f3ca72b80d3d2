"""The interpreter: runs frames of the traced program and hands each instruction to its handler.

Contract. `Tracer` joins the parts over one `TracerState`. `run` executes a frame until it returns, yields, or is
left by an exception of the program (`UserException`) or by a decision not to go on (`Break`, `SkipFrame`,
`Restart`). When it is left by a decision, the chain of frames stays in `frames` as it stood: it says where
the program is.
"""

from __future__ import annotations

import linecache
from typing import Any

from stator import events
from stator.capture import opcodes_calls, opcodes_exceptions
from stator.capture.attributes import Attributes
from stator.capture.calls import Calls
from stator.capture.control import Break, TraceControl, UserException
from stator.capture.frame import NULL, Frame, LastIndex
from stator.capture.instance_dicts import InstanceDicts
from stator.capture.iteration import Iteration
from stator.capture.opcodes import HANDLERS
from stator.capture.operators import Operators
from stator.capture.recording import Recording
from stator.exc import DataDependentError
from stator.tensors import abstract

# The registering imports, named so that their use is plain.
HANDLER_FILES = (opcodes_calls, opcodes_exceptions)


class Tracer(Attributes, InstanceDicts, Operators, Iteration, Calls, Recording):
    """One trace."""

    _reported: events.Location | None = None  # the line last said to be reached

    def run(self, frame: Frame, error: BaseException | None = None) -> Any:
        """Execute a frame; returns its value, or `Yielded`."""
        instructions = frame.decoded.instructions
        handlers = _handlers_of(frame)
        frames = self.frames
        frames.append(frame)
        watched = events.wanted("trace_bytecode") or events.wanted("trace_source")
        if not frame.pc and not events.is_own(frame.code.co_filename):
            where = events.Location(frame.code.co_filename, frame.code.co_firstlineno, frame.code.co_name)
            events.emit("bytecode", where, title=frame.code.co_qualname, code=frame.code)
        raised = error
        while True:
            if raised is not None:
                self._unwind(frame, raised)
                raised = None
            try:
                while True:
                    index = frame.pc
                    frame.current = index
                    frame.pc = index + 1
                    frame.step = self.step = self.step + 1
                    if self.break_at and self.step in self.break_at:
                        raise self.break_at[self.step]
                    if watched:
                        self._report(frame)
                    if handlers[index](self, frame, instructions[index]):
                        frames.pop()
                        return frame.returned
            except UserException as caught:
                raised = caught.value
                if raised is not self.last_raised:
                    self.last_raised, self.raised_step = raised, frame.step
                    self.raised_at[id(raised)] = frame.step
                    self.world.kept.append(raised)
                frame.kwnames = ()
                frame.resumable = False
                frame.substitute = NULL
            except DataDependentError as undecided:
                raise Break("data_dependent_size", str(undecided)) from undecided
            except IndexError as caught_index:
                if index >= len(instructions):
                    raise RuntimeError(f"ran off the end of {frame.code.co_qualname}") from caught_index
                raise

    def release(self) -> None:
        """Let go of everything: what the trace knew lives in cycles, and must not keep the program's objects alive."""
        for frame in (*self.frames, *(row[1] for row in self.generators.values())):
            frame.locals.clear()
            frame.stack.clear()
        self.world.__dict__.clear()
        self.__dict__.clear()

    def _unwind(self, frame: Frame, error: BaseException) -> None:
        """Go to the handler of the current instruction, or leave the frame."""
        if self.handled is not None and error is not self.handled and error.__context__ is None:
            self._chain(error, self.handled)
        here = frame.instruction
        if not (here.opname == "RERAISE" or (here.opname == "RAISE_VARARGS" and here.arg == 0)):
            self.passed.setdefault(id(error), []).append((frame.code, frame.current, frame.globals))
        row = frame.decoded.handler_of[frame.current]
        if row is None:
            self.frames.pop()
            raise UserException(error)
        self.cut_stack(frame, row.depth)
        if row.lasti:
            frame.stack.append(LastIndex(frame.current))
        frame.stack.append(error)
        frame.pc = row.target

    def cut_stack(self, frame: Frame, depth: int) -> None:
        """Drop what an exception leaves behind on the value stack."""
        del frame.stack[depth:]
        if self.generators:
            self.close_dropped()

    @staticmethod
    def _chain(error: BaseException, context: BaseException) -> None:
        """Implicit chaining, without closing a circle."""
        link: BaseException | None = context
        while link is not None:
            if link is error:
                return
            link = link.__context__
        error.__context__ = context

    def _report(self, frame: Frame) -> None:
        if events.is_own(frame.code.co_filename):
            return
        where = events.Location(frame.code.co_filename, frame.line(), frame.code.co_name)
        if where != self._reported:
            self._reported = where
            text = linecache.getline(where.file, where.line)
            events.emit("trace_source", where, file=where.file, line=where.line, text=text)
        instruction = frame.instruction
        events.emit(
            "trace_bytecode",
            where,
            opname=instruction.opname,
            argument=instruction.value if instruction.value is not None else instruction.arg,
            stack=[type(value).__name__ for value in frame.stack],
        )

    def run_chain(self, frames: list[Frame]) -> Any:
        """Run suspended frames, the outermost first in the list, each taking over what the next inner one gives.

        Torch functions that reach abstract tensors on this thread come to this trace meanwhile.
        """
        outer = abstract.current.recorder
        abstract.current.recorder = self
        pending = list(frames)
        try:
            result: Any = None
            error = self.arrived
            first = True
            while pending:
                frame = pending.pop()
                self.frames[:] = pending
                frame.suspended = False
                if not first and error is None:
                    self._accept(frame, result)
                first = False
                frame.substitute = NULL
                try:
                    result, error = self.run(frame, error), None
                except UserException as raised:
                    error = raised.value
            if error is not None:
                raise UserException(error)
            return result
        finally:
            abstract.current.recorder = outer

    @staticmethod
    def _accept(frame: Frame, value: Any) -> None:
        """Give a frame what its callee returned, in the place of the call's operands, which are off the stack."""
        if frame.substitute is not NULL:
            value, frame.substitute = frame.substitute, NULL
        frame.resumable = frame.suspended = False
        row = frame.instruction
        if row.opname in ("LOAD_ATTR", "LOAD_METHOD") and row.is_method:
            frame.stack.append(NULL)
        frame.stack.append(value)


def _missing(tracer: Any, frame: Frame, instruction: Any) -> None:
    raise Break("unsupported_instruction", instruction.opname)


def _handlers_of(frame: Frame) -> list[Any]:
    """The handlers of a code object's instructions, looked up once."""
    decoded = frame.decoded
    if decoded.handlers is None:
        decoded.handlers = [HANDLERS.get(instruction.opname, _missing) for instruction in decoded.instructions]
    return decoded.handlers


__all__ = ["TraceControl", "Tracer"]
