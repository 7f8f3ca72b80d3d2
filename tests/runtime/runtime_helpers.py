"""Small kernels for tests (the ABI of generated code, written by hand in LLVM IR), and both executions."""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm

from stator.runtime.program import ProgramBuilder
from stator.runtime.reference import ReferenceProgram

HEADER = """
define void @{name}(ptr %buffers, ptr %ints, i64 %begin, i64 %end) {{
entry:
  %first = load ptr, ptr %buffers
  %where = getelementptr ptr, ptr %buffers, i64 {out}
  %out = load ptr, ptr %where
  {entry}
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %first, i64 %i
  %x = load float, ptr %from
  {body}
  %to = getelementptr float, ptr %out, i64 %i
  store float %result, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""

# name -> (index of the output among the buffers, once per call, once per element)
KERNELS: dict[str, tuple[int, str, str]] = {
    "double": (1, "", "%result = fmul float %x, 2.0"),
    "relu": (1, "", "%p = fcmp ogt float %x, 0.0\n  %result = select i1 %p, float %x, float 0.0"),
    "add": (
        2,
        "%w = getelementptr ptr, ptr %buffers, i64 1\n  %second = load ptr, ptr %w",
        "%q = getelementptr float, ptr %second, i64 %i\n  %y = load float, ptr %q\n  %result = fadd float %x, %y",
    ),
    # x + ints[0] * 10 + ints[1]
    "shift": (
        1,
        "%a = load i64, ptr %ints\n  %bp = getelementptr i64, ptr %ints, i64 1\n  %b = load i64, ptr %bp\n"
        "  %a10 = mul i64 %a, 10\n  %s = add i64 %a10, %b\n  %f = sitofp i64 %s to float",
        "%result = fadd float %x, %f",
    ),
    # how many elements this share had
    "share": (1, "%n = sub i64 %end, %begin\n  %f = sitofp i64 %n to float", "%result = fadd float 0.0, %f"),
}


@functools.cache
def engine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = "".join(
        HEADER.format(name=name, out=out, entry=entry, body=body) for name, (out, entry, body) in KERNELS.items()
    )
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    made = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    made.finalize_object()
    return made


def kernel(name: str) -> tuple[int, Any, str]:
    """Address, owner and name, as `ProgramBuilder.kernel` takes them."""
    return engine().get_function_address(name), engine(), name


def build_native(builder: ProgramBuilder) -> Any:
    program = builder.build()
    assert type(program).__name__ == "Program", getattr(program, "why", "")
    return program


def build_reference(builder: ProgramBuilder) -> Any:
    return ReferenceProgram(builder.build().plan, "test", str)
