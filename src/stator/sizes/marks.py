"""What a user says of a tensor's sizes: `mark_dynamic`, `maybe_mark_dynamic`, `mark_static`, `mark_unbacked`.

Contract. Names, arguments and the attributes they leave on the tensor are torch's, so that marks set through
`torch._dynamo` are honoured here and marks set here are honoured by torch. `marks_of(tensor)` reads them. Marks add
up; a dimension may be negative, and one the tensor does not have is refused at once rather than never matched.

    attribute                         set by
    _dynamo_dynamic_indices, _range   mark_dynamic: must stay dynamic over its range, or the compile is an error
    _dynamo_weak_dynamic_indices      maybe_mark_dynamic: dynamic as long as nothing specialises it
    _dynamo_static_indices            mark_static
    _dynamo_unbacked_indices, _bounds, _dynamo_strict_unbacked_indices    mark_unbacked: no example value is used
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from stator.exc import InvalidOption

Dimensions = int | list[int] | tuple[int, ...]
Limits = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class DimensionRange:
    """What torch, too, keeps in `_dynamo_dynamic_range`."""

    dim: int
    min: int | None
    max: int | None


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one tensor, by dimension."""

    dynamic: Mapping[int, Limits] = field(default_factory=dict)
    maybe_dynamic: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    unbacked: Mapping[int, Limits] = field(default_factory=dict)
    strict_unbacked: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.dynamic or self.maybe_dynamic or self.static or self.unbacked or self.strict_unbacked)


NONE = Marks()


def _dimensions(tensor: torch.Tensor, index: Dimensions) -> list[int]:
    """The dimensions meant, from zero."""
    listed = [index] if isinstance(index, int) else index
    if not isinstance(listed, (list, tuple)) or not all(type(dim) is int for dim in listed):
        raise InvalidOption(f"a dimension is an int, or a list or tuple of ints, not {index!r}")
    rank = tensor.dim()
    for dim in listed:
        if not -rank <= dim < rank:
            raise InvalidOption(f"dimension {dim} does not exist: the tensor has {rank}")
    return [dim % rank for dim in listed]


def _check_limits(low: int | None, high: int | None) -> None:
    for name, value in (("min", low), ("max", high)):
        if value is not None and (type(value) is not int or value < 0):
            raise InvalidOption(f"{name} of a size is an int that is not negative, not {value!r}")
    if low is not None and high is not None and low > high:
        raise InvalidOption(f"no size lies in [{low}, {high}]")


def _attribute(tensor: Any, name: str, make: Callable[[], Any]) -> Any:
    if not hasattr(tensor, name):
        setattr(tensor, name, make())
    return getattr(tensor, name)


