"""Where values of a kernel live while its code is written: one frame per loop level.

Contract. A `Frame` binds loop variables to LLVM values and caches every expression computed at its level. `value(node)`
looks through the frames outwards before it computes. Just before a loop opens, `prepare` computes in the frame outside
it everything the loop's body needs that does not change inside: there is no optimiser behind the emitter to move it.

A frame with `lanes` runs several values of its vector variable at once: that variable is bound to the first lane, and
what depends on it is a vector. `mask` switches lanes off in a remainder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir

from stator.emit.cpu.elements import Elements, constant, memory_type, register_type
from stator.emit.cpu.math_ir import declare, lanes_of, mangled, splat
from stator.loops.integers import Atom, Polynomial, Size, of_atom, terms_of
from stator.loops.ir import Buffer, Expression, Store, walk

Value = Any
I64 = ir.IntType(64)
I32 = ir.IntType(32)
POINTER = ir.PointerType()


def integer(number: int) -> ir.Constant:
    return ir.Constant(I64, number)


class Frame:
    """One level."""

    def __init__(
        self,
        elements: Elements,
        parent: Frame | None,
        bound: dict[Atom, Value],
        names: dict[str, Value],
        lanes: int | None = None,
        vector: Atom | None = None,
        mask: Value | None = None,
    ) -> None:
        self.elements = elements
        self.builder = elements.builder
        self.parent = parent
        self.bound = bound
        self.names = names  # local values, shared by the frames of a row
        self.lanes: int | None = lanes if lanes is not None or parent is None else parent.lanes
        self.vector: Atom | None = vector if vector is not None or parent is None else parent.vector
        self.mask: Value | None = mask if mask is not None or parent is None else parent.mask
        self.known: frozenset[Atom] = (parent.known if parent else frozenset()) | frozenset(bound)
        self.values: dict[Expression, Value] = {}
        self.integers: dict[Size, Value] = {}
        self.pointers: dict[Buffer, Value] = parent.pointers if parent else {}
        self.symbols: dict[Atom, Value] = parent.symbols if parent else {}

    # lookups

    def find(self, node: Expression) -> Value | None:
        frame: Frame | None = self
        while frame is not None:
            found = frame.values.get(node)
            if found is not None:
                return found
            frame = frame.parent
        return None

    def variable(self, atom: Atom) -> Value:
        frame: Frame | None = self
        while frame is not None:
            found = frame.bound.get(atom)
            if found is not None:
                return found
            frame = frame.parent
        raise KeyError(f"{atom} is not bound here")

    def fixed(self, node: Expression) -> bool:
        """Whether a value can be computed with what this frame knows."""
        return node.variables() <= self.known and node.locals() <= self.names.keys()

    def prepare(self, roots: Iterable[Expression], stores: Iterable[Store] = ()) -> None:
        """Compute what does not change in the loop about to open."""
        for node in walk(list(roots)):
            if node.operation in ("constant", "local", "place"):
                continue
            if self.fixed(node):
                self.value(node)
            elif node.operation == "load":
                self.prepare_integer(node.attribute[1])
            elif node.operation == "index":
                self.prepare_integer(node.attribute)
        for store in stores:
            self.prepare_integer(store.index)

    def prepare_integer(self, index: Size) -> None:
        if self.step(index) is None:
            return  # computed lane by lane, where it is used
        part = self._known_part(index, self.known)
        if not isinstance(part, int) and part != 0:
            self.whole(part)

    def _known_part(self, index: Size, known: frozenset[Atom]) -> Size:
        """The terms that use only known variables."""
        if isinstance(index, int):
            return index
        kept = {
            monomial: coefficient
            for monomial, coefficient in index.terms.items()
            if all(self._atom_known(atom, known) for atom in monomial)
        }
        if len(kept) == len(index.terms):
            return index
        return Polynomial(kept) if kept and not (len(kept) == 1 and () in kept) else kept.get((), 0)

    def _atom_known(self, atom: Atom, known: frozenset[Atom]) -> bool:
        if atom.kind == "Variable":
            return atom in known
        if atom.kind == "Symbol":
            return True
        if atom.kind == "Fetched":
            return bool(atom.left.variables() <= known) and bool(atom.left.locals() <= self.names.keys())
        return self._all_known(atom.left, known) and self._all_known(atom.right, known)

    def _all_known(self, size: Size, known: frozenset[Atom]) -> bool:
        return all(self._atom_known(atom, known) for monomial in terms_of(size) for atom in monomial)

    # integers

    def whole(self, size: Size) -> Value:
        """An index as a scalar; the vector variable stands for its first lane."""
        if isinstance(size, int):
            return integer(size)
        frame: Frame | None = self
        while frame is not None:
            found = frame.integers.get(size)
            if found is not None:
                return found
            frame = frame.parent
        result = self._compute_whole(size)
        self.integers[size] = result
        return result

    def _compute_whole(self, size: Polynomial) -> Value:
        outside = self.parent.known if self.parent else frozenset()
        fixed = self._known_part(size, outside) if self.parent else 0
        if isinstance(fixed, Polynomial) and fixed is not size:
            return self._plus(self.whole(fixed), self.whole(size - fixed))
        total: Value | None = None
        for monomial, coefficient in size.terms.items():
            term = self._monomial(monomial, coefficient)
            total = term if total is None else self._plus(total, term)
        assert total is not None
        return total

    def _plus(self, left: Value, right: Value) -> Value:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, ir.Constant) and one.constant == 0:
                return other
        return self.builder.add(left, right, flags=["nsw"])

    def _monomial(self, monomial: tuple[Atom, ...], coefficient: int) -> Value:
        value: Value | None = None
        for atom in monomial:
            factor = self.atom(atom)
            value = factor if value is None else self.builder.mul(value, factor, flags=["nsw"])
        if value is None:
            return integer(coefficient)
        return value if coefficient == 1 else self.builder.mul(value, integer(coefficient), flags=["nsw"])

    def atom(self, atom: Atom) -> Value:
        """An atom as a scalar."""
        if atom.kind == "Variable":
            return self.variable(atom)
        if atom.kind == "Symbol":
            return self.symbols[atom]
        if atom.kind == "Fetched":
            value = self.value(atom.left)
            return self.elements.convert(value, atom.left.type, "i64")
        left, right = self.whole(atom.left), self.whole(atom.right)
        return self._binary_atom(atom, left, right)

    def _binary_atom(self, atom: Atom, left: Value, right: Value) -> Value:
        if atom.kind == "Quotient":
            return self.builder.udiv(left, right)
        if atom.kind == "Remainder":
            return self.builder.urem(left, right)
        return self.builder.select(self.builder.icmp_signed("<", left, right), left, right)

    # how an index depends on the vector variable

    def varies(self, atom: Atom) -> bool:
        """Whether an atom differs from lane to lane."""
        if self.lanes is None or self.vector is None:
            return False
        if atom.kind == "Variable":
            return atom is self.vector
        if atom.kind == "Symbol":
            return False
        if atom.kind == "Fetched":
            return self.differs(atom.left)
        return any(self.varies(inner) for size in (atom.left, atom.right) for m in terms_of(size) for inner in m)

    def differs(self, node: Expression) -> bool:
        """Whether a value differs from lane to lane."""
        if self.lanes is None:
            return False
        if self.vector in node.variables():
            return True
        return any(lanes_of(self.names[name].type) is not None for name in node.locals())

    def step(self, index: Size) -> int | None:
        """0: the same in all lanes; 1: side by side; None: anything else."""
        stride = 0
        for monomial, coefficient in terms_of(index).items():
            varying = [atom for atom in monomial if self.varies(atom)]
            if not varying:
                continue
            if len(monomial) == 1 and varying[0] is self.vector and coefficient == 1 and stride == 0:
                stride = 1
            else:
                return None
        return stride

    def spread_index(self, index: Size) -> Value:
        """An index lane by lane, as a vector of i64."""
        assert self.lanes is not None
        same: dict[tuple[Atom, ...], int] = {}
        total: Value | None = None
        for monomial, coefficient in terms_of(index).items():
            if not any(self.varies(atom) for atom in monomial):
                same[monomial] = coefficient
                continue
            term: Value | None = None
            for atom in monomial:
                factor = self._spread_atom(atom)
                term = factor if term is None else self.builder.mul(term, factor)
            if coefficient != 1:
                term = self.builder.mul(term, splat(ir.VectorType(I64, self.lanes), coefficient))
            total = term if total is None else self.builder.add(total, term)
        uniform: Size = 0
        for monomial, coefficient in same.items():
            uniform = uniform + (Polynomial({monomial: coefficient}) if monomial else coefficient)
        if total is None:
            return self.elements.spread(self.whole(uniform), self.lanes)
        if uniform == 0:
            return total
        return self.builder.add(total, self.elements.spread(self.whole(uniform), self.lanes))

    def _spread_atom(self, atom: Atom) -> Value:
        lanes = self.lanes
        assert lanes is not None
        if not self.varies(atom):
            return self.elements.spread(self.atom(atom), lanes)
        if atom.kind == "Variable":
            kind = ir.VectorType(I64, lanes)
            steps = ir.Constant(kind, [integer(k) for k in range(lanes)])
            return self.builder.add(self.elements.spread(self.variable(atom), lanes), steps)
        if atom.kind == "Fetched":
            return self.elements.convert(self.value(atom.left), atom.left.type, "i64")
        return self._binary_atom(atom, self.spread_index(atom.left), self.spread_index(atom.right))

    # values

    def value(self, node: Expression) -> Value:
        """The value, a vector if it differs from lane to lane."""
        found = self.find(node)
        if found is None:
            found = self._compute(node)
            self.values[node] = found
        return found

    def _compute(self, node: Expression) -> Value:
        if node.operation == "constant":
            return constant(node.attribute, node.type, None)
        if node.operation == "local":
            return self.names[node.attribute]
        if node.operation == "index":
            return self._index_value(node)
        if node.operation == "load":
            return self.load(*node.attribute)
        operands = [self.value(operand) for operand in node.operands]
        types = [operand.type for operand in node.operands]
        return self.elements.apply(node.operation, node.type, operands, types)

    def _index_value(self, node: Expression) -> Value:
        lanes = self.lanes if self.differs(node) else None
        raw = self.whole(node.attribute) if lanes is None else self.spread_index(node.attribute)
        return self.elements.convert(raw, "i64", node.type)

    # memory

    def load(self, buffer: Buffer, index: Size) -> Value:
        step = self.step(index)
        base = self.pointers[buffer]
        if step == 0 or self.lanes is None:
            kind = memory_type(buffer.type, None)
            address = self.builder.gep(base, [self.whole(index)], source_etype=kind)
            raw = self.builder.load(address, typ=kind, align=_bytes(kind))
        elif step == 1:
            raw = self._load_side_by_side(buffer, index)
        else:
            raw = self._gather(buffer, index)
        return self.elements.from_memory(raw, buffer.type)

    def _load_side_by_side(self, buffer: Buffer, index: Size) -> Value:
        element = memory_type(buffer.type, None)
        kind = memory_type(buffer.type, self.lanes)
        address = self.builder.gep(self.pointers[buffer], [self.whole(index)], source_etype=element)
        if self.mask is None:
            return self.builder.load(address, typ=kind, align=_bytes(element))
        return self.elements.masked_load(address, kind, self.mask, _bytes(element))

    def _addresses(self, buffer: Buffer, index: Size) -> Value:
        places = self.builder.gep(
            self.pointers[buffer], [self.spread_index(index)], source_etype=memory_type(buffer.type, None)
        )
        places.type = ir.VectorType(POINTER, self.lanes)
        return places

    def all_lanes(self) -> Value:
        return self.mask if self.mask is not None else splat(ir.VectorType(ir.IntType(1), self.lanes), 1)

    def _gather(self, buffer: Buffer, index: Size) -> Value:
        element, kind = memory_type(buffer.type, None), memory_type(buffer.type, self.lanes)
        places, mask = self._addresses(buffer, index), self.all_lanes()
        signature = ir.FunctionType(kind, [places.type, I32, mask.type, kind])
        name = f"llvm.masked.gather.{mangled(kind)}.v{self.lanes}p0"
        function = declare(self.builder.module, name, signature)
        return self.builder.call(function, [places, ir.Constant(I32, _bytes(element)), mask, splat(kind, 0)])

    def store(self, store: Store, value: Value) -> None:
        buffer = store.buffer
        element = memory_type(buffer.type, None)
        step = self.step(store.index)
        if step == 0 or self.lanes is None:
            if lanes_of(value.type) is not None:
                value = self.elements.lane(value, 0)
            raw = self.elements.to_memory(value, buffer.type)
            address = self.builder.gep(self.pointers[buffer], [self.whole(store.index)], source_etype=element)
            self.builder.store(raw, address, align=_bytes(element))
            return
        raw = self.elements.to_memory(self.elements.spread(value, self.lanes), buffer.type)
        if step == 1:
            self._store_side_by_side(store, raw, element)
        else:
            self._scatter(store, raw, element)

    def _store_side_by_side(self, store: Store, raw: Value, element: ir.Type) -> None:
        address = self.builder.gep(self.pointers[store.buffer], [self.whole(store.index)], source_etype=element)
        if self.mask is None and store.buffer in self.elements.streamed:
            self.elements.store_past_cache(raw, address, _bytes(element) * (self.lanes or 1))
            return
        if self.mask is None:
            self.builder.store(raw, address, align=_bytes(element))
            return
        signature = ir.FunctionType(ir.VoidType(), [raw.type, POINTER, I32, self.mask.type])
        function = declare(self.builder.module, f"llvm.masked.store.{mangled(raw.type)}.p0", signature)
        self.builder.call(function, [raw, address, ir.Constant(I32, _bytes(element)), self.mask])

    def _scatter(self, store: Store, raw: Value, element: ir.Type) -> None:
        places, mask = self._addresses(store.buffer, store.index), self.all_lanes()
        signature = ir.FunctionType(ir.VoidType(), [raw.type, places.type, I32, mask.type])
        name = f"llvm.masked.scatter.{mangled(raw.type)}.v{self.lanes}p0"
        function = declare(self.builder.module, name, signature)
        self.builder.call(function, [raw, places, ir.Constant(I32, _bytes(element)), mask])


def _bytes(kind: ir.Type) -> int:
    if isinstance(kind, ir.IntType):
        return max(int(kind.width) // 8, 1)
    return {ir.FloatType: 4, ir.DoubleType: 8, ir.HalfType: 2}[type(kind)]


__all__ = ["I32", "I64", "POINTER", "Frame", "integer", "of_atom", "register_type"]
