"""Shape rules for the hot ATen operators: what they return, without asking torch's meta kernels.

Contract. A rule is called like the operator, on abstract tensors, and returns abstract tensors, or NotImplemented when
the case is not plainly its own; the meta kernel decides then, and words the error if there is one. A rule never
raises for the user. `RULES` maps operators to rules; each row is tested against the meta kernel over OpInfo
samples (tests/aot/test_rules.py). Sizes may be symbolic; comparing them guards, as in torch.

Why: torch's Python meta kernels take 50-150 µs for a pointwise operator, a rule takes one to two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.aot.abstract import _RULES, SAFE_WITH_SYMBOLS, AbstractTensor, contiguous_strides, fresh
from stator.aot.pointwise import broadcast, is_dense, layout_of, promote, same_device

aten = torch.ops.aten
RULES = _RULES
Rule = Callable[..., Any]


def rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Register a rule for operators."""

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
        hardtanh_backward threshold_backward softplus_backward elu_backward hardswish_backward pow lerp floor_divide
        bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ logaddexp logaddexp2 heaviside hypot nextafter
        xlogy native_dropout_backward
    """,
    "float": """
        sin cos tan asin acos atan sinh cosh tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid erf
        erfc erfinv lgamma digamma atan2 asinh acosh atanh sinc copysign
    """,
    "bool": """
        eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf signbit isposinf isneginf
    """,
}
# Arguments that take no part in type promotion.
_NOT_PROMOTED = frozenset({"alpha", "rounding_mode", "approximate", "value"})


def _pointwise_rule(kind: str, numbers_aside: bool = False, complex_too: bool = True) -> Rule:
    def shape(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in _NOT_PROMOTED:
                return NotImplemented
        tensors = [value for value in args if type(value) is AbstractTensor]
        device = same_device(tensors)
        if device is None:
            return NotImplemented
        dtype = promote(tensors if numbers_aside else args, kind)
        if dtype is None or (dtype.is_complex and not complex_too):
            return NotImplemented
        found = layout_of(tensors)
        if found is None:
            return NotImplemented
        return fresh(found[0], dtype, device, found[1])

    return shape


def _inplace_rule(kind: str, numbers_aside: bool = False) -> Rule:
    def shape(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in _NOT_PROMOTED:
                return NotImplemented
        target = args[0]
        tensors = [value for value in args if type(value) is AbstractTensor]
        if same_device(tensors) is None:
            return NotImplemented
        dtype = promote(tensors if numbers_aside else args, kind)
        if dtype is None or not (dtype is target.dtype or torch.can_cast(dtype, target.dtype)):
            return NotImplemented
        shape = target.shape
        for tensor in tensors[1:]:
            if tensor.shape != shape and broadcast([tensor.shape, shape]) != tuple(shape):
                return NotImplemented
        target.constant = None
        return target

    return shape


_SCALAR_ONLY_FIRST = frozenset({"gelu_backward", "threshold_backward"})


def _register_pointwise() -> None:
    for kind, names in POINTWISE.items():
        for name in names.split():
            aside = name in _NUMBERS_ASIDE
            rule, inplace = _pointwise_rule(kind, aside, name != "abs"), _inplace_rule(kind, aside)
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
                        if chosen is rule:
                            SAFE_WITH_SYMBOLS.add(getattr(operators, overload))


def _promotes_plainly(name: str, item: Any) -> bool:
    """Whether a number argument takes part in promotion exactly as a Python number in an expression would."""
    return item.name in ("other", "exponent", "self", "min", "max", "alpha", "value") or name in _NUMBERS_ASIDE


# Operators whose number arguments leave the dtype alone.
_NUMBERS_ASIDE = frozenset(
    """
    threshold threshold_backward leaky_relu leaky_relu_backward elu elu_backward hardtanh hardtanh_backward softplus
    softplus_backward lerp native_dropout_backward
    """.split()
)


@rule(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def _divide(*args: Any, **kwargs: Any) -> Any:
    return _pointwise_rule("float")(*args, **kwargs)


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _divide_rounding(*args: Any, rounding_mode: Any = None) -> Any:
    return _pointwise_rule("float" if rounding_mode is None else "same")(*args)


# Rules below whose formulas compare no sizes but those the operator itself needs equal.
SAFE_WITH_SYMBOLS.update(
    (
        aten.div.Tensor, aten.div.Scalar, aten.where.self, aten.fill_.Scalar, aten.zero_.default, aten.mm.default,
        aten.bmm.default, aten.sum.default, aten.mean.default, aten.detach.default, aten.alias.default,
        aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.as_strided.default,
        aten.empty.memory_format, aten.zeros.default, aten.ones.default, aten.full.default, aten.new_empty.default,
        aten.new_zeros.default, aten.new_ones.default, aten.new_empty_strided.default, aten.empty_strided.default,
        aten.view.default, aten._unsafe_view.default, aten.sum.dim_IntList, aten.mean.dim, aten._softmax.default,
        aten._log_softmax.default, aten.native_layer_norm.default, aten.native_dropout.default,
    )
)  # fmt: skip


@rule(aten.where.self)
def _where(condition: Any, first: Any, second: Any) -> Any:
    tensors = [value for value in (condition, first, second) if type(value) is AbstractTensor]
    device = same_device(tensors)
    dtype = promote((first, second), "same")
    if device is None or dtype is None or len(tensors) != 3 or condition.dtype is not torch.bool:
        return NotImplemented
    found = layout_of(tensors)
    return NotImplemented if found is None else fresh(found[0], dtype, device, found[1])


@rule(aten.masked_fill.Scalar)
def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    if x.device != mask.device or mask.dtype is not torch.bool or isinstance(value, complex):
        return NotImplemented
    if tuple(x.shape) != broadcast([x.shape, mask.shape]) or not x.is_contiguous():
        return NotImplemented
    return fresh(x.shape, x.dtype, x.device)


@rule(aten.copy_.default)
def _copy_in_place(target: Any, source: Any, non_blocking: bool = False) -> Any:
    if target.shape != source.shape and broadcast([target.shape, source.shape]) != tuple(target.shape):
        return NotImplemented
    target.constant = None
    return target


@rule(aten.fill_.Scalar, aten.zero_.default)
def _fill_in_place(target: Any, value: Any = 0) -> Any:
    target.constant = None
    return target


# --- copies and factories ----------------------------------------------------------------------------------------
def like_strides(x: AbstractTensor, memory_format: Any) -> Any:
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


@rule(aten.clone.default)
def _clone(x: Any, memory_format: Any = None) -> Any:
    strides = like_strides(x, memory_format)
    return NotImplemented if strides is None else fresh(x.shape, x.dtype, x.device, strides)


@rule(aten._to_copy.default)
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
    strides = like_strides(x, memory_format)
    if strides is None:
        return NotImplemented
    return fresh(x.shape, dtype or x.dtype, x.device if device is None else torch.device(device), strides)


@rule(
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


@rule(aten.full_like.default)
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


@rule(aten.empty.memory_format, aten.zeros.default, aten.ones.default)
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


@rule(aten.full.default)
def _full(
    size: Any, value: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    if dtype is None:
        kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
        dtype = kinds.get(type(value))
        if dtype is None:
            return NotImplemented
    return _factory(size, dtype, layout, device, pin_memory)


@rule(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default)
def _new(x: Any, size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    return _factory(size, dtype or x.dtype, layout, x.device if device is None else device, pin_memory)


@rule(aten.new_empty_strided.default)
def _new_strided(
    x: Any, size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    if layout not in (None, torch.strided):
        return NotImplemented
    return fresh(size, dtype or x.dtype, x.device if device is None else torch.device(device), stride)


@rule(aten.empty_strided.default)
def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    if layout not in (None, torch.strided):
        return NotImplemented
    return fresh(size, dtype or torch.get_default_dtype(), _asked_device(device), stride)


# --- matrix products ---------------------------------------------------------------------------------------------
def matrices_agree(*tensors: AbstractTensor) -> bool:
    first = tensors[0]
    return all(tensor.dtype is first.dtype and tensor.device == first.device for tensor in tensors)


@rule(aten.mm.default)
def _mm(a: Any, b: Any) -> Any:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not matrices_agree(a, b):
        return NotImplemented
    return fresh((a.shape[0], b.shape[1]), a.dtype, a.device)


@rule(aten.addmm.default)
def _addmm(c: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not matrices_agree(a, b, c):
        return NotImplemented
    size = (a.shape[0], b.shape[1])
    if broadcast([c.shape, size]) != size:
        return NotImplemented
    return fresh(size, a.dtype, a.device)


@rule(aten.bmm.default)
def _bmm(a: Any, b: Any) -> Any:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        return NotImplemented
    if not matrices_agree(a, b):
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


@rule(aten.sum.dim_IntList)
def _sum(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    size = _reduced(x, dim, keepdim)
    if size is None or not x.is_contiguous():
        return NotImplemented
    small = not x.dtype.is_floating_point and not x.dtype.is_complex
    return fresh(size, dtype or (torch.int64 if small else x.dtype), x.device)


@rule(aten.sum.default)
def _sum_all(x: Any, dtype: Any = None) -> Any:
    small = not x.dtype.is_floating_point and not x.dtype.is_complex
    return fresh((), dtype or (torch.int64 if small else x.dtype), x.device)


@rule(aten.mean.dim)
def _mean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    size = _reduced(x, dim, keepdim)
    if size is None or not x.is_contiguous() or dtype is not None or not x.dtype.is_floating_point:
        return NotImplemented
    return fresh(size, x.dtype, x.device)


@rule(aten.mean.default)
def _mean_all(x: Any, dtype: Any = None) -> Any:
    if dtype is not None or not x.dtype.is_floating_point:
        return NotImplemented
    return fresh((), x.dtype, x.device)


@rule(aten.amax.default, aten.amin.default)
def _extreme(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    size = _reduced(x, dim, keepdim)
    if size is None or not x.is_contiguous() or any(not isinstance(n, int) or n == 0 for n in x.shape):
        return NotImplemented
    return fresh(size, x.dtype, x.device)


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if half_to_float or not x.dtype.is_floating_point or not x.is_contiguous():
        return NotImplemented
    if not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return NotImplemented
    return fresh(x.shape, x.dtype, x.device)


@rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(gradient: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    if gradient.shape != output.shape or gradient.dtype is not input_dtype or output.dtype is not input_dtype:
        return NotImplemented
    if not gradient.is_contiguous() or not output.is_contiguous():
        return NotImplemented
    return fresh(gradient.shape, input_dtype, gradient.device)


# --- foreach -----------------------------------------------------------------------------------------------------
def _foreach_in_place(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    for tensor in tensors:
        tensor.constant = None
    return None


def _foreach_like(kind: str) -> Rule:
    def shape(tensors: Any, *args: Any, **kwargs: Any) -> Any:
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

    return shape


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


_register_pointwise()
_register_foreach()


@rule(aten.pow.Scalar)
def _power_of_number(base: Any, exponent: Any) -> Any:
    """Row-major whatever the layout of the exponent, unlike every other pointwise operator."""
    dtype = promote((base, exponent), "same")
    return NotImplemented if dtype is None else fresh(exponent.shape, dtype, exponent.device)
