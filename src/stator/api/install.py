"""`install()` and `uninstall()`: `torch.compile` and `torch.compiler.*` are stator in this process.

Contract. After `install()`, `torch.compile(...)`, each function of `torch.compiler` that stator has too, and
`torch.nn.Module.compile` are stator's, taken from the `stator` namespace at that moment; `uninstall()` puts back
exactly what was there, names that did not exist included. Both may be called twice. What was compiled stays compiled.
A script that did `from torch import compile` before keeps torch's: install first, or use `stator run script.py`.

`backend="inductor"` is torch's name for "the optimising compiler", and its options speak of inductor: under `install`
the name means stator's own, and options or arguments stator does not have are left out, with one warning each. To run
inductor itself behind stator's front end, say `stator.compile(f, backend="inductor")`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch

from stator.api.compile import GUARD_FILTER
from stator.events import emit
from stator.exc import StatorError

_MISSING = object()
_OWN_BACKENDS = frozenset({None, "inductor"})
_MODES = {"max-autotune-no-cudagraphs": "max-autotune"}

_lock = threading.Lock()
_saved: list[tuple[Any, str, Any]] = []


def _public() -> Any:
    """The `stator` package: what stands in for torch is what users of stator get."""
    return importlib.import_module("stator")


def translate(arguments: dict[str, Any], accepted: frozenset[str]) -> dict[str, Any]:
    """Arguments of `torch.compile` as arguments of `stator.compile`; warns of what has no counterpart."""
    translated = dict(arguments)
    if "backend" in translated and translated["backend"] in _OWN_BACKENDS:
        del translated["backend"]
        options = translated.pop("options", None) or {}
        if GUARD_FILTER in options:
            translated["options"] = {GUARD_FILTER: options[GUARD_FILTER]}
        if set(options) - {GUARD_FILTER}:
            emit("warning", text="torch.compile(options=...) are inductor's own; stator leaves them out")
    if isinstance(translated.get("mode"), str):
        translated["mode"] = _MODES.get(translated["mode"], translated["mode"])
    for name in [name for name in translated if name not in accepted]:
        if translated.pop(name):
            emit("warning", text=f"torch.compile({name}=...) has no counterpart in stator and is left out")
    return translated


def _accepted(function: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    return frozenset(row.name for row in parameters if row.kind in (row.KEYWORD_ONLY, row.POSITIONAL_OR_KEYWORD))


def _compile(original: Callable[..., Any], public: Any) -> Callable[..., Any]:
    accepted = _accepted(public.compile)

    @functools.wraps(original)
    def compile(model: Callable[..., Any] | None = None, **arguments: Any) -> Any:
        if "options" not in arguments and arguments.get("backend") is None:
            arguments.pop("backend", None)
        translated = translate(arguments, accepted)
        if model is None:
            return lambda function: public.compile(function, **translated)
        return public.compile(model, **translated)

    return compile


def _module_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(self: torch.nn.Module, *args: Any, **arguments: Any) -> None:
        torch.compile(self, *args, **arguments)

    return compile


def _replace(owner: Any, name: str, value: Any) -> None:
    _saved.append((owner, name, owner.__dict__.get(name, _MISSING)))
    setattr(owner, name, value)


def install() -> None:
    """Make `torch.compile`, `torch.compiler.*` and `Module.compile` be stator in this process."""
    public = _public()
    if not hasattr(public, "compile"):
        raise StatorError("this build of stator has no compile: nothing to install", reason="not_built")
    with _lock:
        if _saved:
            return
        replacement = _compile(torch.compile, public)
        _replace(torch, "compile", replacement)
        for name in torch.compiler.__all__:
            own = getattr(public, name, None)
            if callable(own):
                _replace(torch.compiler, name, replacement if name == "compile" else own)
        _replace(torch.nn.Module, "compile", _module_compile(torch.nn.Module.compile))


def uninstall() -> None:
    """Put back what `install` replaced."""
    with _lock:
        while _saved:
            owner, name, value = _saved.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def installed() -> bool:
    """Whether `torch.compile` is stator now."""
    return bool(_saved)
