"""What each instruction does: one handler per opcode name, for all supported CPython versions.

Contract. `HANDLERS[opname](tracer, frame, instruction)` executes one instruction. A handler looks at the value stack
first and changes it only when the operation has succeeded (see `frame.py`). A true return value leaves the frame
(`frame.returned` holds the value). Which opcodes exist and how their arguments read is `bytecode/versions.py`'s;
a name that two versions use alike has one handler here.

Handlers for calls, exceptions and with-blocks are in `opcodes_calls.py` and `opcodes_exceptions.py`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stator.bytecode import Instruction
from stator.capture.asserts import asserts
from stator.capture.control import Break, UserException
from stator.capture.frame import NULL, UNBOUND, Frame, Pending
from stator.tensors.abstract import AbstractTensor
from stator.values.world import DELETED

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer

Handler = Callable[["Tracer", Frame, Instruction], Any]
HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler under its opcode names."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def unbound_local(name: str) -> UserException:
    return UserException(
        UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    )


def unbound_free(frame: Frame, name: str) -> UserException:
    if name in frame.code.co_freevars:
        text = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
        return UserException(NameError(text))
    return unbound_local(name)


# Stack and locals


@opcode("RESUME", "NOP", "CACHE", "PRECALL", "EXTENDED_ARG", "COPY_FREE_VARS", "JUMP_NO_INTERRUPT")
def nothing(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Slots of free variables are filled when the frame is made."""


