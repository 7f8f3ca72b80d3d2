"""Rows for reductions.

Contract. Sums and products of half-precision values accumulate in `f32` and are rounded once. Variance is two sweeps
(the mean, then the squared differences): the fused kernel has the row in cache for the second, and it is more accurate
than combining running moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.loops import build
from stator.loops.build import apply, convert
from stator.loops.integers import Size, product_of
from stator.loops.ir import FLOATS, SMALL_FLOATS, Expression, constant, make
from stator.lower.context import Lowering
from stator.lower.pointwise import computing_type
from stator.lower.values import DTYPES, OPAQUE, NotLowered, Stored, Value, type_name


def dimensions(value: Value, dims: Any) -> tuple[int, ...]:
    """Dimensions as non-negative numbers; None and an empty list mean all."""
    count = len(value.sizes)
    if dims is None:
        return tuple(range(count))
    listed = [dims] if isinstance(dims, int) else list(dims)
    if not listed:
        return tuple(range(count))
    return tuple(dim % max(count, 1) for dim in listed if count)


def finished(lowering: Lowering, stored: Stored, dtype: torch.dtype) -> Value:
    """The reduction's result in the traced type."""
    name = type_name(dtype)
    if stored.type == name:
        return stored
    return lowering.lazy(stored.sizes, dtype, lambda i: convert(stored.at(i), name))


def reduce_as(
    lowering: Lowering,
    kind: str,
    value: Value,
    dims: Any,
    keep: bool,
    type_: str,
    transform: Callable[[Expression], Expression] = lambda x: x,
) -> Stored:
    """Reduce in `type_`, each element through `transform` first."""
    if value.type == OPAQUE:
        raise NotLowered(f"elements of type {value.dtype}")
    return lowering.reduce(
        kind,
        value.sizes,
        dimensions(value, dims),
        DTYPES[type_],
        lambda i: transform(convert(value.at(i), type_)),
        keep,
    )


def accumulating(kind: str) -> Callable[..., Any]:
    """sum and prod: any overload (all dimensions; a list; one)."""

    def lower(
        lowering: Lowering, value: Value, dims: Any = None, keep: bool = False, *, dtype: torch.dtype | None = None
    ) -> Value:
        result = lowering.current.dtype
        if type_name(result) == OPAQUE:
            raise NotLowered(f"results of type {result}")
        return finished(
            lowering, reduce_as(lowering, kind, value, dims, keep, computing_type(type_name(result))), result
        )

    return lower


