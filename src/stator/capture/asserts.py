"""`assert` on a tensor: checked when the graph has run, so that it ends no graph.

Contract. `asserts(tracer, frame)` is asked at a branch on a tensor. Where that is an `assert` whose failing leaves the
program (no handler in reach), and nothing the program did before waits to be replayed, a `RuntimeAssert` takes its
place among the effects: the residual program looks at the condition where prints before it have been made, and those
after it have not, and raises in frames that stand where the `assert` does. Every other branch on a tensor breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stator.bytecode import DecodedCode
from stator.capture.frame import Frame

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


class RuntimeAssert(NamedTuple):
    """Among effects: a condition, what the exception is made of, the instructions it passes (innermost first)."""

    condition: Any
    args: tuple[Any, ...]
    places: tuple[Any, ...]
    step: int
    function: None = None


def asserted(decoded: DecodedCode, position: int) -> tuple[int, tuple[Any, ...]] | None:
    """Where an `assert` that begins at `position` raises, and with what; None for anything else."""
    rows = [row for row in decoded.instructions[position : position + 5] if row.opname != "PRECALL"]
    names = [row.opname for row in rows]
    if names[:2] == ["LOAD_ASSERTION_ERROR", "RAISE_VARARGS"]:
        return rows[1].index, ()
    if names[:4] == ["LOAD_ASSERTION_ERROR", "LOAD_CONST", "CALL", "RAISE_VARARGS"]:
        return rows[3].index, (rows[1].value,)
    return None


def asserts(tracer: Tracer, frame: Frame) -> bool:
    """Whether the branch on the tensor on top of the stack is an `assert` that the residual program can check."""
    raising = asserted(frame.decoded, frame.pc)
    condition = frame.stack[-1]
    if raising is None or condition.shape.numel() != 1 or hasattr(tracer.graph, "outer"):
        return False
    if any(not row.resumable or row.is_generator for row in tracer.frames[:-1]) or frame.is_generator:
        return False
    if any(row.decoded.handler_of[row.current] is not None for row in tracer.frames):
        return False
    world = tracer.world
    if any(overlay.writes for overlay in world.overlays.values()) or any(world.changed_shadows()):
        return False
    index, args = raising
    places = [(row.code, row.current, row.globals) for row in reversed(tracer.frames)]
    places[0] = (frame.code, index, frame.globals)
    tracer.effects.append(RuntimeAssert(condition, args, tuple(places), frame.step))
    return True
