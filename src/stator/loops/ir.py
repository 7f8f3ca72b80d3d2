"""The loop language itself: types, operations, expressions, buffers, definitions and nests.

Contract. An `Expression` is an interned node of a directed graph without cycles: equal structure is one object, so
rewrites keep sharing and `is` compares. `OPERATIONS` is the only list of operations; the printer, the verifier and the
emitters are keyed by it. A `Definition` gives one value to every element of a buffer:

    point    for all v in variables:  buffer[store] = value
    reduce   for all v in variables:  buffer[store] = combine over w in reduced of value

A `Nest` is what one kernel runs: definitions over the same outer variables (rows, run in parallel) and inner variables
(the elements of a row), in stages. Within a stage all definitions share one sweep over the row; a reduction's result
is known in the stages after its own.

Low precision is explicit: no arithmetic exists on `bf16` and `f16`, only conversion, so where eager rounds is visible
in the program. Everything is interned weakly, nothing outlives a compile.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from stator.loops.integers import (
    Atom,
    Polynomial,
    Size,
    all_atoms,
    atoms,
    fetched,
    single_atom,
    substitute,
    variable,
)

# type -> bytes an element takes in memory
TYPES: dict[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "b1": 1,
}  # fmt: skip
FLOATS = frozenset({"f64", "f32"})
SMALL_FLOATS = frozenset({"f16", "bf16"})
INTEGERS = frozenset({"i64", "i32", "i16", "i8", "u8"})
BOOL = frozenset({"b1"})
ALL = frozenset(TYPES)


@dataclass(frozen=True, slots=True)
class Operation:
    """`operands` is the count (-1: given by `attribute`), `types` what the operands may be, `result` "same" or a type
    ("convert" takes it from the node). `cost` is in additions, for the decision to compute a value twice."""

    operands: int
    types: frozenset[str]
    result: str = "same"
    cost: int = 1


ARITHMETIC = FLOATS | INTEGERS
OPERATIONS: dict[str, Operation] = {
    # leaves
    "constant": Operation(0, ALL, "given", 0),  # attribute: a Python number
    "index": Operation(0, ALL, "given", 0),  # attribute: a Size
    "load": Operation(0, ALL, "given", 1),  # attribute: (Buffer, Size)
    "local": Operation(0, ALL, "given", 0),  # attribute: the name of a value computed earlier in the row
    # arithmetic; integers wrap
    "add": Operation(2, ARITHMETIC),
    "sub": Operation(2, ARITHMETIC),
    "mul": Operation(2, ARITHMETIC),
    "div": Operation(2, FLOATS, cost=4),
    "fma": Operation(3, FLOATS),  # a * b + c, rounded once
    "neg": Operation(1, ARITHMETIC),
    "abs": Operation(1, ARITHMETIC),
    "minimum": Operation(2, ARITHMETIC),  # NaN if either is
    "maximum": Operation(2, ARITHMETIC),
    "floor": Operation(1, FLOATS),
    "ceil": Operation(1, FLOATS),
    "trunc": Operation(1, FLOATS),
    "round": Operation(1, FLOATS),  # half to even
    "copysign": Operation(2, FLOATS),
    "divide_truncating": Operation(2, INTEGERS, cost=16),  # by a divisor that is never zero
    "remainder_truncating": Operation(2, INTEGERS, cost=16),
    "shift_left": Operation(2, INTEGERS),
    "shift_right": Operation(2, INTEGERS),
    "and": Operation(2, INTEGERS | BOOL),
    "or": Operation(2, INTEGERS | BOOL),
    "xor": Operation(2, INTEGERS | BOOL),
    "not": Operation(1, INTEGERS | BOOL),
    # comparison: false if either is NaN, but ne
    "lt": Operation(2, ALL, "b1"),
    "le": Operation(2, ALL, "b1"),
    "gt": Operation(2, ALL, "b1"),
    "ge": Operation(2, ALL, "b1"),
    "eq": Operation(2, ALL, "b1"),
    "ne": Operation(2, ALL, "b1"),
    "where": Operation(3, ALL, "second"),
    "place": Operation(2, ALL),  # (value, its position): what argmax and argmin reduce
    "convert": Operation(1, ALL, "given"),
    # elementary functions
    **{
        name: Operation(1, FLOATS, cost=cost)
        for name, cost in {
            "sqrt": 4, "exp": 12, "exp2": 12, "expm1": 16, "log": 14, "log2": 14, "log10": 14, "log1p": 16,
            "sin": 16, "cos": 16, "tan": 24, "asin": 20, "acos": 20, "atan": 20, "sinh": 20, "cosh": 20, "tanh": 16,
            "asinh": 24, "acosh": 24, "atanh": 24, "erf": 16, "erfc": 24, "lgamma": 60, "sigmoid": 16, "rsqrt": 8,
        }.items()
    },
    **{name: Operation(2, FLOATS, cost=40) for name in ("pow", "atan2", "fmod", "hypot")},
}  # fmt: skip
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
COMMUTATIVE = frozenset({"add", "mul", "minimum", "maximum", "and", "or", "xor", "eq", "ne"})
LEAVES = frozenset({"constant", "index", "load", "local"})


@dataclass(frozen=True, slots=True)
class Reduction:
    """`identity` by type class; `combine` is a binary operation, or "" where the state is more than one value."""

    combine: str
    types: frozenset[str]
    splits: bool = True  # partial results combine by the same reduction


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction("add", ARITHMETIC),
    "contraction": Reduction("add", FLOATS, splits=False),  # a sum of products, in any order, each product fused
    "product": Reduction("mul", ARITHMETIC),
    "minimum": Reduction("minimum", ARITHMETIC),
    "maximum": Reduction("maximum", ARITHMETIC),
    "any": Reduction("or", BOOL),
    "all": Reduction("and", BOOL),
    "argmax": Reduction("", ARITHMETIC, splits=False),  # first of equals, the first NaN wins
    "argmin": Reduction("", ARITHMETIC, splits=False),
}

_buffer_numbers = itertools.count()


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of one tensor. `sizes` and `strides` describe what the program allocates or was given."""

    name: str
    type: str
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    role: str  # "input", "constant", "operator" (an extern result) or "temporary"
    serial: int = field(default_factory=lambda: next(_buffer_numbers))

    def __repr__(self) -> str:
        return self.name


