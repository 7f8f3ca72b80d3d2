"""Facts about code objects, kept for as long as the code object lives and not keeping it alive.

Contract. `CodeCache` maps a code object, by identity, to a value. Code objects compare by content, and content does
not include the file name, so neither a dict nor a `WeakKeyDictionary` would do; the key is the object's address,
checked against a weak reference on each look-up. A value must not refer to its code object, or neither would die.

Thread safety: look-ups and stores are single dict operations; two threads may compute a value at once, the last wins.
"""

from __future__ import annotations

import types
import weakref
from typing import Generic, TypeVar

Value = TypeVar("Value")


class CodeCache(Generic[Value]):
    """A weak, identity-keyed mapping from code objects."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, tuple[weakref.ref[types.CodeType], Value]] = {}

    def get(self, code: types.CodeType) -> Value | None:
        row = self._rows.get(id(code))
        return row[1] if row is not None and row[0]() is code else None

    def put(self, code: types.CodeType, value: Value) -> Value:
        key = id(code)
        rows = self._rows

        def forget(reference: weakref.ref[types.CodeType]) -> None:
            current = rows.get(key)
            if current is not None and current[0] is reference:
                del rows[key]

        rows[key] = (weakref.ref(code, forget), value)
        return value

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        self._rows.clear()
