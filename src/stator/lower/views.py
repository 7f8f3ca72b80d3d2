"""Rows for operators that move elements without computing: views, slices, reshapes, concatenation, padding.

Contract. On a stored value a view is new strides; on a lazy one it is the same expression at other indices. Results of
`clone` and of operators that always copy are lazy reads, so storing them makes fresh memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.loops import build, ir
from stator.loops.build import apply, convert
from stator.loops.integers import (
    Polynomial,
    Size,
    contiguous_strides,
    product_of,
    quotient,
    remainder,
    upper_bound,
)
from stator.loops.ir import Expression
from stator.loops.spaces import cut_alike
from stator.lower.context import Lowering
from stator.lower.values import OPAQUE, Lazy, NotLowered, Stored, Value, type_name

Indices = tuple[Size, ...]


def lazily(lowering: Lowering, value: Value, sizes: Sequence[Size], map_indices: Callable[[Indices], Indices]) -> Lazy:
    """A lazy value whose element at `i` is the given one's at `map_indices(i)`."""
    result = lowering.lazy(sizes, value.dtype, lambda indices: value.at(map_indices(indices)))
    if lowering.current is not None and hasattr(lowering.current, "stride"):
        result.layout = lowering.sizes(lowering.current.stride())
    return result


def dimension(value: Value, dim: int) -> int:
    return dim + len(value.sizes) if dim < 0 else dim


def permute(lowering: Lowering, value: Value, order: Sequence[int]) -> Value:
    order = [dimension(value, dim) for dim in order]
    sizes = tuple(value.sizes[dim] for dim in order)
    if isinstance(value, Stored):
        return Stored(value.buffer, sizes, tuple(value.strides[dim] for dim in order), value.offset, value.dtype)
    inverse = [order.index(dim) for dim in range(len(order))]
    return lazily(lowering, value, sizes, lambda i: tuple(i[k] for k in inverse))


def transpose(lowering: Lowering, value: Value, first: int, second: int) -> Value:
    order = list(range(len(value.sizes)))
    if not order:
        return value
    first, second = dimension(value, first), dimension(value, second)
    order[first], order[second] = order[second], order[first]
    return permute(lowering, value, order)


def matrix_transpose(lowering: Lowering, value: Value) -> Value:
    return transpose(lowering, value, 0, 1) if len(value.sizes) == 2 else value


def unsqueeze(lowering: Lowering, value: Value, dim: int) -> Value:
    dim = dim + len(value.sizes) + 1 if dim < 0 else dim
    sizes = (*value.sizes[:dim], 1, *value.sizes[dim:])
    if isinstance(value, Stored):
        step = value.sizes[dim] * value.strides[dim] if dim < len(value.sizes) else 1
        strides = (*value.strides[:dim], step, *value.strides[dim:])
        return Stored(value.buffer, sizes, strides, value.offset, value.dtype)
    return lazily(lowering, value, sizes, lambda i: (*i[:dim], *i[dim + 1 :]))


def squeeze(lowering: Lowering, value: Value, dims: Any = None) -> Value:
    if dims is None:
        gone = {k for k, size in enumerate(value.sizes) if size == 1}
    else:
        listed = [dims] if isinstance(dims, int) else dims
        gone = {dimension(value, dim) for dim in listed} if value.sizes else set()
        gone = {k for k in gone if value.sizes[k] == 1}
    left = [k for k in range(len(value.sizes)) if k not in gone]
    sizes = tuple(value.sizes[k] for k in left)
    if isinstance(value, Stored):
        return Stored(value.buffer, sizes, tuple(value.strides[k] for k in left), value.offset, value.dtype)

    def restored(indices: Indices) -> Indices:
        places = iter(indices)
        return tuple(0 if k in gone else next(places) for k in range(len(value.sizes)))

    return lazily(lowering, value, sizes, restored)


