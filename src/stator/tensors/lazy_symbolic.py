"""Keeps torch's Python shape functions from importing sympy.

Contract. Torch's meta kernels and decompositions import a handful of helpers from
`torch.fx.experimental.symbolic_shapes` when they run, 0.8 s the first time, to ask things like "is this condition
true" of what are nearly always plain booleans. `install()` puts a lazy module in that place, if the real one is not
loaded: it has those helpers (for plain values, and for symbolic ones by the methods their nodes have anyway), and
loads the real module on the first access to anything else, then steps aside. Nothing changes for other users of it.

Type promotion in those decompositions imports sympy itself, to ask whether an argument is an expression of it. Where
nobody has imported sympy there are no such expressions, so its import is given another name, `_Expressions`.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._prims_common

_NAME = "torch.fx.experimental.symbolic_shapes"
_EXPRESSIONS = "_stator_sympy_if_loaded"
_lock = threading.RLock()


def _decide(question: str) -> Callable[[Any], bool]:
    def decide(condition: Any) -> bool:
        if isinstance(condition, torch.SymBool):
            return bool(getattr(condition.node, question)("", 0))
        return bool(condition)

    return decide


guard_or_false = _decide("guard_or_false")
guard_or_true = _decide("guard_or_true")
guard_size_oblivious = _decide("guard_size_oblivious")
statically_known_true = _decide("statically_known_true")


def expect_true(condition: Any, skip: int = 0) -> bool:
    """Whether a condition holds, or a promise that it will."""
    if isinstance(condition, torch.SymBool):
        return bool(condition.node.expect_true("", 0))
    return bool(condition)


def sym_and(first: Any, *others: Any) -> Any:
    """All of them, without deciding."""
    return functools.reduce(operator.and_, others, first)


def sym_or(first: Any, *others: Any) -> Any:
    """Any of them, without deciding."""
    return functools.reduce(operator.or_, others, first)


def sym_eq(first: Any, second: Any) -> Any:
    """Equality of numbers, or of sequences of them, without deciding."""
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        if len(first) != len(second):
            return False
        return functools.reduce(operator.and_, map(sym_eq, first, second), True)
    return first == second


def is_nested_int(value: Any) -> bool:
    """Whether a size is the ragged one of a nested tensor."""
    return isinstance(value, torch.SymInt) and bool(value.node.is_nested_int())


def _symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(map(_symbolic, (*value.shape, *value.stride(), value.storage_offset())))
    if isinstance(value, (tuple, list)):
        return any(map(_symbolic, value))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def free_unbacked_symbols(value: Any) -> Any:
    """Symbols without a hint in sizes: none where nothing is symbolic."""
    return _load().free_unbacked_symbols(value) if _symbolic(value) else set()


_HELPERS: dict[str, Any] = {
    helper.__name__: helper for helper in (expect_true, free_unbacked_symbols, sym_and, sym_or, sym_eq, is_nested_int)
} | {
    "guard_or_false": guard_or_false,
    "guard_or_true": guard_or_true,
    "guard_size_oblivious": guard_size_oblivious,
    "statically_known_true": statically_known_true,
}


class _LazyModule(types.ModuleType):
    """Stands in `sys.modules` until somebody needs the whole."""

    def __getattr__(self, name: str) -> Any:
        if name in _HELPERS:
            return _HELPERS[name]
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return getattr(_load(), name)

    def __dir__(self) -> Sequence[str]:
        return dir(_load())


def _load() -> types.ModuleType:
    """The real module, in its place."""
    with _lock:
        if isinstance(sys.modules.get(_NAME), _LazyModule):
            del sys.modules[_NAME]
        return importlib.import_module(_NAME)


class _NoExpression:
    """The class of sympy's expressions while there are none."""


class _Expressions(types.ModuleType):
    """sympy as far as it is loaded: before that, `Basic` has no instances."""

    def __getattr__(self, name: str) -> Any:
        if name == "Basic":
            return getattr(sys.modules.get("sympy"), name, _NoExpression)
        raise AttributeError(name)


def _rename_sympy(function: Any) -> None:
    code = function.__code__
    if _EXPRESSIONS not in sys.modules and "sympy" in code.co_names:
        sys.modules[_EXPRESSIONS] = _Expressions(_EXPRESSIONS)
        names = tuple(_EXPRESSIONS if name == "sympy" else name for name in code.co_names)
        function.__code__ = code.replace(co_names=names)


def install() -> None:
    """Put the lazy module in place unless the real one is loaded."""
    with _lock:
        _rename_sympy(torch._prims_common.elementwise_dtypes)
        if _NAME not in sys.modules:
            module = _LazyModule(_NAME, __doc__)
            module.__package__ = _NAME.rpartition(".")[0]
            sys.modules[_NAME] = module
