"""Which callables are torch operations: recorded as one node, never looked into.

Contract. `role_of(callable)` says what the interpreter does with a callable of torch: record it as an operation,
ignore it, or nothing special (Python code of torch's is then interpreted like anybody's). Decided by where the callable
lives, so that operators added to torch later are covered, and remembered per callable.

State: a cache by identity that holds its keys.
"""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from stator.values.constants import is_free


class Role(enum.Enum):
    """What becomes of a call."""

    OPERATION = "recorded in the graph"
    NO_EFFECT = "does nothing that a program can see: skipped"
    OTHER = "not an operation"


# C modules of operators, and Python modules whose functions are operators for the ecosystem.
C_MODULES = frozenset(
    {"torch._C._nn", "torch._C._linalg", "torch._C._fft", "torch._C._special", "torch._C._sparse", "torch._C._nested"}
)
PYTHON_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._tensor", "torch.signal.windows.windows"})
# Python functions of those modules that are not operators: they hold control flow of the user or state.
INTERPRETED = frozenset(
    {
        "_canonical_mask", "_none_or_dtype", "handle_torch_function", "has_torch_function", "_get_softmax_dim",
        "_verify_batch_size", "_verify_spatial_size", "_list_with_default", "_pad_circular", "assert_int_or_pair",
        "triplet_margin_with_distance_loss", "boolean_dispatch", "multi_head_attention_forward_with_hooks",
    }
)  # fmt: skip
NOT_OPERATIONS = frozenset(
    {
        "torch._tensor:Tensor.backward", "torch._tensor:Tensor.__torch_function__", "torch._tensor:Tensor.__repr__",
        "torch._tensor:Tensor.__format__", "torch._tensor:Tensor.__deepcopy__", "torch._tensor:Tensor.__reduce_ex__",
        "torch._tensor:Tensor.register_hook", "torch._tensor:Tensor.__dir__", "torch._tensor:Tensor.__dlpack__",
        "torch._tensor:Tensor.register_post_accumulate_grad_hook", "torch._tensor:Tensor.share_memory_",
        "torch._tensor:Tensor.__array__", "torch._tensor:Tensor.storage", "torch._tensor:Tensor.__setstate__",
    }
)  # fmt: skip
# Builtins of torch that are no tensor operations; what of them may run while tracing has rows in the library.
STATEFUL = frozenset(
    {
        "is_grad_enabled", "_set_grad_enabled", "is_inference_mode_enabled", "get_default_dtype", "set_default_dtype",
        "is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype", "manual_seed",
        "initial_seed", "get_rng_state", "set_rng_state", "seed", "set_num_threads", "get_num_threads", "from_dlpack",
        "is_autocast_cache_enabled", "set_autocast_cache_enabled", "autocast_increment_nesting",
        "autocast_decrement_nesting", "clear_autocast_cache", "is_anomaly_enabled", "set_anomaly_enabled",
        "_log_api_usage_once", "frombuffer", "from_file", "is_warn_always_enabled", "set_warn_always",
    }
)  # fmt: skip
NO_EFFECT = frozenset({"_log_api_usage_once", "_log_api_usage_metadata", "_jit_set_profiling_mode"})

LASTING = (
    types.MethodDescriptorType, types.WrapperDescriptorType, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip
_roles: dict[int, tuple[Any, Role]] = {}


def role_of(function: Any) -> Role:
    """What becomes of a call of `function`."""
    row = _roles.get(id(function))
    if row is not None and row[0] is function:
        return row[1]
    role = _decide(function)
    if _lasts(function):
        _roles[id(function)] = (function, role)
    return role


def _lasts(function: Any) -> bool:
    """Whether a callable lives as long as torch does: others are not remembered, which would keep them alive."""
    kind = type(function)
    if kind is types.BuiltinFunctionType:
        return is_free(function)
    if kind is types.FunctionType:
        return function.__module__ in PYTHON_MODULES
    return isinstance(function, LASTING)


def _decide(function: Any) -> Role:
    kind = type(function)
    if kind is types.BuiltinFunctionType:
        if function.__name__ in NO_EFFECT:
            return Role.NO_EFFECT
        if function.__name__ in STATEFUL:
            return Role.OTHER
        owner = function.__self__
        if function.__qualname__.startswith("_VariableFunctionsClass."):
            return Role.OPERATION
        if isinstance(owner, types.ModuleType):
            return Role.OPERATION if owner.__name__ in C_MODULES else Role.OTHER
        return Role.OPERATION if function.__module__ in C_MODULES else Role.OTHER
    if kind is types.MethodDescriptorType or kind is types.WrapperDescriptorType:
        return (
            Role.OPERATION
            if issubclass(torch.Tensor, function.__objclass__) and (function.__objclass__ is not object)
            else Role.OTHER
        )
    if kind is types.FunctionType:
        module = function.__module__
        if module not in PYTHON_MODULES or function.__name__ in INTERPRETED or "<locals>" in function.__qualname__:
            return Role.OTHER
        return Role.OTHER if f"{module}:{function.__qualname__}" in NOT_OPERATIONS else Role.OPERATION
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return Role.OPERATION
    return Role.OTHER
