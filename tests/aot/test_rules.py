"""Each shape rule agrees with torch's meta kernel: sizes, strides, offset, dtype, and what shares memory."""

import itertools
import warnings

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_pointwise_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.utils._python_dispatch import TorchDispatchMode

from stator.aot.abstract import AbstractTensor, abstract_like, evaluate, map_tensors
from stator.aot.meta import evaluate_by_meta
from stator.aot.operators import facts
from stator.aot.rules import RULES
from stator.exc import StatorError

aten = torch.ops.aten
hit = set()

# Rules that differ from the meta kernel on purpose: they say what the CPU kernel gives (see rules.py).
TRUER_THAN_META = {
    aten.pow.Scalar,
    aten._linalg_svd.default,
    aten.linalg_eig.default,
    aten._native_batch_norm_legit_functional.default,
    aten.multi_margin_loss_backward.default,
    aten.multilabel_margin_loss_backward.default,
    aten.fractional_max_pool3d_backward.default,
}


def describe(value):
    if isinstance(value, AbstractTensor):
        strides = tuple(0 if length == 1 else step for length, step in zip(value.shape, value.stride()))
        if value.numel() == 0:
            strides = ()
        return tuple(value.shape), strides, value.storage_offset(), value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    return value


class Comparing(TorchDispatchMode):
    """Evaluates by rule and by meta kernel, and fails where they differ."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is None or func in TRUER_THAN_META:
            return evaluate(func, args, kwargs)
        row = facts(func)
        if row.written:
            return evaluate(func, args, kwargs)
        hit.add(func)
        lift = lambda tensor: tensor if isinstance(tensor, AbstractTensor) else abstract_like(tensor)
        args, kwargs = map_tensors(lift, args), map_tensors(lift, kwargs)
        found = rule(*args, **kwargs)
        expected = evaluate_by_meta(func, row, args, kwargs)
        if found is NotImplemented:
            return expected
        assert describe(found) == describe(expected), f"{func}: {args} {kwargs}"
        first, second = [
            [value for value in (r if isinstance(r, (list, tuple)) else [r]) if value is not None]
            for r in (found, expected)
        ]
        for one, other in zip(first, second):
            assert (one.memory is getattr(args[0], "memory", None)) == (
                other.memory is getattr(args[0], "memory", None)
            ), func
        return found


def samples(op, dtype, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), count))


def compare(op, dtype, count):
    try:
        found = samples(op, dtype, count)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        pytest.skip("torch has no samples here")
    for sample in found:

        def lift(tensor):
            if tensor.layout is not torch.strided:
                return tensor
            return abstract_like(tensor).requires_grad_(tensor.dtype.is_floating_point)

        try:
            args, kwargs = map_tensors(lift, (sample.input, *sample.args)), map_tensors(lift, dict(sample.kwargs))
        except StatorError:
            continue
        try:
            with Comparing():
                found = [
                    value
                    for value in pytree.tree_leaves(op.get_op()(*args, **kwargs))
                    if isinstance(value, torch.Tensor)
                ]
                found = [value for value in found if value.requires_grad]
                if found:
                    torch.autograd.backward(found, [torch.ones_like(value) for value in found])
        except StatorError:
            continue  # reads values
        except (RuntimeError, TypeError, NotImplementedError, ValueError, AttributeError, IndexError):
            continue  # what eager also refuses, or an operator of Python that reads data


# No pointwise, view or product operators in there, or not for this machine.
SKIPPED = ("linalg", "fft", "special", "signal", "jiterator")


SLOW = [pytest.param(part, marks=pytest.mark.slow) for part in range(2, 8)]


@pytest.mark.parametrize("part", [0, 1, *SLOW])
def test_rules_agree_with_meta_kernels(part):
    for op in op_db[part::8]:
        if op.supports_dtype(torch.float32, "cpu") and not op.name.startswith(SKIPPED):
            try:
                compare(op, torch.float32, 2)
            except pytest.skip.Exception:
                continue


@pytest.mark.parametrize(
    "op", [*foreach_binary_op_db, *foreach_pointwise_op_db, *foreach_unary_op_db], ids=lambda op: op.name
)
def test_rules_of_foreach_agree_with_meta_kernels(op):
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, noncontiguous=False), 6):
        args, kwargs = map_tensors(abstract_like, ([*sample.input], *sample.args)), dict(sample.kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name in ("alpha", "value")}
        try:
            with Comparing():
                op.method_variant(*args, **kwargs)
        except (StatorError, RuntimeError, TypeError, AttributeError):
            continue


@pytest.mark.slow
@pytest.mark.parametrize("op", op_db, ids=lambda op: op.name + op.variant_test_name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16], ids=str)
def test_rules_agree_with_meta_kernels_everywhere(op, dtype):
    if op.supports_dtype(dtype, "cpu") and not op.name.startswith("jiterator"):
        compare(op, dtype, 40)


LAYOUTS = [
    torch.randn(2, 3, 4),
    torch.randn(4, 3, 2).permute(2, 1, 0),
    torch.randn(2, 3, 8)[..., ::2],
    torch.randn(2, 1, 4).expand(2, 3, 4),
    torch.randn(3, 4),
    torch.randn(4),
    torch.randn(1, 3, 1),
    torch.randn(()),
    torch.randn(2, 0, 4),
    torch.randint(0, 5, (2, 3, 4)),
    torch.randint(0, 5, (3, 4)).bool(),
    torch.tensor(2),
    torch.tensor(2.0, dtype=torch.float64),
    torch.randn(2, 3, 4).bfloat16().transpose(0, 2).contiguous().transpose(0, 2),
    2,
    2.5,
    True,
]


@pytest.mark.parametrize("name", ["add", "mul", "div", "eq", "logical_and", "maximum", "pow", "where"])
def test_broadcasting_layout_and_promotion(name):
    for one, other in itertools.product(LAYOUTS, LAYOUTS):
        if not isinstance(one, torch.Tensor) and not isinstance(other, torch.Tensor):
            continue
        lift = lambda value: abstract_like(value) if isinstance(value, torch.Tensor) else value
        try:
            if name == "where":
                mask = torch.ones(3, 4, dtype=torch.bool)
                real = torch.where(mask, one, other)
                operands = (abstract_like(mask), lift(one), lift(other))
            else:
                real = getattr(torch, name)(one, other)
                operands = (lift(one), lift(other))
        except (RuntimeError, TypeError):
            continue
        made = getattr(torch, name)(*operands)
        assert describe(made) == describe(abstract_like(real)), (one, other)


f, g, h = torch.randn(2, 3), torch.randn(3, 2).t(), torch.rand(3)
i, j = torch.randint(1, 5, (2, 3)), torch.randint(1, 5, (3,))
# Overloads OpInfo has no samples of.
DIRECT = [
    (aten.alias.default, (g,)),
    (aten.bitwise_and.Scalar, (i, 3)),
    (aten.bitwise_and.Scalar_Tensor, (3, i)),
    (aten.bitwise_or.Scalar, (i, 3)),
    (aten.bitwise_or.Scalar_Tensor, (3, i)),
    (aten.bitwise_or.Tensor, (i, j)),
    (aten.bitwise_xor.Scalar, (i, 3)),
    (aten.bitwise_xor.Scalar_Tensor, (3, i)),
    (aten.bitwise_xor.Tensor, (i, j)),
    (aten.clamp.default, (g, 0, 1)),
    (aten.clamp.default, (i, 0.5, None)),
    (aten.clamp_max.default, (g, 1)),
    (aten.conj_physical.default, (g.to(torch.complex64),)),
    (aten.fmod.Scalar, (i, 2.0)),
    (aten.lerp.Tensor, (f, g, f)),
    (aten.native_dropout.default, (f, 0.5, True)),
    (aten.positive.default, (g,)),
    (aten.rand_like.default, (g,)),
    (aten.remainder.Scalar_Tensor, (2, g)),
    (aten.square.default, (i,)),
    (aten.true_divide.Tensor, (i, j)),
    (aten._foreach_add.Tensor, ([f, g], h[0])),
    (aten._foreach_mul.Tensor, ([f, g], h[0])),
    (aten._foreach_div.Tensor, ([f, g], h[0])),
    (aten._foreach_addcdiv.ScalarList, ([f, h], [g, h], [g, h], [1.0, 2.0])),
    (aten._foreach_addcdiv.Tensor, ([f, h], [g, h], [g, h], torch.ones(2))),
    (aten._foreach_addcmul.ScalarList, ([f, h], [g, h], [g, h], [1.0, 2.0])),
    (aten._foreach_addcmul.Tensor, ([f, h], [g, h], [g, h], torch.ones(2))),
    (aten._foreach_lerp.List, ([f, h], [g, h], [g, h])),
    (aten._foreach_lerp.Scalar, ([f, h], [g, h], 0.5)),
    (aten._foreach_lerp.ScalarList, ([f, h], [g, h], [0.5, 0.1])),
]


@pytest.mark.parametrize("op, args", DIRECT, ids=lambda value: str(value) if not isinstance(value, tuple) else "")
def test_overloads_without_samples(op, args):
    real = op(*args)
    hit.add(op)
    made = RULES[op](*map_tensors(abstract_like, args))
    assert made is not NotImplemented
    lift = lambda tensor: abstract_like(tensor)
    assert describe(made) == describe(map_tensors(lift, list(real) if isinstance(real, (list, tuple)) else real))


@pytest.mark.slow
def test_every_rule_is_reached():
    """Rules nothing exercises are rules nobody knows to be right."""
    for part in range(8):
        test_rules_agree_with_meta_kernels(part)
    for op in (*foreach_binary_op_db, *foreach_pointwise_op_db, *foreach_unary_op_db):
        test_rules_of_foreach_agree_with_meta_kernels(op)
    for op, args in DIRECT:
        test_overloads_without_samples(op, args)
    unhit = {str(op) for op in RULES if op not in hit and op not in TRUER_THAN_META and not facts(op).written}
    assert not unhit, " ".join(sorted(unhit))
