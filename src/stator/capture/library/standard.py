"""Functions of the standard library that C code implements, or that look at what the interpreter keeps aside."""

from __future__ import annotations

import _thread
import collections
import copy
import copyreg
import dataclasses
import functools
import inspect
import itertools
import operator
import os
import re
import reprlib
import sys
import types
import typing
import weakref
from typing import TYPE_CHECKING, Any

import torch

from stator.capture.control import Break, UserException
from stator.capture.instance_dicts import InstanceDict
from stator.capture.nonstrict import autograd_function, scripted_function
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
    """What needs no protocol; for all else the standard library's own function is interpreted."""
    if len(args) != 1 or kwargs:
        return NotImplemented
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
    return _shallow(tracer, value) if _is_plain(kind) and _answers_plainly(tracer, value) else NotImplemented


def _shallow(tracer: Tracer, value: Any) -> Any:
    tracer.world.guard_type(value)
    made = object.__new__(type(value))
    made.__dict__.update(_names_of(tracer, value))
    return made


def _names_of(tracer: Tracer, value: Any) -> dict[str, Any]:
    return tracer.instance_snapshot(InstanceDict(value)) if tracer.world.is_outside(value) else dict(value.__dict__)


class _OwnProtocol(Exception):
    """Something to be copied says itself how."""


