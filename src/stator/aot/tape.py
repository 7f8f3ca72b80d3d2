"""The tape: what a trace records, and what all passes of this stage work on.

Contract. A `Tape` is a straight line of `Step`s. A step names what it runs and, where operands stand, the steps that
made them; it carries the abstract `value` it yields and the user's stack. A tape becomes a
`torch.fx.GraphModule` only at the very end (`export.to_graph_module`): creating an fx node costs ten times as much
as a step, and every pass would pay it again.

    kind       target                        value
    INPUT      name                          an argument of the tape
    CONSTANT   name in `tape.constants`      a tensor (or module) the graph owns
    CALL       operator or Python function   what it returns
    ITEM       index                         one of several results of its only operand

While recording, in-place operators stand on the tape as they ran, and a tensor keeps its step when it is written;
`functionalise` turns such a tape into one where a step's value never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

INPUT, CONSTANT, CALL, ITEM = "input", "constant", "call", "item"


class Step:
    """One line of a tape. `operands` are the steps among its arguments, in order, repetitions included."""

    __slots__ = ("args", "backward", "kind", "kwargs", "operands", "region", "stack", "target", "value")

    def __init__(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        value: Any = None,
        stack: str | None = None,
        operands: list[Step] | None = None,
    ) -> None:
        self.kind = kind
        self.target = target
        self.args = args
        self.kwargs = kwargs or {}
        self.value = value
        self.stack = stack
        self.backward = False
        self.region: Any = None
        self.operands = steps_in((*args, *self.kwargs.values())) if operands is None else operands

    def __repr__(self) -> str:
        return f"<{self.kind} {getattr(self.target, '__name__', self.target)}>"


class Tape:
    """Inputs, steps in order (inputs not among them), results, and the constants the steps name."""

    def __init__(self) -> None:
        self.inputs: list[Step] = []
        self.steps: list[Step] = []
        self.outputs: list[Any] = []
        self.constants: dict[str, Any] = {}


def steps_in(values: Iterable[Any]) -> list[Step]:
    """All steps among nested arguments."""
    found: list[Step] = []
    for value in values:
        kind = type(value)
        if kind is Step:
            found.append(value)
        elif kind is list or kind is tuple:
            found.extend(steps_in(value))
        elif kind is slice:
            found.extend(steps_in((value.start, value.stop, value.step)))
        elif kind is dict:
            found.extend(steps_in(value.values()))
    return found


def map_steps(function: Callable[[Step], Any], value: Any) -> Any:
    """Nested arguments with `function` applied to their steps."""
    kind = type(value)
    if kind is Step:
        return function(value)
    if kind is list:
        return [map_steps(function, item) for item in value]
    if kind is tuple:
        return tuple(map_steps(function, item) for item in value)
    if kind is slice:
        return slice(map_steps(function, value.start), map_steps(function, value.stop), map_steps(function, value.step))
    if kind is dict:
        return {key: map_steps(function, item) for key, item in value.items()}
    return value


def substitute(step: Step, function: Callable[[Step], Step]) -> None:
    """Give a step other operands, in place."""
    step.args = map_steps(function, step.args)
    if step.kwargs:
        step.kwargs = map_steps(function, step.kwargs)
    step.operands = [function(operand) for operand in step.operands]


def like(step: Step, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, value: Any) -> Step:
    """A new step that belongs to the same user line, phase and region as `step`."""
    made = Step(kind, target, args, kwargs, value, step.stack)
    made.backward = step.backward
    made.region = step.region
    return made
