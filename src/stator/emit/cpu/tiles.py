"""Square tiles turned in registers, for kernels whose memory lies along two different variables.

Contract. `turned_variable` finds the variable along which some loads lie side by side while they are far apart along
the vector variable. `turned_frames` loads a tile of those along that variable, turns it, and returns one frame for each
row of the tile in which those loads are already known. A gather would read a cache line for each element; a turned tile
reads each line once, for one permutation an element and a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from stator.emit.cpu.elements import Elements
from stator.emit.cpu.frames import Frame, integer
from stator.emit.cpu.math_ir import picks
from stator.loops.integers import Atom, Size, coefficient_of, upper_bound
from stator.loops.ir import Expression, Kernel, Stage, walk
from stator.loops.schedule import roots_of
from stator.loops.spaces import extent

if TYPE_CHECKING:
    from stator.emit.cpu.kernel import Way

Value = Any

# A tile's code is written once for each of its rows: only small bodies are.
TILE_WEIGHT = 24
# Tiles side by side that one unit works through. More rows at once are more streams than the processor foresees.
TILES_A_UNIT = 1


def _is_turned(index: Size, vector: Atom, across: Atom) -> bool:
    """Side by side along `across`, far apart along the vector variable."""
    return coefficient_of(index, across) == 1 and coefficient_of(index, vector) not in (0, 1, None)


def turned_variable(kernel: Kernel, lanes: int) -> Atom | None:
    """The variable that most loads which the vector would have to gather lie along."""
    if len(kernel.stages) != 1 or not kernel.inner or lanes < 4:
        return None
    vector = kernel.inner[-1]
    best: tuple[int, Atom] | None = None
    for atom in kernel.outer:
        found = [node for node in _loads(kernel.stages[0]) if _is_turned(node.attribute[1], vector, atom)]
        size = upper_bound(extent(atom))
        if found and (size is None or size >= lanes) and (best is None or len(found) > best[0]):
            best = (len(found), atom)
    size = upper_bound(extent(vector))
    return best[1] if best is not None and (size is None or size >= lanes) else None


def _loads(stage: Stage) -> list[Expression]:
    return [
        node
        for node in dict.fromkeys(node for root in roots_of([stage]) for node in walk([root]))
        if node.operation == "load" and node.type != "b1"
    ]


def turned_frames(elements: Elements, outside: Frame, stage: Stage, way: Way, first: Value, row: Value) -> list[Frame]:
    """Frames of the rows [row, row + lanes) from column `first` on."""
    vector, across, lanes = way.vector, way.across, way.lanes
    assert vector is not None and across is not None
    builder = elements.builder

    def moved(value: Value, distance: int) -> Value:
        return value if distance == 0 else builder.add(value, integer(distance))

    rows = [
        Frame(elements, outside, {vector: first, across: moved(row, k)}, outside.names, lanes, vector)
        for k in range(lanes)
    ]
    columns = [
        Frame(elements, outside, {vector: moved(first, k), across: row}, outside.names, lanes, across)
        for k in range(lanes)
    ]
    for node in _loads(stage):
        if _is_turned(node.attribute[1], vector, across):
            loaded = [frame.load(*node.attribute) for frame in columns]
            for frame, value in zip(rows, turned(elements, loaded), strict=True):
                frame.values[node] = value
    return rows


def turned(elements: Elements, vectors: Sequence[Value]) -> list[Value]:
    """The transpose of a square of vectors: each step interleaves the first half of them with the second."""
    count = len(vectors)
    half = count // 2

    def order(start: int) -> ir.Constant:
        return picks(tuple(start + k // 2 + (count if k % 2 else 0) for k in range(count)))

    low, high = order(0), order(half)
    current = list(vectors)
    steps = count.bit_length() - 1
    for _ in range(steps):
        following: list[Value] = []
        for k in range(half):
            following.append(elements.builder.shuffle_vector(current[k], current[k + half], low))
            following.append(elements.builder.shuffle_vector(current[k], current[k + half], high))
        current = following
    return current
