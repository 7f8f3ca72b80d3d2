"""Fusion: from a list of steps to a shorter list of nests and opaque steps.

Contract. `fuse(steps, outputs)` drops what nothing needs and joins definitions into nests; the result runs in order.
A definition may move to an earlier nest only if everything it reads is ready by then. What it reads of that nest must
be what the nest computed at the very same place (or a row's own result), so no value crosses between rows. Each
decision, and for a refused pair the reason, is reported (`fusion` events).

Sweeps. In a nest a reduction's result is known after its sweep, so `stage_of` counts how many reductions a value waits
for. A softmax is three stages over one row; the row is read from memory once and from cache after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stator import events
from stator.loops.contract import why_across, why_apart
from stator.loops.integers import Atom, Size, of_atom, substitute, upper_bound
from stator.loops.ir import Buffer, Definition, Nest, OpaqueStep, rewrite
from stator.loops.schedule import split_quotients
from stator.loops.spaces import Mapping, extent, follow, total, unify

DEFINITIONS_LIMIT = 40
SIZE_LIMIT = 900
BUFFERS_LIMIT = 40
# Rows shorter than this are not worth a second loop nest order: see `_walks_rows`.
SMALL_FOOTPRINT = 1 << 16

Fused = Nest | OpaqueStep


class Refused(Exception):
    """Why two definitions stay apart."""


def fuse(steps: Sequence[Definition | OpaqueStep], outputs: Iterable[Buffer], apart: bool = False) -> list[Fused]:
    """The steps as nests, in running order; with `apart`, each definition a nest of its own."""
    needed = set(outputs)
    alive = without_dead(steps, needed)
    fusion = Fusion(alive, apart)
    for step in alive:
        if isinstance(step, Definition):
            fusion.add(step)
        else:
            fusion.add_opaque(step)
    fusion.decide_kept(needed)
    return [group for group in fusion.groups if group is not None]


def without_dead(steps: Sequence[Definition | OpaqueStep], needed: set[Buffer]) -> list[Definition | OpaqueStep]:
    """Steps that an output, an input's new contents or an effect depends on."""
    wanted = set(needed)
    alive: list[Definition | OpaqueStep] = []
    for step in reversed(steps):
        if isinstance(step, Definition):
            if step.buffer not in wanted and step.buffer.role != "input":
                continue
            wanted.update(buffer for buffer, _ in step.reads())
        else:
            if not step.needed() and not wanted.intersection(step.made()):
                continue
            wanted.update(step.reads())
        alive.append(step)
    alive.reverse()
    return alive


