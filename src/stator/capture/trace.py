"""One trace from start to end: set up the interpreter for a function, run it, leave everything as it was.

Contract. `trace_function(function, values)` interprets a call of `function` with its bound locals and gives a
`Trace`: the tracer with its frames, graph and side tables, and how it ended (returned a value, broke off, or was left
by an exception of the program). Torch's modes are as before when it returns; no user object was touched.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from stator.capture.control import Break, Restart, SkipFrame, UserException
from stator.capture.frame import Frame, Pending
from stator.capture.tracer import Tracer
from stator.values.source import ModesExpectation, SourceTree
from stator.values.world import World

# Interpreting costs a few Python frames for each frame of the program.
RECURSION_LIMIT = 20_000
DEVICES = ("cpu", "cuda")


class Ending(enum.Enum):
    """How a trace ended."""

    RETURNED = "the function returned"
    BROKE = "an operation could not be traced"
    SKIPPED = "the frame asked to run uncompiled"
    RAISED = "an exception of the program left the function"


class Modes(NamedTuple):
    """Modes that a program may leave changed, at a break or at its end."""

    grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool
    nesting: int = 0  # how many autocast contexts more the program is in than it began with

    @staticmethod
    def now(nesting: int = 0) -> Modes:
        rows = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in DEVICES]
        return Modes(torch.is_grad_enabled(), tuple(rows), torch.is_autocast_cache_enabled(), nesting)

    def install(self) -> None:
        """Make these the modes of this thread."""
        torch._C._set_grad_enabled(self.grad)
        for device, enabled, dtype in self.autocast:
            if torch.is_autocast_enabled(device) != enabled:
                torch.set_autocast_enabled(device, enabled)
            if torch.get_autocast_dtype(device) != dtype:
                torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        for _ in range(abs(self.nesting)):
            (torch.autocast_increment_nesting if self.nesting > 0 else torch.autocast_decrement_nesting)()


@dataclass(slots=True)
class Trace:
    """What came of a trace."""

    tracer: Tracer
    ending: Ending
    modes_before: Modes
    modes_after: Modes
    value: Any = None
    broke: Break | None = None


@contextlib.contextmanager
def modes_restored() -> Iterator[None]:
    """Put torch's modes back as they were."""
    before = Modes.now()
    limit = sys.getrecursionlimit()
    if limit < RECURSION_LIMIT:
        sys.setrecursionlimit(RECURSION_LIMIT)
    try:
        yield
    finally:
        before.install()
        if limit < RECURSION_LIMIT:
            sys.setrecursionlimit(limit)


def function_frame(tracer: Tracer, function: types.FunctionType, values: tuple[Any, ...]) -> Frame:
    """The frame of the traced function, its locals not yet looked at."""
    world: World = tracer.world
    closure = function.__closure__ or ()
    root = tracer.tree.root("FUNCTION")
    cells = root.child("SLOT", "__closure__")
    for index, cell in enumerate(closure):
        tracer.cell_sources[id(cell)] = cells.child("INDEX", index).child("CONTENTS")
    world.kept.append(function)
    builtin_names = getattr(function, "__builtins__")
    frame = Frame(function.__code__, function.__globals__, builtin_names, closure, function)
    if closure:
        frame.locals[len(frame.locals) - len(closure) :] = closure
    for index, value in enumerate(values):
        frame.locals[index] = Pending(value, tracer.tree.local(index))
    return frame


def forwarded_names(code: types.CodeType, values: tuple[Any, ...]) -> Mapping[str, str]:
    """What the `forward` of a module calls the arguments that a call of the module passes along."""
    passes_on = (code.co_argcount, code.co_kwonlyargcount, code.co_flags & 12) == (1, 0, 12)
    if not passes_on or not isinstance(values[0], torch.nn.Module):
        return MappingProxyType({})
    forward = getattr(inspect.getattr_static(values[0], "forward", None), "__code__", None)
    if forward is None:
        return MappingProxyType({})
    known = forward.co_varnames[: forward.co_argcount + forward.co_kwonlyargcount]
    star, stars = code.co_varnames[1:3]
    names = {f"{star}[{position}]": name for position, name in enumerate(known[1 : forward.co_argcount])}
    names.update((f"{stars}[{name!r}]", name) for name in known)
    if forward.co_flags & 4:
        rest, first = forward.co_varnames[len(known)], forward.co_argcount - 1
        names.update((f"{star}[{first + index}]", f"{rest}[{index}]") for index in range(len(values[1]) - first))
    return names


