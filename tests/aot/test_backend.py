"""Ahead-of-time autograd through `aot_eager`: everything observable equals eager, bit by bit."""

import pytest
import torch
import torch.nn.functional as F

import stator
from stator import events
from stator.aot import aot_eager, aot_eager_decomp_partition

from .torch_level import check


def parameter(*size):
    return torch.nn.Parameter(torch.randn(*size))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


BACKENDS = [pytest.param(aot_eager, True, id="aot_eager"), pytest.param(aot_eager_decomp_partition, False, id="decomp")]
both = pytest.mark.parametrize("backend, exact", BACKENDS)


def leaf(*size):
    return torch.randn(*size, requires_grad=True)


def inner(*size):
    return torch.randn(*size, requires_grad=True) * 2


# name -> (function, arguments)
CASES = {
    "linear_gelu_norm": (
        lambda x, w, b: F.layer_norm(F.gelu(F.linear(x, w, b)), (3,)),
        lambda: (torch.randn(2, 4), parameter(3, 4), parameter(3)),
    ),
    "no_gradient": (lambda x, y: (x @ y, (x @ y).relu().sum()), lambda: (torch.randn(3, 4), torch.randn(4, 3))),
    "input_written": (lambda x, w: (x.mul_(2), x * w), lambda: (torch.randn(3), parameter(3))),
    "input_written_twice": (lambda x: (x.add_(1), x.mul_(x), x + 1)[2], lambda: (torch.randn(3),)),
    "non_leaf_input_written": (lambda x, w: x.mul_(w).sum(), lambda: (inner(3), parameter(3))),
    "non_leaf_input_written_and_returned": (lambda x, w: (x.mul_(w), x.sin()), lambda: (inner(3), parameter(3))),
    "view_of_input_written": (
        lambda x, w: (x[0].mul_(2), x.t()[1].add_(1), x * w)[2],
        lambda: (torch.randn(2, 2), parameter(2, 2)),
    ),
    "view_of_intermediate_written": (
        lambda x: (lambda y: (y[0].add_(1), y.view(-1)[2:].mul_(3), y)[2])(x * 2),
        lambda: (leaf(2, 3),),
    ),
    "diagonal_written": (lambda x: (lambda y: (y.diagonal().mul_(x[0]), y)[1])(x * 2), lambda: (leaf(3, 3),)),
    "unfold_written": (lambda x: (lambda y: (y.unfold(0, 2, 2)[1].mul_(3), y)[1])(x * 2), lambda: (leaf(6),)),
    "split_written": (
        lambda x: (lambda y: (y.split(2)[1].copy_(y.split(2)[0]), y)[1])(x * 2),
        lambda: (torch.randn(4, 2),),
    ),
    "setitem": (
        lambda x, w: (lambda y: (y.__setitem__((slice(None), 1), w), y)[1])(x * 2),
        lambda: (leaf(3, 2), parameter(3)),
    ),
    "setitem_index": (
        lambda x, i: (lambda y: (y.__setitem__(i, 1.0), y)[1])(x * 2),
        lambda: (leaf(4, 2), torch.tensor([0, 2])),
    ),
    "index_put_mask": (lambda x: (lambda y: (y.__setitem__(x > 0, 0.0), y)[1])(x * 2), lambda: (leaf(4, 2),)),
    "empty_filled": (
        lambda x: (lambda b: (b[0].copy_(x), b[1].copy_(x * 2), b)[2])(torch.empty(2, 3)),
        lambda: (leaf(3),),
    ),
    "output_is_input": (lambda x, w: (x, w, x * w), lambda: (torch.randn(3), parameter(3))),
    "output_twice": (lambda x: (lambda y: (y, y))(x * 2), lambda: (leaf(3),)),
    "outputs_share": (lambda x: (lambda y: (y, y.view(-1), y[0], y.detach()))(x * 2), lambda: (leaf(2, 3),)),
    "outputs_share_without_base": (lambda x: (lambda y: (y.view(-1), y[0]))(x * 2), lambda: (leaf(2, 3),)),
    "views_of_input": (
        lambda x: (x.view(-1), x.t(), x[0], x.detach(), x.unsqueeze(0).expand(2, -1, -1), *x.unbind(1)),
        lambda: (leaf(2, 3),),
    ),
    "view_of_parameter": (lambda x, w: (w.t(), x @ w.t()), lambda: (torch.randn(2, 3), parameter(4, 3))),
    "views_of_non_leaf": (lambda x: (x.view(-1), x * 2), lambda: (inner(2, 3),)),
    "transposed_in_place": (lambda x: (lambda y: (y.t_(), y * 2))(x * 2), lambda: (leaf(2, 3),)),
    "input_transposed_in_place": (lambda x: (x.t_(), x * 2)[1], lambda: (torch.randn(2, 3),)),
    "squeezed_in_place": (
        lambda x: (lambda y: (y.unsqueeze_(0), y.add_(1), y.squeeze_(), y)[3])(x * 2),
        lambda: (leaf(2, 3),),
    ),
    "returns_copy_of_input": (lambda x: (x.clone(), x + 0), lambda: (leaf(3),)),
    "copy_then_input_written": (
        lambda x, w: (lambda y: (x.add_(1), y * w))(x.clone()),
        lambda: (torch.randn(3), parameter(3)),
    ),
    "kept_value_then_input_written": (
        lambda x, w: (lambda y: (x.mul_(3), y))(x.clone().sin() * w),
        lambda: (torch.randn(3), parameter(3)),
    ),
    "batch_norm_train": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True),
        lambda: (torch.randn(4, 3, 2, 2), torch.zeros(3), torch.ones(3), parameter(3), parameter(3)),
    ),
    "batch_norm_eval": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False),
        lambda: (torch.randn(4, 3), torch.zeros(3), torch.ones(3), parameter(3), parameter(3)),
    ),
    "dropout": (lambda x, w: F.dropout(F.dropout(x * w, 0.3), 0.5) * 2, lambda: (torch.randn(8, 8), parameter(8, 8))),
    "dropout_transposed": (lambda x, w: F.dropout(x.t() * w, 0.3), lambda: (torch.randn(8, 4), parameter(4, 8))),
    "random_unused": (lambda x: (torch.rand(3), x * 2)[1], lambda: (leaf(3),)),
    "random_in_place": (lambda x: (lambda y: (y.normal_(), y * x)[1])(torch.empty(3)), lambda: (leaf(3),)),
    "integers": (lambda x, i: (x[i], i + 1, i.float() * x.sum()), lambda: (leaf(5), torch.tensor([0, 3]))),
    "complex": (
        lambda x: (torch.view_as_real(x * 2j), x.conj() * x),
        lambda: (torch.randn(3, dtype=torch.complex64, requires_grad=True),),
    ),
    "in_place_dtype": (
        lambda x, w: (lambda y: (y.add_(w), y)[1])((x * 2).half()),
        lambda: (torch.randn(3), parameter(3)),
    ),
    "foreach": (
        lambda a, b, c, d: torch._foreach_add([a, b], [c, d], alpha=2),
        lambda: (leaf(3), leaf(2), leaf(3), leaf(2)),
    ),
    "foreach_in_place": (
        lambda a, b, c, d: (torch._foreach_mul_([a, b], [c, d]), a + 1)[1],
        lambda: (torch.randn(3), torch.randn(2), torch.randn(3), torch.randn(2)),
    ),
    "out_variant": (lambda x: (lambda y: (torch.add(x, 1, out=y), y * 2))(torch.empty(3)), lambda: (torch.randn(3),)),
    "same_tensor_twice": (lambda x, y: x * y, lambda: (lambda t: (t, t))(leaf(3))),
    "requires_grad_only_some": (lambda x, y: (x * 2, y * 2, x * y), lambda: (leaf(3), torch.randn(3))),
    "unused_parameter": (lambda x, w: x * 2, lambda: (leaf(3), parameter(3))),
    "max_pool_conv": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1).relu_(), 2),
        lambda: (torch.randn(2, 3, 8, 8), parameter(4, 3, 3, 3)),
    ),
    "channels_last": (
        lambda x, w: F.conv2d(x, w).relu().mean((2, 3)),
        lambda: (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last), parameter(4, 3, 3, 3)),
    ),
    "embedding_cross_entropy": (
        lambda i, e, w, t: F.cross_entropy(F.embedding(i, e) @ w, t),
        lambda: (torch.tensor([1, 2, 1]), parameter(5, 4), parameter(4, 6), torch.tensor([0, 5, 2])),
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: (leaf(2, 2, 4, 8), leaf(2, 2, 4, 8), leaf(2, 2, 4, 8)),
    ),
    "lstm_cell": (
        lambda x, h, c, wi, wh: torch.lstm_cell(x, (h, c), wi, wh),
        lambda: (torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4), parameter(16, 3), parameter(16, 4)),
    ),
    "kept_cache": (lambda k, n: (k[:, 2:3].copy_(n), k.sum(1)), lambda: (torch.zeros(2, 4, 3), torch.randn(2, 1, 3))),
    "gradient_inside": (
        lambda x, w: (lambda l: (l, *torch.autograd.grad(l, [x, w])))(((x * w).tanh()).sum()),
        lambda: (leaf(3), parameter(3)),
    ),
    "double_gradient_inside": (
        lambda x: (lambda g: torch.autograd.grad(g.sum(), x)[0])(
            torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]
        ),
        lambda: (leaf(3),),
    ),
}


