"""`stator.aot.trace`: what it records, what it lists, what it refuses."""

import collections

import pytest
import torch
import torch.utils._pytree as pytree

from stator.aot import trace
from stator.exc import DataDependentError, StatorError, Unsupported
from stator.reasons import REASONS
from stator.reasons.aot import ROWS

aten = torch.ops.aten


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_records_operators_with_user_lines():
    def f(x, w):
        y = x @ w
        return y.relu()

    graph = trace(f)(torch.randn(2, 3), torch.randn(3, 4))
    assert targets(graph) == [aten.mm.default, aten.relu.default]
    lines = [node.meta["stack_trace"] for node in graph.graph.nodes if node.op == "call_function"]
    assert "y = x @ w" in lines[0] and "return y.relu()" in lines[1]
    assert [node.target for node in graph.graph.nodes if node.op == "placeholder"] == ["x", "w"]
    x, w = torch.randn(2, 3), torch.randn(3, 4)
    assert torch.equal(graph(x, w), f(x, w))


Pair = collections.namedtuple("Pair", "first second")


class Box:
    def __init__(self, content):
        self.content = content


pytree.register_pytree_node(Box, lambda box: ([box.content], None), lambda items, _: Box(items[0]))


def test_pytrees_in_and_out():
    def f(pair, table, box, *, scale):
        return {"sum": pair.first + pair.second, "rest": [table["a"] * scale, Box(box.content + 1)]}

    args = (Pair(torch.ones(2), torch.ones(2)), {"a": torch.ones(2)}, Box(torch.zeros(2)))
    graph = trace(f)(*args, scale=3)
    result = graph(*args, scale=3)
    assert torch.equal(result["sum"], torch.full((2,), 2.0))
    assert torch.equal(result["rest"][1].content, torch.ones(2))
    assert "scale is the constant 3" in graph.meta["specialisations"]


def test_gradients_and_transforms():
    def f(x):
        return torch.autograd.grad((x**3).sum(), x)[0]

    x = torch.randn(3, requires_grad=True)
    assert torch.allclose(trace(f)(x)(x), 3 * x**2)
    per_sample = torch.func.vmap(torch.func.grad(lambda x: x.tanh().sum()))
    y = torch.randn(4, 3)
    assert torch.allclose(trace(per_sample)(y)(y), per_sample(y))


def test_in_place_changes_stand_as_they_ran():
    def f(x):
        y = x * 2
        y[0].add_(1)
        return y.t_()

    graph = trace(f)(torch.randn(2, 3))
    assert aten.add_.Tensor in targets(graph) and aten.t.default in targets(graph)
    x = torch.randn(2, 3)
    assert torch.equal(graph(x), f(x))


def test_literals_do_not_remember():
    graph = trace(lambda x: x + torch.tensor([1.0, 2.0]).mul_(2))(torch.zeros(2))
    assert torch.equal(graph(torch.zeros(2)), torch.tensor([2.0, 4.0]))
    assert torch.equal(graph(torch.zeros(2)), torch.tensor([2.0, 4.0]))


def test_constants_are_listed():
    weight = torch.randn(3)
    graph = trace(lambda x: x * weight, allow_real_inputs=True)(torch.randn(3))
    assert any("`weight`" in text for text in graph.meta["constants"].values())
    with torch.no_grad():
        weight.zero_()
    assert graph(torch.ones(3)).sum() == 0, "the graph holds the tensor itself"


def test_modules():
    linear = torch.nn.Linear(3, 3)
    with pytest.raises(Unsupported, match=r"self\.weight"):
        trace(linear)(torch.randn(2, 3))
    graph = trace(linear, allow_real_inputs=True)(torch.randn(2, 3))
    x = torch.randn(2, 3)
    assert torch.equal(graph(x), linear(x))


