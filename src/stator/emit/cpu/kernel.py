"""A kernel of the loop language as one LLVM function.

Contract. `emit(kernel, module, target, way, name)` adds to the module `void name(void *const *buffers, const int64_t
*ints, int64_t begin, int64_t end)`. `shape(kernel, way)` says how many units the outermost parallel range has and how
many of them are worth a thread. There are five ways to walk a kernel, chosen by `choose`:

    flat      one variable and no row: units are elements, the vector runs along them
    rows      units are rows; the vector runs along the last inner variable
    columns   units are blocks of the last outer variable, along which the vector runs; inner variables are plain loops
              (a sum over the first dimension of a matrix)
    tiles     memory lies along one variable on the one side and along another on the other: square tiles are loaded
              along the one and turned in registers (see `tiles.py`)
    products  a contraction in tiles of registers (see `products.py`)

Every loop over vectors is followed by one for the remainder: with lanes masked off on AVX-512, one element at a time
elsewhere. No pass pipeline runs behind this: loops carry their state in phi nodes, invariant values are hoisted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from stator.emit.cpu.elements import Elements, memory_type
from stator.emit.cpu.frames import I64, POINTER, Frame, integer
from stator.emit.cpu.math_ir import Target
from stator.emit.cpu.products import Products, Tiling, tiling_of, units_of, work_of
from stator.emit.cpu.reduce import Reducer
from stator.emit.cpu.streams import streamed
from stator.emit.cpu.tiles import TILE_WEIGHT, TILES_A_UNIT, turned_frames, turned_variable
from stator.loops.integers import Atom, Size, coefficient_of, product_of, quotient, single_atom, upper_bound, variable
from stator.loops.ir import TYPES, Expression, Kernel, Stage, walk
from stator.loops.schedule import every_index, roots_of, stores_of
from stator.loops.spaces import extent, total

Value = Any

# Additions a thread should have to do before another one is woken.
WORK_PER_THREAD = 1 << 15
# The same for multiplications of a contraction, of which a core does many at once.
PRODUCTS_PER_THREAD = 1 << 19
# What a row of symbolic length is taken for.
UNKNOWN_ROW = 4096


@dataclass(frozen=True, slots=True)
class Way:
    """How to walk a kernel."""

    name: str
    vector: Atom | None
    lanes: int
    unroll: int
    across: Atom | None = None  # of tiles: the other variable
    tiling: Tiling | None = None  # of products


@dataclass(frozen=True, slots=True)
class Shape:
    """The parallel range of an emitted kernel."""

    total: Size
    grain: int


def emit(kernel: Kernel, module: ir.Module, target: Target, way: Way, name: str) -> None:
    """Add the kernel's function to the module."""
    Emitter(kernel, module, target, way, name).run()


