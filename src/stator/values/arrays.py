"""NumPy arrays of the program, as the trace has them: `torch._numpy` arrays over abstract tensors.

Contract. An array from outside that shares its memory with a tensor is met as one of torch's own arrays, which hold a
tensor and compute with torch; the tensor is an input of the graph like any other. `array_kind` is their class, once
there are any. Arrays of other dtypes, read-only ones and those with negative strides stay objects that only NumPy
reads.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from typing import Any

import torch

numpy: Any = None  # torch works without it
with contextlib.suppress(ImportError):
    numpy = importlib.import_module("numpy")

DTYPES = frozenset("?bhilqBefdFD")  # by character: what `torch.from_numpy` takes


@functools.cache
def torch_numpy() -> Any:
    """Torch's own NumPy, imported when an array is met.

    Its types of plain numbers are NumPy's; asked for the first time, it would load another compiler to find that out.
    """
    defaults: Any = importlib.import_module("torch._numpy._dtypes_impl")
    if defaults._default_dtypes is None and "torch._dynamo" not in sys.modules:
        defaults._default_dtypes = defaults.DefaultDTypes(torch.float64, torch.complex128, torch.int64)
    return importlib.import_module("torch._numpy")


def array_kind() -> Any:
    """The class of the trace's arrays, None while there are none."""
    module = sys.modules.get("torch._numpy")
    return None if module is None else module.ndarray


def is_array(value: Any) -> bool:
    """Whether a value is an array that a tensor can stand for."""
    return (
        numpy is not None
        and type(value) is numpy.ndarray
        and value.ndim > 0
        and value.dtype.char in DTYPES
        and value.dtype.isnative
        and bool(value.flags.writeable)
        and all(stride >= 0 and stride % value.itemsize == 0 for stride in value.strides)
    )


def is_dtype(value: Any) -> bool:
    """Whether a value is one of NumPy's descriptions of types."""
    return numpy is not None and isinstance(value, numpy.dtype)


def is_scalar(value: Any) -> bool:
    """Whether a value is one of NumPy's numbers."""
    return numpy is not None and isinstance(value, (numpy.number, numpy.bool_))


def tensor_of(value: Any) -> torch.Tensor:
    """The tensor over the array's memory."""
    return torch.from_numpy(value)


def wrapped(tensor: Any) -> Any:
    """The trace's array over an abstract tensor."""
    kind = torch_numpy().ndarray
    made = kind.__new__(kind)
    made.tensor = tensor
    return made
