"""Checkpointed regions: what `torch.utils.checkpoint` means for a graph.

Contract. A checkpointed call is recorded inline, each of its steps marked with a region of its own; the partitioner
then keeps nothing that stays inside the region and runs it again in the backward, random numbers included. It
works for calls that stand in a graph and for calls made by Python code under a recorder: `settle_checkpoint` puts
forwarders into `torch.utils.checkpoint` that look whether the current dispatch mode is a recorder, and do what
torch does otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode

from stator.aot.dynamo_free import settle
from stator.aot.recorder import Recorder

# Arguments of `checkpoint` that are not the function's.
OPTIONS = frozenset({"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"})


class Region:
    """The identity of one checkpointed call."""

    __slots__ = ()


@contextmanager
def region(recorder: Recorder) -> Iterator[None]:
    """Steps recorded inside belong to a checkpointed region (the outermost one where they nest)."""
    outer = recorder.region
    if outer is None:
        recorder.region = Region()
    try:
        yield
    finally:
        recorder.region = outer


def run_checkpointed(recorder: Recorder, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """`checkpoint(function, *args, **kwargs)` under a recorder."""
    with region(recorder):
        return function(*args, **{name: value for name, value in kwargs.items() if name not in OPTIONS})


class _Reentrant:
    """Stands for `CheckpointFunction`, whose `apply` is all that `checkpoint` uses."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def apply(self, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        mode = _get_current_dispatch_mode()
        if isinstance(mode, Recorder):
            return run_checkpointed(mode, function, args, {})
        return self.original.apply(function, preserve, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


@functools.cache
def settle_checkpoint() -> None:
    """Make `torch.utils.checkpoint` look for a recorder."""
    module = torch.utils.checkpoint
    settle(module.checkpoint)
    original = module._checkpoint_without_reentrant_generator

    @functools.wraps(original)
    def without_reentry(*args: Any, **kwargs: Any) -> Iterator[None]:
        mode = _get_current_dispatch_mode()
        if isinstance(mode, Recorder):
            with region(mode):
                yield
            return
        yield from original(*args, **kwargs)

    module._checkpoint_without_reentrant_generator = without_reentry
    module.CheckpointFunction = _Reentrant(module.CheckpointFunction)  # type: ignore[assignment,misc]
