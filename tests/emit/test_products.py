"""Products of matrices as kernels: every layout and edge against float64, what fuses, what stays with the library."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from test_kernels import run

import stator
from stator import config


@pytest.fixture(autouse=True)
def own():
    with config.patch(strict=True, products="own"):
        yield


def laid_out(rows, columns, layout, dtype=torch.float32):
    made = torch.randn(rows, columns, dtype=dtype)
    if layout == "turned":
        return made.t().contiguous().t()
    if layout == "strided":
        return torch.randn(rows, 2 * columns, dtype=dtype)[:, ::2]
    return made


def check(function, *inputs, kernels, bound=4e-6):
    found, texts, schedule = run(function, *inputs)
    exact = function(*(value.double() for value in inputs))
    for mine, theirs in zip(found, exact, strict=True):
        scale = theirs.abs().max().clamp(min=1)
        assert ((mine.double() - theirs).abs().max() / scale).item() < bound
    assert len(texts) == kernels, "\n".join(texts)
    return texts, schedule


SHAPES = [(4, 4, 8), (8, 8, 8), (13, 7, 9), (14, 16, 32), (15, 64, 100), (100, 37, 50), (200, 16, 17), (29, 1100, 33),
          (130, 2500, 40), (300, 5, 16)]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), list(itertools.product(("plain", "turned", "strided"), repeat=2)))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layouts_and_edges(shape, left, right):
    rows, inner, columns = shape
    check(
        lambda x, w: [x @ w], laid_out(rows, inner, left), laid_out(inner, columns, right), kernels=1, bound=2e-5
    )  # fmt: skip


def test_double_precision():
    left, right = laid_out(31, 65, "plain", torch.float64), laid_out(65, 21, "turned", torch.float64)
    check(lambda x, w: [x @ w], left, right, kernels=1, bound=1e-14)


def test_bias_activation_and_residual_are_one_kernel():
    def block(x, w, b, residual):
        return [F.gelu(F.linear(x, w, b)) + residual]

    check(block, torch.randn(50, 40), torch.randn(70, 40), torch.randn(70), torch.randn(50, 70), kernels=1)


def test_scaled_addends():
    inputs = torch.randn(20, 24), torch.randn(20, 16), torch.randn(16, 24)
    check(lambda c, x, w: [torch.addmm(c, x, w, beta=0.5, alpha=2.0)], *inputs, kernels=1)
    check(lambda c, x, w: [torch.addmm(c, x, w, beta=0)], *inputs, kernels=1)


def test_batches_and_permuted_views():
    def scores(q, k):
        return [q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * 0.25]

    check(scores, torch.randn(2, 20, 3, 16), torch.randn(2, 20, 3, 16), kernels=1)


def test_a_sum_over_columns_is_a_kernel_of_its_own():
    texts, _ = check(lambda x, w: [torch.softmax(x @ w, -1)], torch.randn(20, 30), torch.randn(30, 40), kernels=2)
    assert sum("contraction" in text for text in texts) == 1


def test_what_comes_before_is_not_computed_for_each_tile():
    texts, _ = check(lambda x, w: [torch.relu(x) @ w], torch.randn(20, 30), torch.randn(30, 40), kernels=2)
    assert "maximum" not in next(text for text in texts if "contraction" in text)


def test_three_products_of_one_input_are_three_kernels():
    weights = [torch.randn(16, 16) for _ in range(3)]
    texts, _ = check(lambda x, a, b, c: [x @ a, x @ b, x @ c], torch.randn(20, 16), *weights, kernels=3)
    assert all(text.count("contraction") == 1 for text in texts)


def test_an_input_that_is_overwritten_is_read_first():
    def step(x, w):
        x.copy_(x @ w)
        return x

    x, w = torch.randn(20, 20), torch.randn(20, 20)
    expected = x @ w
    with torch.no_grad():
        stator.compile(step)(x, w)
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 64, 64), (64, 64, 2), (64, 2, 64)], ids=str)
def test_thin_products_stay_with_the_library(shape):
    rows, inner, columns = shape
    _, schedule = check(lambda x, w: [x @ w], torch.randn(rows, inner), torch.randn(inner, columns), kernels=0)
    assert "aten.mm" in schedule


def test_low_precision_stays_with_the_library():
    x, w = torch.randn(20, 20).bfloat16(), torch.randn(20, 20).bfloat16()
    found, texts, _ = run(lambda x, w: [x @ w], x, w)
    assert not texts
    assert torch.equal(found[0], x @ w)


def test_the_library_when_asked():
    with config.patch(products="library"):
        check(lambda x, w: [x @ w], torch.randn(20, 20), torch.randn(20, 20), kernels=0)


def test_symbolic_rows():
    compiled = stator.compile(lambda x, w: F.relu(x @ w))
    w = torch.randn(48, 40)
    with torch.no_grad():
        for rows in (14, 5, 33, 128, 2):
            x = torch.randn(rows, 48)
            stator.maybe_mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x, w), F.relu(x @ w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_threads(threads):
    x, w = torch.randn(500, 1300), torch.randn(1300, 100)
    one, _, _ = run(lambda x, w: [x @ w], x, w)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        again, _, _ = run(lambda x, w: [x @ w], x, w)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one[0], again[0])


def test_infinities_and_nan_pass_through():
    x, w = torch.randn(20, 20), torch.randn(20, 20)
    x[3, 4], x[7, 7] = float("inf"), float("nan")
    found, _, _ = run(lambda x, w: [x @ w], x, w)
    assert torch.equal(found[0].isnan(), (x @ w).isnan())
    assert torch.equal(found[0].isinf(), (x @ w).isinf())