@opcode("POP_TOP", "END_FOR")
def pop_top(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.pop()
    if tracer.generators:
        tracer.close_dropped()


@opcode("PUSH_NULL")
def push_null(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(NULL)


@opcode("COPY")
def copy(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.stack[-instruction.arg])


@opcode("SWAP")
def swap(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    stack, depth = frame.stack, instruction.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@opcode("LOAD_CONST")
def load_const(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(instruction.value)


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = frame.locals[instruction.arg]
    if value is UNBOUND:
        raise unbound_local(instruction.value)
    if type(value) is Pending:
        value = frame.locals[instruction.arg] = tracer.world.load(value.value, value.source)
    frame.stack.append(value)


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = frame.locals[instruction.arg]
    if type(value) is Pending:
        value = tracer.world.load(value.value, value.source)
    frame.stack.append(NULL if value is UNBOUND else value)
    frame.locals[instruction.arg] = UNBOUND


@opcode("STORE_FAST")
def store_fast(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    frame.locals[instruction.arg] = UNBOUND if value is NULL else value
    if type(value) is AbstractTensor and value.held_as is None:
        tracer.graph.name(value, instruction.value)


@opcode("DELETE_FAST")
def delete_fast(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if frame.locals[instruction.arg] is UNBOUND:
        raise unbound_local(instruction.value)
    frame.locals[instruction.arg] = UNBOUND


# Cells and globals


@opcode("MAKE_CELL")
def make_cell(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    index = instruction.arg
    value = frame.locals[index]
    if type(value) is Pending:
        value = tracer.world.load(value.value, value.source)
    frame.locals[index] = tracer.new_cell(value)


@opcode("LOAD_CLOSURE")
def load_closure(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.locals[instruction.arg])


@opcode("LOAD_DEREF")
def load_deref(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = tracer.read_cell(frame.locals[instruction.arg])
    if value is UNBOUND:
        raise unbound_free(frame, instruction.value)
    frame.stack.append(value)


@opcode("LOAD_CLASSDEREF")
def load_classderef(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if frame.names is not None and instruction.value in frame.names:
        frame.stack.append(frame.names[instruction.value])
    else:
        load_deref(tracer, frame, instruction)


@opcode("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    names = frame.stack[-1]
    if instruction.value in names:
        frame.stack[-1] = names[instruction.value]
    else:
        frame.stack.pop()
        load_deref(tracer, frame, instruction)


@opcode("STORE_DEREF")
def store_deref(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    tracer.write_cell(frame.locals[instruction.arg], frame.stack[-1])
    frame.stack.pop()


@opcode("DELETE_DEREF")
def delete_deref(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    cell = frame.locals[instruction.arg]
    if tracer.read_cell(cell) is UNBOUND:
        raise unbound_free(frame, instruction.value)
    tracer.write_cell(cell, UNBOUND)


@opcode("LOAD_GLOBAL")
def load_global(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = tracer.load_global(frame, instruction.value)
    if instruction.push_null:
        frame.stack.append(NULL)
    frame.stack.append(value)


@opcode("LOAD_NAME")
def load_name(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if frame.names is not None and instruction.value in frame.names:
        frame.stack.append(frame.names[instruction.value])
    else:
        frame.stack.append(tracer.load_global(frame, instruction.value))


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    names = frame.stack[-1]
    if instruction.value in names:
        frame.stack[-1] = names[instruction.value]
    else:
        frame.stack[-1] = tracer.load_global(frame, instruction.value)


@opcode("LOAD_LOCALS")
def load_locals(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.names)


@opcode("STORE_NAME")
def store_name(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.names[instruction.value] = frame.stack.pop()


@opcode("DELETE_NAME")
def delete_name(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if instruction.value not in frame.names:
        raise UserException(NameError(f"name '{instruction.value}' is not defined"))
    del frame.names[instruction.value]


@opcode("STORE_GLOBAL")
def store_global(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    tracer.store_global(frame, instruction.value, frame.stack[-1])
    frame.stack.pop()


@opcode("DELETE_GLOBAL")
def delete_global(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    tracer.load_global(frame, instruction.value)
    tracer.store_global(frame, instruction.value, DELETED)


# Attributes and items


@opcode("LOAD_ATTR", "LOAD_METHOD")
def load_attr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.resumable = True
    value = tracer.load_attr(frame.stack[-1], instruction.value)
    frame.resumable = False
    if instruction.is_method:
        # CALL accepts a bound method under a NULL just as well as a function above its self.
        frame.stack[-1] = NULL
        frame.stack.append(value)
    else:
        frame.stack[-1] = value


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    function, owner, target = frame.stack[-3:]
    if function is not super:
        bound = tracer.call(function, [owner, target] if instruction.arg & 2 else [], {})
    else:
        bound = tracer.make_super(owner, target)
    value = tracer.load_attr(bound, instruction.value)
    del frame.stack[-3:]
    if instruction.is_method:
        frame.stack.append(NULL)
    frame.stack.append(value)


@opcode("STORE_ATTR")
def store_attr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    tracer.store_attr(frame.stack[-1], instruction.value, frame.stack[-2])
    del frame.stack[-2:]


@opcode("DELETE_ATTR")
def delete_attr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    tracer.delete_attr(frame.stack[-1], instruction.value)
    frame.stack.pop()


@opcode("BINARY_SUBSCR")
def binary_subscr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.resumable = True
    value = tracer.get_item(frame.stack[-2], frame.stack[-1])
    frame.resumable = False
    frame.stack.pop()
    frame.stack[-1] = value


@opcode("BINARY_SLICE")
def binary_slice(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    container, start, stop = frame.stack[-3:]
    value = tracer.get_item(container, slice(start, stop))
    del frame.stack[-2:]
    frame.stack[-1] = value


@opcode("STORE_SUBSCR")
def store_subscr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value, container, key = frame.stack[-3:]
    tracer.set_item(container, key, value)
    del frame.stack[-3:]


@opcode("STORE_SLICE")
def store_slice(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value, container, start, stop = frame.stack[-4:]
    tracer.set_item(container, slice(start, stop), value)
    del frame.stack[-4:]


@opcode("DELETE_SUBSCR")
def delete_subscr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    container, key = frame.stack[-2:]
    tracer.delete_item(container, key)
    del frame.stack[-2:]


# Operators


@opcode("BINARY_OP")
def binary_op(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = tracer.binary(instruction.value, frame.stack[-2], frame.stack[-1])
    frame.stack.pop()
    frame.stack[-1] = value


@opcode("UNARY_NEGATIVE")
def unary_negative(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = tracer.unary("-", frame.stack[-1])


@opcode("UNARY_POSITIVE")
def unary_positive(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = tracer.unary("+", frame.stack[-1])


@opcode("UNARY_INVERT")
def unary_invert(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = tracer.unary("~", frame.stack[-1])


@opcode("UNARY_NOT")
def unary_not(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = not tracer.truth(frame.stack[-1])


@opcode("COMPARE_OP")
def compare_op(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = tracer.compare(instruction.value, frame.stack[-2], frame.stack[-1])
    frame.stack.pop()
    frame.stack[-1] = value


@opcode("IS_OP")
def is_op(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    same = tracer.identical(frame.stack[-2], frame.stack[-1])
    frame.stack.pop()
    frame.stack[-1] = same != bool(instruction.arg)


@opcode("CONTAINS_OP")
def contains_op(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    item, container = frame.stack[-2:]
    found = tracer.contains(container, item)
    frame.stack.pop()
    frame.stack[-1] = found != bool(instruction.arg)


# Building


@opcode("BUILD_TUPLE")
def build_tuple(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    count = instruction.arg
    parts = tuple(frame.stack[len(frame.stack) - count :])
    del frame.stack[len(frame.stack) - count :]
    frame.stack.append(parts)


@opcode("BUILD_LIST")
def build_list(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    start = len(frame.stack) - instruction.arg
    parts = frame.stack[start:]
    del frame.stack[start:]
    frame.stack.append(parts)


@opcode("BUILD_SET")
def build_set(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    start = len(frame.stack) - instruction.arg
    parts = [tracer.check_hashable(part) for part in frame.stack[start:]]
    value = tracer.native(set, parts)
    del frame.stack[start:]
    frame.stack.append(value)


@opcode("BUILD_MAP")
def build_map(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    start = len(frame.stack) - 2 * instruction.arg
    parts = frame.stack[start:]
    keys = [tracer.check_hashable(key) for key in parts[::2]]
    value = tracer.native(lambda: dict(zip(keys, parts[1::2], strict=True)))
    del frame.stack[start:]
    frame.stack.append(value)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    keys = frame.stack[-1]
    start = len(frame.stack) - 1 - instruction.arg
    value = dict(zip(keys, frame.stack[start:-1], strict=True))
    del frame.stack[start:]
    frame.stack.append(value)


@opcode("BUILD_STRING")
def build_string(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    start = len(frame.stack) - instruction.arg
    value = "".join(frame.stack[start:])
    del frame.stack[start:]
    frame.stack.append(value)


@opcode("BUILD_SLICE")
def build_slice(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    parts = frame.stack[-instruction.arg :]
    del frame.stack[-instruction.arg :]
    frame.stack.append(slice(*parts))


@opcode("LIST_APPEND")
def list_append(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    list.append(frame.stack[-instruction.arg], value)


@opcode("SET_ADD")
def set_add(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = tracer.check_hashable(frame.stack[-1])
    tracer.world.read(frame.stack[-1 - instruction.arg])
    tracer.native(set.add, frame.stack[-1 - instruction.arg], value)
    frame.stack.pop()


@opcode("MAP_ADD")
def map_add(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    key, value = frame.stack[-2:]
    key = tracer.check_hashable(key)
    tracer.world.read_key(frame.stack[-2 - instruction.arg], key)
    tracer.native(dict.__setitem__, frame.stack[-2 - instruction.arg], key, value)
    del frame.stack[-2:]


@opcode("LIST_EXTEND")
def list_extend(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    target, values = frame.stack[-1 - instruction.arg], frame.stack[-1]
    try:
        parts = tracer.listed(values)
    except UserException as error:
        if isinstance(error.value, TypeError) and not hasattr(type(values), "__iter__"):
            text = f"Value after * must be an iterable, not {type(values).__name__}"
            raise UserException(TypeError(text)) from None
        raise
    list.extend(target, parts)
    frame.stack.pop()


@opcode("LIST_TO_TUPLE")
def list_to_tuple(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = tuple(frame.stack[-1])


@opcode("SET_UPDATE")
def set_update(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    target, values = frame.stack[-1 - instruction.arg], frame.stack[-1]
    parts = [tracer.check_hashable(part) for part in tracer.listed(values)]
    tracer.world.read(target)
    tracer.native(set.update, target, parts)
    frame.stack.pop()


@opcode("DICT_UPDATE", "DICT_MERGE")
def dict_update(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    target, values = frame.stack[-1 - instruction.arg], frame.stack[-1]
    merges = instruction.opname == "DICT_MERGE"
    function = frame.stack[-3 - instruction.arg] if merges else None
    pairs = tracer.named_arguments(values, function)
    if merges:
        for key in pairs:
            if key in target:
                text = f"{tracer.described(function)} got multiple values for keyword argument '{key}'"
                raise UserException(TypeError(text))
    dict.update(target, pairs)
    frame.stack.pop()


@opcode("FORMAT_VALUE")
def format_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    flags = instruction.arg
    has_specification = (flags & 4) == 4
    specification = frame.stack[-1] if has_specification else ""
    value = frame.stack[-2] if has_specification else frame.stack[-1]
    text = tracer.format(value, {0: "", 1: "s", 2: "r", 3: "a"}[flags & 3], specification)
    if has_specification:
        frame.stack.pop()
    frame.stack[-1] = text


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    count = instruction.arg
    parts = tracer.unpacked(frame.stack[-1], count)
    frame.stack.pop()
    frame.stack.extend(reversed(parts))


@opcode("UNPACK_EX")
def unpack_ex(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    parts = tracer.listed(tracer.iterate_for_unpacking(frame.stack[-1]))
    if len(parts) < before + after:
        text = f"not enough values to unpack (expected at least {before + after}, got {len(parts)})"
        raise UserException(ValueError(text))
    middle = list(parts[before : len(parts) - after])
    frame.stack.pop()
    frame.stack.extend(reversed([*parts[:before], middle, *parts[len(parts) - after :]]))


# Pattern matching


@opcode("GET_LEN")
def get_len(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(tracer.length(frame.stack[-1]))


def _matches_flag(tracer: Tracer, value: Any, flag: int) -> bool:
    if type(value) is AbstractTensor:
        return False
    tracer.world.guard_type(value)
    return bool(type(value).__flags__ & flag)


@opcode("MATCH_SEQUENCE")
def match_sequence(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(_matches_flag(tracer, frame.stack[-1], 1 << 5))


@opcode("MATCH_MAPPING")
def match_mapping(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(_matches_flag(tracer, frame.stack[-1], 1 << 6))


@opcode("MATCH_KEYS")
def match_keys(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    subject, keys = frame.stack[-2:]
    values: list[Any] = []
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            raise UserException(ValueError(f"mapping pattern checks duplicate key ({key!r})"))
        seen.add(key)
        if not tracer.contains(subject, key):
            frame.stack.append(None)
            return
        values.append(tracer.get_item(subject, key))
    frame.stack.append(tuple(values))


@opcode("MATCH_CLASS")
def match_class(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    subject, cls, names = frame.stack[-3:]
    matched = None
    if tracer.is_instance(subject, cls):
        matched = _match_attributes(tracer, subject, cls, names, instruction.arg)
    del frame.stack[-2:]
    frame.stack[-1] = matched


MATCHES_ITSELF = 1 << 22  # Py_TPFLAGS_MATCH_SELF


def _match_attributes(tracer: Tracer, subject: Any, cls: Any, names: Any, count: int) -> tuple[Any, ...] | None:
    """The values of the sub-patterns' attributes; None where one is missing."""
    found: list[Any] = []
    if count:
        itself, known = _positional_patterns(tracer, cls)
        allowed = 1 if itself else len(known)
        if count > allowed:
            plural = "" if allowed == 1 else "s"
            text = f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)"
            raise UserException(TypeError(text))
        if itself:
            found.append(subject)
        else:
            names = (*known[:count], *names)
    seen: set[str] = set()
    for index, name in enumerate(names):
        if index < count and type(name) is not str:
            text = f"__match_args__ elements must be strings (got {type(name).__name__})"
            raise UserException(TypeError(text))
        if name in seen:
            raise UserException(TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"))
        seen.add(name)
        try:
            found.append(tracer.load_attr(subject, name))
        except UserException as error:
            if isinstance(error.value, AttributeError):
                return None
            raise
    return tuple(found)


def _positional_patterns(tracer: Tracer, cls: Any) -> tuple[bool, Any]:
    """Whether the subject itself is the one positional sub-pattern, else the attributes that they are."""
    try:
        known = tracer.load_attr(cls, "__match_args__")
    except UserException as error:
        if not isinstance(error.value, AttributeError):
            raise
        return bool(cls.__flags__ & MATCHES_ITSELF), ()
    if type(known) is not tuple:
        text = f"{cls.__name__}.__match_args__ must be a tuple (got {type(known).__name__})"
        raise UserException(TypeError(text))
    tracer.world.read(known)
    return False, known


# Jumps and loops


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.pc = instruction.target


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def pop_jump_if_true(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if type(frame.stack[-1]) is AbstractTensor and asserts(tracer, frame):
        frame.stack.pop()
        frame.pc = instruction.target
        return
    jumps = tracer.truth(frame.stack[-1])
    frame.stack.pop()
    if jumps:
        frame.pc = instruction.target


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def pop_jump_if_false(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    jumps = not tracer.truth(frame.stack[-1])
    frame.stack.pop()
    if jumps:
        frame.pc = instruction.target


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if tracer.identical(frame.stack.pop(), None):
        frame.pc = instruction.target


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if not tracer.identical(frame.stack.pop(), None):
        frame.pc = instruction.target


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if tracer.truth(frame.stack[-1]):
        frame.pc = instruction.target
    else:
        frame.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if not tracer.truth(frame.stack[-1]):
        frame.pc = instruction.target
    else:
        frame.stack.pop()


@opcode("GET_ITER")
def get_iter(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = tracer.iterate(frame.stack[-1])


@opcode("FOR_ITER")
def for_iter(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    done, value = tracer.advance(frame.stack[-1])
    if done:
        # The argument leads to END_FOR (3.12), which the iterator's place on the stack is left to; or past it (3.11).
        frame.stack.pop()
        if tracer.generators:
            tracer.close_dropped()
        frame.pc = instruction.target
        if frame.decoded.instructions[frame.pc].opname == "END_FOR":
            frame.pc += 1
    else:
        frame.stack.append(value)


@opcode("RETURN_VALUE")
def return_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> bool:
    frame.returned = frame.stack.pop()
    return True


@opcode("RETURN_CONST")
def return_const(tracer: Tracer, frame: Frame, instruction: Instruction) -> bool:
    frame.returned = instruction.value
    return True


# Generators: the driver of `generators.py` runs the frame between yields.


@opcode("RETURN_GENERATOR")
def return_generator(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """The generator object was made by the call; its body goes on behind the POP_TOP."""
    frame.stack.append(None)


class Yielded:
    """What a frame returns when it yields."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@opcode("YIELD_VALUE")
def yield_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> bool:
    frame.returned = Yielded(frame.stack.pop())
    return True


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    if type(frame.stack[-1]) is not types.GeneratorType:
        frame.stack[-1] = tracer.iterate(frame.stack[-1])


@opcode("SEND")
def send(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    receiver, value = frame.stack[-2:]
    finished, result = tracer.send(receiver, value)
    if finished:
        if frame.decoded.instructions[instruction.target].opname == "END_SEND":
            frame.stack[-1] = result
        else:
            frame.stack.pop()
            frame.stack[-1] = result
        frame.pc = instruction.target
    else:
        frame.stack[-1] = result


@opcode("END_SEND")
def end_send(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-1] = value


@opcode("ASYNC_GEN_WRAP", "GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR")
def asynchronous(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    raise Break("asynchronous_code", instruction.opname)
