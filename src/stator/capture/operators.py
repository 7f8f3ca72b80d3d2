"""Operators, comparisons, truth, items and formatting of traced values.

Contract. Each operation is Python's own, with the question of who carries it out settled first: torch (an abstract
tensor takes part), C (builtin values; what it reads is guarded first), or the program (classes with special methods of
their own, which are interpreted, in Python's order of trying both operands).
"""

from __future__ import annotations

import collections
import enum
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from stator.capture.changes import Changes
from stator.capture.control import Break, UserException
from stator.capture.instance_dicts import InstanceDict, InstanceDictMethod
from stator.capture.shown import Shown
from stator.capture.state import TracerState
from stator.capture.symbolic import SYMBOLIC
from stator.tensors.abstract import AbstractTensor
from stator.values.arrays import is_scalar
from stator.values.constants import guard_kind, is_constant
from stator.values.world import entries, same_constant

BINARY: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "+": (operator.add, "__add__", "__radd__"),
    "-": (operator.sub, "__sub__", "__rsub__"),
    "*": (operator.mul, "__mul__", "__rmul__"),
    "/": (operator.truediv, "__truediv__", "__rtruediv__"),
    "//": (operator.floordiv, "__floordiv__", "__rfloordiv__"),
    "%": (operator.mod, "__mod__", "__rmod__"),
    "**": (operator.pow, "__pow__", "__rpow__"),
    "@": (operator.matmul, "__matmul__", "__rmatmul__"),
    "<<": (operator.lshift, "__lshift__", "__rlshift__"),
    ">>": (operator.rshift, "__rshift__", "__rrshift__"),
    "&": (operator.and_, "__and__", "__rand__"),
    "|": (operator.or_, "__or__", "__ror__"),
    "^": (operator.xor, "__xor__", "__rxor__"),
}
INPLACE: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    symbol + "=": (getattr(operator, "i" + forward.strip("_")), "__i" + forward[2:])
    for symbol, (_, forward, _) in BINARY.items()
}
COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}
NUMBERS = frozenset({int, float, bool, str, bytes, complex, type(None), torch.SymInt, torch.SymFloat, torch.SymBool})
HEAP_TYPE = 1 << 9
# Types all of whose special methods are C code without side effects on anything but the value itself.
C_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, bytearray)
C_VALUES = frozenset(
    {
        range, slice, types.MappingProxyType, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format,
        type(Ellipsis), type(NotImplemented), types.GenericAlias, types.UnionType, types.ModuleType,
        types.BuiltinFunctionType, types.FunctionType, types.MethodType, types.CodeType, type({}.keys()),
        type({}.values()), type({}.items()), memoryview, object,
    }
)  # fmt: skip
OBJECT_FORMAT = object.__dict__["__format__"]
# How builtin containers show themselves: by the method that does it, what stands around the parts, and when empty.
CONTAINER_FORMS: dict[Any, tuple[str, str, str]] = {
    list.__dict__["__repr__"]: ("[", "]", ""),
    tuple.__dict__["__repr__"]: ("(", ")", ""),
    dict.__dict__["__repr__"]: ("{", "}", ""),
}


ABSENT = object()


class Blocked:
    """What a class holds that says None: a special method it refuses to have, or an attribute that is None."""

    def __repr__(self) -> str:
        return "None"


BLOCKED = Blocked()


def lookup_special(kind: type, name: str) -> Any:
    """What the class of a value holds under a name, the way C looks it up; None where it holds nothing."""
    for base in kind.__mro__:
        if name in base.__dict__:
            found = base.__dict__[name]
            return BLOCKED if found is None else found
    return None


