"""Shapes by torch's own meta kernels: the way for every operator without a rule of ours.

Contract. `evaluate_by_meta` runs the operator on meta twins and dresses the results as abstract tensors on the
device the operator would have used. Results alias arguments as the operator's schema says. Nothing here imports
`torch._dynamo`: torch's Python meta kernels are settled first (see `dynamo_free`).

Custom operators run their `register_fake` function on abstract tensors, so that it sees the real devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._library import fake_impl
from torch._library.simple_registry import singleton as registered
from torch._ops import OpOverload

from stator.aot import abstract, dynamo_free
from stator.aot.abstract import AbstractMode, AbstractTensor, fresh, meta_twin, result_device, view_of
from stator.aot.operators import Facts, argument, has_tag
from stator.aot.refusal import refuse
from stator.sizes.meta_rules import SymbolicMeta
from stator.tensors.twins import returns_nothing

aten = torch.ops.aten
SYMBOLIC, PLAIN = SymbolicMeta(), nullcontext()
_VALUE_TAGS = (torch.Tag.data_dependent_output,)
_SIZE_TAGS = (torch.Tag.dynamic_output_shape,)


# torch 2.11 and 2.12 have no look-up that leaves an operator unregistered that nobody registered.
find_registered = getattr(registered, "get", None) or registered._data.get


def evaluate_by_meta(op: OpOverload, row: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of `op` by its meta kernel, or by its registered fake function."""
    constant = _value_of_constants(op, args, kwargs)
    if constant is not NotImplemented:
        return constant
    if has_tag(op, _VALUE_TAGS):
        raise refuse("aot_value_read", detail=f"`{row.name}`")
    entry = find_registered(f"{row.namespace}::{_qualified(op)}")
    if entry is not None and entry.fake_impl.kernel is not None:
        return _by_registered_fake(op, row, entry.fake_impl.kernel, args, kwargs)
    if returns_nothing(op):
        for position in row.written:
            for tensor in abstract.tensors_in((argument(row, position, args, kwargs),)):
                tensor.constant = None  # type: ignore[attr-defined]
        return None
    if has_tag(op, _SIZE_TAGS) and not _size_is_known(op, args, kwargs):
        raise refuse("aot_dynamic_output", detail=f"`{row.name}`")
    return _by_twins(op, row, args, kwargs)


