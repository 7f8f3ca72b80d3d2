"""Looking at what a C iterator gives next without moving it.

Contract. Code that goes on behind a graph break meets the iterators of the loops it stands in as live objects. What
such an iterator gives next is handed to it beside the iterator itself, so that the loop's next turn can be traced
with the rest of this one. `peek(iterator)` is that item, or `END`; the iterator is as it was. `peekable(iterator)`
says for which iterators that can be done: those of builtin containers and ranges, and `enumerate`, `zip` and
`reversed` over them. None of these run code of the program.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

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


# Beyond this many items a loop that does not break again is not unrolled any further.
DEEPEST = 256


class Depth:
    """How many items ahead the code behind one break wants to know; it grows as traces need more."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 1


class Upcoming(list[Any]):
    """The next items of an iterator, and END where they end; `more` goes on behind them."""

    __slots__ = ("depth", "more")

    def __init__(self, iterator: Any, depth: Depth) -> None:
        super().__init__()
        self.depth = depth
        self.more = clone(iterator)
        for _ in range(depth.count):
            item = next(self.more, END)
            self.append(item)
            if item is END:
                break

    def item(self, index: int) -> Any:
        """The item at `index`, or None where looking further ahead is not worth it."""
        if index == len(self) and index < DEEPEST:
            self.append(next(self.more, END))
            self.depth.count = max(self.depth.count, index + 1)
        return self[index] if index < len(self) else NotImplemented


class Ahead:
    """What an iterator from outside gives next, where a later call finds that, and how much of it was used."""

    __slots__ = ("items", "source", "used")

    def __init__(self, items: Upcoming, source: Source) -> None:
        self.items = items
        self.source = source
        self.used = 0


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


def clone(iterator: Any) -> Any:
    """An iterator that gives the same items and leaves this one alone."""
    kind = type(iterator)
    function, args, *state = iterator.__reduce__()
    if kind is enumerate:
        return enumerate(clone(args[0]), args[1])
    if kind is zip:
        return zip(*map(clone, args), strict=False)
    copy = function(*args)
    if state and state[0] is not None:
        copy.__setstate__(state[0])
    return copy


def skip(iterator: Any, count: int) -> None:
    """Move a live iterator on by what the compiled code took."""
    for _ in range(count):
        next(iterator, END)


def containers_of(iterator: Any) -> Iterator[Any]:
    """The mutable containers an iterator walks over."""
    args = iterator.__reduce__()[1]
    if type(iterator) in (enumerate, zip):
        for part in args[:1] if type(iterator) is enumerate else args:
            yield from containers_of(part)
    elif args:
        yield args[0]
