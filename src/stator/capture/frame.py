"""One frame of the interpreted program.

Contract. Locals live in CPython's own layout ("localsplus": locals, cells, free variables in one list), so that a
frame can be handed to `resume/` as it is. `UNBOUND` marks unbound slots, `NULL` the NULLs of the value stack.
Handlers look at the stack and change it only once the operation has succeeded, so that a frame always stands
cleanly before or after an instruction: wherever the trace is left, the frame says where the program is.
"""

from __future__ import annotations

import types
from typing import Any

from stator.bytecode import DecodedCode, Instruction, decode
from stator.values.source import Source


class _Marker:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


UNBOUND = _Marker("<unbound>")
NULL = _Marker("<null>")


class LastIndex:
    """Where a cleanup handler keeps the instruction that raised."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Pending:
    """A local that came from outside and was not looked at yet: its constants are not guarded before that."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source


class ExceptionSlot:
    """The value PUSH_EXC_INFO leaves on the stack: what was being handled before (None or an exception)."""

    __slots__ = ("previous",)

    def __init__(self, previous: BaseException | None) -> None:
        self.previous = previous


class Frame:
    """A running (or suspended) function."""

    __slots__ = (
        "builtins",
        "closure",
        "code",
        "current",
        "decoded",
        "function",
        "globals",
        "handled",
        "is_generator",
        "kwnames",
        "locals",
        "names",
        "pc",
        "resumable",
        "returned",
        "stack",
        "step",
        "substitute",
        "suspended",
    )

    def __init__(
        self,
        code: types.CodeType,
        global_names: dict[str, Any],
        builtin_names: dict[str, Any],
        closure: tuple[Any, ...],
        function: Any = None,
    ) -> None:
        self.code = code
        self.decoded: DecodedCode = decode(code)
        self.globals = global_names
        self.builtins = builtin_names
        self.closure = closure
        self.function = function
        self.locals: list[Any] = [UNBOUND] * len(self.decoded.localsplus_names)
        self.stack: list[Any] = []
        self.pc = 0
        self.current = 0  # index of the instruction being executed
        self.kwnames: tuple[str, ...] = ()
        self.handled: BaseException | None = None  # what `raise` alone would raise again in this frame
        self.returned: Any = None
        # Names of a class body run by the interpreter; None for functions.
        self.names: Any = None
        self.is_generator = bool(code.co_flags & 0x20)
        # Whether, while a callee runs, its result is all that this frame's instruction still needs.
        self.resumable = False
        # What the instruction gives in place of what the callee returns (`__init__` returns None, the call an object).
        self.substitute: Any = NULL
        self.step = 0
        # A frame that waits for its callee, the operands of the call off its stack already.
        self.suspended = False

    @property
    def instruction(self) -> Instruction:
        return self.decoded.instructions[self.current]

    def line(self) -> int:
        return self.decoded.instructions[self.current].line or self.code.co_firstlineno