def shape(kernel: Kernel, way: Way) -> Shape:
    """The parallel range of a kernel walked that way."""
    cost = max(sum(root.cost for root in set(roots_of(kernel.stages))), 1)
    if way.name == "flat":
        return Shape(extent(kernel.inner[0]), max(WORK_PER_THREAD // cost, 1))
    if way.tiling is not None:
        return Shape(product_of(units_of(way.tiling)[1]), max(PRODUCTS_PER_THREAD // work_of(way.tiling), 1))
    inner = upper_bound(total(kernel.inner))
    work = cost * max(UNKNOWN_ROW if inner is None else inner, 1)
    if way.name == "rows":
        return Shape(total(kernel.outer), max(WORK_PER_THREAD // work, 1))
    width = way.lanes * way.unroll
    blocked = kernel.outer[-1] if way.across is None else way.across
    count = quotient(extent(blocked) + (width - 1), width)
    rest = total([atom for atom in kernel.outer if atom is not blocked])
    return Shape(rest * count, max(WORK_PER_THREAD // (work * width), 1))


# Choosing


def choose(kernel: Kernel, target: Target) -> Way:
    """The way to walk it: the vector runs along the variable that most accesses move by one with."""
    lanes = max(target.bits // 8 // _width(kernel), 1)
    variables = kernel.inner[-1:] + kernel.outer[-1:]
    tiling = tiling_of(kernel, target)
    if tiling is not None:
        return Way("products", tiling.roles.columns, tiling.lanes, tiling.vectors, tiling=tiling)
    if not variables:
        return Way("rows", None, lanes, 1)
    weight = sum(len(set(walk([root]))) for root in roots_of(kernel.stages))
    if not kernel.outer and len(kernel.inner) == 1 and not _has_rows(kernel):
        return Way("flat", kernel.inner[0], lanes, _unroll(weight))
    if _has_rows(kernel) and kernel.outer:
        over = _score(kernel, kernel.outer[-1])
        along = _score(kernel, kernel.inner[-1]) if kernel.inner else -1
        wide = upper_bound(extent(kernel.outer[-1]))
        if over > along and (wide is None or wide >= 4) and not kernel.scratch:
            return Way("columns", kernel.outer[-1], lanes, 4 if weight < 60 else 2 if weight < 160 else 1)
    across = turned_variable(kernel, lanes) if weight <= TILE_WEIGHT and not _has_rows(kernel) else None
    if across is not None:
        return Way("tiles", kernel.inner[-1], lanes, TILES_A_UNIT, across)
    vector = kernel.inner[-1] if kernel.inner else None
    return Way("rows", vector, lanes, _unroll(weight))


def _has_rows(kernel: Kernel) -> bool:
    return any(stage.accumulations or stage.row_values or stage.row_stores for stage in kernel.stages)


def _unroll(weight: int) -> int:
    return 8 if weight <= 6 else 4 if weight <= 24 else 2 if weight <= 96 else 1


def _score(kernel: Kernel, atom: Atom) -> int:
    """Accesses that lie side by side along a variable, minus those far apart."""
    score = 0
    for index in every_index(kernel.stages):
        step = coefficient_of(index, atom)
        if step == 1:
            score += 1
        elif step is None or step != 0:
            score -= 1
    return score


def _width(kernel: Kernel) -> int:
    """Bytes of the widest type that most of the arithmetic is done in."""
    widths = [1]
    for root in roots_of(kernel.stages):
        for node in walk([root]):
            if node.operation in ("constant", "index", "local"):
                continue
            widths.append(4 if node.type in ("bf16", "f16") else TYPES[node.type])
    for stage in kernel.stages:
        for accumulation in stage.accumulations:
            if accumulation.kind in ("argmax", "argmin"):
                widths.append(8)
    floats = any(node.type == "f32" for root in roots_of(kernel.stages) for node in walk([root]))
    doubles = any(node.type == "f64" for root in roots_of(kernel.stages) for node in walk([root]))
    if floats and not doubles and max(widths) == 8:
        return 4
    return max(widths)


# Emission


class Emitter:
    def __init__(self, kernel: Kernel, module: ir.Module, target: Target, way: Way, name: str) -> None:
        self.kernel = kernel
        self.target = target
        self.way = way
        signature = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, I64])
        self.function = ir.Function(module, signature, name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.elements = Elements(self.builder, target)
        self.names: dict[str, Value] = {}
        self.begin, self.end = self.function.args[2], self.function.args[3]
        self.entry = Frame(self.elements, None, {}, self.names)
        self.masks = target.bits == 512

    def run(self) -> None:
        self._arguments()
        if self.way.tiling is not None:
            Products(self, self.way.tiling).run()
            self.builder.ret_void()
            return
        self.elements.streamed = streamed(self.kernel, self.way)
        self.entry.prepare(self._roots())
        {"flat": self._flat, "rows": self._rows, "columns": self._columns, "tiles": self._tiles}[self.way.name]()
        self.elements.finish_streams()
        self.builder.ret_void()

    def _roots(self) -> list[Expression]:
        return roots_of(self.kernel.stages)

    def _arguments(self) -> None:
        buffers, ints = self.function.args[:2]
        for k, buffer in enumerate(self.kernel.buffers):
            address = self.builder.gep(buffers, [integer(k)], source_etype=POINTER)
            self.entry.pointers[buffer] = self.builder.load(address, typ=POINTER, align=8)
        for k, atom in enumerate(self.kernel.symbols):
            address = self.builder.gep(ints, [integer(k)], source_etype=I64)
            self.entry.symbols[atom] = self.builder.load(address, typ=I64, align=8)
        for buffer in self.kernel.scratch:
            count = 1
            for size in buffer.sizes:
                count *= upper_bound(size) or 1
            kind = ir.ArrayType(memory_type(buffer.type, None), count)
            row = self.builder.alloca(kind)
            row.align = 64
            row.type = POINTER
            self.entry.pointers[buffer] = row

    # loops

    def loop(
        self,
        low: Value,
        high: Value,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], list[Value]],
        name: str,
    ) -> list[Value]:
        """for (i = low; i < high; i += step), with values carried from turn to turn; returns their last state."""
        before = self.builder.block
        head = self.function.append_basic_block(f"{name}.head")
        inside = self.function.append_basic_block(f"{name}.body")
        after = self.function.append_basic_block(f"{name}.end")
        self.builder.branch(head)
        self.builder.position_at_end(head)
        counter = self.builder.phi(I64)
        counter.add_incoming(low, before)
        phis = []
        for value in carried:
            phi = self.builder.phi(value.type)
            phi.add_incoming(value, before)
            phis.append(phi)
        self.builder.cbranch(self.builder.icmp_signed("<", counter, high), inside, after)
        self.builder.position_at_end(inside)
        results = body(counter, list(phis))
        following = self.builder.add(counter, integer(step), flags=["nsw"])
        last = self.builder.block
        counter.add_incoming(following, last)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, last)
        self.builder.branch(head)
        self.builder.position_at_end(after)
        return list(phis)

    def vector_loop(
        self,
        outside: Frame,
        low: Value,
        high: Value,
        carried: Sequence[Value],
        body: Callable[[list[Frame], list[Value]], list[Value]],
    ) -> list[Value]:
        """The vector variable over [low, high): several vectors a turn, then what is left."""
        way, vector = self.way, self.way.vector
        assert vector is not None
        width = way.lanes * way.unroll
        whole = self.builder.and_(self.builder.sub(high, low), integer(-width))
        middle = self.builder.add(low, whole)

        def full(counter: Value, state: list[Value]) -> list[Value]:
            frames = []
            for part in range(way.unroll):
                first = counter if part == 0 else self.builder.add(counter, integer(part * way.lanes))
                frames.append(Frame(self.elements, outside, {vector: first}, outside.names, way.lanes, vector))
            return body(frames, state)

        state = self.loop(low, middle, width, carried, full, "vector")
        return self._remainder(outside, middle, high, state, body)

    def _remainder(
        self,
        outside: Frame,
        low: Value,
        high: Value,
        carried: list[Value],
        body: Callable[[list[Frame], list[Value]], list[Value]],
    ) -> list[Value]:
        way, vector = self.way, self.way.vector
        assert vector is not None

        def masked(counter: Value, state: list[Value]) -> list[Value]:
            kind = ir.VectorType(ir.IntType(32), way.lanes)
            left = self.builder.trunc(self.builder.sub(high, counter), ir.IntType(32))
            steps = ir.Constant(kind, [ir.Constant(ir.IntType(32), k) for k in range(way.lanes)])
            mask = self.builder.icmp_signed("<", steps, self.elements.spread(left, way.lanes))
            return body(
                [Frame(self.elements, outside, {vector: counter}, outside.names, way.lanes, vector, mask)], state
            )

        def single(counter: Value, state: list[Value]) -> list[Value]:
            return body([Frame(self.elements, outside, {vector: counter}, outside.names)], state)

        if self.masks:
            return self.loop(low, high, way.lanes, carried, masked, "masked")
        return self.loop(low, high, 1, carried, single, "single")

    # ways

    def _flat(self) -> None:
        (stage,) = self.kernel.stages

        def body(frames: list[Frame], state: list[Value]) -> list[Value]:
            self._elements_of(stage, frames, [], [])
            return state

        low = self.begin
        if self.elements.streamed:  # whole vectors from a multiple of their length on
            low = self.builder.add(low, integer(self.way.lanes - 1))
            low = self._smaller(self.builder.and_(low, integer(-self.way.lanes)), self.end)
            self._remainder(self.entry, self.begin, low, [], body)
        self.vector_loop(self.entry, low, self.end, [], body)

    def _rows(self) -> None:
        outer = self.kernel.outer

        def row(bound: dict[Atom, Value]) -> None:
            frame = Frame(self.elements, self.entry, bound, dict(self.names))
            self._row(frame)

        self._units(outer, [extent(atom) for atom in outer], row)

    def _row(self, frame: Frame) -> None:
        """All sweeps of one row, the vector along the last inner variable."""
        for stage in self.kernel.stages:
            self._row_values(stage, frame)
            if not stage.accumulations and not stage.stores:
                continue
            roots = [accumulation.value for accumulation in stage.accumulations]
            roots += [store.value for store in stage.stores]
            reducers = [Reducer(self.elements, accumulation, self.way) for accumulation in stage.accumulations]
            start = [value for reducer in reducers for value in reducer.start()]
            state = self._sweep(frame, list(self.kernel.inner), roots, stage, reducers, start)
            self._finish(reducers, state, frame.names)

    def _finish(self, reducers: list[Reducer], state: list[Value], names: dict[str, Value]) -> None:
        place = 0
        for reducer in reducers:
            part = state[place : place + reducer.width]
            place += reducer.width
            names[reducer.accumulation.name] = reducer.finish(part)

    def _row_values(self, stage: Stage, frame: Frame) -> None:
        for name, value in stage.row_values:
            frame.names[name] = frame.value(value)
        for store in stage.row_stores:
            frame.store(store, frame.value(store.value))

    def _sweep(
        self,
        frame: Frame,
        variables: list[Atom],
        roots: list[Expression],
        stage: Stage,
        reducers: list[Reducer],
        state: list[Value],
    ) -> list[Value]:
        """Plain loops over all inner variables but the last, then the vector loop."""
        frame.prepare(roots, stage.stores)
        if not variables:
            return self._elements_of(stage, [frame], reducers, state)
        atom, rest = variables[0], variables[1:]
        high = frame.whole(extent(atom))
        if not rest and atom is self.way.vector:
            return self.vector_loop(
                frame,
                integer(0),
                high,
                state,
                lambda frames, carried: self._elements_of(stage, frames, reducers, carried),
            )

        def body(counter: Value, carried: list[Value]) -> list[Value]:
            inside = Frame(self.elements, frame, {atom: counter}, frame.names)
            return self._sweep(inside, rest, roots, stage, reducers, carried)

        return self.loop(integer(0), high, 1, state, body, "inner")

    def _elements_of(
        self, stage: Stage, frames: list[Frame], reducers: list[Reducer], state: list[Value]
    ) -> list[Value]:
        """One turn: every value computed, then accumulated and stored."""
        accumulated = list(state)
        place = 0
        for reducer in reducers:
            part = accumulated[place : place + reducer.width]
            accumulated[place : place + reducer.width] = reducer.step(part, frames)
            place += reducer.width
        values = [[frame.value(store.value) for store in stage.stores] for frame in frames]
        for frame, computed in zip(frames, values, strict=True):
            for store, value in zip(stage.stores, computed, strict=True):
                frame.store(store, value)
        return accumulated

    def _columns(self) -> None:
        way, vector = self.way, self.way.vector
        assert vector is not None
        rest = self.kernel.outer[:-1]
        width = way.lanes * way.unroll
        count = quotient(extent(vector) + (width - 1), width)
        blocks = _blocks(count)

        def block(bound: dict[Atom, Value]) -> None:
            number = bound.pop(blocks)
            frame = Frame(self.elements, self.entry, bound, dict(self.names))
            roots = self._roots()
            frame.prepare(roots, stores_of(self.kernel.stages))
            low = self.builder.mul(number, integer(width))
            limit = frame.whole(extent(vector))
            high = self.builder.add(low, integer(width))
            high = self.builder.select(self.builder.icmp_signed("<", high, limit), high, limit)

            def body(frames: list[Frame], state: list[Value]) -> list[Value]:
                for inner in frames:
                    inner.names = dict(frame.names)
                self._column(frames)
                return state

            self.vector_loop(frame, low, high, [], body)

        self._units((*rest, blocks), [*(extent(atom) for atom in rest), count], block)

    def _column(self, frames: list[Frame]) -> None:
        """All sweeps of some vectors of columns: inner loops are shared, state is one set a vector."""
        for stage in self.kernel.stages:
            for frame in frames:
                self._row_values(stage, frame)
            if not stage.accumulations and not stage.stores:
                continue
            sets = [[Reducer(self.elements, a, self.way, frame) for a in stage.accumulations] for frame in frames]
            state = [value for reducers in sets for reducer in reducers for value in reducer.start()]
            state = self._column_sweep(frames, list(self.kernel.inner), stage, sets, state)
            place = 0
            for frame, reducers in zip(frames, sets, strict=True):
                size = sum(reducer.width for reducer in reducers)
                self._finish(reducers, state[place : place + size], frame.names)
                place += size

    def _column_sweep(
        self,
        frames: list[Frame],
        variables: list[Atom],
        stage: Stage,
        sets: list[list[Reducer]],
        state: list[Value],
    ) -> list[Value]:
        roots = [a.value for a in stage.accumulations] + [store.value for store in stage.stores]
        for frame in frames:
            frame.prepare(roots, stage.stores)
        if not variables:
            result: list[Value] = []
            place = 0
            for frame, reducers in zip(frames, sets, strict=True):
                size = sum(reducer.width for reducer in reducers)
                result += self._elements_of(stage, [frame], reducers, state[place : place + size])
                place += size
            return result
        atom, rest = variables[0], variables[1:]
        high = frames[0].whole(extent(atom))

        def body(counter: Value, carried: list[Value]) -> list[Value]:
            inside = [Frame(self.elements, frame, {atom: counter}, frame.names) for frame in frames]
            return self._column_sweep(inside, rest, stage, sets, carried)

        return self.loop(integer(0), high, 1, state, body, "inner")

    def _tiles(self) -> None:
        """Blocks of rows; in each, turned tiles, then what no whole tile covers."""
        way, vector, across = self.way, self.way.vector, self.way.across
        assert vector is not None and across is not None
        (stage,) = self.kernel.stages
        rest = [atom for atom in self.kernel.outer if atom is not across]
        width = way.lanes * way.unroll
        count = quotient(extent(across) + (width - 1), width)
        blocks = _blocks(count)
        roots = [store.value for store in stage.stores]

        def block(bound: dict[Atom, Value]) -> None:
            number = bound.pop(blocks)
            outer = Frame(self.elements, self.entry, bound, self.names)
            self._inner_loops(outer, list(self.kernel.inner[:-1]), lambda frame: tiles_of(frame, number))

        def tiles_of(frame: Frame, number: Value) -> None:
            frame.prepare(roots, stage.stores)
            low = self.builder.mul(number, integer(width))
            high = self._smaller(self.builder.add(low, integer(width)), frame.whole(extent(across)))
            length = frame.whole(extent(vector))
            mask = integer(-way.lanes)
            whole = self.builder.and_(length, mask)
            covered = self.builder.add(low, self.builder.and_(self.builder.sub(high, low), mask))

            def along(i: Value, _: list[Value]) -> list[Value]:
                def one(j: Value, state: list[Value]) -> list[Value]:
                    tile(frame, i, j)
                    return state

                self.loop(low, covered, way.lanes, [], one, "tile")
                return []

            self.loop(integer(0), whole, way.lanes, [], along, "tiles")

            def uncovered(j: Value, _: list[Value]) -> list[Value]:
                first = self.builder.select(self.builder.icmp_signed("<", j, covered), whole, integer(0))
                row = Frame(self.elements, frame, {across: j}, self.names)
                row.prepare(roots, stage.stores)
                self._remainder(row, first, length, [], lambda f, state: self._elements_of(stage, f, [], state))
                return []

            self.loop(low, high, 1, [], uncovered, "edge")

        def tile(frame: Frame, i: Value, j: Value) -> None:
            for inside in turned_frames(self.elements, frame, stage, way, i, j):
                self._elements_of(stage, [inside], [], [])

        self._units((*rest, blocks), [*(extent(atom) for atom in rest), count], block)

    def _inner_loops(self, frame: Frame, variables: list[Atom], body: Callable[[Frame], None]) -> None:
        if not variables:
            body(frame)
            return
        atom, rest = variables[0], variables[1:]

        def turn(counter: Value, _: list[Value]) -> list[Value]:
            self._inner_loops(Frame(self.elements, frame, {atom: counter}, frame.names), rest, body)
            return []

        self.loop(integer(0), frame.whole(extent(atom)), 1, [], turn, "inner")

    def _smaller(self, left: Value, right: Value) -> Value:
        return self.builder.select(self.builder.icmp_signed("<", left, right), left, right)

    def _units(
        self, variables: Sequence[Atom], extents: Sequence[Size], body: Callable[[dict[Atom, Value]], None]
    ) -> None:
        """Each unit in [begin, end): its variables by division for the first, by counting up for the others."""
        if not variables:

            def whole(_: Value, state: list[Value]) -> list[Value]:
                body({})
                return state

            self.loop(self.begin, self.end, 1, [], whole, "unit")
            return
        if len(variables) == 1:

            def single(i: Value, state: list[Value]) -> list[Value]:
                body({variables[0]: i})
                return state

            self.loop(self.begin, self.end, 1, [], single, "unit")
            return
        limits = [self.entry.whole(size) for size in extents]
        rest = self.begin
        start: list[Value] = []
        for limit in reversed(limits[1:]):
            start.insert(0, self.builder.urem(rest, limit))
            rest = self.builder.udiv(rest, limit)
        start.insert(0, rest)

        def turn(_: Value, places: list[Value]) -> list[Value]:
            body(dict(zip(variables, places, strict=True)))
            following: list[Value] = []
            carry: Value = integer(1)
            for place, limit in zip(reversed(places), reversed(limits), strict=True):
                raised = self.builder.add(place, carry)
                over = self.builder.icmp_signed(">=", raised, limit)
                following.insert(0, self.builder.select(over, integer(0), raised))
                carry = self.builder.zext(over, I64)
            return following

        self.loop(self.begin, self.end, 1, start, turn, "unit")


def _blocks(count: Size) -> Atom:
    """The variable that counts blocks of columns."""
    atom = single_atom(variable("block", count))
    assert atom is not None
    return atom