def trace_function(
    function: types.FunctionType,
    values: tuple[Any, ...],
    modes: ModesExpectation,
    function_modes: tuple[Any, ...],
    prepare: Callable[[Tracer], None] | None = None,
    known: Mapping[int, Break] = MappingProxyType({}),
) -> Trace:
    """Interpret one call of `function`."""
    code = function.__code__

    def start() -> Tracer:
        tracer = Tracer(SourceTree(code.co_varnames[: len(values)], code.co_freevars, forwarded_names(code, values)))
        tracer.tree.state().guard("MODES", modes)
        return tracer

    return trace(start, lambda tracer: [function_frame(tracer, function, values)], function_modes, prepare, known)


def trace(
    start: Callable[[], Tracer],
    make_frames: Callable[[Tracer], list[Frame]],
    modes: tuple[Any, ...],
    prepare: Callable[[Tracer], None] | None = None,
    known: Mapping[int, Break] = MappingProxyType({}),
) -> Trace:
    """Run prepared frames (outermost first) to their end, again as often as the trace learns where it must break.

    `modes`: the torch function modes of the program, which are set aside. `known`: steps where an earlier trace of the
    same call found that it must.
    """
    break_at: dict[int, Break] = dict(known)
    raising: SourceTree | None = None  # what led to an exception
    while True:
        tracer = start()
        tracer.enter_modes(modes)
        tracer.break_at = break_at
        if prepare is not None:
            prepare(tracer)
        result = _trace_once(tracer, make_frames(tracer))
        found = result if isinstance(result, Restart) else _better_break(result, break_at)
        if found is None:
            assert isinstance(result, Trace)
            if raising is not None and result.broke is not None and result.broke.reason == "program_raises":
                # A call that would not raise is not this entry's: what follows is compiled with the operation.
                tracer.tree.adopt(raising)
            return result
        break_at = {**break_at, found.step: found.broke}
        raising = tracer.tree if found.broke.reason == "program_raises" else raising
        tracer.release()


def _better_break(result: Trace, break_at: Mapping[int, Break]) -> Restart | None:
    """Where the trace should have broken off instead, if anywhere."""
    tracer = result.tracer
    if result.ending is Ending.RAISED:
        if result.value is tracer.arrived:
            return None
        # The original code raises it again, from the operation that did: traceback and handlers are then real.
        return Restart(tracer.raised_step, Break("program_raises", type(result.value).__name__))
    if result.ending is Ending.SKIPPED and len(tracer.frames) > 1:
        return Restart(tracer.frames[-2].step, Break("skipped_frame", tracer.frames[-1].code.co_qualname))
    if result.broke is None:
        return None
    cut = first_indirect(tracer)
    if cut is None and tracer.broke_in_c and tracer.frames[-1].step not in break_at:
        cut = -1  # C code was in the middle of it: an iterator may have moved
    # Half of an instruction has run, and its effects with it: trace again, and break before it.
    return None if cut is None else Restart(tracer.frames[cut].step, result.broke)


def first_indirect(tracer: Tracer) -> int | None:
    """The outermost frame that cannot go on with just the result of its callee, if it is not the innermost."""
    for position, frame in enumerate(tracer.frames[:-1]):
        if not frame.resumable:
            return position
    return None


def _trace_once(tracer: Tracer, frames: list[Frame]) -> Trace | Restart:
    before = Modes.now()
    with modes_restored():
        try:
            value = tracer.run_chain(frames)
        except Break as broke:
            tracer.world.distinguish()
            return Trace(tracer, Ending.BROKE, before, Modes.now(tracer.nesting), broke=broke)
        except SkipFrame:
            return Trace(tracer, Ending.SKIPPED, before, Modes.now())
        except UserException as error:
            return Trace(tracer, Ending.RAISED, before, Modes.now(), value=error.value)
        except Restart as restart:
            return restart
        except RecursionError:
            return Restart(tracer.frames[0].step, Break("recursion_limit"))
        else:
            tracer.world.distinguish()
            return Trace(tracer, Ending.RETURNED, before, Modes.now(tracer.nesting), value=value)
        finally:
            tracer.finished = True
