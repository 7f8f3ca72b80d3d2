"""Functions of the standard library that C implements over objects of the program, in Python, to be interpreted.

Contract. Each row maps a C function to a Python function that does the same through special methods and attributes, so
that what it touches is guarded, and what it calls back is traced. Most are the standard library's own: it carries a
Python version of what it takes from C, found here by running its source with the import of the C module refused.
"""

from __future__ import annotations

import bisect
import builtins
import collections
import functools
import heapq
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


def python_version(name: str, without: str) -> dict[str, Any]:
    """The names of a standard module as they are where the C module behind it does not exist."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None and spec.origin is not None
    source = spec.loader.get_source(name)  # type: ignore[attr-defined]

    def imports(module: str, *args: Any, **kwargs: Any) -> Any:
        if module == without:
            raise ImportError(module)
        return builtins.__import__(module, *args, **kwargs)

    names: dict[str, Any] = {"__name__": name, "__builtins__": {**vars(builtins), "__import__": imports}}
    exec(compile(source, spec.origin, "exec"), names)
    return names


def _count_elements(mapping: Any, iterable: Any) -> None:
    get = mapping.get
    for element in iterable:
        mapping[element] = get(element, 0) + 1


def _interpreted(function: Callable[..., Any]) -> Any:
    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return tracer.call(function, args, kwargs)

    return handler


_HEAPQ = python_version("heapq", "_heapq")
_BISECT = python_version("bisect", "_bisect")
_FUNCTOOLS = python_version("functools", "_functools")

FUNCTIONS: dict[Any, Any] = {
    collections._count_elements: _interpreted(_count_elements),  # type: ignore[attr-defined]
    functools.cmp_to_key: _interpreted(_FUNCTOOLS["cmp_to_key"]),
    **{
        getattr(heapq, name): _interpreted(_HEAPQ[name])
        for name in (
            "heapify",
            "heappush",
            "heappop",
            "heapreplace",
            "heappushpop",
            "_heappop_max",
            "_heapify_max",
            "_heapreplace_max",
        )
        if hasattr(heapq, name)
    },
    **{
        getattr(bisect, name): _interpreted(_BISECT[name])
        for name in ("bisect_left", "bisect_right", "insort_left", "insort_right")
    },
}
