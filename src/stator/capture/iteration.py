"""Iteration, unpacking and generators of traced values.

Contract. `iterate` gives an iterator that both the interpreter and C code may advance: a C iterator over a private
copy, a real generator whose body is run by the interpreter, or a real generator around an iterator object written in
Python. An iterator or generator made outside of the trace is the user's: advancing it would change it, so it breaks.

A generator of the traced program is a real Python generator (`drive`), so that `list`, `zip`, `any` and
`isinstance` see what they expect; its frame is interpreted between yields.
"""

from __future__ import annotations

import collections
import operator
import sys
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch

from stator.capture.ahead import DICT_WALKS, END, containers_of, parts_of, skip
from stator.capture.control import Break, UserException
from stator.capture.frame import Frame
from stator.capture.instance_dicts import InstanceDict
from stator.capture.library.effects import Replay
from stator.capture.opcodes import Yielded
from stator.capture.operators import BLOCKED, lookup_special
from stator.capture.state import TracerState
from stator.tensors.abstract import AbstractTensor
from stator.values.constants import is_constant
from stator.values.source import Source
from stator.values.world import CONTAINERS, Shadow, entries

C_ITERABLES = (list, tuple, dict, set, frozenset, str, bytes, bytearray, range, collections.deque, memoryview)
VIEWS: tuple[type, ...] = (
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    type(collections.OrderedDict().items()),
)


def drive(tracer: TracerState, frame: Frame) -> Generator[Any, Any, Any]:
    """The body of a generator object: runs the frame from yield to yield."""
    outer = None
    sent: Any = None
    error: BaseException | None = None
    while True:
        if tracer.finished:
            return None
        outer, tracer.handled = tracer.handled, frame.handled
        try:
            result = tracer.resume_generator(frame, sent, error)
        except UserException as raised:
            frame.handled, tracer.handled = tracer.handled, outer
            value = raised.value
        else:
            frame.handled, tracer.handled = tracer.handled, outer
            if type(result) is not Yielded:
                return result
            try:
                sent, error = (yield result.value), None
            except BaseException as thrown:
                sent, error = None, thrown
            continue
        if isinstance(value, StopIteration):
            replacement = RuntimeError("generator raised StopIteration")
            replacement.__cause__ = replacement.__context__ = value
            raise replacement
        raise value


