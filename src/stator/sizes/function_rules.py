"""Torch functions on meta tensors with symbolic sizes that C++ takes apart before any dispatch mode sees them.

Contract. `symbolic_shapes()` is what callers enter around a call of torch functions on symbolic meta tensors:
operators go through `meta_rules`, and the functions named here are taken at their Python entry, because what C++
does before it dispatches asks of each size whether it is 0 or 1 (`reshape`, `linear`, `matmul`), or takes concrete
sizes only. Results, aliasing and errors are torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from stator.sizes import shapes
from stator.sizes.meta_rules import SymbolicMeta, refuses_symbols, specialised, symbols_in

# Seen on 2.11 and 2.13: before, the C++ of batched products asks for each size as a plain integer.
_MATMUL_TAKES_SYMBOLS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def _reshape(x: torch.Tensor, *shape: Any, **named: Any) -> torch.Tensor:
    sizes = named.get("shape", shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
    new = shapes.infer_size(list(sizes), shapes.numel(x.shape))
    if shapes.view_strides(list(x.shape), list(x.stride()), new) is not None:
        return x.view(new)
    return x.clone(memory_format=torch.contiguous_format).view(new)


def _flatten(x: torch.Tensor, start_dim: int = 0, end_dim: int = -1) -> torch.Tensor:
    rank = x.dim()
    if not rank:
        return _reshape(x, 1)
    for dim in (start_dim, end_dim):
        if not isinstance(dim, int) or not -rank <= dim < rank:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
            )
    start, end = start_dim % rank, end_dim % rank
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if start == end:
        return x
    return _reshape(x, *x.shape[:start], shapes.numel(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    context = symbols_in((x, y), {})
    if context is None:
        return torch.matmul(x, y)
    with context.presuming():
        return torch.matmul(x, y) if _MATMUL_TAKES_SYMBOLS or max(x.dim(), y.dim()) < 3 else _batched_product(x, y)


def _batched_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`matmul` where one argument has three dimensions or more."""
    if y.dim() <= 2:
        flat = _reshape(x, -1, x.shape[-1]).matmul(y)
        return flat.view(*x.shape[:-1], *y.shape[1:])
    if x.dim() == 1:
        return _batched_product(x.unsqueeze(0), y).squeeze(-2)
    if x.dim() == 2 and _folds(y.mT):
        return _batched_product(y.mT, x.t()).mT
    lead = shapes.broadcast([x.shape[:-2], y.shape[:-2]])
    count = shapes.numel(lead)
    left, right = (_reshape(part.expand(*lead, *part.shape[-2:]), count, *part.shape[-2:]) for part in (x, y))
    return torch.bmm(left, right).view(*lead, x.shape[-2], y.shape[-1])


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    product = _matmul(x, weight.t())
    return product if bias is None else product + bias


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **named: Any) -> torch.Tensor:
    """The shape and layout of attention by products, which is what the meta device runs."""
    if named.get("enable_gqa"):
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    return _matmul(_matmul(query, key.mT), value)


def _folds(x: torch.Tensor) -> bool:
    """Whether all dimensions but the last are one without a copy."""
    sizes, strides = x.shape, x.stride()
    return all(shapes.equal(strides[i], strides[i + 1] * sizes[i + 1]) for i in range(x.dim() - 2))


def _chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    """Pieces of a length that is a formula: guarded is how many there are, as the example has it."""
    length = x.shape[dim]
    hint = length.node.hint if isinstance(length, torch.SymInt) else None
    if not hint or not isinstance(chunks, int) or chunks < 1:
        return torch.chunk(x, chunks, dim)
    piece = (length + (chunks - 1)) // chunks
    count = -(-hint // -(-hint // chunks))
    if not (count - 1) * piece < length or not count * piece >= length:
        return torch.chunk(x, chunks, dim)
    rest = length - (count - 1) * piece
    return tuple(x.narrow(dim, place * piece, piece if place < count - 1 else rest) for place in range(count))


# function -> what to call instead
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.reshape: _reshape,
    torch.Tensor.reshape: _reshape,
    torch.chunk: _chunk,
    torch.Tensor.chunk: _chunk,
    torch.flatten: _flatten,
    torch.Tensor.flatten: _flatten,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.__rmatmul__: lambda x, y: _matmul(y, x),
}
if not _MATMUL_TAKES_SYMBOLS:
    FUNCTIONS |= {F.linear: _linear, F.scaled_dot_product_attention: _attention}

# Functions whose outcome is the same formula for every size and whose results are fresh tensors (see PRESUMING).
PRESUMING_FUNCTIONS = frozenset(
    {
        F.linear,
        F.scaled_dot_product_attention,
        F.dropout,
        torch.einsum,
    }
)


class SymbolicFunctions(TorchFunctionMode):
    """Applies the tables above."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        context = symbols_in(args, kwargs)
        if context is None:
            return func(*args, **kwargs)
        rule = FUNCTIONS.get(func)
        if rule is not None:
            return rule(*args, **kwargs)
        if func in PRESUMING_FUNCTIONS:
            with context.presuming():
                return func(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not refuses_symbols(error):
                raise
        return func(*specialised(_name(func), args), **specialised(_name(func), kwargs))


def _name(function: Any) -> str:
    return getattr(function, "__name__", str(function))


@contextlib.contextmanager
def symbolic_shapes() -> Iterator[None]:
    """Inside, torch functions on meta tensors with symbolic sizes compute shapes."""
    with SymbolicMeta(), SymbolicFunctions():
        yield
