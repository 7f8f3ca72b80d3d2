"""Overrides of torch functions: subclasses, other classes and modes that have a `__torch_function__`.

Contract. `override` does what torch's C++ does before an operation: the innermost mode is asked first (while it runs it
is off the stack), then the operands whose classes override, subclasses before their bases. Their code is the program's
and is interpreted. `UNHANDLED` says that nobody overrides: the operation is recorded as it is.

The trace has a mode stack of its own, which begins as that of the thread; while the trace and the backend run, the
thread's own stack is set aside, so that no code of the program's runs natively. The graph has the operations that were
left when all overrides were done with, so it runs with overrides switched off.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from stator.capture.control import Break
from stator.capture.operators import lookup_special
from stator.capture.state import TracerState
from stator.tensors.abstract import AbstractTensor

UNHANDLED = object()
PLAIN_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
TENSOR_OVERRIDE: Any = vars(torch.Tensor)["__torch_function__"].__func__
NO_OVERRIDE = torch._C._disabled_torch_function_impl
NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
SLOTS = (types.MethodDescriptorType, types.WrapperDescriptorType)
OPERATORS = ("operator", "_operator")


def has_dispatch(kind: type) -> bool:
    """Whether operations on tensors of a class go to code of the class, below autograd."""
    return kind not in PLAIN_KINDS and lookup_special(kind, "__torch_dispatch__") is not NO_DISPATCH


class Overriding(enum.Enum):
    """Who is asked."""

    ALL = "modes and classes"
    MODES = "modes only: `DisableTorchFunctionSubclass`"
    NOBODY = "`DisableTorchFunction`"

    @staticmethod
    def now() -> Overriding:
        if torch._C._is_torch_function_enabled():
            return Overriding.ALL
        return Overriding.NOBODY if torch._C._is_torch_function_all_disabled() else Overriding.MODES


def function_modes() -> tuple[Any, ...]:
    """The torch function modes of this thread, the innermost last."""
    return tuple(torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack()))


@contextmanager
def modes_set_aside() -> Iterator[tuple[Any, ...]]:
    """No torch function mode of the program's is active inside."""
    modes = function_modes()
    try:
        for _ in modes:
            torch._C._pop_torch_function_stack()
        yield modes
    finally:
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)