def mean(lowering: Lowering, value: Value, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Value:
    result = lowering.current.dtype
    type_ = computing_type(type_name(result))
    if type_ not in FLOATS:
        raise NotLowered(f"a mean of type {result}")
    total = reduce_as(lowering, "sum", value, dims, keep, type_)
    return divided(lowering, total, count_of(value, dims), result)


def count_of(value: Value, dims: Any) -> Size:
    return product_of(value.sizes[k] for k in dimensions(value, dims))


def count_expression(count: Size, type_: str) -> Expression:
    return convert(build.index_expression(count), type_) if not isinstance(count, int) else constant(count, type_)


def divided(lowering: Lowering, total: Stored, count: Size, dtype: torch.dtype) -> Value:
    divisor = count_expression(count, total.type)
    name = type_name(dtype)
    return lowering.lazy(total.sizes, dtype, lambda i: convert(apply("div", total.at(i), divisor), name))


def extreme(kind: str) -> Callable[..., Any]:
    """amax, amin, and max, min over all dimensions."""

    def lower(lowering: Lowering, value: Value, dims: Any = None, keep: bool = False) -> Value:
        if any(value.sizes[k] == 0 for k in dimensions(value, dims)):
            raise NotLowered("the extreme of nothing")
        type_ = computing_type(value.type)
        if type_ == "b1":
            return reduce_as(lowering, {"maximum": "any", "minimum": "all"}[kind], value, dims, keep, "b1")
        return finished(lowering, reduce_as(lowering, kind, value, dims, keep, type_), value.dtype)

    return lower


def logical(kind: str) -> Callable[..., Any]:
    def lower(lowering: Lowering, value: Value, dims: Any = None, keep: bool = False) -> Value:
        stored = reduce_as(lowering, kind, value, dims, keep, "b1")
        return finished(lowering, stored, lowering.current.dtype)

    return lower


def arg(kind: str) -> Callable[..., Any]:
    def lower(lowering: Lowering, value: Value, dim: Any = None, keep: bool = False) -> Value:
        if any(size == 0 for size in value.sizes) or value.type in ("b1", OPAQUE):
            raise NotLowered("the place of an extreme among booleans or nothing")
        if dim is None and len(value.sizes) != 1:
            raise NotLowered("the place of an extreme over all dimensions")
        if not value.sizes:
            raise NotLowered("the place of an extreme without dimensions")
        type_ = computing_type(value.type)
        (chosen,) = dimensions(value, dim)
        return lowering.reduce(
            kind,
            value.sizes,
            dimensions(value, dim),
            torch.int64,
            lambda i: make("place", type_, (convert(value.at(i), type_), build.index_expression(i[chosen]))),
            keep,
        )

    return lower


def extreme_with_place(kind: str, place: str) -> Callable[..., Any]:
    """max.dim and min.dim."""

    def lower(lowering: Lowering, value: Value, dim: int, keep: bool = False) -> tuple[Value, Value]:
        if not value.sizes:
            raise NotLowered("the place of an extreme without dimensions")
        both = lowering.current
        lowering.current = both[0]
        largest = extreme(kind)(lowering, value, dim, keep)
        lowering.current = both[1]
        where = arg(place)(lowering, value, dim, keep)
        lowering.current = both
        return largest, where

    return lower


def moments(
    lowering: Lowering, value: Value, dims: Any, correction: Any, keep: bool, dtype: torch.dtype
) -> tuple[Value, Value]:
    """(variance, mean)."""
    type_ = computing_type(type_name(dtype))
    if type_ not in FLOATS or value.type == OPAQUE:
        raise NotLowered(f"a variance of type {dtype}")
    count = count_of(value, dims)
    total = reduce_as(lowering, "sum", value, dims, True, type_)
    center = lowering.lazy(
        total.sizes, DTYPES[type_], lambda i: apply("div", total.at(i), count_expression(count, type_))
    )
    spread_center = lowering.broadcast(center, value.sizes)
    gone = dimensions(value, dims)

    def squared(indices: tuple[Size, ...]) -> Expression:
        difference = apply("sub", convert(value.at(indices), type_), spread_center.at(indices))
        return apply("mul", difference, difference)

    squares = lowering.reduce("sum", value.sizes, gone, DTYPES[type_], squared, keep)
    divisor = freedom(count, 1 if correction is None else correction, type_)
    name = type_name(dtype)
    variance = lowering.lazy(squares.sizes, dtype, lambda i: convert(apply("div", squares.at(i), divisor), name))
    kept = Stored(total.buffer, squares.sizes, squares.strides, 0, total.dtype)
    return variance, divided(lowering, kept, count, dtype)


def freedom(count: Size, correction: float, type_: str) -> Expression:
    """max(count - correction, 0)."""
    if isinstance(count, int):
        return constant(max(count - correction, 0), type_)
    less = apply("sub", count_expression(count, type_), constant(correction, type_))
    return apply("maximum", less, constant(0, type_))


def variance(lowering: Lowering, value: Value, dims: Any = None, *rest: Any, **options: Any) -> Value:
    correction, keep = _correction(rest, options)
    return moments(lowering, value, dims, correction, keep, lowering.current.dtype)[0]


def deviation(lowering: Lowering, value: Value, dims: Any = None, *rest: Any, **options: Any) -> Value:
    correction, keep = _correction(rest, options)
    dtype = lowering.current.dtype
    type_ = computing_type(type_name(dtype))
    squares = moments(lowering, value, dims, correction, keep, DTYPES.get(type_, dtype))[0]
    name = type_name(dtype)
    return lowering.lazy(squares.sizes, dtype, lambda i: convert(apply("sqrt", squares.at(i)), name))


def variance_and_mean(lowering: Lowering, value: Value, dims: Any = None, *rest: Any, **options: Any) -> Any:
    correction, keep = _correction(rest, options)
    return moments(lowering, value, dims, correction, keep, lowering.current[0].dtype)


def primitive_variance(lowering: Lowering, value: Value, dims: Any, correction: Any = 1, **options: Any) -> Value:
    return moments(lowering, value, dims, correction, False, lowering.current.dtype)[0]


def _correction(rest: Sequence[Any], options: dict[str, Any]) -> tuple[float, bool]:
    """The overloads with `unbiased` are composites that a functional graph does not hold."""
    if rest:
        raise NotLowered("a variance by `unbiased`")
    correction = options.get("correction", 1)
    return 1 if correction is None else correction, options.get("keepdim", False)


def half_precision(value: Value) -> bool:
    return value.type in SMALL_FLOATS


RULES: dict[str, Callable[..., Any]] = {
    "sum": accumulating("sum"),
    "prod": accumulating("product"),
    "mean": mean,
    "amax": extreme("maximum"),
    "amin": extreme("minimum"),
    "max.default": extreme("maximum"),
    "min.default": extreme("minimum"),
    "max.dim": extreme_with_place("maximum", "argmax"),
    "min.dim": extreme_with_place("minimum", "argmin"),
    "any": logical("any"),
    "all": logical("all"),
    "argmax": arg("argmax"),
    "argmin": arg("argmin"),
    "var.correction": variance,
    "prims.var": primitive_variance,
    "std.correction": deviation,
    "var_mean.correction": variance_and_mean,
}
