"""Shape rules of layers (normalisation, dropout, embedding), and of results whose layout meta kernels misstate.

Rows of `rules.RULES`; see there for the contract.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from stator.aot.abstract import contiguous_strides, evaluate, fresh
from stator.aot.rules import like_strides, matrices_agree, rule

aten = torch.ops.aten


@rule(aten.native_layer_norm.default)
def _layer_norm(x: Any, normalized: Any, weight: Any, bias: Any, eps: float) -> Any:
    kept = x.dim() - len(normalized)
    if not x.is_contiguous() or tuple(x.shape[kept:]) != tuple(normalized) or x.device.type != "cpu" or kept < 0:
        return NotImplemented
    for scale in (weight, bias):
        if scale is not None and (scale.dtype is not x.dtype or tuple(scale.shape) != tuple(normalized)):
            return NotImplemented
    if any(isinstance(n, int) and n == 0 for n in x.shape):
        return NotImplemented
    small = (*x.shape[:kept], *([1] * len(normalized)))
    return (fresh(x.shape, x.dtype, x.device), fresh(small, x.dtype, x.device), fresh(small, x.dtype, x.device))


@rule(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    gradient: Any, x: Any, normalized: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> Any:
    if x.device.type != "cpu" or gradient.dtype is not x.dtype or not x.is_contiguous():
        return NotImplemented
    like = weight if weight is not None else bias
    if (mask[1] and weight is None) or (mask[2] and bias is None):
        return NotImplemented
    size = tuple(normalized)
    return (
        fresh(x.shape, x.dtype, x.device) if mask[0] else None,
        fresh(size, like.dtype, x.device) if mask[1] else None,
        fresh(size, like.dtype, x.device) if mask[2] else None,
    )


@rule(aten.native_dropout.default)
def _dropout(x: Any, p: float, train: Any) -> Any:
    if not x.is_contiguous() or not train:
        return NotImplemented
    return (fresh(x.shape, x.dtype, x.device), fresh(x.shape, torch.bool, x.device))


@rule(aten.embedding.default)
def _embedding(
    weight: Any, indices: Any, padding_idx: Any = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32) or weight.device != indices.device:
        return NotImplemented
    return fresh((*indices.shape, weight.shape[1]), weight.dtype, weight.device)


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(gradient: Any, indices: Any, rows: Any, padding_idx: Any, scale: bool) -> Any:
    if gradient.device != indices.device:
        return NotImplemented
    return fresh((rows, gradient.shape[-1]), gradient.dtype, gradient.device)


@rule(
    aten.multi_margin_loss_backward.default,
    aten.multilabel_margin_loss_backward.default,
    aten.fractional_max_pool3d_backward.default,
)
def _gradient_of_input(gradient: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Operators torch has no meta kernel for."""
    return fresh(x.shape, x.dtype, x.device)


# --- where torch's meta kernel claims another layout than the CPU kernel has -------------------------------------
def _columns_first(size: Sequence[Any]) -> tuple[Any, ...]:
    """Strides of a batch of matrices stored column by column, as LAPACK leaves them."""
    strides = list(contiguous_strides(size))
    strides[-2], strides[-1] = 1, max(size[-2], 1)
    return tuple(strides)


@rule(aten._linalg_svd.default)
def _svd(x: Any, full_matrices: bool = False, compute_uv: bool = True, driver: Any = None) -> Any:
    if x.device.type != "cpu" or x.dim() < 2 or not all(isinstance(length, int) for length in x.shape):
        return NotImplemented
    *batch, rows, columns = x.shape
    inner = min(rows, columns)
    real = x.dtype.to_real() if x.dtype.is_complex else x.dtype
    values = fresh((*batch, inner), real, x.device)
    if not compute_uv:
        return fresh((0,), x.dtype, x.device), values, fresh((0,), x.dtype, x.device)
    left = (*batch, rows, rows if full_matrices else inner)
    right = (*batch, columns if full_matrices else inner, columns)
    return (
        fresh(left, x.dtype, x.device, _columns_first(left)),
        values,
        fresh(right, x.dtype, x.device, _columns_first(right)),
    )


@rule(aten.linalg_eig.default)
def _eig(x: Any) -> Any:
    if x.device.type != "cpu" or x.dim() < 2 or not all(isinstance(length, int) for length in x.shape):
        return NotImplemented
    if x.shape[-1] != x.shape[-2]:
        return NotImplemented
    dtype = x.dtype.to_complex()
    return fresh(x.shape[:-1], dtype, x.device), fresh(x.shape, dtype, x.device, _columns_first(x.shape))


@rule(aten._native_batch_norm_legit_functional.default)
def _batch_norm_in_evaluation(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    if training or x.device.type != "cpu" or x.dim() < 2:
        return NotImplemented
    layout = like_strides(x, None)
    if layout is None:
        return NotImplemented
    none = (0,)
    return (
        fresh(x.shape, x.dtype, x.device, layout),
        fresh(none, x.dtype, x.device),
        fresh(none, x.dtype, x.device),
        fresh(mean.shape, mean.dtype, x.device, mean.stride()),
        fresh(variance.shape, variance.dtype, x.device, variance.stride()),
    )


# --- joining -----------------------------------------------------------------------------------------------------
@rule(aten.cat.default)
def _cat(tensors: Any, dim: int = 0) -> Any:
    first = tensors[0]
    rank = first.dim()
    if rank == 0 or not -rank <= dim < rank or not matrices_agree(*tensors):
        return NotImplemented
    if any(tensor.dim() != rank or not tensor.is_contiguous() for tensor in tensors):
        return NotImplemented
    axis = dim % rank
    total: Any = 0
    for tensor in tensors:
        for place in range(rank):
            if place != axis and tensor.shape[place] != first.shape[place]:
                return NotImplemented
        total = total + tensor.shape[axis]
    return fresh((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype, first.device)


@rule(aten.pixel_shuffle.default)
def _pixel_shuffle(x: Any, factor: int) -> Any:
    """On the CPU memory stays in channels-last order, where torch's meta kernel knows only GPUs."""
    if x.device.type != "cpu" or x.dim() != 4 or x.shape[1] % (factor * factor):
        return NotImplemented
    if not x.is_contiguous(memory_format=torch.channels_last) or x.is_contiguous():
        return NotImplemented
    batch, channels, rows, columns = x.shape
    channels, rows, columns = channels // (factor * factor), rows * factor, columns * factor
    strides = (channels * rows * columns, 1, columns * channels, channels)
    return fresh((batch, channels, rows, columns), x.dtype, x.device, strides)


def _normalised_rows(op: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """Results of a batch normalisation on the CPU are row-major or channels-last, whatever the argument is."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.device.type != "cpu" or x.is_contiguous() or x.is_contiguous(memory_format=formats.get(x.dim(), ROW_MAJOR)):
        return NotImplemented
    return evaluate(op, (fresh(x.shape, x.dtype, x.device), *rest), named)


ROW_MAJOR = torch.contiguous_format
for _op in (
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_with_update_functional.default,
):  # fmt: skip
    rule(_op)(functools.partial(_normalised_rows, _op))
