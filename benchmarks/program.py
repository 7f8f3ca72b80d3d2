"""What a call of a compiled graph costs before any work is done.

Side by side in one process, alternating, the minimum of many rounds: an empty Python function, stator's program, its
reference execution in Python, the same operations by eager, and torch.compile (Inductor; with --peer) by its Python and
C++ wrappers. Kernels are small enough that their own time does not matter. Ratios are what to read; the machine is in
the output file.

    python benchmarks/program.py [--peer]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch

from stator.runtime import native
from stator.runtime.program import ProgramBuilder, Slot
from stator.runtime.reference import ReferenceProgram

# The ABI of a generated kernel; `relu(x * 2 + y)` and `relu(x)` over floats.
POINTWISE = """
define void @{name}(ptr %buffers, ptr %ints, i64 %begin, i64 %end) {{
entry:
  %x = load ptr, ptr %buffers
  %second = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %second
  %third = getelementptr ptr, ptr %buffers, i64 {last}
  %out = load ptr, ptr %third
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %from
{body}
  %positive = fcmp ogt float %sum, 0.0
  %result = select i1 %positive, float %sum, float 0.0
  %to = getelementptr float, ptr %out, i64 %i
  store float %result, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
SCALE_ADD = """
  %other = getelementptr float, ptr %y, i64 %i
  %added = load float, ptr %other
  %scaled = fmul float %value, 2.0
  %sum = fadd float %scaled, %added
"""
PLAIN = "  %sum = fadd float %value, 0.0"


def kernels() -> tuple[Any, dict[str, int]]:
    """Both kernels, and the engine that owns them."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = POINTWISE.format(name="scale_add_relu", last=2, body=SCALE_ADD)
    text += POINTWISE.format(name="relu", last=1, body=PLAIN)
    module = llvm.parse_assembly(text)
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine(opt=2))
    engine.finalize_object()
    return engine, {name: engine.get_function_address(name) for name in ("scale_add_relu", "relu")}


def pointwise(engine: Any, addresses: dict[str, int]) -> Any:
    builder = ProgramBuilder("pointwise")
    x, y = builder.input_tensor(), builder.input_tensor()
    out = builder.empty((8, 8), (8, 1), torch.float32)
    builder.kernel(addresses["scale_add_relu"], engine, "scale_add_relu", (x, y, out), (), 64, 4096)
    builder.outputs([out])
    return builder.build()


def chain(engine: Any, addresses: dict[str, int], length: int) -> Any:
    """`length` times relu(x @ w), the intermediates in the arena."""
    builder = ProgramBuilder("chain")
    value: Slot = builder.input_tensor()
    weight = builder.input_tensor()
    for turn in range(length):
        product = builder.empty((8, 8), (8, 1), torch.float32, arena=turn < length - 1)
        builder.extern(torch.ops.aten.mm.out, (value, weight), {"out": product})
        builder.kernel(addresses["relu"], engine, "relu", (product, product), (), 64, 4096)
        value = product
    builder.outputs([value])
    return builder.build()


def best(functions: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, float]:
    """Seconds a call of each, turn by turn."""
    least = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        for _ in range(3):
            function()
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            least[name] = min(least[name], (time.perf_counter() - start) / calls)
    return least


def compiled(function: Callable[..., Any], cpp_wrapper: bool) -> Callable[..., Any]:
    """The peer's version, each wrapper in a cache of its own."""
    torch._dynamo.reset()
    result = torch.compile(function, options={"cpp_wrapper": cpp_wrapper})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true", help="measure torch.compile too")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine, addresses = kernels()
    x, y, weight = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8)
    program, long = pointwise(engine, addresses), chain(engine, addresses, 20)

    def eager_pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2 + y)

    def eager_chain(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            value = torch.relu(value @ weight)
        return value

    torch.testing.assert_close(program(x, y)[0], eager_pointwise(x, y))
    torch.testing.assert_close(long(x, weight)[0], eager_chain(x, weight))

    def empty(x: torch.Tensor, y: torch.Tensor) -> None:
        return None

    short = {
        "empty Python call": lambda: empty(x, y),
        "stator": lambda: program(x, y),
        "eager": lambda: eager_pointwise(x, y),
    }
    longer = {"stator": lambda: long(x, weight), "eager": lambda: eager_chain(x, weight)}
    if native.runtime() is not None:
        by_reference = ReferenceProgram(long.plan, "", str)
        longer["stator by reference"] = lambda: by_reference(x, weight)
    if options.peer:
        with torch.no_grad():
            for name, cpp in (("torch.compile", False), ("torch.compile, C++ wrapper", True)):
                one, other = compiled(eager_pointwise, cpp), compiled(eager_chain, cpp)
                one(x, y), other(x, weight)
                short[name] = lambda one=one: one(x, y)
                longer[name] = lambda other=other: other(x, weight)
    with torch.no_grad():
        found = {
            "pointwise 8x8": best(short, options.rounds, 2000),
            "20 x (mm 8x8, relu)": best(longer, options.rounds, 200),
        }
    above = found["pointwise 8x8"]["stator"] - found["pointwise 8x8"]["empty Python call"]
    for title, rows in found.items():
        print(title)
        for name, seconds in rows.items():
            print(f"  {name:28} {seconds * 1e6:8.2f} us   {seconds / rows['stator']:7.2f} x stator")
    print(f"stator's pointwise call above an empty Python call: {above * 1e6:.2f} us")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__}
    machine["python"] = platform.python_version()
    (results / "program.json").write_text(json.dumps({"machine": machine, "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
