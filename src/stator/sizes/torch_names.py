"""The functions of `torch.fx.experimental.symbolic_shapes` that torch's own shape code calls, for our sizes too.

Contract. `install()` makes the names in `PROVIDED` work on symbolic values of ours, and leaves what they do for any
other value as it was. torch's Python kernels and references (and `torch._check` itself, even on plain booleans) import
that module when they run, and importing it imports sympy, a third of a second in every process. So, if nobody has
imported it yet, a module of the same name stands in its place which holds these functions only; whoever asks it for
anything else gets the real module, loaded then and there, and from then on everybody does.

State: one entry of `sys.modules`, written once under a lock.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx.experimental

from stator.sizes.node import SizeNode

NAME = "torch.fx.experimental.symbolic_shapes"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_lock = threading.RLock()


def _node(value: Any) -> SizeNode | None:
    """Our node behind a symbolic value."""
    if isinstance(value, _SYMBOLIC) and isinstance(value.node, SizeNode):
        return value.node
    return None


def _values(value: Any) -> Iterator[Any]:
    """The symbolic values of ours in a number, a tensor or a collection of them."""
    if _node(value) is not None:
        yield value
    elif isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            for part in (*value.shape, *value.stride(), value.storage_offset()):
                yield from _values(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _values(part)


def _is_plain(value: Any) -> bool:
    """Whether nothing symbolic (of anybody) is in it, so that no other code needs to be asked."""
    if isinstance(value, torch.Tensor):
        return value.layout is not torch.strided or not value._has_symbolic_sizes_strides
    if isinstance(value, (tuple, list)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float))


# --- what each name does -----------------------------------------------------------------------------------------
def _same(value: Any) -> Any:
    return value


# name -> (on a node of ours, on a plain Python number)
ON_VALUES: dict[str, tuple[Callable[[SizeNode], Any], Callable[[Any], Any]]] = {
    "guard_or_false": (lambda node: node.guard_or_false("", 0), _same),
    "guard_or_true": (lambda node: node.guard_or_true("", 0), _same),
    "guard_size_oblivious": (lambda node: node.guard_size_oblivious("", 0), _same),
    "guard_bool": (lambda node: node.guard_bool("", 0), _same),
    "guard_int": (lambda node: node.guard_int("", 0), _same),
    "guard_float": (lambda node: node.guard_float("", 0), _same),
    "guard_scalar": (lambda node: node.evaluate(), _same),
    "expect_true": (lambda node: node.expect_true("", 0), _same),
    "statically_known_true": (lambda node: node.maybe_as_bool() is True, _same),
    "statically_known_false": (lambda node: node.maybe_as_bool() is False, operator.not_),
    "has_static_value": (lambda node: node._settled() is not None, lambda value: True),
    "is_concrete_int": (lambda node: node.expr.is_constant, lambda value: True),
    "is_concrete_float": (lambda node: node.expr.is_constant, lambda value: True),
    "is_concrete_bool": (lambda node: node.expr.is_constant, lambda value: True),
    "is_symbolic": (lambda node: True, lambda value: False),
    "is_nested_int": (lambda node: False, lambda value: False),
    "has_hint": (lambda node: node.has_hint(), lambda value: True),  # of torch 2.11, as is `size_hint`
    "size_hint": (lambda node: node.require_hint(), _same),
    "has_guarding_hint": (lambda node: node.has_hint(), lambda value: True),
    "guarding_hint_or_throw": (lambda node: node.require_hint(), _same),
    "optimization_hint": (lambda node: node.require_hint(8192), _same),
    "_advise_is_size": (lambda node: node.expect_size("", 0) and None, lambda value: None),
}


def _free_symbols(value: Any) -> Any:
    found: dict[Any, None] = {}
    for part in _values(value):
        found.update(dict.fromkeys(sorted(part.node.expr.symbols, key=lambda symbol: symbol.number)))
    return found.keys()


def _free_unbacked_symbols(value: Any) -> Any:
    found: dict[Any, None] = {}
    for part in _values(value):
        context, expr = part.node.context, part.node.expr
        simpler = context.simplified(expr)
        found.update(dict.fromkeys(symbol for symbol in simpler.symbols if context.is_unbacked_symint(symbol)))
    return found.keys()


# name -> function of a number, a tensor or a collection
ON_COLLECTIONS: dict[str, Callable[[Any], Any]] = {
    "free_symbols": _free_symbols,
    "free_unbacked_symbols": _free_unbacked_symbols,
    "has_free_symbols": lambda value: bool(_free_symbols(value)),
    "has_free_unbacked_symbols": lambda value: bool(_free_unbacked_symbols(value)),
}


def _constrain_range(value: Any, *, min: int | None = None, max: int | None = None) -> None:
    node = _node(value)
    assert node is not None
    node.context._constrain_range(node.expr, min, max)


def _constrain_range_for_size(value: Any, min: int | None = None, max: int | None = None) -> None:
    _constrain_range(value, min=0 if min is None else min, max=max)


def _advise_is_bounded(value: Any, upper_bound: Any) -> None:
    """`torch._check` said so already."""


# name -> function whose first argument is a symbolic int of ours
ON_INTEGERS: dict[str, Callable[..., Any]] = {
    "constrain_range": _constrain_range,
    "_constrain_range_for_size": _constrain_range_for_size,
    "_advise_is_bounded": _advise_is_bounded,
}


# these work on anybody's symbolic booleans, by operators alone
def sym_and(first: Any, *others: Any) -> Any:
    """`and` without a decision."""
    return functools.reduce(operator.and_, others, first)


def sym_or(first: Any, *others: Any) -> Any:
    """`or` without a decision."""
    return functools.reduce(operator.or_, others, first)


def sym_eq(left: Any, right: Any) -> Any:
    """`==` without a decision; of sequences, of all their parts."""
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        if len(left) != len(right):
            return False
        return functools.reduce(operator.and_, map(sym_eq, left, right), True)
    if isinstance(left, (int, torch.SymInt)) and isinstance(right, (int, torch.SymInt)):
        return left == right
    raise AssertionError(f"unexpected sym_eq between {type(left)} {type(right)}")


PROVIDED = (*ON_VALUES, *ON_COLLECTIONS, *ON_INTEGERS)
_BY_OPERATORS: dict[str, Callable[..., Any]] = {"sym_and": sym_and, "sym_or": sym_or, "sym_eq": sym_eq}


def _bridge(name: str, real: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The function of that name: ours for our values, a plain answer for plain ones, `real()` for all else."""
    if name in ON_VALUES:
        on_node, on_plain = ON_VALUES[name]

        def of_value(value: Any, *args: Any, **kwargs: Any) -> Any:
            node = _node(value)
            if node is not None:
                return on_node(node)
            return on_plain(value) if type(value) in (bool, int, float) else real()(value, *args, **kwargs)

        function: Callable[..., Any] = of_value
    elif name in ON_COLLECTIONS:
        ours = ON_COLLECTIONS[name]

        def of_collection(value: Any) -> Any:
            if next(_values(value), None) is not None or _is_plain(value):
                return ours(value)
            return real()(value)

        function = of_collection
    else:
        of_integer = ON_INTEGERS[name]

        def of_first(value: Any, *args: Any, **kwargs: Any) -> Any:
            return (real() if _node(value) is None else of_integer)(value, *args, **kwargs)

        function = of_first
    function.__name__ = function.__qualname__ = name
    function.__module__ = NAME
    return function


