"""What an operation gives, in abstract: by a shape rule of our own where there is one, else by torch's own kernels
on stand-ins.

Contract. `compute(function, args, kwargs)` takes what a program passes to a torch function, with abstract tensors
where tensors stand, and returns what it would return, with abstract tensors again. An exception is what torch
itself raises for these arguments. A result that is one of the arguments (in-place operations) is that very abstract
tensor; a view knows its base. No data is touched and no random numbers are drawn.

Rules (`tensors/rules.py`) answer the hot operations in microseconds; they return NotImplemented when a case is not
plainly theirs. Everything else runs on *twins* (`tensors/twins.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from stator.tensors import rules, twins
from stator.tensors.abstract import AbstractTensor, is_leaf

Tree = Any


class Uninitialised(Exception):
    """A parameter of a lazy module has no shape before the module is called."""


def map_leaves(value: Tree, convert: Callable[[Any], Any]) -> Tree:
    """`value` with every non-container replaced; containers keep their exact kinds, unchanged ones their identity."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([map_leaves(part, convert) for part in value])
    if kind is dict:
        return {key: map_leaves(part, convert) for key, part in value.items()}
    if kind is slice:
        return slice(convert(value.start), convert(value.stop), convert(value.step))
    if isinstance(value, tuple) and kind is not torch.Size:
        parts = [map_leaves(part, convert) for part in value]
        if hasattr(kind, "_fields"):
            return kind(*parts)
        return kind(parts)
    return convert(value)


def leaves_of(value: Tree) -> list[Any]:
    """Every non-container in `value`, in order."""
    found: list[Any] = []

    def collect(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_leaves(value, collect)
    return found


def compute(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
    """The abstract result of `function(*args, **kwargs)`."""
    rule = rules.RULES.get(function)
    if rule is not None and not twins.needs_exact():
        try:
            result = rule(*args, **kwargs)
        except (TypeError, IndexError, AttributeError, ValueError, RuntimeError):
            result = NotImplemented  # not a shape of call the rule knows; torch says what is wrong, if anything
        if result is not NotImplemented:
            return result
    return twins.run(function, args, kwargs, map_leaves)


def from_real(tensor: torch.Tensor) -> AbstractTensor:
    """The abstract tensor of an input."""
    if type(tensor) in (UninitializedParameter, UninitializedBuffer):
        raise Uninitialised
    if tensor.is_nested:  # it has no sizes to speak of
        nothing, kind = torch.Size(()), type(tensor)
        abstract = AbstractTensor(nothing, (), tensor.dtype, tensor.device, tensor.requires_grad, kind=kind)
        abstract.layout, abstract.real = torch.jagged, tensor
        return abstract
    strided = tensor.layout is torch.strided
    abstract = AbstractTensor(
        tensor.shape,
        tensor.stride() if strided else (),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        is_leaf(tensor, otherwise=True),
        tensor.storage_offset() if strided else 0,
        tensor.layout,
        type(tensor),
    )
    abstract.real = tensor
    return abstract
