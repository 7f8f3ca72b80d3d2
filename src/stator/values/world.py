"""What a trace knows of the user's objects: where each came from, private copies of containers, pending writes.

Contract. The interpreter's stack holds plain Python objects; this is the side table that says which of them are
the user's. An object is one of three things, and never changes sides:

    constant    immutable all the way down; guarded at its source when used
    outside     the user's: it has a source. Attribute writes go to the overlay. Builtin containers are met only
                as *shadows*, private copies that stand for them in all respects (identity too)
    own         made by the trace: it has no source and is changed freely; the residual program rebuilds it

Nothing here writes an outside object. What a trace did to outside objects is found at its end by comparing a shadow
with the snapshot taken when it was made (so it does not matter which code changed it) and by reading the overlay.

Reading is what makes a guard. Making a shadow guards the type alone; `read` guards the length and the constants in
it; single items are guarded by `read_item` where the interpreter knows that just one was looked at.

State belongs to one trace in one thread. Everything is held alive until the trace ends, so ids stay unique.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stator.events import Location
from stator.tensors.abstract import AbstractTensor
from stator.tensors.engine import from_real
from stator.values import arrays
from stator.values.constants import guard_kind, is_constant
from stator.values.source import Source, SourceTree

CONTAINERS = (list, dict, set, collections.deque, bytearray)
_SYMBOLIC = (torch.SymInt, torch.SymFloat)


class Missing:
    """A marker; `DELETED` stands for an attribute or key that was deleted during the trace."""

    def __repr__(self) -> str:
        return "<deleted>"


DELETED = Missing()


def entries(mapping: dict[Any, Any]) -> Any:
    """Keys and values in the mapping's own order, which `dict` does not know of an OrderedDict."""
    return (collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict).items(mapping)


class Shadow:
    """A private copy standing for an outside container."""

    __slots__ = ("copy", "deep", "entries", "original", "overwritten", "read", "snapshot", "source")

    def __init__(self, original: Any, copy: Any, source: Source) -> None:
        self.original = original
        self.copy = copy
        self.source = source
        self.snapshot: Any = None  # contents as they were: a tuple of elements, or of (key, value) pairs
        self.entries: dict[Any, Any] = {}  # copy's key -> original key, where they differ
        self.read = False
        self.deep = False
        self.overwritten = False  # nothing of what was there is left: what was there does not matter

    def changed(self) -> bool:
        """Whether the trace changed it."""
        if self.overwritten:
            return True
        if isinstance(self.copy, dict):
            now: tuple[Any, ...] = tuple(part for pair in entries(self.copy) for part in pair)
        else:
            now = tuple(self.copy)
        return len(now) != len(self.snapshot) or any(
            left is not right and not same_constant(left, right) for left, right in zip(now, self.snapshot, strict=True)
        )


def same_constant(left: Any, right: Any) -> bool:
    """Equal constants of one type: replacing one by the other is no change."""
    return type(left) is type(right) and type(left) in (int, str, bool, bytes) and left == right


class Overlay:
    """Pending attribute writes to one outside object."""

    __slots__ = ("target", "writes")

    def __init__(self, target: Any) -> None:
        self.target = target
        self.writes: dict[str, Any] = {}


