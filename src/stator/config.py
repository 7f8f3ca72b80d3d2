"""Every setting of stator, once: its type, default, meaning and environment variable.

Contract. `config.name` reads, `config.name = value` sets (checked against the declared type), and
`config.patch(name=value, ...)` sets for a `with` block or a decorated function. The environment variable of
`name` is `STATOR_<NAME>`, read once at import; a bad value there is an error that names the variable.
Settings are read when something compiles, never on a cache hit. Names and meanings follow
`torch._dynamo.config` wherever torch has the same setting.

State: plain module-wide values. `patch` restores what it found, in order, so nested patches are safe; patches of
the same name in two threads at once are the caller's business, as in torch.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: the default, the accepted types (or the exact choices) and what it means."""

    default: Any
    meaning: str
    choices: tuple[Any, ...] | None = None
    types: tuple[type, ...] | None = None

    def accepts(self, value: Any) -> bool:
        if self.choices is not None:
            return value in self.choices
        allowed = self.types or (type(self.default),)
        if isinstance(value, bool) and bool not in allowed:
            return False
        return isinstance(value, allowed)

    def parse(self, text: str) -> Any:
        """The value an environment variable's text stands for."""
        kind = type(self.default) if self.default is not None else (self.types or (str,))[0]
        if kind is bool:
            lowered = text.strip().lower()
            if lowered in ("1", "true", "yes", "on"):
                return True
            if lowered in ("0", "false", "no", "off", ""):
                return False
            raise ValueError(f"expected a truth value, got {text!r}")
        if kind in (int, float):
            return kind(text)
        if kind in (tuple, list, set, frozenset):
            return kind(part.strip() for part in text.split(",") if part.strip())
        return text


SETTINGS: dict[str, Setting] = {
    # capture
    "recompile_limit": Setting(8, "entries per code object and region before it stops compiling new ones"),
    "accumulated_recompile_limit": Setting(256, "entries per code object over all regions"),
    "fail_on_recompile_limit_hit": Setting(False, "raise instead of running eagerly at the recompile limit"),
    "capture_scalar_outputs": Setting(False, "capture `.item()` as a symbolic value instead of breaking the graph"),
    "capture_dynamic_output_shape_ops": Setting(
        False, "capture operators such as `nonzero` with a symbolic size instead of breaking the graph"
    ),
    "capture_branches": Setting(False, "no effect so far: `if tensor:` ends the graph; write `torch.cond`"),
    "suppress_errors": Setting(False, "on an error of stator or a backend run that code eagerly, and say so"),
    "reorderable_logging_functions": Setting(
        frozenset(), "functions whose calls may be moved behind the graph", types=(set, frozenset)
    ),
    "ignore_logging_functions": Setting(
        frozenset(), "functions whose calls are dropped while compiled", types=(set, frozenset)
    ),
    "verify": Setting(False, "run eager beside compiled, and stop at the first operation that differs"),
    "strict": Setting(False, "raise where stator would fall back by itself"),
    # dynamic shapes
    "assume_static_by_default": Setting(True, "a size is a constant until it is seen with a second value"),
    "automatic_dynamic_shapes": Setting(True, "a size seen with a second value becomes symbolic"),
    "specialize_int": Setting(False, "integers stay constants even when seen with a second value"),
    "specialize_float": Setting(False, "floats stay constants even when seen with a second value"),
    "dynamic_sources": Setting("", "comma-separated sources that start symbolic, e.g. `L['x'],L['self'].width`"),
    "dynamic_profile": Setting(True, "remember on disk which sizes turned dynamic, and start so in the next process"),
    # backend
    "numerics": Setting(
        "eager", "`eager` rounds low precision after every operator as eager does; `fast` may not", ("eager", "fast")
    ),
    "products": Setting(
        "auto",
        "float products of matrices on CPU: `own` kernels, fused with what follows; the `library`; `auto` by machine",
        ("auto", "own", "library"),
    ),
    "cache_dir": Setting("", "folder of the persistent caches; empty means the user's cache directory"),
    "cache_size_mb": Setting(1024, "bound of the persistent caches"),
    "force_disable_caches": Setting(False, "neither read nor write persistent caches"),
    "activation_memory_budget": Setting(
        1.0, "share of the saved activations to keep; less recomputes more", types=(float, int)
    ),
    # observability
    "progress": Setting(True, "show on a terminal what a compile longer than a second is doing"),
    "trace_size_mb": Setting(256, "bound of each trace file; beyond it only the short records are written"),
}

