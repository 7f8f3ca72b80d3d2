"""Shape rules for the hot ATen operators: what they return, without asking torch's meta kernels.

Contract. A rule is called like the operator, on abstract tensors, and returns abstract tensors, or NotImplemented when
the case is not plainly its own; the meta kernel decides then, and words the error if there is one. A rule never
raises for the user. `RULES` maps operators to rules; each row is tested against the meta kernel over OpInfo
samples (tests/aot/test_rules.py). Sizes may be symbolic; comparing them guards, as in torch.

Why: torch's Python meta kernels take 50-150 µs for a pointwise operator, a rule takes one to two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.aot.abstract import _RULES, AbstractTensor, contiguous_strides, fresh, view_of
from stator.aot.pointwise import broadcast, is_dense, layout_of, promote, same_device

aten = torch.ops.aten
RULES = _RULES
Rule = Callable[..., Any]


def _rule(*ops: Any) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for op in ops:
            RULES[op] = rule
        return rule

    return register


# --- pointwise ---------------------------------------------------------------------------------------------------
# Result dtype: `same` as promoted, `float` for integers promoted to the default dtype, `bool`.
POINTWISE: dict[str, str] = {
    "same": """
        abs neg relu square ceil floor round trunc sign positive conj_physical clamp clamp_min clamp_max hardtanh
        add sub rsub mul minimum maximum fmod remainder bitwise_and bitwise_or bitwise_xor bitwise_not fmax fmin
        gelu silu elu leaky_relu mish hardswish hardsigmoid softplus log_sigmoid_backward addcmul addcdiv
        threshold gelu_backward silu_backward leaky_relu_backward tanh_backward sigmoid_backward
        hardtanh_backward threshold_backward softplus_backward elu_backward hardswish_backward pow lerp
    """,
    "float": """
        sin cos tan asin acos atan sinh cosh tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid erf
        erfc erfinv lgamma digamma atan2 asinh acosh atanh sinc
    """,
    "bool": """
        eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf signbit isposinf isneginf
    """,
}
# Arguments that take no part in type promotion.
_NOT_PROMOTED = frozenset({"alpha", "rounding_mode", "approximate", "value"})


def _pointwise_rule(kind: str) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in _NOT_PROMOTED:
                return NotImplemented
        tensors = [value for value in args if type(value) is AbstractTensor]
        device = same_device(tensors)
        if device is None:
            return NotImplemented
        dtype = promote(args, kind)
        if dtype is None:
            return NotImplemented
        found = layout_of(tensors)
        if found is None:
            return NotImplemented
        return fresh(found[0], dtype, device, found[1])

    return rule


def _inplace_rule(kind: str) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in _NOT_PROMOTED:
                return NotImplemented
        target = args[0]
        tensors = [value for value in args if type(value) is AbstractTensor]
        if same_device(tensors) is None:
            return NotImplemented
        dtype = promote(args, kind)
        if dtype is None or not (dtype is target.dtype or torch.can_cast(dtype, target.dtype)):
            return NotImplemented
        shape = target.shape
        for tensor in tensors[1:]:
            if tensor.shape != shape and broadcast([tensor.shape, shape]) != tuple(shape):
                return NotImplemented
        target.constant = None
        return target

    return rule


_SCALAR_ONLY_FIRST = frozenset({"gelu_backward", "threshold_backward"})


def _register_pointwise() -> None:
    for kind, names in POINTWISE.items():
        rule, inplace = _pointwise_rule(kind), _inplace_rule(kind)
        for name in names.split():
            for spelling, chosen in ((name, rule), (name + "_", inplace)):
                operators = getattr(aten, spelling, None)
                if operators is None:
                    continue
                for overload in operators.overloads():
                    schema = getattr(operators, overload)._schema
                    numbers = [item for item in schema.arguments if str(item.type) in ("number", "Optional[number]")]
                    plain = all(_promotes_plainly(name, item) for item in numbers)
                    if plain and "out" not in overload and str(schema.returns[0].type) == "Tensor":
                        RULES[getattr(operators, overload)] = chosen


def _promotes_plainly(name: str, item: Any) -> bool:
    """Whether a number argument takes part in promotion exactly as a Python number in an expression would."""
    return item.name in ("other", "exponent", "self", "min", "max", "alpha", "value") or name in _NUMBERS_ASIDE


# Operators whose number arguments leave the dtype alone.
_NUMBERS_ASIDE = frozenset(
    """
    threshold threshold_backward leaky_relu leaky_relu_backward elu elu_backward hardtanh hardtanh_backward softplus
    softplus_backward lerp
    """.split()
)


@_rule(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def _divide(*args: Any, **kwargs: Any) -> Any:
    return _pointwise_rule("float")(*args, **kwargs)


@_rule(aten.where.self)
def _where(condition: Any, first: Any, second: Any) -> Any:
    tensors = [value for value in (condition, first, second) if type(value) is AbstractTensor]
    device = same_device(tensors)
    dtype = promote((first, second), "same")
    if device is None or dtype is None or len(tensors) != 3 or condition.dtype is not torch.bool:
        return NotImplemented
    found = layout_of(tensors)
    return NotImplemented if found is None else fresh(found[0], dtype, device, found[1])


@_rule(aten.masked_fill.Scalar)
def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    if x.device != mask.device or mask.dtype is not torch.bool or isinstance(value, complex):
        return NotImplemented
    if tuple(x.shape) != broadcast([x.shape, mask.shape]) or not x.is_contiguous():
        return NotImplemented
    return fresh(x.shape, x.dtype, x.device)


@_rule(aten.copy_.default)
def _copy_in_place(target: Any, source: Any, non_blocking: bool = False) -> Any:
    if target.shape != source.shape and broadcast([target.shape, source.shape]) != tuple(target.shape):
        return NotImplemented
    target.constant = None
    return target


@_rule(aten.fill_.Scalar, aten.zero_.default)
def _fill_in_place(target: Any, value: Any = 0) -> Any:
    target.constant = None
    return target


# --- copies and factories ----------------------------------------------------------------------------------------
def _like_strides(x: AbstractTensor, memory_format: Any) -> Any:
    """Strides of a new tensor shaped like `x`; None where torch's own rule is not plain."""
    if memory_format is torch.contiguous_format or (
        memory_format in (None, torch.preserve_format) and x.is_contiguous()
    ):
        return contiguous_strides(x.shape)
    if memory_format in (None, torch.preserve_format):
        found = layout_of([x])
        if found is not None and is_dense(x.shape, x.stride()):
            return x.stride()
        return None if found is None else found[1]
    return None


