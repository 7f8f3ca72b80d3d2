"""Functions of the standard library that C code implements, or that look at what the interpreter keeps aside."""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import itertools
import re
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from stator.capture.control import Break, UserException
from stator.capture.instance_dicts import InstanceDict
from stator.capture.nonstrict import autograd_function
from stator.values.constants import guard_kind, is_constant

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


def _reduce(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, values = args[0], tracer.listed(args[1])
    if len(args) > 2:
        total = args[2]
    elif values:
        total, values = values[0], values[1:]
    else:
        raise UserException(TypeError("reduce() of empty iterable with no initial value"))
    for value in values:
        total = tracer.call(function, [total, value], {})
    return total


def _partial(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, rest = args[0], args[1:]
    if tracer.world.is_outside(function) and isinstance(function, functools.partial):
        inner = tracer.load_attr(function, "func")
        before = tracer.load_attr(function, "args")
        named = tracer.pairs_of(tracer.load_attr(function, "keywords"))
        tracer.world.read(before)
        return tracer.native(cls, inner, *before, *rest, **{**named, **kwargs})
    return tracer.native(cls, function, *rest, **kwargs)


def _lru_cache(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    raise Break("opaque_callable", "functools.lru_cache inside a compiled function")


def _chain_from_iterable(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    outer = tracer.for_c(args[:1])[0]

    def walk() -> Any:
        for inner in outer:
            yield from tracer.from_c(tracer.native_iterator, inner)

    return walk_as_iterator(walk())


def walk_as_iterator(generator: Any) -> Any:
    """A chain over one generator: an iterator of the kind the program asked for."""
    return itertools.chain(generator)


def _tee(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(itertools.tee, *tracer.for_c(args[:1]), *args[1:])


def _copy(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    if is_constant(value):
        return value
    kind = type(value)
    if kind in (list, dict, set, collections.OrderedDict, collections.deque):
        tracer.world.read(value)
        return kind(value) if kind is not collections.deque else collections.deque(value, value.maxlen)
    if kind is tuple:
        return value
    if tracer.is_python_method(value, "__copy__"):
        return tracer.call(tracer.special(value, "__copy__"), [], {})
    if not tracer.world.is_outside(value) and kind.__reduce_ex__ is object.__reduce_ex__:
        return tracer.native(copy.copy, value)
    raise Break("c_reads_object", f"copy.copy of a {kind.__name__}")


def _deepcopy(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    memo: dict[int, Any] = {}

    def copied(part: Any) -> Any:
        kind = type(part)
        if is_constant(part) or isinstance(part, (types.FunctionType, type)):
            return part
        if id(part) in memo:
            return memo[id(part)]
        if kind is list:
            tracer.world.read(part)
            made: Any = []
            memo[id(part)] = made
            made.extend(copied(inner) for inner in part)
            return made
        if kind is dict:
            tracer.world.read(part)
            made = memo[id(part)] = {}
            for key, inner in part.items():
                made[copied(key)] = copied(inner)
            return made
        if kind is tuple:
            tracer.world.read(part)
            return tuple(copied(inner) for inner in part)
        if kind is set:
            tracer.world.read(part)
            return {copied(inner) for inner in part}
        if tracer.is_python_method(part, "__deepcopy__"):
            return tracer.call(tracer.special(part, "__deepcopy__"), [{}], {})
        return _copied_instance(tracer, part, memo, copied)

    return copied(value)


def _copied_instance(tracer: Tracer, part: Any, memo: dict[int, Any], copied: Any) -> Any:
    """A deep copy of an instance that keeps its state in its `__dict__`, as `object.__reduce_ex__` has it."""
    kind = type(part)
    plain = (
        kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not hasattr(kind, "__setstate__")
        and not hasattr(kind, "__getnewargs_ex__")
        and kind.__new__ is object.__new__
        and not isinstance(part, torch.nn.Module)
        and not any(base.__dict__.get("__slots__") for base in kind.__mro__)
    )
    if not plain:
        raise Break("c_reads_object", f"copy.deepcopy of a {kind.__name__}")
    tracer.world.guard_type(part)
    made = object.__new__(kind)
    memo[id(part)] = made
    names = tracer.instance_snapshot(InstanceDict(part)) if tracer.world.is_outside(part) else dict(part.__dict__)
    for name, held in names.items():
        made.__dict__[name] = copied(held)
    return made


def _signature(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target = args[0]
    function = target.__func__ if isinstance(target, types.MethodType) else target
    if isinstance(function, (types.FunctionType, type)) or guard_kind(function) is not None:
        if isinstance(function, types.FunctionType):
            tracer.guard_function(function)
        return tracer.native(inspect.signature, target, *args[1:], **kwargs)
    if isinstance(function, torch.nn.Module):
        return _signature(tracer, [tracer.load_attr(function, "forward")], kwargs)
    raise Break("c_reads_object", "inspect.signature")


def _regular_expression(function: Any) -> Any:
    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if all(type(arg) in (str, bytes, int, re.Pattern) for arg in (*args, *kwargs.values())):
            return tracer.native(function, *args, **kwargs)
        return NotImplemented

    return handler


def _cast(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[1]


def _exc_info(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    error = tracer.handled
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _exception(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.handled


def _singledispatch(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    raise Break("opaque_callable", "functools.singledispatch inside a compiled function")


def _native_on_constants(function: Any) -> Any:
    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if all(is_constant(arg) for arg in (*args, *kwargs.values())):
            return tracer.native(function, *args, **kwargs)
        return NotImplemented

    return handler


CONSTANT_FUNCTIONS = (
    typing.get_origin, typing.get_args, inspect.isclass, inspect.isfunction, inspect.ismethod, inspect.isbuiltin,
    inspect.iscoroutinefunction, inspect.isgeneratorfunction, sys.intern, sys.getrecursionlimit,
    torch.typename, torch._jit_internal.is_scripting,
)  # fmt: skip


FUNCTIONS: dict[Any, Any] = {
    vars(torch.autograd.Function)["apply"].__func__: autograd_function,
    functools.reduce: _reduce,
    functools.lru_cache: _lru_cache,
    itertools.chain.from_iterable: _chain_from_iterable,
    itertools.tee: _tee,
    copy.copy: _copy,
    copy.deepcopy: _deepcopy,
    inspect.signature: _signature,
    typing.cast: _cast,
    sys.exc_info: _exc_info,
    sys.exception: _exception,
    **{
        getattr(re, name): _regular_expression(getattr(re, name))
        for name in ("match", "search", "fullmatch", "sub", "subn", "split", "findall", "compile", "escape", "finditer")
    },
    **{function: _native_on_constants(function) for function in CONSTANT_FUNCTIONS},
}
CLASSES: dict[type, Any] = {functools.partial: _partial}
