"""Higher-order operators: one step with bodies as graphs, and their gradients."""

import operator

import pytest
import torch
import torch.fx

from stator.aot import aot_eager
from stator.aot.backends import graphs_of
from stator.exc import Unsupported

ops = torch.ops.higher_order


def body(function, count):
    """A graph module of a Python function of `count` tensors."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"i{place}") for place in range(count)]
    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    result = function(*[torch.fx.Proxy(node, tracer) for node in inputs])
    leaves = result if isinstance(result, tuple) else (result,)
    graph.output(tuple(leaf.node for leaf in leaves))
    return torch.fx.GraphModule({}, graph)


def graph_module(bodies, count, build):
    """A torch-level graph that owns `bodies` and calls `build(graph, body nodes, inputs)`."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"a{place}") for place in range(count)]
    held = [graph.get_attr(name) for name in bodies]
    node = build(graph, held, inputs)
    graph.output(tuple(node) if isinstance(node, (list, tuple)) else (node,))
    root = torch.nn.Module()
    for name, module in bodies.items():
        setattr(root, name, module)
    return torch.fx.GraphModule(root, graph)


def compare(module, reference, *args, atol=0.0):
    graphs = graphs_of(module, [value.detach().requires_grad_(value.requires_grad) for value in args])
    compiled = aot_eager(module, args)
    outcomes = []
    for run in (reference, compiled):
        values = [value.detach().clone().requires_grad_(value.requires_grad) for value in args]
        results = run(*values)
        results = results if isinstance(results, (tuple, list)) else (results,)
        outputs = [result for result in results if result.requires_grad]
        sources = [value for value in values if value.requires_grad]
        weights = [
            torch.full_like(output, 0.5).add(torch.arange(output.numel()).view_as(output) * 0.1) for output in outputs
        ]
        gradients = torch.autograd.grad(outputs, sources, weights, allow_unused=True) if outputs else ()
        outcomes.append((results, gradients))
    for one, other in zip(outcomes[0][0], outcomes[1][0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        assert one.requires_grad == other.requires_grad
    for one, other in zip(outcomes[0][1], outcomes[1][1], strict=True):
        one = torch.zeros_like(other) if one is None and other is not None else one
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    return graphs


def called(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def leaf(*size):
    return torch.randn(*size, requires_grad=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_cond(value):
    branches = {"yes": body(lambda x, w: (x.sin() * w, x.sum()), 2), "no": body(lambda x, w: (x * 2, (x * x).sum()), 2)}

    def build(graph, held, inputs):
        call = graph.call_function(ops.cond, (inputs[0], held[0], held[1], (inputs[1], inputs[2])))
        return [graph.call_function(operator.getitem, (call, place)) for place in (0, 1)]

    module = graph_module(branches, 3, build)

    def reference(p, x, w):
        return (x.sin() * w, x.sum()) if p else (x * 2, (x * x).sum())

    graphs = compare(module, reference, torch.tensor(value > 0), leaf(3), leaf(3))
    assert called(graphs["forward"]).count(ops.cond) == 1
    compare(module, reference, torch.tensor(value > 0), torch.randn(3), torch.randn(3))


def test_cond_with_different_branches_is_refused():
    module = graph_module(
        {"yes": body(lambda x: x * 2, 1), "no": body(lambda x: x.sum(), 1)},
        2,
        lambda graph, held, inputs: graph.call_function(ops.cond, (inputs[0], *held, (inputs[1],))),
    )
    with pytest.raises(Unsupported) as error:
        aot_eager(module, [torch.tensor(True), torch.randn(3)])
    assert error.value.reason == "aot_higher_order"


def test_body_that_writes_its_operand_is_refused():
    module = graph_module(
        {"yes": body(lambda x: x.add_(2) * 1, 1), "no": body(lambda x: x * 1, 1)},
        2,
        lambda graph, held, inputs: graph.call_function(ops.cond, (inputs[0], *held, (inputs[1],))),
    )
    with pytest.raises(Unsupported, match="writes an operand"):
        aot_eager(module, [torch.tensor(True), torch.randn(3)])


def test_while_loop():
    bodies = {"go_on": body(lambda i, x: i.lt(5), 2), "step": body(lambda i, x: (i + 1, x * 2), 2)}

    def build(graph, held, inputs):
        call = graph.call_function(ops.while_loop, (held[0], held[1], (inputs[0], inputs[1]), ()))
        return [graph.call_function(operator.getitem, (call, place)) for place in (0, 1)]

    module = graph_module(bodies, 2, build)
    graphs = compare(module, lambda i, x: (torch.tensor(5), x * 32), torch.tensor(0), torch.randn(3))
    assert called(graphs["inference"]).count(ops.while_loop) == 1
    with pytest.raises(Unsupported, match="no gradient"):
        aot_eager(module, [torch.tensor(0), leaf(3)])


def test_map():
    module = graph_module(
        {"step": body(lambda x, w: (x.sin() * w, x.sum()), 2)},
        2,
        lambda graph, held, inputs: [
            graph.call_function(
                operator.getitem, (graph.call_function(ops.map_impl, (held[0], (inputs[0],), (inputs[1],))), place)
            )
            for place in (0, 1)
        ],
    )
    graphs = compare(module, lambda x, w: (x.sin() * w, x.sum(1)), leaf(4, 3), leaf(3))
    assert ops.map_impl in called(graphs["forward"]) and ops.map_impl in called(
        compiled_backward(module, leaf(4, 3), leaf(3))
    )


def compiled_backward(module, *args):
    found = {}
    from stator.aot import backend
    from stator.aot.backends import run_as_is

    def keep(graph, inputs):
        found["backward"] = graph
        return run_as_is(graph, inputs)

    result = backend(run_as_is, keep)(module, args)(*args)
    sum(value.sum() for value in result).backward()
    return found["backward"]


def scan_reference(c, x, w):
    ys = []
    for row in x:
        c = (c * w + row).tanh()
        ys.append(c * row)
    return c, torch.stack(ys)


def test_scan():
    def step(c, x, w):
        new = (c * w + x).tanh()
        return new, new * x

    def build(graph, held, inputs):
        call = graph.call_function(ops.scan, (held[0], (inputs[0],), (inputs[1],), (inputs[2],)))
        return [graph.call_function(operator.getitem, (call, place)) for place in (0, 1)]

    module = graph_module({"step": body(step, 3)}, 3, build)
    graphs = compare(module, scan_reference, leaf(3), leaf(5, 3), leaf(3))
    assert called(graphs["forward"]).count(ops.scan) == 1
    compare(module, scan_reference, torch.randn(3), leaf(5, 3), torch.randn(3))
    compare(module, scan_reference, torch.randn(3), torch.randn(5, 3), torch.randn(3))


def test_associative_scan():
    module = graph_module(
        {"add": body(lambda x, y: (x * y,), 2)},
        1,
        lambda graph, held, inputs: [
            graph.call_function(
                operator.getitem, (graph.call_function(ops.associative_scan, (held[0], (inputs[0],), ())), 0)
            )
        ],
    )
    compare(module, lambda x: x.cumprod(0), leaf(6, 3))


def test_flex_attention():
    def score(s, b, h, q, k):
        return s + (q - k) * 0.1

    def mask(b, h, q, k):
        return q >= k

    held = {"score": body(score, 5), "mask": body(mask, 4)}

    def build(graph, nodes, inputs):
        call = graph.call_function(ops.flex_attention, (*inputs, nodes[0], (4, 4, nodes[1]), 0.5, {}, (), ()))
        return [graph.call_function(operator.getitem, (call, 0))]

    def reference(q, k, v):
        scores = q @ k.transpose(-1, -2) * 0.5
        index = torch.arange(4)
        scores = scores + (index[:, None] - index[None]) * 0.1
        scores = scores.masked_fill(index[:, None] < index[None], -torch.inf)
        return scores.softmax(-1) @ v

    compare(graph_module(held, 3, build), reference, leaf(2, 2, 4, 8), leaf(2, 2, 4, 8), leaf(2, 2, 4, 8))


def test_checkpointed_body_keeps_only_its_inputs():
    def inside(x, w):
        return ((x @ w).tanh() @ w).sigmoid()

    module = graph_module(
        {"inside": body(inside, 2)},
        2,
        lambda graph, held, inputs: graph.call_function(
            operator.getitem, (graph.call_function(ops.tag_activation_checkpoint, (held[0], *inputs)), 0)
        ),
    )
    graphs = compare(module, inside, leaf(3, 3), leaf(3, 3))
    results = [node for node in graphs["forward"].graph.nodes if node.op == "output"][0].args[0]
    assert len(results) == 1
    backward = compiled_backward(module, leaf(3, 3), leaf(3, 3))
    assert called(backward).count(torch.ops.aten.tanh.default) == 1


def test_unknown_operator_is_refused():
    module = graph_module(
        {"inside": body(lambda x: x, 1)},
        1,
        lambda graph, held, inputs: graph.call_function(ops.hints_wrapper, (held[0], (inputs[0],), {}, {})),
    )
    with pytest.raises(Unsupported) as error:
        aot_eager(module, [torch.randn(3)])
    assert error.value.reason == "aot_higher_order"
