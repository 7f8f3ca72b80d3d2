"""Which line of the user's source is running.

Contract. `user_line()` names the innermost frame that is neither torch's nor stator's, in the form tracebacks and
fx graphs use; formatted once per line of source.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
from types import CodeType

import torch

import stator

_OURS = (os.path.dirname(stator.__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep)
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_KEPT = os.sep + "site-packages" + os.sep


@functools.cache
def _foreign(filename: str) -> bool:
    """Whether a file is the user's (an installed library counts as the user's)."""
    if filename.startswith(_OURS) or filename.startswith("<frozen"):
        return False
    return not filename.startswith(_STANDARD) or _KEPT in filename


@functools.lru_cache(maxsize=8192)
def _format(code: CodeType, line: int) -> str:
    text = linecache.getline(code.co_filename, line).strip()
    return f'  File "{code.co_filename}", line {line}, in {code.co_name}\n    {text}\n'


def user_line() -> str | None:
    """The user's current line."""
    frame = sys._getframe(1)
    while frame is not None:
        if _foreign(frame.f_code.co_filename):
            return _format(frame.f_code, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
