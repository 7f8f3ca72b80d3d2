"""What differs between CPython versions, once: how each instruction's argument is read.

Contract. `ARGUMENTS` says per opcode name what its argument means on the running version; names a version lacks are
simply absent from its `opmap`. Everything else in `bytecode/` is generic over this table, so that a new CPython is
new rows and no new handler. Rows cover 3.11 and 3.12, and the renamed and combined opcodes of 3.13 and 3.14.

    kind        value of the instruction
    CONST       the constant
    NAME        a name (`shift` low bits of the argument are flags)
    LOCAL       the name of the local, cell or free variable in that slot of the frame ("localsplus")
    PAIR        two such names, slots in the argument's two nibbles
    COMPARE     '<', '<=', ... (`shift` low bits are flags)
    BINARY      '+', '+=', ...
    CHOICE      one of two words, by the argument
    LISTED      the argument-th entry of a list in the `opcode` module
    SMALL       the argument itself
    FORWARD / BACKWARD   none; the argument is a distance in code units from behind the instruction and its caches
    PLAIN       none
"""

from __future__ import annotations

import opcode as _opcode
import sys
from enum import IntEnum
from typing import Any, NamedTuple

VERSION = sys.version_info[:2]


class Kind(IntEnum):
    """How an argument is read; the module docstring is the key."""

    PLAIN = 0
    CONST = 1
    NAME = 2
    LOCAL = 3
    PAIR = 4
    COMPARE = 5
    BINARY = 6
    CHOICE = 7
    LISTED = 8
    SMALL = 9
    FORWARD = 10
    BACKWARD = 11


class Argument(NamedTuple):
    """One row: the kind, the number of low flag bits, what the lowest flag means, and words to choose from."""

    kind: Kind
    shift: int = 0
    flag: str = ""
    words: tuple[Any, ...] = ()


def _words(name: str) -> tuple[Any, ...]:
    """A private list of the `opcode` module, where this version has it."""
    return tuple(getattr(_opcode, name, None) or ())


def _from(first: tuple[int, int], row: Argument, before: Argument) -> Argument:
    return row if first <= VERSION else before


_NAME = Argument(Kind.NAME)
_LOCAL = Argument(Kind.LOCAL)
_PAIR = Argument(Kind.PAIR)
_CONST = Argument(Kind.CONST)
_FORWARD = Argument(Kind.FORWARD)
_BACKWARD = Argument(Kind.BACKWARD)
_COMPARISONS = tuple(_opcode.cmp_op)

ARGUMENTS: dict[str, Argument] = {
    **dict.fromkeys(("LOAD_CONST", "KW_NAMES", "RETURN_CONST", "LOAD_CONST_IMMORTAL"), _CONST),
    **dict.fromkeys(
        (
            "STORE_NAME", "DELETE_NAME", "LOAD_NAME", "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL",
            "IMPORT_NAME", "IMPORT_FROM", "LOAD_FROM_DICT_OR_GLOBALS",
        ),
        _NAME,
    ),
    "LOAD_GLOBAL": Argument(Kind.NAME, 1, "push_null"),
    "LOAD_ATTR": _from((3, 12), Argument(Kind.NAME, 1, "is_method"), _NAME),
    "LOAD_METHOD": Argument(Kind.NAME, 0, "always_method"),
    "LOAD_SUPER_ATTR": Argument(Kind.NAME, 2, "is_method"),
    **dict.fromkeys(
        (
            "LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW",
            "MAKE_CELL", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF",
            "LOAD_FROM_DICT_OR_DEREF",
        ),
        _LOCAL,
    ),
    **dict.fromkeys(
        (
            "LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST",
            "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
        ),
        _PAIR,
    ),
    "COMPARE_OP": Argument(Kind.COMPARE, 5 if VERSION >= (3, 13) else 4 if VERSION >= (3, 12) else 0, "", _COMPARISONS),
    "BINARY_OP": Argument(Kind.BINARY, 0, "", tuple(symbol for _, symbol in _words("_nb_ops"))),
    "IS_OP": Argument(Kind.CHOICE, 0, "", ("is", "is not")),
    "CONTAINS_OP": Argument(Kind.CHOICE, 0, "", ("in", "not in")),
    "CALL_INTRINSIC_1": Argument(Kind.LISTED, 0, "", _words("_intrinsic_1_descs")),
    "CALL_INTRINSIC_2": Argument(Kind.LISTED, 0, "", _words("_intrinsic_2_descs")),
    "LOAD_COMMON_CONSTANT": Argument(Kind.LISTED, 0, "", _words("_common_constants")),
    "LOAD_SPECIAL": Argument(Kind.LISTED, 0, "", _words("_special_method_names")),
    "LOAD_SMALL_INT": Argument(Kind.SMALL),
    **dict.fromkeys(
        (
            "FOR_ITER", "SEND", "JUMP_FORWARD", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP",
            "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_NONE",
            "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_NONE",
            "POP_JUMP_IF_NOT_NONE",
        ),
        _FORWARD,
    ),
    **dict.fromkeys(
        (
            "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_TRUE",
            "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
        ),
        _BACKWARD,
    ),
}  # fmt: skip

_PLAIN = Argument(Kind.PLAIN)

OPCODES: dict[str, int] = {name: number for name, number in _opcode.opmap.items() if number < 256}
# From 3.13 on this number is the last opcode without argument, before it was the first with one.
HAVE_ARGUMENT: int = _opcode.HAVE_ARGUMENT + (VERSION >= (3, 13))
EXTENDED_ARG: int = OPCODES["EXTENDED_ARG"]


def _cache_units() -> list[int]:
    entries: Any = _opcode._inline_cache_entries  # type: ignore[attr-defined]
    units = [0] * 256
    if isinstance(entries, dict):
        for name, count in entries.items():
            if name in OPCODES:
                units[OPCODES[name]] = count
    else:
        units[: len(entries)] = entries[:256]
    return units


CACHE_UNITS: list[int] = _cache_units()
NAMES: list[str] = [f"<{number}>" for number in range(256)]
for _name, _number in OPCODES.items():
    NAMES[_number] = _name

# opcode -> (name, caches, has an argument, kind, shift, flag, words); what the decoder's loop reads.
DECODING: list[tuple[str, int, bool, int, int, str, tuple[Any, ...]]] = []
for _number, _name in enumerate(NAMES):
    _row = ARGUMENTS.get(_name, _PLAIN)
    DECODING.append(
        (_name, CACHE_UNITS[_number], _number >= HAVE_ARGUMENT, int(_row.kind), _row.shift, _row.flag, _row.words)
    )
