"""Random programs over mixed types, shapes and memory layouts whose every step rounds alike wherever it runs.

Contract. `Program(seed)` holds `inputs` and steps that eager accepted; `run(inputs)` computes all values. Steps are
drawn from `STEPS`: a name, how many operands it takes, and a function of those and a small number.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

DTYPES = (
    torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8,
    torch.int8, torch.bool,
)  # fmt: skip
SHAPES = ((4, 6), (6,), (1, 6), (4, 1), (3, 4, 6), (), (4, 6), (1,), (5, 4, 1), (17, 6))
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-42, -1e-40, 3e38, -1.5, 2.5)


def moved(x: torch.Tensor, k: int) -> torch.Tensor:
    return x.transpose(k % x.dim(), -1)


def written(x: torch.Tensor, k: int) -> torch.Tensor:
    copy = x.clone()
    copy[..., k % x.shape[-1]] = 1
    copy.select(0, 0).add_(copy.select(0, -1))
    return copy


def accumulated(x: torch.Tensor, y: torch.Tensor, k: int) -> torch.Tensor:
    copy = x.clone()
    part = copy[k % 2 :]
    part.add_(y)
    part.neg_()
    return copy


STEPS: dict[str, tuple[int, Callable[..., Any]]] = {
    # one value from one
    "neg": (1, lambda x, k: -x),
    "abs": (1, lambda x, k: x.abs()),
    "relu": (1, lambda x, k: x.relu()),
    "square": (1, lambda x, k: x.square()),
    "sign": (1, lambda x, k: x.sign()),
    "floor": (1, lambda x, k: x.floor()),
    "round": (1, lambda x, k: x.round()),
    "plus": (1, lambda x, k: x + k),
    "plus half": (1, lambda x, k: x + 0.5),
    "times": (1, lambda x, k: x * (k - 2)),
    "scaled": (1, lambda x, k: x * 1.7 - 0.3),
    "divided": (1, lambda x, k: x / 3),
    "power": (1, lambda x, k: x ** (k % 4)),
    "clamp": (1, lambda x, k: x.clamp(-k, k)),
    "not": (1, lambda x, k: ~x),
    "is nan": (1, lambda x, k: x.isnan() | x.isinf()),
    "is even": (1, lambda x, k: x % 2 == 0),
    "floored": (1, lambda x, k: x // (k + 1)),
    "shifted": (1, lambda x, k: (x << (k % 4)) >> 1),
    "to": (1, lambda x, k: x.nan_to_num(0, 0, 0).clamp(-100, 100).to(DTYPES[k % len(DTYPES)])),
    "to float": (1, lambda x, k: x.to((torch.float32, torch.bfloat16, torch.float16, torch.float64)[k % 4])),
    "copied": (1, lambda x, k: x.clone()),
    # one from two or three
    "add": (2, lambda x, y, k: x + y),
    "sub": (2, lambda x, y, k: x - y),
    "mul": (2, lambda x, y, k: x * y),
    "div": (2, lambda x, y, k: x / y),
    "maximum": (2, lambda x, y, k: torch.maximum(x, y)),
    "minimum": (2, lambda x, y, k: torch.minimum(x, y)),
    "fmax": (2, lambda x, y, k: torch.fmax(x, y)),
    "less": (2, lambda x, y, k: x < y),
    "equal": (2, lambda x, y, k: (x == y) | (x != x)),
    "both": (2, lambda x, y, k: x & y),
    "either": (2, lambda x, y, k: torch.logical_or(x, y)),
    "where": (3, lambda x, y, z, k: torch.where(x > k - 2, y, z)),
    "masked": (2, lambda x, y, k: x.masked_fill(y > 0, k)),
    "alpha": (2, lambda x, y, k: torch.sub(x, y, alpha=k)),
    "addcmul": (3, lambda x, y, z, k: torch.addcmul(x, y, z, value=k)),
    "copysign": (2, lambda x, y, k: torch.copysign(x, y)),
    # memory
    "moved": (1, moved),
    "flip": (1, lambda x, k: x.flip(k % x.dim())),
    "every second": (1, lambda x, k: x[..., ::2]),
    "rest": (1, lambda x, k: x[1:]),
    "select": (1, lambda x, k: x.select(k % x.dim(), 0)),
    "unsqueeze": (1, lambda x, k: x.unsqueeze(k % (x.dim() + 1))),
    "squeeze": (1, lambda x, k: x.squeeze()),
    "flat": (1, lambda x, k: x.reshape(-1)),
    "folded": (1, lambda x, k: x.reshape(x.shape[0], 2, -1)),
    "expand": (1, lambda x, k: x.expand(3, *x.shape)),
    "rolled": (1, lambda x, k: x.roll(k, 0)),
    "padded": (1, lambda x, k: torch.nn.functional.pad(x, (1, k), value=2)),
    "lower": (1, lambda x, k: x.tril(k - 2)),
    "cat": (2, lambda x, y, k: torch.cat([x, y], k % x.dim())),
    "stack": (2, lambda x, y, k: torch.stack([x, y], k % (x.dim() + 1))),
    "repeat": (1, lambda x, k: x.repeat(*([2] * x.dim()))),
    "diagonal": (1, lambda x, k: x.diagonal() + 1),
    "unfold": (1, lambda x, k: x.unfold(-1, 2, 1) * 1),
    "channels": (1, lambda x, k: x[None].contiguous(memory_format=torch.channels_last)),
    # places
    "picked": (1, lambda x, k: x[torch.tensor([0, -1, 0])]),
    "gather": (2, lambda x, y, k: x.gather(-1, (y.to(torch.int64) % x.shape[-1]))),
    "by index": (1, lambda x, k: x.index_select(-1, torch.tensor([k % x.shape[-1], 0]))),
    "written": (1, written),
    "accumulated": (2, accumulated),
    # reductions that round nothing
    "amax": (1, lambda x, k: x.amax(k % x.dim(), keepdim=bool(k % 2))),
    "amin": (1, lambda x, k: x.amin()),
    "any": (1, lambda x, k: x.any(k % x.dim())),
    "all": (1, lambda x, k: (x > 0).all()),
    "argmax": (1, lambda x, k: x.argmax(k % x.dim())),
    "max with place": (1, lambda x, k: x.max(k % x.dim())[1]),
    "count": (1, lambda x, k: (x > 0).sum(k % x.dim())),
    "product": (1, lambda x, k: x.to(torch.int64).prod(-1) if not x.is_floating_point() else x.amax(-1)),
    "running": (1, lambda x, k: (x > 0).cumsum(k % x.dim())),
    "sorted": (1, lambda x, k: x.sort(k % x.dim(), stable=True)[0] * 1),
}  # fmt: skip
LARGEST = 4096
EXTREMES = frozenset(
    {"relu", "clamp", "maximum", "minimum", "fmax", "amax", "amin", "product", "argmax", "max with place", "sorted"}
)


class Program:
    def __init__(self, seed: int, length: int = 12) -> None:
        self.random = random.Random(seed)
        self.inputs = [self._input(seed + number) for number in range(3)]
        self.steps: list[tuple[str, tuple[int, ...], int]] = []
        values = list(self.inputs)
        for _ in range(length * 3):
            if len(self.steps) < length:
                self._try(values)

    def _input(self, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape, dtype = self.random.choice(SHAPES), self.random.choice(DTYPES)
        made = torch.randn(shape, generator=generator) * 4
        if dtype.is_floating_point:
            flat = made.view(-1)
            for place, value in enumerate(SPECIAL[: flat.numel() // 2]):
                flat[place] = value
        made = made.to(dtype) if dtype.is_floating_point else made.abs().to(dtype)
        if made.dim() > 1 and self.random.random() < 0.4:
            made = made.transpose(0, -1)
        return made

    def _undefined(self, name: str, chosen: list[torch.Tensor], number: int) -> bool:
        """Whether eager's own bits hang on how the memory lies: of two zeros either may be the greater one; products
        that are added are rounded before in some layouts only."""
        if name in EXTREMES and any(value.is_floating_point() and (value == 0).any() for value in chosen):
            return any((value.signbit() & (value == 0)).any() for value in chosen if value.is_floating_point())
        if name == "copysign" and chosen[1].is_floating_point() and chosen[1].isnan().any():
            return True  # the sign of NaN
        small = any(value.dtype in (torch.float16, torch.bfloat16) for value in chosen)
        alike = all(value.is_contiguous() and value.shape == chosen[0].shape for value in chosen)
        return (name == "alpha" and small and number != 1) or (name == "addcmul" and not alike)

    def _try(self, values: list[torch.Tensor]) -> None:
        """One more step, if eager takes it and the result is of use."""
        name = self.random.choice(sorted(STEPS))
        count, function = STEPS[name]
        chosen = tuple(self.random.randrange(len(values)) for _ in range(count))
        number = self.random.randrange(5)
        if self._undefined(name, [values[place] for place in chosen], number):
            return
        try:
            made = function(*(values[place] for place in chosen), number)
        except (RuntimeError, IndexError, ZeroDivisionError, TypeError, NotImplementedError):
            return
        if made.numel() <= LARGEST:
            values.append(made)
            self.steps.append((name, chosen, number))

    def run(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        values = list(inputs)
        for name, chosen, number in self.steps:
            values.append(STEPS[name][1](*(values[place] for place in chosen), number))
        return values[len(inputs) :]

    def text(self) -> str:
        lines = [f"x{k} = {value.dtype} {tuple(value.shape)} {value.stride()}" for k, value in enumerate(self.inputs)]
        for number, (name, chosen, argument) in enumerate(self.steps):
            lines.append(f"x{number + len(self.inputs)} = {name}({', '.join(f'x{k}' for k in chosen)}; {argument})")
        return "\n".join(lines)


def difference(found: torch.Tensor, expected: torch.Tensor) -> str:
    """What distinguishes two values bit for bit (any NaN is any other), type and layout included; "" if nothing."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype} {tuple(found.shape)}, eager has {expected.dtype} {tuple(expected.shape)}"
    for size, mine, theirs in zip(found.shape, found.stride(), expected.stride(), strict=True):
        if size > 1 and mine != theirs and found.numel():
            return f"strides {found.stride()}, eager has {expected.stride()}"
    same = torch.equal(found.nan_to_num(7), expected.nan_to_num(7)) if found.is_floating_point() else True
    same = same and (torch.equal(found, expected) if not found.is_floating_point() else True)
    if same and found.is_floating_point():
        number = ~expected.isnan()
        same = torch.equal(found.isnan(), expected.isnan())
        same = same and torch.equal(found.signbit() & number, expected.signbit() & number)
    return "" if same else f"{found.flatten()[:8].tolist()}, eager has {expected.flatten()[:8].tolist()}"


def failure(seed: int, compiled: Callable[..., Any]) -> str:
    """What is wrong with the compiled program of a seed; "" if nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = Program(seed)
        expected = program.run(*(value.clone(memory_format=torch.preserve_format) for value in program.inputs))
        found = compiled(program.run, *program.inputs)(*program.inputs)
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        text = difference(mine, theirs)
        if text:
            return f"seed {seed}: x{number + len(program.inputs)} is {text}\n{program.text()}"
    return ""
