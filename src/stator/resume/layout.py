"""A stopped chain of frames as a shape and a flat tuple of values.

Contract. `Layout` says where a program stands: for each frame, outermost first, its code, its instruction, which
locals are bound and what each stack slot is. The values themselves travel as one flat tuple, in the layout's order.
A layout is hashable and says nothing of values, so it is the key of a continuation: a loop of n turns comes to the same
layout n times. From a layout and values come the frames to trace on (`frames`), and the states to run on eagerly
(`states`).

    slot letter   value
    v             one of the flat values
    p             a live iterator and, before it, what it gives next: two of the flat values
    n             NULL
    e             an exception slot; its previous exception is one of the flat values
    i             an instruction index kept by a cleanup handler (part of the layout)
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from stator.bytecode import decode
from stator.bytecode.liveness import liveness
from stator.capture import frame as running
from stator.capture.ahead import Ahead, peekable
from stator.capture.tracer import Tracer
from stator.resume import state as resumed
from stator.values.source import SourceTree


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """One frame."""

    code: types.CodeType
    index: int
    pc: int
    bound: tuple[int, ...]
    stack: tuple[Any, ...]  # letters, or ("i", index)
    substitutes: bool  # the callee's result is replaced by one of the flat values
    generator: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A chain of frames, outermost first.

    `handling`: an exception is being handled, and is the last flat value. `raised`: the innermost frame's instruction
    has just raised an exception, which is the last flat value.
    """

    frames: tuple[FrameLayout, ...]
    handling: bool
    raised: bool = False
    error_on_break: bool | None = None  # what `error_on_graph_break` says here

    def names(self) -> tuple[str, ...]:
        """Names of the flat values, for people."""
        found: list[str] = []
        for depth, frame in enumerate(self.frames):
            slots = decode(frame.code).localsplus_names
            prefix = "" if depth == len(self.frames) - 1 else f"{frame.code.co_name}."
            found += [prefix + slots[slot] for slot in frame.bound]
            for position, letter in enumerate(frame.stack):
                if letter == "p":
                    found.append(f"{prefix}<next of stack {position}>")
                if letter in ("v", "e", "p"):
                    found.append(f"{prefix}<stack {position}>")
            if frame.substitutes:
                found.append(f"{prefix}<object under construction>")
        if self.handling:
            found.append("<exception being handled>")
        if self.raised:
            found.append("<exception raised>")
        return tuple(found)

    def __str__(self) -> str:
        inner = self.frames[-1]
        line = decode(inner.code).instructions[min(inner.pc, len(decode(inner.code).instructions) - 1)].line
        return f"{inner.code.co_qualname} at {inner.code.co_filename}:{line}"


class CannotStop(Exception):
    """A frame holds something that has no place in a layout."""


class Peek:
    """Among flat values: what `iterator` gives next when the program stands there."""

    __slots__ = ("iterator",)

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator


def capture_layout(
    frames: list[running.Frame], handled: BaseException | None, peeking: bool = False
) -> tuple[Layout, list[Any]]:
    """The layout and the flat (abstract) values of a chain of frames; `peeking` into their iterators."""
    rows: list[FrameLayout] = []
    values: list[Any] = []
    for depth, frame in enumerate(frames):
        innermost = depth == len(frames) - 1
        live = liveness(frame.decoded)
        position = frame.pc if innermost else frame.current
        # A caller goes on behind its call, or in its handlers.
        wanted = live[min(position, len(live) - 1)]
        for other in (frame.pc, frame.current):
            if other < len(live):
                wanted = wanted | live[other]
        bound = []
        first_free = len(frame.locals) - frame.decoded.nfrees
        for slot, value in enumerate(frame.locals):
            keep = slot in wanted or slot >= first_free or isinstance(value, types.CellType)
            if value is not running.UNBOUND and keep:
                bound.append(slot)
                values.append(value)
        letters: list[Any] = []
        for value in frame.stack:
            kind = type(value)
            if value is running.NULL:
                letters.append("n")
            elif kind is running.ExceptionSlot:
                letters.append("e")
                values.append(value.previous)
            elif kind is running.LastIndex:
                letters.append(("i", value.index))
            elif peeking and peekable(value):
                letters.append("p")
                values += [Peek(value), value]
            else:
                letters.append("v")
                values.append(value)
        substitutes = frame.substitute is not running.NULL
        if substitutes:
            values.append(frame.substitute)
        rows.append(FrameLayout(frame.code, frame.current, frame.pc, tuple(bound), tuple(letters), substitutes))
    if handled is not None:
        values.append(handled)
    return Layout(tuple(rows), handled is not None), values


