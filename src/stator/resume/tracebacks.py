"""Tracebacks of exceptions that were raised while tracing.

Contract. An exception of the trace that is rebuilt (because a handler looks at it across a graph break, or because the
program keeps it) gets the traceback it would have: the same functions, lines and columns, outermost first. A traceback
needs frames, and those of the trace never ran; so each place an exception passed is entered once in a resumed copy of
its function that is left at once. Such a frame shows no locals. It is made when it is first needed, and kept.
"""

from __future__ import annotations

import types
from typing import Any, NamedTuple

from stator._native import core
from stator.bytecode import decode
from stator.resume.code import ASYNC_GENERATOR_FLAG, GENERATOR_FLAGS, Mode
from stator.resume.state import UNBOUND, FrameState, make_function, prepare_chain


class _Left(Exception):
    """Leaves a frame that was entered for its place only."""


def _leave() -> None:
    raise _Left


class Passed(NamedTuple):
    """An instruction an exception passed on its way."""

    code: types.CodeType
    position: int
    globals: dict[str, Any]

    def state(self) -> FrameState:
        """A frame that stands there, without locals."""
        decoded = decode(self.code)
        frees = decoded.nfrees
        slots = [UNBOUND] * (len(decoded.localsplus_names) - frees)
        return FrameState(self.code, self.position, slots, self.globals, tuple(types.CellType() for _ in range(frees)))

    def enter(self) -> types.TracebackType | None:
        """The traceback row of a frame that stands there; None where there can be none."""
        if self.code.co_flags & ASYNC_GENERATOR_FLAG:
            return None
        function = make_function(self.state(), Mode.RAISE, _leave)
        function.__code__ = function.__code__.replace(co_exceptiontable=b"")
        try:
            started = function()
            if self.code.co_flags & GENERATOR_FLAGS:
                started.send(None)
        except _Left as error:
            assert error.__traceback__ is not None
            return error.__traceback__.tb_next
        return None


class TracebackOf:
    """The traceback of one exception of a trace, innermost place first."""

    __slots__ = ("_made", "places")

    def __init__(self, places: tuple[Passed, ...]) -> None:
        self.places = places
        self._made: types.TracebackType | None = None

    def made(self) -> types.TracebackType | None:
        """A traceback; its rows are never changed, so all exceptions raised here may share it."""
        if self._made is None:
            traceback: types.TracebackType | None = None
            for place in self.places:
                row = place.enter()
                if row is not None:
                    traceback = types.TracebackType(traceback, row.tb_frame, row.tb_lasti, row.tb_lineno)
            self._made = traceback
        return self._made


class FailedAssert:
    """Raises the exception of an `assert` that failed, in frames that stand where it was asked."""

    __slots__ = ("args", "places")

    def __init__(self, places: tuple[Passed, ...], args: tuple[Any, ...]) -> None:
        self.places = places
        self.args = args

    def __call__(self) -> Any:
        states = [place.state() for place in self.places]
        return core.TailCall(prepare_chain(states, exception=AssertionError(*self.args)))
