"""The default backend, `"stator"`: ahead-of-time autograd, then the compiler for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stator import aot
from stator.emit import cpu


def compile_graph(
    graph_module: Any, example_inputs: Sequence[Any], mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """Compile a captured graph."""

    def compiler(functional: Any, examples: Sequence[Any]) -> Any:
        return cpu.compile_graph(functional, examples, options=cpu.Options())

    return aot.backend(compiler, decompositions=aot.decompositions.CORE)(graph_module, example_inputs)
