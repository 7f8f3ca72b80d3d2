"""Cut long reductions of few results into parts, so that every thread has some.

Contract. A reduction over at least `LONG` elements with fewer than `FEW` results becomes two: partial results over
`PART` elements each, then the reduction of those. The cut depends on shapes alone, never on the number of threads, so
results do not either. Reductions whose state is more than one value stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stator.loops.integers import Atom, Size, contiguous_strides, least, of_atom, single_atom, variable
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
    others = elements // length
    chunk = max(PART // others, 1)
    count = -(-length // chunk)
    if count < 2:
        return None
    part = variable(f"{longest.name}p", count)
    size: Size = chunk if length % chunk == 0 else least(chunk, length - part * chunk)
    element = variable(f"{longest.name}e", size)
    mapping = {longest: part * chunk + element}
    part_atom, element_atom = _atom(part), _atom(element)
    reduced = tuple(element_atom if atom is longest else atom for atom in definition.reduced)
    value = rewrite(definition.value, mapping.get)
    extents = (*(extent(atom) for atom in definition.variables), count)
    strides = contiguous_strides(extents)
    place: Size = part * strides[-1]
    for atom, stride in zip(definition.variables, strides, strict=False):
        place = place + of_atom(atom) * stride
    kind = value.type
    partial = Buffer(f"{definition.buffer.name}_part", kind, extents, strides, "temporary")
    first = replace(
        definition, buffer=partial, variables=(*definition.variables, part_atom), store=place, value=value, reduced=reduced
    )
    second = replace(definition, value=load(partial, place), reduced=(part_atom,))
    return [first, second]


def _known(size: Size) -> int:
    assert isinstance(size, int)
    return size


def _atom(size: Size) -> Atom:
    atom = single_atom(size)
    assert atom is not None
    return atom
