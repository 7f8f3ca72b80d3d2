"""Guards that a filter drops are gone, and no others."""

import pytest
import torch

import stator
from stator.exc import InvalidOption
from stator.guards.filters import GUARD_TYPES
from stator.values.source import GUARD_KINDS

FACTOR = 2.0
x = torch.arange(3.0)


class Custom(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Dropout(0.0)
        self.shift = 1.0

    def forward(self, x):
        return self.inner(x) + self.shift


def entries_seen(wanted, function, *args):
    """The guards a filter is shown, what the function then gives, and how often it was compiled."""
    seen, graphs = [], []

    def keep(entries):
        seen.append(entries)
        return wanted(entries)

    compiled = stator.compile(
        function, backend=lambda graph, _: graphs.append(graph) or graph, options={"guard_filter_fn": keep}
    )
    return seen, graphs, compiled, compiled(*args)


@pytest.fixture(autouse=True)
def fresh():
    stator.reset()
    yield
    stator.reset()


def test_a_filter_is_shown_every_guard_once_an_entry():
    seen, _, compiled, result = entries_seen(lambda entries: [True] * len(entries), lambda x: x * FACTOR, x)
    assert torch.equal(result, x * 2)
    (entries,) = seen
    by_name = {entry.name: entry for entry in entries}
    assert by_name["FACTOR"].is_global and by_name["FACTOR"].value == 2.0 and by_name["FACTOR"].has_value
    assert by_name["x"].guard_type == "TENSOR_MATCH" and not by_name["x"].is_global and by_name["x"].value is x
    assert "GLOBAL_STATE" in {entry.guard_type for entry in entries}
    compiled(x)
    assert len(seen) == 1
    compiled(x.double())
    assert len(seen) == 2


def test_globals_may_change_unseen(monkeypatch):
    _, graphs, compiled, _ = entries_seen(stator.skip_guard_on_globals_unsafe, lambda x: x * FACTOR, x)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert torch.equal(compiled(x), x * 2) and len(graphs) == 1
    assert torch.equal(compiled(x.double()), x.double() * 5) and len(graphs) == 2


@pytest.mark.parametrize("package", (stator, torch.compiler), ids=("stator", "torch"))
def test_modules_may_change_unseen(package):
    module = Custom()

    def run(keep):
        stator.reset()
        module.shift, module.inner.p = 1.0, 0.0
        return entries_seen(keep, module.forward, x)

    _, graphs, compiled, _ = run(package.skip_guard_on_all_nn_modules_unsafe)
    module.shift = 3.0
    assert torch.equal(compiled(x), x + 1) and len(graphs) == 1
    _, graphs, compiled, _ = run(package.skip_guard_on_inbuilt_nn_modules_unsafe)
    module.inner.p = 1.0
    assert torch.equal(compiled(x), x + 1) and len(graphs) == 1
    module.shift = 3.0
    compiled(x)
    assert len(graphs) == 2


@pytest.mark.parametrize("package", (stator, torch.compiler), ids=("stator", "torch"))
def test_tensors_alone(package, monkeypatch):
    weight = torch.nn.Parameter(torch.ones(3))
    function = lambda x: x * weight * FACTOR  # noqa: E731
    seen, graphs, compiled, _ = entries_seen(package.keep_tensor_guards_unsafe, function, x)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    with torch.no_grad():
        assert torch.equal(compiled(x), x * 2) and len(graphs) == 1
    compiled(x.double())
    assert len(graphs) == 2
    portable = package.keep_portable_guards_unsafe(seen[0])
    kinds = {entry.guard_type for entry, kept in zip(seen[0], portable) if kept}
    assert kinds <= {"GLOBAL_STATE", "SHAPE_ENV", "TENSOR_MATCH"} and "GLOBAL_STATE" in kinds


@pytest.mark.parametrize("package", (stator, torch.compiler), ids=("stator", "torch"))
def test_without_guards_the_first_entry_serves_every_call(package):
    _, graphs, compiled, _ = entries_seen(package.skip_all_guards_unsafe, lambda x, n: x * n, x, 2)
    assert torch.equal(compiled(x, 3), x * 2)
    assert torch.equal(compiled(x.double(), 4), x.double() * 2) and len(graphs) == 1


def test_an_answer_of_another_length_is_an_error():
    with pytest.raises(InvalidOption, match="answered for 1 guards"):
        entries_seen(lambda entries: [True], lambda x: x * FACTOR, x)


def test_a_filter_that_cannot_be_called_is_an_error():
    with pytest.raises(InvalidOption, match="guard_filter_fn takes the guards"):
        stator.compile(lambda x: x, options={"guard_filter_fn": True})


def test_two_filters_are_two_regions():
    function = lambda x: x * FACTOR  # noqa: E731
    entries_seen(stator.skip_all_guards_unsafe, function, x)
    _, graphs, _, _ = entries_seen(lambda entries: [True] * len(entries), function, x)
    assert len(graphs) == 1


def test_every_kind_of_guard_has_torchs_name():
    assert set(GUARD_TYPES) == set(GUARD_KINDS)
