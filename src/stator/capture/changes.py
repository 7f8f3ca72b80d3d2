"""What a function of the program changed while it was interpreted.

Contract. `Changes(tracer, roots)` notes how everything stands that a function could change: modes, output, what was
written to the user's objects, and the trace's own objects reached from `roots` (the function and its arguments).
`changed(tracer)` says in words what is different now; empty where the function did nothing but compute. It is asked
where a function runs in a way that can neither replay nor leave out an effect.
"""

from __future__ import annotations

import collections
import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from stator.tensors.abstract import AbstractTensor

if TYPE_CHECKING:
    from stator.capture.state import TracerState


def caller_step(tracer: TracerState) -> int:
    """The step at which a trace can be broken before the current operation."""
    for frame in tracer.frames[:-1]:
        if not frame.resumable:
            return frame.step
    return tracer.frames[-1].step


class Changes:
    """What a function could have changed, as it stands: compared after it was interpreted."""

    def __init__(self, tracer: TracerState, roots: Any) -> None:
        self.modes = _modes()
        self.effects = len(tracer.effects)
        self.overlays = {key: dict(overlay.writes) for key, overlay in tracer.world.overlays.items()}
        self.shadows = {key: _contents(shadow.copy) for key, shadow in tracer.world.shadow_of_copy.items()}
        self.own = [(value, _contents(value)) for value in _reachable(tracer, roots)]

    def changed(self, tracer: TracerState) -> str:
        """What changed, in words; empty where nothing did."""
        if _modes() != self.modes:
            return "leaves a mode of torch changed"
        if len(tracer.effects) != self.effects:
            return "prints or logs"
        for key, overlay in tracer.world.overlays.items():
            held = self.overlays.get(key, {})
            if overlay.writes.keys() != held.keys() or any(overlay.writes[name] is not held[name] for name in held):
                return f"writes an attribute of a {type(overlay.target).__name__} it did not make"
        for key, shadow in tracer.world.shadow_of_copy.items():
            known = self.shadows.get(key)
            if shadow.changed() if known is None else not _same(known, _contents(shadow.copy)):
                return f"changes a {type(shadow.copy).__name__} it did not make"
        for value, contents in self.own:
            if not _same(contents, _contents(value)):
                return f"changes a {type(value).__name__} it did not make"
        return ""


def _modes() -> tuple[Any, ...]:
    rows = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")]
    return (torch.is_grad_enabled(), *rows)


def _same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return len(left) == len(right) and all(one is other for one, other in zip(left, right, strict=True))


def _contents(value: Any) -> tuple[Any, ...]:
    """What a mutable value holds, by identity (kept alive by the tuple)."""
    if isinstance(value, types.CellType):
        try:
            return (value.cell_contents,)
        except ValueError:
            return ()
    if isinstance(value, dict):
        return tuple(part for pair in dict.items(value) for part in pair)
    if isinstance(value, (list, tuple, set, frozenset, collections.deque, bytearray)):
        return tuple(value)
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, types.MethodType):
        return (value.__func__, value.__self__)
    names = getattr(value, "__dict__", None)
    return tuple(part for pair in names.items() for part in pair) if isinstance(names, dict) else ()


def _reachable(tracer: TracerState, roots: Any) -> list[Any]:
    """The trace's own cells, containers and instances that a function reaches."""
    found: list[Any] = []
    seen: set[int] = set()
    pending = [roots]
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, (type, types.ModuleType, str, int, float)):
            continue
        if type(value) is AbstractTensor:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            pending.extend(value.__closure__ or ())
            pending.extend(value.__defaults__ or ())
            continue
        if isinstance(value, types.CellType) and id(value) not in tracer.own_cells:
            continue
        if tracer.world.is_outside(value) and not isinstance(value, (tuple, types.MethodType, functools.partial)):
            continue
        found.append(value)
        pending.extend(_contents(value))
    return found
