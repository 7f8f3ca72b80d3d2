"""The stance of the process: whether a call without a matching entry compiles, runs eagerly, or is an error.

Contract. `decide(place)` answers for one miss. `set_stance` changes the stance; used as a context manager or decorator
it holds inside only. `force_eager` is known to the native dispatcher, which then calls the function directly; the other
stances are asked here, on misses alone: entries whose guards hold are used in every stance but that one.

    default              compile
    force_eager          run eagerly, whatever is compiled
    eager_on_recompile   run eagerly
    fail_on_recompile    an error
    eager_then_compile   the first call of a function runs eagerly and only shows what its sizes are; from the second
                         on compile, knowing which sizes differed

State: one stance for the process, as in torch; replaced as a whole.
"""

from __future__ import annotations

import enum
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from stator._native import core
from stator.exc import InvalidOption

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")


class Answer(enum.Enum):
    """What a miss may do."""

    COMPILE = "compile"
    EAGER = "eager"
    LOOK = "run eagerly, but remember the sizes"
    FAIL = "fail"


ANSWERS = {
    "default": Answer.COMPILE,
    "force_eager": Answer.EAGER,
    "eager_on_recompile": Answer.EAGER,
    "fail_on_recompile": Answer.FAIL,
}


class Stance(NamedTuple):
    """A stance, and the backend it forces (a callable, or a name)."""

    name: str = "default"
    backend: Any = None


class _State:
    stance = Stance()


_state = _State()
_lock = threading.Lock()


def decide(seen_before: bool) -> Answer:
    """What a call without a matching entry does."""
    answer = ANSWERS.get(_state.stance.name)
    if answer is None:
        return Answer.COMPILE if seen_before else Answer.LOOK
    return answer


def current() -> str:
    return _state.stance.name


def forced_backend() -> Any:
    """The backend that everything compiles with now, or None."""
    return _state.stance.backend


class set_stance:
    """Set the stance; used with `with` or as a decorator it holds inside only.

    `force_backend` (with the default stance): what compiles meanwhile does so with this backend. Guards are always
    evaluated: `skip_guard_eval_unsafe` is accepted, and changes nothing.
    """

    _dynamo_forbidden = True

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None
    ) -> None:
        if stance not in STANCES:
            raise InvalidOption(f"no stance {stance!r}: it is one of {', '.join(STANCES)}")
        if force_backend is not None and stance != "default":
            raise InvalidOption("force_backend goes with the default stance only")
        self.stance = Stance(stance, force_backend)
        self.previous = [_state.stance]
        _install(self.stance)

    def __enter__(self) -> None:
        # The constructor has installed it already: what it found then is what leaving restores.
        if _state.stance is not self.stance:
            self.previous.append(_state.stance)
            _install(self.stance)

    def __exit__(self, *_: object) -> None:
        _install(self.previous.pop() if len(self.previous) > 1 else self.previous[0])

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        _install(self.previous[0])
        chosen = self.stance

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            before = _state.stance
            _install(chosen)
            try:
                return function(*args, **kwargs)
            finally:
                _install(before)

        return inside


def _install(stance: Stance) -> None:
    with _lock:
        _state.stance = stance
        core.set_mode(1 if stance.name == "force_eager" else 0)


def warn(text: str) -> None:
    """Tell the user once."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


__all__ = ["STANCES", "Answer", "current", "decide", "forced_backend", "set_stance", "warn"]
