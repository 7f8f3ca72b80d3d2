"""What a program says to the compiler: where to break, what to leave alone, when to compile at all."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from breaks_harness import Counting

import stator
from stator import events


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    stator.reset()
    yield
    stator.set_stance("default")


@pytest.fixture
def breaks() -> Iterator[list[str]]:
    found: list[str] = []
    end = events.subscribe(lambda event: found.append(event.fields["reason"]), {"graph_break"})
    yield found
    end()


@pytest.fixture
def fallbacks() -> Iterator[list[events.Event]]:
    found: list[events.Event] = []
    end = events.subscribe(found.append, {"fallback"})
    yield found
    end()


ONE = torch.ones(3)


# Frames that run uncompiled


def plus_one(y: Any) -> Any:
    return y + 1


def skipping(y: Any) -> Any:
    stator.skip_frame()
    return plus_one(y) * 2


def test_skip_frame_skips_that_frame_only() -> None:
    backend = Counting()
    compiled = stator.compile(skipping, backend=backend)
    assert torch.equal(compiled(ONE), skipping(ONE))
    assert torch.equal(compiled(ONE), skipping(ONE))
    assert backend.graphs == [1]  # plus_one; the product runs in Python


def test_skip_frame_in_a_callee_is_one_break() -> None:
    backend = Counting()

    def outer(y: Any) -> Any:
        return skipping(y - 1) - 1

    compiled = stator.compile(outer, backend=backend)
    assert torch.equal(compiled(ONE), outer(ONE))
    assert sorted(backend.graphs) == [1, 1, 1]  # before, plus_one, after


def test_torch_spelling_of_skip_frame() -> None:
    backend = Counting()

    def outer(y: Any) -> Any:
        torch._dynamo.skip_frame()
        return plus_one(y)

    assert torch.equal(stator.compile(outer, backend=backend)(ONE), ONE + 1)
    assert backend.graphs == [1]


@pytest.mark.parametrize("recursive, graphs", [(True, [1, 1]), (False, [1, 1, 1])])
@pytest.mark.parametrize("source", ["stator", "torch"])
def test_disable(recursive: bool, graphs: list[int], source: str, breaks: list[str]) -> None:
    disable = stator.disable if source == "stator" else torch.compiler.disable

    @disable(recursive=recursive)
    def left_alone(y: Any) -> Any:
        return plus_one(y) * 3

    def outer(y: Any) -> Any:
        return left_alone(y - 1) - 1

    backend = Counting()
    compiled = stator.compile(outer, backend=backend)
    for _ in range(2):
        assert torch.equal(compiled(ONE), outer(ONE))
    assert sorted(backend.graphs) == graphs
    assert breaks == ["disabled_function"]


def test_disable_reason_is_shown() -> None:
    @stator.disable(reason="talks to a device")
    def left_alone(y: Any) -> Any:
        return y

    with pytest.raises(stator.exc.Unsupported, match="talks to a device"):
        stator.compile(lambda y: left_alone(y), backend="eager", fullgraph=True)(ONE)


def test_disable_module_and_class(breaks: list[str]) -> None:
    linear = torch.nn.Linear(3, 3)
    assert stator.disable(linear) is linear

    @stator.disable
    class Shift(torch.nn.Module):
        def forward(self, y: Any) -> Any:
            return y + 5

    assert isinstance(Shift, type)
    shift = Shift()

    def outer(y: Any) -> Any:
        return shift(linear(y + 1)) * 2

    compiled = stator.compile(outer, backend=Counting())
    assert torch.equal(compiled(ONE), outer(ONE))
    assert breaks == ["disabled_function", "disabled_function"]


def test_disable_without_wrapping() -> None:
    def plain(y: Any) -> Any:
        return y

    assert stator.disable(plain, wrapping=False) is plain
    assert stator.disable()(plain)(3) == 3


# Errors at breaks


def breaking_below(y: Any) -> Any:
    y = y + 1
    stator.graph_break()
    return y * 2


def test_error_on_graph_break_inside() -> None:
    def outer(y: Any) -> Any:
        y = breaking_below(y)
        with stator.error_on_graph_break(True):
            y = breaking_below(y)
        return y

    with pytest.raises(stator.exc.Unsupported) as caught:
        stator.compile(outer, backend="eager")(ONE)
    assert caught.value.reason == "explicit_graph_break"
    assert torch.equal(outer(ONE), torch.full((3,), 10.0))


@pytest.mark.parametrize("source", ["stator", "torch"])
def test_error_on_graph_break_toggled(source: str, breaks: list[str]) -> None:
    mark = stator.error_on_graph_break if source == "stator" else torch._dynamo.error_on_graph_break

    def outer(y: Any) -> Any:
        with mark(True):
            y = y + 1
            with mark(False):
                y = breaking_below(y)
            y = y - 1
        y = breaking_below(y)
        return y

    compiled = stator.compile(outer, backend="eager")
    assert torch.equal(compiled(ONE), outer(ONE))
    assert breaks == ["explicit_graph_break"] * 2


def test_error_on_graph_break_holds_behind_an_allowed_break() -> None:
    def outer(y: Any) -> Any:
        with stator.error_on_graph_break(True):
            with stator.error_on_graph_break(False):
                y = breaking_below(y)
            return breaking_below(y)

    with pytest.raises(stator.exc.Unsupported):
        stator.compile(outer, backend="eager")(ONE)


def test_error_on_graph_break_as_decorator() -> None:
    @stator.error_on_graph_break(True)
    def strict(y: Any) -> Any:
        return breaking_below(y)

    @stator.error_on_graph_break(False)
    def lenient(y: Any) -> Any:
        return breaking_below(y)

    assert torch.equal(stator.compile(lambda y: lenient(y) + 1, backend="eager")(ONE), ONE * 5)
    with pytest.raises(stator.exc.Unsupported):
        stator.compile(lambda y: strict(y) + 1, backend="eager")(ONE)


def test_fullgraph_comes_before_error_on_graph_break() -> None:
    def outer(y: Any) -> Any:
        with stator.error_on_graph_break(False):
            return breaking_below(y)

    with pytest.raises(stator.exc.Unsupported):
        stator.compile(outer, backend="eager", fullgraph=True)(ONE)


# Failures


def failing(graph_module: Any, example_inputs: Any) -> Any:
    if any(node.target is torch.sin for node in graph_module.graph.nodes):
        raise ValueError("no sine")
    failing.graphs += 1
    return graph_module.forward


def test_suppressed_errors_run_the_smallest_piece_eagerly(fallbacks: list[events.Event]) -> None:
    def bad(y: Any) -> Any:
        return torch.sin(y)

    def outer(y: Any) -> Any:
        y = plus_one(y)
        stator.graph_break()
        return plus_one(bad(y))

    failing.graphs = 0
    compiled = stator.compile(outer, backend=failing)
    with stator.config.patch(suppress_errors=True):
        for _ in range(3):
            assert torch.equal(compiled(ONE), outer(ONE))
    assert failing.graphs == 1
    assert [event.fields["reason"] for event in fallbacks] == ["error_suppressed"]


def test_suppressed_errors_leave_callees_compiled() -> None:
    def outer(y: Any) -> Any:
        return torch.sin(plus_one(y))

    failing.graphs = 0
    compiled = stator.compile(outer, backend=failing)
    with stator.config.patch(suppress_errors=True):
        assert torch.equal(compiled(ONE), outer(ONE))
    assert failing.graphs == 1


def test_errors_are_raised_otherwise() -> None:
    with pytest.raises(stator.exc.BackendCompilerFailed, match="no sine"):
        stator.compile(lambda y: torch.sin(y), backend=failing)(ONE)


def test_a_defect_is_told_with_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from stator.capture import tracer

    monkeypatch.setattr(tracer.Tracer, "run", lambda *_: {}["defect"])
    with pytest.raises(stator.exc.InternalStatorError, match="test_controls.py.*\n.*KeyError: 'defect'"):
        stator.compile(lambda y: y + 1, backend="eager")(ONE)


# Stances


def test_force_eager() -> None:
    backend = Counting()
    compiled = stator.compile(plus_one, backend=backend)
    with stator.set_stance("force_eager"):
        compiled(ONE)
    assert backend.graphs == []
    compiled(ONE)
    with stator.set_stance("force_eager"):
        compiled(ONE)
    assert (len(backend.graphs), backend.runs) == (1, 1)


def test_eager_on_recompile_uses_what_there_is() -> None:
    backend = Counting()
    compiled = stator.compile(plus_one, backend=backend)
    compiled(ONE)
    with stator.set_stance("eager_on_recompile"):
        compiled(ONE)
        assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 2.0))
    assert (len(backend.graphs), backend.runs) == (1, 2)


def test_fail_on_recompile() -> None:
    compiled = stator.compile(plus_one, backend="eager")
    compiled(ONE)
    with stator.set_stance("fail_on_recompile"):
        compiled(ONE)
        with pytest.raises(stator.exc.RecompileError):
            compiled(torch.ones(4))


def test_eager_then_compile_knows_what_varies() -> None:
    backend = Counting()
    compiled = stator.compile(plus_one, backend=backend)
    with stator.set_stance("eager_then_compile"):
        compiled(torch.ones(4))
        assert backend.graphs == []
        for size in (5, 6, 7):
            assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0))
    assert (len(backend.graphs), backend.runs) == (1, 3)


def test_stance_as_function_decorator_and_nested() -> None:
    from stator.runtime import stance

    @stator.set_stance("force_eager")
    def inside() -> str:
        return stance.current()

    assert (stance.current(), inside(), stance.current()) == ("default", "force_eager", "default")
    stator.set_stance("eager_on_recompile")
    with stator.set_stance("force_eager"):
        with stator.set_stance("default"):
            assert stance.current() == "default"
        assert stance.current() == "force_eager"
    assert stance.current() == "eager_on_recompile"
    with pytest.raises(stator.exc.InvalidOption):
        stator.set_stance("eager")


def test_forced_backend() -> None:
    own, forced = Counting(), Counting()
    compiled = stator.compile(plus_one, backend=own)
    with stator.set_stance(force_backend=forced):
        compiled(ONE)
    assert (own.graphs, forced.graphs) == ([], [1])


# Limits


def named(y: Any, name: str) -> Any:
    return plus_one(y) + len(name) if name else y


@pytest.mark.parametrize("how", ["call", "global"])
def test_recompile_limit(how: str) -> None:
    backend = Counting()
    options = {"recompile_limit": 3} if how == "call" else {}
    with stator.config.patch(recompile_limit=3), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = stator.compile(named, backend=backend, **options)
        for letter in "abcdef":
            assert torch.equal(compiled(ONE, letter), ONE + 2)
        entries = len(backend.graphs)
        runs = backend.runs
        compiled(ONE, "a")
    told = [str(one.message) for one in caught if "recompile limit" in str(one.message)]
    assert len(told) == 1
    for word in ("name", "'a'", "'b'", "'c'", "'d'", "test_controls.py"):
        assert word in told[0]
    assert entries == 4  # three, and plus_one alone
    assert backend.runs == runs + 1  # the entries there are stay in use


def test_accumulated_limit_counts_all_regions_of_a_function() -> None:
    with stator.config.patch(accumulated_recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backends = [Counting() for _ in range(3)]
        for backend in backends:
            stator.compile(plus_one, backend=backend)(ONE)
    assert [len(backend.graphs) for backend in backends] == [1, 1, 0]


# Functions the user answers for


def test_allow_in_graph() -> None:
    @stator.allow_in_graph
    def opaque(y: Any) -> Any:
        return y * 2 if time.time() > 0 else y

    backend = Counting()
    compiled = stator.compile(lambda y: opaque(y + 1) + 1, backend=backend, fullgraph=True)
    assert torch.equal(compiled(ONE), ONE * 5)
    assert len(backend.graphs) == 1


def test_substitute_in_graph(breaks: list[str]) -> None:
    @stator.substitute_in_graph(time.gmtime, skip_signature_check=True)
    def gmtime(seconds: Any = 0) -> Any:
        return seconds

    compiled = stator.compile(lambda y: y + time.gmtime(3), backend="eager", fullgraph=True)
    assert torch.equal(compiled(ONE), ONE * 4)
    assert gmtime(0).tm_year == 1970
    with pytest.raises(ValueError, match="already"):
        stator.substitute_in_graph(time.gmtime, skip_signature_check=True)(lambda: 0)
    with pytest.raises(TypeError, match="skip_signature_check"):

        @stator.substitute_in_graph(plus_one)
        def other(z: Any) -> Any:
            return z


def test_assume_constant_result() -> None:
    calls = []

    @stator.assume_constant_result
    def read() -> int:
        calls.append(1)
        return 3

    compiled = stator.compile(lambda y: y * read(), backend="eager", fullgraph=True)
    assert torch.equal(compiled(ONE), ONE * 3)
    compiled(ONE)
    assert len(calls) == 1


# Output


def test_output_keeps_its_order_without_breaks(capsys: Any, breaks: list[str], caplog: Any) -> None:
    log = logging.getLogger("a program")

    def talk(y: Any, n: int) -> Any:
        print("first", n, y.shape)
        y = y + 1
        log.warning("second %s", n)
        warnings.warn("third", UserWarning, stacklevel=1)
        print(f"{n:>4}", end="|")
        return y

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stator.compile(talk, backend="eager", fullgraph=True)(ONE, 7)
    assert capsys.readouterr().out == "first 7 torch.Size([3])\n   7|"
    assert [str(one.message) for one in caught] == ["third"]
    assert [row.getMessage() for row in caplog.records if row.name == "a program"] == ["second 7"]
    assert breaks == []


def test_log_records_name_the_line_and_function_that_logged(caplog: Any) -> None:
    def talk(y: Any) -> Any:
        logging.getLogger("a program").warning("known %s", 1)
        try:
            raise KeyError("k")
        except KeyError:
            logging.getLogger("a program").exception("with a traceback")
        return y + 1

    def records() -> list[tuple[Any, ...]]:
        rows = [(row.pathname, row.lineno, row.funcName, row.getMessage(), row.exc_text) for row in caplog.records]
        caplog.clear()
        return rows

    talk(ONE)
    eager = records()
    stator.compile(talk, backend="eager")(ONE)
    assert len(eager) == 2 and records() == eager


def test_the_residual_program_can_be_read() -> None:
    def outer(y: Any, log: Any) -> Any:
        log.append(1)
        stator.graph_break("here")
        return y * 2

    seen = stator.explain(outer, backend="eager")(ONE + 1, [])
    text, *_ = seen.residual.values()
    for part in ('stator.graph_break("here")', "goes on in", "with y", "list.extend", "a1 is log", "make.recover"):
        assert part in text
    assert "what is left in Python" in str(seen)


@pytest.mark.parametrize("named", ["own method", "class method", "function"])
def test_ignored_methods_of_loggers(named: str, caplog: Any) -> None:
    log = logging.getLogger("ignored")
    ignored = {"own method": log.warning, "class method": logging.Logger.warning, "function": plus_one}[named]

    def talk(y: Any) -> Any:
        log.warning("said")
        return y + 1

    with stator.config.patch(ignore_logging_functions={ignored}):
        stator.compile(talk, backend="eager", fullgraph=True)(ONE)
    assert [row.getMessage() for row in caplog.records] == (["said"] if named == "function" else [])


def test_disallowed_operation_of_torch_breaks(breaks: list[str]) -> None:
    stator.disallow_in_graph(torch.sub)
    try:
        compiled = stator.compile(lambda y: torch.sub(y + 1, 1) * 2, backend="eager")
        assert torch.equal(compiled(ONE), ONE * 2)
    finally:
        stator.allow_in_graph(torch.sub)
    assert breaks == ["forbidden_function"]


@pytest.mark.parametrize("name", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_switched_off_by_the_environment(name: str, monkeypatch: Any) -> None:
    monkeypatch.setenv(name, "1")
    assert stator.compile(plus_one) is plus_one


def test_showing_a_tensor_breaks_and_shows_it(capsys: Any, breaks: list[str]) -> None:
    def talk(y: Any) -> Any:
        print("before")
        y = y + 1
        print(y)
        return y * 2

    stator.compile(talk, backend="eager")(ONE)
    assert capsys.readouterr().out == "before\ntensor([2., 2., 2.])\n"
    assert len(breaks) == 1


def test_reorderable_and_ignored_functions(capsys: Any, breaks: list[str]) -> None:
    ignored = []

    def note(value: Any) -> None:
        ignored.append(value)

    def talk(y: Any) -> Any:
        y = y + 1
        print("is", y)
        note(y)
        return y * 2

    with stator.config.patch(reorderable_logging_functions={print}, ignore_logging_functions={note}):
        stator.compile(talk, backend="eager", fullgraph=True)(ONE)
    assert capsys.readouterr().out == "is tensor([2., 2., 2.])\n"
    assert (ignored, breaks) == ([], [])
