"""C functions that only compute: they read their arguments, return something new, and change nothing.

Contract. `is_pure(function)` is true for callables whose result hangs on their arguments alone. Their arguments must
be C values (`require_c_value`) that were guarded deeply before the call.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

PURE_MODULES = frozenset(
    {"math", "cmath", "_bisect", "_struct", "binascii", "zlib", "unicodedata", "_sre", "_statistics", "_json"}
)
PURE_BUILTINS = frozenset(
    {abs, ascii, bin, chr, divmod, format, hex, oct, ord, pow, round, hash, callable}
) | {builtins.len}  # fmt: skip
PURE_TYPES = frozenset({int, float, bool, str, bytes, complex, range, slice, frozenset, tuple, list, dict, set})


def is_pure(function: Any) -> bool:
    """Whether C code of this name only computes."""
    try:
        if function in PURE_BUILTINS or function in PURE_TYPES:
            return True
    except TypeError:
        return False
    kind = type(function)
    if kind is types.BuiltinFunctionType:
        owner = function.__self__
        if isinstance(owner, types.ModuleType):
            return owner.__name__ in PURE_MODULES
        return owner in PURE_TYPES if isinstance(owner, type) else False
    return False
