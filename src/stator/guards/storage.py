"""Steps and lengths by C storage: how a source is followed in Python without running the user's code.

Contract. `follow(step, key, parent)` returns what the step leads to, or raises `Unreachable` with a short reason.
It consults no `__getattribute__`, `__getitem__`, `__eq__` or `__hash__` of a user's type: builtin containers are
read through the builtin type's own methods, instance attributes through the instance dictionary, classes through
their MRO. This is the specification of what the native core does with C structures; capture and the explanation
of misses use it as it stands.
"""

from __future__ import annotations

import collections
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stator.guards.constants import DEAD, same_constant
from stator.values.arrays import is_array, tensor_of

_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_namespace_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
_GRAD_GETTER: Any = vars(torch._C.TensorBase)["grad"]  # a subclass's property of that name is not asked
_MISSING: Any = object()


class Unreachable(Exception):
    """A step leads nowhere; the text says why."""


def lookup(kind: type, name: str) -> Any:
    """What the MRO of `kind` holds under `name`, no descriptor called; `Unreachable` if nothing."""
    for base in _mro_of(kind):
        namespace = _namespace_of(base)
        if name in namespace:
            return namespace[name]
    raise Unreachable(f"no class has {name!r}")


def instance_dict(value: Any) -> dict[Any, Any] | None:
    """The instance dictionary, None for objects that have none. A user's own `__dict__` property is not asked."""
    if isinstance_exact(value, type) or not type.__dict__["__dictoffset__"].__get__(type(value)):
        return None
    for base in _mro_of(type(value)):
        descriptor = _namespace_of(base).get("__dict__")
        if type(descriptor) in _DESCRIPTORS:
            try:
                found = descriptor.__get__(value)
            except (AttributeError, TypeError):
                return None
            return found if isinstance_exact(found, dict) else None
    return None


def isinstance_exact(value: Any, kind: type) -> bool:
    """`isinstance` by the real type, whatever `__class__` pretends."""
    return issubclass_exact(type(value), kind)


def issubclass_exact(kind: type, base: type) -> bool:
    return any(entry is base for entry in _mro_of(kind))


def keys_in_order(value: dict[Any, Any]) -> Iterator[Any]:
    """Keys in iteration order; an OrderedDict keeps its own."""
    if isinstance_exact(value, collections.OrderedDict):
        return collections.OrderedDict.__iter__(value)
    return dict.__iter__(value)


def find_key(value: dict[Any, Any], key: Any) -> Any:
    """The value under the constant `key`; `Unreachable` if there is none."""
    if type(key) is str and set(map(type, dict.__iter__(value))) <= {str}:
        found = dict.get(value, key, _MISSING)
        if found is not _MISSING:
            return found
    else:
        for candidate, found in dict.items(value):
            if same_constant(candidate, key):
                return found
    raise Unreachable(f"no key {key!r}")


def length(value: Any) -> int:
    """LENGTH by C storage."""
    kind: Any
    for kind in (list, tuple, dict, set, frozenset, str, bytes, bytearray, collections.deque, range):
        if isinstance_exact(value, kind):
            return int(kind.__len__(value))
    raise Unreachable(f"a {type(value).__name__} has no length by C storage")


def _follow_attr(value: Any, name: Any) -> Any:
    namespace = instance_dict(value)
    if namespace is None:
        raise Unreachable("no instance dictionary")
    return find_key(namespace, name)


def _follow_slot(value: Any, name: Any) -> Any:
    descriptor = lookup(type(value), name)
    if type(descriptor) not in _DESCRIPTORS:
        raise Unreachable(f"{name!r} is no member or getset descriptor of {type(value).__name__}")
    try:
        with torch._C.DisableTorchFunction():
            return descriptor.__get__(value)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise Unreachable(str(error)) from None


def _follow_dict(value: Any, _: Any) -> Any:
    namespace = instance_dict(value)
    if namespace is None:
        raise Unreachable("no instance dictionary")
    return namespace


def _follow_index(value: Any, index: Any) -> Any:
    kind: Any = next((kind for kind in (list, tuple, collections.deque) if isinstance_exact(value, kind)), None)
    if kind is None:
        raise Unreachable(f"a {type(value).__name__} is no list or tuple")
    if not 0 <= index < kind.__len__(value):
        raise Unreachable(f"no item {index}")
    return kind.__getitem__(value, index)


def _follow_key(value: Any, key: Any) -> Any:
    if type(value) is types.MappingProxyType or not isinstance_exact(value, dict):
        raise Unreachable(f"a {type(value).__name__} is no dict")
    return find_key(value, key)


