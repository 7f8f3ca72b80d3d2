"""Leaving guards out because the program promises what they check: `options={"guard_filter_fn": ...}`.

Contract. A filter gets one `GuardEntry` for each guard of a new entry and answers with one truth value for each: false
drops the guard. Entries have the fields that filters written for torch.compile read, and the kinds of stator's guards
go by torch's names for them (`GUARD_TYPES`), so such filters, and torch's own ready-made ones, work here too. A dropped
guard is gone for good: the promise is the caller's, and what does not keep it gives wrong results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stator.exc import InvalidOption
from stator.guards.reference import Evaluation
from stator.guards.storage import Unreachable
from stator.values.source import Guard, Source, SourceTree

# What torch calls a guard of that kind.
GUARD_TYPES = {
    "TYPE_IS": "TYPE_MATCH",
    "IS": "ID_MATCH",
    "IS_NOT": "NOT_NONE_MATCH",
    "EQUALS": "EQUALS_MATCH",
    "LENGTH": "SEQUENCE_LENGTH",
    "KEYS": "DICT_KEYS_MATCH",
    "HAS_KEY": "DICT_CONTAINS",
    "LACKS_KEY": "DICT_CONTAINS",
    "MEMBERS": "SET_CONTAINS",
    "LACKS_ATTR": "NOT_PRESENT_IN_GENERIC_DICT",
    "LOOKUP_ABSENT": "NOT_PRESENT_IN_GENERIC_DICT",
    "TENSOR": "TENSOR_MATCH",
    "MODULE_CALL": "EMPTY_NN_MODULE_HOOKS_DICT",
    "CODE_IS": "CLOSURE_MATCH",
    "SAME": "DUPLICATE_INPUT",
    "DIFFERENT": "DUPLICATE_INPUT",
    "MODES": "GLOBAL_STATE",
    "SIZES": "SHAPE_ENV",
    "RANGE": "SHAPE_ENV",
    "ITERATOR": "TYPE_MATCH",
}


class SourceView:
    """What filters ask of a guard's source."""

    def __init__(self, source: Source, module: type | None) -> None:
        self.name = str(source)
        self._module = module

    def is_unspecialized_nn_module(self) -> bool:
        """Whether it is a module or reached through one."""
        return self._module is not None

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """Whether the module it is, or is reached through, is one of torch's own classes."""
        return self._module is not None and self._module.__module__.startswith(("torch.nn.", "torch.ao."))


@dataclass(frozen=True)
class GuardView:
    """A guard as filters see it behind `orig_guard`."""

    source: SourceView
    user_stack: Any = None

    @property
    def name(self) -> str:
        return self.source.name


@dataclass(frozen=True)
class GuardEntry:
    """One guard, for a filter to keep or drop."""

    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: GuardView


GuardFilter = Callable[[list[GuardEntry]], Iterable[bool]]


def _module_of(source: Source, evaluation: Evaluation) -> type | None:
    """The class of the nearest module on the way to a source, itself included."""
    node: Source | None = source
    while node is not None and node.step != "STATE":
        try:
            value = evaluation.value(node)
        except Unreachable:
            return None
        if isinstance(value, torch.nn.Module):
            return type(value)
        node = node.parent
    return None


def _entry(guard: Guard, evaluation: Evaluation) -> GuardEntry:
    view = GuardView(SourceView(guard.source, _module_of(guard.source, evaluation)))
    value, known = None, False
    if guard.source.step != "STATE":
        try:
            value, known = evaluation.value(guard.source), True
        except Unreachable:
            pass
    kind = GUARD_TYPES[guard.kind]
    return GuardEntry(view.name, known, value, kind, (kind,), guard.source.is_global(), view)


def drop_unwanted(tree: SourceTree, wanted: GuardFilter, function: Any, arguments: tuple[Any, ...]) -> None:
    """Take the guards a filter refuses out of a tree."""
    guards = list(tree.guards())
    evaluation = Evaluation(function, arguments)
    flags = list(wanted([_entry(guard, evaluation) for guard in guards]))
    if len(flags) != len(guards):
        raise InvalidOption(f"guard_filter_fn answered for {len(flags)} guards, and was asked about {len(guards)}")
    for guard, keep in zip(guards, flags, strict=True):
        if not keep:
            rows = guard.source.guards
            del rows[next(handle for handle, row in rows.items() if row is guard)]


def keep_portable_guards_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Keep guards on tensors that are no globals, on sizes, and on global modes."""
    return [
        entry.guard_type in ("GLOBAL_STATE", "SHAPE_ENV")
        or (entry.guard_type == "TENSOR_MATCH" and not entry.is_global)
        for entry in guard_entries
    ]


def skip_guard_on_inbuilt_nn_modules_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Drop guards on modules of torch's own classes, and on what they hold."""
    return [not entry.orig_guard.source.is_unspecialized_builtin_nn_module() for entry in guard_entries]


def skip_guard_on_all_nn_modules_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Drop guards on modules and on what they hold."""
    return [not entry.orig_guard.source.is_unspecialized_nn_module() for entry in guard_entries]


def keep_tensor_guards_unsafe(guard_entries: list[GuardEntry], keep_parameters: bool = False) -> list[bool]:
    """Keep guards on tensors alone; on parameters only with `keep_parameters`."""
    return [
        entry.guard_type == "TENSOR_MATCH" and (keep_parameters or not isinstance(entry.value, torch.nn.Parameter))
        for entry in guard_entries
    ]


def skip_guard_on_globals_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Drop guards on what the program reaches by a global name."""
    return [not entry.is_global for entry in guard_entries]


def skip_all_guards_unsafe(guard_entries: list[GuardEntry]) -> list[bool]:
    """Drop every guard: the first compiled entry is used for every later call."""
    return [False for _ in guard_entries]