class FrameContext:
    """What of a frame is no value: the names its code sees, by code object. Filled when a layout is captured."""

    __slots__ = ("builtins", "globals")

    def __init__(self, global_names: dict[str, Any], builtin_names: dict[str, Any]) -> None:
        self.globals = global_names
        self.builtins = builtin_names


def frames_to_trace(
    layout: Layout, contexts: tuple[FrameContext, ...], values: tuple[Any, ...], tracer: Tracer, tree: SourceTree
) -> list[running.Frame]:
    """Frames whose values come from outside: value i is LOCAL i."""
    position = 0
    frames: list[running.Frame] = []

    def pending() -> Any:
        nonlocal position
        value = values[position]
        source = tree.local(position)
        position += 1
        if isinstance(value, types.CellType):
            tracer.cell_sources[id(value)] = source.child("CONTENTS")
            tracer.world.sources[id(value)] = source
            tracer.world.kept.append(value)
            return value
        return running.Pending(value, source)

    def loaded() -> Any:
        value = pending()
        return tracer.world.load(value.value, value.source) if type(value) is running.Pending else value

    for row, context in zip(layout.frames, contexts, strict=True):
        frame = running.Frame(row.code, context.globals, context.builtins, ())
        frame.current, frame.pc = row.index, row.pc
        for slot in row.bound:
            frame.locals[slot] = pending()
        for letter in row.stack:
            if letter == "v":
                frame.stack.append(loaded())
            elif letter == "p":
                ahead = Ahead(values[position], tree.local(position))
                position += 1
                frame.stack.append(loaded())
                tracer.ahead[id(frame.stack[-1])] = ahead
            elif letter == "n":
                frame.stack.append(running.NULL)
            elif letter == "e":
                frame.stack.append(running.ExceptionSlot(loaded()))
            else:
                frame.stack.append(running.LastIndex(letter[1]))
        if row.substitutes:
            half_made = pending()  # still under construction: nothing of it is looked at yet
            frame.substitute = (
                tracer.world.element(half_made.value, half_made.source)
                if type(half_made) is running.Pending
                else half_made
            )
        frame.resumable = frame.suspended = True
        frames.append(frame)
    frames[-1].suspended = frames[-1].resumable = False
    if layout.handling:
        tracer.handled = loaded()
    tracer.error_on_break = layout.error_on_break
    if layout.raised:
        tracer.arrived = values[position]
        source = tree.local(position)
        source.guard("TYPE_IS", type(tracer.arrived))
        tracer.world.sources[id(tracer.arrived)] = source
        tracer.world.kept.append(tracer.arrived)
    return frames


def states_to_run(
    layout: Layout, contexts: tuple[FrameContext, ...], values: tuple[Any, ...], before: bool
) -> list[resumed.FrameState]:
    """States of real frames, the innermost first. `before`: the innermost stands before its next instruction."""
    position = 0
    states: list[resumed.FrameState] = []

    def take() -> Any:
        nonlocal position
        position += 1
        return values[position - 1]

    handled_at_slots: list[Any] = []
    for depth, (row, context) in enumerate(zip(layout.frames, contexts, strict=True)):
        decoded = decode(row.code)
        first_free = len(decoded.localsplus_names) - decoded.nfrees
        slots: list[Any] = [resumed.UNBOUND] * first_free
        cells: list[Any] = [types.CellType()] * decoded.nfrees
        for slot in row.bound:
            value = take()
            if slot >= first_free:
                cells[slot - first_free] = value
            else:
                slots[slot] = value
        stack: list[Any] = []
        for letter in row.stack:
            if letter == "v":
                stack.append(take())
            elif letter == "p":
                take()
                stack.append(take())
            elif letter == "n":
                stack.append(resumed.NULL)
            elif letter == "e":
                handled_at_slots.append((stack, len(stack)))
                stack.append(take())
            else:
                stack.append(resumed.LastInstruction(letter[1]))
        convert = None
        if row.substitutes:
            substitute = take()
            convert = _always(substitute)
        innermost = depth == len(layout.frames) - 1
        index = row.pc if innermost and before else row.index
        states.append(
            resumed.FrameState(
                row.code, index, slots, context.globals, tuple(cells), stack, None, convert, context.builtins
            )
        )
    # A slot of ours holds what was handled before; theirs the exception handled since: that of the next slot inward.
    handled = take() if layout.handling else None
    for stack, slot in reversed(handled_at_slots):
        previous = stack[slot]
        stack[slot] = resumed.ExceptionSlot(handled)  # type: ignore[arg-type]
        handled = previous
    states.reverse()
    return states


def _always(value: Any) -> Any:
    def substitute(_: Any) -> Any:
        return value

    return substitute