@both
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name, backend, exact):
    function, arguments = CASES[name]
    check(function, *arguments(), backend=backend, exact=exact, backward=name != "gradient_inside")


def views(*build):
    """Arguments that are views of one tensor."""

    def make():
        base = torch.randn(4, 4)
        return (base, *[view(base) for view in build])

    return make


SHARING = {
    "base_and_view": (lambda x, y: (x.mul_(2), y + 1), views(lambda t: t[1])),
    "view_written": (lambda x, y: (y.add_(1), x * 2, y * 3)[1:], views(lambda t: t[1])),
    "two_views_written": (lambda x, y, z: (y.add_(1), z.mul_(2), x * 2), views(lambda t: t[1:3], lambda t: t.t()[2])),
    "views_without_their_base": (
        lambda y, z: (y.add_(1), z * 2),
        lambda: views(lambda t: t[1:3], lambda t: t[2:])()[1:],
    ),
    "detached_alias": (
        lambda y, z: (y.add_(1), z * 2),
        lambda: (lambda t: (t[0].detach(), t.detach()))(torch.randn(3, 3)),
    ),
    "not_written": (lambda y, z, w: y * z.sum() * w, lambda: (*views(lambda t: t[1:3])(), parameter(4, 4))),
}


@pytest.mark.parametrize("name", SHARING)
def test_arguments_that_share_memory(name):
    function, arguments = SHARING[name]
    compiled = check(function, *arguments(), backend=aot_eager)
    assert hasattr(compiled, "plan"), "it compiles"


