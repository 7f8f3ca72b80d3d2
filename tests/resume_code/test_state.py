from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.bytecode.samples import long_function
from tests.resume_code.stepper import raw_slots

from stator.bytecode import decode, stack_slots
from stator.resume.code import Mode, Shape, resume_function
from stator.resume.state import (
    NULL,
    UNBOUND,
    ExceptionSlot,
    FrameState,
    call_resume,
    make_function,
    prepare_chain,
    raise_resume,
    resume_generator,
    resume_suspended,
    run_chain,
)


def state_of(
    function: Callable[..., Any], opname: str, occurrence: int = 0, stack: list[Any] | None = None, **values: Any
) -> FrameState:
    """The state of `function` at one of its instructions, with these locals."""
    assert isinstance(function, types.FunctionType)
    decoded = decode(function.__code__)
    index = [row.index for row in decoded.instructions if row.opname == opname][occurrence]
    count = len(decoded.localsplus_names) - decoded.nfrees
    locals_ = [UNBOUND] * count
    for name, value in values.items():
        slot = decoded.localsplus_names.index(name)
        locals_[slot] = types.CellType(value) if name in decoded.cell_indexes else value
    return FrameState(
        function.__code__, index, locals_, function.__globals__, function.__closure__ or (), list(stack or [])
    )


