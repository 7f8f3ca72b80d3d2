"""Operators that torch itself writes in terms of simpler ones: run on meta tensors and recorded.

Contract. `expand(call)` runs torch's decomposition of an operator and returns the simpler calls it made, in order, with
placeholders for tensors. Only operators in `EXPANDED` are taken apart: those that fuse well. For the rest ATen's own
kernel is faster than the sum of the parts.

`torch.compile`'s front end would be imported by a wrapper around some of torch's decompositions the first time they
run; `settle` gives the wrapper what it looks for, so nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from stator.aot.dynamo_free import settle, settle_references

aten = torch.ops.aten

# Operator packets whose torch decomposition is used.
EXPANDED: frozenset[str] = frozenset(
    {
        "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "_safe_softmax",
        "aminmax", "binary_cross_entropy", "binary_cross_entropy_backward",
        "binary_cross_entropy_with_logits", "celu", "count_nonzero", "deg2rad", "dist", "elu",
        "elu_backward", "gelu", "gelu_backward", "glu", "glu_backward", "hardshrink", "hardsigmoid",
        "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh_backward", "heaviside", "huber_loss",
        "huber_loss_backward", "leaky_relu_backward", "linalg_vector_norm", "log_sigmoid_backward",
        "log_sigmoid_forward", "logaddexp", "logaddexp2", "logit", "logit_backward", "logsumexp", "mish",
        "mish_backward", "mse_loss", "mse_loss_backward", "nan_to_num", "nansum",
        "native_batch_norm_backward", "native_group_norm", "native_group_norm_backward", "native_layer_norm",
        "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward",
        "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "nll_loss_backward",
        "nll_loss_forward", "rad2deg", "rrelu_with_noise_backward", "selu", "sigmoid_backward",
        "silu", "silu_backward", "sinc", "smooth_l1_loss", "smooth_l1_loss_backward",
        "softplus", "softplus_backward", "softshrink", "special_entr", "special_log_ndtr",
        "special_xlog1py", "tanh_backward", "trace", "xlogy",
        "new_empty", "new_empty_strided", "native_dropout_backward",
    }
)  # fmt: skip


class Recorded:
    """A call made by a decomposition: operator, arguments (tensors are `Reference`s) and its meta results."""

    __slots__ = ("arguments", "keywords", "meta", "operator", "reference")

    def __init__(self, operator: Any, arguments: Any, keywords: Any, meta: Any, reference: Any) -> None:
        self.operator = operator
        self.arguments = arguments
        self.keywords = keywords
        self.meta = meta
        self.reference = reference


class Reference:
    """A tensor of the recording, by number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Recorder(TorchDispatchMode):
    """Numbers each tensor it sees; keeps them alive so that identities stay valid."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first dispatch imports torch's own compiler, to be left alone by it

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Recorded] = []
        self.numbers: dict[int, Reference] = {}
        self.alive: list[Any] = []

    def reference(self, tensor: Any) -> Reference:
        found = self.numbers.get(id(tensor))
        if found is None:
            found = self.numbers[id(tensor)] = Reference(len(self.alive))
            self.alive.append(tensor)
        return found

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = operator(*arguments, **(keywords or {}))
        made_on = {"device": torch.device("cpu")} if keywords and keywords.get("device") is not None else {}
        recorded = Recorded(
            operator,
            replaced(arguments, self.reference),
            replaced({**(keywords or {}), **made_on}, self.reference),  # the recording is on meta, the program is not
            result,
            replaced(result, self.reference),
        )
        self.calls.append(recorded)
        return result


def replaced(value: Any, of_tensor: Callable[[Any], Any]) -> Any:
    """Nested arguments with each tensor replaced."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, (list, tuple)):
        return (
            type(value)(replaced(entry, of_tensor) for entry in value)
            if type(value) in (list, tuple)
            else [replaced(entry, of_tensor) for entry in value]
        )
    if isinstance(value, dict):
        return {key: replaced(entry, of_tensor) for key, entry in value.items()}
    return value


def has_decomposition(operator: Any) -> bool:
    packet = operator.overloadpacket.__name__
    return packet in EXPANDED and operator in decomposition_table and not operator._schema.is_mutable


def expand(operator: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> tuple[list[Recorded], Any, Recorder]:
    """Run a decomposition on meta tensors: the calls it made, and which references it returned."""
    function = decomposition_table[operator]
    settle_references()
    settle(function)
    recorder = Recorder()
    with recorder:
        result = function(*arguments, **keywords)
    return recorder.calls, replaced(result, recorder.reference), recorder
