"""Rows for operators that read elements at places other tensors hold: embedding, index_select, gather, index.

Contract. A place is checked against its range where eager checks it. The loop form clamps the place, so nothing
outside is ever read, and notes a violation in a flag that the program tests before it returns (`Lowering.guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stator.loops import build, ir
from stator.loops.build import apply, convert
from stator.loops.integers import Size, product_of
from stator.loops.ir import Expression
from stator.lower.context import Lowering
from stator.lower.values import OPAQUE, Lazy, NotLowered, Value
from stator.lower.views import dimension


def place(value: Expression, size: Size, wraps: bool) -> Size:
    """An index read from memory, made safe: wrapped where negative ones count from the end, then clamped."""
    at = convert(value, "i64")
    length = build.index_expression(size)
    zero = ir.constant(0, "i64")
    if wraps:
        at = apply("where", apply("lt", at, zero), apply("add", at, length), at)
    at = apply("maximum", at, zero)
    return ir.fetch(apply("minimum", at, apply("sub", length, ir.constant(1, "i64"))))


def raise_index_error(flag: Any, message: str) -> None:
    raise IndexError(message)


# Decomposed operators that say in their own words what a place out of range is.
REFUSALS: dict[str, tuple[str, Callable[..., Any]]] = {
    "nll_loss_forward": ("Target is out of bounds.", raise_index_error),
    "nll_loss_backward": ("Target is out of bounds.", raise_index_error),
}


def check(
    lowering: Lowering, indices: Value, size: Size, wraps: bool, message: str, instead: Any = raise_index_error
) -> None:
    """Note where an index is out of range: eager's `IndexError`, by default."""

    def outside(position: tuple[Size, ...]) -> Expression:
        at = convert(indices.at(position), "i64")
        length = build.index_expression(size)
        low = apply("neg", length) if wraps else ir.constant(0, "i64")
        return apply("or", apply("lt", at, low), apply("ge", at, length))

    lowering.guard(indices.sizes, outside, message, instead)


# A value nobody stored, at most this costly, is computed at each place read where those are few.
COMPUTE_COST = 16


def source_of(lowering: Lowering, value: Value, reads: Sequence[Size]) -> Value:
    """What random reads go to: memory, unless computing the few elements read is cheaper than storing them all."""
    if value.type == OPAQUE:
        raise NotLowered(f"elements of type {value.dtype}")
    if isinstance(value, Lazy) and value.stored is None and value.expression.cost <= COMPUTE_COST:
        count, every = product_of(reads), product_of(value.sizes)
        if isinstance(count, int) and isinstance(every, int) and count * 4 <= every:
            return value
    return lowering.store(value)


def refuse_empty(*values: Value) -> None:
    if any(size == 0 for value in values for size in value.sizes):
        raise NotLowered("indices into an empty tensor")


def integer_indices(value: Value) -> None:
    if value.type not in ("i64", "i32", "i16", "i8", "u8"):
        raise NotLowered(f"indices of type {value.dtype}")


def embedding(lowering: Lowering, weight: Value, indices: Value, *options: Any) -> Value:
    source = source_of(lowering, weight, lowering.sizes(lowering.current.shape))
    refuse_empty(source, indices)
    integer_indices(indices)
    check(lowering, indices, source.sizes[0], False, "index out of range in self")
    count = len(indices.sizes)

    def element(position: tuple[Size, ...]) -> Expression:
        return source.at((place(indices.at(position[:count]), source.sizes[0], False), *position[count:]))

    return lowering.lazy((*indices.sizes, *source.sizes[1:]), weight.dtype, element)


def index_select(lowering: Lowering, value: Value, dim: int, indices: Value) -> Value:
    source = source_of(lowering, value, lowering.sizes(lowering.current.shape))
    refuse_empty(source, indices)
    integer_indices(indices)
    if not source.sizes or len(indices.sizes) != 1:
        raise NotLowered("index_select without dimensions")
    dim = dimension(source, dim)
    check(lowering, indices, source.sizes[dim], False, "index out of range in self")

    def element(position: tuple[Size, ...]) -> Expression:
        at = place(indices.at((position[dim],)), source.sizes[dim], False)
        return source.at((*position[:dim], at, *position[dim + 1 :]))

    sizes = (*source.sizes[:dim], indices.sizes[0], *source.sizes[dim + 1 :])
    return lowering.lazy(sizes, value.dtype, element)


def gather(lowering: Lowering, value: Value, dim: int, indices: Value, *, sparse_grad: bool = False) -> Value:
    source = source_of(lowering, value, lowering.sizes(lowering.current.shape))
    refuse_empty(source, indices)
    integer_indices(indices)
    if not source.sizes or not indices.sizes:
        raise NotLowered("gather without dimensions")
    dim = dimension(source, dim)
    size = source.sizes[dim]
    check(lowering, indices, size, False, f"index is out of bounds for dimension {dim} with size {size}", None)

    def element(position: tuple[Size, ...]) -> Expression:
        at = place(indices.at(position), size, False)
        return source.at((*position[:dim], at, *position[dim + 1 :]))

    return lowering.lazy(indices.sizes, value.dtype, element)


def index(lowering: Lowering, value: Value, indices: Sequence[Value | None]) -> Value:
    source = source_of(lowering, value, lowering.sizes(lowering.current.shape))
    given = [k for k, entry in enumerate(indices) if entry is not None]
    tensors = [entry for entry in indices if entry is not None]
    for entry in tensors:
        integer_indices(entry)
    refuse_empty(source, *tensors)
    if not tensors:
        raise NotLowered("an index without tensors")
    adjacent = given == list(range(given[0], given[0] + len(given)))
    first = given[0] if adjacent else 0
    result = lowering.sizes(lowering.current.shape)
    untouched = [k for k in range(len(source.sizes)) if k not in given]
    rank = len(result) - len(untouched)
    shape = result[first : first + rank]
    spread = []
    for k, entry in zip(given, tensors, strict=True):
        message = f"index is out of bounds for dimension {k} with size {source.sizes[k]}"
        check(lowering, entry, source.sizes[k], True, message)
        spread.append(lowering.broadcast(entry, shape))

    def element(position: tuple[Size, ...]) -> Expression:
        mine = position[first : first + rank]
        others = iter((*position[:first], *position[first + rank :]))
        places = dict(zip(given, spread, strict=True))
        full = tuple(
            place(places[k].at(mine), source.sizes[k], True) if k in places else next(others)
            for k in range(len(source.sizes))
        )
        return source.at(full)

    return lowering.lazy(result, value.dtype, element)


RULES: dict[str, Callable[..., Any]] = {
    "embedding": embedding,
    "index_select": index_select,
    "gather": gather,
    "index.Tensor": index,
    "_unsafe_index.Tensor": index,
}
