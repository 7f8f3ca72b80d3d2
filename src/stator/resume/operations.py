"""The one operation a graph break leaves to plain Python, as text over the operands on the value stack.

Contract. `plain_operation(builder, frame)` gives the text that performs the frame's current instruction on real values,
how many operands it takes off the stack, and what comes of it:

    push        one value
    method      a value found for a method call: NULL below it
    nothing     no value
    spread n    a tuple of n values, pushed last first
    branch      a truth value that decides where the program goes on
    iterate     the next item, or the end of the loop

None for an instruction that has no row: the frame then runs on eagerly from there.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stator.bytecode import Instruction
from stator.capture.frame import NULL, Frame
from stator.capture.opcodes_calls import split_call
from stator.resume.residual import ResidualBuilder
from stator.resume.support import IN_PLACE

MANY = 1 << 30


@dataclass(frozen=True, slots=True)
class PlainOperation:
    """One row, filled in."""

    text: str
    operands: int
    outcome: str
    count: int = 1


Row = Callable[[ResidualBuilder, Frame, Instruction], PlainOperation | None]
ROWS: dict[str, Row] = {}


def row(*names: str) -> Callable[[Row], Row]:
    def register(function: Row) -> Row:
        for name in names:
            ROWS[name] = function
        return function

    return register


def plain_operation(builder: ResidualBuilder, frame: Frame) -> PlainOperation | None:
    """The frame's current instruction as text."""
    instruction = frame.instruction
    make = ROWS.get(instruction.opname)
    return None if make is None else make(builder, frame, instruction)


# Builtins that look at the frame they are called from, if they get fewer arguments than this.
FRAME_READERS: dict[Any, int] = {
    super: 2, locals: 1, globals: 1, vars: 1, dir: 1, eval: 2, exec: 2, compile: MANY, __import__: 2, breakpoint: MANY,
    sys._getframe: MANY, sys._current_frames: MANY, inspect.currentframe: MANY, inspect.stack: MANY,
    inspect.trace: MANY, traceback.extract_stack: MANY, traceback.format_stack: MANY, traceback.print_stack: MANY,
    warnings.warn: MANY, sys.settrace: MANY, sys.setprofile: MANY,
}  # fmt: skip


def reads_frame(function: Any, count: int) -> bool:
    """Whether a call looks at its caller's frame, which then must be the real one."""
    try:
        return count < FRAME_READERS.get(function, 0)
    except TypeError:  # unhashable
        return False