def _follow_dict_key(value: Any, index: Any) -> Any:
    if not isinstance_exact(value, dict):
        raise Unreachable(f"a {type(value).__name__} is no dict")
    for position, key in enumerate(keys_in_order(value)):
        if position == index:
            return key
    raise Unreachable(f"no key at position {index}")


def _follow_lookup(value: Any, name: Any) -> Any:
    if not isinstance_exact(value, type):
        raise Unreachable(f"a {type(value).__name__} is no class")
    return lookup(value, name)


def _follow_contents(value: Any, _: Any) -> Any:
    if type(value) is not types.CellType:
        raise Unreachable(f"a {type(value).__name__} is no cell")
    try:
        return value.cell_contents
    except ValueError:
        raise Unreachable("the cell is empty") from None


def _follow_referent(value: Any, _: Any) -> Any:
    if not isinstance_exact(value, weakref.ref):
        raise Unreachable(f"a {type(value).__name__} is no weak reference")
    return weakref.ref.__call__(value)


def plain_tensor(value: Any) -> torch.Tensor:
    """A tensor whose geometry C++ knows, so that reading it runs no `__torch_dispatch__`."""
    if not isinstance_exact(value, torch.Tensor):
        raise Unreachable(f"a {type(value).__name__} is no tensor")
    return value  # type: ignore[no-any-return]


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise Unreachable("the size is symbolic")
    return value


def _tensor_step(read: Callable[[torch.Tensor, Any], Any]) -> Callable[[Any, Any], Any]:
    def follow_tensor(value: Any, key: Any) -> Any:
        tensor = plain_tensor(value)
        try:
            with torch._C.DisableTorchFunction():
                return read(tensor, key)
        except (IndexError, RuntimeError, NotImplementedError) as error:
            raise Unreachable(str(error).split("\n", 1)[0]) from None

    return follow_tensor


def _size(tensor: torch.Tensor, dimension: int) -> int:
    if not 0 <= dimension < tensor.dim():
        raise Unreachable(f"no dimension {dimension}")
    return _integer(tensor.size(dimension))


def _stride(tensor: torch.Tensor, dimension: int) -> int:
    if not 0 <= dimension < tensor.dim():
        raise Unreachable(f"no dimension {dimension}")
    if tensor.layout is not torch.strided:
        raise Unreachable(f"a {tensor.layout} tensor has no strides")
    return _integer(tensor.stride(dimension))


def _tensor_of_array(value: Any, _: Any) -> torch.Tensor:
    if not is_array(value):
        raise Unreachable("no array that a tensor can stand for")
    return tensor_of(value)


def _function_mode(_: Any, index: int) -> Any:
    if index >= torch._C._len_torch_function_stack():
        raise Unreachable(f"no torch function mode {index}")
    return torch._C._get_function_stack_at(index)


# step -> how it is followed.
FOLLOW: dict[str, Callable[[Any, Any], Any]] = {
    "ATTR": _follow_attr,
    "SLOT": _follow_slot,
    "DICT": _follow_dict,
    "INDEX": _follow_index,
    "KEY": _follow_key,
    "DICT_KEY": _follow_dict_key,
    "TYPE": lambda value, _: type(value),
    "LOOKUP": _follow_lookup,
    "CONTENTS": _follow_contents,
    "REFERENT": _follow_referent,
    "SIZE": _tensor_step(_size),
    "STRIDE": _tensor_step(_stride),
    "OFFSET": _tensor_step(lambda tensor, _: _integer(tensor.storage_offset())),
    "GRAD": _tensor_step(lambda tensor, _: _GRAD_GETTER.__get__(tensor)),
    "FROM_NUMPY": _tensor_of_array,
    "FUNCTION_MODE": _function_mode,
}


def follow(step: str, key: Any, parent: Any) -> Any:
    """One step of a source."""
    return FOLLOW[step](parent, key)


def follow_root(step: str, key: Any, function: Any, arguments: tuple[Any, ...]) -> Any:
    """The value of a root."""
    if step == "LOCAL":
        if key >= len(arguments):
            raise Unreachable(f"no argument {key}")
        return arguments[key]
    if step == "FUNCTION":
        return function
    if step == "CELL":
        closure = function.__closure__ if type(function) is types.FunctionType else None
        if closure is None or key >= len(closure):
            raise Unreachable(f"no closure cell {key}")
        return _follow_contents(closure[key], None)
    if step == "CONST":
        if key is DEAD:
            raise Unreachable("the object is gone")
        return key
    if step == "STATE":
        return None
    raise Unreachable(f"no such root: {step}")
