"""Ahead-of-time autograd beside torch's own: stage time, runtime wrapper, memory kept for the backward.

    python benchmarks/aot.py [--json FILE]

Everything is measured in one process, alternating, minimum of several runs; what counts is the ratio.

stage     GPT of 6 blocks, training: torch-level graph in, functional forward and backward graphs out. Ours is the
          backend call itself, both graphs made; torch's is torch.compile(backend="aot_eager") minus backend="eager".
wrapper   one training step of a graph with 50 parameters whose compiled forward and backward do nothing but return
          tensors made beforehand, minus the same step through the barest hand-written autograd.Function with the
          same inputs, kept tensors and results (what autograd itself costs).
memory    bytes kept for the backward beyond parameters, by storage.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

import stator.aot as aot
from stator.aot.backends import run_as_is


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.attend(self.first(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.project(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.narrow(F.gelu(self.widen(self.second(x)))))


class GPT(nn.Module):
    def __init__(
        self, vocabulary: int = 256, width: int = 64, heads: int = 4, blocks: int = 6, length: int = 32
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def gpt() -> tuple[GPT, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (2, 32))
    return GPT(), (tokens, tokens.roll(1, 1))


def least(function: Callable[[], Any], repeat: int) -> float:
    """Seconds of the fastest of several runs, after one to warm up."""
    function()
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def torch_level(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The graph torch's frontend hands to backends."""
    found: list[Any] = []

    def keep(module: torch.fx.GraphModule, example: list[Any]) -> Any:
        found.extend([module, example])
        return module.forward

    torch._dynamo.reset()
    torch.compile(model, backend=keep, fullgraph=True)(*inputs)
    return found[0], found[1]


def both_graphs(backend: Any, module: torch.fx.GraphModule, example: list[Any]) -> None:
    """Compile, the backward too, which would otherwise wait for its first use."""
    compiled = backend(module, example)
    compiled.plan.ensure_backward()


def stage(repeat: int) -> dict[str, float]:
    model, inputs = gpt()
    module, example = torch_level(model, inputs)
    ours = {
        "ours, kept as in eager": least(lambda: both_graphs(aot.aot_eager, module, example), repeat),
        "ours, min-cut": least(lambda: both_graphs(aot.backend(run_as_is), module, example), repeat),
    }

    def first_call(backend: str) -> Callable[[], Any]:
        def run() -> None:
            torch._dynamo.reset()
            fresh, values = gpt()
            torch.compile(fresh, backend=backend, fullgraph=True)(*values).backward()

        return run

    whole = min(least(first_call("aot_eager"), 1) for _ in range(repeat))
    front = min(least(first_call("eager"), 1) for _ in range(repeat))
    return {**ours, "torch": whole - front}


def wrapper(repeat: int) -> dict[str, float]:
    parameters = [nn.Parameter(torch.randn(4, 4)) for _ in range(50)]
    x, result = torch.randn(4, 4), torch.randn(4, 4)
    gradients = [torch.randn(4, 4) for _ in parameters]
    graph = torch.fx.Graph()
    total = graph.placeholder("x")
    for place in range(50):
        total = graph.call_function(torch.mul, (total, graph.placeholder(f"p{place}")))
    graph.output((total,))
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in nodes:
        first.prepend(node)
    module = torch.fx.GraphModule({}, graph)
    kept: list[int] = []

    def forward_stub(functional: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        outputs = next(node for node in functional.graph.nodes if node.op == "output").args[0]
        inputs = {node: place for place, node in enumerate(functional.graph.find_nodes(op="placeholder"))}
        values = [result, *[torch.randn(4, 4) for _ in outputs[1:]]]
        passed = [(place, inputs[node]) for place, node in enumerate(outputs) if node in inputs]
        kept.append(len(outputs) - 1)

        def run(*args: Any) -> Any:
            made = list(values)
            for place, number in passed:
                made[place] = args[number]
            return made

        return run

    def backward_stub(functional: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        count = len(next(node for node in functional.graph.nodes if node.op == "output").args[0])
        return lambda *args: (*[None] * (count - 50), *gradients) if count > 50 else tuple(gradients)

    ours = aot.backend(forward_stub, backward_stub, partition="default")(module, [x, *parameters])
    boxed = {name: (lambda compile_: lambda graph, example: make_boxed_func(compile_(graph, example)))(stub)
             for name, stub in (("forward", forward_stub), ("backward", backward_stub))}  # fmt: skip
    theirs = aot_module_simplified(module, [x, *parameters], boxed["forward"], boxed["backward"])
    middle = [torch.randn(4, 4) for _ in range(49)]

    class Bare(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.save_for_backward(*args, *middle)
            ctx.set_materialize_grads(False)
            return result.detach()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            ctx.saved_tensors  # noqa: B018
            return (None, *gradients)

    weight = torch.ones(4, 4)
    runs = {
        "ours": lambda: ours(x, *parameters)[0],
        "torch": lambda: theirs(x, *parameters)[0],
        "bare": lambda: Bare.apply(x, *parameters),
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeat * 100):
        for name, run in runs.items():

            def many(run: Callable[[], Any] = run) -> None:
                for _ in range(10):
                    run().backward(weight)

            best[name] = min(best[name], least(many, 1) / 10)
    return {"ours": best["ours"] - best["bare"], "torch": best["torch"] - best["bare"], "bare step": best["bare"]}


def kept_bytes(run: Callable[[], Any], parameters: set[int]) -> int:
    storages: dict[int, int] = {}
    alive: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(size for key, size in storages.items() if key not in parameters)


def memory() -> dict[str, float]:
    model, inputs = gpt()
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    module, example = torch_level(model, inputs)
    found: dict[str, float] = {"eager": kept_bytes(lambda: model(*inputs), own)}
    for name, backend in (("ours, aot_eager", aot.aot_eager), ("ours, min-cut", aot.aot_eager_decomp_partition)):
        compiled = backend(module, example)
        found[name] = kept_bytes(lambda compiled=compiled: compiled(*example), own)
    torch._dynamo.reset()
    theirs = torch.compile(model, backend="aot_eager_decomp_partition", fullgraph=True)
    theirs(*inputs)
    found["torch, min-cut"] = kept_bytes(lambda: theirs(*inputs), own)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", help="also write the figures to this file")
    arguments.add_argument("--repeat", type=int, default=5)
    options = arguments.parse_args()
    figures = {"stage": stage(options.repeat), "wrapper": wrapper(options.repeat), "memory": memory()}
    for name, value in figures["stage"].items():
        print(f"stage    {name:24}{value * 1e3:10.1f} ms  {value / figures['stage']['torch']:8.3f} of torch's")
    for name, value in figures["wrapper"].items():
        print(f"wrapper  {name:24}{value * 1e6:10.1f} µs")
    for name, value in figures["memory"].items():
        print(f"memory   {name:24}{value / 1024:10.1f} KiB {value / figures['memory']['eager']:8.3f} of eager's")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
