"""How a trace is left: the exceptions that travel through the interpreter, never through the user's code.

`UserException` carries an exception of the traced program (raised by it, or by an operation on its behalf); the
interpreter hands it to the program's own handlers. `Break` says that the current operation cannot be traced.
`Restart` asks for the whole trace to be made again with more knowledge. They derive from BaseException so that
no `except Exception` of natively running code swallows them. Anything else that escapes is a defect of stator.
"""

from __future__ import annotations


class TraceControl(BaseException):
    """Base of what steers the interpreter."""


class UserException(TraceControl):
    """`value` was raised in the traced program."""

    def __init__(self, value: BaseException) -> None:
        super().__init__(value)
        self.value = value


class Break(TraceControl):
    """The current operation cannot be traced: a row of the reason table, and what in particular.

    `born`: the step that made what is in the way, where that is known; a break there may do.
    """

    def __init__(self, reason: str, detail: str = "", born: int | None = None) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.born = born


class SkipFrame(TraceControl):
    """The frame asks to run uncompiled."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail


class Restart(TraceControl):
    """Trace again, and break off at `step` for the reason given."""

    def __init__(self, step: int, broke: Break) -> None:
        super().__init__(step, broke)
        self.step = step
        self.broke = broke