class Fusion:
    def __init__(self, steps: Sequence[Definition | OpaqueStep], apart: bool) -> None:
        self.apart = apart
        self.groups: list[Fused | None] = []  # None: what stood here has moved to a later place
        self.writers: dict[Buffer, list[int]] = {}
        self.readers: dict[Buffer, list[int]] = {}
        self.pieces: dict[Buffer, int] = {}  # how many definitions write a buffer: more than one never forward
        for step in steps:
            if isinstance(step, Definition):
                self.pieces[step.buffer] = self.pieces.get(step.buffer, 0) + 1

    def add_opaque(self, step: OpaqueStep) -> None:
        place = len(self.groups)
        self.groups.append(step)
        for buffer in step.reads():
            self.readers.setdefault(buffer, []).append(place)
        for buffer in (*step.made(), *step.writes()):
            self.writers.setdefault(buffer, []).append(place)

    def add(self, definition: Definition) -> None:
        definition = split_quotients(definition)
        reads = {buffer for buffer, _ in definition.reads()}
        earliest = max((place for buffer in reads for place in self.writers.get(buffer, ())), default=0)
        for places in (self.readers.get(definition.buffer, ()), self.writers.get(definition.buffer, ())):
            earliest = max(earliest, max(places, default=0))
        place = self._place(definition, reads, earliest)
        for buffer in reads:
            self.readers.setdefault(buffer, []).append(place)
        self.writers.setdefault(definition.buffer, []).append(place)

    def _place(self, definition: Definition, reads: set[Buffer], earliest: int) -> int:
        """Join the best nest there is, else start one."""
        for place in () if self.apart else self._candidates(reads, earliest):
            nest = self.groups[place]
            assert isinstance(nest, Nest)
            try:
                joined = join(nest, definition, self.pieces)
            except Refused as refusal:
                report(nest, definition, False, str(refusal))
                continue
            report(nest, definition, True, "")
            self.groups[place] = joined
            return place
        moved = None if self.apart else self._delayed(definition, reads, earliest)
        self.groups.append(moved or Nest(definition.variables, definition.reduced, [definition], {definition: 0}))
        return len(self.groups) - 1

    def _delayed(self, definition: Definition, reads: set[Buffer], earliest: int) -> Nest | None:
        """A nest of points that makes some of what is read, before the rest of it is ready: where nothing in between
        depends on it, it runs later, together with the definition."""
        places = {place for buffer in reads for place in self.writers.get(buffer, ()) if place < earliest}
        for place in () if definition.reduction else sorted(places, reverse=True):
            nest = self.groups[place]
            if not isinstance(nest, Nest) or nest.inner or not self._can_wait(nest, place):
                continue
            try:
                joined = join(nest, definition, self.pieces)
            except Refused as refusal:
                report(nest, definition, False, str(refusal))
                continue
            report(nest, definition, True, "")
            self._move(nest, place, len(self.groups))
            return joined
        return None

    def _can_wait(self, nest: Nest, place: int) -> bool:
        """Whether no later step reads or writes what the nest writes, or writes what it reads."""
        made = {done.buffer for done in nest.definitions}
        read = {buffer for done in nest.definitions for buffer, _ in done.reads()}
        later = [self.readers.get(buffer, ()) for buffer in made]
        later += [self.writers.get(buffer, ()) for buffer in made | read]
        return all(max(places, default=0) <= place for places in later)

    def _move(self, nest: Nest, place: int, target: int) -> None:
        self.groups[place] = None
        touched = {done.buffer for done in nest.definitions}
        touched |= {buffer for done in nest.definitions for buffer, _ in done.reads()}
        for places in (self.readers, self.writers):
            for buffer in touched & places.keys():
                places[buffer] = [target if entry == place else entry for entry in places[buffer]]

    def _candidates(self, reads: set[Buffer], earliest: int) -> list[int]:
        """Nests from `earliest` on: producers of what is read first, then nests that read the same memory."""
        producers: list[int] = []
        sharing: list[int] = []
        for place in range(len(self.groups) - 1, earliest - 1, -1):
            nest = self.groups[place]
            if not isinstance(nest, Nest):
                continue
            if any(done.buffer in reads for done in nest.definitions):
                producers.append(place)
            elif any(buffer in reads for done in nest.definitions for buffer, _ in done.reads()):
                sharing.append(place)
        return producers + sharing

    def decide_kept(self, outputs: set[Buffer]) -> None:
        """A buffer goes to memory if an output, an input or a step outside its nest needs it there."""
        for place, nest in enumerate(self.groups):
            if not isinstance(nest, Nest):
                continue
            for definition in nest.definitions:
                buffer = definition.buffer
                outside = any(reader != place for reader in self.readers.get(buffer, ()))
                if outside or buffer in outputs or buffer.role != "temporary" or self.pieces[buffer] > 1:
                    nest.kept.add(buffer)


def report(nest: Nest, definition: Definition, fused: bool, why: str) -> None:
    if events.wanted("fusion"):
        first = ", ".join(done.buffer.name for done in nest.definitions)
        events.emit("fusion", first=first, second=definition.buffer.name, fused=fused, why=why)


def join(nest: Nest, definition: Definition, pieces: dict[Buffer, int]) -> Nest:
    """The nest with the definition in it; `Refused` says why not."""
    if len(nest.definitions) >= DEFINITIONS_LIMIT:
        raise Refused("the nest is full")
    refuse_if(why_apart(nest, definition))
    size = sum(done.value.size for done in nest.definitions) + definition.value.size
    if size > SIZE_LIMIT:
        raise Refused("the code would be too large")
    outer, inner, nest_mapping, own_mapping = place_in(nest, definition)
    definitions = [mapped(done, nest_mapping) for done in nest.definitions] if nest_mapping else list(nest.definitions)
    definitions.append(mapped(definition, own_mapping))
    joined = Nest(outer, inner, definitions)
    buffers = {done.buffer for done in definitions} | {buffer for done in definitions for buffer, _ in done.reads()}
    if len(buffers) > BUFFERS_LIMIT:
        raise Refused("too many buffers")
    for done in definitions:
        if (
            not done.reduction
            and pieces[done.buffer] > 1
            and any(done.buffer is buffer for other in definitions for buffer, _ in other.reads())
        ):
            raise Refused("it reads a buffer written in pieces")
    joined.stage = stages(joined)
    refuse_if(why_across(joined))
    _walks_rows(joined)
    return joined


def refuse_if(why: str) -> None:
    if why:
        raise Refused(why)


