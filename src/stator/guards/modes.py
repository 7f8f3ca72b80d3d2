"""Global state that a trace may depend on, read the slow and certain way.

Contract. `read_modes()` returns the `ModesExpectation` of this thread at this moment with every field filled in;
`modes_match` compares one such reading with an expectation field by field, `None` meaning "not looked at". The
native core reads the same state through exported functions where it finds them; this module is what those
readings are calibrated against and what explains a miss.

`autocast` has one row (device type, enabled, dtype) per device type asked for, then ("cache", enabled, None).
`default_device` is the device of the innermost `torch.device` context or `torch.set_default_device`, else the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch.utils._device import DeviceContext

from stator.values.source import ModesExpectation

FIELDS: tuple[str, ...] = tuple(field.name for field in fields(ModesExpectation))
CPU = torch.device("cpu")


def default_device() -> torch.device:
    """The device of the innermost device context of this thread, without allocating a tensor to find out."""
    for position in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(position)
        if type(mode) is DeviceContext:
            return mode.device
    return CPU


def autocast_rows(device_types: Sequence[str]) -> tuple[tuple[str, bool, Any], ...]:
    """The autocast state of these device types, the cache flag last."""
    rows: list[tuple[str, bool, Any]] = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in device_types
    ]
    rows.append(("cache", torch.is_autocast_cache_enabled(), None))
    return tuple(rows)


def autocast_devices() -> tuple[str, ...]:
    """Device types worth recording: the CPU and the accelerator torch was built for."""
    return ("cpu", "cuda") if torch._C._has_cuda else ("cpu",)


def read_modes(device_types: Sequence[str] | None = None) -> ModesExpectation:
    """The state of this thread now."""
    return ModesExpectation(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast=autocast_rows(autocast_devices() if device_types is None else device_types),
        default_dtype=torch.get_default_dtype(),
        default_device=default_device(),
        deterministic=(
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        torch_function_modes=torch._C._len_torch_function_stack(),
        torch_dispatch_modes=torch._C._len_torch_dispatch_stack(),
        torch_function_enabled=torch._C._is_torch_function_enabled(),
        torch_function_off=torch._C._is_torch_function_all_disabled(),
    )


def modes_match(expected: ModesExpectation, actual: ModesExpectation) -> str | None:
    """The name of the first field that differs, None when all that is expected holds."""
    for name in FIELDS:
        wanted = getattr(expected, name)
        if wanted is not None and wanted != getattr(actual, name):
            return name
    return None


def read_like(expected: ModesExpectation) -> ModesExpectation:
    """The state now, with autocast rows for the device types `expected` names."""
    rows = expected.autocast
    return read_modes(None if rows is None else tuple(row[0] for row in rows if row[0] != "cache"))
