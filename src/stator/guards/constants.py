"""When two constants are the same: what EQUALS, KEYS, MEMBERS and KEY mean by "equal".

Contract. `same_constant(value, expected)` holds when both have the same exact type and the same value, floats bit
by bit (so `0.0` is not `-0.0`, `1` is not `True`). Containers (tuples and their subclasses, frozensets, slices,
ranges) compare by their C storage, member by member. Every other object is the same only when it *is* the same, so
that no `__eq__` or `__hash__` of a user's type can run. The native core (`_native/core/constants.c`) implements the
same relation; tests compare the two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import torch

# Exact types without parts, compared by their own C equality.
PLAIN_TYPES = frozenset({int, bool, str, bytes, torch.device})
NUMBER_TYPES = frozenset({float, complex})
# Everything whose instances can be told apart by value; the others are told apart by identity.
VALUE_TYPES = PLAIN_TYPES | NUMBER_TYPES | {tuple, frozenset, slice, range, torch.Size}


class _Dead:
    """What no value is: stands for an object that died."""


DEAD = _Dead()


def _bits(value: float | complex) -> bytes:
    if isinstance(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    return struct.pack("<d", value)


def same_members(value: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Whether the members of two sets can be paired off; hashes nothing."""
    left = list(expected)
    for member in value:
        for position, candidate in enumerate(left):
            if same_constant(member, candidate):
                del left[position]
                break
        else:
            return False
    return not left


def same_constant(value: Any, expected: Any) -> bool:
    """The relation of the module docstring."""
    if value is expected:
        return True
    kind = type(expected)
    if type(value) is not kind:
        return False
    if kind in PLAIN_TYPES:
        return bool(value == expected)
    if kind in NUMBER_TYPES:
        return _bits(value) == _bits(expected)
    if kind is slice or kind is range:
        return all(same_constant(getattr(value, part), getattr(expected, part)) for part in ("start", "stop", "step"))
    if issubclass(kind, tuple):
        return tuple.__len__(value) == tuple.__len__(expected) and all(
            map(same_constant, tuple.__iter__(value), tuple.__iter__(expected))
        )
    if kind is frozenset:
        return same_members(frozenset.__iter__(value), frozenset.__iter__(expected))
    return False


def is_value(constant: Any) -> bool:
    """Whether a constant is compared by value all the way down (else: by identity somewhere)."""
    kind = type(constant)
    if kind in PLAIN_TYPES or kind in NUMBER_TYPES or constant is None or constant is Ellipsis:
        return True
    if kind is slice or kind is range:
        return all(is_value(getattr(constant, part)) for part in ("start", "stop", "step"))
    if issubclass(kind, tuple):
        return all(map(is_value, tuple.__iter__(constant)))
    if kind is frozenset:
        return all(map(is_value, constant))
    return False
