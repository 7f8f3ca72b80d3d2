"""Abstract tensors at the dispatch level: what torch's C++ sees while a program is traced, without any data.

Contract. An `AbstractTensor` claims the device, dtype, sizes, strides and storage offset of the tensor it stands
for; autograd, autocast and composite operators run on it as they would on the real one. `evaluate(op, args, kwargs)`
computes the results of one ATen operator: by a row of `rules.RULES`, or else by torch's own meta kernel on
*meta twins* (meta-device tensors of the same layout). Aliasing is explicit: tensors that share memory share one
`Storage` object, views by the operator's schema.

Not torch's FakeTensorMode: it costs 75-124 µs an operator and needs modules of `torch._dynamo`.

An operator whose result depends on values (`nonzero`, `item`) raises `StatorError` with a reason id, unless the
tensor is a constant known at trace time.

State: none but memo tables of pure functions. An abstract tensor belongs to the trace that made it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from stator.aot.operators import Facts, facts
from stator.aot.refusal import refuse
from stator.sizes.meta_rules import symbols_in
from stator.sizes.shapes import as_strided, empty_strided, is_symbolic

aten = torch.ops.aten


class _Tracing(threading.local):
    """The context of the symbols of this thread's trace, if it has any."""

    context: Any = None


tracing = _Tracing()
_make = torch.Tensor._make_wrapper_subclass


class Storage:
    """The identity of a piece of memory, and its meta stand-in once a meta kernel asks for one."""

    __slots__ = ("device", "meta", "nbytes")

    def __init__(self, nbytes: Any, device: torch.device) -> None:
        self.nbytes = nbytes
        self.device = device
        self.meta: torch.Tensor | None = None

    def meta_base(self) -> torch.Tensor:
        """A flat meta tensor over this memory."""
        if self.meta is None:
            self.meta = torch.empty((self.nbytes,), dtype=torch.uint8, device="meta")
        return self.meta


