"""Functions that libtorch exports with a plain C calling convention, and their addresses in this process.

Contract. `address(name)` is where a row of the tables below lies, None if this torch does not export it. They are C++
functions by name, but take and return only integers, booleans and bare pointers, so C can call them.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

import torch

LIBRARIES = ("c10", "torch_cpu")

# What a reader of global state is called in modes.c -> its symbol.
MODE_SYMBOLS: dict[str, str] = {
    "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "inference_mode": "_ZN3c1013InferenceMode10is_enabledEv",
    "default_dtype": "_ZN3c1031get_default_dtype_as_scalartypeEv",
    "function_modes": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "dispatch_modes": "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "disabled_state": "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv",
    "set_disabled_state": "_ZN2at4impl22PythonTorchFunctionTLS18set_disabled_stateENS0_26TorchFunctionDisabledStateE",
    "autocast_enabled": "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE",
    "autocast_dtype": "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE",
    "autocast_cache": "_ZN2at8autocast25is_autocast_cache_enabledEv",
    "deterministic": "_ZNK2at7Context23deterministicAlgorithmsEv",
    "warn_only": "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv",
}
GLOBAL_CONTEXT = "_ZN2at13globalContextEv"

# What a reader of tensors is called in tensor_read.h -> its symbol.
TENSOR_SYMBOLS: dict[str, str] = {
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
    "get_dim": "aoti_torch_get_dim",
    "get_sizes": "aoti_torch_get_sizes",
    "get_strides": "aoti_torch_get_strides",
    "get_storage_offset": "aoti_torch_get_storage_offset",
    "get_dtype": "aoti_torch_get_dtype",
    "get_device_type": "aoti_torch_get_device_type",
    "get_device_index": "aoti_torch_get_device_index",
}


@functools.cache
def libraries() -> tuple[ctypes.CDLL, ...]:
    """The libraries of the torch that is loaded."""
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    folder = Path(torch.__file__).parent / "lib"
    found = []
    for name in LIBRARIES:
        path = folder / f"lib{name}.{suffix}"
        if path.exists():
            found.append(ctypes.CDLL(str(path)))
    return tuple(found)


def address(symbol: str) -> int | None:
    """Where a symbol lies."""
    for library in libraries():
        try:
            return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


def addresses(table: dict[str, str]) -> dict[str, int]:
    """The rows of a table that this torch exports."""
    found = {name: address(symbol) for name, symbol in table.items()}
    return {name: value for name, value in found.items() if value is not None}


def global_context() -> int | None:
    """The address of torch's global context object."""
    where = address(GLOBAL_CONTEXT)
    return None if where is None else ctypes.CFUNCTYPE(ctypes.c_void_p)(where)()
