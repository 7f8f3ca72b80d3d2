"""Autograd histories around compiled regions: what is detached inside of one is not walked through its inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator


def two_losses(a: torch.Tensor, b: torch.Tensor) -> None:
    made = a @ torch.ones(2, 2)
    (made - 1).abs().mean().backward()
    (b @ made.detach()).mean().backward()


def gradients(step: Any) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 2, requires_grad=True) for _ in range(2)]
    step(*inputs)
    return [tensor.grad for tensor in inputs]


def test_a_detached_input_keeps_its_history_out_of_the_second_backward() -> None:
    stator.reset()
    for found, wanted in zip(gradients(stator.compile(two_losses)), gradients(two_losses), strict=True):
        assert found is not None and wanted is not None
        torch.testing.assert_close(found, wanted)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


HOOKS: dict[str, Any] = {
    "backward": lambda module: module.register_full_backward_hook(lambda m, given, got: (given[0] * 2,)),
    "before backward": lambda module: module.register_full_backward_pre_hook(lambda m, got: (got[0] * 3,)),
}


@pytest.mark.parametrize("backend", ("eager", "stator"))
@pytest.mark.parametrize("name", HOOKS)
def test_backward_hooks_of_modules(name: str, backend: str) -> None:
    stator.reset()
    found = []
    for compiles in (False, True):
        module = torch.nn.Sequential(Scaled(), torch.nn.Tanh(), Scaled())
        HOOKS[name](module[2])
        x = torch.arange(1.0, 4.0, requires_grad=True)
        run = stator.compile(module, backend=backend) if compiles else module
        run(x).sum().backward()
        found.append([x.grad, module[0].scale.grad, module[2].scale.grad])
    torch.testing.assert_close(found[1], found[0])