class AbstractTensor(torch.Tensor):
    """A tensor without data. `op` is its recorder's note, `constant` its value where that is known."""

    memory: Storage
    op: Any
    recorder: Any
    constant: torch.Tensor | None
    twin: torch.Tensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return evaluate(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        dtype = str(self.dtype).removeprefix("torch.")
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"AbstractTensor({dtype}{list(self.shape)}, strides={tuple(self.stride())}, {self.device}{grad})"

    def data_ptr(self) -> int:
        raise refuse("aot_data_ptr")

    def untyped_storage(self) -> Any:
        raise refuse("aot_data_ptr")

    def numpy(self, *, force: bool = False) -> Any:
        raise refuse("aot_value_read", detail="`.numpy()`")

    def tolist(self) -> Any:
        if self.constant is not None:
            return self.constant.tolist()
        raise refuse("aot_value_read", detail="`.tolist()`")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise refuse("aot_value_read", detail="pickling")


def _new(
    size: Sequence[Any], stride: Sequence[Any], offset: Any, dtype: torch.dtype, device: torch.device, memory: Storage
) -> AbstractTensor:
    made: AbstractTensor = _make(
        AbstractTensor, size, strides=stride, storage_offset=offset, dtype=dtype, device=device
    )
    made.memory = memory
    made.op = None
    made.recorder = None
    made.constant = None
    made.twin = None
    return made


def contiguous_strides(size: Sequence[Any]) -> tuple[Any, ...]:
    """Row-major strides, as `torch.empty` lays memory out."""
    strides: list[Any] = []
    step: Any = 1
    for length in reversed(size):
        strides.append(step)
        if not isinstance(length, int) or length > 1:
            step = step * length
    strides.reverse()
    return tuple(strides)


def extent(size: Sequence[Any], stride: Sequence[Any]) -> Any:
    """Elements from the first to just past the last one."""
    last: Any = 1
    for length, step in zip(size, stride, strict=True):
        if isinstance(length, int) and length == 0:
            return 0
        last = last + (length - 1) * step
    return last


def fresh(
    size: Sequence[Any], dtype: torch.dtype, device: torch.device, stride: Sequence[Any] | None = None
) -> AbstractTensor:
    """A tensor in memory of its own."""
    if stride is None:
        stride = contiguous_strides(size)
    return _new(size, stride, 0, dtype, device, Storage(None, device))


def view_of(
    base: AbstractTensor,
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any | None = None,
    dtype: torch.dtype | None = None,
) -> AbstractTensor:
    """A tensor in the memory of `base`."""
    made = _new(
        size,
        stride,
        base.storage_offset() if offset is None else offset,
        base.dtype if dtype is None else dtype,
        base.device,
        base.memory,
    )
    if base.is_conj():
        torch._C._set_conj(made, True)
    if base.is_neg():
        torch._C._set_neg(made, True)
    return made


def _check_layout(real: torch.Tensor) -> None:
    if real.layout is not torch.strided or real.is_quantized or real.is_nested or real.is_mkldnn:
        raise refuse("aot_layout", detail=str(real.layout))


def abstract_like(
    real: torch.Tensor,
    size: Sequence[Any] | None = None,
    stride: Sequence[Any] | None = None,
    offset: Any | None = None,
    memory: Storage | None = None,
) -> AbstractTensor:
    """The abstract twin of a real tensor, detached from its autograd graph.

    Symbolic `size`, `stride` and `offset` may take the place of its own; `memory` names storage shared with another.
    """
    _check_layout(real)
    size = real.shape if size is None else size
    stride = real.stride() if stride is None else stride
    offset = real.storage_offset() if offset is None else offset
    made = _new(size, stride, offset, real.dtype, real.device, memory or Storage(None, real.device))
    if real.is_conj():
        torch._C._set_conj(made, True)
    if real.is_neg():
        torch._C._set_neg(made, True)
    return made


def meta_twin(tensor: AbstractTensor) -> torch.Tensor:
    """A meta-device tensor of the same layout; twins of aliases alias."""
    twin = tensor.twin
    if twin is not None:
        return twin
    if is_symbolic(tensor):
        return _symbolic_twin(tensor)
    memory = tensor.memory
    if memory.nbytes is None:
        memory.nbytes = (tensor.storage_offset() + extent(tensor.shape, tensor.stride())) * tensor.element_size()
    flat = memory.meta_base()
    needed = (tensor.storage_offset() + extent(tensor.shape, tensor.stride())) * tensor.element_size()
    if isinstance(needed, int) and isinstance(memory.nbytes, int) and needed > memory.nbytes:
        flat.untyped_storage().resize_(needed)
        memory.nbytes = needed
    twin = torch.empty((0,), dtype=tensor.dtype, device="meta").set_(
        flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    if tensor.is_conj():
        torch._C._set_conj(twin, True)
    if tensor.is_neg():
        torch._C._set_neg(twin, True)
    tensor.twin = twin
    return twin


def _symbolic_twin(tensor: AbstractTensor) -> torch.Tensor:
    """The same with symbolic sizes; it shares no memory, since nobody can ask a size how many bytes it is."""
    size, stride, offset = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
    twin = empty_strided(size, stride, tensor.dtype, "meta")
    if not isinstance(offset, int) or offset:
        twin = as_strided(twin, size, stride, offset)
    if tensor.is_conj():
        torch._C._set_conj(twin, True)
    if tensor.is_neg():
        torch._C._set_neg(twin, True)
    tensor.twin = twin
    return twin


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """`value` with `function` applied to its tensors: the nesting operator arguments can have."""
    if isinstance(value, torch.Tensor):
        return function(value)
    kind = type(value)
    if kind is list:
        return [map_tensors(function, item) for item in value]
    if kind is tuple:
        return tuple(map_tensors(function, item) for item in value)
    if kind is dict:
        return {key: map_tensors(function, item) for key, item in value.items()}
    return value


def tensors_in(args: Sequence[Any]) -> list[torch.Tensor]:
    """All tensors among operator arguments, in order."""
    found: list[torch.Tensor] = []
    for value in args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found.extend(tensors_in(value))
    return found


def as_abstract(value: torch.Tensor) -> AbstractTensor:
    """An abstract tensor for any tensor; a real one becomes a constant."""
    if isinstance(value, AbstractTensor):
        return value
    made = abstract_like(value)
    made.constant = value
    return made


def evaluate(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of one operator on abstract arguments."""
    if op in _RULES and (tracing.context is None or op in SAFE_WITH_SYMBOLS or symbols_in(args, kwargs) is None):
        if kwargs or any(type(value) is not AbstractTensor and isinstance(value, torch.Tensor) for value in args):
            args = map_tensors(as_abstract, args)
            kwargs = map_tensors(as_abstract, kwargs)
        try:
            found = _RULES[op](*args, **kwargs)
        except (AttributeError, TypeError, IndexError):  # not a shape of call the rule knows
            found = NotImplemented
        if found is not NotImplemented:
            return found
    return _evaluate_by_meta(op, map_tensors(as_abstract, args), map_tensors(as_abstract, kwargs))


class AbstractMode(TorchDispatchMode):
    """Inside, operators on abstract tensors and factories (`torch.zeros`) give abstract ones; nothing is recorded."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return evaluate(func, args, kwargs or {})


def result_device(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device:
    """The device results live on: asked for, or that of the first argument that is no number in disguise."""
    asked = kwargs.get("device")
    tensors = tensors_in((*args, *kwargs.values()))
    if asked is not None:
        return torch.device(asked)
    for tensor in tensors:
        if tensor.dim() > 0 or tensor.device.type != "cpu":
            return tensor.device
    if tensors:
        return tensors[0].device
    return torch.get_default_device() if asked is None else torch.device(asked)


# Rules that give for symbolic sizes what torch gives, without asking more of them than it must.
SAFE_WITH_SYMBOLS: set[Any] = set()
# Filled by `rules`, which needs this module's constructors.
_RULES: dict[Any, Callable[..., Any]] = {}
_FALLBACK: list[Callable[[OpOverload, Facts, tuple[Any, ...], dict[str, Any]], Any]] = []


def _evaluate_by_meta(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _FALLBACK[0](op, facts(op), args, kwargs)
