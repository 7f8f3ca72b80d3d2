"""What a user asks to see of a compiled function.

Contract. `explain(fn, **options)` takes the options of `compile`, and returns a callable: it runs `fn` compiled and
returns an `Explanation` of all its calls so far, with the result of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stator.api.compile import compile
from stator.observe.explain import Explanation
from stator.observe.explain import explain as explain_compiled


def explain(fn: Callable[..., Any], **options: Any) -> Callable[..., Explanation]:
    """Graphs, breaks, recompiles, guards and time per stage of the calls of `fn`."""
    return explain_compiled(fn, compile=compile, **options)
