"""Which values are constants: immutable, free of references to anything mutable, compared by value or identity.

Contract. `guard_kind(value)` is "EQUALS" or "IS" for a constant and None for anything else. The interpreter lets
constants through as they are and guards them when they were loaded from outside and used.
"""

from __future__ import annotations

import enum
import operator
import re
import types
import typing
from typing import Any

import torch

from stator.values.arrays import is_dtype

BY_VALUE: frozenset[type] = frozenset({int, float, complex, str, bytes, torch.Size, range})
BY_IDENTITY: frozenset[type] = frozenset(
    {
        type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format,
        torch.qscheme, torch.finfo, torch.iinfo, types.BuiltinFunctionType, types.MethodDescriptorType,
        types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
        types.ClassMethodDescriptorType, types.ModuleType, operator.itemgetter, operator.attrgetter,
        operator.methodcaller, types.CodeType, types.GenericAlias, types.UnionType,
        re.Pattern, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    }
)  # fmt: skip
BY_TYPE_AND_TEXT: frozenset[type] = frozenset({torch.device})


def is_free(function: Any) -> bool:
    """Whether a builtin function is bound to nothing that has state (pybind11 binds functions to their description)."""
    owner = function.__self__
    return isinstance(owner, (type(None), type, types.ModuleType)) or type(owner).__name__.startswith("pybind11_")


def guard_kind(value: Any) -> str | None:
    """How a constant is compared, or None for what is no constant."""
    kind = type(value)
    if kind in BY_VALUE:
        return "EQUALS"
    if kind in BY_IDENTITY:
        if kind is types.BuiltinFunctionType and not is_free(value):
            return None  # bound to an object that may change
        return "IS"
    if kind in BY_TYPE_AND_TEXT:
        return "EQUALS"
    if issubclass(kind, (type, enum.Enum, types.ModuleType)):
        return "IS"
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return "EQUALS" if all(guard_kind(part) for part in parts) else None
    if kind is tuple or kind is frozenset:
        return "EQUALS" if all(guard_kind(part) == "EQUALS" or part is None for part in value) else None
    if _is_typing_form(value) or is_dtype(value):
        return "IS"
    return None


def _is_typing_form(value: Any) -> bool:
    return getattr(type(value), "__module__", None) == "typing" and type(value) is not typing.ForwardRef


def is_constant(value: Any) -> bool:
    """Whether `value` is immutable all the way down."""
    return guard_kind(value) is not None or (type(value) is tuple and all(map(is_constant, value)))
