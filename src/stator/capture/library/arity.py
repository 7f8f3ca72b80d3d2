"""How many arguments a C function takes: handlers in this library may rely on it.

Contract. `accepts(function, count, names)` says whether a call with `count` positional arguments and keywords `names`
is well formed. Most C functions say so themselves (their text signature); `UNSAID` has those that do not. A function
of which neither is known accepts everything. What is refused is for Python itself to word.
"""

from __future__ import annotations

import builtins
import collections
import functools
import inspect
import itertools
import operator
import types
from collections.abc import Collection
from typing import Any, NamedTuple

MANY = 1 << 30


class Arity(NamedTuple):
    """Positional arguments, least and most, and the keywords there are (None: any)."""

    least: int
    most: int
    names: frozenset[str] | None = frozenset()
    order: tuple[str, ...] = ()  # names of the positional ones; empty where those have none


def _row(least: int, most: int, *names: str) -> Arity:
    return Arity(least, most, frozenset(names), names if len(names) == most else ())


UNSAID: dict[Any, Arity] = {
    getattr: _row(2, 3),
    iter: _row(1, 2),
    next: _row(1, 2),
    max: _row(1, MANY, "key", "default"),
    min: _row(1, MANY, "key", "default"),
    vars: _row(0, 1),
    dir: _row(0, 1),
    bool: _row(0, 1),
    int: _row(0, 2, "base"),
    float: _row(0, 1),
    complex: _row(0, 2, "real", "imag"),
    str: _row(0, 3, "object", "encoding", "errors"),
    bytes: _row(0, 3, "source", "encoding", "errors"),
    bytearray: _row(0, 3, "source", "encoding", "errors"),
    list: _row(0, 1),
    tuple: _row(0, 1),
    set: _row(0, 1),
    frozenset: _row(0, 1),
    dict: Arity(0, 1, None),
    collections.OrderedDict: Arity(0, 1, None),
    collections.defaultdict: Arity(0, 2, None),
    collections.deque: _row(0, 2, "iterable", "maxlen"),
    range: _row(1, 3),
    slice: _row(1, 3),
    enumerate: _row(1, 2, "iterable", "start"),
    zip: _row(0, MANY, "strict"),
    map: _row(2, MANY),
    filter: _row(2, 2),
    reversed: _row(1, 1),
    super: _row(0, 2),
    staticmethod: _row(1, 1),
    classmethod: _row(1, 1),
    types.MethodType: _row(2, MANY),
    types.SimpleNamespace: Arity(0, 0, None),
    itertools.chain: _row(0, MANY),
    itertools.islice: _row(2, 4),
    itertools.cycle: _row(1, 1),
    itertools.product: _row(0, MANY, "repeat"),
    itertools.zip_longest: _row(0, MANY, "fillvalue"),
    itertools.permutations: _row(1, 2, "iterable", "r"),
    itertools.combinations: _row(2, 2, "iterable", "r"),
    itertools.combinations_with_replacement: _row(2, 2, "iterable", "r"),
    itertools.compress: _row(2, 2, "data", "selectors"),
    itertools.pairwise: _row(1, 1),
    itertools.count: _row(0, 2, "start", "step"),
    itertools.repeat: _row(1, 2, "object", "times"),
    itertools.starmap: _row(2, 2),
    itertools.takewhile: _row(2, 2),
    itertools.dropwhile: _row(2, 2),
    itertools.filterfalse: _row(2, 2),
    itertools.accumulate: _row(1, 2, "iterable", "func", "initial"),
    itertools.groupby: _row(1, 2, "iterable", "key"),
    functools.partial: Arity(1, MANY, None),
    functools.reduce: _row(2, 3),
    operator.itemgetter: _row(1, MANY),
    operator.attrgetter: _row(1, MANY),
    operator.methodcaller: Arity(1, MANY, None),
    builtins.__build_class__: Arity(2, MANY, None),
    dict.pop: _row(2, 3),
    dict.update: Arity(1, 2, None),
    collections.OrderedDict.update: Arity(1, 2, None),
    **{
        getattr(kind, name): _row(count, count)
        for kind in (set, frozenset, collections.deque)
        for name, count in {
            "add": 2, "discard": 2, "remove": 2, "pop": 1, "clear": 1, "copy": 1, "issubset": 2, "issuperset": 2,
            "isdisjoint": 2, "symmetric_difference": 2, "symmetric_difference_update": 2, "append": 2,
            "appendleft": 2, "popleft": 1, "extend": 2, "extendleft": 2, "count": 2, "reverse": 1, "insert": 3,
        }.items()
        if hasattr(kind, name)
    },
    **{
        getattr(kind, name): _row(count, count)
        for kind in (dict, list, collections.OrderedDict, set, frozenset)
        for name, count in {
            "keys": 1, "values": 1, "items": 1, "clear": 1, "copy": 1, "__getitem__": 2, "__contains__": 2,
        }.items()
        if type(kind.__dict__.get(name)) is types.MethodDescriptorType
    },
    collections.deque.index: _row(2, 4),
    collections.deque.rotate: _row(1, 2),
}  # fmt: skip


@functools.lru_cache(4096)
def arity_of(function: Any) -> Arity | None:
    """What a callable takes, if it is known."""
    row = UNSAID.get(function)
    if row is not None:
        return row
    if isinstance(function, type):
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    positional = [part for part in parameters if part.kind in (part.POSITIONAL_ONLY, part.POSITIONAL_OR_KEYWORD)]
    kinds = {part.kind for part in parameters}
    required = [part for part in positional if part.default is part.empty]
    named = frozenset(part.name for part in parameters if part.kind in (part.KEYWORD_ONLY, part.POSITIONAL_OR_KEYWORD))
    many = inspect.Parameter.VAR_POSITIONAL in kinds
    return Arity(
        len(required),
        MANY if many else len(positional),
        None if inspect.Parameter.VAR_KEYWORD in kinds else named,
        tuple(part.name for part in positional),
    )


def placed(function: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a well-formed call, required ones given by name put in their places."""
    row = arity_of(function)
    if row is None or len(args) >= row.least:
        return args, kwargs
    args, kwargs = list(args), dict(kwargs)
    while len(args) < row.least and len(args) < len(row.order) and row.order[len(args)] in kwargs:
        args.append(kwargs.pop(row.order[len(args)]))
    return args, kwargs


def accepts(function: Any, count: int, names: Collection[str]) -> bool:
    """Whether a call is well formed."""
    row = arity_of(function)
    if row is None:
        return True
    if not names:
        return row.least <= count <= row.most
    if row.names is not None and not row.names.issuperset(names):
        return False
    return count <= row.most and (row.names is None or row.least <= count + len(names) <= row.most + len(row.names))
