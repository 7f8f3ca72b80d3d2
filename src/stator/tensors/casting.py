"""Which types results have under autocast.

Contract. Autocast belongs to a device, and the meta device of the twins has none. `dtypes_under_autocast` runs the
operation once more on tensors that claim the real device and hold meta ones: on their way they pass the casts that
torch makes there. Only the types of what comes out are looked at; symbolic sizes are those of the example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from stator.tensors.abstract import AbstractTensor

_make: Any = torch.Tensor._make_wrapper_subclass
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Cast(torch.Tensor):
    """A tensor of the real device over a meta tensor."""

    held: torch.Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs or {}))
        devices = [leaf for leaf in leaves if type(leaf) is torch.device]
        devices += [leaf.device for leaf in leaves if type(leaf) is Cast]
        opened = [leaf.held if type(leaf) is Cast else leaf for leaf in leaves]
        meta = torch.device("meta")
        opened = [meta if type(leaf) is torch.device else leaf for leaf in opened]
        args, kwargs = pytree.tree_unflatten(opened, structure)
        result = function(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, lambda held: _cast(held, devices[0]), result)


def _cast(held: torch.Tensor, device: torch.device) -> Cast:
    made: Cast = _make(Cast, held.shape, strides=held.stride(), dtype=held.dtype, device=device)
    made.held = held
    return made


def is_cast(tensors: list[AbstractTensor]) -> bool:
    """Whether autocast is on for one of the tensors' devices."""
    return any(
        tensor.device.type != "meta" and torch.is_autocast_enabled(tensor.device.type)
        for tensor in tensors
        if torch.amp.is_autocast_available(tensor.device.type)
    )


def dtypes_under_autocast(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    map_leaves: Callable[[Any, Callable[[Any], Any]], Any],
) -> list[torch.dtype]:
    """The types of the tensors that an operation gives, in order."""

    def lower(leaf: Any) -> Any:
        if type(leaf) is AbstractTensor:
            sizes, strides = ([_example(part) for part in parts] for parts in (leaf.shape, leaf.strides))
            return _cast(torch.empty_strided(sizes, strides, dtype=leaf.dtype, device="meta"), leaf.device)
        return _example(leaf)

    found: list[torch.dtype] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf.dtype)
        return leaf

    with torch.no_grad():
        low_kwargs = {key: map_leaves(value, lower) for key, value in kwargs.items()}
        map_leaves(function(*map_leaves(args, lower), **low_kwargs), note)
    return found


def _example(value: Any) -> Any:
    return value.node.hint if type(value) in SYMBOLIC else value
