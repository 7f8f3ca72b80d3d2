"""The state of lowering one graph: values so far, the steps they need, and the rules for when a value is stored.

Contract. A lowering rule gets this object and its call's arguments (tensors as `Stored` or `Lazy`) and returns values;
it may append steps through `store`, `reduce` and `call`. Steps come out in an order that respects all reads and
writes. A value is stored when memory is asked for (an operator's argument, an output), when several consumers would
each compute something costly, or when an expression grows past what one kernel should hold; else it stays lazy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.loops import build, ir
from stator.loops.integers import Polynomial, Size, atoms, contiguous_strides, product_of
from stator.loops.ir import Buffer, Definition, Expression, loop_variables
from stator.lower.symbols import Symbols
from stator.lower.values import OPAQUE, Lazy, NotLowered, Number, OperatorCall, Step, Stored, Value, flatten, type_name

# Beyond these an expression is stored: more would spill registers or blow up when used at several places.
SIZE_LIMIT = 240
LOADS_LIMIT = 24
# Up to these a value that several consumers need is computed by each of them.
SHARED_COST_LIMIT = 6
SHARED_LOADS_LIMIT = 1
# A value costlier than this is not computed again for every row it is broadcast along.
BROADCAST_COST_LIMIT = 8


class Lowering:
    """One graph being lowered."""

    def __init__(self, symbols: Symbols, products: bool = False) -> None:
        self.products = products  # whether products of matrices become contractions
        self.steps: list[Step] = []
        self.numbers: dict[Buffer, Number] = {}
        self.symbols = symbols
        self.line = ""
        self.current: Any = None  # what the running call should return, as meta tensors
        self.refusal: tuple[str, Callable[..., Any]] | None = None  # what the running call says of places out of range
        self._count = 0
        self._guarded: set[tuple[Expression, str]] = set()

    # memory

    def buffer(self, sizes: Sequence[Size], strides: Sequence[Size], dtype: torch.dtype, role: str) -> Buffer:
        name = f"{ {'input': 'in', 'constant': 'const', 'operator': 'op'}.get(role, 'buf') }{self._count}"
        self._count += 1
        return Buffer(name, type_name(dtype), tuple(sizes), tuple(strides), role)

    def sizes(self, values: Sequence[Any]) -> tuple[Size, ...]:
        return tuple(self.size(value) for value in values)

    def size(self, value: Any) -> Size:
        """An int, SymInt or expression as a size."""
        if isinstance(value, Polynomial):
            return value
        return self.symbols.size(value)

    def lazy(
        self, sizes: Sequence[Size], dtype: torch.dtype, element: Callable[[tuple[Size, ...]], Expression]
    ) -> Lazy:
        """A value given element by element."""
        variables = loop_variables(sizes)
        return Lazy(tuple(sizes), dtype, element(variables))

    def store(self, value: Value, strides: Sequence[Size] | None = None) -> Stored:
        """The value in memory: where it is, or written by a new step."""
        if isinstance(value, Stored):
            return value
        if value.stored is None:
            layout = strides if strides is not None else value.layout
            if layout is None or not is_dense(value.sizes, layout):
                layout = contiguous_strides(value.sizes)
            value.stored = self.write(value, tuple(layout))
            value.expression = value.stored.at(loop_variables(value.sizes))
        return value.stored

    def write(self, value: Value, strides: tuple[Size, ...]) -> Stored:
        """A fresh buffer with those strides, and the step that fills it."""
        buffer = self.buffer(value.sizes, strides, value.dtype, "temporary")
        target = Stored(buffer, value.sizes, strides, 0, value.dtype)
        self.assign(target, value)
        return target

    def assign(self, target: Stored, value: Value) -> None:
        """A step that writes a value of the same sizes into memory."""
        variables = loop_variables(target.sizes)
        position: Size = target.offset
        kept = []
        for index, stride in zip(variables, target.strides, strict=True):
            if stride == 0:
                index = 0
            position = position + index * stride
            kept.append(index)
        expression = build.convert(value.at(tuple(kept)), target.buffer.type)
        loop_atoms = tuple(atom for index in kept for atom in atoms(index))
        self.steps.append(Definition(target.buffer, loop_atoms, position, expression, lines=self._lines()))

    def reduce(
        self,
        kind: str,
        sizes: Sequence[Size],
        dimensions: Sequence[int],
        dtype: torch.dtype,
        element: Callable[[tuple[Size, ...]], Expression],
        keep: bool,
    ) -> Stored:
        """Reduce a value of `sizes`, given element by element, over dimensions into a new buffer."""
        variables = loop_variables(sizes)
        reduced = frozenset(dimensions)
        result_sizes = tuple(1 if k in reduced else size for k, size in enumerate(sizes))
        strides = contiguous_strides(result_sizes)
        buffer = self.buffer(result_sizes, strides, dtype, "temporary")
        position: Size = 0
        for k, (index, stride) in enumerate(zip(variables, strides, strict=True)):
            if k not in reduced:
                position = position + index * stride
        kept = tuple(atom for k, index in enumerate(variables) if k not in reduced for atom in atoms(index))
        gone = tuple(atom for k, index in enumerate(variables) if k in reduced for atom in atoms(index))
        value = element(variables)
        if not gone:  # nothing to combine
            kind = ""
            value = value.operands[1] if value.operation == "place" else value
        self.steps.append(Definition(buffer, kept, position, value, kind, gone, self._lines()))
        if keep:
            return Stored(buffer, result_sizes, strides, 0, dtype)
        left = [k for k in range(len(sizes)) if k not in reduced]
        return Stored(buffer, tuple(result_sizes[k] for k in left), tuple(strides[k] for k in left), 0, dtype)

    def guard(
        self,
        sizes: Sequence[Size],
        violated: Callable[[tuple[Size, ...]], Expression],
        message: str,
        instead: Callable[..., Any] | None = None,
    ) -> None:
        """A check over every element that raises when the program runs: what `instead` raises, else `RuntimeError`.
        The same check is made once."""
        if self.refusal is not None:
            message, instead = self.refusal
        count = len(sizes)
        inside = build.apply("not", violated(loop_variables(sizes)))
        if (inside, message) in self._guarded:
            return
        self._guarded.add((inside, message))
        flag = self.reduce("all", sizes, range(count), torch.bool, lambda _: inside, keep=False)
        check = torch.ops.aten._assert_async.msg
        self.steps.append(OperatorCall(check, (flag, message), {}, [], self.line, "a check of indices", instead))

    def number(self, value: Number) -> Stored:
        """A number where kernels can read it."""
        if value.memory is None:
            buffer = self.buffer((), (), torch.float64, "constant")
            value.memory = Stored(buffer, (), (), 0, torch.float64)
            self.numbers[buffer] = value
        return value.memory

    # operators

    def call(self, operator: Any, arguments: Any, keywords: dict[str, Any], reason: str) -> Any:
        """Let ATen do it. Results are described by `current`."""
        stored_arguments = tuple(self._argument(value) for value in arguments)
        stored_keywords = {name: self._argument(value) for name, value in keywords.items()}
        results: list[Any] = []
        values: list[Any] = []
        returned = self.current
        higher = isinstance(operator, torch._ops.HigherOrderOperator)
        if not higher and len(operator._schema.returns) == 1:
            returned = (returned,)
        for meta in returned or ():
            result, value = self._result(meta)
            results.append(result)
            values.append(value)
        self.steps.append(OperatorCall(operator, stored_arguments, stored_keywords, results, self.line, reason))
        return values[0] if len(values) == 1 and not higher else tuple(values)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Lazy):
            return self.store(value)
        if isinstance(value, (list, tuple)):
            return [self._argument(entry) for entry in value]
        if isinstance(value, torch.SymInt):
            return self.size(value)
        return value

    def _result(self, meta: Any) -> tuple[Any, Any]:
        if isinstance(meta, torch.Tensor) or hasattr(meta, "dtype"):
            sizes, strides = self.sizes(meta.shape), self.sizes(meta.stride())
            buffer = self.buffer(sizes, strides, meta.dtype, "operator")
            return buffer, Stored(buffer, sizes, strides, 0, meta.dtype)
        if isinstance(meta, (list, tuple)):
            pairs = [self._result(entry) for entry in meta]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if isinstance(meta, (int, torch.SymInt)) and not isinstance(meta, bool):
            size = self.size(meta)
            return size, size
        return None, meta

    # policy

    def settle(self, value: Any, users: int) -> Any:
        """Decide whether a fresh value is stored now; `users` is how many calls read it."""
        if not isinstance(value, Lazy) or value.stored is not None:
            return value
        expression = value.expression
        if expression.size > SIZE_LIMIT:
            return self.store(value)
        if users <= 1 and expression.size < LOADS_LIMIT:
            return value
        loads = len(set(ir.loads_of([expression])))
        too_many = loads > LOADS_LIMIT
        shared = users > 1 and (expression.cost - loads > SHARED_COST_LIMIT or large_loads(value) > SHARED_LOADS_LIMIT)
        return self.store(value) if too_many or shared else value

    def broadcast(self, value: Value, sizes: Sequence[Size]) -> Value:
        """The value under larger sizes; one that is costly to compute is stored first, so that rows share it."""
        if tuple(value.sizes) == tuple(sizes):
            return value
        missing = len(sizes) - len(value.sizes)
        if missing < 0:
            raise NotLowered(f"sizes {value.sizes} do not broadcast to {tuple(sizes)}")
        if isinstance(value, Lazy) and value.stored is None and value.expression.cost > BROADCAST_COST_LIMIT:
            self.store(value)
        own = (1,) * missing + tuple(value.sizes)
        for mine, wanted in zip(own, sizes, strict=True):
            if mine != wanted and mine != 1:
                raise NotLowered(f"sizes {value.sizes} do not broadcast to {tuple(sizes)}")
        if isinstance(value, Stored):
            strides = (0,) * missing + tuple(value.strides)
            strides = tuple(
                0 if mine == 1 and wanted != 1 else stride
                for mine, wanted, stride in zip(own, sizes, strides, strict=True)
            )
            return Stored(value.buffer, tuple(sizes), strides, value.offset, value.dtype)

        def element(indices: tuple[Size, ...]) -> Expression:
            inner = [0 if size == 1 else index for size, index in zip(value.sizes, indices[missing:], strict=True)]
            return value.at(inner)

        return self.lazy(sizes, value.dtype, element)

    def _lines(self) -> tuple[str, ...]:
        return (self.line,) if self.line else ()


def is_dense(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether the strides are those of a permuted contiguous tensor."""
    pairs = [(stride, size) for stride, size in zip(strides, sizes, strict=True) if size != 1]
    step: Size = 1
    while pairs:
        match = next((pair for pair in pairs if pair[0] == step), None)
        if match is None:
            return False
        pairs.remove(match)
        step = step * match[1]
    return True


def large_loads(value: Lazy) -> int:
    """How many reads move with every dimension: reads of rows or single numbers cost little beside them."""
    dimensions = {atom for index in loop_variables(value.sizes) for atom in atoms(index)}
    return sum(dimensions <= ir.index_variables(index) for _, index in set(ir.loads_of([value.expression])))


def numel(value: Value) -> Size:
    return product_of(value.sizes)


def is_opaque(value: Any) -> bool:
    """Whether any tensor among (nested) arguments has a type the loop language lacks."""
    return any(isinstance(leaf, (Stored, Lazy)) and leaf.type == OPAQUE for leaf in flatten(value))
