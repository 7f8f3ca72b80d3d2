"""A copy of a code object whose call sites ask a helper what to call.

Contract. `calls_redirected(code, helper)` behaves as `code` does, but each CALL, CALL_KW and CALL_FUNCTION_EX calls
`helper(callable)` in place of `callable`. This is how a frame that must itself run uncompiled (`skip_frame`,
`disable(recursive=False)`, a recompile limit) still gets its Python callees compiled without a frame-evaluation hook.
Lines, columns, handlers and the order of evaluation stay; the helper runs after the arguments are evaluated. Where the
method form of a load leaves "NULL or self" to run time it is turned into the plain form, which means the same and costs
a bound method, so that where the callable lies is known from the code alone. Implicit calls (operators, iteration,
`with`) are left as they are.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from stator.bytecode.assemble import Operation, insert, operation, operations_of, rebuild
from stator.bytecode.decode import Instruction, decode
from stator.bytecode.stack import EITHER, NULL, stack_slots
from stator.bytecode.tables import Location
from stator.bytecode.versions import VERSION

_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}


def _callable_depth(row: Instruction, stack: str) -> int:
    """How far from the top the callable lies, 1 for the top, before a call."""
    if row.opname == "CALL_FUNCTION_EX":
        if VERSION >= (3, 13):
            return 3 + (row.arg & 1 if VERSION < (3, 14) else 1)
        return 2 + (row.arg & 1)
    if VERSION >= (3, 13):
        return row.arg + 2 + (row.opname == "CALL_KW")
    return row.arg + (1 if stack[-row.arg - 2] in (NULL, EITHER) else 2)


def call_operations(arguments: int, location: Location) -> list[Operation]:
    """The instructions that call with positional arguments."""
    call = operation("CALL", arguments, location=location)
    return [operation("PRECALL", arguments, location=location), call] if VERSION < (3, 12) else [call]


def _ask(depth: int, helper: int, location: Location) -> list[Operation]:
    """Replace the callable `depth` below the top by what the helper, a constant, says."""
    if VERSION >= (3, 13):
        load = [operation("LOAD_CONST", helper, location=location), operation("PUSH_NULL", location=location)]
    else:
        load = [operation("PUSH_NULL", location=location), operation("LOAD_CONST", helper, location=location)]
    return [
        *load,
        operation("COPY", depth + 2, location=location),
        *call_operations(1, location),
        operation("SWAP", depth + 1, location=location),
        operation("POP_TOP", location=location),
    ]


def _plain_loads(row: Instruction, written: Operation) -> list[Operation]:
    """Turn a method load into `written`, a plain one; what has to stand in front of it."""
    here = written.location
    if row.opname == "LOAD_METHOD":
        written.opcode = operation("LOAD_ATTR").opcode
    else:
        written.arg &= ~1
    if VERSION >= (3, 13) or row.opname == "LOAD_SUPER_ATTR":
        return []
    return [operation("PUSH_NULL", location=here), operation("SWAP", 2, location=here)]


def _behind(row: Instruction, location: Location) -> list[Operation]:
    """What has to stand behind a method load that became a plain one."""
    if VERSION >= (3, 13):
        return [operation("PUSH_NULL", location=location)]
    if row.opname == "LOAD_SUPER_ATTR":
        return [operation("PUSH_NULL", location=location), operation("SWAP", 2, location=location)]
    return []


def calls_redirected(code: types.CodeType, helper: Callable[[Any], Any]) -> types.CodeType:
    """A copy of `code` that calls `helper(callable)` wherever `code` calls `callable`."""
    decoded = decode(code)
    written = operations_of(decoded)
    stacks = stack_slots(decoded)
    before: dict[int, list[Operation]] = {}
    constant = len(code.co_consts)
    for row, stack in zip(decoded.instructions, stacks, strict=True):
        if stack is None:
            continue
        location = written[row.index].location
        if row.is_method:
            before.setdefault(row.index, []).extend(_plain_loads(row, written[row.index]))
            before.setdefault(row.index + 1, []).extend(_behind(row, location))
        elif row.opname in _CALLS:
            # KW_NAMES and PRECALL belong to the call: nothing may come between.
            first = row.index
            while decoded.instructions[first - 1].opname in ("KW_NAMES", "PRECALL"):
                first -= 1
            before.setdefault(first, []).extend(_ask(_callable_depth(row, stack), constant, location))
    operations, handlers = insert(written, decoded.exceptions, before)
    return rebuild(code, operations, handlers, co_consts=(*code.co_consts, helper), co_stacksize=code.co_stacksize + 4)
