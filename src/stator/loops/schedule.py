"""From nests to kernels: which variable runs where, and what each sweep computes, stores and keeps.

Contract. `schedule(nest, name)` returns a `Kernel` whose expressions read only memory, scratch rows and `local` values:
what the nest itself computes has been substituted. A value that a later sweep needs again is read back from memory if
it is stored anyway, from a scratch row if it is costly and a row of it fits the cache, and computed again otherwise.
Loop variables are ordered by how far they move in memory, and neighbours that move together become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stator.loops.integers import (
    Atom,
    Polynomial,
    Size,
    all_atoms,
    atoms,
    coefficient_of,
    contiguous_strides,
    divide_exactly,
    of_atom,
    substitute,
    upper_bound,
    variable,
)
from stator.loops.ir import (
    TYPES,
    Accumulation,
    Buffer,
    Definition,
    Expression,
    Kernel,
    Nest,
    Stage,
    Store,
    fetch,
    load,
    make,
    rewrite,
    walk,
)
from stator.loops.spaces import Mapping, extent, total

# A value costlier than this is kept in a scratch row rather than computed again.
RECOMPUTE_COST = 8
SCRATCH_BYTES = 1 << 16
SPLIT_ROUNDS = 8


def split_quotients(definition: Definition) -> Definition:
    """Split variables until no index divides by what a variable could be split by.

    (i // 64, i % 64) with i < 1024 becomes (i1, i2) with i = 64 * i1 + i2.
    """
    for _ in range(SPLIT_ROUNDS):
        mapping = _quotient_split(definition)
        if not mapping:
            return definition
        definition = replace(
            definition,
            variables=_split_variables(definition.variables, mapping),
            reduced=_split_variables(definition.reduced, mapping),
            store=substitute(definition.store, mapping.get),
            value=rewrite(definition.value, mapping.get),
        )
    return definition


def _split_variables(variables: Sequence[Atom], mapping: Mapping) -> tuple[Atom, ...]:
    result: list[Atom] = []
    for atom in variables:
        image = mapping.get(atom)
        if image is None:
            result.append(atom)
        else:
            parts = [factor for factor in atoms(image) if factor.kind == "Variable"]
            result.extend(sorted(parts, key=lambda factor: factor.key))
    return tuple(result)


def _quotient_split(definition: Definition) -> Mapping:
    own = {*definition.variables, *definition.reduced}
    for index in indices_of([definition.value]):
        for atom in all_atoms(index):
            if atom.kind not in ("Quotient", "Remainder"):
                continue
            for monomial, coefficient in atom.left.terms.items():
                factors = [factor for factor in monomial if factor in own]
                if len(factors) != 1:
                    continue
                (chosen,) = factors
                step = divide_exactly(atom.right, abs(coefficient) if len(monomial) == 1 else 0)
                count = None if step is None else divide_exactly(extent(chosen), step)
                if step is None or count is None or step == 1 or count == 1:
                    continue
                high = variable(f"{chosen.name}a", count)
                low = variable(f"{chosen.name}b", step)
                return {chosen: high * step + low}
    return {}


def indices_of(roots: Sequence[Expression]) -> list[Size]:
    """Every index the expressions use: of loads, and as values."""
    found: list[Size] = []
    for node in walk(roots):
        if node.operation == "load":
            found.append(node.attribute[1])
        elif node.operation == "index":
            found.append(node.attribute)
    return found


def schedule(nest: Nest, name: str) -> Kernel:
    """The kernel that runs a nest."""
    stages, scratch = resolve(nest)
    outer, inner = order_variables(nest, stages)
    kernel = Kernel(name, outer, inner, stages, [], [], scratch, _lines(nest))
    collapse(kernel)
    if not nest.inner and kernel.outer and not kernel.inner:
        kernel.outer, kernel.inner = kernel.outer[:-1], kernel.outer[-1:]
    finish(kernel)
    return kernel


def _lines(nest: Nest) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for definition in nest.definitions for line in definition.lines))


def _local_names(nest: Nest) -> dict[Definition, str]:
    """What a row's own results are called: after their buffer, numbered where several are pieces of one."""
    names: dict[Definition, str] = {}
    taken: dict[Buffer, int] = {}
    for definition in nest.definitions:
        piece = taken[definition.buffer] = taken.get(definition.buffer, 0) + 1
        names[definition] = definition.buffer.name if piece == 1 else f"{definition.buffer.name}_{piece}"
    return names


class Resolver:
    """Substitutes what the nest computes into the expressions that use it."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.made = {definition.buffer: definition for definition in nest.definitions}
        self.locals = _local_names(nest)
        self.scratch: dict[Buffer, tuple[Buffer, Size]] = {}
        self.stages = [Stage() for _ in range(max(nest.stage.values()) + 1)]
        self.again = {buffer: self._needed_later(definition) for buffer, definition in self.made.items()}
        self.resolved: dict[tuple[Definition, int], Expression] = {}

    def _needed_later(self, definition: Definition) -> bool:
        stage = self.nest.stage
        return any(
            buffer is definition.buffer and stage[other] > stage[definition]
            for other in self.nest.definitions
            for buffer, _ in other.reads()
        )

    def value(self, definition: Definition, stage: int) -> Expression:
        """The definition's value as computed in a sweep."""
        found = self.resolved.get((definition, stage))
        if found is None:
            limit = self.nest.definitions.index(definition)
            found = rewrite(definition.value, None, lambda node: self.replace(node, stage, limit))
            self.resolved[definition, stage] = found
        return found

    def replace(self, node: Expression, stage: int, limit: int) -> Expression | None:
        if node.operation != "load":
            return None
        buffer, _ = node.attribute
        source = self.made.get(buffer)
        if source is None or self.nest.definitions.index(source) >= limit:
            return None
        if source.reduction or self.nest.is_row_level(source):
            return make("local", buffer.type, (), self.locals[source])
        if self.nest.stage[source] < stage:
            if buffer in self.scratch:
                kept, index = self.scratch[buffer]
                return load(kept, index)
            if buffer in self.nest.kept and source.value.cost > RECOMPUTE_COST:
                return None
        return self.value(source, stage)

    def run(self) -> tuple[list[Stage], list[Buffer]]:
        for definition in self.nest.definitions:
            self.place(definition)
        return self.stages, [kept for kept, _ in self.scratch.values()]

    def place(self, definition: Definition) -> None:
        number = self.nest.stage[definition]
        stage = self.stages[number]
        value = self.value(definition, number)
        buffer = definition.buffer
        kept = buffer in self.nest.kept
        name = self.locals[definition]
        if definition.reduction:
            stage.accumulations.append(Accumulation(name, definition.reduction, value))
            if kept:
                if number + 1 == len(self.stages):
                    self.stages.append(Stage())
                result = make("local", buffer.type, (), name)
                self.stages[number + 1].row_stores.append(Store(buffer, definition.store, result))
            return
        if self.nest.is_row_level(definition):
            stage.row_values.append((name, value))
            if kept:
                result = make("local", buffer.type, (), name)
                stage.row_stores.append(Store(buffer, definition.store, result))
            return
        if kept:
            stage.stores.append(Store(buffer, definition.store, value))
        elif self.again[buffer] and value.cost > RECOMPUTE_COST:
            self.keep_row(definition, value, stage)

    def keep_row(self, definition: Definition, value: Expression, stage: Stage) -> None:
        sizes = tuple(extent(atom) for atom in self.nest.inner)
        count = upper_bound(total(self.nest.inner))
        if count is None or count * TYPES[definition.buffer.type] > SCRATCH_BYTES:
            return
        strides = contiguous_strides(sizes)
        index: Size = 0
        for atom, stride in zip(self.nest.inner, strides, strict=True):
            index = index + of_atom(atom) * stride
        row = Buffer(f"row_{definition.buffer.name}", definition.buffer.type, sizes, strides, "scratch")
        self.scratch[definition.buffer] = (row, index)
        stage.stores.append(Store(row, index, value))


def resolve(nest: Nest) -> tuple[list[Stage], list[Buffer]]:
    """The nest's sweeps, and the scratch rows they share."""
    return Resolver(nest).run()


def roots_of(stages: Sequence[Stage]) -> list[Expression]:
    """Every expression of the sweeps."""
    found: list[Expression] = []
    for stage in stages:
        found.extend(value for _, value in stage.row_values)
        found.extend(store.value for store in stage.row_stores)
        found.extend(accumulation.value for accumulation in stage.accumulations)
        found.extend(store.value for store in stage.stores)
    return found


def stores_of(stages: Sequence[Stage]) -> list[Store]:
    return [store for stage in stages for store in (*stage.row_stores, *stage.stores)]


def every_index(stages: Sequence[Stage]) -> list[Size]:
    return indices_of(roots_of(stages)) + [store.index for store in stores_of(stages)]


def order_variables(nest: Nest, stages: Sequence[Stage]) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """Far-moving variables outside, those that move by one inside."""
    stores = [store.index for store in stores_of(stages)]
    loads = indices_of(roots_of(stages))
    return _ordered(nest.outer, stores + loads), _ordered(nest.inner, loads + stores)


def _ordered(variables: tuple[Atom, ...], indices: Sequence[Size]) -> tuple[Atom, ...]:
    if len(variables) < 2:
        return variables

    def distance(atom: Atom) -> tuple[float, ...]:
        steps = []
        for index in indices:
            step = coefficient_of(index, atom)
            if isinstance(step, int) and step > 0:
                steps.append(float(step))
            elif isinstance(step, Polynomial):
                steps.append(_typical(step))
        return (min(steps, default=float("inf")), sum(steps))

    first = indices[0] if indices else 0
    moving = [coefficient_of(first, atom) for atom in variables]
    if all(step is not None and step != 0 for step in moving):
        ranks = [_typical(step) if isinstance(step, Polynomial) else float(step or 0) for step in moving]
        order = sorted(range(len(variables)), key=lambda k: (-ranks[k], k))
        return tuple(variables[k] for k in order)
    return tuple(sorted(variables, key=lambda atom: tuple(-part for part in distance(atom))))


def _typical(value: Polynomial) -> float:
    """A plausible size of a symbolic stride: each symbol counted as a large number."""
    return float(sum(abs(coefficient) * 1000.0 ** len(monomial) for monomial, coefficient in value.terms.items()))


def collapse(kernel: Kernel) -> None:
    """Make one variable of two neighbours that move together in every index."""
    kernel.outer = _collapsed(kernel, kernel.outer)
    kernel.inner = _collapsed(kernel, kernel.inner)


def _collapsed(kernel: Kernel, variables: tuple[Atom, ...]) -> tuple[Atom, ...]:
    place = len(variables) - 2
    while place >= 0:
        high, low = variables[place], variables[place + 1]
        if _together(every_index(kernel.stages), high, low):
            merged = variable(f"{high.name}_{low.name}", extent(high) * extent(low))
            (atom,) = atoms(merged)
            substitute_in(kernel.stages, {high: 0, low: merged})
            variables = (*variables[:place], atom, *variables[place + 2 :])
        place -= 1
    return variables


def _together(indices: Sequence[Size], high: Atom, low: Atom) -> bool:
    for index in indices:
        far, near = coefficient_of(_without_fetched(index), high), coefficient_of(_without_fetched(index), low)
        if far is None or near is None or far != near * extent(low):
            return False
    return True


def _without_fetched(index: Size) -> Size:
    """The index with values read from memory taken as fixed: what they depend on is judged by their own indices."""
    return substitute(index, lambda atom: 0 if atom.kind == "Fetched" else None)


def substitute_in(stages: Sequence[Stage], mapping: Mapping) -> None:
    """Rename variables everywhere in the sweeps."""
    for stage in stages:
        stage.row_values[:] = [(name, rewrite(value, mapping.get)) for name, value in stage.row_values]
        for store in (*stage.row_stores, *stage.stores):
            store.value = rewrite(store.value, mapping.get)
            store.index = renamed(store.index, mapping)
        for accumulation in stage.accumulations:
            accumulation.value = rewrite(accumulation.value, mapping.get)


def renamed(index: Size, mapping: Mapping) -> Size:
    """An index in other variables, fetched values inside it included."""

    def image(atom: Atom) -> Size | None:
        if atom.kind == "Fetched":
            return fetch(rewrite(atom.left, mapping.get))
        return mapping.get(atom)

    return substitute(index, image)


def finish(kernel: Kernel) -> None:
    """Canonical names, and the list of arguments, so that equal kernels are equal text."""
    mapping: Mapping = {}
    outer: list[Atom] = []
    inner: list[Atom] = []
    for prefix, old, new in (("o", kernel.outer, outer), ("r", kernel.inner, inner)):
        for k, atom in enumerate(old):
            fresh = variable(f"{prefix}{k}", extent(atom))
            mapping[atom] = fresh
            new.extend(atoms(fresh))
    kernel.outer, kernel.inner = tuple(outer), tuple(inner)
    changed = {atom: image for atom, image in mapping.items() if image != of_atom(atom)}
    if changed:
        substitute_in(kernel.stages, changed)
    arguments: dict[Buffer, None] = {}
    for stage in kernel.stages:
        for root in roots_of([stage]):
            for node in walk([root]):
                if node.operation == "load":
                    arguments[node.attribute[0]] = None
        for store in (*stage.row_stores, *stage.stores):
            arguments[store.buffer] = None
    kernel.buffers = [buffer for buffer in arguments if buffer.role != "scratch"]
    sizes = every_index(kernel.stages) + [extent(atom) for atom in (*outer, *inner)]
    symbols = {atom for size in sizes for atom in all_atoms(size) if atom.kind == "Symbol"}
    kernel.symbols = sorted(symbols, key=lambda atom: atom.key)
