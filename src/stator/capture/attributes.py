"""Attributes: reading, writing and deleting them as Python does, without running the user's code natively.

Contract. `load_attr` is `object.__getattribute__` (and the versions of `type`, `super` and modules) step by step: data
descriptors of the class, then the instance (pending writes first), then the class, then `__getattr__`. What is found
in user objects gets a source and, when used, a guard; what is found missing is guarded too. Properties, descriptors
and `__getattr__` written in Python are interpreted. Writes to outside objects go to the overlay of the `World`.

Classes and modules of Python and torch themselves are trusted not to change under a running program, as far as
their functions go; everything else is guarded.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import sys
import types
from typing import Any

import torch

from stator.capture.control import Break, UserException
from stator.capture.frame import UNBOUND, Frame
from stator.capture.instance_dicts import InstanceDict, InstanceDictMethod
from stator.capture.operators import ABSENT, BLOCKED, Blocked, lookup_attribute, lookup_special, specialised
from stator.capture.state import TracerState
from stator.tensors.abstract import AbstractTensor
from stator.values import arrays
from stator.values.constants import guard_kind
from stator.values.world import DELETED

TRUSTED_PACKAGES = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "stator"}


def itertools_types() -> list[type]:
    return [value for value in vars(itertools).values() if isinstance(value, type)]


SYMBOLIC = frozenset({torch.SymInt, torch.SymFloat, torch.SymBool})
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
# Attributes of functions and methods that C computes from what is guarded with the function itself.
# C types that spell out the generic way of reading attributes as their own.
GENERIC = frozenset(
    {
        list, tuple, dict, set, frozenset, str, bytes, bytearray, int, float, complex, range, slice, collections.deque,
        collections.OrderedDict, collections.defaultdict, BaseException, types.FunctionType, functools.partial,
        property, staticmethod, classmethod, types.SimpleNamespace, types.GeneratorType, types.BuiltinFunctionType, zip,
        map, filter, enumerate, reversed, functools._lru_cache_wrapper, types.CodeType, *itertools_types(),
    }
)  # fmt: skip
TUPLE_FIELD = type(vars(collections.namedtuple("Field", "x"))["x"])
NN_DICTS = ("_parameters", "_buffers", "_modules")


def is_trusted(name: Any) -> bool:
    """Whether a module of that name is Python's or torch's own."""
    return isinstance(name, str) and name.partition(".")[0] in TRUSTED_PACKAGES and name != "__main__"


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The instance `__dict__`, past any property of that name."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


class Attributes(TracerState):
    """The attributes part of the tracer."""

    # Names of modules and frames

    def load_global(self, frame: Frame, name: str) -> Any:
        names = frame.globals
        handle = (id(names), name)
        if handle in self.loaded_globals:
            return self.loaded_globals[handle]
        written = self.world.written(names, name)
        if written is not NotImplemented and written is not DELETED:
            return written
        source = self.globals_source(names)
        if name in names and written is NotImplemented:
            raw = names[name]
            if is_trusted(names.get("__name__")) and (guard_kind(raw) == "IS" or type(raw) is types.FunctionType):
                value = raw
            else:
                value = self.world.load(raw, source.child("KEY", name))
        else:
            builtin_names = frame.builtins
            if name not in builtin_names:
                raise UserException(NameError(f"name '{name}' is not defined"))
            if not is_trusted(names.get("__name__")):
                source.guard("LACKS_KEY", name, self.location())
            value = builtin_names[name]
        self.loaded_globals[handle] = value
        return value

    def globals_source(self, names: dict[str, Any]) -> Any:
        label = "G" if not self.frames or names is self.frames[0].globals else str(names.get("__name__", "G"))
        return self.tree.const(names, label)

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        self.globals_source(frame.globals)
        self.world.write_attribute(frame.globals, name, value)
        self.loaded_globals.pop((id(frame.globals), name), None)

    # Reading

    def load_attr(self, target: Any, name: str) -> Any:
        kind = type(target)
        if kind is AbstractTensor:
            return self.tensor_attr(target, name)
        if isinstance(target, type):
            return self._class_attr(target, name)
        if kind is arrays.array_kind():
            return self.array_attr(target, name)
        if isinstance(target, types.ModuleType):
            return self._module_attr(target, name)
        if kind is super:
            return self._super_attr(target, name)
        if kind is InstanceDict:
            return InstanceDictMethod(target, name)
        if name == "__class__":
            return self.type_of(target)
        if kind in SYMBOLIC:
            return self.native(getattr, specialised(target), name)
        if name == "__traceback__" and isinstance(target, BaseException):
            self.require_traceback(target)
        if kind is types.TracebackType and id(target) in self.tracebacks:
            self.require_traceback(self.tracebacks[id(target)][1])
        getter = lookup_special(kind, "__getattribute__")
        if getter is not object.__getattribute__:
            return self._custom_getattribute(target, getter, name)
        return self._generic(target, kind, name)

    def _custom_getattribute(self, target: Any, getter: Any, name: str) -> Any:
        if not isinstance(getter, types.FunctionType):
            kind = type(target)
            if kind is types.MethodType and lookup_special(kind, name) is None:
                return self.load_attr(target.__func__, name)
            if kind is types.MethodType or getter.__objclass__ in GENERIC:
                return self._generic(target, kind, name)
            if guard_kind(target) is not None or not self.world.is_outside(target):
                return self.native(getattr, target, name)
            raise Break("c_reads_object", f"attribute {name!r} of a {type(target).__name__}")
        self._guard_lookup(type(target), "__getattribute__", getter)
        try:
            return self.call(getter, [target, name], {})
        except UserException as error:
            fallback = lookup_special(type(target), "__getattr__")
            if isinstance(error.value, AttributeError) and fallback is not None:
                return self.call(fallback, [target, name], {})
            raise

    def generic_attribute(self, target: Any, name: str) -> Any:
        """`object.__getattribute__`: no `__getattr__` at the end, but that is the caller's to try."""
        return self._generic(target, type(target), name)

    def _generic(self, target: Any, kind: type, name: str) -> Any:
        attribute = lookup_attribute(kind, name)
        if attribute is not ABSENT:
            holder = type(attribute)
            if hasattr(holder, "__set__") or hasattr(holder, "__delete__"):
                return self._data_descriptor(target, kind, attribute, name)
        written = self.world.written(target, name)
        if written is not NotImplemented:
            if written is not DELETED:
                return written
        else:
            found, value = self._instance_attr(target, name)
            if found:
                return value
        if attribute is not ABSENT:
            return self._class_value(target, kind, attribute, name)
        return self._missing(target, kind, name, written is DELETED)

    def _data_descriptor(self, target: Any, kind: type, attribute: Any, name: str) -> Any:
        holder = type(attribute)
        if holder is property:
            self.world.guard_type(target)
            if attribute.fget is None:
                return self.native(getattr, target, name)
            self._guard_lookup(kind, name, attribute)
            fallback = lookup_special(kind, "__getattr__")
            if fallback is not None:
                self.indirect()
            try:
                return self.call(attribute.fget, [target], {})
            except UserException as error:
                if isinstance(error.value, AttributeError) and fallback is not None:
                    return self.call(fallback, [target, name], {})
                raise
        if holder in SLOTS:
            return self._slot(target, kind, attribute, name)
        if holder is TUPLE_FIELD:
            place = attribute.__reduce__()[1][0]
            self.world.read_item(target, place)
            return self.native(tuple.__getitem__, target, place)
        if isinstance(target, enum.Enum) or guard_kind(target) is not None:
            return self._of_constant(target, name)
        getter = lookup_special(holder, "__get__")
        if isinstance(getter, types.FunctionType):
            self.world.guard_type(target)
            self._guard_lookup(kind, name, attribute)
            return self.call(getter, [attribute, target, kind], {})
        if not self.world.is_outside(target):
            return self.native(getattr, target, name)
        raise Break("c_reads_object", f"attribute {name!r} of a {kind.__name__}")

    def _of_constant(self, target: Any, name: str) -> Any:
        value = self.native(getattr, target, name)
        if guard_kind(value) is None and isinstance(target, enum.Enum) and name in ("value", "_value_"):
            return self.world.element(value, self.tree.const(target).child("ATTR", "_value_"))
        return value

    def _slot(self, target: Any, kind: type, attribute: Any, name: str) -> Any:
        """A member of a slotted class, or a field that C computes."""
        if kind is types.GeneratorType and name.startswith("gi_"):
            raise Break("c_reads_object", f"{name} of a generator")
        written = self.world.written(target, name)
        if written is DELETED:
            raise UserException(self._attribute_error(target, kind, name))
        if written is not NotImplemented:
            return written
        source = self.world.source_of(target)
        if name == "__dict__" and source is not None and kind is not types.FunctionType:
            self.world.guard_type(target)
            return InstanceDict(target)
        try:
            value = self.native(attribute.__get__, self.world.original_of(target), kind)
        except UserException as error:
            if source is not None and isinstance(error.value, AttributeError):
                # No guard says that a slot is empty.
                raise Break("c_reads_object", f"the empty slot {name!r} of a {kind.__name__}") from None
            raise
        if source is None or guard_kind(target) is not None:
            return value
        self.world.guard_type(target)
        return self.world.load(value, source.child("SLOT", name))

    def _instance_attr(self, target: Any, name: str) -> tuple[bool, Any]:
        original = self.world.original_of(target)
        names = instance_dict(original)
        if names is None or name not in names:
            return False, None
        source = self.world.source_of(target)
        value = names[name]
        if source is None or isinstance(target, enum.Enum):
            return True, value
        self.world.guard_type(target)
        return True, self.world.load(value, source.child("ATTR", name))

    def _class_value(self, target: Any, kind: type, attribute: Any, name: str) -> Any:
        """A non-data descriptor or plain value of the class, seen through an instance."""
        self._guard_absent(target, name)
        holder = type(attribute)
        if holder is types.FunctionType:
            self._guard_lookup(kind, name, attribute)
            return types.MethodType(attribute, target)
        if holder is staticmethod:
            self._guard_lookup(kind, name, attribute)
            return attribute.__func__
        if holder is classmethod:
            self._guard_lookup(kind, name, attribute)
            return self._bound_to_class(attribute, kind)
        if holder is functools.cached_property:
            self._guard_lookup(kind, name, attribute)
            self.indirect()  # the value has to be stored when it is there
            value = self.call(attribute.func, [target], {})
            self.raw_store(target, name, value)
            return value
        if holder in (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType):
            return attribute.__get__(target, kind)
        getter = lookup_special(holder, "__get__")
        if getter is None:
            return self._load_from_class(kind, name, attribute)
        if isinstance(getter, types.FunctionType):
            self._guard_lookup(kind, name, attribute)
            return self.call(getter, [attribute, target, kind], {})
        if holder is types.BuiltinFunctionType:
            return attribute
        if (
            guard_kind(target) is not None
            or not self.world.is_outside(target)
            or holder is functools._lru_cache_wrapper
        ):
            return self.native(attribute.__get__, target, kind)
        raise Break("c_reads_object", f"attribute {name!r} of a {kind.__name__}")

    def _bound_to_class(self, attribute: Any, kind: type) -> Any:
        function = attribute.__func__
        if isinstance(function, types.FunctionType):
            return types.MethodType(function, kind)
        return attribute.__get__(None, kind)

    def _load_from_class(self, kind: type, name: str, value: Any) -> Any:
        if id(kind) in self.own_functions:
            return value
        if is_trusted(getattr(kind, "__module__", None)) and guard_kind(value) is not None:
            return value
        return self.world.load(value, self.tree.const(kind).child("LOOKUP", name))

    def _guard_lookup(self, kind: type, name: str, value: Any) -> None:
        """The class holds this very function or descriptor under the name."""
        for base in kind.__mro__:
            if name in base.__dict__:
                if not is_trusted(base.__module__) and id(base) not in self.own_functions:
                    self.tree.const(kind).child("LOOKUP", name).guard("IS", value, self.location())
                return

    def _guard_absent(self, target: Any, name: str) -> None:
        source = self.world.source_of(target)
        if source is None or guard_kind(target) is not None:
            return
        self.world.guard_type(target)
        if instance_dict(self.world.original_of(target)) is not None and not self._implied_absent(target, name):
            source.guard("LACKS_ATTR", name, self.location())

    @staticmethod
    def _implied_absent(target: Any, name: str) -> bool:
        # Modules keep functions, buffers and submodules elsewhere; `forward` is covered by the guard on the call.
        return isinstance(target, torch.nn.Module) and (name == "forward" or name.startswith("__"))

    def _missing(self, target: Any, kind: type, name: str, deleted: bool) -> Any:
        fallback = lookup_special(kind, "__getattr__")
        if fallback is torch.nn.Module.__getattr__:
            found, value = self._module_member(target, name)
            if found:
                return value
        if not deleted:
            self._guard_absent(target, name)
        if self.world.is_outside(target) and not is_trusted(kind.__module__) and not name.startswith("__"):
            self.tree.const(kind).guard("LOOKUP_ABSENT", name, self.location())
        if fallback is None or fallback is BLOCKED or fallback is torch.nn.Module.__getattr__:
            if fallback is None and self.world.is_outside(target) and not is_trusted(kind.__module__):
                self.tree.const(kind).guard("LOOKUP_ABSENT", "__getattr__", self.location())
            raise UserException(self._attribute_error(target, kind, name))
        if isinstance(fallback, types.FunctionType):
            self._guard_lookup(kind, "__getattr__", fallback)
            return self.call(fallback, [target, name], {})
        if guard_kind(target) is not None or not self.world.is_outside(target):
            return self.native(getattr, target, name)
        raise Break("c_reads_object", f"attribute {name!r} of a {kind.__name__}")

    def _attribute_error(self, target: Any, kind: type, name: str) -> AttributeError:
        error = AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
        error.name = name
        error.obj = self.world.original_of(target)
        return error

    def _module_member(self, module: Any, name: str) -> tuple[bool, Any]:
        """A parameter, buffer or submodule, as nn.Module's `__getattr__` finds them."""
        names = instance_dict(module)
        assert names is not None
        source = self.world.source_of(module)
        for holder in NN_DICTS:
            held = names.get(holder)
            if held is None:
                continue
            shadow = self.world.shadow_of_original.get(id(held))
            if shadow is not None and name in shadow.copy:
                return True, self.get_item(shadow.copy, name)
            if shadow is None and name in held:
                if source is None:
                    return True, held[name]
                self.world.guard_type(module)
                return True, self.world.load(held[name], source.child("ATTR", holder).child("KEY", name))
        return False, None

    def _class_attr(self, cls: type, name: str) -> Any:
        """`type.__getattribute__`."""
        meta = type(cls)
        if isinstance(cls, enum.EnumMeta):
            value = self.native(getattr, cls, name)
            if guard_kind(value) is not None:
                return value
        meta_attribute = lookup_attribute(meta, name)
        if meta_attribute is not ABSENT and hasattr(type(meta_attribute), "__set__"):
            if type(meta_attribute) is property:
                return self.call(meta_attribute.fget, [cls], {})
            if name == "__dict__":
                raise Break("instance_dict", f"of the class {cls.__name__}")
            return self.native(getattr, cls, name)
        written = self.world.written(cls, name)
        if written is not NotImplemented and written is not DELETED:
            return written
        attribute = lookup_attribute(cls, name)
        if attribute is not ABSENT:
            return self._seen_through_class(cls, attribute, name)
        if meta_attribute is not ABSENT:
            return self._class_value(cls, meta, meta_attribute, name)
        fallback = lookup_special(meta, "__getattr__")
        if isinstance(fallback, types.FunctionType):
            return self.call(fallback, [cls, name], {})
        if not is_trusted(cls.__module__) and id(cls) not in self.own_functions:
            self.tree.const(cls).guard("LOOKUP_ABSENT", name, self.location())
        return self.native(getattr, cls, name)

    def _seen_through_class(self, cls: type, attribute: Any, name: str) -> Any:
        holder = type(attribute)
        if holder is types.FunctionType:
            self._guard_lookup(cls, name, attribute)
            return attribute
        if holder is staticmethod:
            self._guard_lookup(cls, name, attribute)
            return attribute.__func__
        if holder is classmethod:
            self._guard_lookup(cls, name, attribute)
            return self._bound_to_class(attribute, cls)
        getter = lookup_special(holder, "__get__")
        if getter is None:
            return self._load_from_class(cls, name, attribute)
        if isinstance(getter, types.FunctionType):
            self._guard_lookup(cls, name, attribute)
            return self.call(getter, [attribute, None, cls], {})
        return self.native(getattr, cls, name)

    def _super_attr(self, target: Any, name: str) -> Any:
        start, instance, owner = target.__thisclass__, target.__self__, target.__self_class__
        if instance is None or name == "__class__":
            return self.native(getattr, target, name)
        mro = owner.__mro__
        for base in mro[mro.index(start) + 1 :]:
            if name in base.__dict__:
                attribute = base.__dict__[name]
                holder = type(attribute)
                if not is_trusted(base.__module__):
                    self._guard_super(owner, base, name, attribute)
                if holder is types.FunctionType:
                    return attribute if name == "__new__" else types.MethodType(attribute, instance)
                if holder is staticmethod:
                    return attribute.__func__
                if holder is classmethod:
                    return self._bound_to_class(attribute, owner)
                if holder is property:
                    return self.call(attribute.fget, [instance], {})
                if type(instance) is AbstractTensor and holder is types.GetSetDescriptorType:
                    return self.tensor_attr(instance, name)
                if holder in (types.WrapperDescriptorType, types.MethodDescriptorType):
                    if type(instance) is AbstractTensor:
                        return types.MethodType(attribute, instance)
                    return attribute.__get__(instance, owner)
                getter = lookup_special(holder, "__get__")
                if isinstance(getter, types.FunctionType):
                    return self.call(getter, [attribute, None if instance is owner else instance, owner], {})
                if getter is None:
                    return self._load_from_class(base, name, attribute)
                return self.native(getattr, target, name)
        return self.native(getattr, target, name)

    def _guard_super(self, owner: type, base: type, name: str, attribute: Any) -> None:
        if id(base) not in self.own_functions:
            self.tree.const(base).child("LOOKUP", name).guard("IS", attribute, self.location())

    def make_super(self, owner: Any, target: Any) -> Any:
        """`super(owner, target)`."""
        return self.native(super, owner, target)

    def _module_attr(self, module: types.ModuleType, name: str) -> Any:
        names = module.__dict__
        handle = (id(names), name)
        if handle in self.loaded_globals:
            return self.loaded_globals[handle]
        written = self.world.written(names, name)
        if written is not NotImplemented and written is not DELETED:
            return written
        if name in names:
            raw = names[name]
            if is_trusted(module.__name__) and (guard_kind(raw) == "IS" or type(raw) is types.FunctionType):
                value = raw
            else:
                value = self.world.load(raw, self.globals_source(names).child("KEY", name))
            self.loaded_globals[handle] = value
            return value
        if name == "__dict__":
            raise Break("instance_dict", f"of the module {module.__name__}")
        value = self.native(getattr, module, name)
        if guard_kind(value) is None and type(value) is not types.FunctionType and not is_trusted(module.__name__):
            raise Break("c_reads_object", f"attribute {name!r} of module {module.__name__}")
        return value

    def special(self, value: Any, name: str) -> Any:
        """A special method, looked up on the class as C does, bound to `value`."""
        kind = type(value)
        method = lookup_special(kind, name)
        if method is None:
            text = f"'{kind.__name__}' object has no attribute '{name}'"
            raise UserException(AttributeError(text))
        self.world.guard_type(value)
        if isinstance(method, types.FunctionType):
            self._guard_lookup(kind, name, method)
            return types.MethodType(method, value)
        if isinstance(method, staticmethod):
            return method.__func__
        if isinstance(method, classmethod):
            return self._bound_to_class(method, kind)
        if isinstance(method, Blocked):
            self._guard_lookup(kind, name, None)
            raise UserException(TypeError("'NoneType' object is not callable"))
        if isinstance(method, property):
            return self.call(method.fget, [value], {})
        getter = lookup_special(type(method), "__get__")
        if isinstance(getter, types.FunctionType):
            return self.call(getter, [method, value, kind], {})
        return method if getter is None else method.__get__(value, kind)

    # Writing

    def store_attr(self, target: Any, name: str, value: Any) -> None:
        if type(target) is AbstractTensor:
            self.store_tensor_attr(target, name, value)
            return
        if isinstance(target, types.ModuleType):
            self.globals_source(target.__dict__)
            self.world.write_attribute(target.__dict__, name, value)
            self.loaded_globals.pop((id(target.__dict__), name), None)
            return
        kind = type(target)
        setter = lookup_special(kind, "__setattr__")
        if isinstance(setter, types.FunctionType):
            self.world.guard_type(target)
            self._guard_lookup(kind, "__setattr__", setter)
            self.call(setter, [target, name, value], {})
            return
        if isinstance(target, type):
            if id(target) not in self.own_functions:
                raise Break("class_mutation", target.__name__)
            self.native(setattr, target, name, value)
            return
        self.raw_store(target, name, value)

    def raw_store(self, target: Any, name: str, value: Any) -> None:
        """`object.__setattr__`."""
        kind = type(target)
        if name == "__traceback__" and id(target) in self.passed:
            row = self.tracebacks.get(id(value))
            self.passed[id(target)] = [] if row is None else list(row[2])
        if type(target) is AbstractTensor:
            self.store_tensor_attr(target, name, value)
            return
        attribute = lookup_special(kind, name)
        if attribute is not None and hasattr(type(attribute), "__set__"):
            if type(attribute) is property:
                if attribute.fset is None:
                    self.native(setattr, types.SimpleNamespace() if self.world.is_outside(target) else target, name, 0)
                    raise UserException(AttributeError(f"property {name!r} of {kind.__name__!r} object has no setter"))
                self._guard_lookup(kind, name, attribute)
                self.call(attribute.fset, [target, value], {})
                return
            setter = lookup_special(type(attribute), "__set__")
            if isinstance(setter, types.FunctionType):
                self._guard_lookup(kind, name, attribute)
                self.call(setter, [attribute, target, value], {})
                return
            if self.world.is_outside(target):
                if type(attribute) is not types.MemberDescriptorType:
                    raise Break("c_writes_object", f"attribute {name!r} of a {kind.__name__}")
                self.world.write_attribute(target, name, value)
                return
            self.native(object.__setattr__, target, name, value)
            return
        if self.world.is_outside(target):
            if instance_dict(self.world.original_of(target)) is None:
                raise UserException(self._attribute_error(target, kind, name))
            self.world.guard_type(target)
            self.world.write_attribute(target, name, value)
            return
        self.native(object.__setattr__ if not isinstance(target, types.FunctionType) else setattr, target, name, value)

    def delete_attr(self, target: Any, name: str) -> None:
        if type(target) is AbstractTensor:
            if name == "grad":
                self.store_tensor_attr(target, name, None)
                return
            raise Break("c_writes_object", f"deleting {name!r} of a tensor")
        if isinstance(target, types.ModuleType):
            raise Break("class_mutation", target.__name__)
        kind = type(target)
        deleter = lookup_special(kind, "__delattr__")
        if isinstance(deleter, types.FunctionType):
            self._guard_lookup(kind, "__delattr__", deleter)
            self.call(deleter, [target, name], {})
            return
        self.raw_delete(target, name)

    def raw_delete(self, target: Any, name: str) -> None:
        """`object.__delattr__`."""
        kind = type(target)
        if isinstance(target, type) and id(target) not in self.own_functions:
            raise Break("class_mutation", target.__name__)
        attribute = lookup_special(kind, name)
        if type(attribute) is property and attribute.fdel is not None:
            self.call(attribute.fdel, [target], {})
            return
        deleter = None if attribute is None else lookup_special(type(attribute), "__delete__")
        if isinstance(deleter, types.FunctionType):
            self.call(deleter, [attribute, target], {})
            return
        if not self.world.is_outside(target):
            self.native(object.__delattr__, target, name)
            return
        written = self.world.written(target, name)
        names = instance_dict(self.world.original_of(target))
        present = (names is not None and name in names) or type(attribute) is types.MemberDescriptorType
        if written is DELETED or (written is NotImplemented and not present):
            raise UserException(self._attribute_error(target, kind, name))
        self.world.write_attribute(target, name, DELETED)

    # Imports

    def import_module(self, frame: Frame, name: str, names: Any, level: int) -> Any:
        """`import`: of what is imported already, in effect; first imports run code, so they break the graph."""
        package = frame.globals.get("__package__") or frame.globals.get("__name__", "")
        absolute = name
        if level:
            base = package.rsplit(".", level - 1)[0] if level > 1 else package
            absolute = f"{base}.{name}" if name else base
        if absolute not in sys.modules:
            raise Break("first_import", absolute)
        if names or level:
            return sys.modules[absolute]
        return sys.modules[absolute.partition(".")[0]]

    def import_from(self, module: Any, name: str) -> Any:
        try:
            return self.load_attr(module, name)
        except UserException as error:
            full = f"{getattr(module, '__name__', '')}.{name}"
            if isinstance(error.value, AttributeError) and full in sys.modules:
                return sys.modules[full]
            if isinstance(error.value, AttributeError):
                text = f"cannot import name '{name}' from '{module.__name__}' ({getattr(module, '__file__', '?')})"
                raise UserException(ImportError(text)) from None
            raise

    # Names of the running frame

    def local_names(self, frame: Frame) -> dict[str, Any]:
        """`locals()`."""
        if frame.names is not None:
            return dict(frame.names)
        found: dict[str, Any] = {}
        for index, name in enumerate(frame.decoded.localsplus_names):
            value = frame.locals[index]
            if isinstance(value, types.CellType):
                value = self.read_cell(value)
            if value is UNBOUND:
                continue
            if hasattr(value, "source") and type(value).__name__ == "Pending":
                value = frame.locals[index] = self.world.load(value.value, value.source)
            found[name] = value
        return found

    def global_names(self, frame: Frame) -> dict[str, Any]:
        raise Break("instance_dict", "globals()")
