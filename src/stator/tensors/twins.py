"""Running an operation for its facts alone: on meta tensors that stand for the abstract ones.

Contract. `run` converts abstract tensors to their twins (made once, kept on the abstract tensor), calls the function
with torch functions of the trace switched off, and converts what comes out. A twin has the metadata and the
autograd state (leaf or not) of its tensor; it claims the meta device, so devices are put in and taken out here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stator.sizes import shapes
from stator.sizes.function_rules import symbolic_shapes
from stator.tensors import dynamo_free
from stator.tensors.abstract import AbstractTensor, is_leaf
from stator.tensors.casting import dtypes_under_autocast, is_cast

META = torch.device("meta")


class NeedsData(Exception):
    """The operation's result hangs on values, not on shapes."""


def needs_exact() -> bool:
    """Whether modes are active that shape rules do not model (autocast changes result types)."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def twin_of(tensor: AbstractTensor) -> torch.Tensor:
    """The meta tensor standing for `tensor`."""
    twin = tensor.twin
    if twin is None:
        if tensor.layout is not torch.strided:
            raise NotImplementedError(f"a tensor of layout {tensor.layout}")
        twin = shapes.empty_strided(tensor.shape, tensor.strides, tensor.dtype, META)
        if tensor.requires_grad:
            twin.requires_grad_(True)
            if not tensor.is_leaf:
                with torch.enable_grad():
                    twin = twin.clone()
        tensor.twin = twin
    assert isinstance(twin, torch.Tensor)
    return twin


def _device_of(tensors: list[AbstractTensor]) -> torch.device:
    """The device of a result: that of the first tensor with dimensions, else of the first tensor."""
    for tensor in tensors:
        if tensor.shape:
            return tensor.device
    return tensors[0].device if tensors else torch.get_default_device()


def abstract_of(
    twin: torch.Tensor, device: torch.device, known: dict[int, AbstractTensor], bases: dict[int, AbstractTensor]
) -> AbstractTensor:
    """The abstract tensor of a result."""
    same = known.get(id(twin))
    if same is not None:
        return same
    strided = twin.layout is torch.strided
    tensor = AbstractTensor(
        twin.shape,
        twin.stride() if strided else (),
        twin.dtype,
        device,
        twin.requires_grad,
        twin.is_leaf,
        twin.storage_offset() if strided else 0,
        twin.layout,
    )
    tensor.twin = twin
    if strided and twin._is_view() and twin._base is not None:
        tensor.base = bases.get(id(twin._base))
    return tensor


def refresh(tensor: AbstractTensor) -> None:
    """Take over what an in-place operation changed on the twin."""
    twin = tensor.twin
    changed: AbstractTensor | None = tensor
    while changed is not None:
        changed.mutated = True
        changed = changed.base
    tensor.shape = twin.shape
    if twin.layout is torch.strided:
        tensor.strides = twin.stride()
        tensor.offset = twin.storage_offset()
    tensor.dtype = twin.dtype
    tensor.requires_grad = twin.requires_grad
    tensor.is_leaf = is_leaf(twin, otherwise=tensor.is_leaf)


@contextlib.contextmanager
def meta_default() -> Iterator[None]:
    """Factory functions called inside torch's own Python code make meta tensors."""
    with torch.device(META):
        yield


def _symbolically(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under the rules for symbolic sizes."""

    def inside(*args: Any, **kwargs: Any) -> Any:
        with symbolic_shapes():
            return function(*args, **kwargs)

    return inside


def returns_nothing(function: Any) -> bool:
    """Whether a custom operator only writes its arguments: then nobody needs to say what it gives."""
    op = getattr(function, "default", None) if isinstance(function, torch._ops.OpOverloadPacket) else function
    if not isinstance(op, torch._ops.OpOverload) or op.namespace in ("aten", "prims", "prim"):
        return False
    return op._schema.is_mutable and not op._schema.returns and not op._can_decompose()


def note_writes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What such an operator leaves behind: its written arguments have changed."""
    schema = getattr(function, "default", function)._schema
    for position, declared in enumerate(schema.arguments):
        if declared.alias_info is None or not declared.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(declared.name)
        written = [one for one in (value if isinstance(value, (list, tuple)) else [value]) if one is not None]
        torch._C._increment_version(written)


def run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    map_leaves: Callable[[Any, Callable[[Any], Any]], Any],
) -> Any:
    """Call `function` on twins."""
    known: dict[int, AbstractTensor] = {}
    tensors: list[AbstractTensor] = []
    devices: list[torch.device] = []
    numbers: list[torch.SymInt] = []

    def lower(leaf: Any) -> Any:
        if type(leaf) is AbstractTensor:
            twin = twin_of(leaf)
            known[id(twin)] = leaf
            tensors.append(leaf)
            return twin
        if type(leaf) is torch.device:
            devices.append(leaf)
            return META
        if type(leaf) is torch.SymInt:
            numbers.append(leaf)
        if type(leaf) is torch.SymBool:
            return bool(leaf)  # operators take plain flags: which one is guarded
        return leaf

    low_args = map_leaves(args, lower)
    low_kwargs = {key: map_leaves(value, lower) for key, value in kwargs.items()}
    if isinstance(kwargs.get("device"), (str, int)):
        devices.append(torch.device(kwargs["device"]))
        low_kwargs["device"] = META
    if function is torch.Tensor.to and len(args) > 1 and isinstance(args[1], str):
        devices.append(torch.device(args[1]))
        low_args = (low_args[0], META, *low_args[2:])
    device = devices[0] if devices else None
    if device is not None and device.index is None and device.type not in ("cpu", "meta"):
        device = torch.device(device.type, torch.cuda.current_device())
    if device is None:
        if function in (torch.Tensor.cpu,):
            device = torch.device("cpu")
        else:
            device = _device_of(tensors)
    original = function
    if numbers or any(type(size) is torch.SymInt for tensor in tensors for size in (*tensor.shape, *tensor.strides)):
        function = _symbolically(function)
    dynamo_free.settle_references()
    versions = {identity: tensor.twin._version for identity, tensor in known.items()}
    result: Any = None
    if returns_nothing(original):
        note_writes(original, low_args, low_kwargs)
    elif tensors:
        result = function(*low_args, **low_kwargs)
    else:
        with meta_default():
            result = function(*low_args, **low_kwargs)
    for identity, version in versions.items():
        if known[identity].twin._version != version or known[identity].twin.shape != known[identity].shape:
            refresh(known[identity])
    retyped: Iterator[torch.dtype] = iter(())
    if is_cast(tensors):
        retyped = iter(dtypes_under_autocast(original, args, kwargs, map_leaves))
    bases = {id(tensor.twin): tensor for tensor in tensors}
    for tensor in tensors:
        if tensor.base is not None and tensor.base.twin is not None:
            bases[id(tensor.base.twin)] = tensor.base

    def lift(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            made = abstract_of(leaf, device, known, bases)
            dtype = next(retyped, made.dtype)
            if dtype is not made.dtype and id(leaf) not in known:
                made.dtype, made.twin = dtype, None
            return made
        if leaf == META and type(leaf) is torch.device:
            return device
        return leaf

    return map_leaves(result, lift)
