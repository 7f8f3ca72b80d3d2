"""Values that only the run time knows, captured: numbers out of tensors, and results whose size hangs on the data.

Contract. Under `capture_scalar_outputs`, `.item()`, `.tolist()`, `int()` and `float()` of a tensor give symbols
without an example value; under `capture_dynamic_output_shape_ops` the rows of `SHAPES` give tensors whose first size is
one. The operation is a node of the graph, marked `at_run_time`, and the symbol is read from its result.
`NotImplemented`: the settings or the case do not allow it, and the graph ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stator import config
from stator.tensors.abstract import AbstractTensor, contiguous_strides

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer

LONGEST_LIST = 256  # elements of a `tolist` that are captured one by one


def number_of(tracer: Tracer, tensor: AbstractTensor, cls: type | None = None) -> Any:
    """`tensor.item()`, or `cls(tensor)`."""
    context = tracer.graph.sizes
    if context is None or not config.capture_scalar_outputs or tensor.layout is not torch.strided:
        return NotImplemented
    if tensor.dtype is torch.bool or tensor.dtype.is_complex or any(size != 1 for size in tensor.shape):
        return NotImplemented
    label = f"{_name(tracer, tensor)}.item()"
    whole = not tensor.dtype.is_floating_point
    value: Any = context.unbacked(label, low=None) if whole else context.unbacked_float(label)
    node = tracer.graph.call(torch.Tensor.item, (tensor,), {}, value)
    node.meta["at_run_time"] = True
    tracer.graph.tells(value, node, None)
    tracer.mark_symbolic()
    if cls is int and not whole:
        return tracer.native(torch.sym_int, value)
    return tracer.native(torch.sym_float, value) if cls is float and whole else value


def list_of(tracer: Tracer, tensor: AbstractTensor) -> Any:
    """`tensor.tolist()`, element by element."""
    if not tensor.shape:
        return number_of(tracer, tensor)
    count = tensor.shape[0]
    if len(tensor.shape) > 1 or type(count) is not int or count > LONGEST_LIST or not config.capture_scalar_outputs:
        return NotImplemented
    if tensor.dtype is torch.bool or tensor.dtype.is_complex:
        return NotImplemented
    return [number_of(tracer, tracer.get_item(tensor, place)) for place in range(count)]


def _nonzero(x: AbstractTensor, count: Any) -> Any:
    rank = len(x.shape)
    return (count, rank), (1, count), torch.int64, False


def _argwhere(x: AbstractTensor, count: Any) -> Any:
    return _nonzero(x, count) if x.shape else NotImplemented


def _selected(x: AbstractTensor, count: Any, mask: Any) -> Any:
    if type(mask) is not AbstractTensor or mask.dtype is not torch.bool:
        return NotImplemented
    return (count,), (1,), x.dtype, x.requires_grad and torch.is_grad_enabled()


def _unique(x: AbstractTensor, count: Any) -> Any:
    return ((count,), (1,), x.dtype, False) if not x.requires_grad else NotImplemented


def _indexed(x: AbstractTensor, count: Any, mask: Any) -> Any:
    """`x[mask]` for a mask over the first dimensions of a contiguous tensor."""
    if type(mask) is not AbstractTensor or mask.dtype is not torch.bool or not mask.shape:
        return NotImplemented
    rest = tuple(x.shape[len(mask.shape) :])
    if tuple(mask.shape) != tuple(x.shape[: len(mask.shape)]) or x.strides != contiguous_strides(x.shape):
        return NotImplemented
    shape = (count, *rest)
    return shape, contiguous_strides(shape), x.dtype, x.requires_grad and torch.is_grad_enabled()


# name -> (its tensor, the size, further arguments) to (shape, strides, dtype, requires_grad)
SHAPES: dict[str, Callable[..., Any]] = {
    "nonzero": _nonzero,
    "argwhere": _argwhere,
    "masked_select": _selected,
    "unique": _unique,
    "__getitem__": _indexed,
    "getitem": _indexed,
}


def tensor_of(tracer: Tracer, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operation whose size hangs on the data."""
    if name == "_return_output" and not any(args[2:]) and not any(kwargs.values()):
        function, name, args, kwargs = torch.unique, "unique", args[:1], {}  # it is what torch.unique calls
    context, shape_of = tracer.graph.sizes, SHAPES.get(name)
    if context is None or shape_of is None or kwargs or not config.capture_dynamic_output_shape_ops:
        return NotImplemented
    x = args[0]
    if type(x) is not AbstractTensor or x.layout is not torch.strided or len(args) > 2:
        return NotImplemented
    count = context.unbacked(f"{name}({_name(tracer, x)}).size(0)")
    try:
        made = shape_of(x, count, *args[1:])
    except TypeError:
        return NotImplemented
    if made is NotImplemented:
        return NotImplemented
    shape, strides, dtype, grad = made
    size: Any = torch.Size(shape)
    result = AbstractTensor(size, strides, dtype, x.device, grad, not grad)
    node = tracer.graph.call(function, args, kwargs, result)
    node.meta["at_run_time"] = True
    result.node = node
    tracer.graph.tells(count, node, 0)
    tracer.mark_symbolic()
    return result


def _name(tracer: Tracer, tensor: AbstractTensor) -> str:
    if tensor.source is not None:
        return str(tensor.source)
    return tensor.held_as or "a tensor"
