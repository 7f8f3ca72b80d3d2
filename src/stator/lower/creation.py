"""Rows for operators that make tensors from numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.loops import build, ir
from stator.loops.build import apply, convert
from stator.loops.integers import Size
from stator.loops.ir import Expression
from stator.lower.context import Lowering
from stator.lower.values import OPAQUE, Lazy, NotLowered, Value, type_name


def filled(lowering: Lowering, value: Any) -> Lazy:
    """The traced result with one number everywhere."""
    meta = lowering.current
    type_ = type_name(meta.dtype)
    if type_ == OPAQUE or (meta.device.type != "cpu" and meta.device.type != "meta"):
        raise NotLowered(f"a tensor of {meta.dtype} on {meta.device}")
    if isinstance(value, torch.SymInt):
        expression = convert(build.index_expression(lowering.size(value)), type_)
    elif isinstance(value, (bool, int, float)):
        expression = build.number(value, type_) if type_ not in ir.INTEGERS else ir.constant(int(value), type_)
    else:
        raise NotLowered("a fill value that is no number")
    result = lowering.lazy(lowering.sizes(meta.shape), meta.dtype, lambda _: expression)
    result.layout = lowering.sizes(meta.stride())
    return result


def full(lowering: Lowering, sizes: Sequence[Any], value: Any, **options: Any) -> Value:
    return filled(lowering, value)


def full_like(lowering: Lowering, like: Value, value: Any, **options: Any) -> Value:
    return filled(lowering, value)


def constant_fill(value: float) -> Callable[..., Value]:
    return lambda lowering, *shape, **options: filled(lowering, value)


def scalar_tensor(lowering: Lowering, value: Any, **options: Any) -> Value:
    return filled(lowering, value)


def fill(lowering: Lowering, like: Value, value: Any) -> Value:
    if isinstance(value, (int, float, torch.SymInt)):
        return filled(lowering, value)
    dtype = lowering.current.dtype
    return lowering.broadcast(
        lowering.lazy(value.sizes, dtype, lambda i: convert(value.at(i), type_name(dtype))), like.sizes
    )


def arange(lowering: Lowering, *numbers: Any, **options: Any) -> Value:
    """`arange(end)`, `(start, end)`, `(start, end, step)`: element k is start + k * step."""
    start, step = 0, 1
    if len(numbers) >= 2:
        start = numbers[0]
    if len(numbers) == 3:
        step = numbers[2]
    meta = lowering.current
    type_ = type_name(meta.dtype)
    if type_ not in ir.INTEGERS:
        return float_range(lowering, start, step, type_)
    if not all(isinstance(number, (int, torch.SymInt)) for number in (start, step)):
        raise NotLowered("an integer range from floats")
    first, stride = lowering.size(start), lowering.size(step)
    return lowering.lazy(
        lowering.sizes(meta.shape),
        meta.dtype,
        lambda i: convert(build.index_expression(i[0] * stride + first), type_),
    )


def float_range(lowering: Lowering, start: Any, step: Any, type_: str) -> Value:
    if type_ not in ir.FLOATS or not all(isinstance(number, (int, float)) for number in (start, step)):
        raise NotLowered("a range of this type")
    wide = "f64"

    def element(indices: tuple[Size, ...]) -> Expression:
        steps = convert(build.index_expression(indices[0]), wide)
        return convert(apply("add", ir.constant(start, wide), apply("mul", steps, ir.constant(step, wide))), type_)

    return lowering.lazy(lowering.sizes(lowering.current.shape), lowering.current.dtype, element)


def iota(lowering: Lowering, length: Any, *, start: Any, step: Any, **options: Any) -> Value:
    return arange(lowering, start, 0, step)


def eye(lowering: Lowering, *sizes: Any, **options: Any) -> Value:
    meta = lowering.current
    type_ = type_name(meta.dtype)
    if type_ == OPAQUE:
        raise NotLowered(f"elements of type {meta.dtype}")

    def element(indices: tuple[Size, ...]) -> Expression:
        row, column = (build.index_expression(index) for index in indices)
        return convert(apply("eq", row, column), type_)

    return lowering.lazy(lowering.sizes(meta.shape), meta.dtype, element)


RULES: dict[str, Callable[..., Any]] = {
    "full": full,
    "full_like": full_like,
    "new_full": lambda lowering, like, sizes, value, **options: filled(lowering, value),
    "zeros": constant_fill(0),
    "ones": constant_fill(1),
    "zeros_like": constant_fill(0),
    "ones_like": constant_fill(1),
    "new_zeros": constant_fill(0),
    "_efficientzerotensor": constant_fill(0),  # eager keeps no memory for it; a kernel needs some, or a constant
    "new_ones": constant_fill(1),
    "scalar_tensor": scalar_tensor,
    "fill": fill,
    "arange": arange,
    "eye": eye,
    "prims.iota": iota,
    "prims.convert_element_type": lambda lowering, value, dtype: _convert(lowering, value, dtype),
}


def _convert(lowering: Lowering, value: Value, dtype: torch.dtype) -> Value:
    name = type_name(dtype)
    if OPAQUE in (name, value.type):
        raise NotLowered(f"conversion from {value.dtype} to {dtype}")
    return lowering.lazy(value.sizes, dtype, lambda i: convert(value.at(i), name))
