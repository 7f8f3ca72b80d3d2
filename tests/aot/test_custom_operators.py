"""Custom operators are opaque: recorded as one call, with their own gradients, fakes and writes."""

import sys

import pytest
import torch

from stator.aot import aot_eager, aot_eager_decomp_partition, trace
from stator.aot.backends import graphs_of
from stator.exc import Unsupported

from .torch_level import check, record

seen_devices = []


@torch.library.custom_op("stator_tests::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * factor)


@scale.register_fake
def _(x, factor):
    seen_devices.append(x.device.type)
    return torch.empty_like(x)


scale.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("stator_tests::bump_", mutates_args={"x"})
def bump_(x: torch.Tensor, by: torch.Tensor) -> None:
    x.add_(by)


@torch.library.custom_op("stator_tests::fill_and_sum", mutates_args={"out"})
def fill_and_sum(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.copy_(x * 2)
    return x.sum()


@fill_and_sum.register_fake
def _(x, out):
    return x.new_empty(())


library = torch.library.Library("stator_tests", "FRAGMENT")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
library.define("halves(Tensor x) -> (Tensor, Tensor)")
library.impl("halves", lambda x: (x[: len(x) // 2].clone(), x[len(x) // 2 :].clone()), "CompositeExplicitAutograd")
torch.library.register_fake(
    "stator_tests::halves", lambda x: (x[: len(x) // 2].clone(), x[len(x) // 2 :].clone()), lib=library
)
library.define("unknown(Tensor x) -> Tensor")
library.impl("unknown", lambda x: x * 2, "CPU")
library.define("counted(Tensor x) -> ()")
calls = []
library.impl("counted", lambda x: calls.append(1), "CompositeExplicitAutograd")
ops = torch.ops.stator_tests


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def graphs(fn, *args):
    module, further = record(fn, *args)
    return graphs_of(module, [*args, *further])


@pytest.mark.parametrize("backend", [aot_eager, aot_eager_decomp_partition])
def test_custom_op_with_gradient(backend):
    check(
        lambda x: scale(x.sin(), 3.0) * 2,
        torch.randn(4, requires_grad=True),
        backend=backend,
        exact=backend is aot_eager,
    )
    assert set(seen_devices) == {"cpu"}, "the fake function sees the devices the operator will see"


def test_custom_op_is_one_call():
    found = graphs(lambda x: scale(x, 3.0), torch.randn(4))
    assert targets(found["inference"]) == [ops.scale.default]


def test_custom_op_that_writes():
    def program(x, y):
        z = x * 1
        bump_(z, y)
        bump_(z[0], y[0])
        return z, z.sum()

    check(program, torch.randn(3, 2), torch.randn(3, 2), backend=aot_eager)
    check(lambda x, y: (bump_(x, y), x * 2)[1], torch.randn(3), torch.randn(3), backend=aot_eager)
    for node in graphs(program, torch.randn(3, 2), torch.randn(3, 2))["inference"].graph.nodes:
        assert node.target is not ops.bump_.default, "nothing in a functional graph writes"


def test_custom_op_that_writes_and_returns():
    def program(x):
        out = torch.empty_like(x)
        total = fill_and_sum(x, out)
        return out * 1, total

    check(program, torch.randn(3), backend=aot_eager)


def test_library_operators():
    check(lambda x: torch.ops.stator_tests.twice(x) + 1, torch.randn(3), backend=aot_eager)
    check(lambda x: list(ops.halves(x * 2)), torch.randn(4), backend=aot_eager)


def test_operator_without_results_is_kept():
    module, _ = record(lambda x: x * 2, torch.randn(3))
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    with module.graph.inserting_after(node):
        module.graph.call_function(ops.counted.default, (node,))
    module.recompile()
    compiled = aot_eager(module, [torch.randn(3)])
    calls.clear()
    compiled(torch.randn(3))
    assert calls == [1]


def test_operator_without_fake_is_refused():
    with pytest.raises(Unsupported, match="register_fake") as error:
        trace(ops.unknown)(torch.randn(3))
    assert error.value.reason == "aot_no_meta_kernel"


def test_nothing_of_the_peer_is_imported():
    import subprocess

    program = """
import torch, sys
from stator.aot import aot_eager, trace
@torch.library.custom_op("stator_sub::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor
scale.register_fake(lambda x, factor: torch.empty_like(x))
graph = trace(lambda x: torch.nn.functional.gelu(scale(x, 2.0)).softmax(0) ** 2)(torch.randn(3))
graph(torch.randn(3))
trace(torch.func.grad(lambda x: torch.special.i1(x).sum()))(torch.randn(3))
trace(lambda x: torch.nn.functional.pad(x, (1, 1), "reflect").cumsum(0).logcumsumexp(0))(torch.randn(1, 5))
bad = [name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor", "torch._functorch.aot"))]
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", program], check=True)
