"""From a finished trace to its residual program: how the compiled call ends, or where it is left and goes on.

Contract. `residual_of(trace, ...)` gives a `Residual`: the text and function of the residual program, the sources it
needs fetched, and the graph's inputs. A trace that returned ends in `return`. A trace that broke off runs the one
broken operation in plain Python, under a `try`:

    it gives a value      the rest of the program goes on in a continuation, traced from the whole chain of frames
    it raises             if a handler of the program is in reach, it and the rest go on in a continuation, too, as
                          long as the exception is done with by its end; else the chain of frames is rebuilt, and
                          the exception passes through real frames

What has no plain form runs on eagerly from where it stands. Nothing of the program is run twice.
"""

from __future__ import annotations

import copy
import dataclasses
import linecache
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from stator import events
from stator._native import core
from stator.bytecode import Instruction
from stator.capture.ahead import Depth
from stator.capture.control import Break
from stator.capture.frame import Frame
from stator.capture.trace import Ending, Trace
from stator.resume.layout import FrameContext, Layout, Peek, capture_layout
from stator.resume.operations import PlainOperation, plain_operation, stack_after
from stator.resume.residual import ResidualBuilder
from stator.resume.support import Support
from stator.resume.timing import BreakTimer
from stator.values.source import Source


class Continuation(Protocol):
    """Where a program goes on: what to call, and how far ahead it looks into the iterators among its values."""

    callable: Any
    depths: dict[int, Depth]


MakeContinuation = Callable[[Layout, tuple[FrameContext, ...]], Continuation]


@dataclass(slots=True)
class Residual:
    """A residual program before its graph is compiled."""

    builder: ResidualBuilder
    ending: list[str]
    inputs: list[str]
    input_sources: list[Source]
    outputs: list[torch.fx.Node]

    def finish(self, graph: Any) -> tuple[types.FunctionType, str]:
        """The residual function, with the compiled graph, and its text."""
        return self.builder.assemble(graph, self.inputs, self.ending)


class Marker:
    """Stands on the abstract stack for a value the broken operation will give."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def residual_of(
    trace: Trace, local_count: int, make_continuation: MakeContinuation, callees_compiled: Callable[[Any], Any]
) -> Residual:
    """The residual program of a trace that returned or broke.

    `callees_compiled(function)` is a function that runs uncompiled but has what it calls compiled.
    """
    tracer = trace.tracer
    builder = ResidualBuilder(tracer, local_count)
    if trace.broke is not None and trace.broke.reason in ("skipped_frame", "disabled_function"):
        builder.callees_compiled = callees_compiled
    if trace.ending is Ending.RETURNED:
        builder.effects()
        value = builder.expression(trace.value)
        ending = [*_restored_modes(trace, builder), f"return {value}"]
    else:
        ending = _left(trace, builder, make_continuation)
    inputs = [builder.fetch(source) for source, _ in tracer.graph.inputs]
    return Residual(builder, ending, inputs, [source for source, _ in tracer.graph.inputs], builder.outputs)


def _restored_modes(trace: Trace, builder: ResidualBuilder) -> list[str]:
    """Modes the program set are set when the graph has run, whether or not the backend did so."""
    lines = builder.restored_modes()
    if trace.modes_after != trace.modes_before:
        lines.append(f"{builder.constant(trace.modes_after)}.install()")
    return lines


def operand_count(instruction: Instruction) -> int:
    """How many operands a call-like instruction takes off the stack."""
    counts = {"CALL": instruction.arg + 2, "CALL_FUNCTION_EX": 3 + (instruction.arg & 1), "WITH_EXCEPT_START": 0}
    return counts.get(instruction.opname, 2 if instruction.opname == "BINARY_SUBSCR" else 1)


def _left(trace: Trace, builder: ResidualBuilder, make_continuation: MakeContinuation) -> list[str]:
    tracer = trace.tracer
    frames = [_suspended(frame) for frame in tracer.frames[:-1]]
    inner = tracer.frames[-1]
    contexts = tuple(FrameContext(frame.globals, frame.builtins) for frame in (*frames, inner))
    builder.effects()  # before anything is rebuilt: iterators want the container as it then is
    lines_before, names_before = len(builder.lines), dict(builder.names)
    try:
        operation = plain_operation(builder, inner)
    except Break as refused:
        if refused.reason != "cannot_rebuild" or refused.born is not None:
            raise
        operation = None
        del builder.lines[lines_before:]
        builder.names = names_before
    if operation is None:
        standing = _copied(inner, inner.stack, inner.current)
        layout, values = capture_layout([*frames, standing], tracer.handled)
        names = builder.sequence(values)
        restored = _restored_modes(trace, builder)
        call = f"make.run_on({builder.constant(layout)}, {builder.constant(contexts)}, ({names}))"
        return [*restored, f"return {call}"]
    bare = _copied(inner, inner.stack[: len(inner.stack) - operation.operands], inner.pc)
    layout, values = capture_layout([*frames, bare], tracer.handled)
    before = builder.sequence(values)
    branches = [
        (condition, _go_on(builder, frames, inner, operation, result, pc, tracer.handled, contexts, make_continuation))
        for condition, result, pc in _outcomes(builder, inner, operation)
    ]
    lines = _restored_modes(trace, builder)
    if tracer.handled is None and any(frame.decoded.handler_of[frame.current] for frame in (*frames, inner)):
        arriving = dataclasses.replace(layout, raised=True, error_on_break=tracer.error_on_break)
        place = make_continuation(arriving, contexts)
        call = f"{builder.constant(core.TailCall)}({builder.constant(place.callable)}, "
        recover = f"return {call}{before}make.arrived(caught))"
    else:
        recover = f"return make.recover({builder.constant(layout)}, {builder.constant(contexts)}, ({before}), caught)"
    line = linecache.getline(inner.code.co_filename, inner.line()).strip()
    quoted = f"  # {inner.code.co_filename}:{inner.line()}  {line}"
    builder.stands_for = (inner.code, inner.line())
    stop: list[str] = []
    if events.wanted("break_run") and trace.broke is not None:
        timer = builder.constant(BreakTimer(trace.broke.reason, tracer.location(), events.current_compile_id()))
        lines.append(f"started = {timer}.start()")
        stop = [f"{timer}.stop(started)"]
    attempt = ["try:", f"    p = {operation.text}{quoted}", "except BaseException as error:", "    caught = error"]
    if tracer.handled is not None:
        attempt = _while_handling(builder.expression(tracer.handled), attempt)
    lines += ["caught = None", *attempt, *stop, "if caught is None:"]
    if trace.broke is not None and trace.broke.reason == "program_raises":
        lines.append(f"    make.raised_nothing({builder.constant(f'{trace.broke.detail} at {tracer.location()}')})")
    for condition, text in branches:
        lines.append(f"    {condition}return {text}")
    return [*lines, recover]


def _while_handling(handled: str, lines: list[str]) -> list[str]:
    """`lines` as they run inside of an exception's handler; raising it once more leaves no mark on it."""
    return [
        f"kept = {handled}.__traceback__, {handled}.__context__",
        "try:",
        f"    raise {handled}",
        "except BaseException:",
        f"    {handled}.__traceback__, {handled}.__context__ = kept",
        *(f"    {line}" for line in lines),
    ]


