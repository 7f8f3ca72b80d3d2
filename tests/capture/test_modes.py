"""Modes that a program comes with: interpreted where they override torch functions, guarded, and never run natively."""

from __future__ import annotations

from typing import Any

import torch
from programs_torch import Cosine, Log
from torch.utils.flop_counter import FlopCounterMode

import stator


def operations(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + torch.ones(3)


def logged(function: Any) -> tuple[torch.Tensor, list[str]]:
    log = Log()
    with log:
        result = function(torch.arange(3.0))
    return result, log.log


def test_a_mode_around_a_call_sees_what_it_sees_in_eager() -> None:
    stator.reset()
    compiled = stator.compile(operations, backend="eager", fullgraph=True)
    wanted = logged(operations)
    for _ in range(3):
        found = logged(compiled)
        assert torch.equal(found[0], wanted[0])
        assert found[1] == wanted[1]


def test_an_entry_is_for_the_modes_it_was_made_under() -> None:
    stator.reset()
    compiled = stator.compile(operations, backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(compiled(x), operations(x))
        with Cosine():
            assert torch.equal(compiled(x), torch.cos(x) + 1)
        with torch.device("meta"):
            assert compiled(torch.ones(3)).device.type == "meta"


def test_a_dispatch_mode_sees_every_operation() -> None:
    stator.reset()
    compiled = stator.compile(lambda x: x @ x)
    x = torch.ones(4, 4)
    compiled(x)
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            compiled(x)
        assert counter.get_total_flops() == 2 * 4**3


def test_a_lazy_module_gets_its_parameters_from_its_first_call() -> None:
    stator.reset()
    x = torch.ones(2, 3)
    torch.manual_seed(3)
    plain = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU())
    wanted = plain(x)
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU())
    compiled = stator.compile(module, backend="eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(x), wanted)
    assert type(module[0]) is torch.nn.Linear


class Growing(torch.nn.modules.lazy.LazyModuleMixin, torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.UninitializedParameter()

    def initialize_parameters(self, x: torch.Tensor) -> None:
        self.scale.materialize(x.shape)
        self.scale.data.fill_(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_a_lazy_module_that_stays_of_its_class() -> None:
    stator.reset()
    module = Growing()
    compiled = stator.compile(lambda x: module(x) + 1, backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 4.0))


def test_an_entry_is_for_who_may_override() -> None:
    stator.reset()
    compiled = stator.compile(operations, backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    with Cosine():
        for switch in (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction) * 2:
            assert torch.equal(compiled(x), torch.cos(x) + 1)
            with switch():
                assert torch.equal(compiled(x), operations(x))


def test_an_inherited_method_may_be_given_another_meaning() -> None:
    stator.reset()

    class Local(torch.Tensor):
        pass

    compiled = stator.compile(lambda x: x.sigmoid(), backend="eager", fullgraph=True)
    x = torch.zeros(2).as_subclass(Local)
    assert torch.equal(compiled(x), torch.full((2,), 0.5).as_subclass(Local))
    Local.sigmoid = lambda self: self + 3  # type: ignore[method-assign, assignment]
    assert torch.equal(compiled(x), torch.full((2,), 3.0).as_subclass(Local))
