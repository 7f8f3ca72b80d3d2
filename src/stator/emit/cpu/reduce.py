"""The running state of one reduction: where it starts, how an element joins, how lanes become one value.

Contract. State is a list of LLVM values carried through the loops: for a plain reduction one accumulator for each
vector of a turn (so that no turn waits for the last), for argmax and argmin a best value and its position. Lanes
switched off by a mask leave the state alone. With a `column` frame, lanes are separate results and stay a vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stator.emit.cpu.elements import Elements, constant
from stator.emit.cpu.frames import Frame
from stator.emit.cpu.math_ir import lanes_of
from stator.loops.ir import FLOATS, REDUCTIONS, TYPES, Accumulation

if TYPE_CHECKING:
    from stator.emit.cpu.kernel import Way

Value = Any


def identity(kind: str, type_: str) -> Any:
    """What leaves any element as it is."""
    if kind in ("sum", "contraction"):
        return 0
    if kind == "product":
        return 1
    if kind in ("any", "all"):
        return kind == "all"
    low = kind in ("maximum", "argmax")
    if type_ in FLOATS:
        return -math.inf if low else math.inf
    bits = TYPES[type_] * 8
    if type_ == "u8":
        return 0 if low else 255
    return -(1 << (bits - 1)) if low else (1 << (bits - 1)) - 1


class Reducer:
    """One accumulation while its sweep is emitted."""

    def __init__(self, elements: Elements, accumulation: Accumulation, way: Way, column: Frame | None = None) -> None:
        self.elements = elements
        self.builder = elements.builder
        self.accumulation = accumulation
        self.kind = accumulation.kind
        self.type = accumulation.value.type
        self.combine = REDUCTIONS[self.kind].combine
        self.placed = self.kind in ("argmax", "argmin")
        self.column = column
        self.lanes: int | None = way.lanes if way.vector is not None else None
        if column is not None:
            self.lanes = column.lanes if column.vector is not None and column.lanes else None
        self.parts = 1 if column is not None or self.lanes is None else way.unroll
        self.width = 2 if self.placed else self.parts

    def start(self) -> list[Value]:
        first = constant(identity(self.kind, self.type), self.type, self.lanes)
        if self.placed:
            return [first, constant(-1, "i64", self.lanes)]
        return [first] * self.parts

    def step(self, state: list[Value], frames: Sequence[Frame]) -> list[Value]:
        """Elements of each frame join; a remainder's single frame joins the first accumulator."""
        if self.placed:
            best = state
            for frame in frames:
                best = self._join_placed(best, frame)
            return best
        result = list(state)
        for number, frame in enumerate(frames):
            result[number] = self._join(result[number], frame)
        return result

    def _join(self, state: Value, frame: Frame) -> Value:
        value = frame.value(self.accumulation.value)
        if self.lanes is not None and frame.lanes is None:  # one element of a remainder: it joins lane 0
            joined = self._combined(self.elements.lane(state, 0), value)
            return self.builder.insert_element(state, joined, constant(0, "i32", None))
        value = self.elements.spread(value, self.lanes)
        joined = self._combined(state, value)
        if frame.mask is not None and self.column is None:
            return self.builder.select(frame.mask, joined, state)
        return joined

    def _combined(self, left: Value, right: Value) -> Value:
        return self.elements.apply(self.combine, self.type, [left, right], [self.type, self.type])

    def finish(self, state: list[Value]) -> Value:
        """The result: a scalar, or for columns a vector."""
        if self.placed:
            return self._finish_placed(state)
        values = list(state)
        while len(values) > 1:
            values = [
                self._combined(values[k], values[k + 1]) if k + 1 < len(values) else values[k]
                for k in range(0, len(values), 2)
            ]
        (value,) = values
        if self.column is not None or lanes_of(value.type) is None:
            return value
        return self.elements.fold(value, self._combined)

    # argmax, argmin

    def _join_placed(self, state: list[Value], frame: Frame) -> list[Value]:
        node = self.accumulation.value
        value, place = frame.value(node.operands[0]), frame.value(node.operands[1])
        if self.lanes is not None and frame.lanes is None:
            zero = constant(0, "i32", None)
            one = self._better([self.elements.lane(part, 0) for part in state], [value, place])
            return [self.builder.insert_element(part, new, zero) for part, new in zip(state, one, strict=True)]
        new = [self.elements.spread(value, self.lanes), self.elements.spread(place, self.lanes)]
        best = self._better(state, new)
        if frame.mask is not None and self.column is None:
            return [self.builder.select(frame.mask, b, old) for b, old in zip(best, state, strict=True)]
        return best

    def _better(self, old: list[Value], new: list[Value]) -> list[Value]:
        """NaN beats numbers, then the greater (smaller), then the earlier; an unset place loses."""
        sign = "gt" if self.kind == "argmax" else "lt"
        wins = self.elements.compare(sign, new[0], old[0], self.type)
        same = self.elements.compare("eq", new[0], old[0], self.type)
        if self.type in FLOATS:
            new_nan = self.builder.fcmp_unordered("uno", new[0], new[0])
            old_nan = self.builder.fcmp_unordered("uno", old[0], old[0])
            only_new = self.builder.and_(new_nan, self.builder.not_(old_nan))
            wins = self.builder.or_(wins, only_new)
            same = self.builder.or_(same, self.builder.and_(new_nan, old_nan))
        earlier = self.builder.icmp_unsigned("<", new[1], old[1])  # -1 is the largest
        takes = self.builder.or_(wins, self.builder.and_(same, earlier))
        return [self.builder.select(takes, new[0], old[0]), self.builder.select(takes, new[1], old[1])]

    def _finish_placed(self, state: list[Value]) -> Value:
        if self.column is not None or lanes_of(state[0].type) is None:
            return state[1]
        best = [self.elements.lane(part, 0) for part in state]
        for number in range(1, lanes_of(state[0].type) or 1):
            best = self._better(best, [self.elements.lane(part, number) for part in state])
        return best[1]