class Iteration(TracerState):
    """The iteration part of the tracer."""

    # Iterators

    def instance_snapshot(self, view: InstanceDict) -> dict[str, Any]:
        raise NotImplementedError

    def iterate(self, value: Any) -> Any:
        """`iter(value)`."""
        kind = type(value)
        if kind is AbstractTensor:
            if not value.shape:
                raise UserException(TypeError("iteration over a 0-d tensor"))
            return iter(self.operate(torch.Tensor.unbind, (value, 0), {}))
        if kind is InstanceDict:
            return iter(self.instance_snapshot(value))
        if kind is types.GeneratorType:
            if id(value) not in self.generators:
                raise Break("foreign_iterator", "a generator made outside of the compiled function")
            return value
        if self.is_python_method(value, "__iter__"):
            self.world.guard_type(value)
            if lookup_special(kind, "__iter__") is BLOCKED:
                raise UserException(TypeError(f"'{kind.__name__}' object is not iterable"))
            result = self.call(self.special(value, "__iter__"), [], {})
            if lookup_special(type(result), "__next__") is None:
                text = f"iter() returned non-iterator of type '{type(result).__name__}'"
                raise UserException(TypeError(text))
            return result
        if isinstance(value, C_ITERABLES) or kind in VIEWS:
            self.world.read(value)
            return self.native(iter, value)
        if isinstance(value, type) and self.is_python_method(value, "__iter__"):
            return self.call(self.special(value, "__iter__"), [], {})
        if lookup_special(kind, "__iter__") is None and self.is_python_method(value, "__getitem__"):
            return self._by_index(value)
        if self.world.is_outside(value) and not is_constant(value) and lookup_special(kind, "__iter__") is not None:
            raise Break("foreign_iterator", f"a {kind.__name__}")
        return self.native(iter, value)

    def _by_index(self, value: Any) -> Iterator[Any]:
        """The old protocol: `__getitem__` with 0, 1, 2 until IndexError."""

        index = 0

        def walk() -> Iterator[Any]:
            nonlocal index
            while True:
                try:
                    item = self.get_item(value, index)
                except UserException as error:
                    if isinstance(error.value, (IndexError, StopIteration)):
                        return
                    raise error.value from None
                index += 1
                yield item

        made = walk()
        self.index_walks[id(made)] = (made, value, lambda: index)
        return made

    def advance(self, iterator: Any) -> tuple[bool, Any]:
        """`next`: whether it is exhausted, else the next item."""
        if self.is_python_method(iterator, "__next__"):
            try:
                return False, self.call(self.special(iterator, "__next__"), [], {})
            except UserException as error:
                if isinstance(error.value, StopIteration):
                    return True, error.value.value
                raise
        if self.world.is_outside(iterator):
            return self._advance_ahead(iterator)
        try:
            return False, self.native(next, iterator)
        except UserException as error:
            if isinstance(error.value, StopIteration):
                return True, error.value.value
            raise

    def _advance_ahead(self, iterator: Any) -> tuple[bool, Any]:
        """`next` of a live iterator: what it gives is known where it was handed over with its next item."""
        ahead = self.ahead.get(id(iterator))
        item = NotImplemented if ahead is None else ahead.items.item(ahead.used)
        if ahead is None or item is NotImplemented or self._disturbed(iterator, ahead.used):
            raise Break("foreign_iterator", f"a {type(iterator).__name__}")
        source = ahead.source.child("INDEX", ahead.used)
        if item is END:
            source.guard("IS", END, self.location())
        else:
            source.guard("IS_NOT", END, self.location())
            ahead.used += 1
        done = Replay(skip, (iterator, ahead.used + (item is END)), {})
        for index, replay in enumerate(self.effects):
            if replay.function is skip and replay.args[0] is iterator:
                self.effects[index] = done
                break
        else:
            self.effects.append(done)
        return (True, None) if item is END else (False, self._fresh(iterator, item, source))

    def _fresh(self, iterator: Any, item: Any, source: Source) -> Any:
        """An item of a live iterator; the tuples that `enumerate` and `zip` make are new each time."""
        if type(iterator) is enumerate:
            inner = [None, *parts_of(iterator)]
        elif type(iterator) is zip:
            inner = parts_of(iterator)
        else:
            return self.world.load(item, source)
        parts = enumerate(zip(inner, item, strict=True))
        return tuple(self._fresh(made_by, part, source.child("INDEX", index)) for index, (made_by, part) in parts)

    def _disturbed(self, iterator: Any, position: int) -> bool:
        """Whether what an iterator gives next hangs on a change of the trace that is not made yet."""
        for container in containers_of(iterator):
            shadow = self.world.shadow_of_original.get(id(container))
            if shadow is None or not isinstance(shadow.copy, CONTAINERS) or not shadow.changed():
                continue
            if type(iterator) not in DICT_WALKS or not self._entry_stands(shadow, iterator, position):
                return True
        return False

    @staticmethod
    def _entry_stands(shadow: Shadow, iterator: Any, position: int) -> bool:
        """Whether a changed dict still has the same keys, and the entry `position` ahead is as it was."""
        now = tuple(part for pair in dict.items(shadow.copy) for part in pair)
        place = 2 * (len(shadow.original) - operator.length_hint(iterator) + position)
        same_keys = len(now) == len(shadow.snapshot) and all(map(operator.is_, now[::2], shadow.snapshot[::2]))
        return same_keys and (place >= len(now) or now[place + 1] is shadow.snapshot[place + 1])

    def listed(self, value: Any) -> list[Any]:
        """All items of an iterable."""
        if type(value) in (list, tuple):
            self.world.read(value)
            return list(value)
        iterator = self.iterate(value)
        items: list[Any] = []
        while True:
            done, item = self.advance(iterator)
            if done:
                return items
            items.append(item)

    def unpacked(self, value: Any, count: int) -> list[Any]:
        """The items of an unpacking assignment with `count` targets."""
        if type(value) in (list, tuple):
            if self.world.shadow_of_copy.get(id(value)) is not None:
                self.world.read(value)
            items = list(value)
        else:
            iterator = self.iterate_for_unpacking(value)
            items = []
            while len(items) <= count:
                done, item = self.advance(iterator)
                if done:
                    break
                items.append(item)
        if len(items) > count:
            raise UserException(ValueError(f"too many values to unpack (expected {count})"))
        if len(items) < count:
            text = f"not enough values to unpack (expected {count}, got {len(items)})"
            raise UserException(ValueError(text))
        return items

    def iterate_for_unpacking(self, value: Any) -> Any:
        """`iter(value)`, worded as an unpacking assignment words it where there is none."""
        if type(value) in (list, tuple):
            return value
        try:
            return self.iterate(value)
        except UserException as error:
            if isinstance(error.value, TypeError) and lookup_special(type(value), "__iter__") is None:
                text = f"cannot unpack non-iterable {type(value).__name__} object"
                raise UserException(TypeError(text)) from None
            raise

    def named_arguments(self, value: Any, function: Any) -> dict[Any, Any]:
        """`**value` in a call, or in a dict display where there is no function."""
        try:
            return self.pairs_of(value)
        except UserException as error:
            if not isinstance(error.value, AttributeError) or hasattr(type(value), "keys"):
                raise
        kind = type(value).__name__
        if function is None:
            raise UserException(TypeError(f"'{kind}' object is not a mapping"))
        raise UserException(TypeError(f"{self.described(function)} argument after ** must be a mapping, not {kind}"))

    def pairs_of(self, value: Any) -> dict[Any, Any]:
        """A mapping as a dict."""
        if type(value) is InstanceDict:
            return self.instance_snapshot(value)
        if isinstance(value, dict) and not self.is_python_method(value, "keys"):
            self.world.read(value)
            return dict(entries(value))
        if isinstance(value, types.MappingProxyType):
            return dict(value)
        keys = self.call(self.load_attr(value, "keys"), [], {})
        return {key: self.get_item(value, key) for key in self.listed(keys)}

    def for_c(self, values: Iterable[Any]) -> list[Any]:
        """Iterables made ready for C code to consume."""
        ready = []
        for value in values:
            kind = type(value)
            if isinstance(value, C_ITERABLES) or kind in VIEWS:
                self.world.read(value)
                if lookup_special(kind, "__iter__") is not None and self.is_python_method(value, "__iter__"):
                    value = self.native_iterator(value)
            elif kind is AbstractTensor or self.is_python_method(value, "__iter__"):
                value = self.native_iterator(value)
            elif kind is types.GeneratorType and id(value) not in self.generators:
                raise Break("foreign_iterator", "a generator made outside of the compiled function")
            elif lookup_special(kind, "__next__") is not None and self.world.is_outside(value):
                raise Break("foreign_iterator", f"a {kind.__name__}")
            elif lookup_special(kind, "__iter__") is None and self.is_python_method(value, "__getitem__"):
                value = self._by_index(value)
            ready.append(value)
        return ready

    def native_iterator(self, value: Any) -> Iterator[Any]:
        """A real iterator that C code may advance, over anything iterable."""
        iterator = self.iterate(value)
        if not self.is_python_method(iterator, "__next__"):
            return iterator  # type: ignore[no-any-return]

        def walk() -> Iterator[Any]:
            while True:
                done, item = self.from_c(self.advance, iterator)
                if done:
                    return
                yield item

        made = walk()
        self.proxied[id(made)] = iterator
        self.world.kept.append(made)
        return made

    def from_c(self, function: Callable[..., Any], *args: Any) -> Any:
        """Enter the interpreter from C code: the program's exceptions become real ones until they are back."""
        try:
            return function(*args)
        except UserException as error:
            raised = error.value
        except Break:
            self.broke_in_c = True
            raise
        raise raised

    # Generators

    def make_generator(self, frame: Frame) -> Any:
        generator: Any = drive(self, frame)
        generator.__name__, generator.__qualname__ = frame.function.__name__, frame.function.__qualname__
        self.generators[id(generator)] = (generator, frame)
        return generator

    def close_dropped(self) -> None:
        """Run what generators of the trace have to do at their end, if nothing of the program holds them any more."""
        for generator, frame in list(self.generators.values()):
            waiting = generator.gi_frame is not None and not generator.gi_running and frame.pc > 0
            if not waiting or frame.decoded.handler_of[frame.current] is None:
                continue
            # Held by: the registry's row, this loop's variable, the argument of getrefcount.
            if sys.getrefcount(generator) == 3:
                self.indirect()
                self.native(generator.close)

    def resume_generator(self, frame: Frame, sent: Any, error: BaseException | None) -> Any:
        """Run a suspended frame to its next yield or end."""
        if frame.pc and error is None:
            frame.stack.append(sent)
        elif error is not None:
            return self._thrown(frame, error)
        return self.run(frame)

    def _thrown(self, frame: Frame, error: BaseException) -> Any:
        """An exception thrown into a suspended frame: what it delegates to by `yield from` gets it first (PEP 380)."""
        rows = frame.decoded.instructions
        if not frame.pc or rows[frame.current - 1].opname != "SEND":
            return self.run(frame, error)
        self.indirect()
        receiver = frame.stack[-1]
        closes = isinstance(error, GeneratorExit)
        try:
            method = self.load_attr(receiver, "close" if closes else "throw")
        except UserException as refused:
            return self.run(frame, error if isinstance(refused.value, AttributeError) else refused.value)
        try:
            value = self.call(method, [] if closes else [error], {})
        except UserException as raised:
            if closes or not isinstance(raised.value, StopIteration):
                return self.run(frame, raised.value)
            frame.pc = rows[frame.current - 1].target
            if rows[frame.pc].opname != "END_SEND":
                frame.stack.pop()
            frame.stack.append(raised.value.value)
            return self.run(frame)
        return self.run(frame, error) if closes else Yielded(value)

    def send(self, receiver: Any, value: Any) -> tuple[bool, Any]:
        """One step of `yield from`."""
        if value is None and type(receiver) is not types.GeneratorType:
            return self.advance(receiver)
        if type(receiver) is types.GeneratorType and id(receiver) not in self.generators:
            raise Break("foreign_iterator", "a generator made outside of the compiled function")
        try:
            if type(receiver) is types.GeneratorType:
                return False, self.native(receiver.send, value)
            return False, self.call(self.load_attr(receiver, "send"), [value], {})
        except UserException as error:
            if isinstance(error.value, StopIteration):
                return True, error.value.value
            raise

    # With-blocks

    def enter_context(self, manager: Any) -> tuple[Any, Any]:
        """`__exit__`, bound, and what `__enter__` returned."""
        kind = type(manager)
        for name in ("__enter__", "__exit__"):
            if lookup_special(kind, name) is None:
                hint = " (missed __exit__ method)" if name == "__exit__" else ""
                text = f"'{kind.__name__}' object does not support the context manager protocol{hint}"
                raise UserException(TypeError(text))
        leave = self.special(manager, "__exit__")
        enter = self.special(manager, "__enter__")
        return leave, self.call(enter, [], {})

    # Exception groups

    def regroup(self, original: Any, raised: Any) -> Any:
        """What `except*` raises again after its handlers ran (PEP 654)."""
        raised = [error for error in raised if error is not None]
        if not raised:
            return None
        if not isinstance(original, BaseExceptionGroup):
            return raised[0] if len(raised) == 1 else self._group("", raised)
        fresh = [error for error in raised if not self._came_from(original, error)]
        old = [error for error in raised if self._came_from(original, error)]
        rest = None
        if old:
            wanted = {id(leaf) for error in old for leaf in self._group_leaves(error)}
            rest = self.native(original.subgroup, lambda leaf: id(leaf) in wanted)
        if not fresh:
            return rest
        if rest is not None:
            fresh.append(rest)
        return self._group("", fresh)

    def _group(self, text: str, errors: list[Any]) -> Any:
        return self.native(BaseExceptionGroup, text, errors)

    def _group_leaves(self, error: Any) -> list[Any]:
        if isinstance(error, BaseExceptionGroup):
            return [leaf for part in error.exceptions for leaf in self._group_leaves(part)]
        return [error]

    def _came_from(self, original: Any, error: Any) -> bool:
        return (
            isinstance(error, BaseExceptionGroup)
            and error.__cause__ is original.__cause__
            and error.__context__ is original.__context__
            and error.message == original.message
            and {id(leaf) for leaf in self._group_leaves(error)} <= {id(leaf) for leaf in self._group_leaves(original)}
        )
