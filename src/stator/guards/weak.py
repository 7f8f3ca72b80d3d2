"""What an entry is about without keeping it alive.

Contract. `weaken(tree)` replaces every user object a tree holds only to compare it by identity (constants that are
roots, IS guards, keys of dicts) by a `Weak`, which knows how to name it once it is gone. A compiled tree is
kept for the explanation of misses alone, and must not be what keeps a model alive. `strongly` is the way back.

The native program holds the same objects weakly (`is_held_weakly` decides for both), and its entry leaves its table as
soon as one of them dies.
"""

from __future__ import annotations

import types
import weakref
from dataclasses import replace
from typing import Any

from stator.guards.constants import DEAD, is_value
from stator.guards.storage import issubclass_exact
from stator.values.source import Guard, Source, SourceTree

_weak_offset_of = type.__dict__["__weakrefoffset__"].__get__
_HELD_STRONGLY = (
    types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType, types.WrapperDescriptorType,
)  # fmt: skip
# Guards whose expectation is compared by identity (KEYS: member by member).
IDENTITY_KINDS = frozenset({"IS", "HAS_KEY", "LACKS_KEY"})


class Weak:
    """A user's object, by weak reference, and its name."""

    __slots__ = ("reference", "text")

    def __init__(self, value: Any) -> None:
        self.reference = weakref.ref(value)
        self.text = value.__qualname__ if type(value) is types.FunctionType else f"{type(value).__name__} object"

    def __repr__(self) -> str:
        return self.text


def is_held_weakly(value: object) -> bool:
    """Whether an entry refers to this object without keeping it alive: types, modules and builtins live anyway."""
    kind = type(value)
    if kind in _HELD_STRONGLY or issubclass_exact(kind, type) or issubclass_exact(kind, types.ModuleType):
        return False
    return bool(_weak_offset_of(kind)) and not is_value(value)


def weakly(value: Any) -> Any:
    """The object as a weakened tree holds it."""
    return Weak(value) if is_held_weakly(value) else value


def strongly(value: Any) -> Any:
    """The object behind what `weakly` made; DEAD if it is gone."""
    if type(value) is not Weak:
        return value
    found = value.reference()
    return DEAD if found is None else found


def expected_now(guard: Guard) -> Any:
    """A guard's expectation with its objects revived."""
    if guard.kind in IDENTITY_KINDS:
        return strongly(guard.expected)
    if guard.kind == "KEYS":
        return tuple(map(strongly, guard.expected))
    return guard.expected


def _weaken_guard(guard: Guard) -> Guard:
    if guard.kind in IDENTITY_KINDS:
        return replace(guard, expected=weakly(guard.expected))
    if guard.kind == "KEYS":
        return replace(guard, expected=tuple(map(weakly, guard.expected)))
    return guard


def _weaken_node(node: Source) -> None:
    # The dicts' own keys hold objects too; a finished tree is walked, never looked up.
    node.guards = dict(enumerate(map(_weaken_guard, node.guards.values())))
    node.children = dict(enumerate(node.children.values()))
    if node.step in ("CONST", "KEY"):
        name = str(node) if node.step == "CONST" else ""
        node.key = weakly(node.key)
        if name:
            node.tree.const_names[id(node.key)] = name


def weaken(tree: SourceTree) -> None:
    """Let go of the user's objects; the tree is finished after this."""
    for node in list(tree.nodes()):
        _weaken_node(node)
    tree.roots = dict(enumerate(tree.roots.values()))
