"""Methods of builtin types: what each reads of its arguments, and whether it calls back.

Contract. `call_c_method` runs a C method on values of the trace. Containers from outside are shadows here, so a method
may change its target freely; what matters is what it *reads*, since that needs guards, and whether it would run
code of the program (comparing, hashing, calling), which must go through the interpreter.

    row            meaning
    reads          "none" what is there stays where it is and is not looked at; "length"; "key" one entry; "all"
                   it is looked at, or moved; "overwrite" all of it goes
    arguments      "store" kept as they are; "iterable" consumed; "key" hashed; "compare" compared with elements;
                   "value" C reads them deeply
"""

from __future__ import annotations

import collections
import contextlib
import re
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from stator.capture.control import Break, UserException
from stator.capture.operators import specialised
from stator.capture.shown import Shown
from stator.capture.symbolic import SYMBOLIC
from stator.tensors.abstract import AbstractTensor
from stator.values.constants import is_constant

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


class Row(NamedTuple):
    """What a method reads, and what its arguments are to it."""

    reads: str
    arguments: str


LIST = {
    "append": Row("none", "store"), "insert": Row("all", "store"), "extend": Row("none", "iterable"),
    "clear": Row("overwrite", "store"), "copy": Row("all", "store"), "pop": Row("all", "store"),
    "reverse": Row("all", "store"), "index": Row("all", "compare"), "count": Row("all", "compare"),
    "remove": Row("all", "compare"), "sort": Row("all", "callback"), "__len__": Row("length", "store"),
    "__getitem__": Row("item", "store"), "__setitem__": Row("item", "store"), "__delitem__": Row("item", "store"),
    "__contains__": Row("contains", "store"), "__iter__": Row("all", "store"),
    "__init__": Row("overwrite", "iterable"),
    "__reversed__": Row("all", "store"), "__add__": Row("operator", "store"), "__iadd__": Row("none", "iterable"),
    "__mul__": Row("all", "value"), "__imul__": Row("all", "value"), "__rmul__": Row("all", "value"),
    "__eq__": Row("operator", "store"), "__ne__": Row("operator", "store"), "__lt__": Row("operator", "store"),
    "__le__": Row("operator", "store"), "__gt__": Row("operator", "store"), "__ge__": Row("operator", "store"),
    "__repr__": Row("print", "store"), "__str__": Row("print", "store"), "__hash__": Row("none", "store"),
}  # fmt: skip
DEQUE = {
    **LIST, "appendleft": Row("all", "store"), "extendleft": Row("all", "iterable"),
    "popleft": Row("all", "store"), "rotate": Row("all", "value"), "append": Row("all", "store"),
    "extend": Row("all", "iterable"), "__iadd__": Row("all", "iterable"), "__init__": Row("all", "iterable"),
}  # fmt: skip
DICT = {
    "get": Row("key", "key"), "setdefault": Row("key", "key"), "pop": Row("key", "key"),
    "popitem": Row("all", "store"), "keys": Row("all", "store"), "values": Row("all", "store"),
    "items": Row("all", "store"), "update": Row("none", "mapping"), "clear": Row("overwrite", "store"),
    "copy": Row("all", "store"), "__len__": Row("length", "store"), "__getitem__": Row("item", "store"),
    "__setitem__": Row("item", "store"), "__delitem__": Row("item", "store"),
    "__contains__": Row("contains", "store"), "__iter__": Row("all", "store"), "__init__": Row("none", "mapping"),
    "__reversed__": Row("all", "store"), "move_to_end": Row("all", "key"), "fromkeys": Row("none", "iterable"),
    "__eq__": Row("operator", "store"), "__ne__": Row("operator", "store"), "__or__": Row("operator", "store"),
    "__ior__": Row("none", "mapping"), "__ror__": Row("operator", "store"), "__repr__": Row("print", "store"),
    "__str__": Row("print", "store"), "most_common": Row("all", "value"), "__hash__": Row("none", "store"),
}  # fmt: skip
SET = {
    **dict.fromkeys(
        ("update", "union", "intersection", "difference", "symmetric_difference", "intersection_update",
         "difference_update", "symmetric_difference_update", "issubset", "issuperset", "isdisjoint", "__init__"),
        Row("all", "iterable"),
    ),
    **dict.fromkeys(("add", "discard", "remove", "__contains__"), Row("all", "key")),
    **dict.fromkeys(("clear", "copy", "pop", "__len__", "__iter__"), Row("all", "store")),
    **dict.fromkeys(
        ("__or__", "__and__", "__sub__", "__xor__", "__ior__", "__iand__", "__isub__", "__ixor__", "__eq__",
         "__ne__", "__le__", "__lt__", "__ge__", "__gt__", "__ror__", "__rand__", "__rsub__", "__rxor__"),
        Row("operator", "store"),
    ),
    "__repr__": Row("print", "store"), "__hash__": Row("all", "store"),
}  # fmt: skip
TUPLE = {name: row for name, row in LIST.items() if name in tuple.__dict__} | {
    "__hash__": Row("all", "hash"), "__new__": Row("none", "iterable"),
}  # fmt: skip
TABLES: list[tuple[Any, dict[str, Row]]] = [
    (list, LIST),
    (collections.deque, DEQUE),
    (dict, DICT),
    (set, SET),
    (frozenset, SET),
    (tuple, TUPLE),
]
# Immutable builtin values: every method only computes.
VALUES: tuple[type, ...] = (
    str, bytes, int, float, complex, range, slice, type(None), torch.Size, torch.dtype, torch.device, bytearray,
    memoryview, type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType,
    re.Match, re.Pattern, types.GenericAlias, types.UnionType,
)  # fmt: skip
OPERATORS = {
    "__add__": "+", "__or__": "|", "__and__": "&", "__sub__": "-", "__xor__": "^", "__ior__": "|=", "__iand__": "&=",
    "__isub__": "-=", "__ixor__": "^=",
}  # fmt: skip
COMPARISONS = {"__eq__": "==", "__ne__": "!=", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


def call_c_method(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run a method of a builtin type; `args[0]` is its target."""
    name, target = function.__name__, args[0]
    if isinstance(target, SYMBOLIC):
        args[0] = target = specialised(target)  # `int.bit_length`: C wants the number itself
    owner = function.__objclass__ if hasattr(function, "__objclass__") else type(target)
    if owner is object:
        return _object_method(tracer, function, name, args, kwargs)
    for kind, table in TABLES:
        if issubclass(owner, kind) and isinstance(target, kind):
            row = table.get(name)
            if row is None:
                break
            return _run(tracer, row, function, name, args, kwargs)
    if type(target) is types.GeneratorType:
        return _generator_method(tracer, function, name, args, kwargs)
    if isinstance(target, VALUES):
        return _value_method(tracer, function, name, args, kwargs)
    if isinstance(target, BaseException) and not tracer.world.is_outside(target):
        return tracer.native(function, *args, **kwargs)
    if tracer.is_plain_iterator(target) and not tracer.world.is_outside(target):
        return tracer.native(function, *args, **kwargs)
    if name in ("__get__", "__set__") and type(target) is types.GetSetDescriptorType and len(args) > 1:
        if type(args[1]) is AbstractTensor and issubclass(torch.Tensor, target.__objclass__):
            if name == "__get__":
                return tracer.tensor_attr(args[1], target.__name__)
            return tracer.store_tensor_attr(args[1], target.__name__, args[2])
    if name in ("__get__", "__call__") and not tracer.world.is_outside(target):
        return _descriptor_method(tracer, function, name, args, kwargs)
    if isinstance(target, type(contextlib.nullcontext)) and name in ("mro", "__subclasses__"):
        return tracer.native(function, *args)
    if type(function).__name__ == "method-wrapper" or owner in (types.FunctionType, types.MethodType):
        return _descriptor_method(tracer, function, name, args, kwargs)
    raise Break("opaque_callable", f"{owner.__name__}.{name}")


def _run(tracer: Tracer, row: Row, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, rest = args[0], args[1:]
    world = tracer.world
    if row.reads == "item":
        if name == "__getitem__":
            return tracer.get_item_of_c(target, *rest)
        if name == "__setitem__":
            return tracer.set_item_of_c(target, *rest)
        return tracer.delete_item_of_c(target, *rest)
    if row.reads == "contains":
        return tracer.contains_of_c(target, *rest)
    if row.reads == "print":
        tracer.require_printable(target)
        return tracer.native(function, *args)
    if row.reads == "operator":
        world.read_deep(target)
        for part in rest:
            world.read_deep(part)
        if name in COMPARISONS:
            if type(target) is type(rest[0]) or isinstance(rest[0], (list, tuple, dict, set, frozenset)):
                return tracer.compare_containers(COMPARISONS[name], target, rest[0])
            return tracer.native(function, *args)
        return tracer.native(function, *args)
    if row.reads == "all":
        world.read(target)
    elif row.reads == "overwrite":
        world.overwrite(target)
    elif row.reads == "length":
        world.read_length(target)
    elif row.reads == "key" and rest:
        rest = [tracer.check_hashable(rest[0]), *rest[1:]]
        world.read_key(target, rest[0])
    if row.arguments == "iterable":
        if isinstance(target, (set, frozenset)) or name == "fromkeys":
            rest = [tracer.listed(part) if not isinstance(part, (set, frozenset, list)) else part for part in rest]
            for part in rest:
                world.read(part)
            rest = [[tracer.check_hashable(item) for item in part] if type(part) is list else part for part in rest]
        else:
            rest = tracer.for_c(rest)
    elif row.arguments == "mapping":
        return _update(tracer, function, target, rest, kwargs)
    elif row.arguments == "key":
        rest = [*map(tracer.check_hashable, rest[:1]), *rest[1:]]
    elif row.arguments == "compare":
        return _search(tracer, function, name, target, rest)
    elif row.arguments == "callback":
        return _sort(tracer, target, kwargs)
    elif row.arguments == "hash":
        tracer.check_hashable(target)
    return tracer.native(function, target, *rest, **kwargs)


def _update(tracer: Tracer, function: Any, target: Any, rest: list[Any], kwargs: dict[str, Any]) -> Any:
    """`update(mapping or pairs, **named)`, and the constructors that do the same."""
    if isinstance(target, collections.defaultdict) and function.__name__ == "__init__":
        if rest:
            target.default_factory = rest[0]
        rest = rest[1:]
    pairs: dict[Any, Any] = {}
    if rest:
        source = rest[0]
        if isinstance(source, dict) or hasattr(type(source), "keys"):
            pairs = tracer.pairs_of(source)
        else:
            for index, pair in enumerate(tracer.listed(source)):
                if type(pair) is not AbstractTensor and not hasattr(type(pair), "__iter__"):
                    text = f"cannot convert dictionary update sequence element #{index} to a sequence"
                    raise UserException(TypeError(text))
                parts = tracer.listed(pair)
                if len(parts) != 2:
                    text = f"dictionary update sequence element #{index} has length {len(parts)}; 2 is required"
                    raise UserException(ValueError(text))
                pairs[tracer.check_hashable(parts[0])] = parts[1]
    world = tracer.world
    for key, value in (*pairs.items(), *kwargs.items()):
        key = tracer.check_hashable(key)
        world.read_key(target, key)
        put = collections.OrderedDict.__setitem__ if isinstance(target, collections.OrderedDict) else dict.__setitem__
        if type(target).__setitem__ not in (dict.__setitem__, collections.OrderedDict.__setitem__):
            put = dict.__setitem__
        tracer.native(put, target, key, value)
    return target if function.__name__ == "__ior__" else None


def _search(tracer: Tracer, function: Any, name: str, target: Any, rest: list[Any]) -> Any:
    """`index`, `count`, `remove`: comparisons go through the interpreter."""
    if not rest:
        return tracer.native(function, target)
    wanted = rest[0]
    start, stop = 0, len(target)
    if name == "index" and len(rest) > 1:
        start, stop, _ = slice(rest[1], rest[2] if len(rest) > 2 else None).indices(len(target))
    count = 0
    for index in range(start, stop):
        if index >= len(target):
            break  # a comparison made it shorter
        part = target[index]
        if tracer.identical(part, wanted) or tracer.truth(tracer.compare("==", part, wanted)):
            if name == "index":
                return index
            if name == "remove":
                del target[index]
                return None
            count += 1
    if name == "count":
        return count
    if name == "remove":
        raise UserException(ValueError(f"{type(target).__name__}.remove(x): x not in {type(target).__name__}"))
    if isinstance(target, list):
        raise UserException(ValueError(f"{wanted!r} is not in list"))
    raise UserException(ValueError(f"{type(target).__name__}.index(x): x not in {type(target).__name__}"))


def _sort(tracer: Tracer, target: Any, kwargs: dict[str, Any]) -> None:
    ordered = tracer.sorted_values(list(target), kwargs.get("key"), kwargs.get("reverse", False))
    target[:] = ordered


def _generator_method(tracer: Tracer, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if id(args[0]) not in tracer.generators:
        raise Break("foreign_iterator", "a generator made outside of the compiled function")
    return tracer.native(function, *args, **kwargs)


def _value_method(tracer: Tracer, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Methods of immutable values: arguments are read deeply, iterables consumed."""
    tracer.require_own_bytes(args[0])
    if name in ("join", "fromkeys", "maketrans") and len(args) > 1:
        args = [args[0], *tracer.for_c(args[1:])]
        if name == "join":
            args[1] = tracer.listed(args[1])
    elif name == "format":
        kwargs = dict(kwargs)
        args = [args[0], *[_printable(tracer, part) for part in args[1:]]]
        kwargs = {key: _printable(tracer, part) for key, part in kwargs.items()}
    elif name in ("sub", "subn") and isinstance(args[0], re.Pattern) and len(args) > 1 and callable(args[1]):
        args = [args[0], tracer.callable_for_c(args[1]), *args[2:]]
        return tracer.native(function, *args, **kwargs) if all(map(is_constant, args[2:])) else NotImplemented
    for part in (*args[1:], *kwargs.values()):
        if type(part) is AbstractTensor:
            if name.startswith("__"):
                return NotImplemented
            raise Break("tensor_to_python", f"{type(args[0]).__name__}.{name}")
        tracer.require_c_value(part, name)
        tracer.world.read_deep(part)
    return tracer.native(function, *args, **kwargs)


def _printable(tracer: Tracer, value: Any) -> Any:
    return value if type(value) in (int, float, str, bool) else Shown(tracer, value)


def _object_method(tracer: Tracer, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What every object has from `object`."""
    target = args[0]
    if name == "__setattr__":
        return tracer.raw_store(*args)
    if name == "__delattr__":
        return tracer.raw_delete(*args)
    if name == "__getattribute__":
        return tracer.generic_attribute(*args)
    if name == "__init__":
        return None
    if name in ("__eq__", "__ne__"):
        same = tracer.identical(target, args[1])
        if name == "__eq__":
            return True if same else NotImplemented
        return False if same else NotImplemented
    if name == "__hash__":
        source = tracer.world.source_of(target)
        if source is not None:
            source.guard("IS", tracer.world.original_of(target), tracer.location())
        return tracer.native(function, tracer.world.original_of(target))
    if name in ("__repr__", "__str__"):
        raise Break("c_reads_object", f"the default {name} shows an address")
    if name in ("__lt__", "__le__", "__gt__", "__ge__"):
        return NotImplemented
    if name == "__format__":
        return tracer.to_string(target, "__str__")
    if name == "__dir__" or name.startswith("__reduce") or name == "__sizeof__":
        raise Break("c_reads_object", f"object.{name}")
    if name == "__init_subclass__" or name == "__subclasshook__":
        return tracer.native(function, *args, **kwargs)
    raise Break("opaque_callable", f"object.{name}")


def _descriptor_method(tracer: Tracer, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target = args[0]
    if name == "__call__":
        return tracer.call(target, args[1:], kwargs)
    if name == "__get__" and isinstance(target, (types.FunctionType, types.MethodType)):
        return types.MethodType(target, args[1]) if args[1] is not None else target
    raise Break("opaque_callable", f"{type(target).__name__}.{name}")
