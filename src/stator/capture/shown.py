"""A value of the program where C code makes a text of it.

Contract. `Shown` goes into `str.format` and `%` in place of a value: whatever they ask of it (its text, an attribute,
an item) is answered by the interpreter, so that the program's own methods are traced and what they read is guarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


class Shown:
    """Stands for a value of the program in `str.format`: formats through the interpreter."""

    __slots__ = ("_tracer", "_value")

    def __init__(self, tracer: Tracer, value: Any) -> None:
        self._tracer = tracer
        self._value = value

    def __format__(self, specification: str) -> str:
        return str(self._tracer.from_c(self._tracer.format, self._value, "", specification))

    def __str__(self) -> str:
        return str(self._tracer.from_c(self._tracer.to_string, self._value, "__str__"))

    def __repr__(self) -> str:
        return str(self._tracer.from_c(self._tracer.to_string, self._value, "__repr__"))

    def __getattr__(self, name: str) -> Any:
        return Shown(self._tracer, self._tracer.from_c(self._tracer.load_attr, self._value, name))

    def __getitem__(self, key: Any) -> Any:
        return Shown(self._tracer, self._tracer.from_c(self._tracer.get_item, self._value, key))