class _StandIn(types.ModuleType):
    """What is imported until somebody needs more of the module than we provide."""

    def __init__(self) -> None:
        super().__init__(NAME, "Stands in for the real module until more of it is needed than stator provides.")
        self.__package__ = NAME.rpartition(".")[0]
        self.__spec__ = None
        self.__dict__.update(_BY_OPERATORS)
        for name in PROVIDED:
            self.__dict__[name] = _bridge(name, lambda name=name: getattr(_load(self), name))  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return getattr(_load(self), name)


_real: types.ModuleType | None = None


def _load(stand_in: _StandIn) -> types.ModuleType:
    """The real module, put where the stand-in was."""
    global _real
    with _lock:
        if _real is None:
            if sys.modules.get(NAME) is stand_in:
                del sys.modules[NAME]
            _real = importlib.import_module(NAME)
            _extend(_real)
        return _real


def _extend(module: types.ModuleType) -> None:
    """Let the real module's functions accept our values."""
    for name in PROVIDED:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _bridge(name, lambda original=original: original))  # type: ignore[misc]


def install() -> None:
    """See the module's contract; doing it twice is doing it once."""
    global _real
    with _lock:
        if _real is not None:
            return
        loaded = sys.modules.get(NAME)
        if loaded is None:
            stand_in = _StandIn()
            sys.modules[NAME] = stand_in
            setattr(torch.fx.experimental, "symbolic_shapes", stand_in)
        elif not isinstance(loaded, _StandIn):
            _real = loaded
            _extend(loaded)
