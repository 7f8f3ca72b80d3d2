"""The stance of the process: whether a call without a matching entry compiles, runs eagerly, or is an error.

Contract. `decide(has_entries)` answers for one miss. `set_stance` changes it and gives an object that restores it when
used as a context manager or decorator. `force_eager` is known to the native dispatcher, which then calls the function
directly; the other stances are asked here, on misses alone.

State: one stance for the process, as in torch; replaced as a whole.
"""

from __future__ import annotations

import enum
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

from stator._native import core
from stator.exc import InvalidOption

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")


class Answer(enum.Enum):
    """What a miss may do."""

    COMPILE = "compile"
    EAGER = "eager"
    FAIL = "fail"


class _State:
    name = "default"
    seen: set[int] = set()


_state = _State()
_lock = threading.Lock()


def decide(has_entries: bool) -> Answer:
    """What a call without a matching entry does."""
    name = _state.name
    if name == "force_eager":
        return Answer.EAGER
    if name == "eager_on_recompile" and has_entries:
        return Answer.EAGER
    if name == "eager_on_recompile":
        return Answer.EAGER
    if name == "fail_on_recompile":
        return Answer.FAIL
    return Answer.COMPILE


def current() -> str:
    return _state.name


class set_stance:
    """Set the stance; used with `with` or as a decorator it holds inside only."""

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None
    ) -> None:
        if stance not in STANCES:
            raise InvalidOption(f"no stance {stance!r}: it is one of {', '.join(STANCES)}")
        if force_backend is not None and stance != "default":
            raise InvalidOption("force_backend goes with the default stance only")
        self.stance = stance
        self.previous = _state.name
        _install(stance)

    def __enter__(self) -> None:
        _install(self.stance)

    def __exit__(self, *_: object) -> None:
        _install(self.previous)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        _install(self.previous)
        chosen = self.stance

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            before = _state.name
            _install(chosen)
            try:
                return function(*args, **kwargs)
            finally:
                _install(before)

        return inside


def _install(name: str) -> None:
    with _lock:
        _state.name = name
        core.set_mode(1 if name == "force_eager" else 0)


def warn(text: str) -> None:
    """Tell the user once."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


__all__ = ["STANCES", "Answer", "current", "decide", "set_stance", "warn"]