class Expression:
    """An interned node. `attribute` is what the leaf or conversion needs beyond its operands."""

    __slots__ = (
        "__weakref__",
        "_loads",
        "_locals",
        "_variables",
        "attribute",
        "cost",
        "operands",
        "operation",
        "size",
        "type",
    )

    operation: str
    type: str
    operands: tuple[Expression, ...]
    attribute: Any
    cost: int  # of computing it as a tree
    size: int  # nodes, as a tree
    _variables: frozenset[Atom] | None
    _locals: frozenset[str] | None
    _loads: tuple[tuple[Buffer, Size], ...] | None

    def __repr__(self) -> str:
        from_operands = ", ".join(map(repr, self.operands))
        if self.operation == "constant":
            return f"{self.attribute}:{self.type}"
        if self.operation == "load":
            return f"{self.attribute[0]}[{self.attribute[1]}]"
        if self.operation == "index":
            return f"index({self.attribute})"
        if self.operation == "local":
            return str(self.attribute)
        if self.operation == "convert":
            return f"{self.type}({from_operands})"
        return f"{self.operation}({from_operands})"

    def variables(self) -> frozenset[Atom]:
        """Loop variables the value depends on, by its indices or directly."""
        if self._variables is None:
            found: set[Atom] = set()
            if self.operation in ("load", "index"):
                index = self.attribute[1] if self.operation == "load" else self.attribute
                found = index_variables(index)
            for operand in self.operands:
                found |= operand.variables()
            self._variables = frozenset(found)
        return self._variables

    def loads(self) -> tuple[tuple[Buffer, Size], ...]:
        """Every distinct (buffer, index) the value reads."""
        if self._loads is None:
            self._loads = tuple(node.attribute for node in walk([self]) if node.operation == "load")
        return self._loads

    def locals(self) -> frozenset[str]:
        """Names of row values the value depends on."""
        if self._locals is None:
            names: set[str] = {self.attribute} if self.operation == "local" else set()
            if self.operation in ("load", "index"):
                index = self.attribute[1] if self.operation == "load" else self.attribute
                for atom in all_atoms(index):
                    if atom.kind == "Fetched":
                        names |= atom.left.locals()
            for operand in self.operands:
                names |= operand.locals()
            self._locals = frozenset(names)
        return self._locals