def expand(lowering: Lowering, value: Value, sizes: Sequence[Any], *, implicit: bool = False) -> Value:
    wanted = list(lowering.sizes(sizes))
    missing = len(wanted) - len(value.sizes)
    for k, size in enumerate(wanted):
        if size == -1:
            wanted[k] = value.sizes[k - missing]
    return lowering.broadcast(value, wanted)


def broadcast_in_dim(lowering: Lowering, value: Value, shape: Sequence[Any], dims: Sequence[int]) -> Value:
    """`prims.broadcast_in_dim`: dimension k of the value becomes dimension dims[k] of the result."""
    wanted = lowering.sizes(shape)
    sizes: list[Size] = [1] * len(wanted)
    for own, place in zip(value.sizes, dims, strict=True):
        sizes[place] = own
    outer, lowering.current = lowering.current, None
    placed = value
    for place in range(len(wanted)):
        if place not in dims:
            placed = unsqueeze(lowering, placed, place)
    lowering.current = outer
    return lowering.broadcast(placed, wanted)


def resolve_sizes(lowering: Lowering, value: Value, sizes: Sequence[Any]) -> tuple[Size, ...]:
    """The sizes of a view, with -1 worked out by the trace."""
    if any(isinstance(size, int) and size == -1 for size in sizes):
        return lowering.sizes(lowering.current.shape)
    return lowering.sizes(sizes)


def view(lowering: Lowering, value: Value, sizes: Sequence[Any]) -> Value:
    wanted = resolve_sizes(lowering, value, sizes)
    if wanted == tuple(value.sizes):
        return value
    if isinstance(value, Stored):
        strides = view_strides(value.sizes, value.strides, wanted)
        if strides is not None:
            return Stored(value.buffer, wanted, strides, value.offset, value.dtype)
    return lazily(lowering, value, wanted, lambda i: reshaped_indices(i, wanted, value.sizes))


def view_strides(sizes: Sequence[Size], strides: Sequence[Size], wanted: Sequence[Size]) -> tuple[Size, ...] | None:
    """Strides under which the same memory shows as `wanted`, if there are any."""
    if any(size == 0 for size in sizes):
        return contiguous_strides(wanted)
    runs = cut_alike(sizes, wanted)
    if runs is None:
        return None
    result: list[Size] = [0] * len(wanted)
    for left, right in runs:
        real = [k for k in left if sizes[k] != 1]
        for first, second in itertools.pairwise(real):
            if strides[first] != strides[second] * sizes[second]:
                return None
        step: Size = strides[real[-1]] if real else 1
        for k in reversed(right):
            result[k] = step
            step = step * wanted[k]
    return tuple(result)


def reshaped_indices(indices: Indices, sizes: Sequence[Size], old_sizes: Sequence[Size]) -> Indices:
    """Where the element at `indices` of the new shape lies in the old one."""
    runs = cut_alike(sizes, old_sizes)
    if runs is None:
        runs = [(list(range(len(sizes))), list(range(len(old_sizes))))]
    result: list[Size] = [0] * len(old_sizes)
    for left, right in runs:
        linear: Size = 0
        for k in left:
            linear = linear * sizes[k] + indices[k]
        inner: Size = 1
        for position, k in enumerate(reversed(right)):
            part = quotient(linear, inner)
            result[k] = part if position == len(right) - 1 else remainder(part, old_sizes[k])
            inner = inner * old_sizes[k]
    return tuple(result)