@_rule(aten.clone.default)
def _clone(x: Any, memory_format: Any = None) -> Any:
    strides = _like_strides(x, memory_format)
    return NotImplemented if strides is None else fresh(x.shape, x.dtype, x.device, strides)


@_rule(aten._to_copy.default)
def _to_copy(
    x: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    strides = _like_strides(x, memory_format)
    if strides is None:
        return NotImplemented
    return fresh(x.shape, dtype or x.dtype, x.device if device is None else torch.device(device), strides)


@_rule(
    aten.empty_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
)
def _new_like(
    x: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    return _to_copy(x, dtype, layout, device, pin_memory, False, memory_format)


@_rule(aten.full_like.default)
def _full_like(
    x: Any,
    value: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    return _to_copy(x, dtype, layout, device, pin_memory, False, memory_format)


def _asked_device(device: Any) -> torch.device:
    return torch.device("cpu") if device is None else torch.device(device)


@_rule(aten.empty.memory_format, aten.zeros.default, aten.ones.default)
def _factory(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
    names: Any = None,
) -> Any:
    if layout not in (None, torch.strided) or memory_format not in (None, torch.contiguous_format) or names:
        return NotImplemented
    if any(isinstance(length, int) and length < 0 for length in size):
        return NotImplemented
    return fresh(size, dtype or torch.get_default_dtype(), _asked_device(device))


@_rule(aten.full.default)
def _full(
    size: Any, value: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    if dtype is None:
        kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
        dtype = kinds.get(type(value))
        if dtype is None:
            return NotImplemented
    return _factory(size, dtype, layout, device, pin_memory)


@_rule(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default)
def _new(x: Any, size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    return _factory(size, dtype or x.dtype, layout, x.device if device is None else device, pin_memory)


@_rule(aten.new_empty_strided.default)
def _new_strided(
    x: Any, size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    if layout not in (None, torch.strided):
        return NotImplemented
    return fresh(size, dtype or x.dtype, x.device if device is None else torch.device(device), stride)


@_rule(aten.empty_strided.default)
def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    if layout not in (None, torch.strided):
        return NotImplemented
    return fresh(size, dtype or torch.get_default_dtype(), _asked_device(device), stride)


# --- matrix products ---------------------------------------------------------------------------------------------
def _matrices_agree(*tensors: AbstractTensor) -> bool:
    first = tensors[0]
    return all(tensor.dtype is first.dtype and tensor.device == first.device for tensor in tensors)


@_rule(aten.mm.default)
def _mm(a: Any, b: Any) -> Any:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not _matrices_agree(a, b):
        return NotImplemented
    return fresh((a.shape[0], b.shape[1]), a.dtype, a.device)


@_rule(aten.addmm.default)
def _addmm(c: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not _matrices_agree(a, b, c):
        return NotImplemented
    size = (a.shape[0], b.shape[1])
    if broadcast([c.shape, size]) != size:
        return NotImplemented
    return fresh(size, a.dtype, a.device)


@_rule(aten.bmm.default)
def _bmm(a: Any, b: Any) -> Any:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        return NotImplemented
    if not _matrices_agree(a, b):
        return NotImplemented
    return fresh((a.shape[0], a.shape[1], b.shape[2]), a.dtype, a.device)


# --- reductions --------------------------------------------------------------------------------------------------
def _reduced(x: AbstractTensor, dims: Any, keepdim: bool) -> tuple[Any, ...] | None:
    rank = x.dim()
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        axes = set(range(rank))
    else:
        listed = [dims] if isinstance(dims, int) else list(dims)
        if any(not -rank <= axis < rank for axis in listed) or rank == 0:
            return None
        axes = {axis % rank for axis in listed}
        if len(axes) != len(listed):
            return None
    if keepdim:
        return tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
    return tuple(length for axis, length in enumerate(x.shape) if axis not in axes)


@_rule(aten.sum.dim_IntList)
def _sum(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    size = _reduced(x, dim, keepdim)
    if size is None or not x.is_contiguous():
        return NotImplemented
    small = not x.dtype.is_floating_point and not x.dtype.is_complex
    return fresh(size, dtype or (torch.int64 if small else x.dtype), x.device)


@_rule(aten.sum.default)
def _sum_all(x: Any, dtype: Any = None) -> Any:
    small = not x.dtype.is_floating_point and not x.dtype.is_complex
    return fresh((), dtype or (torch.int64 if small else x.dtype), x.device)


@_rule(aten.mean.dim)
def _mean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    size = _reduced(x, dim, keepdim)
    if size is None or not x.is_contiguous() or dtype is not None or not x.dtype.is_floating_point:
        return NotImplemented
    return fresh(size, x.dtype, x.device)


@_rule(aten.mean.default)
def _mean_all(x: Any, dtype: Any = None) -> Any:
    if dtype is not None or not x.dtype.is_floating_point:
        return NotImplemented
    return fresh((), x.dtype, x.device)


@_rule(aten.amax.default, aten.amin.default)
def _extreme(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    size = _reduced(x, dim, keepdim)
    if size is None or not x.is_contiguous() or any(not isinstance(n, int) or n == 0 for n in x.shape):
        return NotImplemented
    return fresh(size, x.dtype, x.device)


@_rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if half_to_float or not x.dtype.is_floating_point or not x.is_contiguous():
        return NotImplemented
    if not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return NotImplemented
    return fresh(x.shape, x.dtype, x.device)


@_rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(gradient: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    if gradient.shape != output.shape or gradient.dtype is not input_dtype or output.dtype is not input_dtype:
        return NotImplemented
    if not gradient.is_contiguous() or not output.is_contiguous():
        return NotImplemented
    return fresh(gradient.shape, input_dtype, gradient.device)


# --- normalisation, dropout, embedding, loss ---------------------------------------------------------------------
@_rule(aten.native_layer_norm.default)
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


@_rule(aten.native_layer_norm_backward.default)
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


@_rule(aten.native_dropout.default)
def _dropout(x: Any, p: float, train: Any) -> Any:
    if not x.is_contiguous() or not train:
        return NotImplemented
    return (fresh(x.shape, x.dtype, x.device), fresh(x.shape, torch.bool, x.device))


@_rule(aten.embedding.default)
def _embedding(
    weight: Any, indices: Any, padding_idx: Any = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32) or weight.device != indices.device:
        return NotImplemented
    return fresh((*indices.shape, weight.shape[1]), weight.dtype, weight.device)


@_rule(aten.embedding_dense_backward.default)
def _embedding_backward(gradient: Any, indices: Any, rows: Any, padding_idx: Any, scale: bool) -> Any:
    if gradient.device != indices.device:
        return NotImplemented
    return fresh((rows, gradient.shape[-1]), gradient.dtype, gradient.device)


@_rule(
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


@_rule(aten._linalg_svd.default)
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


@_rule(aten.linalg_eig.default)
def _eig(x: Any) -> Any:
    if x.device.type != "cpu" or x.dim() < 2 or not all(isinstance(length, int) for length in x.shape):
        return NotImplemented
    if x.shape[-1] != x.shape[-2]:
        return NotImplemented
    dtype = x.dtype.to_complex()
    return fresh(x.shape[:-1], dtype, x.device), fresh(x.shape, dtype, x.device, _columns_first(x.shape))


@_rule(aten._native_batch_norm_legit_functional.default)
def _batch_norm_in_evaluation(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    if training or x.device.type != "cpu" or x.dim() < 2:
        return NotImplemented
    layout = _like_strides(x, None)
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
@_rule(aten.cat.default)
def _cat(tensors: Any, dim: int = 0) -> Any:
    first = tensors[0]
    rank = first.dim()
    if rank == 0 or not -rank <= dim < rank or not _matrices_agree(*tensors):
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


# --- foreach -----------------------------------------------------------------------------------------------------
def _foreach_in_place(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    for tensor in tensors:
        tensor.constant = None
    return None


def _foreach_like(kind: str) -> Rule:
    def rule(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        made = []
        lists = [value for value in args if type(value) in (list, tuple) and len(value) == len(tensors)]
        loose = [value for value in args if type(value) not in (list, tuple)]
        # A number for all in a tensor of no dimension takes part; numbers in a vector (one each) do not.
        shared = [value for value in loose if type(value) is AbstractTensor and value.dim() == 0]
        for place, tensor in enumerate(tensors):
            operands = [tensor, *(items[place] for items in lists), *shared]
            parts = [value for value in operands if type(value) is AbstractTensor]
            dtype = promote((*operands, *(value for value in loose if isinstance(value, (int, float)))), kind)
            found, device = layout_of(parts), same_device(parts)
            if dtype is None or found is None or device is None:
                return NotImplemented
            made.append(fresh(found[0], dtype, device, found[1]))
        return made

    return rule


def _register_foreach() -> None:
    families = {
        "same": "add sub mul neg abs addcmul addcdiv lerp maximum minimum clamp_min clamp_max pow sign",
        "float": "div sqrt rsqrt reciprocal exp log sigmoid tanh",
    }
    for kind, names in families.items():
        for name in names.split():
            for spelling, rule in ((name, _foreach_like(kind)), (name + "_", _foreach_in_place)):
                operators = getattr(aten, "_foreach_" + spelling, None)
                for overload in () if operators is None else operators.overloads():
                    if "out" not in overload and not overload.startswith("ScalarAnd"):
                        RULES[getattr(operators, overload)] = rule


# --- views -------------------------------------------------------------------------------------------------------
@_rule(aten.detach.default, aten.alias.default)
def _alias(x: Any) -> Any:
    made = view_of(x, x.shape, x.stride())
    made.constant = x.constant
    return made


@_rule(aten.permute.default)
def _permute(x: Any, dims: Sequence[int]) -> Any:
    rank, size, stride = x.dim(), x.shape, x.stride()
    if len(dims) != rank or len({axis % rank if rank else axis for axis in dims}) != rank:
        return NotImplemented
    return view_of(x, [size[axis] for axis in dims], [stride[axis] for axis in dims])


@_rule(aten.transpose.int)
def _transpose(x: Any, first: int, second: int) -> Any:
    rank = x.dim()
    if rank == 0 or not (-rank <= first < rank and -rank <= second < rank):
        return NotImplemented
    size, stride = list(x.shape), list(x.stride())
    size[first], size[second] = size[second], size[first]
    stride[first], stride[second] = stride[second], stride[first]
    return view_of(x, size, stride)


@_rule(aten.t.default)
def _t(x: Any) -> Any:
    if x.dim() != 2:
        return NotImplemented
    return view_of(x, x.shape[::-1], x.stride()[::-1])


@_rule(aten.unsqueeze.default)
def _unsqueeze(x: Any, dim: int) -> Any:
    rank = x.dim()
    if not -rank - 1 <= dim <= rank:
        return NotImplemented
    axis = dim % (rank + 1)
    size, stride = list(x.shape), list(x.stride())
    step = 1 if axis >= rank else size[axis] * stride[axis]
    size.insert(axis, 1)
    stride.insert(axis, step)
    return view_of(x, size, stride)


@_rule(aten.squeeze.dim)
def _squeeze(x: Any, dim: int) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank:
        return NotImplemented
    axis = dim % rank
    size, stride = list(x.shape), list(x.stride())
    if size[axis] == 1:
        del size[axis], stride[axis]
    return view_of(x, size, stride)


@_rule(aten.expand.default)
def _expand(x: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    extra = len(size) - x.dim()
    if extra < 0:
        return NotImplemented
    sizes: list[Any] = []
    strides: list[Any] = []
    for axis in range(len(size)):
        wanted = size[axis]
        if axis < extra:
            if isinstance(wanted, int) and wanted < 0:
                return NotImplemented
            step = _leading_stride(x, size, extra, axis)
            sizes.append(wanted)
            strides.append(step)
            continue
        have, step = x.shape[axis - extra], x.stride()[axis - extra]
        if isinstance(wanted, int) and wanted == -1:
            wanted = have
        if have != wanted:
            if have != 1:
                return NotImplemented
            step = 0
        sizes.append(wanted)
        strides.append(step)
    return view_of(x, sizes, strides)


def _leading_stride(x: AbstractTensor, size: Sequence[Any], extra: int, axis: int) -> Any:
    """Stride of a dimension that expand adds in front: 0, or what a dimension of size 1 would have."""
    if size[axis] != 1:
        return 0
    if axis + 1 < extra:
        following: Any = size[axis + 1] * _leading_stride(x, size, extra, axis + 1)
        return following
    if x.dim() == 0:
        return 1
    have, wanted = x.shape[0], size[extra]
    if isinstance(wanted, int) and wanted == -1:
        wanted = have
    step = x.stride()[0] if have == wanted else 0
    return wanted * step


@_rule(aten.select.int)
def _select(x: Any, dim: int, index: Any) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank:
        return NotImplemented
    axis = dim % rank
    size, stride = list(x.shape), list(x.stride())
    if not isinstance(index, int) or not isinstance(size[axis], int) or not -size[axis] <= index < size[axis]:
        return NotImplemented
    offset = x.storage_offset() + (index % size[axis]) * stride[axis]
    del size[axis], stride[axis]
    return view_of(x, size, stride, offset)


@_rule(aten.slice.Tensor)
def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank or not isinstance(step, int) or step < 1:
        return NotImplemented
    axis = dim % rank
    size, stride = list(x.shape), list(x.stride())
    length = size[axis]
    if not isinstance(length, int):
        return NotImplemented
    start = 0 if start is None else start
    end = length if end is None else end
    if not isinstance(start, int) or not isinstance(end, int):
        return NotImplemented
    start = min(max(start + length if start < 0 else start, 0), length)
    end = min(max(end + length if end < 0 else end, start), length)
    offset = x.storage_offset() + start * stride[axis]
    size[axis] = (end - start + step - 1) // step
    stride[axis] = stride[axis] * step
    return view_of(x, size, stride, offset)


@_rule(aten.split.Tensor)
def _split(x: Any, length: Any, dim: int = 0) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank or not isinstance(length, int) or length <= 0:
        return NotImplemented
    total = x.shape[dim]
    if not isinstance(total, int):
        return NotImplemented
    return [_slice(x, dim, start, start + length) for start in range(0, max(total, 1), length)]


@_rule(aten.split_with_sizes.default)
def _split_with_sizes(x: Any, lengths: Sequence[Any], dim: int = 0) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank or any(not isinstance(length, int) or length < 0 for length in lengths):
        return NotImplemented
    if not isinstance(x.shape[dim], int) or sum(lengths) != x.shape[dim]:
        return NotImplemented
    made, start = [], 0
    for length in lengths:
        made.append(_slice(x, dim, start, start + length))
        start += length
    return made


@_rule(aten.unbind.int)
def _unbind(x: Any, dim: int = 0) -> Any:
    rank = x.dim()
    if rank == 0 or not -rank <= dim < rank or not isinstance(x.shape[dim], int):
        return NotImplemented
    return [_select(x, dim, index) for index in range(x.shape[dim])]


@_rule(aten.as_strided.default)
def _as_strided(x: Any, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Any:
    if len(size) != len(stride):
        return NotImplemented
    return view_of(x, size, stride, offset)


def _resolved_size(x: AbstractTensor, size: Sequence[Any]) -> list[Any] | None:
    """`size` with its -1 worked out; None if it does not fit."""
    sizes = list(size)
    total = x.numel()
    unknown = [axis for axis, length in enumerate(sizes) if isinstance(length, int) and length == -1]
    if len(unknown) > 1 or any(isinstance(length, int) and length < -1 for length in sizes):
        return None
    known: Any = 1
    for length in sizes:
        if not (isinstance(length, int) and length == -1):
            known = known * length
    if unknown:
        if isinstance(known, int) and known == 0:
            return None
        if total % known != 0:
            return None
        sizes[unknown[0]] = total // known
    elif known != total:
        return None
    return sizes


def _view_strides(x: AbstractTensor, size: Sequence[Any]) -> Sequence[Any] | None:
    """Strides that show `x` with `size` without moving data; None if there are none."""
    if x.is_contiguous():
        return contiguous_strides(size)
    have, steps = x.shape, x.stride()
    strides: list[Any] = [0] * len(size)
    place = len(size) - 1
    chunk: Any = 1
    covered: Any = 1
    if x.dim() == 0 or x.numel() == 0:
        return None
    base = steps[-1]
    for axis in range(x.dim() - 1, -1, -1):
        chunk = chunk * have[axis]
        if axis != 0 and (have[axis - 1] == 1 or steps[axis - 1] == chunk * base):
            continue
        while place >= 0 and (covered < chunk or size[place] == 1):
            strides[place] = covered * base
            covered = covered * size[place]
            place -= 1
        if covered != chunk:
            return None
        if axis > 0:
            base = steps[axis - 1]
            chunk = 1
            covered = 1
    return strides if place == -1 else None


@_rule(aten.view.default, aten._unsafe_view.default)
def _view(x: Any, size: Sequence[Any]) -> Any:
    sizes = _resolved_size(x, size)
    if sizes is None:
        return NotImplemented
    strides = _view_strides(x, sizes)
    return NotImplemented if strides is None else view_of(x, sizes, strides)


_register_pointwise()
_register_foreach()


@_rule(aten.pow.Scalar)
def _power_of_number(base: Any, exponent: Any) -> Any:
    """Row-major whatever the layout of the exponent, unlike every other pointwise operator."""
    dtype = promote((base, exponent), "same")
    return NotImplemented if dtype is None else fresh(exponent.shape, dtype, exponent.device)