def _size_is_known(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this very call of an operator with a value-dependent size has a fixed one."""
    if op is aten.index.Tensor:
        return all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1])
    if op is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is not None
    return False


def _qualified(op: OpOverload) -> str:
    name: str = op._schema.name.partition("::")[2]
    return name if op._overloadname == "default" else f"{name}.{op._overloadname}"


def _value_of_constants(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Operators that read values answer for tensors whose values are known at trace time."""
    if op not in _READERS:
        return NotImplemented
    constants = [value.constant if isinstance(value, AbstractTensor) else value for value in args]
    if any(value is None and isinstance(args[place], AbstractTensor) for place, value in enumerate(constants)):
        return NotImplemented
    return op(*constants, **kwargs)


_READERS = frozenset({aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default})


def _by_registered_fake(op: OpOverload, row: Facts, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def no_dynamic_sizes() -> Any:
        raise refuse("aot_dynamic_output", detail=f"`{row.namespace}.{row.name}`")

    with fake_impl.set_ctx_getter(no_dynamic_sizes), AbstractMode():  # type: ignore[no-untyped-call]
        return kernel(*args, **kwargs)


def _by_twins(op: OpOverload, row: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dynamo_free.settle_references()
    device = result_device(args, kwargs)
    originals: dict[int, AbstractTensor] = {}

    def twin(value: torch.Tensor) -> torch.Tensor:
        made = meta_twin(value)  # type: ignore[arg-type]
        originals[id(made)] = value  # type: ignore[assignment]
        return made

    meta_args = abstract.map_tensors(twin, args)
    meta_kwargs = abstract.map_tensors(twin, kwargs)
    if "device" in row.names:
        if row.names.index("device") < row.positional < len(args):
            return NotImplemented
        meta_kwargs["device"] = "meta"
        if "pin_memory" in meta_kwargs:
            meta_kwargs["pin_memory"] = None
    if meta_kwargs.get("generator") is not None:
        meta_kwargs["generator"] = None
    try:
        with SYMBOLIC if abstract.tracing.context is not None else PLAIN:
            results = op(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        if "aten::" in str(error) and row.namespace != "aten" and _qualified(op) not in str(error):
            raise
        raise refuse("aot_no_meta_kernel", detail=f"`{row.namespace}.{_qualified(op)}`") from error
    if row.metadata_only or row.written:
        for position in row.written:
            changed = argument(row, position, args, kwargs)
            for tensor in abstract.tensors_in((changed,)):
                _take_over_metadata(tensor)  # type: ignore[arg-type]
    return _dress(results, row, args, kwargs, device, originals)


def _take_over_metadata(tensor: AbstractTensor) -> None:
    """Give the wrapper the sizes its twin has after an in-place operator."""
    tensor.constant = None
    twin = meta_twin(tensor)
    if twin.shape == tensor.shape and twin.stride() == tensor.stride():
        if twin.storage_offset() == tensor.storage_offset():
            return
    with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        aten.as_strided_(tensor, twin.shape, twin.stride(), twin.storage_offset())


def _dress(
    results: Any,
    row: Facts,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    originals: dict[int, AbstractTensor],
) -> Any:
    if isinstance(results, torch.Tensor):
        return _dress_one(results, row.returns[0] if row.returns else None, row, args, kwargs, device, originals)
    if row.tensor_list_result:
        alias = row.returns[0]
        return [_dress_one(item, alias, row, args, kwargs, device, originals) for item in results]
    if isinstance(results, (tuple, list)):
        return tuple(
            _dress_value(item, row.returns[place], row, args, kwargs, device, originals)
            for place, item in enumerate(results)
        )
    return results


def _dress_value(item: Any, alias: Any, row: Facts, args: Any, kwargs: Any, device: Any, originals: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return _dress_one(item, alias, row, args, kwargs, device, originals)
    if isinstance(item, (list, tuple)):
        return [_dress_one(part, alias, row, args, kwargs, device, originals) for part in item]
    return item


def _dress_one(
    meta: torch.Tensor,
    alias: tuple[int, bool] | None,
    row: Facts,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    originals: dict[int, AbstractTensor],
) -> AbstractTensor:
    same = originals.get(id(meta))
    if alias is not None:
        owner = argument(row, alias[0], args, kwargs)
        if isinstance(owner, AbstractTensor):
            if alias[1] or same is owner:
                return owner if alias[1] else _aliased(owner, meta)
            return _aliased(owner, meta)
    if same is not None:
        return same
    if meta.layout is not torch.strided:
        raise refuse("aot_layout", detail=str(meta.layout))
    made = fresh(meta.shape, meta.dtype, device, meta.stride())
    _copy_bits(meta, made)
    return made


def _aliased(owner: AbstractTensor, meta: torch.Tensor) -> AbstractTensor:
    made = view_of(owner, meta.shape, meta.stride(), meta.storage_offset(), meta.dtype)
    _copy_bits(meta, made)
    if meta.untyped_storage()._cdata == meta_twin(owner).untyped_storage()._cdata:
        made.twin = meta
    return made


def _copy_bits(meta: torch.Tensor, made: AbstractTensor) -> None:
    if meta.is_conj() != made.is_conj():
        torch._C._set_conj(made, meta.is_conj())
    if meta.is_neg() != made.is_neg():
        torch._C._set_neg(made, meta.is_neg())


def twins_of(values: Sequence[Any]) -> list[Any]:
    """Meta twins of the tensors among `values`."""
    return [meta_twin(value) if isinstance(value, AbstractTensor) else value for value in values]


abstract._FALLBACK.append(evaluate_by_meta)
