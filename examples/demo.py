"""A small GPT, eager and compiled: inference and a whole training step on the CPU (`make demo`)."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn

import stator
from stator import events

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 256, 64, 128, 4, 4, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.before_feed = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.feed(self.before_feed(x))


class SmallGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) * math.sqrt(WIDTH) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def inference(model: SmallGPT, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens).softmax(-1)


def training(model: SmallGPT, tokens: torch.Tensor) -> torch.Tensor:
    """Forward and loss; the backward pass runs where the caller says so."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def training_step(loss_of: Callable[..., torch.Tensor], model: SmallGPT, tokens: torch.Tensor) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, tokens)
    loss.backward()
    return loss.detach()


class Follow:
    """What the compiler says while it works: counts of graphs and breaks, and a bar that moves with its stages."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, transient=True)
        self.graphs = self.breaks = 0
        self.task = self.bar.add_task("", total=None, visible=False)

    def receive(self, event: events.Event) -> None:
        self.graphs += event.kind == "graph"
        self.breaks += event.kind == "graph_break"
        if event.kind == "stage":
            self.bar.update(self.task, description=f"compiled: {event.fields['name']}", advance=1)
        elif event.kind == "progress":
            fields = event.fields
            self.bar.update(
                self.task, description=str(fields["stage"]), completed=fields["done"], total=fields["total"] or None
            )

    def run(self, what: str, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
        """Result and seconds of a first call."""
        self.graphs = self.breaks = 0
        unsubscribe = events.subscribe(self.receive, frozenset({"graph", "graph_break", "stage", "progress"}))
        self.bar.reset(self.task, description=what, visible=True, total=None)
        try:
            with self.bar:
                return timed(work)
        finally:
            unsubscribe()


def timed(work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def alternating(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The shortest of many calls of each, in turns, so that both meet the same machine."""
    best = [math.inf, math.inf]
    for _ in range(rounds):
        for index, work in enumerate((first, second)):
            began = time.perf_counter()
            work()
            best[index] = min(best[index], time.perf_counter() - began)
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="calls measured for each row")
    rounds = parser.parse_args().rounds
    console = Console()
    torch.manual_seed(0)
    model = SmallGPT()
    tokens = torch.randint(0, VOCABULARY, (BATCH, CONTEXT))
    size = sum(parameter.numel() for parameter in model.parameters())
    console.print(f"GPT of {LAYERS} layers, {size / 1e6:.1f} M parameters, {BATCH} x {CONTEXT} tokens", style="bold")

    follow = Follow(console)
    compiled_inference = stator.compile(inference)
    compiled_loss = stator.compile(training)
    pairs = (
        ("inference", lambda: inference(model, tokens), lambda: compiled_inference(model, tokens)),
        (
            "training step",
            lambda: training_step(training, model, tokens),
            lambda: training_step(compiled_loss, model, tokens),
        ),
    )
    table = Table("", "", "first call", "per call", "graphs", "breaks", "faster")
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[2:]:
        column.justify = "right"
    difference = 0.0
    for name, eager, compiled in pairs:
        expected, eager_first = timed(eager)
        result, first = follow.run(f"compiling: {name}", compiled)
        eager_call, call = alternating(eager, compiled, rounds)
        difference = max(difference, (expected - result).abs().max().item())
        table.add_row(name, "eager", f"{eager_first:.2f} s", f"{eager_call * 1e3:.2f} ms", "", "", "")
        table.add_row(
            "", "stator", f"{first:.2f} s", f"{call * 1e3:.2f} ms", str(follow.graphs), str(follow.breaks),
            f"{eager_call / call:.2f} x", end_section=True,
        )  # fmt: skip
    console.print(table)
    console.print(f"Shortest of {rounds} calls; largest difference from eager's results: {difference:.1e}")


if __name__ == "__main__":
    main()