def slice_(lowering: Lowering, value: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    dim = dimension(value, dim)
    size = value.sizes[dim]
    length = lowering.size(lowering.current.shape[dim])
    first = 0 if start is None else lowering.size(start)
    if isinstance(first, int) and first < 0:
        first = first + size
        if isinstance(first, int):
            first = max(first, 0)
    if isinstance(first, int) and isinstance(size, int):
        first = min(first, size)
    elif upper_bound(first) is None and not isinstance(first, int):
        raise NotLowered("a slice from a symbolic start")
    return sliced(lowering, value, dim, first, length, lowering.size(step))


def sliced(lowering: Lowering, value: Value, dim: int, first: Size, length: Size, step: Size = 1) -> Value:
    sizes = (*value.sizes[:dim], length, *value.sizes[dim + 1 :])
    if isinstance(value, Stored):
        strides = (*value.strides[:dim], value.strides[dim] * step, *value.strides[dim + 1 :])
        offset = value.offset + value.strides[dim] * first
        return Stored(value.buffer, sizes, strides, offset, value.dtype)
    return lazily(lowering, value, sizes, lambda i: (*i[:dim], i[dim] * step + first, *i[dim + 1 :]))


def select(lowering: Lowering, value: Value, dim: int, index: Any) -> Value:
    dim = dimension(value, dim)
    place = lowering.size(index)
    if isinstance(place, int) and place < 0:
        place = place + value.sizes[dim]
    sizes = (*value.sizes[:dim], *value.sizes[dim + 1 :])
    if isinstance(value, Stored):
        strides = (*value.strides[:dim], *value.strides[dim + 1 :])
        return Stored(value.buffer, sizes, strides, value.offset + value.strides[dim] * place, value.dtype)
    return lazily(lowering, value, sizes, lambda i: (*i[:dim], place, *i[dim:]))


def split(lowering: Lowering, value: Value, size: Any, dim: int = 0) -> list[Value]:
    """`split` and `split_with_sizes`: the lengths come from the trace."""
    dim = dimension(value, dim)
    pieces: list[Value] = []
    first: Size = 0
    outer = lowering.current
    for meta in outer:
        lowering.current = meta
        length = lowering.size(meta.shape[dim])
        pieces.append(sliced(lowering, value, dim, first, length))
        first = first + length
    lowering.current = outer
    return pieces


def unbind(lowering: Lowering, value: Value, dim: int = 0) -> list[Value]:
    outer = lowering.current
    lowering.current = None
    pieces = [select(lowering, value, dim, k) for k in range(len(outer))]
    lowering.current = outer
    return pieces


def as_strided(lowering: Lowering, value: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    """Only over memory this program made, where the offset counts from the buffer's start."""
    stored = lowering.store(value)
    if stored.buffer.role != "temporary":
        raise NotLowered("as_strided over memory from outside")
    offset = stored.offset if storage_offset is None else lowering.size(storage_offset)
    return Stored(stored.buffer, lowering.sizes(size), lowering.sizes(stride), offset, stored.dtype)


def alias(lowering: Lowering, value: Value) -> Value:
    return value


def clone(lowering: Lowering, value: Value, *, memory_format: Any = None) -> Value:
    if value.type == OPAQUE:
        raise NotLowered(f"elements of type {value.dtype}")
    return lazily(lowering, value, value.sizes, lambda i: i)


def to_copy(lowering: Lowering, value: Value, *, dtype: torch.dtype | None = None, **options: Any) -> Value:
    device = options.get("device")
    if device is not None and torch.device(device).type not in ("cpu", "meta"):
        raise NotLowered("a copy to another device")
    if options.get("layout") not in (None, torch.strided):
        raise NotLowered("a copy to another layout")
    return converted(lowering, value, dtype or value.dtype)


def converted(lowering: Lowering, value: Value, dtype: torch.dtype) -> Value:
    name = type_name(dtype)
    if name == OPAQUE or value.type == OPAQUE:
        raise NotLowered(f"conversion from {value.dtype} to {dtype}")
    result = lowering.lazy(value.sizes, dtype, lambda i: convert(value.at(i), name))
    result.layout = lowering.sizes(lowering.current.stride())
    return result


def copy(lowering: Lowering, target: Value, source: Value, non_blocking: bool = False) -> Value:
    """The functional form: the source with the target's shape and type."""
    return converted(lowering, lowering.broadcast(source, target.sizes), target.dtype)


def cat(lowering: Lowering, tensors: Sequence[Value], dim: int = 0) -> Value:
    """One select per seam; many or costly pieces are ATen's business."""
    pieces = [piece for piece in tensors if tuple(piece.sizes) != (0,)]
    if not pieces or len(pieces) > 8:
        raise NotLowered("cat of no or of many tensors")
    result = type_name(lowering.current.dtype)
    if result == OPAQUE or any(piece.type == OPAQUE for piece in pieces):
        raise NotLowered(f"elements of type {lowering.current.dtype}")
    dim = dimension(pieces[0], dim)
    sizes = lowering.sizes(lowering.current.shape)
    target = lowering.buffer(sizes, lowering.sizes(lowering.current.stride()), lowering.current.dtype, "temporary")
    whole = Stored(target, sizes, target.strides, 0, lowering.current.dtype)
    first: Size = 0
    for piece in pieces:
        lowering.assign(_cut(whole, dim, first, piece.sizes[dim]), piece)
        first = first + piece.sizes[dim]
    return whole


def _cut(whole: Stored, dim: int, first: Size, length: Size) -> Stored:
    sizes = (*whole.sizes[:dim], length, *whole.sizes[dim + 1 :])
    return Stored(whole.buffer, sizes, whole.strides, whole.offset + whole.strides[dim] * first, whole.dtype)


def stack(lowering: Lowering, tensors: Sequence[Value], dim: int = 0) -> Value:
    count = len(tensors[0].sizes) + 1
    dim = dim + count if dim < 0 else dim
    outer, lowering.current = lowering.current, None
    pieces = [unsqueeze(lowering, piece, dim) for piece in tensors]
    lowering.current = outer
    return cat(lowering, pieces, dim)


def within(index: Size, first: Size, length: Size) -> Expression:
    """Whether first <= index < first + length."""
    at = build.index_expression(index)
    low = apply("ge", at, build.index_expression(first))
    return apply("and", low, apply("lt", at, build.index_expression(first + length)))


def pad(lowering: Lowering, value: Value, padding: Sequence[Any], fill: Any = 0) -> Value:
    """The element where it exists (its index is clamped, so nothing outside is read), else the fill."""
    type_ = value.type
    if type_ == OPAQUE:
        raise NotLowered(f"elements of type {value.dtype}")
    amounts = lowering.sizes(padding)
    if not all(isinstance(amount, int) for amount in amounts):
        raise NotLowered("symbolic padding")
    count = len(value.sizes)
    before = [0] * count
    for k in range(len(amounts) // 2):
        before[count - 1 - k] = int(amounts[2 * k])  # type: ignore[arg-type]
    sizes = lowering.sizes(lowering.current.shape)

    def element(indices: Indices) -> Expression:
        inside = ir.constant(True, "b1")
        places: list[Size] = []
        for k, index in enumerate(indices):
            place = index - before[k]
            if before[k] != 0 or sizes[k] != value.sizes[k]:
                inside = apply("and", inside, within(index, before[k], value.sizes[k]))
                place = clamped(place, value.sizes[k])
            places.append(place)
        return apply("where", inside, value.at(tuple(places)), build.number(fill, type_))

    if any(size == 0 for size in value.sizes):
        raise NotLowered("padding of an empty tensor")
    return lowering.lazy(sizes, value.dtype, element)


def clamped(place: Size, size: Size) -> Size:
    """An index forced into [0, size)."""
    at = build.index_expression(place)
    low = apply("maximum", at, ir.constant(0, "i64"))
    return ir.fetch(apply("minimum", low, build.index_expression(size - 1)))


def flip(lowering: Lowering, value: Value, dims: Sequence[int]) -> Value:
    turned = {dimension(value, dim) for dim in dims}
    return lazily(
        lowering,
        value,
        value.sizes,
        lambda i: tuple(value.sizes[k] - 1 - index if k in turned else index for k, index in enumerate(i)),
    )


def repeat(lowering: Lowering, value: Value, repeats: Sequence[Any]) -> Value:
    missing = len(repeats) - len(value.sizes)
    sizes = lowering.sizes(lowering.current.shape)

    def source(indices: Indices) -> Indices:
        return tuple(
            index if size == sizes[missing + k] else remainder(index, size)
            for k, (index, size) in enumerate(zip(indices[missing:], value.sizes, strict=True))
        )

    return lazily(lowering, value, sizes, source)


def triangle(keep_low: bool) -> Callable[..., Value]:
    def lower(lowering: Lowering, value: Value, diagonal: int = 0) -> Value:
        type_ = value.type
        if type_ == OPAQUE:
            raise NotLowered(f"elements of type {value.dtype}")

        def element(indices: Indices) -> Expression:
            row, column = (build.index_expression(index) for index in indices[-2:])
            limit = apply("add", row, ir.constant(diagonal, "i64"))
            return apply("where", apply("le" if keep_low else "ge", column, limit), value.at(indices), zero(type_))

        return lowering.lazy(value.sizes, value.dtype, element)

    return lower


def zero(type_: str) -> Expression:
    return build.number(0, type_)


def slice_scatter(
    lowering: Lowering, value: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    dim = dimension(value, dim)
    size, length = value.sizes[dim], source.sizes[dim]
    first = 0 if start is None else lowering.size(start)
    if step != 1 or not isinstance(first, int) or value.type == OPAQUE or length == 0:
        raise NotLowered("slice_scatter with a step or a symbolic start")
    first = first + size if first < 0 else first
    return scattered(lowering, value, source, dim, first, length)


def select_scatter(lowering: Lowering, value: Value, source: Value, dim: int, index: Any) -> Value:
    dim = dimension(value, dim)
    place = lowering.size(index)
    if value.type == OPAQUE or not isinstance(place, int):
        raise NotLowered("select_scatter at a symbolic place")
    place = place + value.sizes[dim] if place < 0 else place
    outer, lowering.current = lowering.current, None
    source = unsqueeze(lowering, source, dim)
    lowering.current = outer
    return scattered(lowering, value, source, dim, place, 1)


def scattered(lowering: Lowering, value: Value, source: Value, dim: int, first: Size, length: Size) -> Value:
    """`value` with [first, first + length) of a dimension taken from `source`."""
    type_ = value.type

    def element(indices: Indices) -> Expression:
        place = clamped(indices[dim] - first, length) if length != 1 else 0
        inner = convert(source.at((*indices[:dim], place, *indices[dim + 1 :])), type_)
        return apply("where", within(indices[dim], first, length), inner, value.at(indices))

    return lowering.lazy(value.sizes, value.dtype, element)


def empty_like_sizes(sizes: Sequence[Size]) -> bool:
    return product_of(sizes) == 0 or any(isinstance(size, Polynomial) for size in sizes)


RULES: dict[str, Callable[..., Any]] = {
    "permute": permute,
    "transpose.int": transpose,
    "t": matrix_transpose,
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "expand": expand,
    "prims.broadcast_in_dim": broadcast_in_dim,
    "view": view,
    "_unsafe_view": view,
    "reshape": view,
    "_reshape_alias": lambda lowering, value, sizes, strides: view(lowering, value, sizes),
    "slice.Tensor": slice_,
    "select.int": select,
    "split.Tensor": split,
    "split_with_sizes": split,
    "unsafe_split.Tensor": split,
    "unsafe_split_with_sizes": split,
    "unbind": unbind,
    "as_strided": as_strided,
    "alias": alias,
    "detach": alias,
    "lift_fresh_copy": clone,
    "clone": clone,
    "_to_copy": to_copy,
    "copy": copy,
    "cat": cat,
    "stack": stack,
    "constant_pad_nd": pad,
    "flip": flip,
    "repeat": repeat,
    "tril": triangle(True),
    "triu": triangle(False),
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
}
