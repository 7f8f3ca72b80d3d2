"""Random numbers drawn twice: the state of a generator as a value of the graph.

Contract. Random operators are never recomputed, but for checkpointed regions, where recomputing is the point. There
the forward keeps the generator's state from just before the operator (`rng_state`), and the backward runs the
operator again from that state and leaves the generator as it found it (`with_rng_state`). So the user's random stream
is that of eager `torch.utils.checkpoint`, and both runs draw the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch


def rng_state(device: torch.device) -> torch.Tensor:
    """The state of a device's default generator now."""
    if device.type == "cpu":
        return torch.get_rng_state()
    state: torch.Tensor = torch.get_device_module(device.type).get_rng_state(device)
    return state


def with_rng_state(state: torch.Tensor, device: torch.device, op: Any, *args: Any, **kwargs: Any) -> Any:
    """`op` run from that state; the generator is put back afterwards."""
    kept = rng_state(device)
    set_state(device, state)
    try:
        return op(*args, **kwargs)
    finally:
        set_state(device, kept)


def set_state(device: torch.device, state: torch.Tensor) -> None:
    """Give a device's default generator a state."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device.type).set_rng_state(state, device)


STATE_BYTES = {"cpu": 5056}

rng_state.has_effects = False  # type: ignore[attr-defined]
with_rng_state.has_effects = False  # type: ignore[attr-defined]
