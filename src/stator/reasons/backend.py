"""Reasons that belong to: backend."""

from __future__ import annotations

from stator.reasons.row import Reason

ROWS: tuple[Reason, ...] = (
    Reason(
        id="cache_unusable",
        summary="the persistent cache was not used: {detail}",
        explanation="Generated code from the cache is executed, so stator reads it only from a directory that belongs "
        "to the user and that nobody else can write; and a disk may be full or read-only. Everything works without "
        "it, but compiles again in each process.",
        hint="Set `stator.config.cache_dir` to a directory of your own (mode 0700), or make room on its disk.",
        example="""from stator import config
from stator.runtime.cache import Cache


def example():
    with config.patch(cache_dir="/dev/null/cache"):
        Cache("kernel").put(b"key", b"value")
""",
    ),
    Reason(
        id="suspended_function",
        summary="{detail} is a generator or an asynchronous function: it runs piece by piece and is not compiled",
        explanation="A call of such a function only makes an object; its body runs when that object is advanced, "
        "between other code. There is no call to compile, so it stays the Python function it is.",
        hint="Compile the functions it calls, or the function that consumes it",
    ),
    Reason(
        id="native_runtime_unavailable",
        summary="compiled graphs run step by step from Python: {detail}",
        explanation="The native runtime calls libtorch's C interface. It looks for each function, finds out how "
        "tensors are laid out and runs a small program before it is used; where one of these fails nothing of it is "
        "used.",
        hint="Install a torch version that stator supports, and build stator's extension modules for this Python.",
    ),
    Reason(
        id="lowering_failed",
        summary="the CPU compiler failed on {detail}; that operator runs as ATen's own kernel",
        explanation="A rule of the lowering table raised an error it should not raise. The operator itself was "
        "called instead, so the result is right; it is slower by the memory traffic that fusion would have saved.",
        hint="Report it with the text above. `stator.config.strict = True` makes it an error with the full traceback.",
    ),
    Reason(
        id="kernel_failed",
        summary="the CPU compiler could not make machine code of {detail}; the graph runs operator by operator",
        explanation="Scheduling or code generation of a fused kernel raised an error it should not raise.",
        hint="Report it with the text above. `stator.config.strict = True` makes it an error with the full traceback.",
    ),
    Reason(
        id="operator_broke_promise",
        summary="an operator's result is not as its shape function said, and is copied: {detail}",
        explanation="Kernels read memory under the type and strides that the operator's shape function (its meta or "
        "fake kernel) promised. A result in another type or under other strides is copied first; one of other sizes "
        "is an error.",
        hint="For a custom operator, make its fake implementation return what the real one does. For one of torch's, "
        "nothing is to be done: the copy costs time, results are right.",
    ),
    Reason(
        id="invalid_kernel",
        summary="a loop program breaks a rule of the loop language: {detail}",
        explanation="Every kernel is verified before machine code is made of it, since a wrong one would write wrong "
        "memory. A pass of the compiler made this one.",
        hint="Report it with the text above.",
    ),
    Reason(
        id="graph_form",
        summary="the graph given to the CPU compiler is no functional ATen graph: {detail}",
        explanation="It takes calls of ATen operator overloads with described results, placeholders and constants.",
        hint="Pass it through `stator.aot.backend`, which makes such graphs.",
    ),
)