def index_variables(index: Size) -> set[Atom]:
    """Loop variables of an index, those inside fetched values included."""
    found: set[Atom] = set()
    for atom in all_atoms(index):
        if atom.kind == "Variable":
            found.add(atom)
        elif atom.kind == "Fetched":
            found |= atom.left.variables()
    return found


_interned: WeakValueDictionary[tuple[Any, ...], Expression] = WeakValueDictionary()
_interned_lock = threading.Lock()
COST_LIMIT = 1 << 20


def make(operation: str, type_: str, operands: tuple[Expression, ...] = (), attribute: Any = None) -> Expression:
    """The node of that structure. Constants are told apart by type and bits (0.0 from -0.0, one NaN)."""
    label = attribute
    if operation == "constant":
        label = repr(attribute)
    handle = (operation, type_, tuple(map(id, operands)), label)
    with _interned_lock:
        found = _interned.get(handle)
        if found is None:
            found = Expression()
            found.operation, found.type, found.operands, found.attribute = operation, type_, operands, attribute
            row = OPERATIONS[operation]
            found.cost = min(row.cost + sum(operand.cost for operand in operands), COST_LIMIT)
            found.size = min(1 + sum(operand.size for operand in operands), COST_LIMIT)
            found._variables = found._locals = found._loads = None
            _interned[handle] = found
    return found


def load(buffer: Buffer, index: Size) -> Expression:
    return make("load", buffer.type, (), (buffer, index))


def constant(value: bool | int | float, type_: str) -> Expression:
    if type_ in FLOATS or type_ in SMALL_FLOATS:
        value = float(value)
    elif type_ == "b1":
        value = bool(value)
    else:
        value = wrap(int(value), type_)
    return make("constant", type_, (), value)


def wrap(value: int, type_: str) -> int:
    """An integer as the type keeps it."""
    bits = TYPES[type_] * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_ != "u8" and value >> (bits - 1) else value


def index_value(index: Size, type_: str = "i64") -> Expression:
    if isinstance(index, int):
        return constant(index, type_)
    atom = single_atom(index)
    if atom is not None and atom.kind == "Fetched" and atom.left.type == type_:
        return atom.left  # type: ignore[no-any-return]
    return make("index", type_, (), index)


def fetch(value: Expression) -> Size:
    """An integer expression as an index."""
    if value.operation == "constant":
        return int(value.attribute)
    if value.operation == "index":
        return value.attribute  # type: ignore[no-any-return]
    return fetched(value)


def rewrite(
    root: Expression,
    replace_atom: Callable[[Atom], Size | None] | None,
    replace_node: Callable[[Expression], Expression | None] | None = None,
) -> Expression:
    """Rebuild an expression bottom up: atoms of indices first, then each rebuilt node through `replace_node`."""
    done: dict[Expression, Expression] = {}

    def atom_rule(atom: Atom) -> Size | None:
        if replace_atom is not None:
            new = replace_atom(atom)
            if new is not None:
                return new
        if atom.kind == "Fetched":
            inner = visit(atom.left)
            return None if inner is atom.left else fetch(inner)
        return None

    def visit(node: Expression) -> Expression:
        found = done.get(node)
        if found is not None:
            return found
        operands = tuple(visit(operand) for operand in node.operands)
        attribute = node.attribute
        if node.operation == "load":
            attribute = (attribute[0], substitute(attribute[1], atom_rule))
        elif node.operation == "index":
            attribute = substitute(attribute, atom_rule)
        new = node
        if operands != node.operands or attribute is not node.attribute:
            if node.operation == "index":
                new = index_value(attribute, node.type)
            else:
                new = make(node.operation, node.type, operands, attribute)
        if replace_node is not None:
            replaced = replace_node(new)
            new = new if replaced is None else replaced
        done[node] = new
        return new

    return visit(root)


