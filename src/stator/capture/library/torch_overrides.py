"""What programs call of torch's override protocol: modes, the switches, and the protocol's own helpers.

Contract. The mode stack and the switches are the trace's (`capture/overrides.py`); at a break the residual program
makes the thread's stack what the trace has it to be. The switches are C objects that act while they are entered, so
where one is live at a break, plain Python makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.overrides
from torch.utils._device import DeviceContext

from stator.capture.control import Break, UserException
from stator.capture.overrides import TENSOR_OVERRIDE, UNHANDLED, Overriding
from stator.tensors.abstract import AbstractTensor

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


def swap(state: Overriding) -> Overriding:
    """Sets who is asked in the trace; a row of `FUNCTIONS` stands for it."""
    raise AssertionError("called outside of a trace")


class Switch:
    """`DisableTorchFunction` and its like, as the trace has them."""

    def __init__(self, state: Overriding) -> None:
        self.state = state

    def __enter__(self) -> None:
        self.before = swap(self.state)

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        swap(self.before)


def _swap(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Overriding:
    before, tracer.overriding = tracer.overriding, args[0]
    return before


def _switch(state: Overriding) -> Any:
    def handler(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
        weaker = state is Overriding.MODES and tracer.overriding is Overriding.NOBODY
        return tracer.instantiate(Switch, [Overriding.NOBODY if weaker else state], {})

    return handler


def _has_torch_function(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    if tracer.asks_modes():
        return True
    if tracer.overriding is not Overriding.ALL:
        return False
    values = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    return any(tracer.has_torch_function(value) for value in values)


def _handle_torch_function(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    public, operands, *rest = args
    result = tracer.override(public, tuple(rest), kwargs, tracer.listed(operands), public)
    if result is UNHANDLED:
        raise UserException(TypeError(f"no implementation found for '{public.__module__}.{public.__name__}'"))
    return result


def _default_override(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    cls, function, kinds = args[:3]
    given = args[3] if len(args) > 3 else kwargs.get("args", ())
    named = args[4] if len(args) > 4 else kwargs.get("kwargs")
    return tracer.default_override(cls, function, kinds, given, named)


def _push(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> None:
    tracer.function_modes.append(args[0])


def _pop(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not tracer.function_modes:
        raise Break("operator_error", "popping a torch function mode that is not there")
    return tracer.function_modes.pop()


def _device_enter(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    device = args[0]
    mode = tracer.native(object.__new__, DeviceContext)
    mode.device = device
    tracer.function_modes.append(mode)
    return device


def _device_exit(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> None:
    _pop(tracer, [], {})


def _depth(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> int:
    return len(tracer.function_modes)


def _at(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native(tracer.function_modes.__getitem__, *args)


def _as_subclass(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tensor, cls = args[0], args[1] if len(args) > 1 else kwargs["cls"]
    if type(tensor) is not AbstractTensor or not isinstance(cls, type) or not issubclass(cls, torch.Tensor):
        return NotImplemented
    return tracer.as_kind(tensor, cls)


def _make_subclass(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`Tensor._make_subclass(cls, data)`: a tensor of its own over the same data."""
    if len(args) != 2 or kwargs or type(args[1]) is not AbstractTensor:
        raise Break("tensor_creation", "Tensor._make_subclass")
    return tracer.as_kind(tracer.record(torch.Tensor.detach, (args[1],), {}), args[0])


def _default_device(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Contexts are read off the trace's stack; the device then gets its index as torch gives it."""
    for mode in reversed(tracer.function_modes):
        if type(mode) is DeviceContext:
            device = tracer.load_attr(mode, "device")
            if device.index is not None or device.type in ("cpu", "meta"):
                return device
            with torch.device(device):
                return tracer.native(torch.get_default_device)
    return tracer.native(torch.get_default_device)


FUNCTIONS: dict[Any, Any] = {
    swap: _swap,
    TENSOR_OVERRIDE: _default_override,
    torch.overrides.handle_torch_function: _handle_torch_function,
    torch.overrides.has_torch_function: _has_torch_function,
    torch._C._has_torch_function: _has_torch_function,
    torch._C._has_torch_function_unary: _has_torch_function,
    torch._C._has_torch_function_variadic: _has_torch_function,
    torch._C._push_on_torch_function_stack: _push,
    torch._C._pop_torch_function_stack: _pop,
    torch._C._len_torch_function_stack: _depth,
    torch._C._get_function_stack_at: _at,
    torch._C._is_torch_function_mode_enabled: lambda tracer, args, kwargs: tracer.asks_modes(),
    torch._C._is_torch_function_enabled: lambda tracer, args, kwargs: tracer.overriding is Overriding.ALL,
    torch._C._is_torch_function_all_disabled: lambda tracer, args, kwargs: tracer.overriding is Overriding.NOBODY,
    torch.device.__enter__: _device_enter,
    torch.device.__exit__: _device_exit,
    torch.get_default_device: _default_device,
    torch.Tensor.as_subclass: _as_subclass,
    torch.Tensor._make_subclass: _make_subclass,
}
SWITCHES: tuple[tuple[Any, Overriding], ...] = (
    (torch._C.DisableTorchFunctionSubclass, Overriding.MODES),
    (torch._C.DisableTorchFunction, Overriding.NOBODY),
)
CLASSES: dict[type, Any] = {switch: _switch(state) for switch, state in SWITCHES}
