"""Higher-order operators as plain Python, for graphs that run as they were captured.

Contract. `as_plain(module)` gives a module that computes what `module` does, its higher-order operators replaced by the
Python they stand for: a branch, a loop, a checkpointed call. Autograd then sees what it would see of the eager program.
Torch's own implementations differentiate by importing its compiler, which this project stands beside.
A module without such operators comes back as it is; the module given is never changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator


def conditional(pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any] = ()) -> Any:
    """`cond`."""
    return true_fn(*operands) if pred else false_fn(*operands)


def loop(cond_fn: Any, body_fn: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> tuple[Any, ...]:
    """`while_loop`; what it gives is never what it was given."""
    values = tuple(carried)
    turned = False
    while cond_fn(*values, *additional):
        values, turned = tuple(body_fn(*values, *additional)), True
    return values if turned else tuple(value.clone() for value in values)


def mapped(function: Any, xs: Sequence[Any], shared: Sequence[Any] = ()) -> tuple[Any, ...]:
    """`map`: over the first dimension."""
    rows = [function(*[x[place] for x in xs], *shared) for place in range(xs[0].shape[0])]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def scanned(function: Any, init: Sequence[Any], xs: Sequence[Any], shared: Sequence[Any] = ()) -> tuple[Any, ...]:
    """`scan`: final carries, then stacked results."""
    carry = tuple(init)
    rows = []
    for place in range(xs[0].shape[0]):
        results = function(*carry, *[x[place] for x in xs], *shared)
        carry = tuple(results[: len(init)])
        rows.append(results[len(init) :])
    return (*carry, *[torch.stack(column) for column in zip(*rows, strict=True)])


def checkpointed(function: Any, *operands: Any, preserve_rng_state: bool = True, **_: Any) -> Any:
    """`checkpoint`, not reentrant: what the backward needs is made again by running the function again.

    Torch's own reads a setting of its compiler in each call, which imports the compiler.
    """
    if not torch.is_grad_enabled():
        return function(*operands)
    again = _Again(function, operands, preserve_rng_state)
    with torch.autograd.graph.saved_tensors_hooks(again.number, again.tensor):
        return function(*operands)


class _Again:
    """Runs a checkpointed function again when its backward asks for what it saved."""

    def __init__(self, function: Any, operands: Sequence[Any], preserve_random: bool) -> None:
        self.function = function
        self.operands = operands
        self.count = 0
        self.kept: dict[int, torch.Tensor] = {}
        kinds = {operand.device.type for operand in operands if isinstance(operand, torch.Tensor)}
        self.devices = list(range(torch.cuda.device_count())) if "cuda" in kinds else []
        self.random = torch.get_rng_state() if preserve_random else None
        self.cuda_random = [torch.cuda.get_rng_state(device) for device in self.devices] if preserve_random else []
        self.autocast = [
            torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in ("cpu", *(("cuda",) if self.devices else ()))
        ]

    def number(self, tensor: torch.Tensor) -> int:
        self.count += 1
        return self.count - 1

    def tensor(self, number: int) -> torch.Tensor:
        if number not in self.kept:
            self._run()
        return self.kept.pop(number)

    def _run(self) -> None:
        made: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            made.append(tensor.detach())
            return tensor

        operands = [
            value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
            for value in self.operands
        ]
        with contextlib.ExitStack() as stack:
            if self.random is not None:
                stack.enter_context(torch.random.fork_rng(self.devices))
                torch.set_rng_state(self.random)
                for device, state in zip(self.devices, self.cuda_random, strict=True):
                    torch.cuda.set_rng_state(state, device)
            for mode in self.autocast:
                stack.enter_context(mode)
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor))
            self.function(*operands)
        self.kept = dict(enumerate(made))


PLAIN: dict[str, Callable[..., Any]] = {
    "cond": conditional,
    "while_loop": loop,
    "map_impl": mapped,
    "scan": scanned,
    "tag_activation_checkpoint": checkpointed,
}


def as_plain(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """See the module."""
    if not any(isinstance(node.target, HigherOrderOperator) for node in module.graph.nodes):
        return module
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    attributes: dict[str, Any] = {}
    for node in module.graph.nodes:
        copied = known[node] = graph.node_copy(node, known.__getitem__)
        if isinstance(node.target, HigherOrderOperator):
            copied.target = PLAIN.get(node.target.name(), node.target)
        elif node.op == "get_attr":
            value = getattr(module, node.target)
            attributes[node.target] = as_plain(value) if isinstance(value, torch.fx.GraphModule) else value
        elif node.op == "call_module":
            attributes[node.target] = getattr(module, node.target)
    return torch.fx.GraphModule(attributes, graph, type(module).__name__)
