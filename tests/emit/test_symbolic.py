"""One program for all sizes."""

import pytest
import torch
from cpu_graphs import GraphByHand

from stator import config
from stator.sizes.context import SizeContext
from stator.values.source import SourceTree

aten = torch.ops.aten
SIZES = [(8, 20), (16, 33), (2, 5), (3, 1), (1, 7), (5, 257), (0, 4), (1, 1)]


@pytest.fixture(autouse=True)
def strict():
    with config.patch(strict=True):
        yield


def symbols(count: int) -> list[torch.SymInt]:
    context = SizeContext(duck=False)
    tree = SourceTree(("x", "y"))
    return [context.symbol(tree.local(0).child("SIZE", k), 7 + k) for k in range(count)]


def check(program, function, *shapes):
    for n, m in SIZES:
        torch.manual_seed(0)
        inputs = [torch.randn([{"n": n, "m": m}.get(size, size) for size in shape]) for shape in shapes]
        expected = function(*inputs)
        for mine, theirs in zip(program(*inputs), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
            if n > 1 and m > 1:
                assert mine.stride() == theirs.stride()


def test_pointwise():
    n, m = symbols(2)
    graph = GraphByHand()
    x, y = graph.input((n, m)), graph.input((n, m))
    total = graph.call(aten.add.Tensor, graph.call(aten.mul.Tensor, x, 2, shape=(n, m)), y, shape=(n, m))
    program = graph.program(graph.call(aten.relu.default, total, shape=(n, m)))
    check(program, lambda x, y: [torch.relu(x * 2 + y)], ("n", "m"), ("n", "m"))


def test_rows_and_broadcast():
    n, m = symbols(2)
    graph = GraphByHand()
    x, y = graph.input((n, m)), graph.input((m,))
    total = graph.call(aten.sum.dim_IntList, x, [1], True, shape=(n, 1))
    scaled = graph.call(aten.div.Tensor, x, total, shape=(n, m))
    program = graph.program(graph.call(aten.add.Tensor, scaled, y, shape=(n, m)), total)
    check(program, lambda x, y: [x / x.sum(1, keepdim=True) + y, x.sum(1, keepdim=True)], ("n", "m"), ("m",))


def test_columns_views_and_cat():
    n, m = symbols(2)
    graph = GraphByHand()
    x = graph.input((n, m))
    columns = graph.call(aten.sum.dim_IntList, x, [0], shape=(m,))
    flat = graph.call(aten.mul.Tensor, graph.call(aten.view.default, x, [-1], shape=(n * m,)), 3, shape=(n * m,))
    joined = graph.call(aten.cat.default, [x, x], 1, shape=(n, m + m))
    whole = graph.call(aten.sum.default, x, shape=())
    turned = graph.call(aten.permute.default, x, [1, 0], shape=(m, n))
    copied = graph.call(aten.add.Tensor, turned, 1, shape=(m, n))
    program = graph.program(columns, flat, joined, whole, copied)
    check(
        program,
        lambda x: [x.sum(0), x.reshape(-1) * 3, torch.cat([x, x], 1), x.sum(), (x.t() + 1).contiguous()],
        ("n", "m"),
    )


def test_operator_with_sizes_as_arguments():
    n, m = symbols(2)
    graph = GraphByHand()
    x, w = graph.input((n, m)), graph.input((m, 9))
    product = graph.call(aten.mm.default, x, w, shape=(n, 9))
    filled = graph.call(aten.full.default, [n, m], 2.0, shape=(n, m))
    program = graph.program(graph.call(aten.relu.default, product, shape=(n, 9)), filled)
    check(program, lambda x, w: [torch.relu(x @ w), torch.full(x.shape, 2.0)], ("n", "m"), ("m", 9))
