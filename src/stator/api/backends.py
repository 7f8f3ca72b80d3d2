"""Backends by name: stator's own, those a program registered, and those registered with torch.

Contract. `resolve(backend, mode, options)` gives a name and a callable `(graph_module, example_inputs) -> callable`.
torch's registry is imported only when a name asks for it, since that imports torch's own compiler.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from stator import aot
from stator.capture.plain_operators import as_plain
from stator.exc import InvalidBackend

Backend = Callable[..., Any]


def stator_backend(graph_module: Any, example_inputs: Any, **settings: Any) -> Any:
    """Stator's own compiler, imported when the first graph comes: LLVM takes a while to load."""
    return importlib.import_module("stator.runtime.default_backend").compile_graph(
        graph_module, example_inputs, **settings
    )


def eager(graph_module: Any, example_inputs: Any) -> Any:
    """Runs the captured graph as it is."""
    return as_plain(graph_module).forward


_registered: dict[str, Backend] = {
    "stator": stator_backend,
    "eager": eager,
    "aot_eager": aot.aot_eager,
    "aot_eager_decomp_partition": aot.aot_eager_decomp_partition,
}


def register_backend(compiler_fn: Backend | None = None, name: str | None = None, tags: tuple[str, ...] = ()) -> Any:
    """Register a backend under a name (its own, if none is given); also a decorator."""
    if compiler_fn is None:
        return functools.partial(register_backend, name=name, tags=tags)
    chosen = str(name or getattr(compiler_fn, "__name__", ""))
    if chosen in _registered and _registered[chosen] is not compiler_fn:
        raise InvalidBackend(f"a backend {chosen!r} is registered already")
    _registered[chosen] = compiler_fn
    return compiler_fn


def list_backends(exclude_tags: tuple[str, ...] | None = ("debug", "experimental")) -> list[str]:
    """Names that `backend=` takes; torch's own registry adds to them."""
    return sorted(_registered)


_default: list[str | Backend] = ["stator"]


def set_default_backend(backend: str | Backend | None) -> None:
    """Say which backend `compile` uses where none is named; None means stator's own again."""
    if backend is not None and not isinstance(backend, str) and not callable(backend):
        raise InvalidBackend(f"backend is a name or a callable, not a {type(backend).__name__}")
    _default[:] = ["stator" if backend is None else backend]


def get_default_backend() -> str | Backend:
    """The backend `compile` uses where none is named."""
    return _default[0]


def lookup_backend(compiler_fn: str | Backend) -> Backend:
    """The function behind a backend's name; a function is itself."""
    return resolve(compiler_fn, None, None)[1]


def resolve(backend: str | Backend, mode: str | None, options: Mapping[str, Any] | None) -> tuple[str, Backend]:
    """Name and function of a backend."""
    if callable(backend):
        name = getattr(backend, "__name__", type(backend).__name__)
        if mode is None and not options:
            return name, backend
        return name, _with_settings(backend, mode, options)
    if not isinstance(backend, str):
        raise InvalidBackend(f"backend is a name or a callable, not a {type(backend).__name__}")
    found = _registered.get(backend)
    if found is None:
        found = _from_torch(backend)
    if backend == "stator" and (mode not in (None, "default") or options):
        return backend, functools.partial(found, mode=mode, options=dict(options or {}))
    if mode is not None or options:
        return backend, _with_settings(found, mode, options)
    return backend, found


def _with_settings(backend: Backend, mode: str | None, options: Mapping[str, Any] | None) -> Backend:
    settings: dict[str, Any] = {}
    if mode is not None:
        settings["mode"] = mode
    if options:
        settings["options"] = dict(options)
    try:
        accepted = inspect.signature(backend).parameters
    except (TypeError, ValueError):
        return functools.partial(backend, **settings)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    kept = {name: value for name, value in settings.items() if takes_any or name in accepted}
    return functools.partial(backend, **kept) if kept else backend


def _from_torch(name: str) -> Backend:
    """A backend of torch's registry."""
    registry: Any = importlib.import_module("torch._dynamo.backends.registry")
    try:
        return registry.lookup_backend(name)  # type: ignore[no-any-return]
    except Exception as error:
        close = ", ".join(list_backends())
        raise InvalidBackend(
            f"no backend {name!r}: stator has {close}; torch's registry does not know it either"
        ) from error
