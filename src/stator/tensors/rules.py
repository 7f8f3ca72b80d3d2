"""Shape rules for the hot torch functions: what they return, without asking torch.

Contract. A rule is called like the function and returns an `AbstractTensor` (or a tuple of them), or NotImplemented
when the case is not plainly its own (odd layouts, wrong arguments, out=, subclasses): the twins decide then. A rule
never raises for the user. Tests compare each rule with the twins over OpInfo samples.

The rows group functions by family; `RULES` maps every spelling (torch.f, Tensor.f, operator.f) to the rule.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from stator.sizes import shapes
from stator.tensors.abstract import AbstractTensor, contiguous_strides

RULES: dict[Any, Callable[..., Any]] = {}

FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})


def result(
    shape: Any, dtype: torch.dtype, like: AbstractTensor, grad_from: tuple[Any, ...], strides: Any = None
) -> AbstractTensor:
    """A fresh contiguous result on `like`'s device that requires grad if one of `grad_from` does."""
    requires = False
    if dtype.is_floating_point or dtype.is_complex:
        for tensor in grad_from:
            if type(tensor) is AbstractTensor and tensor.requires_grad:
                requires = torch.is_grad_enabled()
                break
    size = torch.Size(shape)
    return AbstractTensor(
        size, contiguous_strides(size) if strides is None else strides, dtype, like.device, requires, not requires
    )


def plain(tensor: Any) -> bool:
    """An abstract strided tensor whose class has no behaviour of its own."""
    return (
        type(tensor) is AbstractTensor
        and tensor.layout is torch.strided
        and (tensor.kind is torch.Tensor or tensor.kind is torch.nn.Parameter)
    )


def is_contiguous(tensor: AbstractTensor) -> bool:
    if tensor.is_symbolic():
        return shapes.is_contiguous(tensor.shape, tensor.strides)
    return tensor.strides == contiguous_strides(tensor.shape)


def is_dense(tensor: AbstractTensor) -> bool:
    """Non-overlapping and dense: elementwise results keep such strides."""
    if is_contiguous(tensor):
        return True
    if tensor.is_symbolic():
        return shapes.dense_strides(tensor.shape, tensor.strides)
    expected = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected = expected * size
    return True


def _unary(keep_integers: bool, boolean: bool = False) -> Callable[..., Any]:
    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not plain(x) or any(type(extra) is AbstractTensor for extra in args) or kwargs.get("out") is not None:
            return NotImplemented
        if kwargs.get("dtype") is not None or kwargs.get("inplace") or args:
            return NotImplemented
        if not is_contiguous(x) and not (is_dense(x) and len(x.shape) > 1):
            return NotImplemented
        dtype = x.dtype
        if boolean:
            dtype = torch.bool
        elif dtype in COMPLEX:
            return NotImplemented
        elif not keep_integers and dtype not in FLOATING:
            dtype = torch.get_default_dtype()
        return result(x.shape, dtype, x, (x,), None if is_contiguous(x) else x.strides)

    return rule


UNARY_FLOAT = [
    "sin",
    "cos",
    "tan",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "tanh",
    "sigmoid",
    "sqrt",
    "rsqrt",
    "erf",
    "erfc",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
]
UNARY_SAME = ["neg", "abs", "relu", "floor", "ceil", "trunc", "square", "clone", "detach_none"]
UNARY_BOOL = ["isnan", "isinf", "isfinite", "logical_not"]


def _register(name: str, rule: Callable[..., Any], *more: Any) -> None:
    for owner in (torch, torch.Tensor):
        function = getattr(owner, name, None)
        if function is not None:
            RULES[function] = rule
    for function in more:
        RULES[function] = rule


for _name in UNARY_FLOAT:
    _register(_name, _unary(False))
for _name in UNARY_SAME:
    _register(_name, _unary(True))
for _name in UNARY_BOOL:
    _register(_name, _unary(True, boolean=True))
_register("neg", _unary(True), operator.neg, torch.Tensor.__neg__)
for _function in (F.relu, F.silu, F.gelu, torch._C._nn.gelu):
    RULES[_function] = _unary(True)


