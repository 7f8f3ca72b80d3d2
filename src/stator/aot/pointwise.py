"""What pointwise operators have in common: broadcasting, layout of the result, type promotion.

Contract. Pure functions over sizes, strides and dtypes with the very results of torch's TensorIterator; `None`
means that torch would refuse or that the case is not plain. Results for static sizes are memoised, since the same
few shapes recur through a model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from stator.aot.abstract import AbstractTensor, contiguous_strides, tracing
from stator.sizes.shapes import is_symbolic, pointwise_layout

Layout = tuple[tuple[Any, ...], tuple[Any, ...]]


def broadcast(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...] | None:
    """The common size of operands."""
    rank = max(map(len, shapes))
    sizes: list[Any] = [1] * rank
    for shape in shapes:
        shift = rank - len(shape)
        for axis, length in enumerate(shape):
            have = sizes[shift + axis]
            if length == 1 or have is length:
                continue
            if have == 1:
                sizes[shift + axis] = length
            elif have != length:
                return None
    return tuple(sizes)


def same_device(tensors: Sequence[AbstractTensor]) -> torch.device | None:
    """The device of a result; numbers kept in CPU tensors of no dimension go anywhere."""
    if not tensors:
        return None
    device = tensors[0].device
    for tensor in tensors[1:]:
        other = tensor.device
        if other == device:
            continue
        if tensor.dim() == 0 and other.type == "cpu":
            continue
        if device.type == "cpu" and all(one.dim() == 0 for one in tensors if one.device == device):
            device = other
            continue
        return None
    return device


def layout_of(tensors: Sequence[AbstractTensor]) -> Layout | None:
    """Sizes and strides of the result of a pointwise operator on `tensors`."""
    if tracing.context is not None and any(map(is_symbolic, tensors)):
        sizes, strides = pointwise_layout([(list(tensor.shape), list(tensor.stride())) for tensor in tensors])
        return tuple(sizes), tuple(strides)
    first = tensors[0]
    size = first.shape
    if first.is_contiguous():
        for tensor in tensors:
            if tensor is not first and (tensor.shape != size or not tensor.is_contiguous()):
                break
        else:
            return tuple(size), contiguous_strides(size)
    key = tuple((tuple(tensor.shape), tensor.stride()) for tensor in tensors)
    try:
        return _memoised_layout(key)
    except TypeError:  # symbolic sizes have no hash
        return _layout(key)


def _layout(key: tuple[Layout, ...]) -> Layout | None:
    size = broadcast([shape for shape, _ in key])
    if size is None:
        return None
    if all(shape == size for shape, _ in key):
        strides = key[0][1]
        if all(other == strides for _, other in key) and is_dense(size, strides):
            return size, strides
    order = _dimension_order(size, [_broadcast_strides(shape, stride, size) for shape, stride in key])
    strides_out: list[Any] = [0] * len(size)
    step: Any = 1
    for axis in order:
        strides_out[axis] = step
        if size[axis] != 1:
            step = step * size[axis]
    if any(isinstance(length, int) and length == 0 for length in size):
        return size, contiguous_strides(size) if order == list(reversed(range(len(size)))) else tuple(strides_out)
    return size, tuple(strides_out)


_memoised_layout = functools.lru_cache(maxsize=4096)(_layout)


def is_dense(size: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether elements fill their memory without gaps or overlap, in any order of dimensions."""
    expected: Any = 1
    for step, length in sorted(zip(strides, size, strict=True), key=lambda pair: (pair[0], pair[1])):
        if length == 1:
            continue
        if step != expected:
            return False
        expected = expected * length
    return True


def _broadcast_strides(shape: Sequence[Any], stride: Sequence[Any], size: Sequence[Any]) -> list[Any]:
    shift = len(size) - len(shape)
    strides: list[Any] = [0] * shift
    for axis, length in enumerate(shape):
        strides.append(0 if length == 1 and size[shift + axis] != 1 else stride[axis])
    return strides


def _dimension_order(size: Sequence[Any], operands: list[list[Any]]) -> list[int]:
    """Dimensions from fastest to slowest, as TensorIterator sorts them."""
    rank = len(size)
    order = list(reversed(range(rank)))

    def compare(first: int, second: int) -> int:
        for strides in operands:
            one, other = strides[first], strides[second]
            if (isinstance(one, int) and one == 0) or (isinstance(other, int) and other == 0):
                continue
            if one == other:
                if size[first] > size[second]:
                    return 1
                continue
            return -1 if one < other else 1
        return 0

    for start in range(1, rank):
        moving = start
        for place in range(start - 1, -1, -1):
            result = compare(order[place], order[moving])
            if result > 0:
                order[place], order[moving] = order[moving], order[place]
                moving = place
            elif result < 0:
                break
    return order


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """A dtype of higher priority meets one of lower: the lower counts only if its category is higher."""
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


@functools.lru_cache(maxsize=4096)
def _promoted(key: tuple[Any, ...], kind: str, default: torch.dtype) -> torch.dtype | None:
    slots: list[torch.dtype | None] = [None, None, None]  # with dimensions, without, plain numbers
    for item in key:
        if isinstance(item, tuple):
            dtype, slot = item[0], 1 if item[1] else 0
        else:
            numbers = {bool: torch.bool, int: torch.int64, float: default, complex: default.to_complex()}
            dtype, slot = numbers[item], 2
        have = slots[slot]
        slots[slot] = dtype if have is None else torch.promote_types(have, dtype)
    result = _combine(slots[0], _combine(slots[1], slots[2]))
    if result is None:
        return None
    if kind == "bool":
        return torch.bool
    if kind == "float" and _category(result) < 2:
        return default
    return result


_NUMBERS = frozenset({int, float, bool, complex})


def promote(values: Sequence[Any], kind: str) -> torch.dtype | None:
    """Dtype of the result of a pointwise operator on tensors and numbers (`kind`: see `rules.POINTWISE`)."""
    if len(values) == 1 and kind == "same":
        return values[0].dtype  # type: ignore[no-any-return]
    key: list[Any] = []
    for value in values:
        if type(value) is AbstractTensor:
            key.append((value.dtype, value.dim() == 0))
        elif type(value) in _NUMBERS:
            key.append(type(value))
        elif isinstance(value, torch.SymInt):
            key.append(int)
        elif isinstance(value, torch.SymFloat):
            key.append(float)
        elif value is None or isinstance(value, str):
            continue
        else:
            return None
    return _promoted(tuple(key), kind, torch.get_default_dtype())