class Overrides(TracerState):
    """The overrides part of the tracer."""

    def enter_modes(self, modes: tuple[Any, ...]) -> None:
        """The modes the program comes with."""
        state = self.tree.state()
        self.function_modes = [
            self.world.element(mode, state.child("FUNCTION_MODE", index)) for index, mode in enumerate(modes)
        ]
        self.outer_modes = tuple(self.function_modes)
        self.overriding = Overriding.now()

    def has_torch_function(self, value: Any) -> bool:
        """Whether an operand takes torch functions over (plain tensors and parameters do not)."""
        kind = value.kind if type(value) is AbstractTensor else type(value)
        if kind in PLAIN_KINDS:
            return False
        method = lookup_special(kind, "__torch_function__")
        return method is not None and method is not NO_OVERRIDE

    def asks_modes(self) -> bool:
        """Whether a mode sees the operations."""
        return bool(self.function_modes) and self.overriding is not Overriding.NOBODY

    def override(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Any], public: Any = None
    ) -> Any:
        """What the overrides make of an operation, or UNHANDLED."""
        overloaded = self._overloaded(operands) if self.overriding is Overriding.ALL else []
        if not overloaded and not self.asks_modes():
            return UNHANDLED
        self.indirect()
        if public is None:
            if type(function) is types.FunctionType:  # one that asks for overrides itself
                return self._interpret(function, list(args), kwargs)
            public, args = public_call(function, args)
        kinds = tuple(self.type_of(value) for value in overloaded)
        rest = [public, kinds, args, kwargs] if kwargs else [public, kinds, args]
        if self.asks_modes():
            result = self._ask_mode(function, rest)
            if result is not NotImplemented:
                return result
        for value in overloaded:
            result = self.call(self._override_of(value), rest, {})
            if result is not NotImplemented:
                return result
        raise Break("operator_error", f"no override of {getattr(public, '__name__', public)} handles these operands")

    def _ask_mode(self, function: Any, rest: list[Any]) -> Any:
        mode = self.function_modes.pop()
        try:
            if type(mode) is DeviceContext:
                return self._with_device(function, mode, rest)
            return self.call(self.load_attr(mode, "__torch_function__"), rest, {})
        finally:
            self.function_modes.append(mode)

    def _with_device(self, function: Any, mode: DeviceContext, rest: list[Any]) -> Any:
        """What a device context does, which every operation comes past."""
        kwargs = rest[3] if len(rest) > 3 else {}
        if rest[0] in _device_constructors() and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": self.load_attr(mode, "device")}
        return self.call(function, list(rest[2]), kwargs)

    def _override_of(self, value: Any) -> Any:
        if type(value) is not AbstractTensor:
            return self.load_attr(value, "__torch_function__")
        self.graph.guard_tensor(value)
        return self.load_attr(value.kind, "__torch_function__")

    def _overloaded(self, operands: list[Any]) -> list[Any]:
        """The operands that override, in the order they are asked: one of each class, subclasses before bases."""
        found: list[Any] = []
        kinds: list[type] = []
        for value in operands:
            if not self.has_torch_function(value):
                continue
            kind = value.kind if type(value) is AbstractTensor else type(value)
            if kind in kinds:
                continue
            place = next((index for index, other in enumerate(kinds) if issubclass(kind, other)), len(kinds))
            kinds.insert(place, kind)
            found.insert(place, value)
        return found

    # Attributes of tensors

    def override_attribute(self, tensor: AbstractTensor, name: str, action: str, *value: Any) -> Any:
        """Reading (`__get__`) or writing (`__set__`) one that torch computes; UNHANDLED if nobody overrides it."""
        asked = self.overriding is Overriding.ALL and self.has_torch_function(tensor)
        if not asked and not self.asks_modes():
            return UNHANDLED
        attribute = lookup_special(tensor.kind, name)
        if type(attribute) is not types.GetSetDescriptorType or not issubclass(torch.Tensor, attribute.__objclass__):
            return UNHANDLED
        return self.override(getattr(attribute, action), (tensor, *value), {}, [tensor])

    # What `Tensor.__torch_function__` does

    def default_override(self, cls: type, function: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        """The operation itself, its results made tensors of the subclass."""
        self.world.read_deep(kinds)
        if not all(issubclass(cls, kind) for kind in kinds):
            return NotImplemented
        before, self.overriding = self.overriding, Overriding.MODES
        try:
            result = self.call(function, self.listed(args), {} if kwargs is None else self.pairs_of(kwargs))
        finally:
            self.overriding = before
        if function in torch.overrides.get_default_nowrap_functions():
            return result
        return self.converted(result, cls)

    def converted(self, result: Any, cls: type) -> Any:
        """A result as a tensor of the subclass, or a sequence of such."""
        if cls is torch.Tensor:
            return result
        if type(result) is AbstractTensor:
            return result if issubclass(result.kind, cls) else self.as_kind(result, cls)
        if isinstance(result, (tuple, list)) and type(result) is not torch.Size:
            parts = [self.converted(part, cls) for part in result]
            return self.native(type(result), parts)
        return result

    def as_kind(self, tensor: AbstractTensor, cls: type) -> AbstractTensor:
        """Another object for the same tensor, of a subclass: the graph knows tensors alone, not their classes."""
        made = AbstractTensor(
            tensor.shape, tensor.strides, tensor.dtype, tensor.device, tensor.requires_grad, not tensor.requires_grad,
            tensor.offset, tensor.layout, cls,
        )  # fmt: skip
        made.node, made.base = self.graph.node_of(tensor), tensor
        return made


class _Probe(torch.Tensor):
    """Tells what torch calls an operation when it asks for overrides."""

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Seen(function, isinstance(args[0], _Probe))


class _Seen(Exception):
    def __init__(self, function: Any, first: bool) -> None:
        super().__init__()
        self.function = function
        self.first = first  # whether the operand that was asked is the first argument


_public_calls: dict[tuple[Any, int], tuple[Any, bool]] = {}


def public_call(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """What overrides are told of: `Tensor.add` for `+`, the reflected operands in its order; else the call itself."""
    special = type(function) in SLOTS and getattr(function, "__name__", "").startswith("__")
    if not special and getattr(function, "__module__", None) not in OPERATORS:
        return function, args
    place = next((index for index, value in enumerate(args) if type(value) is AbstractTensor), -1)
    if place < 0:
        return function, args
    key = (function, place)
    found = _public_calls.get(key)
    if found is None:
        found = _public_calls[key] = _ask_torch(function, place, args)
    public, first = found
    return public, tuple(reversed(args)) if first and place == 1 and len(args) == 2 else args


def _ask_torch(function: Callable[..., Any], place: int, args: tuple[Any, ...]) -> tuple[Any, bool]:
    with modes_set_aside():
        plain = torch.ones(1)
        values: list[Any] = [plain if type(value) is AbstractTensor else 0 for value in args]
        values[place] = plain.as_subclass(_Probe)
        try:
            function(*values)
        except _Seen as seen:
            return seen.function, seen.first
        except Exception:
            return function, False
    return function, False
