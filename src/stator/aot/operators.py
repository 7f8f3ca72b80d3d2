"""Facts about ATen operators: what they alias, write, draw or cost, read once from their schemas.

Contract. `facts(op)` answers for any `OpOverload`, custom operators included, and is memoised: a schema never
changes once registered. The named sets hold what a schema does not say (which operators are too expensive to
run twice); they hold operator names, so that all overloads are meant.

An argument position counts positional arguments first and keyword-only arguments after them, as schemas do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

# Operators whose result costs far more to compute than to keep: the partitioner never runs them twice.
EXPENSIVE: frozenset[str] = frozenset(
    """
    mm bmm addmm baddbmm addbmm addmv mv dot vdot addr matmul linear einsum _grouped_mm _scaled_mm _scaled_grouped_mm
    convolution convolution_backward _convolution cudnn_convolution mkldnn_convolution slow_conv3d_forward
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_cudnn_attention _flash_attention_forward
    _efficient_attention_forward _scaled_dot_product_attention_math_for_mps
    sort topk kthvalue mode median nanmedian unique_dim _unique2 unique_consecutive searchsorted histc bincount
    _fft_r2c _fft_c2r _fft_c2c
    linalg_inv_ex linalg_cholesky_ex linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_qr linalg_eig _linalg_eigh
    _linalg_svd _linalg_solve_ex _linalg_det _linalg_slogdet linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq
    linalg_solve_triangular linalg_matrix_exp linalg_householder_product cholesky cholesky_inverse cholesky_solve
    geqrf lu_unpack ormqr triangular_solve
    _cdist_forward _pdist_forward _ctc_loss _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm gru mkldnn_rnn_layer
    _cudnn_rnn miopen_rnn native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    cudnn_batch_norm batch_norm_with_update _batch_norm_with_update _embedding_bag _embedding_bag_forward_only
    max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d fractional_max_pool2d fractional_max_pool3d
    grid_sampler_2d grid_sampler_3d
    """.split()
)

# Reductions: cheap on their own, but running them twice reads the whole input twice.
REDUCTIONS: frozenset[str] = frozenset(
    """
    sum mean prod amax amin max min argmax argmin any all var std var_mean std_mean norm linalg_vector_norm logsumexp
    nansum aminmax count_nonzero native_layer_norm native_group_norm _fused_rms_norm _softmax _log_softmax softmax
    log_softmax cumsum cumprod logcumsumexp cummax cummin embedding index gather nll_loss_forward nll_loss2d_forward
    """.split()
)

# The result is the input itself under another name: same sizes, strides and offset.
IDENTITIES: frozenset[str] = frozenset({"detach", "alias", "lift_fresh"})


# Operators that write arguments their schema does not mark: running mean and variance.
UNDECLARED_WRITES: dict[str, tuple[int, ...]] = {
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
}

# Operators whose result shares the memory of their first argument though their schema does not mark it.
UNDECLARED_VIEWS: frozenset[str] = frozenset({"_unsafe_view"})


class Facts(NamedTuple):
    """What one operator does to its arguments. Positions count into `names`."""

    name: str  # without namespace and overload: `add_`
    namespace: str
    names: tuple[str, ...]  # argument names in schema order
    positional: int  # how many of them may be given by position
    written: tuple[int, ...]  # positions of arguments the operator writes
    returns: tuple[tuple[int, bool] | None, ...]  # per result: (position it aliases, whether it was written) or None
    tensor_list_result: bool  # one result, a list of tensors
    view: bool  # some result is a view of an argument, and nothing is written
    metadata_only: bool  # an in-place change of sizes or strides (`t_`, `resize_`), not of values
    random: bool  # draws from a generator
    pointwise: bool
    functional: bool  # writes nothing and aliases nothing
    composite: bool  # made of other operators, which autograd and the recorder should see instead


_FACTS: dict[Any, Facts] = {}


def facts(op: OpOverload) -> Facts:
    """The facts of `op`."""
    found = _FACTS.get(op)
    if found is None:
        found = _FACTS[op] = _read(op)
    return found


def _read(op: OpOverload) -> Facts:
    schema = op._schema
    names = tuple(argument.name for argument in schema.arguments)
    owners: dict[str, int] = {}
    written: list[int] = []
    namespace, _, name = schema.name.partition("::")
    tensor_list = len(schema.returns) == 1 and "List[Tensor" in str(schema.returns[0].type)
    source_of_list: int | None = None
    for position, argument in enumerate(schema.arguments):
        info = argument.alias_info
        if info is None:
            continue
        if tensor_list and not info.is_write and "*" in info.after_set:
            source_of_list = position
        if info.is_write:
            written.append(position)
        for label in info.before_set | info.after_set:
            owners.setdefault(label, position)
    returns: list[tuple[int, bool] | None] = []
    for result in schema.returns:
        info = result.alias_info
        labels = [] if info is None else [label for label in info.before_set | info.after_set if label in owners]
        returns.append((owners[labels[0]], bool(info is not None and info.is_write)) if labels else None)
    if source_of_list is not None:
        returns = [(source_of_list, False)]
    if name in UNDECLARED_VIEWS:
        returns = [(0, False)]
    written.extend(UNDECLARED_WRITES.get(name, ()))
    tags = set(op.tags)
    view = not written and any(row is not None for row in returns)
    return Facts(
        name=name,
        namespace=namespace,
        names=names,
        positional=sum(1 for argument in schema.arguments if not argument.kwarg_only),
        written=tuple(written),
        returns=tuple(returns),
        tensor_list_result=tensor_list,
        view=view,
        metadata_only=torch.Tag.inplace_view in tags,
        random=torch.Tag.nondeterministic_seeded in tags,
        pointwise=torch.Tag.pointwise in tags,
        functional=not written and not view,
        composite=_is_composite(op.name()),
    )


def _is_composite(name: str) -> bool:
    """Whether eager runs it as other operators: a formula is there, and no kernel that is preferred to it."""
    if not torch._C._dispatch_has_kernel(name):
        return False  # known to TorchScript only, as `aten::size` is
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, "CompositeImplicitAutograd") and not any(has_kernel(name, key) for key in ("CPU", "CUDA"))


def argument(row: Facts, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument at a schema position of a call; `None` where the call leaves it to its default."""
    if position < len(args):
        return args[position]
    return kwargs.get(row.names[position])


