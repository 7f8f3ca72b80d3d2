"""The table itself: rows are reachable, refusals fall back, failures are reported once and raise under strict."""

import pytest
import torch

from stator import config, events
from stator.aot import trace
from stator.emit.cpu import Options, compile_graph
from stator.exc import InternalStatorError
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
