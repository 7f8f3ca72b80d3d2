"""Values that only the run time knows: captured under the settings, checked by the program, and errors that say how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator import config, events
from stator.exc import ConstraintViolationError, Unsupported

L = torch.tensor


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    stator.reset()
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def item(x):
    n = x.sum().item()
    return x * n, n + 1


def makes_a_size(x):
    n = x[0].item()
    torch._check(n >= 0)
    torch._check(n <= 8)
    return torch.zeros(n) + 1


def listed(x):
    a, b = x.tolist()
    return torch.ones(3) * a + b


def int_of(x):
    return x + int(x[0])


def rows_that_are_not_zero(x):
    found = torch.nonzero(x)
    return x[found[:, 0]] * 2, found.shape[0]


def masked(x):
    kept = x[x > 0]
    return kept.sum() + kept.shape[0], kept * 2


def rows_by_mask(x):
    return x[x[:, 0] > 0].sum(0)


def unique(x):
    return torch.unique(x) + 1


def selected(x):
    kept = torch.masked_select(x, x > 1)
    return (kept * kept).sum()


def checked(x):
    n = x[0].item()
    torch._check(n > 5, lambda: "too small")
    return x + n


def changed_before(x):
    y = x + 1
    y.add_(1)
    return y * y[0].item()


def formula(x):
    return torch.ones(3) * math.sqrt(x.sum().item())


CASES: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    (item, (torch.arange(4), torch.arange(5), torch.zeros(1, dtype=torch.int64))),
    (item, (torch.arange(4.0), torch.arange(5.0))),
    (makes_a_size, (L([3, 1]), L([5, 1]), L([0, 1]), L([8, 0]))),
    (listed, (L([1, 2]), L([3, 4]))),
    (int_of, (L([9, 2]), L([1, 4]))),
    (int_of, (L([9.5, 2]), L([-1.5, 4]))),
    (rows_that_are_not_zero, (L([1, 0, 2]), L([0, 0, 2, 3, 4]), L([0, 0]))),
    (masked, (L([1.0, -2, 3]), L([4.0, 5, 6, -1]), L([-1.0]))),
    (rows_by_mask, (torch.eye(3), torch.eye(4) - 2, torch.ones(2, 2))),
    (unique, (L([1, 1, 2]), L([5, 4, 4, 3]))),
    (selected, (L([1.0, 2.0, 3.0]), L([4.0, 5.0, 6.0, -1.0]))),
    (checked, (L([9, 2]), L([7, 4]))),
    (changed_before, (L([9, 2]), L([7, 4]))),
    (formula, (L([9, 2]), L([7, 4]))),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "stator"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[1][0].dtype}")
def test_one_graph_gives_what_eager_gives(case: Any, backend: str) -> None:
    function, inputs = case
    compiled = stator.compile(function, backend=backend, fullgraph=True)
    for x in inputs:
        expected, found = function(x.clone()), compiled(x.clone())
        assert type(expected) is type(found)
        for one, two in zip(
            *(value if isinstance(value, tuple) else (value,) for value in (expected, found)), strict=True
        ):
            assert type(one) is type(two)
            torch.testing.assert_close(two, one)


@pytest.mark.parametrize("backend", ["eager", "stator"])
def test_gradients_pass_the_pieces(backend: str) -> None:
    def loss(x):
        y = torch.sin(x)
        return (y[y > 0] * y.sum().item()).sum()

    compiled = stator.compile(loss, backend=backend, fullgraph=True)
    for size in (4, 6, 9):
        x = torch.linspace(-1, 2, size)
        one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
        loss(one).backward()
        compiled(two).backward()
        torch.testing.assert_close(two.grad, one.grad)


@pytest.mark.parametrize("backend", ["eager", "stator"])
def test_a_check_is_an_assertion_of_the_program(backend: str) -> None:
    compiled = stator.compile(checked, backend=backend, fullgraph=True)
    compiled(L([9, 2]))
    with pytest.raises(RuntimeError, match="too small"):
        compiled(L([1, 2]))


def test_a_decision_names_the_line_and_the_check() -> None:
    def decides(x):
        n = x[0].item()
        if n > 3:
            return x + 1
        return x - 1

    with pytest.raises(Unsupported) as caught:
        stator.compile(decides, fullgraph=True)(L([1, 2]))
    assert caught.value.reason == "data_dependent_size"
    assert "if n > 3:" in str(caught.value) and "torch._check(" in str(caught.value)
    stator.reset()
    compiled, breaks = stator.compile(decides), []
    stop = events.subscribe(lambda event: breaks.append(event.fields["reason"]), {"graph_break"})
    try:
        for x in (L([1, 2]), L([9, 2]), L([3, 2])):
            assert torch.equal(compiled(x), decides(x))
    finally:
        stop()
    assert breaks[0] == "data_dependent_size"


def test_marks_and_declarations_that_cannot_hold_name_the_line() -> None:
    def fixes(x):
        return [row * 2 for row in range(x.shape[0])], x + 1

    x = torch.ones(4, 3)
    stator.mark_dynamic(x, 0, min=1, max=64)
    with pytest.raises(ConstraintViolationError, match=r"test_unbacked.py:\d+, in fixes: x.size\(0\) was marked"):
        stator.compile(fixes, backend="eager")(x)
    with pytest.raises(ConstraintViolationError, match=r"test_unbacked.py:\d+.*dynamic=\{x: \{0: ...\}\}"):
        stator.compile(fixes, backend="eager", dynamic={"x": {0: (1, 64)}})(torch.ones(5, 3))


def test_an_unbacked_mark_refuses_decisions() -> None:
    def decides(x):
        return x + 1 if x.shape[0] > 3 else x

    x = torch.ones(4, 3)
    stator.mark_unbacked(x, 0)
    with pytest.raises(Unsupported, match=r"torch._check"):
        stator.compile(decides, backend="eager", fullgraph=True)(x)
    assert torch.equal(stator.compile(lambda x: x * 2, fullgraph=True)(x), x * 2)
