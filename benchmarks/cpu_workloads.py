"""What `benchmarks/cpu.py` measures: fused kernels, small programs and model blocks, each made fresh on request.

A workload is a function of no arguments that returns `(callable, arguments)`; `kind` says how it is run: "inference"
without gradients, "training" as forward, sum of the results, backward, "step" as an in-place update. `bytes_moved` of a
kernel that memory bounds says how many bytes it must read and write at least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Workload:
    """One row of the benchmark."""

    name: str
    kind: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    bytes_moved: Callable[[tuple[Any, ...]], int] | None = None


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


# The fused kernels of DESIGN.md's list


def rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = x + residual
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, hidden


KERNELS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "relu(x*2+y)": (lambda x, y: torch.relu(x * 2 + y), lambda: (random(1024, 1024), random(1024, 1024))),
    "gelu*sigmoid": (
        lambda x, y: F.gelu(x * 1.7 + y) * torch.sigmoid(y), lambda: (random(1024, 1024), random(1024, 1024))
    ),
    "exp": (torch.exp, lambda: (random(1024, 1024),)),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (random(1024, 1024),)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (768,), w, b), lambda: (random(512, 768), random(768), random(768))
    ),
    "residual+rms norm": (rms_norm, lambda: (random(2048, 1024), random(2048, 1024), random(1024))),
    "sum of 4M": (lambda x: x.sum(), lambda: (random(4096, 1024),)),
    "broadcast": (lambda x, y: x * y + x, lambda: (random(1024, 1), random(1024))),
    "cross-entropy": (F.cross_entropy, lambda: (random(512, 32000), torch.randint(0, 32000, (512,)))),
    "transpose+add": (lambda x, y: x.t() + y, lambda: (random(2048, 2048), random(2048, 2048))),
}  # fmt: skip


# Models


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers)


class Attention(nn.Module):
    """Causal self-attention written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, -1)
        )
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        mask = torch.ones(time, time, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, width))


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList(GPTBlock(256, 8) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    """RMS norm, rotary attention with few key heads, gated feed-forward."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.w1, self.w2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width // 2, bias=False)
        self.v = nn.Linear(width, width // 2, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 1408, bias=False), nn.Linear(width, 1408, bias=False)
        self.down = nn.Linear(1408, width, bias=False)

    @staticmethod
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        hidden = self.norm(x, self.w1)
        q = self.rotate(self.q(hidden).view(batch, time, self.heads, self.size).transpose(1, 2), cos, sin)
        k = self.rotate(self.k(hidden).view(batch, time, self.heads // 2, self.size).transpose(1, 2), cos, sin)
        v = self.v(hidden).view(batch, time, self.heads // 2, self.size).transpose(1, 2)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, time, width))
        hidden = self.norm(x, self.w2)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


def _called(model: nn.Module) -> Callable[..., Any]:
    """A function that calls the module: compiling a module itself would change it for the other contenders."""
    return lambda *arguments: model(*arguments)


def llama() -> tuple[Any, tuple[Any, ...]]:
    angles = torch.outer(torch.arange(128.0), 1 / 10000 ** (torch.arange(0, 64, 2) / 64)).repeat(1, 2)
    arguments = (random(2, 128, 512), angles.cos(), angles.sin())
    return _called(LlamaBlock().bfloat16()), tuple(argument.bfloat16() for argument in arguments)


def bert() -> tuple[Any, tuple[Any, ...]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=1000,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    return lambda ids: model(ids).last_hidden_state, (torch.randint(0, 1000, (4, 128)),)


def resnet() -> tuple[Any, tuple[Any, ...]]:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], layer_type="basic")
    model = ResNetModel(config)
    return lambda x: model(x).last_hidden_state, (random(4, 3, 64, 64),)


def t5() -> tuple[Any, tuple[Any, ...]]:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=256, d_kv=32, d_ff=1024, num_layers=1, num_heads=8, vocab_size=1000, dropout_rate=0.0)
    model = T5EncoderModel(config)
    return lambda ids: model(ids).last_hidden_state, (torch.randint(0, 1000, (4, 128)),)


def adam() -> tuple[Any, tuple[Any, ...]]:
    """One Adam step over 100 parameters, written as its formula."""
    parameters = [random(64, 64) for _ in range(100)]
    gradients = [random(64, 64) for _ in range(100)]
    first = [torch.zeros(64, 64) for _ in range(100)]
    second = [torch.zeros(64, 64) for _ in range(100)]

    def step(p: Any, g: Any, m: Any, v: Any) -> None:
        for weight, gradient, mean, square in zip(p, g, m, v, strict=True):
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            weight.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-3)

    return step, (parameters, gradients, first, second)


def adam_optimizer() -> tuple[Any, tuple[Any, ...]]:
    """A step of torch.optim.Adam over 100 parameters."""
    parameters = [nn.Parameter(random(64, 64)) for _ in range(100)]
    for parameter in parameters:
        parameter.grad = random(64, 64)
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    return optimizer.step, ()


def small_products() -> tuple[Any, tuple[Any, ...]]:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.relu(x @ w)
        return x

    return run, (random(8, 8), random(8, 8))


def _kernel(name: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    function, arguments = KERNELS[name]
    return lambda: (function, arguments())


def _moved(arguments: tuple[Any, ...]) -> int:
    """Bytes of the arguments and of results as large as the first: every tensor once."""
    return sum(argument.nbytes for argument in arguments) + arguments[0].nbytes


# Kernels that memory bounds, and the bytes each must move.
BOUND_BY_MEMORY: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "relu(x*2+y)": _moved,
    "softmax": _moved,
    "layer norm": _moved,
    "residual+rms norm": lambda arguments: _moved(arguments) + arguments[0].nbytes,
    "sum of 4M": lambda arguments: arguments[0].nbytes,
    "cross-entropy": lambda arguments: arguments[0].nbytes,
    "transpose+add": _moved,
}


MODELS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "mlp": lambda: (_called(mlp()), (random(64, 256),)),
    "gpt": lambda: (_called(GPT()), (torch.randint(0, 1000, (4, 128)),)),
    "bert": bert,
    "resnet": resnet,
    "llama block bf16": llama,
    "t5 block": t5,
}

WORKLOADS: list[Workload] = [
    *(Workload(name, "inference", _kernel(name), BOUND_BY_MEMORY.get(name)) for name in KERNELS),
    Workload("20 x (mm 8x8, relu)", "inference", small_products),
    *(Workload(name, "inference", make) for name, make in MODELS.items()),
    *(Workload(f"{name}, training", "training", make) for name, make in MODELS.items()),
    Workload("adam, 100 parameters", "step", adam),
    Workload("adam optimizer, 100 parameters", "step", adam_optimizer),
]