def lookup_attribute(kind: type, name: str) -> Any:
    """What the MRO of a class holds under a name, or `ABSENT`: an attribute may be None."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return ABSENT


def is_program_kind(kind: type) -> bool:
    """A class made by Python code that is no kind of number, text or builtin container."""
    return bool(kind.__flags__ & HEAP_TYPE) and not issubclass(
        kind, (int, float, complex, str, bytes, type, enum.Enum, BaseException, torch.Tensor, *C_CONTAINERS)
    )


def is_type_form(container: Any) -> bool:
    """Whether subscripting `container` makes a description of a type, which is a constant."""
    if isinstance(container, type):
        method = lookup_special(container, "__class_getitem__")
        function = getattr(method, "__func__", method)
        return getattr(function, "__module__", None) in ("typing", "typing_extensions", None) and method is not None
    return type(container).__module__ == "typing"


def describes_type(key: Any) -> bool:
    """Whether a subscript is made of constants, lists of argument types included."""
    return is_constant(key) or (type(key) in (list, tuple) and all(map(describes_type, key)))


def specialised(value: Any) -> Any:
    """A symbolic number made the constant it is in this call: what is shown or hashed must be known."""
    if type(value) is torch.SymInt:
        return int(value)
    if type(value) is torch.SymFloat:
        return float(value)
    return bool(value) if type(value) is torch.SymBool else value


class Operators(TracerState):
    """The operators part of the tracer."""

    # Binary

    def binary(self, symbol: str, left: Any, right: Any) -> Any:
        kind, other = type(left), type(right)
        row = BINARY.get(symbol)
        if row is not None:
            function, forward, reflected = row
            if kind is InstanceDict or other is InstanceDict:
                return self.binary(symbol, self.as_dict(left), self.as_dict(right))
            if kind in NUMBERS and other in NUMBERS:
                return self.native(function, left, right)
            if kind is AbstractTensor or other is AbstractTensor:
                return self._tensor_binary(function, forward, reflected, left, right)
            return self._binary_protocol(function, symbol, forward, reflected, left, right)
        function, name = INPLACE[symbol]
        if kind in NUMBERS and other in NUMBERS:
            return self.native(function, left, right)
        plain, forward, reflected = BINARY[symbol[:-1]]
        if kind is AbstractTensor:
            return self._tensor_binary(function, forward, reflected, left, right)
        if other is AbstractTensor and not isinstance(left, C_CONTAINERS):
            return self._tensor_binary(plain, forward, reflected, left, right)
        if self.is_python_method(left, name):
            result = self.call(self.special(left, name), [right], {})
            if result is not NotImplemented:
                return result
        elif isinstance(left, C_CONTAINERS) and lookup_special(kind, name) is not None:
            self.world.read(left)
            return self.native(function, left, self._joined(symbol, left, right))
        return self._binary_protocol(plain, symbol[:-1], forward, reflected, left, right)

    def _joined(self, symbol: str, left: Any, right: Any) -> Any:
        """What a container is changed by in place."""
        if symbol == "*=":
            return self.index_of(right)
        return self.listed(right) if isinstance(left, list) else self.for_c([right])[0]

    def _tensor_binary(self, function: Any, forward: str, reflected: str, left: Any, right: Any) -> Any:
        result = self._of_subclasses(forward, reflected, left, right)
        if result is not NotImplemented:
            return result
        for target, other, name in ((left, right, forward), (right, left, reflected)):
            if self.is_python_method(target, name) and "__torch_function__" not in dir(type(target)):
                if target is left:
                    result = self.call(self.special(target, name), [other], {})
                    if result is not NotImplemented:
                        return result
                elif isinstance(other, AbstractTensor):
                    # Tensor's own operator gives way to unknown operands by returning NotImplemented.
                    result = self.call(self.special(target, name), [other], {})
                    if result is not NotImplemented:
                        return result
        if isinstance(left, (list, tuple)) or isinstance(right, (list, tuple)):
            self.world.read_deep(left)
            self.world.read_deep(right)
        return self.operate(function, (left, right), {})

    def _of_subclasses(self, forward: str, reflected: str, left: Any, right: Any) -> Any:
        """What special methods that the program gave to its tensor classes make of an operation."""
        attempts = [(left, right, forward), (right, left, reflected)]
        if type(right) is AbstractTensor and isinstance(left, torch.Tensor) and right.kind is not type(left):
            attempts.reverse()
        for target, operand, name in attempts:
            method = self.special_of_subclass(target, name)
            if method is not None:
                result = self.call(method, [operand], {})
                if result is not NotImplemented:
                    return result
        return NotImplemented

    def special_of_subclass(self, value: Any, name: str) -> Any:
        """A special method that a tensor's class got from the program, bound."""
        if type(value) is not AbstractTensor or value.kind in (torch.Tensor, torch.nn.Parameter):
            return None
        method = lookup_special(value.kind, name)
        if type(method) is not types.FunctionType or method.__module__.partition(".")[0] == "torch":
            return None
        self.graph.guard_tensor(value)
        self._guard_lookup(value.kind, name, method)
        return types.MethodType(method, value)

    def is_python_method(self, value: Any, name: str) -> bool:
        """Whether the special method is the program's code (or not known to be harmless C)."""
        if type(value) is AbstractTensor or type(value) in NUMBERS:
            return False
        method = lookup_special(type(value), name)
        return isinstance(method, (types.FunctionType, staticmethod, classmethod, property, Blocked)) or (
            method is not None
            and not isinstance(method, (types.WrapperDescriptorType, types.MethodDescriptorType))
            and callable(method)
            and type(method) is not type
        )

    def _binary_protocol(self, function: Any, symbol: str, forward: str, reflected: str, left: Any, right: Any) -> Any:
        left_python = self.is_python_method(left, forward)
        right_python = self.is_python_method(right, reflected)
        if (
            not left_python
            and not right_python
            and not is_program_kind(type(left))
            and not is_program_kind(type(right))
        ):
            if symbol.startswith("%") and isinstance(left, (str, bytes)):
                right = self._shown_operands(right)
            self.require_c_value(left, function.__name__)
            self.require_c_value(right, function.__name__)
            self.world.read_deep(left)
            self.world.read_deep(right)
            return self.native(function, left, right)
        self.world.guard_type(left)
        self.world.guard_type(right)
        attempts = [(left, right, forward), (right, left, reflected)]
        kind, other = type(left), type(right)
        if kind is other:
            attempts = attempts[:1]
        elif kind in other.__mro__ and lookup_special(other, reflected) is not lookup_special(kind, reflected):
            attempts.reverse()
        for target, operand, name in attempts:
            result = self._attempt(target, name, operand)
            if result is not NotImplemented:
                return result
        text = (
            f"unsupported operand type(s) for {'** or pow()' if symbol == '**' else symbol}: "
            f"'{kind.__name__}' and '{other.__name__}'"
        )
        raise UserException(TypeError(text))

    def _shown_operands(self, operands: Any) -> Any:
        """What `%` puts into a text: numbers as they are, other values as the program shows them."""

        def ready(value: Any) -> Any:
            value = specialised(value)
            if type(value) in NUMBERS or is_constant(value):
                return value
            return self.shown(value)

        if type(operands) is tuple:
            self.world.read(operands)
            return tuple(ready(part) for part in operands)
        if isinstance(operands, dict):
            return {key: ready(held) for key, held in self.pairs_of(operands).items()}
        return ready(operands)

    def _attempt(self, target: Any, name: str, operand: Any) -> Any:
        method = lookup_special(type(target), name)
        if method is None or (name not in ("__eq__", "__ne__") and method is object.__dict__.get(name)):
            return NotImplemented
        if method is object.__dict__.get(name):
            return self._default_comparison(name, target, operand)
        if self.is_python_method(target, name):
            return self.call(self.special(target, name), [operand], {})
        self.require_c_value(target, name)
        self.world.read_deep(target)
        return self.native(method, target, operand)

    def _default_comparison(self, name: str, target: Any, operand: Any) -> Any:
        """`object.__eq__` and `object.__ne__`."""
        if name == "__eq__":
            return True if self.identical(target, operand) else NotImplemented
        if not self.is_python_method(target, "__eq__"):
            return False if self.identical(target, operand) else NotImplemented
        equal = self.call(self.special(target, "__eq__"), [operand], {})
        return equal if equal is NotImplemented else not self.truth(equal)

    def require_c_value(self, value: Any, what: str) -> None:
        """Break unless C code may read `value`: the interpreter knows what such code looks at."""
        kind = type(value)
        if (
            kind is Shown
            or kind in NUMBERS
            or kind in C_VALUES
            or kind is AbstractTensor
            or guard_kind(value) is not None
        ):
            return
        if isinstance(value, C_CONTAINERS):
            for part in dict.values(value) if isinstance(value, dict) else list(value):
                if part is not value:
                    self.require_c_value(part, what)
            return
        if isinstance(value, (BaseException, enum.Enum)) or self.is_plain_iterator(value):
            return
        if (isinstance(value, (int, float, str, bytes, complex)) or is_scalar(value)) and not self.world.is_outside(
            value
        ):
            return
        if kind.__eq__ is object.__eq__ and not self.overlay_of(value):
            self.world.guard_type(value)
            return  # compared by identity only
        raise Break("c_reads_object", f"{what} on a {kind.__name__}")

    def overlay_of(self, value: Any) -> bool:
        return id(value) in self.world.overlays

    def is_plain_iterator(self, value: Any) -> bool:
        return type(value).__name__.endswith("_iterator") or isinstance(value, (zip, enumerate, map, filter, reversed))

    # Comparison, identity, truth

    def compare(self, symbol: str, left: Any, right: Any) -> Any:
        function, forward, reflected = COMPARE[symbol]
        kind, other = type(left), type(right)
        if kind is InstanceDict or other is InstanceDict:
            return self.compare(symbol, self.as_dict(left), self.as_dict(right))
        if kind in NUMBERS and other in NUMBERS:
            return self.native(function, left, right)
        if kind is AbstractTensor or other is AbstractTensor:
            if left is None or right is None or kind is type or other is type:
                if symbol in ("==", "!="):
                    return symbol == "!="
            return self._tensor_binary(function, forward, reflected, left, right)
        left_python = self.is_python_method(left, forward)
        right_python = self.is_python_method(right, reflected)
        if left_python or right_python or is_program_kind(kind) or is_program_kind(other):
            self.world.guard_type(left)
            self.world.guard_type(right)
            attempts = [(left, right, forward), (right, left, reflected)]
            if kind is not other and kind in other.__mro__:
                attempts.reverse()
            for target, operand, name in attempts:
                result = self._attempt(target, name, operand)
                if result is not NotImplemented:
                    return result
            if symbol in ("==", "!="):
                return self.identical(left, right) == (symbol == "==")
            text = f"'{symbol}' not supported between instances of '{kind.__name__}' and '{other.__name__}'"
            raise UserException(TypeError(text))
        if isinstance(left, C_CONTAINERS) and isinstance(right, C_CONTAINERS):
            return self.compare_containers(symbol, left, right)
        self.require_c_value(left, "comparison")
        self.require_c_value(right, "comparison")
        return self.native(function, left, right)

    def compare_containers(self, symbol: str, left: Any, right: Any) -> Any:
        """Builtin containers compare element by element, elements by the program's own methods."""
        function = COMPARE[symbol][0]
        self.world.read_deep(left)
        self.world.read_deep(right)
        sequences = isinstance(left, (list, tuple)) and isinstance(right, (list, tuple))
        if sequences and type(left) is type(right) and self._holds_objects(left, right):
            if symbol in ("==", "!="):
                same = len(left) == len(right) and all(
                    self.identical(one, two) or self.truth(self.compare("==", one, two))
                    for one, two in zip(left, right, strict=True)
                )
                return same == (symbol == "==")
            for one, two in zip(left, right, strict=False):
                if not (self.identical(one, two) or self.truth(self.compare("==", one, two))):
                    return self.compare(symbol, one, two)
            return function(len(left), len(right))
        if isinstance(left, dict) and isinstance(right, dict) and symbol in ("==", "!="):
            same = len(left) == len(right) and all(
                self._same_entry(held, self.native(dict.get, right, self.check_hashable(key), ABSENT))
                for key, held in list(dict.items(left))
            )
            return same == (symbol == "==")
        self.require_c_value(left, "comparison")
        self.require_c_value(right, "comparison")
        return self.native(function, left, right)

    def _same_entry(self, held: Any, other: Any) -> bool:
        return other is not ABSENT and (
            self.identical(held, other) or bool(self.truth(self.compare("==", held, other)))
        )

    @staticmethod
    def _holds_objects(*containers: Any) -> bool:
        return any(type(part) not in NUMBERS for container in containers for part in container)

    def identical(self, left: Any, right: Any) -> bool:
        if left is right:
            return True
        if type(left) is AbstractTensor or type(right) is AbstractTensor:
            self.world.compare_identity(left, right)
            return False
        original, other = self.world.original_of(left), self.world.original_of(right)
        if original is other:
            return True
        self.world.compare_identity(left, right)
        return False

    def as_dict(self, value: Any) -> Any:
        """The dict that an instance's `__dict__` is."""
        return self.instance_snapshot(value) if type(value) is InstanceDict else value

    def instance_snapshot(self, view: InstanceDict) -> dict[str, Any]:
        raise NotImplementedError

    def truth(self, value: Any, what: str = "bool") -> Any:
        kind = type(value)
        if kind is InstanceDict:
            return bool(self.instance_snapshot(value))
        if kind is bool or value is None:
            return bool(value)
        if kind in NUMBERS:
            return self.native(bool, value)
        if kind is AbstractTensor:
            raise Break("data_dependent_branch" if what == "bool" else "tensor_to_python", what)
        if self.is_python_method(value, "__bool__"):
            return self.answered(bool, value, "__bool__")
        if self.is_python_method(value, "__len__") and lookup_special(kind, "__bool__") is None:
            return bool(self.length(value) > 0)
        if isinstance(value, C_CONTAINERS):
            self.world.read_length(value)
            return self.native(bool, value)
        self.world.guard_type(value)
        if lookup_special(kind, "__bool__") is None and lookup_special(kind, "__len__") is None:
            return True
        self.require_c_value(value, "truth")
        return self.native(bool, value)

    def answered(self, function: Any, value: Any, name: str, *rest: Any) -> Any:
        """`function(value)`, which asks the special method of the program by this name."""
        return self.judged(function, value, name, self.call(self.special(value, name), [*rest], {}))

    def judged(self, function: Any, value: Any, name: str, result: Any) -> Any:
        """What C makes of the result of a special method: it refuses what is of the wrong type."""
        if type(result) in (torch.SymInt, torch.SymFloat, torch.SymBool, AbstractTensor):
            result = specialised(result)
        stand_in = type(type(value).__name__, (), {name: lambda self: result})
        return self.native(function, stand_in())

    def unary(self, symbol: str, value: Any) -> Any:
        function, name = UNARY[symbol]
        if type(value) is AbstractTensor:
            method = self.special_of_subclass(value, name)
            return self.operate(function, (value,), {}) if method is None else self.call(method, [], {})
        if self.is_python_method(value, name):
            self.world.guard_type(value)
            return self.call(self.special(value, name), [], {})
        if symbol == "~" and type(value) is torch.SymInt:
            return -value - 1
        self.require_c_value(value, name)
        return self.native(function, value)

    # Items

    def length(self, value: Any) -> Any:
        if type(value) is AbstractTensor:
            self.graph.guard_tensor(value)
            if not value.shape:
                raise UserException(TypeError("len() of a 0-d tensor"))
            return value.shape[0]
        if type(value) is InstanceDict:
            return self.call(InstanceDictMethod(value, "__len__"), [], {})
        if self.is_python_method(value, "__len__"):
            result = self.call(self.special(value, "__len__"), [], {})
            return result if type(result) is torch.SymInt else self.judged(len, value, "__len__", result)
        if isinstance(value, C_CONTAINERS):
            self.world.read_length(value)
            return self.native(len, value)
        self.require_c_value(value, "len")
        return self.native(len, value)

    def _gathered(self, tensor: AbstractTensor, key: Any) -> Any:
        """`tensor[i, j]` in a body that sees one element of many: its indices are tensors without dimensions."""
        parts = key if isinstance(key, tuple) else (key,)
        if not parts or not all(type(part) in (AbstractTensor, int) for part in parts):
            return self.operate(operator.getitem, (tensor, key), {})
        indices = [
            self.operate(torch.full, ((), part), {"dtype": torch.int64, "device": tensor.device})
            if type(part) is int
            else part
            for part in parts
        ]
        return self.operate(torch.ops.aten.index.Tensor, (tensor, indices), {})

    def get_item(self, container: Any, key: Any) -> Any:
        if type(container) is AbstractTensor:
            self.world.read_deep(key)
            method = self.special_of_subclass(container, "__getitem__")
            if method is not None:
                return self.call(method, [key], {})
            if self.gathers:
                return self._gathered(container, key)
            return self.operate(operator.getitem, (container, key), {})
        if is_type_form(container) and describes_type(key):
            return self.native(operator.getitem, container, key)
        if self.is_python_method(container, "__getitem__"):
            self.world.guard_type(container)
            return self.call(self.special(container, "__getitem__"), [key], {})
        return self.get_item_of_c(container, key)

    def get_item_of_c(self, container: Any, key: Any) -> Any:
        """`container[key]` as the C types do it."""
        if type(container) is InstanceDict:
            return self.call(InstanceDictMethod(container, "__getitem__"), [key], {})
        if isinstance(container, type):
            method = self._class_getitem(container)
            if method is not None:
                return self.call(method, [key], {})
            self.require_c_value(key, "subscript")
            return self.native(operator.getitem, container, key)
        if isinstance(container, (list, tuple)):
            return self._sequence_item(container, key)
        if isinstance(container, dict):
            return self._dict_item(container, key)
        if isinstance(container, types.MappingProxyType) and self.world.is_outside(container):
            raise Break("c_reads_object", "a mapping proxy")
        if isinstance(container, collections.deque) or type(container) in (range, str, bytes, bytearray, torch.Size):
            self.require_own_bytes(container)
            self.world.read(container)
            return self.native(operator.getitem, container, self.index_of(key))
        self.require_c_value(container, "subscript")
        return self.native(operator.getitem, container, key)

    def _class_getitem(self, cls: type) -> Any:
        if lookup_special(type(cls), "__getitem__") is not None and self.is_python_method(cls, "__getitem__"):
            return self.special(cls, "__getitem__")
        method = lookup_special(cls, "__class_getitem__")
        if isinstance(method, classmethod) and isinstance(method.__func__, types.FunctionType):
            return types.MethodType(method.__func__, cls)
        return None

    def index_of(self, key: Any) -> Any:
        """A subscript as C wants it."""
        if type(key) is torch.SymInt:
            return int(key)
        if type(key) in (int, bool, str, slice):
            if type(key) is slice:
                return slice(
                    *[None if part is None else self.index_of(part) for part in (key.start, key.stop, key.step)]
                )
            return key
        if type(key) is AbstractTensor:
            raise Break("tensor_to_python", "a tensor as a list index")
        if self.is_python_method(key, "__index__"):
            return self.answered(operator.index, key, "__index__")
        return key

    def _sequence_item(self, container: Any, key: Any) -> Any:
        key = self.index_of(key)
        if type(key) is int and 0 <= key < len(container):
            self.world.read_item(container, key)
        else:
            self.world.read(container)
        if type(container) is torch.Size:
            return self.native(operator.getitem, container, key)  # a part of a size is a size
        return self.native(lambda: (list if isinstance(container, list) else tuple).__getitem__(container, key))

    def _dict_item(self, container: dict[Any, Any], key: Any) -> Any:
        key = self.check_hashable(key)
        self.world.read_key(container, key)
        found = self.native(dict.get, container, key, ABSENT)  # which asks no `__missing__`
        if found is not ABSENT:
            return found
        if isinstance(container, collections.defaultdict) and container.default_factory is not None:
            value = self.call(container.default_factory, [], {})
            dict.__setitem__(container, key, value)
            return value
        if self.is_python_method(container, "__missing__"):
            return self.call(self.special(container, "__missing__"), [key], {})
        raise UserException(KeyError(key))

    def set_item(self, container: Any, key: Any, value: Any) -> None:
        if type(container) is AbstractTensor:
            self.world.read_deep(key)
            method = self.special_of_subclass(container, "__setitem__")
            if method is not None:
                self.call(method, [key, value], {})
            else:
                self.operate(operator.setitem, (container, key, value), {})
            return
        if self.is_python_method(container, "__setitem__"):
            self.world.guard_type(container)
            self.call(self.special(container, "__setitem__"), [key, value], {})
            return
        self.set_item_of_c(container, key, value)

    def set_item_of_c(self, container: Any, key: Any, value: Any) -> None:
        """`container[key] = value` as the C types do it."""
        if type(container) is InstanceDict:
            self.call(InstanceDictMethod(container, "__setitem__"), [key, value], {})
            return
        if isinstance(container, dict):
            key = self.check_hashable(key)
            self.world.read_key(container, key)
            ordered = isinstance(container, collections.OrderedDict)
            put = collections.OrderedDict.__setitem__ if ordered else dict.__setitem__
            self.native(put, container, key, value)
            return
        if isinstance(container, (list, collections.deque, bytearray)):
            key = self.index_of(key)
            value = self.listed(value) if type(key) is slice else value
            self._prepare_write(container, key, value)
            base = next(kind for kind in (list, collections.deque, bytearray) if isinstance(container, kind))
            self.native(base.__setitem__, container, key, value)
            return
        self.require_c_value(container, "item assignment")
        self.native(operator.setitem, container, key, value)

    def require_own_bytes(self, value: Any) -> None:
        """The bytes in a bytearray from outside are not guarded: plain Python reads and writes them."""
        if isinstance(value, bytearray) and id(value) in self.world.shadow_of_copy:
            raise Break("c_reads_object", "a bytearray")

    def _prepare_write(self, container: Any, key: Any, value: Any) -> None:
        """What is there counts where a write moves it, and where one that changes nothing now might later."""
        if not isinstance(container, list):
            self.require_own_bytes(container)
            self.world.read(container)
        elif type(key) is slice:
            whole = (key.start, key.stop, key.step) == (None, None, None)
            (self.world.overwrite if whole else self.world.read)(container)
        else:
            self.world.read_length(container)
            if type(key) is int and -len(container) <= key < len(container):
                place = key % len(container)
                held = list.__getitem__(container, place)
                if held is value or same_constant(held, value):
                    self.world.read_item(container, place)

    def delete_item(self, container: Any, key: Any) -> None:
        if self.is_python_method(container, "__delitem__"):
            self.world.guard_type(container)
            self.call(self.special(container, "__delitem__"), [key], {})
            return
        self.delete_item_of_c(container, key)

    def delete_item_of_c(self, container: Any, key: Any) -> None:
        """`del container[key]` as the C types do it."""
        if type(container) is InstanceDict:
            self.call(InstanceDictMethod(container, "__delitem__"), [key], {})
            return
        if isinstance(container, dict):
            key = self.check_hashable(key)
            self.world.read_key(container, key)
            base: Any = collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict
            self.native(base.__delitem__, container, key)
            return
        if isinstance(container, (list, collections.deque)):
            self.world.read(container)
            base = list if isinstance(container, list) else collections.deque
            self.native(base.__delitem__, container, self.index_of(key))
            return
        self.require_c_value(container, "item deletion")
        self.native(operator.delitem, container, key)

    def contains(self, container: Any, item: Any) -> bool:
        if type(container) is AbstractTensor:
            return bool(self.truth(self.operate(torch.Tensor.__contains__, (container, item), {})))
        if self.is_python_method(container, "__contains__"):
            self.world.guard_type(container)
            if lookup_special(type(container), "__contains__") is BLOCKED:
                raise UserException(TypeError(f"'{type(container).__name__}' object is not a container"))
            return bool(self.truth(self.call(self.special(container, "__contains__"), [item], {})))
        return self.contains_of_c(container, item)

    def contains_of_c(self, container: Any, item: Any) -> bool:
        """`item in container` as the C types do it."""
        if type(container) is InstanceDict:
            return bool(self.call(InstanceDictMethod(container, "__contains__"), [item], {}))
        if isinstance(container, dict) or type(container) is type({}.keys()):
            item = self.check_hashable(item)
            if isinstance(container, dict):
                self.world.read_key(container, item)
                return bool(self.native(dict.__contains__, container, item))
            return bool(self.native(operator.contains, container, item))
        if isinstance(container, (set, frozenset)):
            item = self.check_hashable(item)
            self.world.read(container)
            return bool(self.native(operator.contains, container, item))
        if type(container) in (str, bytes, range):
            return bool(self.native(operator.contains, container, item))
        kind = type(container)
        if lookup_special(kind, "__iter__") is None and lookup_special(kind, "__getitem__") is None:
            raise UserException(TypeError(f"argument of type '{kind.__name__}' is not iterable"))
        for part in self.listed(container) if not isinstance(container, (list, tuple)) else self._read(container):
            if self.identical(part, item) or self.truth(self.compare("==", part, item)):
                return True
        return False

    def _read(self, container: Any) -> Any:
        self.world.read(container)
        return list(container)

    def check_hashable(self, value: Any) -> Any:
        """The value, to be hashed; symbolic numbers in it are what they are in this call.

        Hashing an object of the program runs its `__hash__` in C, on real attributes: only by identity is fine.
        """
        value = specialised(value)
        if is_constant(value) or type(value) is AbstractTensor:
            return value
        if type(value) is tuple:
            self.world.read(value)
            parts = tuple(self.check_hashable(part) for part in value)
            return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
        method = lookup_special(type(value), "__hash__")
        if method is BLOCKED:
            raise UserException(TypeError(f"unhashable type: '{type(value).__name__}'"))
        if method is object.__hash__ or not isinstance(method, types.FunctionType):
            return value
        if not self.world.is_outside(value) and not self.overlay_of(value):
            # The trace's own object: its attributes are where its methods look. C code calls the method, as often as
            # it likes: it may do nothing but compute.
            if id(value) not in self.hashed:
                before = Changes(self, value)
                self.call(self.special(value, "__hash__"), [], {})
                changed = before.changed(self)
                if changed:
                    raise Break("c_reads_object", f"hashing a {type(value).__name__}, which {changed}")
                self.hashed.add(id(value))
                self.world.kept.append(value)
            return value
        if isinstance(value, torch.nn.Module):
            return value
        raise Break("c_reads_object", f"hashing a {type(value).__name__}")

    # Formatting

    def shown(self, value: Any) -> Shown:
        """What C code formats in place of a value."""
        return Shown(self, value)  # type: ignore[arg-type]  # parts are joined in Tracer

    def format(self, value: Any, conversion: str, specification: Any) -> str:
        value = specialised(value)
        if conversion:
            value = self.to_string(value, "__str__" if conversion == "s" else "__repr__")
            if conversion == "a":
                value = ascii(value)
        if type(value) is AbstractTensor:
            raise Break("tensor_to_python", "formatting a tensor")
        if self.is_python_method(value, "__format__"):
            result = self.call(self.special(value, "__format__"), [specification], {})
            if not isinstance(result, str):
                raise UserException(TypeError(f"__format__ must return a str, not {type(result).__name__}"))
            return result
        if lookup_special(type(value), "__format__") is OBJECT_FORMAT:
            self.world.guard_type(value)
            return self.native(object.__format__, value, specification) if specification else self._string_of(value)
        self.require_printable(value)
        return str(self.native(format, value, specification))

    def _string_of(self, value: Any) -> str:
        return self.to_string(value, "__str__")

    def to_string(self, value: Any, name: str) -> str:
        """`str(value)` or `repr(value)`."""
        value = self.as_dict(specialised(value))
        if type(value) is AbstractTensor:
            raise Break("tensor_to_python", "printing a tensor")
        method = name
        if name == "__str__" and lookup_special(type(value), "__str__") is object.__dict__["__str__"]:
            method = "__repr__"
        if self.is_python_method(value, method) and not isinstance(value, (enum.Enum, type)):
            self.world.guard_type(value)
            result = self.call(self.special(value, method), [], {})
            if not isinstance(result, str):
                text = f"{method} returned non-string (type {type(result).__name__})"
                raise UserException(TypeError(text))
            return result
        if isinstance(value, (list, tuple, dict, set, frozenset, collections.deque)) and not is_constant(value):
            shown = self._container_text(value)
            if shown is not None:
                return shown
        self.require_printable(value)
        if isinstance(value, BaseException) and any(isinstance(arg, SYMBOLIC) for arg in value.args):
            # It shows numbers that vary: one of the same kind that shows what they are in this call.
            make = type(value).__new__
            if not isinstance(make, types.BuiltinFunctionType):
                raise Break("c_reads_object", f"the text of a {type(value).__name__}")
            value = self.native(make, type(value), *map(specialised, value.args))
        return str(self.native(str if name == "__str__" else repr, value))

    def _container_text(self, value: Any) -> str | None:
        """How a builtin container shows itself, its parts shown by the program; None for kinds with other forms."""
        form = CONTAINER_FORMS.get(lookup_special(type(value), "__repr__"))
        if form is None:
            return None
        self.world.read(value)
        opening, closing, empty = form
        if id(value) in self.showing:
            return f"{opening}...{closing}"
        if not len(value):
            return empty or opening + closing
        self.showing.add(id(value))
        try:
            if isinstance(value, dict):
                parts = [
                    f"{self.to_string(key, '__repr__')}: {self.to_string(held, '__repr__')}"
                    for key, held in entries(value)
                ]
            else:
                parts = [self.to_string(part, "__repr__") for part in self.listed_of_c(value)]
        finally:
            self.showing.discard(id(value))
        if isinstance(value, tuple) and len(parts) == 1:
            return f"({parts[0]},)"
        return f"{opening}{', '.join(parts)}{closing}"

    @staticmethod
    def listed_of_c(value: Any) -> list[Any]:
        """The elements as the builtin type itself gives them."""
        base = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
        return list(base.__iter__(value))

    def require_printable(self, value: Any) -> None:
        """Break unless C code may print `value`: everything it shows is guarded."""
        if type(value) in NUMBERS or guard_kind(value) is not None:
            return
        if isinstance(value, (list, tuple, dict, set, frozenset, collections.deque)):
            self.world.read(value)
            parts = [*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else list(value)
            for part in parts:
                if type(part) is AbstractTensor:
                    raise Break("tensor_to_python", "printing a tensor")
                if self.is_python_method(part, "__repr__"):
                    raise Break("c_reads_object", f"printing a {type(part).__name__} in a container")
                self.require_printable(part)
            return
        if isinstance(value, BaseException):
            self.require_printable(value.args)
            return
        if type(value) in C_VALUES and type(value) is not object:
            return
        raise Break("c_reads_object", f"printing a {type(value).__name__}")
