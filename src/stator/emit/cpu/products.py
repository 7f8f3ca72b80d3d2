"""Contractions: products of matrices in tiles of registers, with what follows them done on each tile.

Contract. `tiling_of(kernel, target)` says how a kernel that is a contraction is cut, or None where it is none of the
usual form. `Products(emitter, tiling).run()` writes its body; `units` are its parallel range.

One unit is a panel of columns by a block of rows. It copies the panel of the right factor into scratch, so that the
innermost loop reads it side by side whatever its layout, then walks the rows a tile at a time: all sums of a tile stay
in registers while the loop runs along the summed variable, and the rows' elements are spread over lanes as they are
read. What comes after the product (a bias, an activation, a residual) then runs over the tile while it is in the
first cache. Panels longer than `DEPTH` are worked through in parts, the sums waiting in scratch between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from stator.emit.cpu.elements import memory_type, register_type
from stator.emit.cpu.frames import I64, POINTER, Frame, integer
from stator.emit.cpu.math_ir import Target, splat
from stator.emit.cpu.tiles import turned
from stator.loops.contract import CONTRACTION, Roles, roles_of, step_along
from stator.loops.integers import Atom, Size, quotient, single_atom, substitute, variable
from stator.loops.ir import TYPES, Expression, Kernel
from stator.loops.schedule import roots_of
from stator.loops.spaces import extent, total

if TYPE_CHECKING:
    from stator.emit.cpu.kernel import Emitter

Value = Any

# Rows of a tile, by the width of vectors: with two vectors of columns they fill the registers there are.
TILE_ROWS = {512: 14, 256: 6}
# Elements of the summed variable that a panel in scratch holds.
DEPTH = 1024
# Tiles of a block of rows, where a product is worked through in parts or has few panels.
BLOCK_TILES = 8
# Units a product is cut into where it is large enough.
WANTED_UNITS = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a contraction is cut. `block` rows are a unit's, `tile` a tile's; a panel is `vectors` vectors wide."""

    roles: Roles
    lanes: int
    vectors: int
    tile: int
    block: Size
    depth: int

    @property
    def width(self) -> int:
        return self.lanes * self.vectors

    @property
    def parts(self) -> int:
        """How many parts the summed variable is worked through in."""
        length = extent(self.roles.summed)
        return -(-length // self.depth) if isinstance(length, int) else 1


def tiling_of(kernel: Kernel, target: Target) -> Tiling | None:
    """How to cut a contraction."""
    accumulations = kernel.stages[0].accumulations
    if len(accumulations) != 1 or accumulations[0].kind != CONTRACTION or len(kernel.stages) != 2:
        return None
    roles = roles_of(accumulations[0].value, kernel.outer, kernel.inner)
    most = TILE_ROWS.get(target.bits)
    if roles is None or most is None or kernel.stages[1].stores or kernel.stages[1].accumulations:
        return None
    length, columns, rows = extent(roles.summed), extent(roles.columns), extent(roles.rows)
    if not isinstance(length, int) or not isinstance(columns, int):
        return None
    lanes = target.bits // 8 // TYPES[accumulations[0].value.type]
    vectors = 1 if columns <= lanes else 2
    parts = -(-length // DEPTH)
    depth = length if parts == 1 else -(-length // (parts * 4)) * 4
    if not isinstance(rows, int):
        return Tiling(roles, lanes, vectors, most, rows if parts == 1 else most * BLOCK_TILES, depth)
    tile = -(-rows // -(-rows // most))
    units = total(roles.rest) * -(-columns // (lanes * vectors))
    few = isinstance(units, int) and units < WANTED_UNITS
    block = tile * BLOCK_TILES if (parts > 1 or few) and rows > tile * BLOCK_TILES else rows
    return Tiling(roles, lanes, vectors, tile, block, depth)


def units_of(tiling: Tiling) -> tuple[list[Atom], list[Size]]:
    """The variables of the parallel range and their extents: batches, blocks of rows, panels."""
    rows, columns = extent(tiling.roles.rows), extent(tiling.roles.columns)
    blocks = 1 if rows == tiling.block else quotient(rows + (tiling.block - 1), tiling.block)
    panels = quotient(columns + (tiling.width - 1), tiling.width)
    counted = [("rows", blocks), ("panel", panels)]
    atoms = [single_atom(variable(name, count)) for name, count in counted]
    named = [atom for atom in atoms if atom is not None]
    return [*tiling.roles.rest, *named], [*(extent(atom) for atom in tiling.roles.rest), blocks, panels]


def work_of(tiling: Tiling) -> int:
    """Multiplications of a unit."""
    rows = tiling.block if isinstance(tiling.block, int) else tiling.tile * BLOCK_TILES
    length = extent(tiling.roles.summed)
    return rows * tiling.width * (length if isinstance(length, int) else DEPTH)


@dataclass(slots=True)
class Unit:
    """What the code of one unit refers to."""

    frame: Frame
    left: Value  # the left factor at row 0, summed 0
    right: Value  # the right factor at the panel's first column, summed 0
    column: Value  # the panel's first column
    low: Value  # first row
    high: Value  # beyond the last


class Products:
    """Writes the body of one contraction."""

    def __init__(self, emitter: Emitter, tiling: Tiling) -> None:
        self.emitter = emitter
        self.builder = emitter.builder
        self.elements = emitter.elements
        self.tiling = tiling
        self.roles = tiling.roles
        self.accumulation = emitter.kernel.stages[0].accumulations[0]
        self.finish = emitter.kernel.stages[1]
        self.type = self.accumulation.value.type
        self.element = memory_type(self.type, None)
        self.vector = register_type(self.type, tiling.lanes)
        self.bytes = TYPES[self.type]
        columns = extent(self.roles.columns)
        self.tail = isinstance(columns, int) and columns % tiling.width != 0
        rounded = -(-tiling.depth // tiling.lanes) * tiling.lanes
        self.panel = self._scratch(rounded * tiling.width)
        kept = tiling.tile * BLOCK_TILES if tiling.parts > 1 else tiling.tile
        self.sums = self._scratch(kept * tiling.width)

    def _scratch(self, count: int) -> Value:
        made = self.builder.alloca(ir.ArrayType(self.element, count))
        made.align = 64
        made.type = POINTER
        return made

    def run(self) -> None:
        variables, extents = units_of(self.tiling)
        self.emitter._units(variables, extents, lambda bound: self.unit(bound, variables))

    def unit(self, bound: dict[Atom, Value], variables: list[Atom]) -> None:
        panel, block = bound.pop(variables[-1]), bound.pop(variables[-2])
        frame = Frame(self.elements, self.emitter.entry, bound, dict(self.emitter.names))
        column = self.builder.mul(panel, integer(self.tiling.width))
        rows = frame.whole(extent(self.roles.rows))
        low: Value = integer(0)
        high = rows
        if self.tiling.block != extent(self.roles.rows):
            size = frame.whole(self.tiling.block)
            low = self.builder.mul(block, size)
            high = self.emitter._smaller(self.builder.add(low, size), rows)
        start = {atom: 0 for atom in (self.roles.rows, self.roles.columns, self.roles.summed)}
        left = self._address(self._base(frame, self.roles.left, start), integer(0))
        right = self._base(frame, self.roles.right, start)
        right = self._moved(right, column, step_along(self.roles.right, self.roles.columns))
        self.parts(Unit(frame, left, right, column, low, high))

    def _base(self, frame: Frame, node: Expression, start: dict[Atom, int]) -> Value:
        buffer, index = node.attribute
        return self._address(frame.pointers[buffer], frame.whole(substitute(index, start.get)))

    def _address(self, base: Value, offset: Value) -> Value:
        return self.builder.gep(base, [offset], source_etype=self.element)

    def _moved(self, base: Value, count: Value, step: int) -> Value:
        return self._address(base, self.builder.mul(count, integer(step)))

    # the summed variable, in parts

    def parts(self, unit: Unit) -> None:
        """All parts but the last leave their sums in scratch; the last one finishes."""
        length = extent(self.roles.summed)
        assert isinstance(length, int)
        whole = (self.tiling.parts - 1) * self.tiling.depth
        if whole:
            self._clear_sums()

            def part(first: Value, _: list[Value]) -> list[Value]:
                self.pack(unit, first, self.tiling.depth)
                self.tiles(unit, first, self.tiling.depth, False)
                return []

            self.emitter.loop(integer(0), integer(whole), self.tiling.depth, [], part, "part")
        self.pack(unit, integer(whole), length - whole)
        self.tiles(unit, integer(whole), length - whole, True)

    def _clear_sums(self) -> None:
        def clear(place: Value, _: list[Value]) -> list[Value]:
            self.builder.store(splat(self.vector, 0), self._address(self.sums, place), align=64)
            return []

        count = self.tiling.tile * BLOCK_TILES * self.tiling.width
        self.emitter.loop(integer(0), integer(count), self.tiling.lanes, [], clear, "clear")

    # the panel

    def pack(self, unit: Unit, first: Value, count: int) -> None:
        """Copy `count` rows of the panel into scratch, column by column side by side."""
        along, across = self.roles.right_steps()
        source = self._moved(unit.right, first, along)
        if across == 1 and (not self.tail or self.emitter.masks):
            self._pack_rows(unit, source, count, along)
        elif along == 1 and not self.tail:
            self._pack_turned(source, count, across)
        elif along == 1:
            columns = unit.frame.whole(extent(self.roles.columns))
            whole = self.builder.icmp_signed("<=", self.builder.add(unit.column, integer(self.tiling.width)), columns)
            with self.builder.if_else(whole) as (full, partial):
                with full:
                    self._pack_turned(source, count, across)
                with partial:
                    self._pack_single(unit, source, count, along, across)
        else:
            self._pack_single(unit, source, count, along, across)

    def _pack_rows(self, unit: Unit, source: Value, count: int, along: int) -> None:
        frames = self._columns(unit)

        def row(k: Value, _: list[Value]) -> list[Value]:
            start = self._moved(source, k, along)
            target = self._moved(self.panel, k, self.tiling.width)
            for j, frame in enumerate(frames):
                value = self._load_masked(self._address(start, integer(j * self.tiling.lanes)), frame.mask)
                self._store(value, target, j)
            return []

        self.emitter.loop(integer(0), integer(count), 1, [], row, "pack")

    def _load_masked(self, address: Value, mask: Value | None) -> Value:
        if mask is None:
            return self.builder.load(address, typ=self.vector, align=self.bytes)
        return self.elements.masked_load(address, self.vector, mask, self.bytes)

    def _store(self, value: Value, row: Value, number: int) -> None:
        self.builder.store(value, self._address(row, integer(number * self.tiling.lanes)), align=64)

    def _pack_turned(self, source: Value, count: int, across: int) -> None:
        lanes, width = self.tiling.lanes, self.tiling.width

        def square(k: Value, mask: Value | None) -> None:
            for j in range(self.tiling.vectors):
                starts = [self._address(source, integer((j * lanes + c) * across)) for c in range(lanes)]
                loaded = [self._load_masked(self._address(start, k), mask) for start in starts]
                for i, value in enumerate(turned(self.elements, loaded)):
                    self._store(value, self._moved(self.panel, self.builder.add(k, integer(i)), width), j)

        def whole(k: Value, _: list[Value]) -> list[Value]:
            square(k, None)
            return []

        even = count // lanes * lanes
        self.emitter.loop(integer(0), integer(even), lanes, [], whole, "turn")
        if even == count:
            return
        if self.emitter.masks:
            picks = [ir.Constant(ir.IntType(1), int(i < count - even)) for i in range(lanes)]
            square(integer(even), ir.Constant(ir.VectorType(ir.IntType(1), lanes), picks))
        else:
            self._single(source, even, count, width, lambda column: column, 1, across)

    def _pack_single(self, unit: Unit, source: Value, count: int, along: int, across: int) -> None:
        """Element by element; columns beyond the last repeat it."""
        last = self.builder.sub(unit.frame.whole(extent(self.roles.columns)), integer(1))
        last = self.builder.sub(last, unit.column)
        self._single(source, 0, count, self.tiling.width, lambda c: self.emitter._smaller(c, last), along, across)

    def _single(self, source: Value, first: int, count: int, width: int, place: Any, along: int, across: int) -> None:
        def column(c: Value, _: list[Value]) -> list[Value]:
            start = self._moved(source, place(c), across)

            def element(k: Value, _: list[Value]) -> list[Value]:
                value = self.builder.load(self._moved(start, k, along), typ=self.element, align=self.bytes)
                target = self._address(self._moved(self.panel, k, width), c)
                self.builder.store(value, target, align=self.bytes)
                return []

            self.emitter.loop(integer(first), integer(count), 1, [], element, "element")
            return []

        self.emitter.loop(integer(0), integer(width), 1, [], column, "column")

    def _columns(self, unit: Unit) -> list[Frame]:
        """A frame for each vector of the panel, lanes beyond the last column masked."""
        frames = []
        lanes, columns = self.tiling.lanes, self.roles.columns
        for j in range(self.tiling.vectors):
            first = self.builder.add(unit.column, integer(j * lanes))
            mask = None
            if self.tail:
                left = self.builder.sub(unit.frame.whole(extent(columns)), first)
                kind = ir.VectorType(I64, lanes)
                steps = ir.Constant(kind, [integer(k) for k in range(lanes)])
                mask = self.builder.icmp_signed("<", steps, self.elements.spread(left, lanes))
            frames.append(Frame(self.elements, unit.frame, {columns: first}, unit.frame.names, lanes, columns, mask))
        return frames

    # tiles of rows

    def tiles(self, unit: Unit, first: Value, count: int, last: bool) -> None:
        """Tiles from the block's first row to its last, then what is left."""
        low, sizes = unit.low, self._tile_sizes()
        for size in sizes:
            rows = self.builder.sub(unit.high, low)
            whole = self.builder.mul(self.builder.sdiv(rows, integer(size)), integer(size))
            high = self.builder.add(low, whole)

            def tile(row: Value, _: list[Value], size: int = size) -> list[Value]:
                self.tile(unit, row, first, count, size, last)
                return []

            self.emitter.loop(low, high, size, [], tile, "rows")
            low = high

    def _tile_sizes(self) -> list[int]:
        rows, tile = extent(self.roles.rows), self.tiling.tile
        if not isinstance(rows, int):
            return [tile, *(size for size in (4, 1) if size < tile)]
        return [tile, rows % tile] if rows % tile else [tile]

    def tile(self, unit: Unit, row: Value, first: Value, count: int, size: int, last: bool) -> None:
        down, along = self.roles.left_steps()
        left = self._moved(self._moved(unit.left, row, down), first, along)
        place: Value = integer(0)
        start = [splat(self.vector, 0)] * (size * self.tiling.vectors)
        if self.tiling.parts > 1:
            place = self.builder.mul(self.builder.sub(row, unit.low), integer(self.tiling.width))
            base = self._address(self.sums, place)
            start = [self.builder.load(self._vector_of(base, n), typ=self.vector, align=64) for n in range(len(start))]
        sums = self.multiply(left, count, size, start, (down, along))
        if last and not self.finish.row_values and len(self.finish.row_stores) == 1:
            self.store_directly(unit, row, size, sums)
            return
        base = self._address(self.sums, place)
        for number, value in enumerate(sums):
            self.builder.store(value, self._vector_of(base, number), align=64)
        if last:
            self.finish_rows(unit, row, base, size)

    def _vector_of(self, base: Value, number: int) -> Value:
        return self._address(base, integer(number * self.tiling.lanes))

    def multiply(self, left: Value, count: int, size: int, start: list[Value], steps: tuple[int, int]) -> list[Value]:
        """The innermost loop: sums of a tile, row by row."""
        down, along = steps
        vectors = self.tiling.vectors
        unroll = 1 if count % 2 else 2

        def turn(_: Value, carried: list[Value]) -> list[Value]:
            one, other, *sums = carried
            for k in range(unroll):
                right = [
                    self.builder.load(
                        self._address(other, integer(k * self.tiling.width + j * self.tiling.lanes)),
                        typ=self.vector,
                        align=64,
                    )
                    for j in range(vectors)
                ]
                for i in range(size):
                    address = self._address(one, integer(i * down + k * along))
                    value = self.builder.load(address, typ=self.element, align=self.bytes)
                    spread = self.elements.spread(value, self.tiling.lanes)
                    for j in range(vectors):
                        place = i * vectors + j
                        sums[place] = self.elements.intrinsic("fma", spread, right[j], sums[place])
            one = self._address(one, integer(unroll * along))
            other = self._address(other, integer(unroll * self.tiling.width))
            return [one, other, *sums]

        _, _, *sums = self.emitter.loop(integer(0), integer(count), unroll, [left, self.panel, *start], turn, "product")
        return list(sums)

    # after the product

    def store_directly(self, unit: Unit, row: Value, size: int, sums: list[Value]) -> None:
        (store,) = self.finish.row_stores
        for j, column in enumerate(self._columns(unit)):
            for i in range(size):
                place = self.builder.add(row, integer(i)) if i else row
                frame = Frame(self.elements, column, {self.roles.rows: place}, column.names)
                frame.store(store, sums[i * self.tiling.vectors + j])

    def finish_rows(self, unit: Unit, row: Value, base: Value, size: int) -> None:
        columns = self._columns(unit)
        roots = roots_of([self.finish])
        for column in columns:
            column.prepare(roots, self.finish.row_stores)

        def one(i: Value, _: list[Value]) -> list[Value]:
            for j, column in enumerate(columns):
                names = dict(unit.frame.names)
                address = self._address(
                    base,
                    self.builder.add(self.builder.mul(i, integer(self.tiling.width)), integer(j * self.tiling.lanes)),
                )
                names[self.accumulation.name] = self.builder.load(address, typ=self.vector, align=64)
                bound = {self.roles.rows: self.builder.add(row, i)}
                self.emitter._row_values(self.finish, Frame(self.elements, column, bound, names))
            return []

        self.emitter.loop(integer(0), integer(size), 1, [], one, "finish")
