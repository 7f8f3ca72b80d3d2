"""Machine code for CPUs by LLVM. `compile_graph` is the way in."""

from stator.emit.cpu.graph import Options, compile_graph

__all__ = ["Options", "compile_graph"]