def _mark_inner(tensor: torch.Tensor, mark: Callable[[torch.Tensor], Any]) -> None:
    """A wrapper tensor's sizes are those of its inner tensors of as many dimensions."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            inner = getattr(tensor, name)
            if isinstance(inner, torch.Tensor) and inner.dim() == tensor.dim():
                mark(inner)


def mark_dynamic(
    t: torch.Tensor,
    index: Dimensions,
    *,
    hint_override: int | None = None,
    min: int | None = None,
    max: int | None = None,
    specialize_on: list[Any] | None = None,
) -> None:
    """The size must stay dynamic over [min, max]; what cannot hold is an error that names the line.

    `hint_override` and `specialize_on` are kept for compilers that read them.
    """
    _check_limits(min, max)
    _mark_inner(t, lambda inner: mark_dynamic(inner, index, hint_override=hint_override, min=min, max=max))
    for dim in _dimensions(t, index):
        _attribute(t, "_dynamo_dynamic_indices", set).add(dim)
        ranges = _attribute(t, "_dynamo_dynamic_range", set)
        ranges -= {row for row in ranges if row.dim == dim}
        ranges.add(DimensionRange(dim, min, max))
        _attribute(t, "_dynamo_hint_overrides", dict)
        if hint_override:
            t._dynamo_hint_overrides[dim] = hint_override  # type: ignore[attr-defined]
        _attribute(t, "_specialize_on", dict)[dim] = specialize_on or []
        t._has_dynamo_dim_marking = True  # type: ignore[attr-defined]


def maybe_mark_dynamic(t: torch.Tensor, index: Dimensions) -> None:
    """The size starts dynamic; the program may specialise it."""
    _mark_inner(t, lambda inner: maybe_mark_dynamic(inner, index))
    for dim in _dimensions(t, index):
        _attribute(t, "_dynamo_weak_dynamic_indices", set).add(dim)
        t._has_dynamo_dim_marking = True  # type: ignore[attr-defined]


def mark_static(t: Any, index: Dimensions | None = None) -> Any:
    """The size (without `index`: every size) is a constant of each entry; of a module class, its int attributes are."""
    if isinstance(t, type) and issubclass(t, torch.nn.Module):
        setattr(t, "_dynamo_marked_static", True)
        return t
    if not isinstance(t, torch.Tensor):
        raise InvalidOption(f"mark_static takes a tensor or a class of modules, not {type(t).__name__}")
    _mark_inner(t, lambda inner: mark_static(inner, index))
    for dim in range(t.dim()) if index is None else _dimensions(t, index):
        _attribute(t, "_dynamo_static_indices", set).add(dim)
        t._has_dynamo_dim_marking = True  # type: ignore[attr-defined]
    return None


def mark_static_address(t: torch.Tensor, guard: bool = False) -> None:
    """The tensor stays where it is in memory: a hint for compilers that keep addresses, which stator's own does not."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"mark_static_address expects a tensor, not a {type(t).__name__}")
    t._dynamo_static_input_type = "guarded" if guard else "unguarded"  # type: ignore[attr-defined]


def mark_unbacked(
    t: torch.Tensor,
    index: Dimensions,
    hint_override: int | None = None,
    strict: bool = False,
    specialize_on: list[Any] | None = None,
    shape_id: str | None = None,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """The size has no example value: a decision on it is an error unless `torch._check` settles it.

    `strict`: it must not become a constant either. Dimensions of one `shape_id` are promised to be equal.
    """
    _check_limits(min, max)
    for dim in _dimensions(t, index):
        t._has_dynamo_dim_marking = True  # type: ignore[attr-defined]
        if strict:
            _attribute(t, "_dynamo_strict_unbacked_indices", set).add(dim)
            continue
        _attribute(t, "_dynamo_unbacked_indices", set).add(dim)
        overrides = _attribute(t, "_dynamo_hint_overrides", dict)
        if hint_override:
            overrides[dim] = hint_override
        if min is not None or max is not None:
            _attribute(t, "_dynamo_unbacked_bounds", dict)[dim] = (min, max)
        if shape_id is not None:
            _attribute(t, "_dynamo_shape_ids", dict)[dim] = shape_id
        _attribute(t, "_specialize_on", dict)[dim] = specialize_on or []


def marks_of(tensor: torch.Tensor) -> Marks:
    """The marks of a tensor, whoever set them; a mark on a dimension it lacks says nothing."""
    kept = tensor.__dict__
    if not kept.get("_has_dynamo_dim_marking") and not any(name.startswith("_dynamo_") for name in kept):
        return NONE
    rank = tensor.dim()

    def dims(name: str) -> frozenset[int]:
        return frozenset(dim % rank for dim in kept.get(name, ()) if rank and -rank <= dim < rank)

    ranges = {row.dim % rank: (row.min, row.max) for row in kept.get("_dynamo_dynamic_range", ()) if rank}
    bounds = kept.get("_dynamo_unbacked_bounds", {})
    strict = dims("_dynamo_strict_unbacked_indices")
    unbacked = dims("_dynamo_unbacked_indices") | strict
    return Marks(
        dynamic={dim: ranges.get(dim, (None, None)) for dim in sorted(dims("_dynamo_dynamic_indices"))},
        maybe_dynamic=dims("_dynamo_weak_dynamic_indices"),
        static=dims("_dynamo_static_indices"),
        unbacked={dim: bounds.get(dim, (None, None)) for dim in sorted(unbacked)},
        strict_unbacked=strict,
    )
