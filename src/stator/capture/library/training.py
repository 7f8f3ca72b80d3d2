"""What training steps call of torch: gradients, optimizers' wrappers, profiler labels, numbers that are tensors.

Contract. Gradients are computed where the program asks for them, by torch's engine on real tensors: one break. What
torch wraps around its optimizers to steer another compiler (`_disable_dynamo`, the grad mode of `step`) is seen
through: calling it would import that compiler. Labels for the profiler are not kept. Where torch takes a tensor for
a number (`addcdiv_(value=tensor)`), the arithmetic of its kernel is recorded, so that the number is not read here.

Why step counts are doubles: eager reads them with `item()` and computes bias corrections in Python's floats. Read as
a tensor of doubles they give the same bits without a break, and stay inputs of the graph.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx.traceback
from torch._compile import _disable_dynamo
from torch.optim import optimizer as optimizers

from stator.capture.control import Break
from stator.tensors.abstract import AbstractTensor

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


class UnrecordedLabel(torch.autograd.profiler.record_function):
    """A label of a traced program: it shows nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> UnrecordedLabel:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        return None


def _label(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.instantiate(UnrecordedLabel, [args[0] if args else kwargs["name"]], {})


def _annotation(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A label on nodes that torch's own tracers make."""
    return tracer.instantiate(UnrecordedLabel, ["annotation"], {})


def _gradients(name: str) -> Any:
    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise Break("gradient_call", name)

    return handler


def _requires_grad(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A tensor of the trace says what autograd knows of it; only plain Python can change what autograd knows."""
    tensor, wanted = args[0], (args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
    if type(tensor) is not AbstractTensor:
        return NotImplemented
    tracer.graph.guard_tensor(tensor)
    if tensor.requires_grad is not wanted:
        raise Break("autograd_state", f"requires_grad_({wanted})")
    return tensor


def _retain_grad(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if type(tensor) is not AbstractTensor:
        return NotImplemented
    tracer.graph.guard_tensor(tensor)
    if tensor.requires_grad and tensor.is_leaf:
        return None
    raise Break("autograd_state", "retain_grad()")


def _is_inference(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """No stand-in knows in which mode the tensor it stands for was made."""
    raise Break("tensor_attribute", "is_inference()")


def _wrapped(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a decorator of torch's was put around."""
    tracer.guard_function(function)
    return tracer.call(tracer.load_attr(function, "__wrapped__"), args, kwargs)


def in_its_grad_mode(step: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
    """What torch's decorator of `Optimizer.step` does, without steering a compiler."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(optimizer.defaults["differentiable"])
        return step(optimizer, *args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def _step(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tracer.guard_function(function)
    return tracer.call(in_its_grad_mode, [tracer.load_attr(function, "__wrapped__"), *args], kwargs)


def _value(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`item()` of a step count, left a tensor."""
    value = args[0]
    if type(value) is not AbstractTensor or not value.dtype.is_floating_point:
        return NotImplemented
    number = tracer.operate(torch.Tensor.to, (value, torch.float64), {})
    tracer.numbers[id(number)] = number
    return number


def _number(tracer: Tracer, value: Any, target: Any) -> Any:
    """A tensor that stands for a number, in the type the kernel computes in; NotImplemented where it is none."""
    plain = type(value) is AbstractTensor and not value.shape and not value.requires_grad
    if not plain or type(target) is not AbstractTensor or not target.dtype.is_floating_point:
        return NotImplemented
    return tracer.operate(torch.Tensor.to, (value, target.dtype), {})


def _scaled(combine: Any, add: Any) -> Any:
    """`addcdiv(self, a, b, value=v)` is `self + v * a / b`; `addcmul` multiplies."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 3 or set(kwargs) != {"value"}:
            return NotImplemented
        number = _number(tracer, kwargs["value"], args[0])
        if number is NotImplemented:
            return NotImplemented
        scaled = tracer.operate(torch.Tensor.mul, (args[1], number), {})
        return tracer.operate(add, (args[0], tracer.operate(combine, (scaled, args[2]), {})), {})

    return handler


def _scaled_each(scaled: Any, in_place: bool) -> Any:
    """The same for lists, with a tensor of one number for each."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 4 or kwargs or type(args[3]) is not AbstractTensor or len(args[3].shape) != 1:
            return NotImplemented
        lists = [tracer.listed(part) for part in args[:3]]
        if len({len(part) for part in lists} | {args[3].shape[0]}) != 1:
            return NotImplemented
        results = []
        for index, parts in enumerate(zip(*lists, strict=True)):
            number = tracer.operate(operator.getitem, (args[3], index), {})
            results.append(scaled(tracer, list(parts), {"value": number}))
        if any(result is NotImplemented for result in results):
            raise Break("operator_error", "a list operation with numbers that are tensors")
        return None if in_place else tuple(results)

    return handler


def _weighted(add: Any) -> Any:
    """`add(self, other, alpha=a)` is `self + a * other`."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 2 or set(kwargs) != {"alpha"}:
            return NotImplemented
        number = _number(tracer, kwargs["alpha"], args[0])
        if number is NotImplemented:
            return NotImplemented
        return tracer.operate(add, (args[0], tracer.operate(torch.Tensor.mul, (args[1], number), {})), {})

    return handler


def _grouped(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lists of tensors by the device and dtype of the first list's: torch groups empty ones, which says its order."""
    lists = [tracer.listed(part) for part in tracer.listed(args[0])]
    wanted = args[1] if len(args) > 1 else kwargs.get("with_indices", False)
    if not lists or any(type(tensor) is not AbstractTensor for tensor in lists[0]):
        return NotImplemented
    if any(len(part) not in (0, len(lists[0])) for part in lists):
        return NotImplemented
    for tensor in lists[0]:
        tracer.graph.guard_tensor(tensor)
    empty = [torch.empty(0, dtype=tensor.dtype, device=tensor.device) for tensor in lists[0]]
    groups = tracer.native(torch._C._group_tensors_by_device_and_dtype, [empty], True)
    return {
        key: ([[part[index] for index in indices] if part else [] for part in lists], indices if wanted else [])
        for key, (_, indices) in groups.items()
    }


FUNCTIONS: dict[Any, Any] = {
    torch._C._group_tensors_by_device_and_dtype: _grouped,
    torch.Tensor.backward: _gradients("Tensor.backward"),
    torch.autograd.backward: _gradients("torch.autograd.backward"),
    torch.autograd.grad: _gradients("torch.autograd.grad"),
    torch.Tensor.requires_grad_: _requires_grad,
    torch.Tensor.retain_grad: _retain_grad,
    torch.Tensor.is_inference: _is_inference,
    torch.is_inference: _is_inference,
    torch.fx.traceback.annotate: _annotation,
    optimizers._get_value: _value,
    torch.addcdiv: _scaled(torch.Tensor.div, torch.Tensor.add),
    torch.addcmul: _scaled(torch.Tensor.mul, torch.Tensor.add),
    torch.Tensor.addcdiv: _scaled(torch.Tensor.div, torch.Tensor.add),
    torch.Tensor.addcmul: _scaled(torch.Tensor.mul, torch.Tensor.add),
    torch.Tensor.addcdiv_: _scaled(torch.Tensor.div, torch.Tensor.add_),
    torch.Tensor.addcmul_: _scaled(torch.Tensor.mul, torch.Tensor.add_),
    torch._foreach_addcdiv: _scaled_each(_scaled(torch.Tensor.div, torch.Tensor.add), in_place=False),
    torch._foreach_addcmul: _scaled_each(_scaled(torch.Tensor.mul, torch.Tensor.add), in_place=False),
    torch._foreach_addcdiv_: _scaled_each(_scaled(torch.Tensor.div, torch.Tensor.add_), in_place=True),
    torch._foreach_addcmul_: _scaled_each(_scaled(torch.Tensor.mul, torch.Tensor.add_), in_place=True),
    torch.add: _weighted(torch.Tensor.add),
    torch.sub: _weighted(torch.Tensor.sub),
    torch.Tensor.add: _weighted(torch.Tensor.add),
    torch.Tensor.sub: _weighted(torch.Tensor.sub),
    torch.Tensor.add_: _weighted(torch.Tensor.add_),
    torch.Tensor.sub_: _weighted(torch.Tensor.sub_),
}
CLASSES: dict[type, Any] = {torch.autograd.profiler.record_function: _label}
# Functions that torch's decorators make, known by the code they share.
CODES: dict[types.CodeType, Any] = {
    _disable_dynamo(lambda: None).__code__: _wrapped,
    optimizers._use_grad_for_differentiable(lambda: None).__code__: _step,
}