def replace_argument(
    row: Facts, position: int, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another argument at a schema position."""
    if position < len(args):
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, {**kwargs, row.names[position]: value}


def complete(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with its defaults spelled out, for a variant that has none."""
    row = facts(op)
    missing = [
        item for item in op._schema.arguments[len(args) :] if item.name not in kwargs and item.has_default_value()
    ]
    if not missing:
        return args, kwargs
    positions = {name: place for place, name in enumerate(row.names)}
    filled, named = list(args), dict(kwargs)
    for item in missing:
        if positions[item.name] == len(filled) < row.positional:
            filled.append(item.default_value)
        else:
            named[item.name] = item.default_value
    return tuple(filled), named


def packet(op: OpOverload) -> str:
    """The operator's name without overload: `aten.add`."""
    row = facts(op)
    return f"{row.namespace}.{row.name}"


def has_tag(op: OpOverload, tags: Iterable[torch.Tag]) -> bool:
    """Whether the operator carries any of the tags."""
    return any(tag in op.tags for tag in tags)


_FUNCTIONAL: dict[Any, OpOverload | None] = {}


def functional_variant(op: OpOverload) -> OpOverload | None:
    """The operator that computes what in-place `op` writes, without writing: `add` for `add_`.

    Only a variant with the same arguments counts: it is called with the very arguments of the in-place call.
    """
    if op not in _FUNCTIONAL:
        _FUNCTIONAL[op] = _find_functional(op)
    return _FUNCTIONAL[op]


def _find_functional(op: OpOverload) -> OpOverload | None:
    row = facts(op)
    for name in (row.name.removesuffix("_"), row.name + "_functional", row.name.removesuffix("_") + "_functional"):
        found = None if name == row.name else _same_arguments(op, row, name)
        if found is not None:
            return found
    return None


def _same_arguments(op: OpOverload, row: Facts, name: str) -> OpOverload | None:
    try:
        candidates = getattr(getattr(torch.ops, row.namespace), name)
    except AttributeError:
        return None
    for overload in dict.fromkeys((op._overloadname, *candidates.overloads())):
        candidate: OpOverload | None = getattr(candidates, overload, None)
        if candidate is None:
            continue
        other = facts(candidate)
        same_types = [str(one.type) for one in candidate._schema.arguments] == [
            str(one.type) for one in op._schema.arguments
        ]
        if other.names == row.names and same_types and not other.written and len(other.returns) >= len(row.written):
            return candidate
    return None