for _name, _row in SETTINGS.items():
    if not _row.accepts(_row.default):
        raise TypeError(f"the default of {_name} does not fit its own row")


class _Patch:
    """What `config.patch` returns: a context manager, and a decorator of functions."""

    def __init__(self, owner: Config, changes: dict[str, Any]) -> None:
        self._owner = owner
        self._changes = changes
        self._saved: list[dict[str, Any]] = []

    def __enter__(self) -> _Patch:
        self._saved.append({name: getattr(self._owner, name) for name in self._changes})
        for name, value in self._changes.items():
            setattr(self._owner, name, value)
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._saved.pop().items():
            setattr(self._owner, name, value)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with _Patch(self._owner, self._changes):
                return function(*args, **kwargs)

        return patched


class Config(types.ModuleType):
    """The module object itself, so that assignments are checked."""

    def __init__(self, name: str) -> None:
        super().__init__(name, __doc__)
        values: dict[str, Any] = {}
        for setting, row in SETTINGS.items():
            variable = "STATOR_" + setting.upper()
            text = os.environ.get(variable)
            if text is None:
                values[setting] = row.default
                continue
            try:
                value = row.parse(text)
            except ValueError as error:
                raise ValueError(f"environment variable {variable}: {error}") from None
            if not row.accepts(value):
                raise ValueError(f"environment variable {variable}: {text!r} is not one of {row.choices}")
            values[setting] = value
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        row = SETTINGS.get(name)
        if row is None and not name.startswith("__"):
            raise AttributeError(f"stator.config has no setting {name!r}; see stator.config.describe()")
        if row is not None and not row.accepts(value):
            wanted = row.choices or tuple(kind.__name__ for kind in (row.types or (type(row.default),)))
            raise TypeError(f"stator.config.{name} takes one of {wanted}, not {value!r}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"stator.config has no setting {name!r}; see stator.config.describe()")

    def patch(self, changes: dict[str, Any] | str | None = None, value: Any = None, /, **named: Any) -> _Patch:
        """Set some settings inside a `with` block, or for the calls of a decorated function."""
        if isinstance(changes, str):
            changes = {changes: value}
        merged = {**(changes or {}), **named}
        for name in merged:
            if name not in SETTINGS:
                raise AttributeError(f"stator.config has no setting {name!r}; see stator.config.describe()")
        return _Patch(self, merged)

    def describe(self) -> str:
        """All settings with their current values, one a paragraph."""
        rows = [f"{name} = {getattr(self, name)!r}\n    {row.meaning}" for name, row in SETTINGS.items()]
        return "\n".join(rows)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Name and current value of every setting."""
        return ((name, getattr(self, name)) for name in SETTINGS)


if TYPE_CHECKING:  # the object below stands in for this module; a type checker sees only the module
    recompile_limit: int
    accumulated_recompile_limit: int
    fail_on_recompile_limit_hit: bool
    capture_scalar_outputs: bool
    capture_dynamic_output_shape_ops: bool
    capture_branches: bool
    suppress_errors: bool
    reorderable_logging_functions: set[Any] | frozenset[Any]
    ignore_logging_functions: set[Any] | frozenset[Any]
    verify: bool
    strict: bool
    assume_static_by_default: bool
    automatic_dynamic_shapes: bool
    specialize_int: bool
    specialize_float: bool
    dynamic_sources: str
    dynamic_profile: bool
    numerics: Literal["eager", "fast"]
    products: Literal["auto", "own", "library"]
    cache_dir: str
    cache_size_mb: int
    force_disable_caches: bool
    activation_memory_budget: float | int
    progress: bool
    trace_size_mb: int

    def patch(changes: dict[str, Any] | str | None = None, value: Any = None, /, **named: Any) -> _Patch: ...
    def describe() -> str: ...
    def items() -> Iterator[tuple[str, Any]]: ...


_config = Config(__name__)
_config.__dict__.update(
    {
        key: globals()[key]
        for key in ("__file__", "__spec__", "__loader__", "__package__", "SETTINGS", "Setting", "Config")
    }
)
sys.modules[__name__] = _config
