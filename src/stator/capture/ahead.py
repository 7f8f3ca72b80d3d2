"""Looking at what a C iterator gives next without moving it.

Contract. Code that goes on behind a graph break meets the iterators of the loops it stands in as live objects. What
such an iterator gives next is handed to it beside the iterator itself, so that the loop's next turn can be traced
with the rest of this one. `peek(iterator)` is that item, or `END`; the iterator is as it was. `peekable(iterator)`
says for which iterators that can be done: those of builtin containers and ranges, and those of `enumerate`, `zip`,
`reversed` and most of `itertools` over them. None of these run code of the program.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from stator.values.source import Source


class _End:
    def __repr__(self) -> str:
        return "<end of iteration>"


END = _End()
SIMPLE: frozenset[type] = frozenset(
    {
        type(iter([])), type(iter(())), type(iter("")), type(iter(b"")), type(iter(range(0))),
        type(iter(range(1 << 70))), type(reversed([])), type(iter(bytearray())), itertools.count, itertools.repeat,
    }
)  # fmt: skip
# How a dict is walked, by the type of the iterator.
DICT_WALKS: dict[type, Callable[[Any], Any]] = {
    type(iter({})): dict.keys,
    type(iter({}.values())): dict.values,
    type(iter({}.items())): dict.items,
}
# This becomes a list iterator when it is rebuilt: its items are fixed by then.
REBUILT: frozenset[type] = frozenset({type(iter(set()))})
# These walk over other iterators, which `__reduce__` shows.
COMPOSED: frozenset[type] = frozenset(
    {
        enumerate, zip, itertools.chain, itertools.product, itertools.cycle, itertools.islice, itertools.zip_longest,
        itertools.combinations, itertools.combinations_with_replacement, itertools.permutations, itertools.compress,
    }
)  # fmt: skip


WARNS = sys.version_info >= (3, 12)  # that iterators of itertools will show their parts no more
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
        while len(self) < depth.count and self._look() and self[-1] is not END:
            pass

    def _look(self) -> bool:
        """Look at one item more; the container may have changed since, so that there is nothing to see."""
        try:
            self.append(next(self.more, END))
        except RuntimeError:
            return False
        return True

    def item(self, index: int) -> Any:
        """The item at `index`, or None where looking further ahead is not worth it."""
        if index == len(self) and index < DEEPEST and self._look():
            self.depth.count = max(self.depth.count, index + 1)
        return self[index] if index < len(self) else NotImplemented


class Ahead:
    """What an iterator from outside gives next, where a later call finds that, and how much of it was used."""

    __slots__ = ("items", "source", "used")

    def __init__(self, items: Upcoming, source: Source) -> None:
        self.items = items
        self.source = source
        self.used = 0


def reduced(iterator: Any) -> Any:
    """`__reduce__` of an iterator: what makes it, of what, and its state."""
    if not WARNS or type(iterator).__module__ != "itertools":
        return iterator.__reduce__()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return iterator.__reduce__()


def dict_under(iterator: Any) -> dict[Any, Any]:
    """The dict an iterator of `DICT_WALKS` walks over."""
    found: dict[Any, Any] = next(part for part in gc.get_referents(iterator) if isinstance(part, dict))
    return found


def dict_walk(walk: Callable[[Any], Any], mapping: dict[Any, Any], done: int) -> Iterator[Any]:
    """An iterator over a dict that has given `done` items."""
    made: Iterator[Any] = iter(walk(mapping))
    for _ in range(done):
        next(made)
    return made


def changed_since(iterator: Any) -> bool:
    """Whether the dict under an iterator has another size than when the walk began: the next step says so."""
    try:
        reduced(iterator)
    except RuntimeError:
        return True
    return False


def broken_walk() -> Iterator[Any]:
    """An iterator over a dict that has changed since."""
    mapping = {0: 0}
    made = iter(mapping)
    mapping[1] = 1
    return made


def peekable(iterator: Any) -> bool:
    """Whether the next item can be looked at; of iterators made by the trace, once they are rebuilt."""
    kind = type(iterator)
    if kind in SIMPLE or kind in REBUILT:
        return True
    if kind in DICT_WALKS:
        return len(gc.get_referents(iterator)) > 0
    if kind is reversed:
        return type(reduced(iterator)[1][0]) in (list, tuple, range, str)
    return kind in COMPOSED and all(map(peekable, parts_of(iterator)))


def parts_of(iterator: Any) -> list[Any]:
    """The iterators that one of `COMPOSED` walks over."""
    _, args, *state = reduced(iterator)
    if type(iterator) is itertools.chain and state:
        args = state[0]
    return [part for part in args if hasattr(type(part), "__next__")]


def clone(iterator: Any) -> Any:
    """An iterator that gives the same items and leaves this one alone."""
    kind = type(iterator)
    if kind in DICT_WALKS:
        mapping, left = dict_under(iterator), operator.length_hint(iterator)
        if not left and changed_since(iterator):
            return broken_walk()
        return dict_walk(DICT_WALKS[kind], mapping, len(mapping) - left)
    function, args, *state = reduced(iterator)
    if kind not in COMPOSED:
        copy = function(*args)
    else:
        copy = function(*map(_cloned, args))
    if state and state[0] is not None:
        held = state[0]
        if kind is itertools.chain:
            held = tuple(map(_cloned, held))
        elif kind is itertools.cycle:
            held = (list(held[0]), *held[1:])  # it goes on filling this
        copy.__setstate__(held)
    return copy


def _cloned(part: Any) -> Any:
    return clone(part) if hasattr(type(part), "__next__") else part


def skip(iterator: Any, count: int) -> None:
    """Move a live iterator on by what the compiled code took."""
    for _ in range(count):
        next(iterator, END)


def containers_of(iterator: Any) -> Iterator[Any]:
    """The mutable containers an iterator walks over."""
    kind = type(iterator)
    if kind in DICT_WALKS:
        yield dict_under(iterator)
    elif kind in COMPOSED:
        for part in parts_of(iterator):
            yield from containers_of(part)
    else:
        yield from reduced(iterator)[1][:1]