def mapped(definition: Definition, mapping: Mapping) -> Definition:
    """A definition in other variables."""
    if not mapping:
        return definition
    variables = _images(definition.variables, mapping)
    reduced = _images(definition.reduced, mapping)
    store = substitute(definition.store, mapping.get)
    return replace(
        definition,
        variables=variables,
        reduced=reduced,
        store=store,
        value=rewrite(definition.value, mapping.get),
    )


def _key(atom: Atom) -> str:
    return atom.key


def _images(variables: Sequence[Atom], mapping: Mapping) -> tuple[Atom, ...]:
    result: list[Atom] = []
    for atom in variables:
        image = mapping.get(atom)
        if image is None:
            result.append(atom)
        elif not isinstance(image, int):
            result.extend(
                sorted(
                    (factor for monomial in image.terms for factor in monomial if factor.kind == "Variable"),
                    key=lambda factor: factor.key,
                )
            )
    return tuple(dict.fromkeys(result))


Placement = tuple[tuple[Atom, ...], tuple[Atom, ...], Mapping, Mapping]


def place_in(nest: Nest, definition: Definition) -> Placement:
    """Outer and inner variables of the joined nest, and what becomes of each side's own."""
    if definition.reduction:
        if nest.inner:
            return _both(nest, definition.variables, definition.reduced)
        return _around(nest, definition)
    if not nest.inner:
        return _points(nest, definition)
    return _point_in_rows(nest, definition)


def _points(nest: Nest, definition: Definition) -> Placement:
    if total(nest.outer) != total(definition.variables):
        raise Refused(f"different ranges: {describe(nest.outer)} and {describe(definition.variables)}")
    guided = _guided(nest, definition)
    if guided is not None and len(guided) == len(definition.variables) == len(nest.outer):
        return nest.outer, (), {}, guided
    unified = unify(nest.outer, definition.variables)
    if unified is None:
        raise Refused(f"different ranges: {describe(nest.outer)} and {describe(definition.variables)}")
    return unified.variables, (), _changed(unified.left), _changed(unified.right)


def _both(nest: Nest, outer: Sequence[Atom], inner: Sequence[Atom]) -> Placement:
    """Rows with rows, elements with elements."""
    if total(nest.outer) != total(outer) or total(nest.inner) != total(inner):
        raise Refused(
            f"different rows: {describe(nest.outer)} x {describe(nest.inner)} and {describe(outer)} x {describe(inner)}"
        )
    rows, elements = unify(nest.outer, outer), unify(nest.inner, inner)
    if rows is None or elements is None:
        raise Refused("rows of different shape")
    if set(rows.variables) & set(elements.variables):
        raise Refused("rows of different order")
    return (
        rows.variables,
        elements.variables,
        _changed({**rows.left, **elements.left}),
        _changed({**rows.right, **elements.right}),
    )


def _around(nest: Nest, reduction: Definition) -> Placement:
    """A reduction joins points: the points become elements of its rows, or values of its rows."""
    rows = total(reduction.variables)
    if total(nest.outer) == rows and rows != rows * total(reduction.reduced):
        unified = unify(nest.outer, reduction.variables)
        if unified is None or set(unified.variables) & set(reduction.reduced):
            raise Refused("rows of different shape")
        return unified.variables, reduction.reduced, _changed(unified.left), _changed(unified.right)
    every = (*reduction.variables, *reduction.reduced)
    if total(nest.outer) != total(every):
        raise Refused(f"different ranges: {describe(nest.outer)} and {describe(every)}")
    mapping = _guide(reduction, nest, every)
    if mapping is not None:
        return reduction.variables, reduction.reduced, mapping, {}
    unified = unify(every, nest.outer)
    if unified is None:
        raise Refused("elements in another order")
    outer, inner = _divide(unified.variables, unified.owners, len(reduction.variables))
    return outer, inner, _changed(unified.right), _changed(unified.left)


def _guide(reduction: Definition, nest: Nest, every: Sequence[Atom]) -> Mapping | None:
    """The nest's variables in the reduction's, by what the reduction reads of the nest."""
    for buffer, index in reduction.reads():
        for done in nest.definitions:
            if done.buffer is buffer:
                mapping = follow(done.store, nest.outer, index, every)
                if mapping is not None and len(mapping) == len(nest.outer) == len(every):
                    return mapping
    return None


def _divide(
    variables: Sequence[Atom], owners: dict[Atom, list[int]], boundary: int
) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """New variables that belong to rows, and those that belong to elements."""
    outer = tuple(atom for atom in variables if max(owners[atom]) < boundary)
    inner = tuple(atom for atom in variables if min(owners[atom]) >= boundary)
    if len(outer) + len(inner) != len(variables):
        raise Refused("a dimension crosses the rows")
    return outer, inner