def _suspended(frame: Frame) -> Frame:
    """A caller, the operands of its call off the stack."""
    if frame.suspended:
        return frame
    return _copied(frame, frame.stack[: len(frame.stack) - operand_count(frame.instruction)], frame.pc)


def _copied(frame: Frame, stack: list[Any], pc: int) -> Frame:
    made = copy.copy(frame)
    made.stack = list(stack)
    made.pc = pc
    return made


def _outcomes(builder: ResidualBuilder, inner: Frame, operation: PlainOperation) -> list[tuple[str, Any, int]]:
    """(condition, what comes onto the stack, where the program goes on) for each way the operation can end."""

    def marker(name: str) -> Marker:
        made = Marker(name)
        builder.names[id(made)] = name
        builder.kept.append(made)
        return made

    after = inner.current + 1
    target = inner.instruction.target
    if operation.outcome == "branch":
        return [("if p: ", None, target), ("", None, after)]
    if operation.outcome == "iterate":
        end = target
        if inner.decoded.instructions[end].opname == "END_FOR":
            end += 1
        return [("if p is make.END: ", Support.END, end), ("", marker("p"), after)]
    if operation.outcome in ("spread", "enter"):
        count = 2 if operation.outcome == "enter" else operation.count
        return [("", [marker(f"p[{position}]") for position in range(count)], after)]
    return [("", marker("p"), after)]


def _go_on(
    builder: ResidualBuilder,
    frames: list[Frame],
    inner: Frame,
    operation: PlainOperation,
    result: Any,
    pc: int,
    handled: BaseException | None,
    contexts: tuple[FrameContext, ...],
    make_continuation: MakeContinuation,
) -> str:
    """Text that goes on behind the operation."""
    if result is Support.END:
        stack = inner.stack[:-1]
    else:
        stack = stack_after(inner, operation, result)
    resting = _copied(inner, stack, pc)
    resting.current = pc
    layout, values = capture_layout([*frames, resting], handled, peeking=True)
    layout = dataclasses.replace(layout, error_on_break=builder.tracer.error_on_break)
    place = make_continuation(layout, contexts)
    for position, value in enumerate(values):
        if type(value) is Peek:
            depth = builder.constant(place.depths.setdefault(position, Depth()))
            builder.names[id(value)] = f"make.ahead({builder.expression(value.iterator)}, {depth})"
            builder.kept.append(value)
    tail = builder.constant(core.TailCall)
    live = ", ".join(layout.names()) or "nothing"
    return f"{tail}({builder.constant(place.callable)}, {builder.sequence(values)})  # goes on in {layout}, with {live}"