def walk(roots: Sequence[Expression]) -> Iterator[Expression]:
    """Every node once, those inside fetched indices included, operands first."""
    seen: set[Expression] = set()

    def visit(node: Expression) -> Iterator[Expression]:
        if node in seen:
            return
        seen.add(node)
        if node.operation in ("load", "index"):
            index = node.attribute[1] if node.operation == "load" else node.attribute
            for atom in all_atoms(index):
                if atom.kind == "Fetched":
                    yield from visit(atom.left)
        for operand in node.operands:
            yield from visit(operand)
        yield node

    for root in roots:
        yield from visit(root)


def loads_of(roots: Sequence[Expression]) -> list[tuple[Buffer, Size]]:
    """Every distinct (buffer, index) the expressions read."""
    return [node.attribute for node in walk(roots) if node.operation == "load"]


def loop_variables(sizes: Sequence[Size], prefix: str = "i") -> tuple[Size, ...]:
    """The canonical variables of a shape: equal shapes share them, so identity maps substitute for free."""
    return tuple(0 if size == 1 else variable(f"{prefix}{k}", size) for k, size in enumerate(sizes))


def variable_atoms(indices: Sequence[Size]) -> tuple[Atom, ...]:
    return tuple(atom for index in indices for atom in atoms(index) if isinstance(index, Polynomial))


@dataclass(eq=False, slots=True)
class Definition:
    """One value for every element of `buffer`. `lines` are the user's source lines it came from."""

    buffer: Buffer
    variables: tuple[Atom, ...]
    store: Size
    value: Expression
    reduction: str = ""
    reduced: tuple[Atom, ...] = ()
    lines: tuple[str, ...] = ()
    name: str = ""

    def reads(self) -> list[tuple[Buffer, Size]]:
        return list(self.value.loads())


class OpaqueStep(Protocol):
    """A step the loop language does not look into: which buffers it reads, changes and makes."""

    def reads(self) -> list[Buffer]: ...

    def writes(self) -> list[Buffer]: ...

    def made(self) -> list[Buffer]: ...

    def needed(self) -> bool:
        """Whether it must run even if nothing reads what it makes."""
        ...


@dataclass(eq=False, slots=True)
class Nest:
    """What one kernel runs: definitions in order over shared variables. `stage[d]` is the sweep a definition belongs
    to, `kept` the buffers that must be written to memory because something else reads them."""

    outer: tuple[Atom, ...]
    inner: tuple[Atom, ...]
    definitions: list[Definition]
    stage: dict[Definition, int] = field(default_factory=dict)
    kept: set[Buffer] = field(default_factory=set)

    def is_row_level(self, definition: Definition) -> bool:
        """Whether a point definition has one value a row: no inner variable in its space."""
        return not definition.reduction and bool(self.inner) and not set(self.inner) & set(definition.variables)


@dataclass(slots=True)
class Store:
    """buffer[index] = value"""

    buffer: Buffer
    index: Size
    value: Expression


@dataclass(slots=True)
class Accumulation:
    """name = combine over the sweep of value"""

    name: str
    kind: str
    value: Expression


@dataclass(slots=True)
class Stage:
    """One sweep over a row. First the row's own values and stores, in order; then, for every element, all values are
    computed before any is stored."""

    row_values: list[tuple[str, Expression]] = field(default_factory=list)
    row_stores: list[Store] = field(default_factory=list)
    accumulations: list[Accumulation] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


@dataclass(slots=True)
class Kernel:
    """What an emitter gets. `scratch` buffers are rows of local memory, indexed by the inner variables only; every
    other buffer is an argument, in the order of `buffers`; so are the sizes in `symbols`."""

    name: str
    outer: tuple[Atom, ...]
    inner: tuple[Atom, ...]
    stages: list[Stage]
    buffers: list[Buffer]
    symbols: list[Atom]
    scratch: list[Buffer]
    lines: tuple[str, ...] = ()