@row("CALL")
def _call(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation | None:
    function, args, kwargs = split_call(frame, instruction.arg)
    if reads_frame(function, len(args) + len(kwargs)):
        return None
    named = "".join(f"**{{{builder.constant(key)}: {builder.expression(value)}}}, " for key, value in kwargs.items())
    text = f"{builder.callee(function)}({builder.sequence(args)}{named})"
    return PlainOperation(text, instruction.arg + 2, "push")


@row("CALL_FUNCTION_EX")
def _call_function_ex(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation | None:
    stack = frame.stack
    if reads_frame(stack[-2 - (instruction.arg & 1)], 0):
        return None
    if instruction.arg & 1:
        function, args, kwargs = stack[-3:]
        text = f"{builder.callee(function)}(*{builder.expression(args)}, **{builder.expression(kwargs)})"
        return PlainOperation(text, 4, "push")
    function, args = stack[-2:]
    return PlainOperation(f"{builder.callee(function)}(*{builder.expression(args)})", 3, "push")


@row("LOAD_ATTR", "LOAD_METHOD")
def _load_attr(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    text = f"getattr({builder.expression(frame.stack[-1])}, {builder.constant(instruction.value)})"
    return PlainOperation(text, 1, "method" if instruction.is_method else "push")


def _operator(template: str, operands: int, outcome: str = "push") -> Row:
    def make(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
        texts = [builder.operand(value) for value in frame.stack[len(frame.stack) - operands :]]
        return PlainOperation(template.format(*texts), operands, outcome)

    return make


ROWS["BINARY_SUBSCR"] = _operator("{0}[{1}]", 2)
ROWS["BINARY_SLICE"] = _operator("{0}[{1}:{2}]", 3)
ROWS["UNARY_NEGATIVE"] = _operator("-{0}", 1)
ROWS["UNARY_POSITIVE"] = _operator("+{0}", 1)
ROWS["UNARY_INVERT"] = _operator("~{0}", 1)
ROWS["UNARY_NOT"] = _operator("not {0}", 1)
ROWS["GET_ITER"] = _operator("iter({0})", 1)
ROWS["STORE_SUBSCR"] = _operator("make.set_item({1}, {2}, {0})", 3, "nothing")
ROWS["DELETE_SUBSCR"] = _operator("make.delete_item({0}, {1})", 2, "nothing")
ROWS["STORE_SLICE"] = _operator("make.set_item({1}, slice({2}, {3}), {0})", 4, "nothing")
ROWS["BEFORE_WITH"] = _operator("make.enter({0})", 1, "enter")
ROWS["LIST_TO_TUPLE"] = _operator("tuple({0})", 1)
for _name in ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE"):
    ROWS[_name] = _operator("bool({0})", 1, "branch")
for _name in ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE"):
    ROWS[_name] = _operator("not {0}", 1, "branch")


@row("BINARY_OP")
def _binary(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    left, right = (builder.operand(value) for value in frame.stack[-2:])
    symbol = instruction.value
    if symbol.endswith("="):
        return PlainOperation(f"{builder.constant(IN_PLACE[symbol])}({left}, {right})", 2, "push")
    return PlainOperation(f"{left} {symbol} {right}", 2, "push")


@row("COMPARE_OP")
def _compare(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    left, right = (builder.operand(value) for value in frame.stack[-2:])
    return PlainOperation(f"{left} {instruction.value} {right}", 2, "push")


@row("CONTAINS_OP")
def _contains(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    item, container = (builder.expression(value) for value in frame.stack[-2:])
    return PlainOperation(f"{item} {'not in' if instruction.arg else 'in'} {container}", 2, "push")


@row("STORE_ATTR")
def _store_attr(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    value, target = (builder.expression(part) for part in frame.stack[-2:])
    return PlainOperation(f"setattr({target}, {builder.constant(instruction.value)}, {value})", 2, "nothing")


@row("DELETE_ATTR")
def _delete_attr(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    target = builder.expression(frame.stack[-1])
    return PlainOperation(f"delattr({target}, {builder.constant(instruction.value)})", 1, "nothing")


@row("FOR_ITER")
def _for_iter(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    return PlainOperation(f"next({builder.expression(frame.stack[-1])}, make.END)", 0, "iterate")


@row("UNPACK_SEQUENCE")
def _unpack_sequence(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    text = f"make.unpack({builder.expression(frame.stack[-1])}, {instruction.arg})"
    return PlainOperation(text, 1, "spread", instruction.arg)


@row("UNPACK_EX")
def _unpack_ex(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    text = f"make.unpack_around({builder.expression(frame.stack[-1])}, {before}, {after})"
    return PlainOperation(text, 1, "spread", before + after + 1)


@row("FORMAT_VALUE")
def _format_value(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    flags = instruction.arg
    has_specification = (flags & 4) == 4
    value = frame.stack[-2] if has_specification else frame.stack[-1]
    specification = builder.expression(frame.stack[-1]) if has_specification else "''"
    text = builder.expression(value)
    function = {1: "str", 2: "repr", 3: "ascii"}.get(flags & 3)
    if function is not None:
        text = f"{function}({text})"
    return PlainOperation(f"format({text}, {specification})", 2 if has_specification else 1, "push")


@row("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE")
def _extend(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    method = {"LIST_EXTEND": "list.extend", "SET_UPDATE": "set.update", "DICT_UPDATE": "dict.update"}
    target, values = builder.expression(frame.stack[-1 - instruction.arg]), builder.expression(frame.stack[-1])
    return PlainOperation(f"{method[instruction.opname]}({target}, {values})", 1, "nothing")


@row("IMPORT_NAME")
def _import_name(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    level, names = (builder.expression(value) for value in frame.stack[-2:])
    text = (
        f"__import__({builder.constant(instruction.value)}, {builder.constant(frame.globals)}, None, {names}, {level})"
    )
    return PlainOperation(text, 2, "push")


@row("IMPORT_FROM")
def _import_from(builder: ResidualBuilder, frame: Frame, instruction: Instruction) -> PlainOperation:
    text = f"make.import_from({builder.expression(frame.stack[-1])}, {builder.constant(instruction.value)})"
    return PlainOperation(text, 0, "push")


def stack_after(frame: Frame, operation: PlainOperation, result: Any) -> list[Any]:
    """The frame's value stack once the operation has given `result` (markers for the values to come)."""
    stack = frame.stack[: len(frame.stack) - operation.operands]
    if operation.outcome == "push":
        stack.append(result)
    elif operation.outcome == "method":
        stack += [NULL, result]
    elif operation.outcome in ("spread", "enter"):
        stack += list(reversed(result)) if operation.outcome == "spread" else list(result)
    elif operation.outcome == "iterate":
        stack.append(result)
    return stack
