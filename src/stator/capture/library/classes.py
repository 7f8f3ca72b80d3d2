"""Builtin classes as callables: conversions, containers and iterator objects."""

from __future__ import annotations

import collections
import itertools
import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from stator.capture.control import Break, UserException
from stator.capture.operators import specialised
from stator.tensors.abstract import AbstractTensor

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


def _type(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if cls is type and len(args) == 1:
        return tracer.type_of(args[0])
    if cls is type and len(args) == 3:
        return tracer.make_class(type.__new__, type, args, kwargs)
    return NotImplemented


def _super(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        return tracer.implicit_super(tracer.frames[-1])
    return tracer.make_super(*args) if len(args) == 2 else NotImplemented


def _listed(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) > 1:
        return tracer.native(cls, *args, **kwargs)
    items = tracer.listed(args[0]) if args else []
    if cls in (set, frozenset):
        items = [tracer.check_hashable(item) for item in items]
    return tracer.native(cls, items)


def _tuple(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args and type(args[0]) is tuple:
        return args[0]
    return _listed(tracer, cls, args, kwargs)


def _dict(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    made: Any = cls()
    if cls is collections.defaultdict and args:
        made = tracer.native(collections.defaultdict, args[0])
        args = args[1:]
    if args or kwargs:
        tracer.call(made.update, args[:1], kwargs)
    return made


def _deque(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = kwargs.pop("iterable", args[0] if args else ())
    return tracer.native(collections.deque, tracer.listed(items), *args[1:], **kwargs)


# What a number is made from, if not by its own special method.
CONVERSIONS: dict[type, tuple[str, ...]] = {
    int: ("__index__", "__trunc__"), float: ("__index__",), complex: ("__float__", "__index__")
}  # fmt: skip


def _number(name: str) -> Any:
    def handler(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or kwargs:
            return tracer.native(cls, *map(specialised, args), **kwargs)
        value = args[0]
        kind = type(value)
        if kind is AbstractTensor:
            return tracer.scalar_of(value, cls)
        if kind is torch.SymInt:
            if cls is int:
                return value
            return tracer.native(torch.sym_float if cls is float else cls, value)
        if kind is torch.SymFloat:
            return value if cls is float else tracer.native(torch.sym_int if cls is int else cls, value)
        for method in (name, *CONVERSIONS[cls]):
            if tracer.is_python_method(value, method):
                result = tracer.call(tracer.special(value, method), [], {})
                return result if type(result) in (cls, torch.SymInt) else tracer.judged(cls, value, method, result)
        tracer.require_c_value(value, cls.__name__)
        return tracer.native(cls, value)

    return handler


def _bool(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return bool(tracer.truth(args[0])) if args else False


def _str(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return tracer.native(str, *args, **kwargs)
    return tracer.to_string(args[0], "__str__")


def _range(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(range, *[tracer.index_of(arg) for arg in args], **kwargs)


def _slice(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(slice, *args)


def _over_iterables(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(cls, *tracer.for_c(args), **kwargs)


def _enumerate(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(cls, *tracer.for_c(args[:1]), *args[1:], **kwargs)


def _with_callback(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The callable comes first: `map`, `filter`, `takewhile` ..."""
    function = args[0]
    if function is None or (cls is not map and function is bool):
        wrapped = tracer.proxy_truth
        tracer.proxied[id(wrapped)] = function
        tracer.world.kept.append(wrapped)
    else:
        wrapped = tracer.callable_for_c(function)
        if cls is not map and cls is not itertools.starmap:
            wrapped = tracer.proxy_predicate(function)
    return tracer.native(cls, wrapped, *tracer.for_c(args[1:]), **kwargs)


def _callback_second(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`accumulate(iterable, function)`, `groupby(iterable, key)`."""
    rest = [tracer.callable_for_c(arg) for arg in args[1:2]]
    named = {
        key: tracer.callable_for_c(value) if key in ("func", "key") and value is not None else value
        for key, value in kwargs.items()
    }
    if cls is itertools.accumulate and not rest and named.get("func") is None:
        rest = [_added(tracer)]
    return tracer.native(cls, *tracer.for_c(args[:1]), *rest, **named)


def _added(tracer: Tracer) -> Any:
    def added(left: Any, right: Any) -> Any:
        return tracer.from_c(tracer.binary, "+", left, right)

    tracer.proxied[id(added)] = operator.add
    tracer.world.kept.append(added)
    return added


def _plain(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    for arg in args:
        tracer.require_c_value(arg, cls.__name__)
        tracer.world.read_deep(arg)
    return tracer.native(cls, *args, **kwargs)


def _stored(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Classes that only keep what they are given."""
    return tracer.native(cls, *args, **kwargs)


def _reversed(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    if type(value) is AbstractTensor:
        return tracer.operate(torch.Tensor.flip, (value, 0), {}) if value.shape else value
    if tracer.is_python_method(value, "__reversed__"):
        return tracer.call(tracer.special(value, "__reversed__"), [], {})
    if tracer.is_python_method(value, "__getitem__"):
        size = tracer.length(value)
        return iter([tracer.get_item(value, index) for index in range(size - 1, -1, -1)])
    tracer.world.read(value)
    return tracer.native(reversed, value)


def _size(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(torch.Size, *[tracer.listed(arg) for arg in args])


def _exception_group(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(cls, args[0], tracer.listed(args[1])) if len(args) == 2 else NotImplemented


def _object(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(object, *args, **kwargs)


def _bound_method(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not callable(args[0]):
        raise UserException(TypeError("first argument must be callable"))
    return types.MethodType(*args)


def _refuse(what: str) -> Any:
    def handler(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise Break("opaque_callable", what)

    return handler


CLASSES: dict[type, Any] = {
    type: _type,
    super: _super,
    list: _listed,
    tuple: _tuple,
    set: _listed,
    frozenset: _listed,
    dict: _dict,
    collections.OrderedDict: _dict,
    collections.defaultdict: _dict,
    collections.deque: _deque,
    int: _number("__int__"),
    float: _number("__float__"),
    complex: _number("__complex__"),
    bool: _bool,
    str: _str,
    range: _range,
    slice: _slice,
    bytes: _plain,
    bytearray: _plain,
    object: _object,
    enumerate: _enumerate,
    zip: _over_iterables,
    reversed: _reversed,
    map: _with_callback,
    filter: _with_callback,
    itertools.chain: _over_iterables,
    itertools.islice: _enumerate,
    itertools.cycle: _over_iterables,
    itertools.product: _over_iterables,
    itertools.zip_longest: _over_iterables,
    itertools.permutations: _enumerate,
    itertools.combinations: _enumerate,
    itertools.combinations_with_replacement: _enumerate,
    itertools.compress: _over_iterables,
    itertools.pairwise: _over_iterables,
    itertools.count: _plain,
    itertools.repeat: _stored,
    itertools.starmap: _with_callback,
    itertools.takewhile: _with_callback,
    itertools.dropwhile: _with_callback,
    itertools.filterfalse: _with_callback,
    itertools.accumulate: _callback_second,
    itertools.groupby: _callback_second,
    property: _stored,
    staticmethod: _stored,
    classmethod: _stored,
    types.MethodType: _bound_method,
    types.SimpleNamespace: _stored,
    torch.Size: _size,
    torch.device: _plain,
    torch.finfo: _plain,
    torch.iinfo: _plain,
    ExceptionGroup: _exception_group,
    BaseExceptionGroup: _exception_group,
    memoryview: _refuse("memoryview"),
}
