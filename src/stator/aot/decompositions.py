"""Named sets of decompositions: operators replaced by simpler ones while recording.

Contract. A set maps `OpOverload` to a Python function with its signature. `CORE` is what an optimising backend wants:
composite pointwise and normalisation operators become elementary ones that fuse; matrix products, convolutions,
attention, sorting and random operators stay. The functions are torch's own (`torch._decomp`), looked up by name;
a name torch does not have is an error, at import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten

CORE_OPERATORS: tuple[str, ...] = tuple(
    """
    addcdiv addcmul addcdiv_ addcmul_ gelu_backward silu silu_backward elu elu_backward leaky_relu leaky_relu_backward
    hardtanh hardtanh_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward mish mish_backward
    softplus softplus_backward threshold_backward logit logit_backward sigmoid_backward tanh_backward rsub
    log_sigmoid_forward log_sigmoid_backward
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
    binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
    nll_loss_forward nll_loss_backward soft_margin_loss
    embedding_dense_backward native_dropout_backward
    select_backward slice_backward diagonal_backward unfold_backward
    masked_fill lerp logaddexp logaddexp2 xlogy frac heaviside addr trace linspace
    linalg_vector_norm norm std var_mean std_mean
    upsample_bilinear2d upsample_nearest2d
    _fused_rms_norm _fused_rms_norm_backward
    """.split()
)


def _named(names: tuple[str, ...]) -> dict[Any, Callable[..., Any]]:
    packets = []
    for name in names:
        if not hasattr(aten, name):
            raise LookupError(f"torch has no operator aten.{name}")
        packets.append(getattr(aten, name))
    return dict(get_decompositions(packets))


CORE: dict[Any, Callable[..., Any]] = _named(CORE_OPERATORS)
NONE: dict[Any, Callable[..., Any]] = {}