def _category(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    if dtype in FLOATING:
        return 2
    if dtype in COMPLEX:
        return 3
    return 1


_SCALARS = {bool: (torch.bool, 0), int: (torch.int64, 1), float: (None, 2)}


def promote(operands: tuple[Any, ...]) -> torch.dtype | None:
    """The result type of an elementwise operation: tensors with dimensions, then without, then Python numbers."""
    levels: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if type(operand) is AbstractTensor:
            level, dtype = (0 if operand.shape else 1), operand.dtype
        elif type(operand) in _SCALARS:
            level, dtype = 2, _SCALARS[type(operand)][0] or torch.get_default_dtype()
        else:
            return None
        previous = levels[level]
        levels[level] = dtype if previous is None else torch.promote_types(previous, dtype)
    best: torch.dtype | None = None
    for candidate in levels:
        if candidate is None:
            continue
        if best is None:
            best = candidate
        elif _category(candidate) > _category(best):
            best = torch.promote_types(best, candidate)
            if _category(candidate) == 2:
                best = candidate
    return best


def broadcast(left: Any, right: Any) -> Any:
    """The broadcast shape of two, or None when they do not fit."""
    if shapes.context_of((*left, *right)) is not None:
        try:
            return torch.Size(shapes.broadcast([left, right]))
        except RuntimeError:
            return None
    if left == right:
        return left
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    sizes = list(longer)
    offset = len(longer) - len(shorter)
    for position, size in enumerate(shorter):
        other = sizes[offset + position]
        if other == size or size == 1:
            continue
        if other != 1:
            return None
        sizes[offset + position] = size
    return torch.Size(sizes)


def _binary(kind: str) -> Callable[..., Any]:
    def rule(x: Any, y: Any, **kwargs: Any) -> Any:
        if kwargs and (set(kwargs) != {"alpha"}):
            return NotImplemented
        tensors = tuple(operand for operand in (x, y) if type(operand) is AbstractTensor)
        if not all(plain(tensor) and is_contiguous(tensor) for tensor in tensors):
            return NotImplemented
        dtype = promote((x, y))
        if dtype is None or dtype in COMPLEX:
            return NotImplemented
        if kind == "compare":
            dtype = torch.bool
        elif kind == "divide" and dtype not in FLOATING:
            dtype = torch.get_default_dtype()
        elif (kind == "arithmetic" and dtype is torch.bool) or (kind == "bits" and dtype in FLOATING):
            return NotImplemented
        if len(tensors) == 1:
            return result(tensors[0].shape, dtype, tensors[0], tensors)
        if x.device != y.device and x.shape and y.shape:
            return NotImplemented
        shape = broadcast(x.shape, y.shape)
        if shape is None:
            return NotImplemented
        if len(x.shape) != len(y.shape) and not (is_contiguous(x) and is_contiguous(y)):
            return NotImplemented
        return result(shape, dtype, x if x.shape else y, tensors)

    return rule


_KINDS = {
    "arithmetic": "add sub mul",
    "divide": "truediv",
    "compare": "eq ne lt le gt ge",
    "bits": "and_ or_ xor",
}
for _kind, _names in _KINDS.items():
    for _name in _names.split():
        _rule = _binary(_kind)
        _dunder = f"__{_name.rstrip('_')}__"
        RULES[getattr(operator, _name)] = _rule
        RULES[getattr(torch.Tensor, _dunder)] = _rule
        if _kind in ("arithmetic", "compare"):
            _register(_name, _rule)
_register("div", _binary("divide"))
_register("maximum", _binary("arithmetic"))
_register("minimum", _binary("arithmetic"))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if not plain(x) or not plain(weight) or (bias is not None and not plain(bias)):
        return NotImplemented
    if x.dtype != weight.dtype or len(weight.shape) != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
        return NotImplemented
    if bias is not None and (bias.dtype != x.dtype or tuple(bias.shape) != (weight.shape[0],)):
        return NotImplemented
    if not is_contiguous(x) or x.device != weight.device:
        return NotImplemented
    return result((*x.shape[:-1], weight.shape[0]), x.dtype, x, (x, weight, bias))


RULES[F.linear] = _linear
RULES[torch._C._nn.linear] = _linear


def _layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if not plain(x) or not is_contiguous(x):
        return NotImplemented
    shape = tuple(normalized_shape)
    if tuple(x.shape[len(x.shape) - len(shape) :]) != shape or x.dtype not in FLOATING:
        return NotImplemented
    for part in (weight, bias):
        if part is not None and (not plain(part) or part.dtype != x.dtype or tuple(part.shape) != shape):
            return NotImplemented
    return result(x.shape, x.dtype, x, (x, weight, bias))


RULES[F.layer_norm] = _layer_norm
RULES[torch.layer_norm] = _layer_norm


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return _layer_norm(x, normalized_shape, weight)


RULES[F.rms_norm] = _rms_norm


def _embedding(ids: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *rest: Any) -> Any:
    if not plain(ids) or not plain(weight) or max_norm is not None or len(weight.shape) != 2:
        return NotImplemented
    if ids.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return result((*ids.shape, weight.shape[1]), weight.dtype, weight, (weight,))


RULES[F.embedding] = _embedding


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not plain(x) or inplace or not is_contiguous(x) or not 0 <= p <= 1:
        return NotImplemented
    if not training:
        return NotImplemented  # an alias or a copy, by torch's own rules
    return result(x.shape, x.dtype, x, (x,))


RULES[F.dropout] = _dropout


def _softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if not plain(x) or not is_contiguous(x) or type(dim) is not int or x.dtype not in FLOATING:
        return NotImplemented
    if not -len(x.shape) <= dim < len(x.shape):
        return NotImplemented
    return result(x.shape, dtype or x.dtype, x, (x,))


RULES[F.softmax] = _softmax
RULES[F.log_softmax] = _softmax


def _softmax_method(x: Any, dim: Any, dtype: Any = None) -> Any:
    return _softmax(x, dim, 3, dtype)


for _name in ("softmax", "log_softmax"):
    _register(_name, _softmax_method)


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
    if not all(plain(part) and len(part.shape) == 4 for part in (query, key, value)):
        return NotImplemented
    if query.device.type != "cpu" or (attn_mask is not None and not plain(attn_mask)):
        return NotImplemented
    return NotImplemented


RULES[F.scaled_dot_product_attention] = _attention


def _reduction(floats: bool) -> Callable[..., Any]:
    def rule(x: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        if not plain(x) or not is_contiguous(x) or kwargs or (floats and x.dtype not in FLOATING):
            return NotImplemented
        rank = len(x.shape)
        dims = range(rank) if dim is None else ((dim,) if type(dim) is int else tuple(dim))
        if any(type(one) is not int or not -rank <= one < rank for one in dims) or (dim is not None and not dims):
            return NotImplemented
        reduced = {one % rank for one in dims}
        if len(reduced) != len(list(dims)):
            return NotImplemented
        shape = [
            1 if position in reduced else size
            for position, size in enumerate(x.shape)
            if keepdim or position not in reduced
        ]
        dtype = x.dtype if x.dtype in FLOATING or x.dtype in COMPLEX else torch.int64
        return result(shape, dtype, x, (x,))

    return rule


_register("mean", _reduction(True))
_register("sum", _reduction(False))


def _pow(x: Any, exponent: Any) -> Any:
    if not plain(x) or x.dtype not in FLOATING or type(exponent) not in (int, float) or not is_contiguous(x):
        return NotImplemented
    return result(x.shape, x.dtype, x, (x,))


_register("pow", _pow, operator.pow, torch.Tensor.__pow__)


def _matmul(x: Any, y: Any) -> Any:
    if not plain(x) or not plain(y) or x.dtype != y.dtype or len(x.shape) < 2 or len(y.shape) < 2:
        return NotImplemented
    if x.shape[-1] != y.shape[-2] or x.device != y.device:
        return NotImplemented
    batch = broadcast(x.shape[:-2], y.shape[:-2])
    if batch is None or (len(x.shape) > 2 and len(y.shape) == 2 and not is_contiguous(x)):
        return NotImplemented
    if len(x.shape) == 2 and len(y.shape) > 2:
        return NotImplemented
    return result((*batch, x.shape[-2], y.shape[-1]), x.dtype, x, (x, y))


_register("matmul", _matmul, operator.matmul, torch.Tensor.__matmul__)
