"""The default backend, `"stator"`: ahead-of-time autograd, then the compiler for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stator import aot, config, events
from stator.emit import cpu
from stator.lower.table import without_rows
from stator.runtime.cache import Cache, key_of
from stator.runtime.program import ProgramBuilder


class MachineCode:
    """The persistent cache of object files, by the text of their source and everything it was made with."""

    def __init__(self) -> None:
        self._cache = Cache("objects")

    def get(self, key: str) -> bytes | None:
        return self._cache.get(key_of(key))

    def put(self, key: str, data: bytes) -> None:
        self._cache.put(key_of(key), data)


def compile_graph(
    graph_module: Any, example_inputs: Sequence[Any], mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """Compile a captured graph."""
    if mode == "reduce-overhead":
        events.emit("warning", text="reduce-overhead means the same as default on the CPU: a program is one call")
    elif mode == "max-autotune":
        events.emit("warning", text="max-autotune compiles as default so far: no tilings are tried on the CPU")
    device = next(
        (one.device.type for one in example_inputs if hasattr(one, "device") and one.device.type != "cpu"), None
    )
    if device is not None:
        events.emit("fallback", reason="no_compiler_for_device", detail=device)
        return aot.aot_eager(graph_module, example_inputs)
    backend = aot.backend(functional_compiler(mode), decompositions=without_rows(aot.decompositions.CORE))
    with config.patch(dict(options or {})):
        return backend(graph_module, example_inputs)


def functional_compiler(mode: str | None = None) -> Callable[[Any, Sequence[Any]], Any]:
    """The compiler of functional graphs for the machine at hand."""

    def compiler(functional: Any, examples: Sequence[Any]) -> Any:
        objects = None if config.force_disable_caches else MachineCode()
        options = cpu.Options(ProgramBuilder, objects=objects, mode=mode or "default")
        return cpu.compile_graph(functional, examples, options=options)

    vars(compiler)["writes_inputs"] = True
    return compiler
