"""Every differentiable operator of `op_db`, float64: results and gradients through `aot_eager` are those of eager."""

import itertools
import warnings

import pytest
import torch
import torch.fx
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db

from stator.aot import aot_eager

from .known_failures import KNOWN_FAILURES

EMPTY = {"empty_like", "new_empty", "new_empty_strided", "empty", "empty_strided", "empty_permuted"}
SEED = 42  # what torch's own wrappers of random operators in op_db seed with

OPERATORS = [
    op
    for op in op_db
    if op.supports_autograd
    and torch.float64 in op.supported_dtypes("cpu")
    and torch.float64 in op.supported_backward_dtypes("cpu")
]


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def graph_module(function, args, kwargs):
    """A torch-level graph of one call, and the tensors it takes."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{n}") for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors):
        given = iter(tensors)
        full = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        inner_args, inner_kwargs = pytree.tree_unflatten(full, spec)
        return function(*inner_args, **inner_kwargs)

    graph.output((graph.call_function(call, tuple(nodes)),))
    return torch.fx.GraphModule({}, graph), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def equal(one, other):
    if one.dtype is torch.complex32:
        one, other = one.to(torch.complex64), other.to(torch.complex64)
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def outcome(run, tensors):
    torch.manual_seed(SEED)
    return [leaf for leaf in pytree.tree_leaves(run(*tensors)) if isinstance(leaf, torch.Tensor)]


def gradients(results, tensors):
    outputs = [value for value in results if value.requires_grad]
    sources = [tensor for tensor in tensors if tensor.requires_grad]
    torch.manual_seed(SEED + 1)
    weights = [torch.randn_like(output) for output in outputs]
    return torch.autograd.grad(outputs, sources, weights, allow_unused=True) if outputs else ()


def check_sample(op, sample):
    module, tensors = graph_module(op.get_op(), (sample.input, *sample.args), sample.kwargs)
    copies = [[tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors] for _ in range(3)]
    compiled = aot_eager(module, copies[2])
    eager, ours = outcome(module, copies[0]), outcome(compiled, copies[1])
    assert len(eager) == len(ours)
    for one, other in zip(eager, ours):
        assert one.shape == other.shape and one.dtype == other.dtype and one.requires_grad == other.requires_grad
        assert one.stride() == other.stride() or one.numel() <= 1, (one.stride(), other.stride())
        assert op.name in EMPTY or equal(one, other), f"results differ by {(one - other).abs().max()}"
    try:
        expected = gradients(eager, copies[0])
    except RuntimeError as error:
        with pytest.raises(RuntimeError):
            gradients(ours, copies[1])
            raise AssertionError(f"eager's backward raised, ours did not: {error}")
        return
    found = gradients(ours, copies[1])
    for one, other in zip(expected, found):
        assert (one is None) == (other is None)
        # Where a result is a view of an argument autograd adds up its gradients in another order.
        assert one is None or equal(one, other) or torch.allclose(one, other, rtol=1e-12, atol=1e-13, equal_nan=True)


def check_operator(op, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), count))
        for sample in samples:
            if full_name(op) == "as_strided.partial_views":
                continue  # the copies these comparisons work on do not keep its partial storage
            check_sample(op, sample)


def sweep(op, count):
    name = full_name(op)
    if name not in KNOWN_FAILURES:
        check_operator(op, count)
        return
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        check_operator(op, count)
        pytest.fail(f"{name} passes now: take it out of known_failures")


@pytest.mark.parametrize("op", OPERATORS[::11], ids=full_name)
def test_some_operators(op):
    if full_name(op) not in KNOWN_FAILURES:
        check_operator(op, 2)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS, ids=full_name)
def test_every_operator(op):
    sweep(op, 60)


def test_table_names_operators():
    assert set(KNOWN_FAILURES) <= {full_name(op) for op in OPERATORS}
