"""Builtin functions that are polymorphic: they end in special methods, which the interpreter runs."""

from __future__ import annotations

import builtins
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch

from stator.capture.control import Break, UserException
from stator.capture.frame import UNBOUND
from stator.capture.operators import BLOCKED, lookup_special, specialised
from stator.capture.symbolic import SYMBOLIC
from stator.tensors.abstract import AbstractTensor
from stator.values.constants import guard_kind

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer

MISSING = object()


def _len(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return tracer.native(len, *args, **kwargs)
    return tracer.length(args[0])


def _iter(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2:
        function = tracer.callable_for_c(args[0]) if callable(args[0]) else args[0]
        return tracer.native(iter, function, args[1])
    return tracer.iterate(args[0])


def _next(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not hasattr(type(args[0]), "__next__"):
        raise UserException(TypeError(f"'{type(args[0]).__name__}' object is not an iterator"))
    done, value = tracer.advance(args[0])
    if not done:
        return value
    if len(args) > 1:
        return args[1]
    raise UserException(StopIteration() if value is None else StopIteration(value))


def _isinstance(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return tracer.is_instance(*args)


def _issubclass(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(issubclass, *args)


def _getattr(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not isinstance(args[1], str):
        raise UserException(TypeError("attribute name must be string, not '" + type(args[1]).__name__ + "'"))
    if len(args) == 2:
        return tracer.load_attr(args[0], args[1])
    try:
        return tracer.load_attr(args[0], args[1])
    except UserException as error:
        if isinstance(error.value, AttributeError):
            return args[2]
        raise


def _hasattr(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    if not isinstance(args[1], str):
        raise UserException(TypeError("attribute name must be string, not '" + type(args[1]).__name__ + "'"))
    try:
        tracer.load_attr(args[0], args[1])
    except UserException as error:
        if isinstance(error.value, AttributeError):
            return False
        raise
    return True


def _require_name(name: Any) -> None:
    if not isinstance(name, str):
        raise UserException(TypeError(f"attribute name must be string, not '{type(name).__name__}'"))


def _setattr(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> None:
    _require_name(args[1])
    tracer.store_attr(args[0], args[1], args[2])


def _delattr(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> None:
    _require_name(args[1])
    tracer.delete_attr(args[0], args[1])


def _callable(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    if type(args[0]) is AbstractTensor:
        return False
    tracer.world.guard_type(args[0])
    return callable(args[0])


def _id(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> int:
    value = args[0]
    source = tracer.world.source_of(value)
    if source is None:
        return id(value)
    original = tracer.world.original_of(value)
    if type(value) is AbstractTensor:
        original = value.real
    source.guard("IS", original, tracer.location())
    return id(original)


def _hash(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    if tracer.is_python_method(value, "__hash__") and lookup_special(type(value), "__hash__") is not BLOCKED:
        return tracer.call(tracer.special(value, "__hash__"), [], {})
    if type(value) is AbstractTensor:
        return _id(tracer, args, kwargs)
    value = tracer.check_hashable(value)
    if type(value).__hash__ is object.__hash__:
        return hash(_id_holder(tracer, value))
    tracer.world.read_deep(value)
    return tracer.native(hash, value)


def _id_holder(tracer: Tracer, value: Any) -> Any:
    source = tracer.world.source_of(value)
    if source is not None and guard_kind(value) is None:
        source.guard("IS", tracer.world.original_of(value), tracer.location())
    return tracer.world.original_of(value)


def _repr(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> str:
    return tracer.to_string(args[0], "__repr__")


def _format(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> str:
    return tracer.format(args[0], "", args[1] if len(args) > 1 else "")


def _sum(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    total = args[1] if len(args) > 1 else kwargs.get("start", 0)
    if isinstance(total, (str, bytes, bytearray)):
        return tracer.native(sum, (), total)  # which refuses it
    for item in tracer.listed(args[0]):
        total = tracer.binary("+", total, item)
    return total


def _any(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return _quantify(tracer, args[0], True)


def _all(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return not _quantify(tracer, args[0], False)


def _quantify(tracer: Tracer, values: Any, wanted: bool) -> bool:
    iterator = tracer.iterate(values)
    while True:
        done, item = tracer.advance(iterator)
        if done:
            return False
        if bool(tracer.truth(item)) == wanted:
            return True


def _extreme(symbol: str, function: Any) -> Any:
    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        default = kwargs.get("default", MISSING)
        key = kwargs.get("key")
        values = tracer.listed(args[0]) if len(args) == 1 else list(args)
        if not values:
            if default is not MISSING:
                return default
            return tracer.native(function, [])
        kinds = {type(value) for value in values}
        if key is None and torch.SymInt in kinds and kinds <= {torch.SymInt, int}:
            combine = torch.sym_max if function is max else torch.sym_min
            return functools.reduce(lambda left, right: tracer.native(combine, left, right), values)
        best = values[0]
        best_key = best if key is None else tracer.call(key, [best], {})
        for value in values[1:]:
            value_key = value if key is None else tracer.call(key, [value], {})
            if tracer.truth(tracer.compare(symbol, value_key, best_key)):
                best, best_key = value, value_key
        return best

    return handler


def _sorted(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return tracer.sorted_values(tracer.listed(args[0]), kwargs.get("key"), kwargs.get("reverse", False))


def _abs(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _through(tracer, args[0], "__abs__", abs)


def _through(tracer: Tracer, value: Any, name: str, function: Any, *rest: Any) -> Any:
    if type(value) is AbstractTensor:
        return tracer.operate(getattr(operator, function.__name__, function), (value, *rest), {})
    if tracer.is_python_method(value, name):
        return tracer.call(tracer.special(value, name), list(rest), {})
    tracer.require_c_value(value, name)
    return tracer.native(function, value, *rest)


def _round(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if type(args[0]) is AbstractTensor:
        places = kwargs.get("ndigits", args[1] if len(args) > 1 else None)
        return tracer.operate(torch.round, (args[0],), {} if places is None else {"decimals": places})
    if tracer.is_python_method(args[0], "__round__"):
        return tracer.call(tracer.special(args[0], "__round__"), args[1:], kwargs)
    return tracer.native(round, *args, **kwargs)


def _pow(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and not kwargs:
        return tracer.binary("**", args[0], args[1])
    if tracer.is_python_method(args[0], "__pow__"):
        return tracer.call(tracer.special(args[0], "__pow__"), args[1:], kwargs)
    return tracer.native(pow, *map(specialised, args), **{name: specialised(value) for name, value in kwargs.items()})


def _divmod(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if type(args[0]) in (int, float, bool) and type(args[1]) in (int, float, bool):
        return tracer.native(divmod, *args)
    if any(type(arg) is AbstractTensor or isinstance(arg, SYMBOLIC) for arg in args):
        return tracer.binary("//", args[0], args[1]), tracer.binary("%", args[0], args[1])
    for target, other, name in ((args[0], args[1], "__divmod__"), (args[1], args[0], "__rdivmod__")):
        if tracer.is_python_method(target, name):
            result = tracer.call(tracer.special(target, name), [other], {})
            if result is not NotImplemented:
                return result
    for value in args:
        tracer.require_c_value(value, "divmod")
    return tracer.native(divmod, *args)


def _vars(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        return tracer.local_names(tracer.frames[-1])
    return tracer.load_attr(args[0], "__dict__")


def _dir(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args and (guard_kind(args[0]) is not None):
        return tracer.native(dir, args[0])
    raise Break("c_reads_object", "dir()")


def _build_class(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The body is interpreted; the metaclass makes the class natively, from names that are the trace's own."""
    function, name, *bases = args
    frame = tracer.make_frame(function)
    frame.names = {}
    metaclass = kwargs.pop("metaclass", None)
    if metaclass is None:
        metaclass = type(bases[0]) if bases else type
    for base in bases:
        if not isinstance(base, type):
            raise Break("class_definition", f"a base of {name} is no class")
        if issubclass(type(base), metaclass):
            metaclass = type(base)
    prepare = getattr(metaclass, "__prepare__", None)
    if prepare is not None and metaclass is not type:
        frame.names = tracer.call(prepare, [name, tuple(bases)], dict(kwargs))
    cell = tracer.run(frame)
    cls = tracer.call(metaclass, [name, tuple(bases), frame.names], dict(kwargs))
    tracer.own_functions[id(cls)] = cls
    tracer.born[id(cls)] = tracer.frames[-1].step
    if cell is not None and cell is not UNBOUND and type(cell).__name__ == "cell":
        cell.cell_contents = cls
    return cls


def _compare_with(symbol: str) -> Any:
    return lambda tracer, args, kwargs: tracer.compare(symbol, args[0], args[1])


def _binary_with(symbol: str) -> Any:
    return lambda tracer, args, kwargs: tracer.binary(symbol, args[0], args[1])


def _type_check(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(type.__subclasscheck__, args[0], tracer.type_of(args[1]))


def _maketrans(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    for arg in args:
        tracer.require_c_value(arg, "maketrans")
        tracer.world.read_deep(arg)
    return tracer.native(str.maketrans, *args)


def _index_of(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> int:
    for index, part in enumerate(tracer.listed(args[0])):
        if tracer.identical(part, args[1]) or tracer.truth(tracer.compare("==", part, args[1])):
            return index
    raise UserException(ValueError("sequence.index(x): x not in sequence"))


def _count_of(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> int:
    return sum(
        bool(tracer.identical(part, args[1]) or tracer.truth(tracer.compare("==", part, args[1])))
        for part in tracer.listed(args[0])
    )


def _length_hint(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if hasattr(type(args[0]), "__len__"):
        return tracer.length(args[0])
    return NotImplemented


def _type_call(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.instantiate(args[0], args[1:], kwargs)


FUNCTIONS: dict[Any, Any] = {
    type.__dict__["__call__"]: _type_call,
    type.__dict__["__instancecheck__"]: _type_check,
    type.__dict__["__subclasscheck__"]: lambda tracer, args, kwargs: tracer.native(type.__subclasscheck__, *args),
    str.maketrans: _maketrans,
    len: _len,
    iter: _iter,
    next: _next,
    isinstance: _isinstance,
    issubclass: _issubclass,
    getattr: _getattr,
    hasattr: _hasattr,
    setattr: _setattr,
    delattr: _delattr,
    callable: _callable,
    id: _id,
    hash: _hash,
    repr: _repr,
    format: _format,
    sum: _sum,
    any: _any,
    all: _all,
    max: _extreme(">", max),
    min: _extreme("<", min),
    sorted: _sorted,
    abs: _abs,
    round: _round,
    pow: _pow,
    divmod: _divmod,
    vars: _vars,
    dir: _dir,
    builtins.__build_class__: _build_class,
    operator.getitem: lambda tracer, args, kwargs: tracer.get_item(*args),
    operator.setitem: lambda tracer, args, kwargs: tracer.set_item(*args),
    operator.delitem: lambda tracer, args, kwargs: tracer.delete_item(*args),
    operator.concat: _binary_with("+"),
    operator.iconcat: _binary_with("+="),
    operator.indexOf: _index_of,
    operator.countOf: _count_of,
    operator.length_hint: _length_hint,
    operator.contains: lambda tracer, args, kwargs: tracer.contains(*args),
    operator.truth: lambda tracer, args, kwargs: bool(tracer.truth(args[0])),
    operator.not_: lambda tracer, args, kwargs: not tracer.truth(args[0]),
    operator.is_: lambda tracer, args, kwargs: tracer.identical(*args),
    operator.is_not: lambda tracer, args, kwargs: not tracer.identical(*args),
    operator.index: lambda tracer, args, kwargs: tracer.native(operator.index, tracer.index_of(args[0])),
    operator.neg: lambda tracer, args, kwargs: tracer.unary("-", args[0]),
    operator.pos: lambda tracer, args, kwargs: tracer.unary("+", args[0]),
    operator.invert: lambda tracer, args, kwargs: tracer.unary("~", args[0]),
    operator.inv: lambda tracer, args, kwargs: tracer.unary("~", args[0]),
    operator.abs: _abs,
    **{
        getattr(operator, name): _compare_with(symbol)
        for name, symbol in {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}.items()
    },
    **{
        getattr(operator, prefix + name): _binary_with(symbol + suffix)
        for name, symbol in {
            "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
            "matmul": "@", "lshift": "<<", "rshift": ">>", "and_": "&", "or_": "|", "xor": "^",
        }.items()
        for prefix, suffix in (("", ""), ("i", "="))
        if hasattr(operator, prefix + name)
    },
    operator.iand: _binary_with("&="),
    operator.ior: _binary_with("|="),
}  # fmt: skip
