"""What `nn.Module` does in its own attribute hooks, said directly: interpreting them for every counter is slow, and
they read the instance `__dict__`, which pending writes are not in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stator.capture.control import UserException
from stator.values.world import DELETED

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer

HOLDERS = ("_parameters", "_buffers", "_modules")


def _holds(tracer: Tracer, module: Any, holder: str, name: str) -> bool:
    """Whether one of the module's dictionaries has the name, pending changes included."""
    held = object.__getattribute__(module, "__dict__").get(holder)
    if held is None:
        return False
    shadow = tracer.world.shadow_of_original.get(id(held))
    return name in (held if shadow is None else shadow.copy)


def _remove(tracer: Tracer, module: Any, name: str, *holders: str) -> None:
    for holder in holders:
        if _holds(tracer, module, holder, name):
            tracer.delete_item(tracer.load_attr(module, holder), name)
    names = object.__getattribute__(module, "__dict__")
    written = tracer.world.written(module, name)
    if (name in names and written is not DELETED) or written not in (NotImplemented, DELETED):
        tracer.raw_delete(module, name)
    non_persistent = names.get("_non_persistent_buffers_set")
    if non_persistent and name in non_persistent:
        tracer.call(tracer.load_attr(tracer.load_attr(module, "_non_persistent_buffers_set"), "discard"), [name], {})


def _refuse(value: Any, name: str, what: str) -> UserException:
    kind = (
        torch.typename(type(value)) if isinstance(value, type) else f"{type(value).__module__}.{type(value).__name__}"
    )
    return UserException(TypeError(f"cannot assign '{kind}' as {what} '{name}' (torch.nn.Parameter or None expected)"))


def _setattr(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    module, name, value = args
    if "_parameters" not in object.__getattribute__(module, "__dict__"):
        return NotImplemented
    if tracer.is_instance(value, torch.nn.Parameter):
        _remove(tracer, module, name, "_buffers", "_modules")
        tracer.set_item(tracer.load_attr(module, "_parameters"), name, value)
    elif _holds(tracer, module, "_parameters", name):
        if value is not None:
            return NotImplemented
        tracer.set_item(tracer.load_attr(module, "_parameters"), name, None)
    elif isinstance(value, torch.nn.Module):
        _remove(tracer, module, name, "_parameters", "_buffers")
        tracer.set_item(tracer.load_attr(module, "_modules"), name, value)
    elif _holds(tracer, module, "_modules", name):
        if value is not None:
            return NotImplemented
        tracer.set_item(tracer.load_attr(module, "_modules"), name, None)
    elif _holds(tracer, module, "_buffers", name):
        if value is not None and not tracer.is_instance(value, torch.Tensor):
            return NotImplemented
        tracer.set_item(tracer.load_attr(module, "_buffers"), name, value)
    else:
        tracer.raw_store(module, name, value)
    return None


def _delattr(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    module, name = args
    for holder in HOLDERS:
        if _holds(tracer, module, holder, name):
            tracer.delete_item(tracer.load_attr(module, holder), name)
            return None
    tracer.raw_delete(module, name)
    return None


FUNCTIONS: dict[Any, Any] = {
    torch.nn.Module.__setattr__: _setattr,
    torch.nn.Module.__delattr__: _delattr,
}
