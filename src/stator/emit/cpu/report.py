"""What the CPU compiler says about a program: `output_code`, `kernel_code`, `schedule` and `perf_hint` events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator import events
from stator.loops.fuse import Fused
from stator.loops.ir import Kernel
from stator.loops.show import show_kernel
from stator.lower.graph import Lowered
from stator.lower.values import OperatorCall, Stored, flatten


def report_program(name: str, steps: Sequence[Fused], kernels: dict[int, Kernel], lowered: Lowered) -> None:
    """Everything there is to say, to whoever listens."""
    if events.wanted("schedule"):
        events.emit("schedule", text=show_schedule(steps, kernels))
    if events.wanted("kernel_code"):
        for kernel in kernels.values():
            events.emit("kernel_code", name=kernel.name, text=show_kernel(kernel), user_lines=kernel.lines)
    if events.wanted("output_code"):
        texts = [show_kernel(kernel) for kernel in kernels.values()]
        text = "\n\n".join([f"program {name}", *texts, show_schedule(steps, kernels)])
        events.emit("output_code", text=text, language="loops")
    if events.wanted("fusion"):
        for operator, why, line in dict.fromkeys(lowered.refused):
            text = f"{operator} runs as ATen's own kernel ({why})"
            around = "what is before and after it"
            events.emit("fusion", first=operator, second=around, fused=False, why=text, user_line=line)
    if events.wanted("perf_hint"):
        for operator, why, line in dict.fromkeys(lowered.refused):
            if why != "has no row":
                text = f"{operator} runs as ATen's own kernel and fuses with nothing: {why}"
                events.emit("perf_hint", text=text, user_line=line)


def show_schedule(steps: Sequence[Fused], kernels: dict[int, Kernel]) -> str:
    """The steps of a program, one a line."""
    lines = []
    for number, step in enumerate(steps):
        if isinstance(step, OperatorCall):
            results = ", ".join(buffer.name for buffer in step.made()) or "nothing"
            lines.append(f"{results} = {step.operator}({_arguments(step)})  # {step.line or 'no line'}; {step.reason}")
        else:
            kernel = kernels[number]
            scratch = {buffer.name for buffer in kernel.scratch}
            written = sorted({s.buffer.name for t in kernel.stages for s in (*t.row_stores, *t.stores)} - scratch)
            arguments = ", ".join(buffer.name for buffer in kernel.buffers)
            lines.append(f"{', '.join(written)} = {kernel.name}({arguments})  # {', '.join(kernel.lines) or 'no line'}")
    return "\n".join(lines)


def _arguments(step: OperatorCall) -> str:
    def shown(value: Any) -> str:
        return value.buffer.name if isinstance(value, Stored) else repr(value)

    positional = [shown(value) for value in flatten(step.arguments)]
    return ", ".join(positional + [f"{name}={shown(value)}" for name, value in step.keywords.items()])
