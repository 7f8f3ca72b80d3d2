"""Stop at every instruction of every case, run on, and compare with a run that never stopped."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import pytest
from tests.resume_code import cases
from tests.resume_code.stepper import Injected, NotRebuildable, Stepper, Stop, outcome, stoppable

from stator.bytecode import calls_redirected, decode, liveness
from stator.resume.code import Completion, completion_of
from stator.resume.state import UNBOUND, ExceptionSlot, FrameState, run_chain

NAMES = [name for name in vars(cases) if name.startswith("case_")]
HITS = (1, 2)


class Program:
    """One case: plain, and instrumented with its helpers and classes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stepper = Stepper()
        self.namespace: dict[str, Any] = {}
        source = open(cases.__file__).read()
        exec(compile(source, cases.__file__, "exec"), self.namespace)
        self.plain_namespace: dict[str, Any] = {}
        exec(compile(source, cases.__file__, "exec"), self.plain_namespace)
        for key, value in list(self.namespace.items()):
            if isinstance(value, types.FunctionType) and (key == name or key.startswith("helper_")):
                self.namespace[key] = self.stepper.function(value)
            elif isinstance(value, type):
                for attribute, member in list(vars(value).items()):
                    if isinstance(member, types.FunctionType):
                        setattr(value, attribute, self.stepper.function(member))
                    elif isinstance(member, property):
                        setattr(value, attribute, property(self.stepper.function(member.fget)))

    def plain(self) -> tuple[Any, Any]:
        log: list[Any] = []
        return outcome(partial(self.plain_namespace[self.name], log)), repr(log)

    def stop(self, target: tuple[int, int, int], action: str) -> tuple[Any, list[Any]]:
        log: list[Any] = []
        return self.stepper.run(partial(self.namespace[self.name], log), target, action), log


# Other functions look at all locals of these.
OBSERVED = {"case_frame"}


def keep_live(state: FrameState, innermost: bool) -> None:
    """Forget the locals that liveness says nobody can see any more."""
    decoded = decode(state.code)
    live = liveness(decoded)
    needed = set(live[state.index])
    if not innermost:
        row = decoded.instructions[state.index]
        needed = set(live[state.index + 1])
        if row.target >= 0:
            needed |= live[row.target]
        handler = decoded.handler_of[state.index]
        if handler is not None:
            needed |= live[handler.target]
        if row.opname in ("FOR_ITER", "SEND"):
            needed |= live[state.index]
    state.locals = [value if slot in needed else UNBOUND for slot, value in enumerate(state.locals)]


def every_stop(program: Program) -> list[tuple[int, int, int]]:
    """(code, instruction, hit) for all that the plain program reaches."""
    program.stop((-1, -1, -1), "stop")
    hits = dict(program.stepper.hits)
    return [(number, index, hit) for (number, index), count in hits.items() for hit in HITS if hit <= count]


@pytest.mark.parametrize("name", NAMES)
def test_resumed_before_every_instruction(name: str) -> None:
    program = Program(name)
    expected = program.plain()
    resumed = 0
    for target in every_stop(program):
        _, log = program.stop(target, "stop")
        stop = program.stepper.stopped
        if isinstance(stop, NotRebuildable):
            continue
        assert isinstance(stop, Stop), target
        if name not in OBSERVED:
            for state in stop.frames:
                keep_live(state, innermost=state is stop.frames[0])
        got = outcome(partial(run_chain, stop.frames)), repr(log)
        assert got == expected, where(program, target)
        resumed += 1
    assert resumed


@pytest.mark.parametrize("name", NAMES)
def test_resumed_with_every_result(name: str) -> None:
    program = Program(name)
    expected = program.plain()
    for target in every_stop(program):
        _, log = program.stop(target, "stop")
        stop = program.stepper.stopped
        if not isinstance(stop, Stop) or not before_by_result(stop):
            continue
        payload = stop.frames[0].stack.pop()
        stop.frames[0].index -= 1
        got = outcome(partial(run_chain, stop.frames, payload)), repr(log)
        assert got == expected, where(program, target)


def before_by_result(stop: Stop) -> bool:
    """Whether the instruction before the stop has just run, and pushed one value."""
    state = stop.frames[0]
    instructions = decode(state.code).instructions
    index = state.index
    row = instructions[index - 1]
    first = index - 1
    while first not in stoppable(state.code) and first > 0:
        first -= 1
    if stop.previous != first or row.opname not in RESULTS or row.is_method or row.push_null:
        return False
    return completion_of(row) in (Completion.PUSH, Completion.TRUTH, Completion.UNTRUTH)


def may_raise(state: FrameState) -> bool:
    """Not between the parts of a handler's own clean-up, where CPython relies on nothing being raised."""
    handler = decode(state.code).handler_of[state.index]
    unwound = state.stack[0 if handler is None else handler.depth :]
    return not any(isinstance(value, ExceptionSlot) for value in unwound)


RESULTS = {
    "CALL", "CALL_FUNCTION_EX", "BINARY_OP", "BINARY_SUBSCR", "LOAD_ATTR", "COMPARE_OP", "UNARY_NEGATIVE", "UNARY_NOT",
    "BUILD_LIST", "BUILD_TUPLE", "GET_ITER", "FORMAT_VALUE", "IMPORT_NAME", "WITH_EXCEPT_START", "BINARY_SLICE",
    "LOAD_SUPER_ATTR", "LOAD_DEREF", "LOAD_CONST", "BEFORE_WITH", "CALL_INTRINSIC_1", "IS_OP",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_raises(name: str) -> None:
    program = Program(name)
    for target in every_stop(program):
        expected, log = program.stop(target, "raise")
        expected_log = repr(log)
        _, log = program.stop(target, "stop")
        stop = program.stepper.stopped
        if isinstance(stop, NotRebuildable):
            continue
        assert isinstance(stop, Stop), target
        if not may_raise(stop.frames[0]):
            continue
        got = outcome(partial(run_chain, stop.frames, exception=Injected("here"))), repr(log)
        assert got == (expected, expected_log), where(program, target)


def where(program: Program, target: tuple[int, int, int]) -> str:
    code = program.stepper.codes[target[0]]
    return f"{code.co_qualname} {decode(code).instructions[target[1]]!r} hit {target[2]}"


@pytest.mark.parametrize("name", NAMES)
def test_with_all_calls_redirected(name: str) -> None:
    program = Program(name)
    expected = program.plain()
    asked: list[Any] = []
    copies: dict[types.CodeType, types.CodeType] = {}

    def helper(function: Any) -> Any:
        asked.append(function)
        if isinstance(function, types.FunctionType) and function.__code__.co_filename == cases.__file__:
            if function.__code__ not in copies:
                copies[function.__code__] = calls_redirected(function.__code__, helper)
            copy = types.FunctionType(
                copies[function.__code__],
                function.__globals__,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            return copy
        return function

    log: list[Any] = []
    got = outcome(partial(helper(program.plain_namespace[name]), log)), repr(log)
    assert got == expected
    if name not in ("case_match", "case_while_true"):
        assert len(asked) > 1 or not log