def test_arguments_that_share_memory_later_run_as_in_eager():
    from stator.aot.backends import aot_eager as backend

    from .torch_level import record

    def program(x, y):
        x.mul_(2)
        return y + 1

    module, _ = record(program, torch.randn(4), torch.randn(4))
    compiled = backend(module, [torch.randn(4), torch.randn(4)])
    memory = torch.arange(8.0)
    mine = memory.clone()
    (found,) = compiled(mine[:4], mine[2:6])
    expected = program(memory[:4], memory[2:6])
    assert torch.equal(found, expected) and torch.equal(mine, memory)
    (found,) = compiled(torch.ones(4), torch.ones(4))
    assert torch.equal(found, torch.full((4,), 2.0))


@both
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2)])
def test_results_without_gradient_cost_nothing(which, backend, exact):
    """Where only some results are differentiated, operators of the others never run, as in eager."""
    from .torch_level import record

    def program(x, w, v):
        h = torch.tanh(x @ w)
        return h.sum(), torch.log(h * 0).sum(), F.layer_norm(h * v, (3,)).softmax(-1)

    args = (torch.randn(2, 3), parameter(3, 3), parameter(3))
    module, _ = record(program, *args)
    compiled = backend(module, args)
    found = []
    for run in (program, compiled):
        results = run(*args)
        outputs = [results[place] for place in which]
        weights = [torch.full_like(output, 0.5) for output in outputs]
        found.append(torch.autograd.grad(outputs, args[1:], weights, allow_unused=True))
    for one, other in zip(*found):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, equal_nan=True, **({"rtol": 0, "atol": 0} if exact else {}))


def test_gradient_twice_is_a_reasoned_error():
    from .torch_level import record

    module, _ = record(lambda x: (x**3).sum(), leaf(3))
    x = leaf(3)
    (y,) = aot_eager(module, [x])(x)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert torch.allclose(first, 3 * x.detach() ** 2)
    with pytest.raises(Exception, match="aot_double_backward"):
        first.sum().backward()


