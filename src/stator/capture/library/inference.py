"""Inference mode inside of compiled functions.

Contract. A graph runs under one mode. Where inference mode is entered before the graph's first operation and no
operation follows its end, the whole graph runs under it, so that what it makes are inference tensors. Elsewhere the
mode is entered by plain Python: the trace is made again, with a break where the mode was made.

The trace itself does not enter it (stand-ins made under it would be of no use outside), gradients are off instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stator.capture.control import Break

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


def swap(mode: InferenceMode | None) -> bool:
    """Enters the mode in the trace, or leaves it; a row of `FUNCTIONS` stands for it."""
    raise AssertionError("called outside of a trace")


class InferenceMode:
    """What `torch.inference_mode` enters, as the trace has it."""

    def __enter__(self) -> None:
        self.grad = swap(self)

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        swap(None)
        torch.set_grad_enabled(self.grad)


def _make(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    plain = args == [True] and not kwargs and not torch.is_inference_mode_enabled()
    if not plain or tracer.inference is not None or tracer.graph.operations:
        raise Break("inference_mode", "the graph has begun already" if plain else f"mode {args}")
    return tracer.instantiate(InferenceMode, [], {})


def _swap(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    before = torch.is_grad_enabled()
    if args[0] is None:
        tracer.inference_over = tracer.inference is not None and bool(tracer.graph.operations)
    else:
        tracer.inference_made = tracer.born[id(args[0])]
        torch._C._set_grad_enabled(False)
    tracer.inference = args[0]
    return before


def _is_enabled(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return tracer.inference is not None or torch.is_inference_mode_enabled()


FUNCTIONS: dict[Any, Any] = {swap: _swap, torch.is_inference_mode_enabled: _is_enabled}
CLASSES: dict[type, Any] = {torch._C._InferenceMode: _make}
