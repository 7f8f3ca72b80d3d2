"""Operators on symbolic meta tensors: shapes, aliasing, and what they ask of sizes."""

from __future__ import annotations

import json

import pytest
import sweep_operators
import torch
import torch.nn.functional as F

from stator.sizes import SizeContext, shapes
from stator.sizes.function_rules import FUNCTIONS, PRESUMING_FUNCTIONS, symbolic_shapes
from stator.sizes.meta_rules import PRESUMING, RULES
from stator.values.source import SourceTree

FAST = """
add mul div where masked_fill relu exp sum mean amax var cumsum softmax cat stack split chunk narrow slice select
reshape view flatten expand permute transpose squeeze unsqueeze matmul mm bmm addmm nn.functional.linear
nn.functional.embedding nn.functional.layer_norm nn.functional.conv2d index_select gather __getitem__ einsum
nn.functional.scaled_dot_product_attention nn.functional.interpolate nn.functional.pad tril roll flip repeat
""".split()


@pytest.fixture
def sizes():
    return SizeContext()


def make(sizes, *hints, strides=None):
    tensor = SourceTree(("x",)).local(0)
    shape = [sizes.symbol(tensor.child("SIZE", dim), hint, duck=False) for dim, hint in enumerate(hints)]
    return shapes.empty_strided(shape, strides or shapes.contiguous_strides(shape), torch.float32, "meta")


def texts(sizes):
    return [sizes.short_text(guard.expr) for guard in sizes.guards]


def test_the_common_operators_agree_with_the_kernels_and_the_table():
    known = json.loads(sweep_operators.TABLE.read_text())
    table, failures = sweep_operators.sweep(FAST)
    assert failures == []
    assert table == {name: entry for name, entry in known.items() if name in table}
    in_sweep = {label for label in known if label.partition(".")[0] in FAST or label in FAST}
    assert {name for name in in_sweep if name in FAST} <= set(table)


@pytest.mark.slow
def test_every_operator_agrees_with_the_kernels_and_the_table():
    table, failures = sweep_operators.sweep([])
    assert failures == []
    assert table == json.loads(sweep_operators.TABLE.read_text())


def test_every_row_of_the_tables_names_something():
    assert all(hasattr(torch.ops.aten, name) for name in PRESUMING)
    assert all(callable(function) for function in (*FUNCTIONS, *PRESUMING_FUNCTIONS))
    assert len(RULES) > 300


def test_pointwise_operators_ask_nothing_of_equal_shapes(sizes):
    x = make(sizes, 8, 6)
    with symbolic_shapes():
        result = torch.relu(x + x.mul(2)) / x.exp()
        assert torch.where(x > 0, x, result).shape == x.shape
        assert str((x.t() + x.t()).stride()) == "(1, max(1, s1))"
    assert sizes.guards == []


def test_broadcasting_asks_equality_and_not_whether_a_size_is_one(sizes):
    x, y = make(sizes, 8, 6), make(sizes, 6)
    column = shapes.empty_strided([x.shape[0], 1], [1, 1], torch.float32, "meta")
    with symbolic_shapes():
        x + column
        assert sizes.guards == []
        x * torch.empty(6, device="meta")
    assert texts(sizes) == ["s1 == 6"]


def test_a_size_of_one_that_broadcasts_is_asked(sizes):
    x, y = make(sizes, 1, 6), torch.empty(4, 6, device="meta")
    with symbolic_shapes():
        assert (x + y).shape == (4, 6)
    assert "s0 == 1" in texts(sizes)


def test_shapes_that_do_not_fit_raise_as_torch_does(sizes):
    x = make(sizes, 8, 6)
    with symbolic_shapes(), pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x + torch.empty(5, device="meta")
    with symbolic_shapes(), pytest.raises(RuntimeError, match="is invalid for input of size"):
        x.view(7, 7)


def test_views_know_their_sizes_without_guards(sizes):
    x = make(sizes, 8, 6)
    batch, width = x.shape
    with symbolic_shapes():
        assert str(tuple(x.view(-1).shape)) == "(s0*s1,)"
        assert str(tuple(x.reshape(batch, 1, width).shape)) == "(s0, 1, s1)"
        assert str(tuple(x.view(-1).view(batch, width).shape)) == "(s0, s1)"
        assert str(tuple(torch.flatten(x).shape)) == "(s0*s1,)"
        assert x.view(-1).untyped_storage()._cdata == x.untyped_storage()._cdata
    assert sizes.guards == []
    with symbolic_shapes():
        assert str(tuple(x.view(-1, 2, width).shape)) == "(s0 // 2, 2, s1)"
    assert texts(sizes) == ["s1 >= 1", "s0 % 2 == 0"]


def test_a_reshape_that_must_copy_copies(sizes):
    x = make(sizes, 8, 6)
    with symbolic_shapes():
        moved = x.t().reshape(-1)
        assert str(tuple(moved.shape)) == "(s0*s1,)"
        assert moved.untyped_storage()._cdata != x.untyped_storage()._cdata


def test_models_layers_leave_batch_and_length_free(sizes):
    tensor = SourceTree(("x",)).local(0)
    batch, length = (sizes.symbol(tensor.child("SIZE", dim), hint) for dim, hint in ((0, 4), (1, 9)))
    x = shapes.empty_strided([batch, length, 16], shapes.contiguous_strides([batch, length, 16]), torch.float32, "meta")
    weight, bias = torch.empty(48, 16, device="meta"), torch.empty(48, device="meta")
    with symbolic_shapes():
        normed = F.layer_norm(x, (16,), torch.empty(16, device="meta"), torch.empty(16, device="meta"))
        q, k, v = F.linear(normed, weight, bias).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, 4, 4).transpose(1, 2) for part in (q, k, v))
        scores = torch.softmax(q @ k.transpose(-2, -1) / 2.0, dim=-1)
        out = (scores @ v).transpose(1, 2).reshape(batch, length, 16)
        out = x + F.linear(out, torch.empty(16, 16, device="meta"))
        assert str(tuple(F.gelu(out).mean(1).shape)) == "(s0, 16)"
    assert sizes.specialisations == {}
    # of one position, eager's `reshape` after the attention would be a view, and a copy otherwise
    assert texts(sizes) == ["s1 >= 2"]


def test_slices_of_symbolic_length_decide_nothing(sizes):
    x = make(sizes, 8, 6)
    with symbolic_shapes():
        assert str(tuple(x[:, 1:].shape)) == "(s0, max(0, s1 - 1))"
        assert str(tuple(x[:-1].shape)) == "(max(0, s0 - 1), s1)"
        assert str(tuple(x[::2].shape)) == "((s0 + 1) // 2, s1)"
    assert sizes.guards == []


def test_unbacked_sizes_flow_through_layers():
    sizes = SizeContext()
    count = sizes.unbacked("mask.nonzero().size(0)")
    x = shapes.empty_strided([count, 16], [16, 1], torch.float32, "meta")
    with symbolic_shapes():
        result = F.linear(torch.relu(x), torch.empty(4, 16, device="meta")).softmax(-1).view(-1)
    assert str(tuple(result.shape)) == "(4*u0,)"
    assert sizes.guards == [] and sizes.asserts == []