def places(error: BaseException) -> list[tuple[str, int]]:
    return [
        (frame.name, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if "stator" not in frame.filename or "tests" in frame.filename
    ]


# -- exceptions


def divide(a: Any, b: Any) -> Any:
    return a / b


def caller(a: Any, b: Any) -> Any:
    try:
        return divide(a, b)
    except ZeroDivisionError as error:
        raise KeyError(a) from error


def failing(*args: Any) -> Any:
    raise ZeroDivisionError("no")


def test_the_catcher_is_cut_from_the_traceback_and_what_lies_below_stays() -> None:
    try:
        failing()
    except ZeroDivisionError as error:
        failure = error
    state = state_of(caller, "CALL", 0, a=1, b=0)
    with pytest.raises(KeyError) as caught:
        raise_resume(state, failure)
    first = caller.__code__.co_firstlineno
    assert places(caught.value)[1:] == [("caller", first + 4)]
    cause = caught.value.__cause__
    assert cause is failure and places(failure) == [
        ("caller", first + 2),
        ("failing", failing.__code__.co_firstlineno + 1),
    ]
    assert not any("stator/resume" in row.filename for row in traceback.extract_tb(caught.value.__traceback__))


def test_the_context_is_what_the_frame_handles() -> None:
    def handler() -> Any:
        try:
            int("x")
        except ValueError:
            return divide(1, 0)

    try:
        int("x")
    except ValueError as error:
        handled = error
    for own_context in (None, LookupError("own")):
        failure = ZeroDivisionError("no")
        failure.__context__ = own_context
        state = state_of(handler, "CALL", 1, stack=[ExceptionSlot(handled)])
        with pytest.raises(ZeroDivisionError) as caught:
            raise_resume(state, failure)
        assert caught.value is failure
        if own_context is None:
            assert failure.__context__ is handled
        else:
            assert failure.__context__ is own_context and own_context.__context__ is handled
    assert sys.exc_info()[1] is None


def test_a_context_is_never_made_a_circle() -> None:
    def handler() -> Any:
        try:
            int("x")
        except ValueError:
            return divide(1, 0)

    failure = ZeroDivisionError("no")
    handled = ValueError("h")
    handled.__context__ = KeyError("between")
    handled.__context__.__context__ = failure
    with pytest.raises(ZeroDivisionError):
        raise_resume(state_of(handler, "CALL", 1, stack=[ExceptionSlot(handled)]), failure)
    assert failure.__context__ is handled and handled.__context__.__context__ is None


def test_without_a_traceback_and_of_a_class_that_hides_attributes() -> None:
    class Odd(Exception):
        def __init__(self) -> None:
            raise AssertionError("exceptions are not made again")

    failure = Odd.__new__(Odd)
    with pytest.raises(Odd) as caught:
        raise_resume(state_of(divide, "BINARY_OP", a=1, b=2), failure)
    assert caught.value is failure and len(places(failure)) == 2


def test_a_frame_with_too_small_a_stack_for_its_handlers_is_refused() -> None:
    def function(f: Any) -> Any:
        with f:
            return f()

    state = state_of(function, "CALL", 0, f=len)
    with pytest.raises(ValueError, match="need a stack"):
        raise_resume(state, KeyError())


# -- calls with keyword names, prologues, long code


def test_before_a_call_with_keyword_names() -> None:
    def function(f: Any) -> Any:
        return f(1, sep="-", end="!")

    def take(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    for opname in ("KW_NAMES", "CALL") if sys.version_info < (3, 13) else ("CALL_KW",):
        state = state_of(function, opname, stack=[NULL, take, 1, "-", "!"], f=take)
        assert call_resume(state) == ((1,), {"sep": "-", "end": "!"})


def test_from_the_first_instruction() -> None:
    outer = 10

    def function(a: Any, b: Any = 2, *rest: Any, c: Any = 3, **more: Any) -> Any:
        def read() -> Any:
            return a, rest, outer

        b += 1
        return read(), b, c, sorted(more.items()), sorted(locals())

    expected = function(1, 5, 6, c=7, d=8)
    decoded = decode(function.__code__)
    start = next(row.index for row in decoded.instructions if row.opname == "RESUME")
    for index in range(start + 1):
        made = [row.value for row in decoded.instructions[:index] if row.opname == "MAKE_CELL"]
        values = {"a": 1, "b": 5, "rest": (6,), "c": 7, "more": {"d": 8}}
        locals_: list[Any] = []
        for name in decoded.localsplus_names[: len(decoded.localsplus_names) - decoded.nfrees]:
            value = values.get(name, UNBOUND)
            if name in made:
                value = types.CellType() if value is UNBOUND else types.CellType(value)
            locals_.append(value)
        state = FrameState(function.__code__, index, locals_, function.__globals__, function.__closure__ or ())
        assert call_resume(state) == expected


def test_code_with_extended_arguments() -> None:
    code = long_function(300)
    decoded = decode(code)
    names = {f"name{i}": i for i in range(300)}
    expected: list[Any] = []
    types.FunctionType(code, dict(names))(1, expected)
    stops = [row.index for row in decoded.instructions if row.opname == "LOAD_FAST" and row.value == "x"]
    for number in (0, 1, 2, 100, 298, 299):
        seen: list[Any] = expected[:number]
        locals_ = [UNBOUND] * len(decoded.localsplus_names)
        locals_[0], locals_[1] = 1, seen
        stack = [iter([0])] if stack_slots(decoded)[stops[2 * number]] == "v" else []
        state = FrameState(code, stops[2 * number], locals_, dict(names), (), stack)
        assert call_resume(state) is seen and seen == expected
    state = FrameState(code, stops[-1], [1, [], *[UNBOUND] * (len(decoded.localsplus_names) - 2)], {})
    with pytest.raises(LookupError):
        raise_resume(state, LookupError())


def test_only_functions_are_re_entered() -> None:
    with pytest.raises(ValueError, match="only functions"):
        resume_function(compile("x = 1", "<m>", "exec"), 2, Shape(0, ""))


def test_an_instruction_without_a_single_result_is_refused() -> None:
    def function(a: Any) -> Any:
        b, c = a
        return b + c

    with pytest.raises(ValueError, match="UNPACK_SEQUENCE"):
        call_resume(state_of(function, "UNPACK_SEQUENCE", a=(1, 2)), (1, 2))


# -- the frame as the user sees it


def test_cells_stay_shared_with_functions_made_before() -> None:
    def function(n: Any) -> Any:
        count = 0

        def bump() -> int:
            nonlocal count
            count += 1
            return count

        bump()
        return count, bump()

    cell = types.CellType(5)

    def bump() -> int:
        cell.cell_contents += 1
        return int(cell.cell_contents)

    state = state_of(function, "LOAD_DEREF", 0, n=1, bump=bump)
    state.locals[decode(function.__code__).cell_indexes["count"]] = cell
    assert call_resume(state) == (5, 6) and cell.cell_contents == 6


def test_resumed_frames_look_like_the_function() -> None:
    def function(a: Any, f: Any) -> Any:
        b = a
        return f()

    def look() -> Any:
        frame = sys._getframe(1)
        code = frame.f_code
        return (code.co_name, code.co_qualname, code.co_filename, frame.f_lineno, dict(frame.f_locals))

    function_code = function.__code__
    got = call_resume(state_of(function, "CALL", stack=[NULL, look], a=1, b=2, f=look))
    assert got == (
        "function",
        function_code.co_qualname,
        function_code.co_filename,
        function_code.co_firstlineno + 2,
        {"a": 1, "b": 2, "f": look},
    )


def test_no_frame_of_ours_between_resumed_frames_or_above_a_prepared_chain() -> None:
    def inner(f: Any) -> Any:
        return f()

    def outer(f: Any) -> Any:
        return inner(f)

    def callers() -> list[str]:
        frame: types.FrameType | None = sys._getframe(1)
        names = []
        while frame is not None and len(names) < 3:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return names

    frames = [state_of(inner, "CALL", stack=[NULL, callers], f=callers), state_of(outer, "CALL", f=callers)]
    thunk = prepare_chain(frames)
    me = "test_no_frame_of_ours_between_resumed_frames_or_above_a_prepared_chain"
    assert thunk() == ["inner", "outer", me]


class Watched:
    pass


def test_values_live_no_longer_than_the_user_keeps_them() -> None:
    def function(a: Any, probe: Any) -> Any:
        seen = [probe() is not None]
        del a
        seen.append(probe() is not None)
        return seen

    watched = Watched()
    probe = weakref.ref(watched)
    state = state_of(function, "DELETE_FAST", a=watched, probe=probe, seen=["kept"])
    del watched
    assert call_resume(state) == ["kept", False]
    assert state.locals == [] and state.stack == []


def test_nothing_is_leaked() -> None:
    watched = Watched()

    def function(a: Any, f: Any) -> Any:
        def read() -> Any:
            return a

        with f:
            return [read(), f.method(a)]

    class Manager:
        def __enter__(self) -> None: ...
        def __exit__(self, *rest: object) -> None: ...
        def method(self, value: Any) -> Any:
            return value

    manager = Manager()

    def once() -> None:
        decoded = decode(function.__code__)
        state = state_of(function, "CALL", 1, stack=[manager.__exit__, ["x"]], a=watched, f=manager)
        state.locals[decoded.localsplus_names.index("read")] = None
        row = decoded.instructions[state.index]
        assert row.opname == "CALL"
        call_resume(state, watched)
        state = state_of(function, "CALL", 1, stack=[manager.__exit__, ["x"]], a=watched, f=manager)
        try:
            raise_resume(state, KeyError(1))
        except KeyError:
            pass

    once()
    gc.collect()
    before = sys.getrefcount(watched), sys.getrefcount(manager)
    for _ in range(50):
        once()
    gc.collect()
    assert (sys.getrefcount(watched), sys.getrefcount(manager)) == before


def test_resume_code_goes_with_the_code_it_re_enters() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(a):\n    return a + 1\n", namespace)
    code = namespace["f"].__code__
    resumed = resume_function(code, 2, Shape(1, ""))
    assert resume_function(code, 2, Shape(1, "")) is resumed
    assert resume_function(code, 2, Shape(0, "v")) is not resumed
    probe = weakref.ref(resumed)
    del namespace, code, resumed
    gc.collect()
    assert probe() is None


# -- calls through C


def test_a_result_is_converted_where_c_code_would_have() -> None:
    class Made:
        pass

    def function(a: Any) -> Any:
        return [a, Made(a)]  # type: ignore[call-arg]

    def initialise(self: Any, a: Any) -> None:
        self.a = a

    made = Made()
    inner = state_of(initialise, "LOAD_FAST", 0, self=made, a=7)
    outer = state_of(function, "CALL", 0, stack=[5], a=7)
    outer.cells = (types.CellType(Made),) if outer.code.co_freevars else ()

    def instance(result: Any) -> Any:
        assert result is None
        return made

    outer.convert = instance
    assert run_chain([inner, outer]) == [5, made] and made.a == 7  # type: ignore[attr-defined]


def test_enter_and_exit_are_frames_of_the_chain() -> None:
    log: list[str] = []

    class Manager:
        def __enter__(self) -> str:
            value = "entered"
            return value

        def __exit__(self, *rest: Any) -> bool:
            log.append("exit")
            return rest[0] is not None

    def function(m: Any) -> Any:
        with m as value:
            log.append(value)
            raise KeyError
        return value

    manager = Manager()
    inner = state_of(Manager.__enter__, "RETURN_VALUE", stack=["resumed"], self=manager)
    outer = state_of(function, "BEFORE_WITH", stack=[manager.__exit__], m=manager)
    assert run_chain([inner, outer]) == "resumed"
    assert log == ["resumed", "exit"]


# -- generators


def generate(log: list[Any], n: int) -> Any:
    try:
        for i in range(n):
            try:
                got = yield i
                log.append(("got", got))
            except KeyError as error:
                log.append(("caught", repr(error), repr(sys.exc_info()[1])))
                yield "handled"
    finally:
        log.append("finally")
    return "returned"


def delegate(log: list[Any], n: int) -> Any:
    result = yield from generate(log, n)
    log.append(result)
    yield "last"
    return 5


def delegate_to_list(log: list[Any], n: int) -> Any:
    result = yield from [1] * n
    log.append(result)


def in_handler(log: list[Any], n: int) -> Any:
    try:
        raise ValueError("outer")
    except ValueError:
        log.append(repr(sys.exc_info()[1]))
        yield from range(n)
        log.append(repr(sys.exc_info()[1]))
        yield 1
    log.append(repr(sys.exc_info()[1]))


ACTIONS: dict[str, Callable[[Any], Any]] = {
    "next": next,
    "send": lambda generator: generator.send("sent"),
    "throw": lambda generator: generator.throw(KeyError("thrown")),
    "throw other": lambda generator: generator.throw(IndexError("other")),
    "close": lambda generator: generator.close(),
    "list": list,
}


def suspended_state(generator: Any) -> FrameState:
    """Read a suspended generator's frame."""
    frame = generator.gi_frame
    decoded = decode(frame.f_code)
    index = decoded.index_of_offset[frame.f_lasti]
    letters = stack_slots(decoded)[index]
    assert letters is not None and decoded.instructions[index].opname == "YIELD_VALUE"
    letters = letters[:-1]
    slot = raw_slots(frame)
    count = len(decoded.localsplus_names)
    stack = [slot(count + height, NULL) for height in range(len(letters))]
    if "e" in letters:
        # The generator tells what it handles when it runs: here only one handler deep.
        assert letters.count("e") == 1
        height = letters.index("e")
        stack[height] = ExceptionSlot(HANDLED[0])
    locals_ = [slot(number, UNBOUND) for number in range(count - decoded.nfrees)]
    return FrameState(frame.f_code, index, locals_, frame.f_globals, (), stack)


HANDLED: list[BaseException] = []


def drive(generator: Any, log: list[Any], actions: list[str]) -> list[Any]:
    out: list[Any] = []
    for action in actions:
        try:
            out.append(ACTIONS[action](generator))
        except BaseException as error:
            rows = [
                row for row in traceback.extract_tb(error.__traceback__) if row.name.startswith(("gen", "del", "in_"))
            ]
            out.append((repr(error), [(row.name, row.lineno) for row in rows], repr(error.__context__)))
        frame = generator.gi_frame
        out.append((frame and frame.f_lineno, generator.gi_yieldfrom is not None, generator.__name__))
    return [*out, list(log)]


@pytest.mark.parametrize("function", [generate, delegate, delegate_to_list, in_handler])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("first", list(ACTIONS))
def test_suspended_generators(function: Any, steps: int, first: str) -> None:
    actions = [first, "next", "throw", "send", "list"]
    outcomes = []
    for resumed in (False, True):
        log: list[Any] = []
        generator = function(log, 3)
        for _ in range(steps):
            next(generator)
        if resumed:
            if function is in_handler:
                HANDLED[:] = [ValueError("outer")]
            original = generator
            generator = resume_suspended(suspended_state(generator))
            # The original shares its iterators and its log: it must not run any more.
            keep.append(original)
        outcomes.append(drive(generator, log, actions))
    assert outcomes[0] == outcomes[1]


keep: list[Any] = []


@pytest.fixture(autouse=True, scope="module")
def _originals_are_never_closed() -> Any:
    yield
    for generator in keep:
        try:
            generator.close()
        except BaseException:
            pass


def test_a_running_generator_continues_at_its_first_step() -> None:
    log: list[Any] = []
    state = state_of(generate, "CALL", 1, stack=[iter([1, 2])], log=log, n=3, i=0, got="before")
    row = decode(generate.__code__).instructions[state.index]
    assert row.line == generate.__code__.co_firstlineno + 5
    generator = resume_generator(state, "result of append")
    assert log == [] and generator.__name__ == "generate"
    assert list(generator) == [1, 2]
    assert log == [("got", None), ("got", None), "finally"]


def test_a_running_generator_gets_an_exception() -> None:
    log: list[Any] = []
    state = state_of(generate, "CALL", 1, stack=[iter([1])], log=log, n=2, i=0, got="before")
    assert list(resume_generator(state, exception=KeyError("k"))) == ["handled", 1]
    assert log == [("caught", "KeyError('k')", "KeyError('k')"), ("got", None), "finally"]


def test_only_suspended_generators_are_primed() -> None:
    with pytest.raises(ValueError, match="suspended"):
        resume_suspended(state_of(generate, "FOR_ITER", stack=[iter([1])]))


def test_a_coroutine_suspended_in_an_await() -> None:
    class Pause:
        def __await__(self) -> Any:
            got = yield "paused"
            return got

    async def work(log: list[Any]) -> Any:
        try:
            value = await Pause()
            log.append(value)
        finally:
            log.append("finally")
        return value

    log: list[Any] = []
    coroutine = work(log)
    assert coroutine.send(None) == "paused"
    frame = coroutine.cr_frame
    decoded = decode(work.__code__)
    index = decoded.index_of_offset[frame.f_lasti]
    slot = raw_slots(frame)
    receiver = slot(len(decoded.localsplus_names), NULL)
    locals_ = [slot(number, UNBOUND) for number in range(len(decoded.localsplus_names) - decoded.nfrees)]
    state = FrameState(work.__code__, index, locals_, globals(), work.__closure__ or (), [receiver])
    # Priming runs the original YIELD_VALUE, and not the awaitable.
    resumed: Any = resume_suspended(state)
    assert isinstance(resumed, types.CoroutineType) and resumed.cr_await is receiver
    with pytest.raises(StopIteration) as done:
        resumed.send("sent")
    assert done.value.value == "sent" and log == ["sent", "finally"]
    keep.append(coroutine)
    assert asyncio.iscoroutine(resumed)


# -- debuggers and threads


def test_line_tracing_sees_the_lines_that_are_run() -> None:
    def function(n: Any) -> Any:
        total = 0
        for i in range(n):
            total += i
        try:
            total /= 0
        except ZeroDivisionError:
            total = -total
        return total

    lines: list[tuple[str, int]] = []
    first = function.__code__.co_firstlineno

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_name != "function":
            return None
        lines.append((event, frame.f_lineno - first))
        return trace

    def traced(work: Callable[[], Any]) -> Any:
        lines.clear()
        sys.settrace(trace)
        try:
            result = work()
        finally:
            sys.settrace(None)
        return result, [row for row in lines if row[0] in ("line", "exception", "return")]

    plain, whole = traced(partial(function, 2))
    state = state_of(function, "FOR_ITER", stack=[iter([0, 1])], n=2, total=0)
    thunk = make_function(state)
    resumed, rest = traced(thunk)
    assert resumed == plain
    # The resumed run begins at the loop's line; from the first turn on both see the same.
    at = whole.index(("line", 3))
    assert rest[rest.index(("line", 3)) :] == whole[at:]


def test_threads_build_and_run_the_same_resume_code() -> None:
    def function(a: Any, b: Any) -> Any:
        total = a
        for i in range(b):
            total += i
        return total

    results: list[int] = []

    def work() -> None:
        for start in range(100):
            results.append(call_resume(state_of(function, "FOR_ITER", stack=[iter(range(3))], a=0, b=3, total=start)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted([start + 3 for start in range(100)] * 4)


def test_building_is_fast() -> None:
    code = long_function(20)
    decoded = decode(code)
    resume_function(code, 1, Shape(3, "v"))
    start = time.perf_counter()
    for index in range(20, 120):
        if decoded.instructions[index].opname != "RESUME":
            resume_function(code, index, Shape(3, "v0v", Mode.BEFORE))
    # 12 microseconds each on an idle machine.
    assert (time.perf_counter() - start) / 100 < 1e-3