def _deepcopy(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Copies of builtin containers and plain instances; for all else `copy.deepcopy` itself is interpreted."""
    if len(args) != 1 or kwargs:
        return NotImplemented
    try:
        return _deep(tracer, args[0], {})
    except _OwnProtocol:
        return NotImplemented


def _deep(tracer: Tracer, part: Any, memo: dict[int, Any]) -> Any:
    kind = type(part)
    if is_constant(part) or isinstance(part, (types.FunctionType, type, torch.SymInt, torch.SymFloat)):
        return part
    if id(part) in memo:
        return memo[id(part)]
    made: Any
    if kind is list:
        tracer.world.read(part)
        made = memo[id(part)] = []
        made.extend(_deep(tracer, inner, memo) for inner in part)
    elif kind is dict:
        tracer.world.read(part)
        made = memo[id(part)] = {}
        for key, inner in part.items():
            made[_deep(tracer, key, memo)] = _deep(tracer, inner, memo)
    elif kind is tuple:
        tracer.world.read(part)
        made = tuple(_deep(tracer, inner, memo) for inner in part)
        if all(new is old for new, old in zip(made, part, strict=True)):
            made = part
        made = memo.setdefault(id(part), made)  # a part may have been the way back here
    elif kind is set:
        tracer.world.read(part)
        made = memo[id(part)] = {_deep(tracer, inner, memo) for inner in part}
    elif not _is_plain(kind) or tracer.is_python_method(part, "__deepcopy__") or not _answers_plainly(tracer, part):
        raise _OwnProtocol
    else:
        tracer.world.guard_type(part)
        made = memo[id(part)] = object.__new__(kind)
        for name, held in _names_of(tracer, part).items():
            made.__dict__[name] = _deep(tracer, held, memo)
    return made


def _answers_plainly(tracer: Tracer, value: Any) -> bool:
    """Whether a class's own `__getattribute__`, if it has one, gives `object`'s methods for copying."""
    if type(value).__getattribute__ is object.__getattribute__:
        return True
    names = [name for name in ("__reduce_ex__", "__getstate__") if hasattr(object, name)]
    found = [tracer.load_attr(value, name) for name in names]
    return all(
        type(method) is types.BuiltinFunctionType and method.__name__ == name
        for name, method in zip(names, found, strict=True)
    )


def _is_plain(kind: type) -> bool:
    """Whether instances keep their state in `__dict__` alone, and `object` says how they are copied."""
    return (
        kind not in copyreg.dispatch_table
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not hasattr(kind, "__setstate__")
        and not hasattr(kind, "__getnewargs_ex__")
        and kind.__new__ is object.__new__
        and not issubclass(kind, torch.nn.Module)
        and not any(base.__dict__.get("__slots__") for base in kind.__mro__)
    )


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
    return (None, None, None) if error is None else (type(error), error, tracer.traceback_of(error))


def _exception(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.handled


def _singledispatch(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    raise Break("opaque_callable", "functools.singledispatch inside a compiled function")


def _itemgetter(tracer: Tracer, getter: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    keys = getter.__reduce__()[1]
    if len(args) != 1 or kwargs:
        return tracer.native(getter, *args, **kwargs)
    found = tuple(tracer.get_item(args[0], key) for key in keys)
    return found[0] if len(keys) == 1 else found


def _attrgetter(tracer: Tracer, getter: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = getter.__reduce__()[1]
    if len(args) != 1 or kwargs:
        return tracer.native(getter, *args, **kwargs)
    found = []
    for dotted in names:
        value = args[0]
        for name in dotted.split("."):
            value = tracer.load_attr(value, name)
        found.append(value)
    return found[0] if len(names) == 1 else tuple(found)


def _methodcaller(tracer: Tracer, caller: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return tracer.native(caller, *args, **kwargs)
    build, first = caller.__reduce__()
    named = build.keywords if isinstance(build, functools.partial) else {}
    name, *rest = build.args if isinstance(build, functools.partial) else first
    return tracer.call(tracer.load_attr(args[0], name), [*rest, *(first if named else ())], dict(named))


def _dispatch(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`singledispatch`'s choice for a class; what is registered is guarded."""
    implementation = tracer.native(function, *args, **kwargs)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    registry = cells["registry"].cell_contents
    source = tracer.tree.const(registry)
    source.guard("KEYS", tuple(registry), tracer.location())
    for cls, held in registry.items():
        if held is implementation:
            source.child("KEY", cls).guard("IS", held, tracer.location())
    return implementation


def _fspath(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and tracer.is_python_method(args[0], "__fspath__"):
        return tracer.call(tracer.special(args[0], "__fspath__"), [], {})
    return _native_on_constants(os.fspath)(tracer, args, kwargs)


def _get_ident(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The thread's number, where it only keeps recursive calls of `__repr__` apart."""
    if tracer.frames[-1].code.co_filename in (reprlib.__file__, dataclasses.__file__):
        return 0
    return NotImplemented


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


def _referent(tracer: Tracer, reference: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calling a weak reference from outside: what it points to is the user's; that it is gone is a fact, too."""
    source = tracer.world.source_of(reference)
    if source is None or args or kwargs:
        return tracer.native(reference, *args, **kwargs)
    tracer.world.guard_type(reference)
    return tracer.world.load(reference(), source.child("REFERENT"))


GETTERS: dict[type, Any] = {
    torch.jit.ScriptFunction: scripted_function,
    operator.itemgetter: _itemgetter,
    operator.attrgetter: _attrgetter,
    operator.methodcaller: _methodcaller,
}
INSTANCES: dict[type, Any] = {**GETTERS, weakref.ref: _referent, weakref.KeyedRef: _referent}
CODES: dict[types.CodeType, Any] = {functools.singledispatch(_cast).dispatch.__code__: _dispatch}


def _getter(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Immutable objects that C makes and that only remember what they were given."""
    if not all(is_constant(arg) for arg in (*args, *kwargs.values())):
        raise Break("opaque_callable", f"making a {cls.__name__} of what is no constant")
    return tracer.native(cls, *args, **kwargs)


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
    os.fspath: _fspath,
    _thread.get_ident: _get_ident,
    sys.exc_info: _exc_info,
    sys.exception: _exception,
    **{
        getattr(re, name): _regular_expression(getattr(re, name))
        for name in ("match", "search", "fullmatch", "sub", "subn", "split", "findall", "compile", "escape", "finditer")
    },
    **{function: _native_on_constants(function) for function in CONSTANT_FUNCTIONS},
}
CLASSES: dict[type, Any] = {functools.partial: _partial, **dict.fromkeys(GETTERS, _getter)}
