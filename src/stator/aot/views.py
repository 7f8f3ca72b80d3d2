"""What each view operator shows, and how a change of the view changes what it shows.

Contract. `scatter(write, view, base, new)` gives the steps for "`base`, with the elements that `view` shows replaced
by `new`". `SCATTERS` has a row per view operator; an operator without a row is undone through `as_strided_scatter`
on the layout its abstract value has, which is always right for strided memory of one dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.aot.tape import ITEM, Step

aten = torch.ops.aten
# write(operator, *args) appends a call and returns its step.
Write = Callable[..., Step]
Scatter = Callable[[Write, Step, Step, Step], Step]


def _argument(step: Step, place: int, name: str, default: Any) -> Any:
    if place < len(step.args):
        return step.args[place]
    return step.kwargs.get(name, default)


def _reshape_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    return write(aten.reshape.default, new, list(base.value.shape))


def _permute_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    dims = view.args[1]
    inverse = [0] * len(dims)
    for place, axis in enumerate(dims):
        inverse[axis % len(dims)] = place
    return write(aten.permute.default, new, inverse)


def _select_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    return write(aten.select_scatter.default, base, new, view.args[1], view.args[2])


def _slice_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    dim, start = _argument(view, 1, "dim", 0), _argument(view, 2, "start", None)
    end, step = _argument(view, 3, "end", None), _argument(view, 4, "step", 1)
    return write(aten.slice_scatter.default, base, new, dim, start, end, step)


def _diagonal_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    offset, first = _argument(view, 1, "offset", 0), _argument(view, 2, "dim1", 0)
    return write(aten.diagonal_scatter.default, base, new, offset, first, _argument(view, 3, "dim2", 1))


def _squeeze_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    return write(aten.reshape.default, new, list(base.value.shape))


def _unsqueeze_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    return write(aten.squeeze.dim, new, view.args[1])


def _retype_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    return write(aten.view.dtype, new, base.value.dtype)


def _expand_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    if tuple(base.value.shape) == tuple(new.value.shape):
        return new
    index = write(aten.as_strided.default, new, list(base.value.shape), *_first_elements(base, new))
    return write(aten.clone.default, index)


def _first_elements(base: Step, new: Step) -> tuple[list[Any], int]:
    """Strides that pick one of the equal copies an expanded tensor shows."""
    shift = new.value.dim() - base.value.dim()
    return list(new.value.stride()[shift:]), 0


def _split_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    call = view.args[0]
    length, dim = call.args[1], _argument(call, 2, "dim", 0)
    start = length * view.target if isinstance(length, int) else sum(length[: view.target])
    return write(aten.slice_scatter.default, base, new, dim, start, start + new.value.shape[dim], 1)


def _unbind_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    return write(aten.select_scatter.default, base, new, _argument(view.args[0], 1, "dim", 0), view.target)


def _strided_back(write: Write, view: Step, base: Step, new: Step) -> Step:
    shown = view.value
    return write(
        aten.as_strided_scatter.default, base, new, list(shown.shape), list(shown.stride()), shown.storage_offset()
    )


def _same(operator: Any) -> Scatter:
    def back(write: Write, view: Step, base: Step, new: Step) -> Step:
        return write(operator, new, *view.args[1:])

    return back


SCATTERS: dict[Any, Scatter] = {
    aten.view.default: _reshape_back,
    aten._unsafe_view.default: _reshape_back,
    aten._reshape_alias.default: _reshape_back,
    aten.permute.default: _permute_back,
    aten.transpose.int: _same(aten.transpose.int),
    aten.t.default: _same(aten.t.default),
    aten.select.int: _select_back,
    aten.slice.Tensor: _slice_back,
    aten.diagonal.default: _diagonal_back,
    aten.unsqueeze.default: _unsqueeze_back,
    aten.squeeze.default: _squeeze_back,
    aten.squeeze.dim: _squeeze_back,
    aten.squeeze.dims: _squeeze_back,
    aten.expand.default: _expand_back,
    aten.view.dtype: _retype_back,
    aten.view_as_real.default: _same(aten.view_as_complex.default),
    aten.view_as_complex.default: _same(aten.view_as_real.default),
    aten._conj.default: _same(aten._conj.default),
    aten._neg_view.default: _same(aten._neg_view.default),
    aten.split.Tensor: _split_back,
    aten.split_with_sizes.default: _split_back,
    aten.unbind.int: _unbind_back,
}


def scatter(write: Write, view: Step, base: Step, new: Step) -> Step:
    """`base` with what `view` shows replaced by `new`."""
    target = view.args[0].target if view.kind == ITEM else view.target
    return SCATTERS.get(target, _strided_back)(write, view, base, new)
