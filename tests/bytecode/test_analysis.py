from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from stator.bytecode import calls_redirected, decode, liveness, stack_slots


def live_names(function: Callable[..., Any], opname: str, value: Any = None) -> set[str]:
    """What is live before the first such instruction."""
    decoded = decode(function.__code__)
    for row in decoded.instructions:
        if row.opname == opname and value in (None, row.value):
            return {decoded.localsplus_names[slot] for slot in liveness(decoded)[row.index]}
    raise LookupError(opname)


def test_a_local_is_dead_behind_its_last_use() -> None:
    def function(a: int, b: int) -> int:
        c = a + b
        d = c * 2
        return d

    assert live_names(function, "BINARY_OP", "+") == set()
    assert live_names(function, "STORE_FAST", "c") == set()
    assert live_names(function, "LOAD_FAST", "a") == {"a", "b"}
    assert live_names(function, "LOAD_FAST", "d") == {"d"}


def test_a_loop_keeps_what_its_next_turn_reads() -> None:
    def function(items: list[int], scale: int, unused: int) -> int:
        total = 0
        for item in items:
            total += item * scale
        return total

    assert live_names(function, "FOR_ITER") == {"total", "scale"}
    assert live_names(function, "STORE_FAST", "item") == {"total", "scale"}


def test_handlers_keep_what_they_read() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        d = 1
        try:
            a()
            d = 2
        except ValueError:
            return b, d
        return c

    assert live_names(function, "CALL") == {"b", "c", "d"}
    assert live_names(function, "LOAD_FAST", "c") == {"c"}


def test_deleting_and_cells_need_the_slot() -> None:
    def function(a: Any, b: Any) -> Any:
        def read() -> Any:
            return b

        del a
        b = 2
        return read

    assert live_names(function, "DELETE_FAST", "a") == {"a", "b", "read"}


def test_super_keeps_the_first_argument() -> None:
    class Child(dict):  # type: ignore[type-arg]
        def get(self, key: Any) -> Any:
            return super().get(key, len([key]))

        def kept(self, key: Any) -> Any:
            return super, key

    row = decode(Child.get.__code__).instructions[-1]
    assert liveness(decode(Child.get.__code__))[row.index] == {0}


def test_who_looks_at_all_locals_keeps_them() -> None:
    def function(a: int, b: int) -> dict[str, int]:
        return locals()

    assert live_names(function, "RETURN_VALUE") == {"a", "b"}


def test_slots_of_a_handler() -> None:
    def function(a: Any) -> None:
        try:
            a()
        except ValueError:
            a(1)

    decoded = decode(function.__code__)
    stacks = stack_slots(decoded)
    call = [row for row in decoded.instructions if row.opname == "CALL"][1]
    assert stacks[call.index] == "e0vv"
    cleanup = next(row for row in decoded.instructions if row.opname == "COPY")
    assert (stacks[cleanup.index], stacks[cleanup.index + 1]) == ("eiv", "vive")


class Recorder:
    """A helper that notes whom it was asked about."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, function: Any) -> Any:
        self.asked.append(function)
        return function


def redirected(function: types.FunctionType, helper: Callable[[Any], Any]) -> types.FunctionType:
    return types.FunctionType(
        calls_redirected(function.__code__, helper),
        function.__globals__,
        None,
        function.__defaults__,
        function.__closure__,
    )


def callee(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


class Thing:
    def method(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs


def test_every_form_of_call_asks() -> None:
    thing = Thing()

    def caller(f: Any, rest: Any, more: Any) -> Any:
        return [
            f(),
            f(1, 2),
            f(1, k=2),
            f(*rest),
            f(1, *rest, k=3, **more),
            thing.method(1),
            thing.method(k=len(rest)),
            thing.method(*rest, **more),
            [f(x) for x in rest],
        ]

    assert isinstance(caller, types.FunctionType)
    recorder = Recorder()
    copy = redirected(caller, recorder)
    expected = caller(callee, (7, 8), {"m": 9})
    assert copy(callee, (7, 8), {"m": 9}) == expected
    assert recorder.asked.count(callee) >= 5 and len in recorder.asked
    assert sum(getattr(f, "__func__", None) is Thing.method for f in recorder.asked) == 3


def test_the_answer_is_what_gets_called() -> None:
    def caller(x: int) -> int:
        return abs(x) + max(x, 2, key=None)

    assert isinstance(caller, types.FunctionType)
    copy = redirected(caller, lambda function: min if function is max else function)
    assert copy(-5) == 5 + min(-5, 2)


def test_tracebacks_stay() -> None:
    def caller(f: Any) -> Any:
        return [
            1,
            f(
                "x",
            ),
        ]

    assert isinstance(caller, types.FunctionType)
    places = []
    for function in (caller, redirected(caller, Recorder())):
        with pytest.raises(ValueError) as caught:
            function(int)
        traceback = caught.tb.tb_next
        assert traceback is not None
        places.append(list(traceback.tb_frame.f_code.co_positions())[traceback.tb_lasti // 2])
    assert places[0] == places[1]