class World:
    """The side table of one trace."""

    def __init__(self, tree: SourceTree, location: Callable[[], Location | None]) -> None:
        self.tree = tree
        self.location = location
        self.sources: dict[int, Source] = {}
        self.kept: list[Any] = []
        self.shadow_of_original: dict[int, Shadow] = {}
        self.shadow_of_copy: dict[int, Shadow] = {}
        self.tensors: dict[int, AbstractTensor] = {}
        self.overlays: dict[int, Overlay] = {}
        self.forgotten: dict[int, set[str]] = {}  # id of an object -> attributes that only the trace gave and took
        self.touched: set[int] = set()
        self.arrays: dict[int, Source] = {}  # by id of the trace's array: where the program's comes from
        self.array_of_original: dict[int, Any] = {}
        self.objects: dict[int, Any] = {}  # outside objects that are neither constants, containers nor tensors
        # Called with (value, source) before a plain number becomes a constant; may return a symbolic stand-in.
        self.generalise: Callable[[Any, Source], Any] | None = None
        # Whether `generalise` would give a stand-in for a number that was looked at before.
        self.would_vary: Callable[[Any, Source], bool] | None = None
        # Called with each new abstract tensor from outside; may make sizes symbolic.
        self.generalise_tensor: Callable[[AbstractTensor], None] | None = None

    # Loading

    def load(self, value: Any, source: Source) -> Any:
        """Bring a value in from outside, to be used now: constants are guarded."""
        kind = type(value)
        if kind is bool or value is None:
            source.guard("IS", value, self.location())
            return value
        if (kind is int or kind is float) and self.generalise is not None:
            symbolic = self.generalise(value, source)
            if symbolic is not None:
                return symbolic
        guard = guard_kind(value)
        if guard is not None:
            if kind is tuple and self._varies_in(value, source):
                return self._shadow_immutable(value, source)
            source.guard(guard, value, self.location())
            if guard == "IS":
                self.sources.setdefault(id(value), source)
                self.kept.append(value)
            return value
        return self.element(value, source)

    def element(self, value: Any, source: Source) -> Any:
        """Bring a value in without using it yet: constants stay unguarded."""
        identity = id(value)
        known = self.sources.get(identity)
        if known is not None:
            if known is not source and guard_kind(value) is None:
                source.guard("SAME", known, self.location())
            if isinstance(value, torch.Tensor):
                return self.tensors[identity]
            if identity in self.array_of_original:
                return self.array_of_original[identity]
            shadow = self.shadow_of_original.get(identity)
            return value if shadow is None else shadow.copy
        if identity in self.shadow_of_copy or type(value) is AbstractTensor:
            return value
        if isinstance(value, torch.Tensor):
            self.sources[identity] = source
            self.kept.append(value)
            with torch._C.DisableTorchFunctionSubclass():  # a subclass may override the reading of its fields
                tensor = self.tensors[identity] = from_real(value)
                tensor.source = source
                self.sources[id(tensor)] = source
                if self.generalise_tensor is not None:
                    self.generalise_tensor(tensor)
            return tensor
        if guard_kind(value) is not None:
            return value
        self.sources[identity] = source
        self.kept.append(value)
        if arrays.is_array(value):
            tensor = self.element(arrays.tensor_of(value), source.child("FROM_NUMPY"))
            made = self.array_of_original[identity] = arrays.wrapped(tensor)
            self.arrays[id(made)] = source
            return made
        if issubclass(kind := type(value), (tuple, frozenset)):  # `isinstance` would ask `__class__`
            return self._shadow_immutable(value, source)
        if issubclass(kind, CONTAINERS):
            return self._shadow(value, source)
        self.objects[identity] = value
        return value

    def _register(self, original: Any, copy: Any, source: Source) -> Shadow:
        shadow = Shadow(original, copy, source)
        self.shadow_of_original[id(original)] = shadow
        self.shadow_of_copy[id(copy)] = shadow
        self.sources[id(copy)] = source
        self.kept.append(copy)
        source.guard("TYPE_IS", type(original), self.location())
        return shadow

    def _shadow_immutable(self, value: Any, source: Source) -> Any:
        if isinstance(value, frozenset):
            shadow = self._register(value, value, source)
            shadow.snapshot = tuple(value)
            return value
        parts = [self._part(part, source.child("INDEX", index)) for index, part in enumerate(tuple.__iter__(value))]
        kind = type(value)
        if all(new is old for new, old in zip(parts, tuple.__iter__(value), strict=True)):
            copy = value
        elif kind is tuple:
            copy = tuple(parts)
        elif hasattr(kind, "n_sequence_fields"):  # made by C, with a constructor of its own
            copy = kind(parts)
        else:
            copy = tuple.__new__(kind, parts)
            if getattr(value, "__dict__", None):
                copy.__dict__.update(value.__dict__)
        shadow = self._register(value, copy, source)
        shadow.snapshot = tuple(parts)
        return copy

    def _part(self, value: Any, source: Source) -> Any:
        """An item of a tuple. Tuples cannot be changed when a number in them is read: what varies is symbolic now."""
        if type(value) in (int, float) and self.would_vary is not None and self.would_vary(value, source):
            assert self.generalise is not None
            symbolic = self.generalise(value, source)
            return value if symbolic is None else symbolic
        return self.element(value, source)

    def _varies_in(self, value: tuple[Any, ...], source: Source) -> bool:
        """Whether a number in a constant tuple varies; the others are remembered."""
        if self.generalise is None or self.would_vary is None:
            return False
        varies = False
        for index, part in enumerate(value):
            if type(part) in (int, float):
                child = source.child("INDEX", index)
                if self.would_vary(part, child):
                    varies = True
                else:
                    self.generalise(part, child)
        return varies

    def _shadow(self, value: Any, source: Source) -> Any:
        kind: Any = type(value)
        if isinstance(value, dict):
            copy = kind.__new__(kind)
            if isinstance(value, collections.defaultdict):
                copy.default_factory = value.default_factory
            shadow = self._register(value, copy, source)
            flat: list[Any] = []
            put = (
                collections.OrderedDict.__setitem__ if isinstance(value, collections.OrderedDict) else dict.__setitem__
            )
            for index, (key, held) in enumerate(entries(value)):
                new_key = key
                if not is_constant(key):
                    new_key = self.element(key, source.child("DICT_KEY", index))
                    shadow.entries[id(new_key)] = key
                new = self.element(held, source.child("KEY", key))
                put(copy, new_key, new)
                flat += (new_key, new)
            shadow.snapshot = tuple(flat)
            return copy
        if isinstance(value, (set, bytearray)):
            copy = kind.__new__(kind)
            (set.update if isinstance(value, set) else bytearray.extend)(copy, value)
            shadow = self._register(value, copy, source)
            shadow.snapshot = tuple(value)
            return copy
        if isinstance(value, collections.deque):
            copy = kind.__new__(kind)
            collections.deque.__init__(copy, (), value.maxlen)
            iterate: Iterator[Any] = collections.deque.__iter__(value)
            extend: Any = collections.deque.extend
        else:
            copy = kind.__new__(kind)
            iterate = list.__iter__(value)
            extend = list.extend
        shadow = self._register(value, copy, source)
        parts = [self.element(part, source.child("INDEX", index)) for index, part in enumerate(iterate)]
        extend(copy, parts)
        shadow.snapshot = tuple(parts)
        return copy

    # Reading

    def read_item(self, container: Any, position: int) -> None:
        """Just the element at `position` (from the front) of a list or tuple is used."""
        shadow = self.shadow_of_copy.get(id(container))
        if shadow is None or shadow.read:
            return
        if position < len(shadow.snapshot) and position < len(container) and len(container) == len(shadow.snapshot):
            value = shadow.snapshot[position]
            if container[position] is value:
                source = shadow.source.child("INDEX", position)
                if not self._generalised(shadow, position, source):
                    self._use(value, source)
                return
        self.read(container)

    def read_key(self, container: dict[Any, Any], key: Any) -> None:
        """Just the entry under `key` is used (or its absence)."""
        shadow = self.shadow_of_copy.get(id(container))
        if shadow is None or shadow.read:
            return
        original = shadow.entries.get(id(key), key)
        if not is_constant(key) and id(key) not in shadow.entries:
            self.read(container)
            return
        if dict.__contains__(shadow.original, original):
            index = self._flat_index(shadow, key)
            source = shadow.source.child("KEY", original)
            if index is None:
                self.read(container)
            elif not self._generalised(shadow, index, source) and not self._use(shadow.snapshot[index], source):
                shadow.source.guard("HAS_KEY", original, self.location())
        else:
            shadow.source.guard("LACKS_KEY", original, self.location())

    @staticmethod
    def _flat_index(shadow: Shadow, key: Any) -> int | None:
        for index in range(0, len(shadow.snapshot), 2):
            held = shadow.snapshot[index]
            if held is key or (is_constant(key) and is_constant(held) and held == key):
                return index + 1  # tensors compare by value: as keys they are only themselves
        return None

    def _generalised(self, shadow: Shadow, position: int, source: Source) -> bool:
        """Make a number of a list or dict symbolic where it varies, in the copy as in what the copy started from."""
        snapshot, copy = shadow.snapshot, shadow.copy
        value = snapshot[position]
        if type(value) in _SYMBOLIC:
            return True
        if self.generalise is None or type(value) not in (int, float):
            return False
        if isinstance(copy, tuple):
            self.generalise(value, source)  # remembered: a tuple with another number has a stand-in from the start
            return False
        if not isinstance(copy, (list, dict)):
            return False
        place = snapshot[position - 1] if isinstance(copy, dict) else position
        base: Any = list
        if isinstance(copy, dict):
            base = collections.OrderedDict if isinstance(copy, collections.OrderedDict) else dict
            unchanged = dict.get(copy, place) is value
        else:
            unchanged = place < len(copy) and list.__getitem__(copy, place) is value
        symbolic = self.generalise(value, source) if unchanged else None
        if symbolic is None:
            return False
        base.__setitem__(copy, place, symbolic)
        shadow.snapshot = (*snapshot[:position], symbolic, *snapshot[position + 1 :])
        return True

    def _use(self, value: Any, source: Source) -> bool:
        """Guard a constant read out of a shadow; says whether a guard now proves the value is there."""
        guard = guard_kind(value)
        if guard is not None:
            source.guard(guard, value, self.location())
            return True
        return bool(source.guards)

    def read_length(self, container: Any) -> None:
        """The length (or emptiness) of a container is used."""
        shadow = self.shadow_of_copy.get(id(container))
        if shadow is not None and not shadow.read:
            if isinstance(container, dict):
                shadow.source.guard("LENGTH", len(shadow.snapshot) // 2, self.location())
            else:
                shadow.source.guard("LENGTH", len(shadow.snapshot), self.location())

    def overwrite(self, container: Any) -> None:
        """All that was in a container goes, whatever it was."""
        shadow = self.shadow_of_copy.get(id(container))
        if shadow is not None:
            shadow.overwritten = shadow.read = True

    def read(self, container: Any) -> None:
        """All of a container's own structure is used: its length, its keys, the constants in it."""
        shadow = self.shadow_of_copy.get(id(container))
        if shadow is None or shadow.read:
            return
        shadow.read = True
        source, snapshot = shadow.source, shadow.snapshot
        location = self.location()
        if isinstance(container, dict):
            originals = tuple(shadow.entries.get(id(key), key) for key in snapshot[::2])
            source.guard("KEYS", originals, location)
            for index, original in enumerate(originals):
                self._read_number_or_use(shadow, 2 * index + 1, source.child("KEY", original))
            return
        if isinstance(container, (set, frozenset)):
            source.guard("MEMBERS", frozenset(snapshot), location)
            return
        source.guard("LENGTH", len(snapshot), location)
        if isinstance(container, collections.deque):
            self._use(container.maxlen, source.child("SLOT", "maxlen"))
        for index in range(len(snapshot)):
            self._read_number_or_use(shadow, index, source.child("INDEX", index))

    def _read_number_or_use(self, shadow: Shadow, position: int, source: Source) -> None:
        if not self._generalised(shadow, position, source):
            self._use(shadow.snapshot[position], source)

    def read_deep(self, value: Any, seen: set[int] | None = None) -> None:
        """Everything reachable through builtin containers is used."""
        seen = set() if seen is None else seen
        if id(value) in seen:
            return
        if guard_kind(value) is not None:
            return  # guarded where it was loaded
        if isinstance(value, (list, tuple, dict, set, frozenset, collections.deque)):
            seen.add(id(value))
            self.read(value)
            for part in dict.values(value) if isinstance(value, dict) else value:
                self.read_deep(part, seen)

    # Questions

    def source_of(self, value: Any) -> Source | None:
        """The source of an outside object (or of the one a shadow or abstract tensor stands for)."""
        return self.sources.get(id(value))

    def is_outside(self, value: Any) -> bool:
        return id(value) in self.sources

    def original_of(self, value: Any) -> Any:
        """The user's object that a shadow stands for; anything else itself."""
        shadow = self.shadow_of_copy.get(id(value))
        return value if shadow is None else shadow.original

    def guard_type(self, value: Any) -> None:
        """The exact type of an outside object is used."""
        if id(value) in self.touched:
            return
        source = self.sources.get(id(value))
        if source is not None and guard_kind(value) is None and type(value) is not AbstractTensor:
            self.touched.add(id(value))
            source.guard("TYPE_IS", type(self.original_of(value)), self.location())

    # Writing

    def write_attribute(self, target: Any, name: str, value: Any) -> None:
        """An attribute (or global, or cell) of an outside object is set, or deleted with DELETED."""
        overlay = self.overlays.get(id(target))
        if overlay is None:
            overlay = self.overlays[id(target)] = Overlay(target)
            self.kept.append(target)
        overlay.writes.pop(name, None)
        if value is DELETED and not self._stored(target, name):
            # It was made by the trace, so that nothing of it is there to delete.
            self.forgotten.setdefault(id(target), set()).add(name)
            return
        overlay.writes[name] = value

    def written(self, target: Any, name: str) -> Any:
        """The pending value of an attribute, DELETED, or `NotImplemented` when the trace did not write it."""
        overlay = self.overlays.get(id(target))
        if overlay is None:
            return NotImplemented
        value = overlay.writes.get(name, NotImplemented)
        if value is NotImplemented and name in self.forgotten.get(id(target), ()):
            return DELETED
        return value

    def _stored(self, target: Any, name: str) -> bool:
        """Whether an outside object really has what the trace deletes."""
        original = self.original_of(target)
        if type(original) is dict:
            return name in original
        if type(original) in (types.CellType, AbstractTensor):
            return True
        try:
            names = object.__getattribute__(original, "__dict__")
        except AttributeError:
            names = {}
        if name in names:
            return True
        for base in type(original).__mro__:
            member = base.__dict__.get(name)
            if type(member) is types.MemberDescriptorType:
                try:
                    member.__get__(original, type(original))
                except AttributeError:
                    return False
                return True
        return False

    # Aliases

    def compare_identity(self, left: Any, right: Any) -> None:
        """The program saw that two values are not one object."""
        for value, other in ((left, right), (right, left)):
            source, known = self.sources.get(id(value)), self.sources.get(id(other))
            if source is None or guard_kind(value) is not None:
                continue
            if known is not None and guard_kind(other) is None:
                if type(value) is AbstractTensor or type(self.original_of(value)) is type(self.original_of(other)):
                    source.guard("DIFFERENT", (known,), self.location())
                    return
                self.guard_type(value)
                self.guard_type(other)
                return
            if guard_kind(other) == "IS":
                source.guard("IS_NOT", other, self.location())
            return

    def distinguish(self) -> None:
        """What the trace changed must not be, on a later call, another object that it used.

        Tensors that modules hold as parameters and buffers are not told apart from each other: there are many, and
        operations on one are seen through the other by any backend that keeps to the graph.
        """
        rows = self._comparable()
        for members in rows.values():
            if len(members) > 1 and any(changed for _, changed in members):
                self._tell_apart([row for row in members if row[1] or _used(row[0])])

    def _comparable(self) -> dict[Any, list[tuple[Source, bool]]]:
        """What could be one object: the source of each, and whether the trace changed it."""
        rows: dict[Any, list[tuple[Source, bool]]] = {}
        for shadow in self.shadow_of_copy.values():
            if isinstance(shadow.copy, CONTAINERS):
                rows.setdefault(type(shadow.original), []).append((shadow.source, shadow.changed()))
        for identity, held in self.objects.items():
            overlay = self.overlays.get(identity)
            changed = overlay is not None and bool(overlay.writes)
            rows.setdefault(type(held), []).append((self.sources[identity], changed))
        for tensor in self.tensors.values():
            if tensor.source is not None and tensor.real is not None and (tensor.node is not None or tensor.mutated):
                with torch._C.DisableTorchFunctionSubclass():
                    kind = (torch.Tensor, tensor.dtype, tensor.real.shape)
                rows.setdefault(kind, []).append((tensor.source, tensor.mutated))
        return rows

    @staticmethod
    def _tell_apart(members: list[tuple[Source, bool]]) -> None:
        """One guard for each pair: a changed object looks at all that are unchanged and at those behind it."""
        for index, (source, changed) in enumerate(members):
            if not changed:
                continue
            held = _is_member(source)
            others = tuple(
                other
                for place, (other, too) in enumerate(members)
                if place != index and (place > index or not too) and not (held and _is_member(other))
            )
            if others:
                source.guard("DIFFERENT", others, None)

    def changed_shadows(self) -> Iterator[Shadow]:
        """Outside containers that the trace changed."""
        for shadow in self.shadow_of_copy.values():
            if isinstance(shadow.copy, CONTAINERS) and shadow.changed():
                yield shadow


def _is_member(source: Source) -> bool:
    """Whether a tensor is a parameter or buffer of a module."""
    parent = source.parent
    return parent is not None and parent.step == "ATTR" and parent.key in ("_parameters", "_buffers")


def _used(source: Source) -> bool:
    """Whether a trace looked into what a source gives."""
    if len(source.guards) > 1 or any(kind not in ("TYPE_IS", "SAME") for kind, *_ in source.guards):
        return True
    return any(child.guards or _used(child) for child in source.children.values())


def is_function(value: Any) -> bool:
    return type(value) is types.FunctionType
