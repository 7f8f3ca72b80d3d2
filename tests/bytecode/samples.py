"""Code objects to test on: the standard library's, all of them or a spread-out sample."""

from __future__ import annotations

import pathlib
import sysconfig
import types
from collections.abc import Iterator


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """`code` and every code object in its constants, deeply."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def standard_library(step: int = 1) -> Iterator[types.CodeType]:
    """Every code object of every `step`-th module."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        path for path in root.rglob("*.py") if "site-packages" not in path.parts and "lib2to3" not in path.parts
    )
    for path in files[::step]:
        try:
            top = compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError):  # deliberately broken sources in the library's own tests
            continue
        yield from nested(top)


def long_function(statements: int) -> types.CodeType:
    """A function whose constants, names and jumps need EXTENDED_ARG."""
    body = "\n".join(
        f"        if x != {i}.5: v{i} = x + {i}.25; seen.append(v{i} - name{i})" for i in range(statements)
    )
    source = (
        f"def f(x, seen):\n    for _ in range(2):\n{body}\n"
        "    try:\n        return x / 0\n    except ZeroDivisionError:\n        return seen\n"
    )
    namespace: dict[str, object] = {f"name{i}": i for i in range(statements)}
    exec(compile(source, "<long>", "exec"), namespace)
    function = namespace["f"]
    assert isinstance(function, types.FunctionType)
    return function.__code__
