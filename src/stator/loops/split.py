"""Cut long reductions of few results into parts, so that every thread has some.

Contract. A reduction over at least `LONG` elements with fewer than `FEW` results becomes two: partial results over
`PART` elements each, then the reduction of those. The cut depends on shapes alone, never on the number of threads, so
results do not either. Reductions whose state is more than one value stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stator.loops.integers import Atom, Size, contiguous_strides, of_atom, single_atom, variable
from stator.loops.ir import REDUCTIONS, Buffer, Definition, load, rewrite
from stator.loops.spaces import extent, total

LONG = 1 << 16
FEW = 16
PART = 1 << 14


def split_reductions(steps: Sequence[Any]) -> list[Any]:
    """The steps with long reductions in two."""
    result: list[Any] = []
    for step in steps:
        parts = _split(step) if isinstance(step, Definition) and step.reduction else None
        result.extend(parts or [step])
    return result


def _split(definition: Definition) -> list[Definition] | None:
    rows, elements = total(definition.variables), total(definition.reduced)
    if not isinstance(rows, int) or not isinstance(elements, int) or not REDUCTIONS[definition.reduction].splits:
        return None
    if elements < LONG or rows >= FEW or rows == 0:
        return None
    longest = max(definition.reduced, key=lambda atom: _known(extent(atom)))
    length = _known(extent(longest))
    chunk = max(PART // (elements // length), 1)
    count, rest = divmod(length, chunk)
    if count < 2:
        return None
    slots = count + (rest > 0)
    extents = (*(extent(atom) for atom in definition.variables), slots)
    strides = contiguous_strides(extents)
    place: Size = 0
    for atom, stride in zip(definition.variables, strides, strict=False):
        place = place + of_atom(atom) * stride
    partial = Buffer(f"{definition.buffer.name}_part", definition.value.type, extents, strides, "temporary")
    parts = [_part(definition, longest, partial, place, 0, count, chunk)]
    if rest:
        parts.append(_part(definition, longest, partial, place, count, 1, rest))
    slot = variable(f"{longest.name}p", slots)
    return [*parts, replace(definition, value=load(partial, place + slot), reduced=(_atom(slot),))]


def _part(
    definition: Definition, longest: Atom, partial: Buffer, place: Size, first: int, count: int, chunk: int
) -> Definition:
    """Partial results of `count` runs of `chunk` elements, into the slots from `first` on; the runs before them have
    the length that brings them to where the last ended."""
    part: Size = variable(f"{longest.name}p", count) if count > 1 else 0
    element = variable(f"{longest.name}e", chunk)
    before = _known(extent(longest)) - chunk if first else 0
    mapping = {longest: part * chunk + element + before}
    return replace(
        definition,
        buffer=partial,
        variables=(*definition.variables, _atom(part)) if count > 1 else definition.variables,
        store=place + part + first,
        value=rewrite(definition.value, mapping.get),
        reduced=tuple(_atom(element) if atom is longest else atom for atom in definition.reduced),
    )


def _known(size: Size) -> int:
    assert isinstance(size, int)
    return size


def _atom(size: Size) -> Atom:
    atom = single_atom(size)
    assert atom is not None
    return atom
