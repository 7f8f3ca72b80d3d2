"""The table itself: rows are reachable, refusals fall back, failures are reported once and raise under strict."""

import pytest
import torch

import stator
from stator import config, events
from stator.aot import trace
from stator.emit.cpu import Options, compile_graph
from stator.exc import InternalStatorError, StatorError
from stator.lower import decompositions, table
from stator.runtime.program import ProgramBuilder


def test_every_row_names_an_operator():
    for name in table.RULES:
        namespace, packet = ("prims", name[6:]) if name.startswith("prims.") else ("aten", name)
        packet, _, overload = packet.partition(".")
        operator = getattr(getattr(torch.ops, namespace), packet)
        if overload:
            assert overload in operator.overloads(), name


def test_every_expanded_operator_has_a_decomposition_or_is_gone():
    known = {
        operator.overloadpacket.__name__
        for operator in decompositions.decomposition_table
        if hasattr(operator, "overloadpacket")
    }
    missing = {name for name in decompositions.EXPANDED if name not in known}
    assert not missing


def test_writing_operators_have_no_rule():
    assert table.rule_of(torch.ops.aten.add_.Tensor) is None
    assert table.rule_of(torch.ops.aten.add.out) is None
    assert table.rule_of(torch.ops.aten.add.Tensor) is not None


def compile_one(function, *inputs):
    return compile_graph(trace(function)(*inputs), inputs, options=Options(ProgramBuilder))


def test_a_refused_call_runs_as_the_operator():
    x, y = torch.tensor([7, -7, 5]), torch.tensor([2, 2, -3])
    program = compile_one(lambda x, y: [x // y + 1], x, y)
    assert torch.equal(program(x, y)[0], x // y + 1)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        program(x, torch.zeros(3, dtype=torch.int64))


def test_an_operator_that_writes_its_arguments_writes_copies():
    with torch.library._scoped_library("stator_table", "DEF") as library:
        library.define("shift_(Tensor(a!) x, Tensor(b!)[] many, Tensor by) -> (Tensor(a!), Tensor)")

        def shift(x, many, by):
            x.add_(by)
            for one in many:
                one.mul_(2)
            return x, by + 1

        for key in ("Meta", "CompositeExplicitAutograd"):
            torch.library.impl(library, "shift_", key)(shift)

        def function(x, y):
            turned = (y + 1).t()
            same, more = torch.ops.stator_table.shift_(x, [y, turned], x * 3)
            return same + 1, more + turned.sum(), turned, y * 2

        given, expected = [(torch.arange(3.0), torch.ones(2, 3)) for _ in range(2)]
        with config.patch(strict=True):
            found = stator.compile(function, fullgraph=True)(*given)
        torch.testing.assert_close((found, given), (function(*expected), expected))


def test_a_custom_operator_without_results_needs_no_fake():
    @torch.library.custom_op("stator_table::grow", mutates_args=("x", "many"))
    def grow(x: torch.Tensor, many: list[torch.Tensor], by: torch.Tensor) -> None:
        x.add_(by)
        for one in many:
            one.mul_(by.sum())

    with torch.library._scoped_library("stator_table", "FRAGMENT") as library:
        library.define("plain(Tensor(a!) x, *, Tensor(b!)? also) -> ()")

        def plain(x, *, also):
            x.add_(1)
            if also is not None:
                also.sub_(1)

        torch.library.impl(library, "plain", "CPU")(plain)

        def function(x, y):
            torch.ops.stator_table.plain(x, also=None)
            z = x * 2
            torch.ops.stator_table.plain(y, also=z)
            grow(z, [y], x)
            return z + y, x

        given, expected = [(torch.arange(3.0), torch.ones(3)) for _ in range(2)]
        for backend in ("eager", "aot_eager", "stator"):
            found = stator.compile(function, fullgraph=True, backend=backend)(*given)
            torch.testing.assert_close((found, given), (function(*expected), expected))


def test_an_operator_that_breaks_its_promise_is_copied_and_reported():
    with torch.library._scoped_library("stator_table", "DEF") as library:
        library.define("turn(Tensor x) -> Tensor")
        library.define("cut(Tensor x) -> Tensor")
        torch.library.impl(library, "turn", "Meta")(lambda x: torch.empty_like(x))
        torch.library.impl(library, "turn", "CPU")(lambda x: x.t().contiguous().t().double())
        torch.library.impl(library, "cut", "Meta")(lambda x: torch.empty_like(x))
        torch.library.impl(library, "cut", "CPU")(lambda x: x[1:].clone())
        x, seen = torch.randn(5, 5), []
        stop = events.subscribe(seen.append, {"fallback"})
        try:
            for _ in range(2):
                program = compile_one(lambda x: [torch.ops.stator_table.turn(x) * 2], x)
                assert torch.equal(program(x)[0], x * 2)
        finally:
            stop()
        assert [event.fields["reason"] for event in seen] == ["operator_broke_promise"]
        with pytest.raises(StatorError, match="cut"):
            compile_one(lambda x: [torch.ops.stator_table.cut(x) * 2], x)(x)


def test_factories_inside_decompositions_make_real_tensors():
    x = torch.randn(3)
    for made in compile_one(lambda x: [x.new_empty([2, 3]), torch.empty_like(x), x.new_empty_strided([2], [3])], x)(x):
        assert made.device.type == "cpu"


def broken(lowering, *arguments, **keywords):
    raise IndexError("deliberate")


def test_a_failing_rule_falls_back_once_and_raises_under_strict(monkeypatch):
    monkeypatch.setitem(table.RULES, "sinh", broken)
    x = torch.randn(5)
    seen = []
    stop = events.subscribe(seen.append, {"fallback"})
    try:
        for _ in range(2):
            program = compile_one(lambda x: [torch.sinh(x) + 1], x)
            torch.testing.assert_close(program(x)[0], torch.sinh(x) + 1)
    finally:
        stop()
    assert [event.fields["reason"] for event in seen] == ["lowering_failed"]
    with config.patch(strict=True), pytest.raises(InternalStatorError, match="deliberate"):
        compile_one(lambda x: [torch.sinh(x)], x)
