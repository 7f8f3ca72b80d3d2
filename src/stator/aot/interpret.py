"""Runs a torch-level graph under a recorder, as the user's program would have run it.

Contract. `interpret(recorder, module, values)` executes the nodes of a graph module in order on abstract tensors;
grad mode and autocast regions the graph enters are entered for real and left as they were found. Every operator
recorded belongs to the user's line of its node (`meta["stack_trace"]`). `lift(module)` lists the tensors a module
brings along itself, which become arguments like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
import torch.utils.checkpoint
from torch._ops import HigherOrderOperator

from stator.aot import higher_order
from stator.aot.checkpointing import run_checkpointed
from stator.aot.recorder import Recorder


def lift(module: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """Tensors the module's graph (or a graph inside it) fetches by name, each once."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()

    def add(path: str, tensor: torch.Tensor) -> None:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[path] = tensor

    for prefix, owner in _graph_modules(module):
        for node in owner.graph.nodes:
            if node.op == "get_attr":
                value = attribute(owner, node.target)
                if isinstance(value, torch.Tensor):
                    add(prefix + node.target, value)
            elif node.op == "call_module":
                inner = attribute(owner, node.target)
                if not isinstance(inner, torch.fx.GraphModule):
                    for path, tensor in [*inner.named_parameters(), *inner.named_buffers()]:
                        add(f"{prefix}{node.target}.{path}", tensor)
    return found


def _graph_modules(module: torch.fx.GraphModule, prefix: str = "") -> Iterator[tuple[str, torch.fx.GraphModule]]:
    yield prefix, module
    for name, child in module.named_children():
        if isinstance(child, torch.fx.GraphModule):
            yield from _graph_modules(child, f"{prefix}{name}.")


def attribute(module: torch.nn.Module, path: str) -> Any:
    """What `path` names in `module`."""
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


@contextmanager
def restored_modes() -> Iterator[None]:
    """Leaves grad mode and autocast as they were, whatever a graph sets."""
    grad = torch.is_grad_enabled()
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices]
    cache = torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)


class Interpreter:
    """One run of a graph module (and of the graph modules it calls)."""

    def __init__(self, recorder: Recorder, owned: Mapping[int, Any]) -> None:
        self.recorder = recorder
        self.owned = owned  # id of a real tensor the module owns -> its abstract tensor

    def under(self, recorder: Recorder) -> Interpreter:
        """The same for another recorder (that of a body)."""
        return Interpreter(recorder, self.owned)

    def run(self, module: torch.fx.GraphModule, values: Sequence[Any]) -> Any:
        """The module's result on `values`."""
        environment: dict[torch.fx.Node, Any] = {}
        pending = iter(values)
        recorder = self.recorder
        line: str | None = recorder.stack
        for node in module.graph.nodes:
            if node.op == "placeholder":
                environment[node] = next(pending, node.args[0] if node.args else None)
                continue
            stack = node.meta.get("stack_trace") or line
            if stack != recorder.stack:
                recorder.begin_line(stack)
            if node.op == "output":
                return torch.fx.node.map_arg(node.args[0], environment.__getitem__)
            environment[node] = self.step(module, node, environment)
        return None

    def step(self, module: torch.fx.GraphModule, node: torch.fx.Node, environment: dict[torch.fx.Node, Any]) -> Any:
        """The value of one node."""
        if node.op == "get_attr":
            return self.fetch(attribute(module, str(node.target)))
        args = torch.fx.node.map_arg(node.args, environment.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, environment.__getitem__)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_module":
            return self.call(attribute(module, str(node.target)), args, kwargs)
        if isinstance(node.target, HigherOrderOperator):
            return higher_order.run(self, node.target, args, kwargs)
        if node.target is torch.utils.checkpoint.checkpoint:
            return run_checkpointed(self.recorder, self.function(args[0]), args[1:], kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def call(self, inner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A module the graph calls."""
        if isinstance(inner, torch.fx.GraphModule) and not kwargs:
            return self.run(inner, args)
        tensors = {name: self.fetch(value) for name, value in [*inner.named_parameters(), *inner.named_buffers()]}
        return torch.func.functional_call(inner, tensors, tuple(args), dict(kwargs))

    def function(self, body: Any) -> Callable[..., Any]:
        """A body a graph passes along, as something to call with abstract values."""
        if isinstance(body, torch.nn.Module):
            return lambda *args, **kwargs: self.call(body, args, kwargs)
        found: Callable[..., Any] = body
        return found

    def fetch(self, value: Any) -> Any:
        """The abstract form of something the module holds."""
        if isinstance(value, torch.Tensor):
            found = self.owned.get(id(value))
            return self.recorder.constant(value) if found is None else found
        return value
