"""The instance `__dict__` of an object from outside, as the program sees it.

Contract. `obj.__dict__` and `vars(obj)` of an outside object give an `InstanceDict`: reading an entry is reading an
attribute past the descriptors (with the same source and guard), writing one goes to the overlay. Looking at all of it
(iterating, copying, comparing) guards the names it has and gives a snapshot. Copying the dict as other containers are
would load, and guard, every attribute of an object of which one is wanted.
"""

from __future__ import annotations

from typing import Any

from stator.capture.control import Break, UserException
from stator.capture.state import TracerState
from stator.values.world import DELETED


class InstanceDict:
    """Stands for `target.__dict__`."""

    __slots__ = ("target",)

    def __init__(self, target: Any) -> None:
        self.target = target


class InstanceDictMethod:
    """A bound method of one."""

    __slots__ = ("name", "view")

    def __init__(self, view: InstanceDict, name: str) -> None:
        self.view = view
        self.name = name


MISSING = object()


class InstanceDicts(TracerState):
    """The instance dictionaries part of the tracer."""

    def own_attribute(self, target: Any, name: str) -> Any:
        """The instance attribute, pending writes first; MISSING if there is none."""
        written = self.world.written(target, name)
        if written is DELETED:
            return MISSING
        if written is not NotImplemented:
            return written
        original = self.world.original_of(target)
        names = object.__getattribute__(original, "__dict__")
        source = self.world.source_of(target)
        if name in names:
            return names[name] if source is None else self.world.load(names[name], source.child("ATTR", name))
        if source is not None and isinstance(name, str):
            self.world.guard_type(target)
            source.guard("LACKS_ATTR", name, self.location())
        return MISSING

    def instance_snapshot(self, view: InstanceDict) -> dict[str, Any]:
        """All of it, as a dict of the trace's own."""
        target = view.target
        original = self.world.original_of(target)
        names = object.__getattribute__(original, "__dict__")
        source = self.world.source_of(target)
        found: dict[str, Any] = {}
        if source is not None:
            source.child("DICT").guard("KEYS", tuple(names), self.location())
        for name in list(names):
            value = self.own_attribute(target, name)
            if value is not MISSING:
                found[name] = value
        overlay = self.world.overlays.get(id(target))
        if overlay is not None:
            for name, value in overlay.writes.items():
                if value is not DELETED:
                    found.setdefault(name, value)
        return found

    def call_instance_dict(self, method: InstanceDictMethod, args: list[Any], kwargs: dict[str, Any]) -> Any:
        view, name = method.view, method.name
        target = view.target
        if name in ("get", "__getitem__", "setdefault", "pop", "__contains__"):
            value = self.own_attribute(target, args[0])
            if name == "__contains__":
                return value is not MISSING
            if value is not MISSING:
                if name == "pop":
                    self.world.write_attribute(target, args[0], DELETED)
                return value
            if name == "__getitem__" or (name == "pop" and len(args) < 2):
                raise UserException(KeyError(args[0]))
            default = args[1] if len(args) > 1 else None
            if name == "setdefault":
                self.world.write_attribute(target, args[0], default)
            return default
        if name == "__setitem__":
            self.world.write_attribute(target, args[0], args[1])
            return None
        if name == "__delitem__":
            if self.own_attribute(target, args[0]) is MISSING:
                raise UserException(KeyError(args[0]))
            self.world.write_attribute(target, args[0], DELETED)
            return None
        if name == "update":
            for key, value in {**(self.pairs_of(args[0]) if args else {}), **kwargs}.items():
                self.world.write_attribute(target, key, value)
            return None
        if name in ("keys", "values", "items", "copy", "__iter__", "__len__", "__eq__", "__ne__", "__or__"):
            return self.call(self.load_attr(self.instance_snapshot(view), name), args, kwargs)
        raise Break("instance_dict", f"{name} of the __dict__ of a {type(target).__name__}")
