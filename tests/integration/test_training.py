"""Whole training steps inside one compiled function: equal to eager, few graphs, one break where gradients are made."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import stator
from stator import events
from stator.runtime.region import all_regions

STEPS = 5


class Run:
    """What a compiled function came to: its breaks by reason, and how many graphs there are."""

    def __init__(self):
        self.breaks = []
        self.fallbacks = []
        self.stop = events.subscribe(self.note, {"graph_break", "fallback"})

    def note(self, event):
        (self.breaks if event.kind == "graph_break" else self.fallbacks).append(event.fields["reason"])

    @property
    def compiles(self):
        return sum(len(place.records) for region in all_regions() for place in region.places())


@pytest.fixture
def run():
    stator.reset()
    made = Run()
    yield made
    made.stop()
    stator.reset()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batches(count=STEPS):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(3, 8, generator=generator), torch.randn(3, 4, generator=generator)) for _ in range(count)]


def plain_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train_both(step, make_optimizer, backend="eager", model=network, **extra):
    """Train two equal models, one compiled; returns them with their optimizers and the losses."""
    ours, theirs = model(), model()
    first, second = make_optimizer(ours.parameters()), make_optimizer(theirs.parameters())
    compiled = stator.compile(step, backend=backend)
    losses = [(compiled(ours, first, x, y, **extra), step(theirs, second, x, y, **extra)) for x, y in batches()]
    return ours, theirs, first, second, losses


def assert_equal_training(ours, theirs, first, second, losses, exact=True):
    tolerance = dict(rtol=0, atol=0) if exact else dict(rtol=1e-5, atol=1e-6)
    for ours_loss, theirs_loss in losses:
        torch.testing.assert_close(ours_loss, theirs_loss, **tolerance)
    for (name, one), two in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, msg=lambda text, name=name: f"{name}: {text}", **tolerance)
    mine, other = first.state_dict(), second.state_dict()
    assert mine["param_groups"] == other["param_groups"]
    assert mine["state"].keys() == other["state"].keys()
    for key, state in mine["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(value, other["state"][key][name], **tolerance)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "sgd_foreach": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, foreach=True)),
    "adam": (torch.optim.Adam, dict(lr=0.01)),
    "adam_decay": (torch.optim.Adam, dict(lr=0.01, weight_decay=0.1)),
    "adam_amsgrad": (torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
    "adam_foreach": (torch.optim.Adam, dict(lr=0.01, foreach=True)),
    "adam_tensor_rate": (torch.optim.Adam, dict(lr=torch.tensor(0.01))),
    "adamw": (torch.optim.AdamW, dict(lr=0.01)),
    "adamw_foreach": (torch.optim.AdamW, dict(lr=0.01, foreach=True)),
    "adamw_maximize": (torch.optim.AdamW, dict(lr=0.01, maximize=True)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=0.01)),
    "rmsprop_centered": (torch.optim.RMSprop, dict(lr=0.01, momentum=0.9, centered=True)),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.01, lr_decay=0.1)),
    "adadelta": (torch.optim.Adadelta, dict(lr=0.5)),
    "adamax": (torch.optim.Adamax, dict(lr=0.01)),
    "asgd": (torch.optim.ASGD, dict(lr=0.01)),
    "nadam": (torch.optim.NAdam, dict(lr=0.01)),
    "radam": (torch.optim.RAdam, dict(lr=0.01)),
    "rprop": (torch.optim.Rprop, dict(lr=0.01)),
}
# Optimizers that branch on their step count, which is a tensor.
READ_VALUES = ("asgd", "radam")


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whole_step(run, name, backend):
    kind, options = OPTIMIZERS[name]
    result = train_both(plain_step, lambda parameters: kind(parameters, **options), backend)
    assert_equal_training(*result)
    if name not in READ_VALUES:
        assert set(run.breaks) == {"gradient_call"}
        assert run.compiles <= 4


def test_a_process_that_ran_torchs_own_compiler_breaks_no_more(run):
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # marks its optimizers for ever
    run.breaks.clear()
    train_both(plain_step, lambda parameters: torch.optim.SGD(parameters, lr=0.1), "eager")
    assert set(run.breaks) == {"gradient_call"}


if __name__ == "__main__":
    raise SystemExit(subprocess.call([sys.executable, "-m", "pytest", __file__]))
