"""Arguments that a graph changes are written by its kernels, where eager writes them and no earlier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator import events


def swap(a: Any, b: Any) -> Any:
    old = a.clone()
    a.copy_(b)
    b.copy_(old)
    return a + b, old


def stencil(a: Any, b: Any) -> Any:
    a[:-1].copy_(a[1:] + a[:-1])
    return a * 2, a


def by_row_sum(a: Any, b: Any) -> Any:
    total = a.sum(-1, keepdim=True)
    a.div_(total)
    return total


def transpose(a: Any, b: Any) -> Any:
    a.copy_(a.t() + 1)


def softmax(a: Any, b: Any) -> Any:
    a.copy_(torch.softmax(a, -1))
    return a


def through_view(a: Any, b: Any) -> Any:
    row = a[0]
    row.mul_(3)
    a.add_(row.clone())
    return row


def keeps_old(a: Any, b: Any) -> Any:
    old, positive = a * 1.0, a.relu()
    a.add_(1)
    return old, positive


def roll(a: Any, b: Any) -> Any:
    a.copy_(a.roll(1, 0))
    return a.sum()


def product(a: Any, b: Any) -> Any:
    a.copy_(a @ b + a)


def chain(a: Any, b: Any) -> Any:
    a.add_(b)
    b.add_(a)
    a.add_(b)


def scan(a: Any, b: Any) -> Any:
    sums = a.cumsum(0)
    a.add_(sums)
    return sums


def other_types(a: Any, b: Any) -> Any:
    a.mul_(2)
    return a.to(torch.float64), a.to(torch.int32)


PROGRAMS = [swap, stencil, by_row_sum, transpose, softmax, through_view, keeps_old, roll, product, chain, scan,
            other_types]  # fmt: skip
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[::2, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[..., Any], layout: str) -> None:
    for size in (6, 80):
        expected_arguments = [LAYOUTS[layout](torch.rand(size, size)) for _ in range(2)]
        arguments = [LAYOUTS[layout](torch.rand(size, size)) for _ in range(2)]
        for mine, theirs in zip(arguments, expected_arguments, strict=True):
            mine.copy_(theirs)
        versions = [argument._version for argument in arguments]
        compiled = stator.compile(program, dynamic=False)
        with torch.no_grad():
            expected, found = program(*expected_arguments), compiled(*arguments)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(arguments, expected_arguments)
        assert arguments[0]._version > versions[0]


def test_an_update_is_one_pass_over_memory() -> None:
    def step(weight: Any, gradient: Any, mean: Any) -> None:
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        weight.add_(mean, alpha=-0.01)

    graphs: list[str] = []
    schedules: list[str] = []
    stops = [
        events.subscribe(lambda event: graphs.append(event.fields["graph_module"].code), {"aot_graph"}),
        events.subscribe(lambda event: schedules.append(event.fields["text"]), {"schedule"}),
    ]
    arguments = [torch.rand(64, 64) for _ in range(3)]
    expected = [argument.clone() for argument in arguments]
    with torch.no_grad():
        stator.compile(step)(*arguments)
        step(*expected)
    for stop in stops:
        stop()
    torch.testing.assert_close(arguments, expected)
    assert graphs[-1].count("copy_.default") == 2
    assert schedules[-1].count("kernel_") == 1
    assert "buf" not in schedules[-1]  # nothing is written but the arguments


def test_a_failed_check_comes_with_eagers_error_for_overlapping_memory() -> None:
    def spread(x: Any) -> None:
        x.add_(1)

    for one in (spread, stator.compile(spread)):
        with pytest.raises(RuntimeError, match="single memory location"):
            one(torch.rand(4).expand(4, 4))