def test_backward_twice_and_retained():
    from .torch_level import record

    module, _ = record(lambda x: (x**3).sum(), leaf(3))
    x = leaf(3)
    compiled = aot_eager(module, [x])
    (y,) = compiled(x)
    y.backward(retain_graph=True)
    y.backward()
    assert torch.allclose(x.grad, 6 * x.detach() ** 2)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_changing_a_kept_parameter_before_backward_is_an_error_as_in_eager():
    from .torch_level import record

    module, _ = record(lambda x, w: (x * w).sin().sum(), leaf(3), parameter(3))
    x, w = leaf(3), parameter(3)
    (y,) = aot_eager(module, [x, w])(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_kept_values_go_through_hooks_and_are_freed():
    from .torch_level import record

    module, _ = record(lambda x, w: torch.tanh(x @ w).sin().sum(), leaf(3, 3), parameter(3, 3))
    x, w = leaf(3, 3), parameter(3, 3)
    compiled = aot_eager(module, [x, w])
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        (y,) = compiled(x, w)
    assert len(seen) >= 3
    y.backward()


def test_errors_only_backward_raises_wait_for_it():
    from .torch_level import record

    def program(x, w):
        y = x * w
        loss = (y * y).sum()
        y.add_(1)
        return loss

    module, _ = record(program, torch.randn(3), parameter(3))
    x, w = torch.randn(3), parameter(3)
    (loss,) = aot_eager(module, [x, w])(x, w)
    assert torch.equal(loss, program(x, w))
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_events_carry_graphs_with_user_lines():
    from stator import events

    from .torch_level import record

    seen = []
    end = events.subscribe(seen.append, {"aot_graph", "aot_joint_graph"})
    try:
        module, _ = record(lambda x, w: torch.tanh(x @ w).sum(), torch.randn(2, 3), parameter(3, 3))
        x, w = torch.randn(2, 3), parameter(3, 3)
        aot_eager(module, [x, w])(x, w)[0].backward()
    finally:
        end()
    assert [event.fields.get("which", "joint") for event in seen] == ["joint", "forward", "backward"]
    for event in seen:
        for node in event.fields["graph_module"].graph.nodes:
            if node.op == "call_function":
                assert "File" in node.meta["stack_trace"], node


def test_min_cut_keeps_less_than_eager_and_a_budget_less_still():
    from stator import config
    from stator.aot.backends import graphs_of

    from .torch_level import record

    def program(x, w):
        for _ in range(4):
            x = F.gelu(x @ w) * torch.sigmoid(x) + x.tanh()
        return x.sum()

    module, _ = record(program, torch.randn(16, 16), parameter(16, 16))
    args = [torch.randn(16, 16), parameter(16, 16)]

    def kept(how):
        from stator.aot import backend
        from stator.aot.backends import run_as_is

        found = []

        def compiler(graph, inputs):
            outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
            found.append(sum(node.meta["val"].numel() for node in outputs[1:]))
            return run_as_is(graph, inputs)

        result = backend(compiler, run_as_is, partition=how)(module, args)(*args)
        result[0].backward()
        return found[0]

    assert kept("min-cut") < kept("default")
    with config.patch(activation_memory_budget=0.2):
        assert kept("min-cut") <= 0.2 * kept("default")
    assert set(graphs_of(module, args)) == {"forward"}


def test_a_graph_the_stage_refuses_runs_as_it_was_captured():
    def function(x, place):
        sparse = torch.sparse_coo_tensor(torch.stack([place, place]), x, (4, 4))
        return (sparse @ torch.eye(4)) + 1

    arguments = torch.tensor([1.0, 2.0]), torch.tensor([0, 3])
    seen = []
    end = events.subscribe(lambda event: seen.append(event.fields["reason"]), {"fallback"})
    try:
        torch.testing.assert_close(stator.compile(function, backend="aot_eager")(*arguments), function(*arguments))
    finally:
        end()
    assert seen == ["aot_layout"]
    with pytest.raises(stator.exc.Unsupported, match="sparse_coo"):
        stator.compile(function, backend="aot_eager", fullgraph=True)(*arguments)


def test_parameters_a_function_taken_whole_reaches_by_itself_are_trained():
    layer = torch.nn.Linear(3, 2)
    whole = stator.nonstrict_trace(lambda x: layer(x))
    x = torch.randn(4, 3)
    (expected,) = torch.autograd.grad(layer(x).relu().sum(), [layer.weight])
    stator.compile(lambda x: whole(x).relu(), backend="aot_eager", fullgraph=True)(x).sum().backward()
    assert torch.equal(layer.weight.grad, expected)
