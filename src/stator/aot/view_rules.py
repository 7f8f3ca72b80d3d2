"""Shape rules of views.

Rows of `rules.RULES`; see there for the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.aot.abstract import AbstractTensor, contiguous_strides, tracing, view_of
from stator.aot.rules import rule
from stator.sizes import shapes
from stator.sizes.meta_rules import symbols_in

aten = torch.ops.aten


@rule(aten.detach.default, aten.alias.default)
def _alias(x: Any) -> Any:
    made = view_of(x, x.shape, x.stride())
    made.constant = x.constant
    return made


@rule(aten.permute.default)
def _permute(x: Any, dims: Sequence[int]) -> Any:
    rank, size, stride = x.dim(), x.shape, x.stride()
    if len(dims) != rank or len({axis % rank if rank else axis for axis in dims}) != rank:
        return NotImplemented
    return view_of(x, [size[axis] for axis in dims], [stride[axis] for axis in dims])


@rule(aten.transpose.int)
def _transpose(x: Any, first: int, second: int) -> Any:
    rank = x.dim()
    if rank == 0 or not (-rank <= first < rank and -rank <= second < rank):
        return NotImplemented
    size, stride = list(x.shape), list(x.stride())
    size[first], size[second] = size[second], size[first]
    stride[first], stride[second] = stride[second], stride[first]
    return view_of(x, size, stride)


@rule(aten.t.default)
def _t(x: Any) -> Any:
    if x.dim() != 2:
        return NotImplemented
    return view_of(x, x.shape[::-1], x.stride()[::-1])


@rule(aten.unsqueeze.default)
def _unsqueeze(x: Any, dim: int) -> Any:
    rank = x.dim()
    if not -rank - 1 <= dim <= rank:
        return NotImplemented
    axis = dim % (rank + 1)
    size, stride = list(x.shape), list(x.stride())
    step = 1 if axis >= rank else size[axis] * stride[axis]
    size.insert(axis, 1)
    stride.insert(axis, step)
    return view_of(x, size, stride)


@rule(aten.squeeze.dim)
def _squeeze(x: Any, dim: int) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank:
        return NotImplemented
    axis = dim % rank
    size, stride = list(x.shape), list(x.stride())
    if size[axis] == 1:
        del size[axis], stride[axis]
    return view_of(x, size, stride)


@rule(aten.expand.default)
def _expand(x: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    extra = len(size) - x.dim()
    if extra < 0:
        return NotImplemented
    sizes: list[Any] = []
    strides: list[Any] = []
    for axis in range(len(size)):
        wanted = size[axis]
        if axis < extra:
            if isinstance(wanted, int) and wanted < 0:
                return NotImplemented
            step = _leading_stride(x, size, extra, axis)
            sizes.append(wanted)
            strides.append(step)
            continue
        have, step = x.shape[axis - extra], x.stride()[axis - extra]
        if isinstance(wanted, int) and wanted == -1:
            wanted = have
        if have != wanted:
            if have != 1:
                return NotImplemented
            step = 0
        sizes.append(wanted)
        strides.append(step)
    return view_of(x, sizes, strides)


def _leading_stride(x: AbstractTensor, size: Sequence[Any], extra: int, axis: int) -> Any:
    """Stride of a dimension that expand adds in front: 0, or what a dimension of size 1 would have."""
    if size[axis] != 1:
        return 0
    if axis + 1 < extra:
        following: Any = size[axis + 1] * _leading_stride(x, size, extra, axis + 1)
        return following
    if x.dim() == 0:
        return 1
    have, wanted = x.shape[0], size[extra]
    if isinstance(wanted, int) and wanted == -1:
        wanted = have
    step = x.stride()[0] if have == wanted else 0
    return wanted * step


@rule(aten.select.int)
def _select(x: Any, dim: int, index: Any) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank:
        return NotImplemented
    axis = dim % rank
    size, stride = list(x.shape), list(x.stride())
    if not isinstance(index, int) or not isinstance(size[axis], int) or not -size[axis] <= index < size[axis]:
        return NotImplemented
    offset = x.storage_offset() + (index % size[axis]) * stride[axis]
    del size[axis], stride[axis]
    return view_of(x, size, stride, offset)


@rule(aten.slice.Tensor)
def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank or not isinstance(step, int) or step < 1:
        return NotImplemented
    axis = dim % rank
    size, stride = list(x.shape), list(x.stride())
    length = size[axis]
    if not isinstance(length, int):
        return NotImplemented
    start = 0 if start is None else start
    end = length if end is None else end
    if not isinstance(start, int) or not isinstance(end, int):
        return NotImplemented
    start = min(max(start + length if start < 0 else start, 0), length)
    end = min(max(end + length if end < 0 else end, start), length)
    offset = x.storage_offset() + start * stride[axis]
    size[axis] = (end - start + step - 1) // step
    stride[axis] = stride[axis] * step
    return view_of(x, size, stride, offset)


@rule(aten.split.Tensor)
def _split(x: Any, length: Any, dim: int = 0) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank or not isinstance(length, int) or length <= 0:
        return NotImplemented
    total = x.shape[dim]
    if not isinstance(total, int):
        return NotImplemented
    return [_slice(x, dim, start, start + length) for start in range(0, max(total, 1), length)]


@rule(aten.split_with_sizes.default)
def _split_with_sizes(x: Any, lengths: Sequence[Any], dim: int = 0) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank or any(not isinstance(length, int) or length < 0 for length in lengths):
        return NotImplemented
    if not isinstance(x.shape[dim], int) or sum(lengths) != x.shape[dim]:
        return NotImplemented
    made, start = [], 0
    for length in lengths:
        made.append(_slice(x, dim, start, start + length))
        start += length
    return made


@rule(aten.unbind.int)
def _unbind(x: Any, dim: int = 0) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank or not isinstance(x.shape[dim], int):
        return NotImplemented
    return [_select(x, dim, index) for index in range(x.shape[dim])]


@rule(aten.as_strided.default)
def _as_strided(x: Any, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Any:
    if len(size) != len(stride):
        return NotImplemented
    return view_of(x, size, stride, offset)


def _resolved_size(x: AbstractTensor, size: Sequence[Any]) -> list[Any] | None:
    """`size` with its -1 worked out; None if it does not fit."""
    sizes = list(size)
    total = x.numel()
    unknown = [axis for axis, length in enumerate(sizes) if isinstance(length, int) and length == -1]
    if len(unknown) > 1 or any(isinstance(length, int) and length < -1 for length in sizes):
        return None
    known: Any = 1
    for length in sizes:
        if not (isinstance(length, int) and length == -1):
            known = known * length
    if unknown:
        if isinstance(known, int) and known == 0:
            return None
        if total % known != 0:
            return None
        sizes[unknown[0]] = total // known
    elif known != total:
        return None
    return sizes


def _view_strides(x: AbstractTensor, size: Sequence[Any]) -> Sequence[Any] | None:
    """Strides that show `x` with `size` without moving data; None if there are none."""
    if x.is_contiguous():
        return contiguous_strides(size)
    have, steps = x.shape, x.stride()
    strides: list[Any] = [0] * len(size)
    place = len(size) - 1
    chunk: Any = 1
    covered: Any = 1
    if x.dim() == 0 or x.numel() == 0:
        return None
    base = steps[-1]
    for axis in range(x.dim() - 1, -1, -1):
        chunk = chunk * have[axis]
        if axis != 0 and (have[axis - 1] == 1 or steps[axis - 1] == chunk * base):
            continue
        while place >= 0 and (covered < chunk or size[place] == 1):
            strides[place] = covered * base
            covered = covered * size[place]
            place -= 1
        if covered != chunk:
            return None
        if axis > 0:
            base = steps[axis - 1]
            chunk = 1
            covered = 1
    return strides if place == -1 else None


def _symbolic_view(x: AbstractTensor, size: Sequence[Any]) -> Any:
    new = shapes.infer_size(list(size), shapes.numel(x.shape))
    strides = shapes.view_strides(list(x.shape), list(x.stride()), new)
    return NotImplemented if strides is None else view_of(x, new, strides)


@rule(aten.view.default, aten._unsafe_view.default)
def _view(x: Any, size: Sequence[Any]) -> Any:
    if tracing.context is not None and symbols_in((x, size), {}) is not None:
        return _symbolic_view(x, size)
    sizes = _resolved_size(x, size)
    if sizes is None:
        return NotImplemented
    strides = _view_strides(x, sizes)
    return NotImplemented if strides is None else view_of(x, sizes, strides)
