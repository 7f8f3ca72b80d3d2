"""Looking at the next item of a C iterator without moving it.

Contract. Code that goes on behind a graph break meets the iterators of the loops it stands in as live objects. What
such an iterator gives next is handed to it beside the iterator itself, so that the loop's next turn can be traced
with the rest of this one. `peek(iterator)` is that item, or `END`; the iterator is as it was. `peekable(iterator)`
says for which iterators that can be done: those of builtin containers and ranges, and `enumerate`, `zip` and
`reversed` over them. None of these run code of the program.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

from stator.values.source import Source


class _End:
    def __repr__(self) -> str:
        return "<end of iteration>"


END = _End()
SIMPLE: frozenset[type] = frozenset(
    {
        type(iter([])), type(iter(())), type(iter("")), type(iter(b"")), type(iter(range(0))),
        type(iter(range(1 << 70))), type(reversed([])), type(iter(bytearray())),
    }
)  # fmt: skip
# These become list iterators when they are rebuilt: their items are fixed by then.
REBUILT: frozenset[type] = frozenset(
    {
        type(iter({})), type(iter({}.values())), type(iter({}.items())), type(iter(set())),
        type(iter(collections.OrderedDict())),
    }
)  # fmt: skip


class Ahead(NamedTuple):
    """What an iterator from outside gives next, and where a later call finds that."""

    item: Any
    source: Source


def peekable(iterator: Any) -> bool:
    """Whether the next item can be looked at; of iterators made by the trace, once they are rebuilt."""
    kind = type(iterator)
    if kind in SIMPLE or kind in REBUILT:
        return True
    if kind is enumerate:
        return peekable(iterator.__reduce__()[1][0])
    if kind is zip:
        reduced = iterator.__reduce__()
        return len(reduced) == 2 and all(map(peekable, reduced[1]))
    if kind is reversed:
        return type(iterator.__reduce__()[1][0]) in (list, tuple, range, str)
    return False


def peek(iterator: Any) -> Any:
    """The next item, or END."""
    kind = type(iterator)
    function, args, *state = iterator.__reduce__()
    if kind is enumerate:
        inner = peek(args[0])
        return END if inner is END else (args[1], inner)
    if kind is zip:
        items = tuple(map(peek, args))
        return END if not items or END in [item for item in items if item is END] else items
    copy = function(*args)
    if state and state[0] is not None:
        copy.__setstate__(state[0])
    return next(copy, END)


def containers_of(iterator: Any) -> Iterator[Any]:
    """The mutable containers an iterator walks over."""
    args = iterator.__reduce__()[1]
    if type(iterator) in (enumerate, zip):
        for part in args[:1] if type(iterator) is enumerate else args:
            yield from containers_of(part)
    elif args:
        yield args[0]