def _point_in_rows(nest: Nest, definition: Definition) -> Placement:
    """A point definition joins rows: as their elements, or one value a row."""
    elements = total(definition.variables)
    rows = total(nest.outer)
    if elements == rows and total(nest.inner) != 1:
        unified = unify(nest.outer, definition.variables)
        if unified is None or set(unified.variables) & set(nest.inner):
            raise Refused("rows of different shape")
        return unified.variables, nest.inner, _changed(unified.left), _changed(unified.right)
    if elements != rows * total(nest.inner):
        raise Refused(
            f"different ranges: {describe(nest.outer)} x {describe(nest.inner)} and {describe(definition.variables)}"
        )
    guided = _guided(nest, definition)
    if guided:
        left = [atom for atom in definition.variables if atom not in guided]
        taken = set(guided.values())
        free = [atom for atom in (*nest.outer, *nest.inner) if of_atom(atom) not in taken]
        if [extent(atom) for atom in left] == [extent(atom) for atom in free]:
            return (
                nest.outer,
                nest.inner,
                {},
                {**guided, **{old: of_atom(new) for old, new in zip(left, free, strict=True)}},
            )
    unified = unify((*nest.outer, *nest.inner), definition.variables)
    if unified is None:
        raise Refused("elements in another order")
    outer, inner = _divide(unified.variables, unified.owners, len(nest.outer))
    return outer, inner, _changed(unified.left), _changed(unified.right)


def _guided(nest: Nest, definition: Definition) -> Mapping | None:
    """The definition's variables in the nest's, as far as what it reads of the nest tells."""
    combined: Mapping = {}
    targets = (*nest.outer, *nest.inner)
    for buffer, index in definition.reads():
        for done in nest.definitions:
            if done.buffer is not buffer:
                continue
            mapping = follow(index, definition.variables, done.store, targets)
            if mapping is None:
                return None
            for atom, image in mapping.items():
                if combined.setdefault(atom, image) != image:
                    return None
    if len(set(combined.values())) != len(combined):
        return None
    return combined


def _changed(mapping: Mapping) -> Mapping:
    """Only what is not its own image."""
    return {atom: image for atom, image in mapping.items() if image != of_atom(atom)}


def describe(atoms: Sequence[Atom]) -> str:
    return "[" + ", ".join(str(extent(atom)) for atom in atoms) + "]"


def stages(nest: Nest) -> dict[Definition, int]:
    """The sweep of each definition; `Refused` where one reads what another place computes."""
    result: dict[Definition, int] = {}
    for position, definition in enumerate(nest.definitions):
        stage = 0
        for buffer, index in definition.reads():
            for done in nest.definitions[:position]:
                if done.buffer is not buffer:
                    continue
                if index != done.store:
                    raise Refused(f"it reads {buffer} at another place than the nest computes it")
                if not done.reduction and not nest.is_row_level(done) and nest.is_row_level(definition):
                    raise Refused(f"a row's value needs single elements of {buffer}")
                stage = max(stage, result[done] + (1 if done.reduction else 0))
        result[definition] = stage
    _refuse_overwriting(nest, result)
    return result


def _refuse_overwriting(nest: Nest, stage: dict[Definition, int]) -> None:
    """Memory that existed before the nest may be overwritten only at the place and in the sweep that read it."""
    several = max(stage.values()) > 0
    for position, definition in enumerate(nest.definitions):
        if definition.buffer.role == "temporary":
            continue
        for place, other in enumerate(nest.definitions):
            for buffer, index in other.reads():
                if buffer is not definition.buffer:
                    continue
                if several or index != definition.store or place > position:
                    raise Refused(f"{buffer} is overwritten while it is still read")


def _walks_rows(nest: Nest) -> None:
    """Elements of a row should lie side by side where the nest writes them: else each write is far from the last."""
    if not nest.inner:
        return
    sizes = upper_bound(total((*nest.outer, *nest.inner)))
    if sizes is not None and sizes <= SMALL_FOOTPRINT:
        return
    for definition in nest.definitions:
        if definition.reduction or nest.is_row_level(definition):
            continue
        steps = [stride_of(definition.store, atom) for atom in nest.inner]
        if 1 not in steps:
            raise Refused("it would be written across the rows")


def stride_of(index: Size, atom: Atom) -> Size | None:
    """How far an index moves with a variable."""
    image = substitute(index, lambda other: of_atom(other) + 1 if other is atom else None)
    return image - index
