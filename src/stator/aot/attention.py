"""`flex_attention` written out: attention with a user's score function, in ordinary operators.

Contract. The definition of the operator: scores, the score function vectorised over batch, head, query and key, the
mask, softmax. Returns output, log-sum-exp and maximal score, both in powers of two as the operator defines them.
Indexing by tensors inside the user's functions is by operator (`aten.index`), because under vmap an index has no value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _IndexByOperator(TorchFunctionMode):
    """`tensor[i, j]` with tensors as indices is one gather."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if index and all(isinstance(part, (torch.Tensor, int)) for part in index):
                tensors = [torch.tensor(part, device=args[0].device) if isinstance(part, int) else part
                           for part in index]  # fmt: skip
                return torch.ops.aten.index(args[0], tensors)
        return func(*args, **(kwargs or {}))


def _vectorised(function: Callable[..., Any], with_score: bool, buffers: int) -> Callable[..., Any]:
    """`function(score?, b, h, q, k, *buffers)` over all four indices at once."""
    for axis in (3, 2, 1, 0):
        indices = tuple(0 if place == axis else None for place in range(4))
        score = (0,) if with_score else ()
        function = torch.vmap(function, in_dims=(*score, *indices, *([None] * buffers)), out_dims=0)
    return function


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    mask_mod: Callable[..., Any],
    scale: float,
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the module."""
    groups = query.size(1) // key.size(1)
    key = torch.repeat_interleave(key, groups, dim=1).expand(query.size(0), -1, -1, -1)
    value = torch.repeat_interleave(value, groups, dim=1).expand(query.size(0), -1, -1, -1)
    precision = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = (query.to(precision) @ key.to(precision).transpose(-2, -1)) * scale
    indices = [torch.arange(length, device=scores.device) for length in scores.shape]
    with _IndexByOperator():
        mask = _vectorised(mask_mod, False, len(mask_buffers))(*indices, *mask_buffers)
        modified = _vectorised(score_mod, True, len(score_buffers))(scores, *indices, *score_buffers)
    modified = modified.to(precision).masked_fill(mask.logical_not(), -math.inf)
    empty = (modified == -math.inf).all(dim=-1)
    total = modified.logsumexp(dim=-1).masked_fill(empty, -math.inf)
    weights = torch._safe_softmax(modified, dim=-1)
    return (
        weights.to(query.dtype) @ value,
        total / math.log(2),
        modified.amax(dim=-1) / math.log(2),
    )
