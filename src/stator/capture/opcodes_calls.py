"""Handlers of the instructions that call, define functions and classes, import, and enter with-blocks."""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

from stator.bytecode import Instruction
from stator.capture.control import Break, UserException
from stator.capture.frame import NULL, Frame
from stator.capture.opcodes import opcode

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


@opcode("KW_NAMES")
def kw_names(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.kwnames = instruction.value


def split_call(frame: Frame, count: int) -> tuple[Any, list[Any], dict[str, Any]]:
    """Callable, positional and keyword arguments of the CALL about to run; the stack stays as it is."""
    stack = frame.stack
    base = len(stack) - count
    args = stack[base:]
    first, second = stack[base - 2], stack[base - 1]
    if first is NULL:
        function = second
    else:
        function = first
        args.insert(0, second)
    names = frame.kwnames
    if names:
        split = len(args) - len(names)
        return function, args[:split], dict(zip(names, args[split:], strict=True))
    return function, args, {}


@opcode("CALL")
def call(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    count = instruction.arg
    function, args, kwargs = split_call(frame, count)
    frame.resumable = True
    if function is super and not args and not kwargs:
        value = tracer.implicit_super(frame)
    elif function is builtins.locals and not args:
        value = tracer.local_names(frame)
    elif function is builtins.globals and not args:
        value = tracer.global_names(frame)
    else:
        value = tracer.call(function, args, kwargs)
    frame.resumable = False
    frame.kwnames = ()
    del frame.stack[len(frame.stack) - count - 1 :]
    frame.stack[-1] = value
    if tracer.generators:
        del function, args
        tracer.close_dropped()


@opcode("CALL_FUNCTION_EX")
def call_function_ex(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    has_kwargs = bool(instruction.arg & 1)
    kwargs: dict[str, Any] = {}
    position = -1
    if has_kwargs:
        kwargs = tracer.named_arguments(frame.stack[-1], frame.stack[-3])
        position = -2
        for key in kwargs:
            if type(key) is not str:
                raise UserException(TypeError("keywords must be strings"))
    function = frame.stack[position - 1]
    try:
        args = tracer.listed(frame.stack[position])
    except UserException as error:
        given = frame.stack[position]
        if isinstance(error.value, TypeError) and not hasattr(type(given), "__iter__"):
            text = f"{tracer.described(function)} argument after * must be an iterable, not {type(given).__name__}"
            raise UserException(TypeError(text)) from None
        raise
    frame.resumable = True
    value = tracer.call(function, args, dict(kwargs))
    frame.resumable = False
    del frame.stack[position - 1 :]
    frame.stack[-1] = value  # takes the place of the NULL below the callable


@opcode("MAKE_FUNCTION")
def make_function(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    flags = instruction.arg
    code = frame.stack[-1]
    position = -2
    closure = annotations = keyword_defaults = defaults = None
    if flags & 8:
        closure = frame.stack[position]
        position -= 1
    if flags & 4:
        annotations = frame.stack[position]
        position -= 1
    if flags & 2:
        keyword_defaults = frame.stack[position]
        position -= 1
    if flags & 1:
        defaults = frame.stack[position]
        position -= 1
    function = types.FunctionType(code, frame.globals, code.co_name, defaults, closure)
    if keyword_defaults is not None:
        function.__kwdefaults__ = keyword_defaults
    if type(annotations) is tuple:
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
    elif annotations is not None:
        function.__annotations__ = annotations
    module = frame.globals.get("__name__")
    function.__module__ = module  # type: ignore[assignment]
    tracer.own_functions[id(function)] = function
    del frame.stack[position + 1 :]
    frame.stack.append(function)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(builtins.__build_class__)


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.names.setdefault("__annotations__", {})


@opcode("IMPORT_NAME")
def import_name(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    level, names = frame.stack[-2:]
    module = tracer.import_module(frame, instruction.value, names, level)
    frame.stack.pop()
    frame.stack[-1] = module


@opcode("IMPORT_FROM")
def import_from(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(tracer.import_from(frame.stack[-1], instruction.value))


@opcode("IMPORT_STAR", "PRINT_EXPR")
def refuse(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    raise Break("unsupported_instruction", instruction.opname)


@opcode("CALL_INTRINSIC_1")
def call_intrinsic_1(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    name = INTRINSICS.get(instruction.arg)
    if name is None:
        raise Break("unsupported_instruction", f"{instruction.opname} {instruction.arg}")
    frame.stack[-1] = name(tracer, frame.stack[-1])


def _stop_iteration_error(tracer: Tracer, value: Any) -> Any:
    if isinstance(value, StopIteration):
        error = RuntimeError("generator raised StopIteration")
        error.__cause__ = error.__context__ = value
        return error
    return value


# 3.12's numbers of the one-argument intrinsics that synchronous functions contain.
INTRINSICS: dict[int, Any] = {
    3: _stop_iteration_error,
    5: lambda tracer, value: tracer.unary("+", value),
    6: lambda tracer, value: tuple(value),
}


@opcode("CALL_INTRINSIC_2")
def call_intrinsic_2(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg != 1:
        raise Break("unsupported_instruction", f"{instruction.opname} {instruction.arg}")
    original, raised = frame.stack[-2:]
    value = tracer.regroup(original, raised)
    frame.stack.pop()
    frame.stack[-1] = value


@opcode("BEFORE_WITH")
def before_with(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    manager = frame.stack[-1]
    leave, value = tracer.enter_context(manager)
    frame.stack[-1] = leave
    frame.stack.append(value)


@opcode("WITH_EXCEPT_START")
def with_except_start(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    # stack: exit function, lasti, previous exception, exception
    error = frame.stack[-1]
    leave = frame.stack[-4]
    frame.resumable = True
    value = tracer.call(leave, [type(error), error, tracer.traceback_of(error)], {})
    frame.resumable = False
    frame.stack.append(value)
