"""What lies on the value stack before each instruction, as far as the code alone tells.

Contract. `stack_slots(decoded)` gives, per instruction, a string of one letter a slot (bottom first), or None where no
path leads; `stack_size` is the depth a copy of the code needs. The letters are those of resume shapes:

    v  a value
    0  NULL, as PUSH_NULL leaves it
    ?  NULL or a value, decided at run time (the lower slot of a method load; LOAD_FAST_AND_CLEAR)
    e  the exception that was being handled before, kept by PUSH_EXC_INFO for POP_EXCEPT
    i  the position of the instruction that raised, kept for RERAISE

Heights come from CPython's own `stack_effect`; only the few instructions that handle other than values have rows here.
"""

from __future__ import annotations

import opcode as _opcode
from collections.abc import Callable, Sequence

from stator.bytecode.decode import DecodedCode, Handler
from stator.bytecode.versions import DECODING, VERSION

VALUE, NULL, EITHER, EXCEPTION, POSITION = "v", "0", "?", "e", "i"

# Leave what is below them alone: they only pop, or touch no stack at all.
POP_ONLY = frozenset(
    {
        "POP_TOP", "POP_EXCEPT", "POP_ITER", "END_FOR", "NOP", "NOT_TAKEN", "RESUME", "CACHE", "MAKE_CELL",
        "COPY_FREE_VARS", "SETUP_ANNOTATIONS", "KW_NAMES", "STORE_FAST", "STORE_FAST_STORE_FAST",
        "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_FAST",
        "DELETE_DEREF", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_ATTR", "DELETE_SUBSCR", "IMPORT_STAR", "PRINT_EXPR",
        "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE",
        "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE",
        "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_TRUE",
        "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
        "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "LIST_APPEND", "SET_ADD", "MAP_ADD", "LIST_EXTEND",
        "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "END_ASYNC_FOR",
    }
)  # fmt: skip

# Control does not go on behind these.
NO_FALL_THROUGH = frozenset(
    {
        "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT",
    }
)  # fmt: skip

# Stands where a handler begins, which is often guarded itself, by one that expects the stack as it is behind it.
CANNOT_RAISE = frozenset({"PUSH_EXC_INFO"})

_CALLABLE_FIRST = VERSION >= (3, 13)
_METHOD = VALUE + EITHER if _CALLABLE_FIRST else EITHER + VALUE
_GLOBAL = VALUE + NULL if _CALLABLE_FIRST else NULL + VALUE


def _swap(stack: str, arg: int) -> str:
    return stack[:-arg] + stack[-1] + stack[len(stack) - arg + 1 : -1] + stack[-arg]


def _copy(stack: str, arg: int) -> str:
    """A copied exception state is about to be popped by POP_EXCEPT; the one below is a plain value from here on."""
    if stack[-arg] != EXCEPTION:
        return stack + stack[-arg]
    return stack[: len(stack) - arg] + VALUE + stack[len(stack) - arg + 1 :] + EXCEPTION


# name -> the stack afterwards, for what moves or makes other slots than values.
SPECIAL: dict[str, Callable[[str, int], str]] = {
    "PUSH_NULL": lambda stack, arg: stack + NULL,
    "PUSH_EXC_INFO": lambda stack, arg: stack[:-1] + EXCEPTION + VALUE,
    "COPY": _copy,
    "SWAP": _swap,
    "UNPACK_SEQUENCE": lambda stack, arg: stack[:-1] + VALUE * arg,
    "LOAD_FAST_AND_CLEAR": lambda stack, arg: stack + EITHER,
    "LOAD_METHOD": lambda stack, arg: stack[:-1] + _METHOD,
    "LOAD_GLOBAL": lambda stack, arg: stack + (_GLOBAL if arg & 1 else VALUE),
}
if VERSION < (3, 12):
    # `stack_effect` books the arguments of a call to PRECALL, though it is CALL that takes them.
    SPECIAL["PRECALL"] = lambda stack, arg: stack
    SPECIAL["CALL"] = lambda stack, arg: stack[: -arg - 2] + VALUE
else:
    SPECIAL["LOAD_ATTR"] = lambda stack, arg: stack[:-1] + (_METHOD if arg & 1 else VALUE)
    SPECIAL["LOAD_SUPER_ATTR"] = lambda stack, arg: stack[:-3] + (_METHOD if arg & 1 else VALUE)


def after(opcode: int, arg: int, stack: str, jump: bool) -> str:
    """The stack behind one instruction."""
    name = DECODING[opcode][0]
    special = SPECIAL.get(name)
    if special is not None:
        return special(stack, arg)
    effect = _opcode.stack_effect(opcode, arg if DECODING[opcode][2] else None, jump=jump)
    if name in POP_ONLY or (jump and effect < 0):
        return stack[: len(stack) + effect]
    if effect > 0:
        return stack + VALUE * effect
    return stack[: len(stack) + effect - 1] + VALUE


def _join(first: str, second: str) -> str:
    if len(first) != len(second):
        raise ValueError(f"paths meet with different stacks, {first!r} and {second!r}")
    return "".join(a if a == b else EITHER for a, b in zip(first, second, strict=True))


def flow(
    operations: Sequence[tuple[int, int, int]], handlers: Sequence[Handler | None], generator: bool
) -> list[str | None]:
    """The stack before each of (opcode, arg, target); `handlers` per operation."""
    before: list[str | None] = [None] * len(operations)
    work: list[int] = []

    def reach(index: int, stack: str) -> None:
        known = before[index]
        joined = stack if known is None or known == stack else _join(known, stack)
        if joined != known:
            before[index] = joined
            work.append(index)

    reach(0, "")
    while work:
        index = work.pop()
        stack = before[index]
        assert stack is not None
        opcode, arg, target = operations[index]
        name = DECODING[opcode][0]
        handler = handlers[index]
        if handler is not None and name not in CANNOT_RAISE:
            reach(handler.target, stack[: handler.depth] + (POSITION if handler.lasti else "") + VALUE)
        if name == "RETURN_GENERATOR" and generator and VERSION < (3, 13):
            stack += VALUE  # what the first send() brings; `stack_effect` leaves it out
        if target >= 0:
            reach(target, after(opcode, arg, stack, True))
        if name not in NO_FALL_THROUGH:
            reach(index + 1, after(opcode, arg, stack, False) if name != "RETURN_GENERATOR" else stack)
    return before


def stack_slots(decoded: DecodedCode) -> list[str | None]:
    """The stack before each instruction."""
    rows = [(row.opcode, row.arg, row.target) for row in decoded.instructions]
    return flow(rows, decoded.handler_of, bool(decoded.flags & 0x2A0))


def stack_size(decoded: DecodedCode) -> int:
    """The deepest stack of the code, by the flow through its instructions."""
    deepest = 0
    for row, stack in zip(decoded.instructions, stack_slots(decoded), strict=True):
        if stack is not None:
            leaves = row.opname in NO_FALL_THROUGH or row.opname == "RETURN_GENERATOR"
            deepest = max(deepest, len(stack), 0 if leaves else len(after(row.opcode, row.arg, stack, False)))
    return deepest