def test_real_mode_freezes_values():
    def f(x):
        return x * 2 if x.sum().item() > 0 else x * 3

    graph = trace(f, mode="real")(torch.ones(3))
    assert torch.equal(graph(-torch.ones(3)), -2 * torch.ones(3))
    assert any("_local_scalar_dense" in text for text in graph.meta["specialisations"])
    picked = trace(lambda x: x[x > 0] + 1, mode="real")(torch.tensor([1.0, -1.0]))
    assert torch.equal(picked(torch.tensor([1.0, -1.0])), torch.tensor([2.0]))


def test_known_values_may_be_read():
    graph = trace(lambda x: x * torch.tensor(3.0).item())(torch.ones(2))
    assert torch.equal(graph(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: x * x.sum().item(), "aot_value_read"),
        (lambda x: x * 2 if x.sum() > 0 else x, "aot_value_read"),
        (lambda x: x.tolist(), "aot_value_read"),
        (lambda x: x.numpy(), "aot_value_read"),
        (lambda x: x.nonzero(), "aot_dynamic_output"),
        (lambda x: x[x > 0], "aot_dynamic_output"),
        (lambda x: x.data_ptr(), "aot_data_ptr"),
        (lambda x: x.untyped_storage(), "aot_data_ptr"),
        (lambda x: (x * 2).resize_(7), "aot_storage_change"),
    ],
)
def test_refusals(function, reason):
    with pytest.raises(StatorError) as error:
        trace(function)(torch.ones(3))
    assert error.value.reason == reason
    assert f"[{reason}]" in str(error.value)
    if reason in ("aot_value_read", "aot_dynamic_output"):
        assert isinstance(error.value, DataDependentError)


def test_refusal_names_the_line():
    def f(x):
        y = x * 2
        return y + outside

    outside = torch.ones(3)
    with pytest.raises(Unsupported, match="return y \\+ outside") as error:
        trace(f)(torch.ones(3))
    assert "`outside`" in str(error.value)


def test_errors_of_the_program_are_its_own():
    with pytest.raises(RuntimeError, match="reduction dim|mat1 and mat2"):
        trace(lambda x: x @ x)(torch.ones(2, 3))
    with pytest.raises(TypeError):
        trace(lambda x: torch.sin(x, x))(torch.ones(2))


def test_a_trace_leaves_nothing_behind():
    import gc
    import weakref

    kept = []

    def f(x):
        y = x * 2
        kept.append(weakref.ref(y))
        return y

    trace(f)(torch.ones(3))
    gc.collect()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_grad_mode_and_autocast_are_restored():
    def f(x):
        torch.set_grad_enabled(False)
        return x * 2

    from stator.aot.interpret import restored_modes

    with restored_modes():
        trace(f)(torch.ones(3))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("row", [row for row in ROWS if "stator.trace" in row.example], ids=lambda row: row.id)
def test_every_reason_is_raised_by_its_example(row):
    import stator

    had = hasattr(stator, "trace")
    if not had:
        stator.trace = trace
    try:
        space = {}
        exec(row.example, space)
        with pytest.raises(StatorError) as error:
            space["example"]()
        assert error.value.reason == row.id
    finally:
        if not had:
            del stator.trace
    assert REASONS[row.id] is row


def test_symbolic_mode_serves_other_sizes():
    def f(x, w):
        y = x @ w
        rows, columns = y.shape
        y[:, 0].add_(1)
        return y.view(rows * columns).relu(), torch.zeros(columns) + y.sum(0), y[:, 1:]

    graph = trace(f, mode="symbolic")(torch.randn(4, 5), torch.randn(5, 6))
    assert not any("has size" in text for text in graph.meta["specialisations"])
    for rows, inner, columns in ((4, 5, 6), (7, 3, 9), (2, 2, 2)):
        x, w = torch.randn(rows, inner), torch.randn(inner, columns)
        for one, other in zip(graph(x, w), f(x, w)):
            assert torch.equal(one, other)


def test_symbolic_mode_says_what_it_decided():
    def f(x):
        return x * 2 if x.shape[0] > 3 else x * 3

    graph = trace(f, mode="symbolic")(torch.randn(5))
    assert any("x.size(0) >= 4" in text for text in graph.meta["specialisations"]), graph.meta
