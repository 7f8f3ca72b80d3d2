"""The abstract tensor of the capture stage: what a tensor is known to be, without its data.

Contract. An `AbstractTensor` answers `isinstance` as the tensor it stands for (`__class__` tells its class), holds
the facts a program may ask of a tensor, and carries the graph node that computes it. It is a plain Python
object, not a tensor: made in under a microsecond, and no C code can read data out of it. Whatever Python or C does
to it (an operator, a torch function, an attribute) ends in the `recorder` of the thread, which records it.

Why not a wrapper subclass: making one costs ten times as much, and C code that does not know of it would treat
it as a tensor with storage.

State: the current recorder is per thread, because one thread traces while others run.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    import torch.fx

    from stator.values.source import Source


class Recorder(Protocol):
    """What the capture stage does with operations that reach an abstract tensor from outside the interpreter."""

    def operate(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def attribute(self, tensor: AbstractTensor, name: str) -> Any: ...

    def truth(self, tensor: AbstractTensor, what: str) -> Any: ...


class _Current(threading.local):
    recorder: Recorder | None = None


current = _Current()


class StrayAbstractTensor(RuntimeError):
    """An abstract tensor was used outside of the trace that made it: a defect of stator, never of the user."""


def _recorder() -> Recorder:
    recorder = current.recorder
    if recorder is None:
        raise StrayAbstractTensor("a value of a finished trace was used outside of it")
    return recorder


class AbstractTensor:
    """One tensor of a trace. Facts are plain fields; `node` or `producer` say how the graph computes it."""

    __slots__ = (
        "__weakref__",
        "attributes",
        "base",
        "device",
        "dtype",
        "grad",
        "held_as",
        "index",
        "is_leaf",
        "kind",
        "layout",
        "mutated",
        "node",
        "offset",
        "producer",
        "real",
        "requires_grad",
        "shape",
        "source",
        "strides",
        "twin",
    )

    def __init__(
        self,
        shape: torch.Size,
        strides: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        requires_grad: bool,
        is_leaf: bool = False,
        offset: int | torch.SymInt = 0,
        layout: torch.layout = torch.strided,
        kind: type = torch.Tensor,
    ) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.device = device
        self.requires_grad = requires_grad
        self.is_leaf = is_leaf
        self.offset: Any = offset
        self.layout = layout
        self.kind = kind
        self.twin: Any = None
        self.node: torch.fx.Node | None = None
        # A result among several of one node: the node, and the path of indexes to this one.
        self.producer: torch.fx.Node | None = None
        self.index: tuple[Any, ...] = ()
        self.source: Source | None = None
        self.real: torch.Tensor | None = None
        self.base: AbstractTensor | None = None
        self.grad: Any = None
        self.attributes: dict[str, Any] | None = None
        self.held_as: str | None = None  # the local variable that first held it
        self.mutated = False  # whether an operation of the trace changed it in place

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _recorder().operate(function, args, kwargs or {})

    def is_symbolic(self) -> bool:
        """Whether a size or stride is symbolic."""
        numbers: tuple[Any, ...] = (*self.shape, *self.strides)
        return any(type(number) is torch.SymInt for number in numbers)

    @property
    def _is_param(self) -> bool:
        return issubclass(self.kind, torch.nn.Parameter)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _recorder().attribute(self, name)

    # What fx and backends ask of an example value.
    def stride(self, dim: int | None = None) -> Any:
        return self.strides if dim is None else self.strides[dim]

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def storage_offset(self) -> Any:
        return self.offset

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> Any:
        count: Any = 1
        for size in self.shape:
            count = count * size
        return count

    def __bool__(self) -> bool:
        return bool(_recorder().truth(self, "bool"))

    def __int__(self) -> int:
        return int(_recorder().truth(self, "int"))

    def __float__(self) -> float:
        return float(_recorder().truth(self, "float"))

    def __complex__(self) -> complex:
        return complex(_recorder().truth(self, "complex"))

    def __index__(self) -> int:
        return int(_recorder().truth(self, "index"))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return int(self.shape[0])

    def __iter__(self) -> Any:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter(_recorder().operate(torch.Tensor.unbind, (self, 0), {}))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        return f"{self.kind.__name__}({sizes}; {self.dtype}, {self.device})"

    def __format__(self, specification: str) -> str:
        return str(_recorder().truth(self, "format"))


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: AbstractTensor, other: Any) -> Any:
        return _recorder().operate(function, (self, other), {})

    return method


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: AbstractTensor, other: Any) -> Any:
        return _recorder().operate(function, (other, self), {})

    return method


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: AbstractTensor) -> Any:
        return _recorder().operate(function, (self,), {})

    return method


_BINARY = "add sub mul matmul truediv floordiv mod pow lshift rshift and_ or_ xor"
for _name in _BINARY.split():
    _dunder = _name.rstrip("_")
    setattr(AbstractTensor, f"__{_dunder}__", _binary(getattr(operator, _name)))
    setattr(AbstractTensor, f"__r{_dunder}__", _reflected(getattr(operator, _name)))
    setattr(AbstractTensor, f"__i{_dunder}__", _binary(getattr(operator, "i" + _dunder)))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(AbstractTensor, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "pos", "invert", "abs"):
    setattr(AbstractTensor, f"__{_name}__", _unary(getattr(operator, _name)))
setattr(AbstractTensor, "__getitem__", _binary(operator.getitem))


def _setitem(self: AbstractTensor, key: Any, value: Any) -> None:
    _recorder().operate(operator.setitem, (self, key, value), {})


setattr(AbstractTensor, "__setitem__", _setitem)
AbstractTensor.__hash__ = lambda self: id(self)  # type: ignore[method-assign]


def is_abstract(value: Any) -> bool:
    """Whether `value` is an abstract tensor (`isinstance` answers for the tensor it stands for)."""
    return type(value) is AbstractTensor


def contiguous_strides(shape: Any) -> tuple[Any, ...]:
    """Row-major strides, as torch computes them (a dimension of size 0 counts as 1)."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (size if not isinstance(size, int) or size > 0 else 1)
    strides.reverse()
    return tuple(strides)


def is_leaf(tensor: torch.Tensor, otherwise: bool) -> bool:
    """Whether a real tensor is a leaf. Torch does not say of a view made in no_grad mode and written there since."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return otherwise
