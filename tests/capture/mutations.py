"""Every place where the world of a program could change between two calls, and a change for each.

`places(roots)` walks what is reachable from arguments, globals and classes, in an order that only depends on their
structure, and yields `Change`s: making one and undoing it. What a guard forgot shows when compiled code, called after a
change, does not do what eager code does.
"""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch


class Change(NamedTuple):
    """One change to the world."""

    where: str
    make: Callable[[], Any]
    undo: Callable[[], Any]


MISSING = object()


def flipped(value: Any) -> Any:
    """Another value of the kind, or MISSING."""
    kind = type(value)
    if kind is bool:
        return not value
    if kind in (int, float):
        return value + 1
    if kind is str:
        return value + "x"
    if value is None:
        return 3
    if kind is tuple and value:
        last = flipped(value[-1])
        return MISSING if last is MISSING else (*value[:-1], last)
    if isinstance(value, enum.Enum):
        members = list(type(value))
        return members[(members.index(value) + 1) % len(members)] if value in members else MISSING
    if kind is torch.Tensor and value.is_floating_point():
        return value.detach().double()
    if kind is types.FunctionType:
        return other_function
    return MISSING


def other_function(*args: Any, **kwargs: Any) -> Any:
    """Stands in for any function."""
    return 17


def _setter(container: Any, key: Any, value: Any) -> Callable[[], None]:
    def make() -> None:
        if isinstance(container, dict):
            dict.__setitem__(container, key, value)
        elif isinstance(container, list):
            list.__setitem__(container, key, value)
        else:
            container[key] = value

    return make


def _in_dict(container: dict[Any, Any], path: str) -> Iterator[Change]:
    put = OrderedDict if isinstance(container, OrderedDict) else dict
    for key, value in list(dict.items(container)):
        other = flipped(value)
        if other is not MISSING:
            yield Change(f"{path}[{key!r}]", _setter(container, key, other), _setter(container, key, value))
        items = list(dict.items(container))

        def restore(items: Any = items) -> None:
            put.clear(container)
            for name, held in items:
                put.__setitem__(container, name, held)

        yield Change(f"del {path}[{key!r}]", lambda key=key: put.__delitem__(container, key), restore)
    sample = next(iter(dict.values(container)), 1)
    yield Change(
        f"{path}['added']",
        lambda: put.__setitem__(container, "added", sample),
        lambda: put.__delitem__(container, "added"),
    )


def _in_list(container: Any, path: str) -> Iterator[Change]:
    base = list if isinstance(container, list) else deque
    for index, value in enumerate(base.__iter__(container)):
        other = flipped(value)
        if other is not MISSING:
            yield Change(f"{path}[{index}]", _setter(container, index, other), _setter(container, index, value))
    sample = container[-1] if len(container) else 1
    yield Change(f"{path}.append", lambda: base.append(container, sample), lambda: base.pop(container))


def _in_instance(value: Any, path: str) -> Iterator[Change]:
    names = object.__getattribute__(value, "__dict__")
    for name, held in list(names.items()):
        other = flipped(held)
        if other is not MISSING:
            yield Change(
                f"{path}.{name}",
                lambda name=name, other=other: dict.__setitem__(names, name, other),
                lambda name=name, held=held: dict.__setitem__(names, name, held),
            )
    for name in sorted({name for base in type(value).__mro__[:-1] for name in base.__dict__}):
        if not name.startswith("__") and name not in names:
            yield Change(
                f"{path}.{name} shadowed",
                lambda name=name: dict.__setitem__(names, name, other_function),
                lambda name=name: dict.__delitem__(names, name),
            )


def _in_class(cls: type, path: str) -> Iterator[Change]:
    for name, held in list(cls.__dict__.items()):
        if name.startswith("__") and name not in (
            "__eq__",
            "__add__",
            "__len__",
            "__bool__",
            "__call__",
            "__getattr__",
        ):
            continue
        other = flipped(held)
        if isinstance(held, property):
            other = property(other_function, held.fset, held.fdel)
        elif isinstance(held, (classmethod, staticmethod)):
            other = type(held)(other_function)
        if other is MISSING:
            continue
        yield Change(
            f"{path}.{name}",
            lambda name=name, other=other: type.__setattr__(cls, name, other),
            lambda name=name, held=held: type.__setattr__(cls, name, held),
        )


def places(roots: dict[str, Any], module: str) -> Iterator[Change]:
    """Changes to everything reachable; classes of `module` alone."""
    seen: set[int] = set()
    pending = list(roots.items())
    kept = []
    while pending:
        path, value = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if isinstance(value, (torch.Tensor, types.ModuleType, enum.Enum)):
            continue
        if isinstance(value, type):
            if value.__module__ == module and not issubclass(value, enum.Enum):
                yield from _in_class(value, path)
                pending += [(base.__name__, base) for base in value.__bases__]
            continue
        if isinstance(value, dict):
            yield from _in_dict(value, path)
            pending += [(f"{path}[{key!r}]", held) for key, held in dict.items(value)]
        elif isinstance(value, (list, deque)):
            yield from _in_list(value, path)
            base = list if isinstance(value, list) else deque
            pending += [(f"{path}[{index}]", held) for index, held in enumerate(base.__iter__(value))]
        elif isinstance(value, tuple):
            pending += [(f"{path}[{index}]", held) for index, held in enumerate(tuple.__iter__(value))]
        elif isinstance(value, types.FunctionType):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                pending.append((f"{path}.{name}", cell.cell_contents))
            continue
        if type(value).__module__ == module and hasattr(value, "__dict__"):
            if not isinstance(value, dict):
                yield from _in_instance(value, path)
                names = object.__getattribute__(value, "__dict__")
                pending += [(f"{path}.{name}", held) for name, held in list(names.items())]
            pending.append((type(value).__name__, type(value)))


def names_used(code: types.CodeType) -> set[str]:
    """Globals that a code object and those inside it may read."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_used(constant)
    return found


def global_places(function: types.FunctionType) -> Iterator[Change]:
    """Changes to the globals a program reads."""
    space = function.__globals__
    for name in sorted(names_used(function.__code__)):
        if name not in space or isinstance(space[name], (types.ModuleType, type)):
            continue
        held = space[name]
        other = flipped(held)
        if other is not MISSING:
            yield Change(f"global {name}", _setter(space, name, other), _setter(space, name, held))


def all_places(function: types.FunctionType, args: tuple[Any, ...]) -> list[Change]:
    """Every change there is for a call."""
    module = function.__globals__["__name__"]
    space = function.__globals__
    roots: dict[str, Any] = {f"argument {index}": value for index, value in enumerate(args)}
    for name in sorted(names_used(function.__code__)):
        value = space.get(name)
        if isinstance(value, type) and value.__module__ == module:
            roots[name] = value
    return [*places(roots, module), *global_places(function)]
