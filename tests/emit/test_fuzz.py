"""Random graphs of ATen operators, compared with eager: bit for bit without elementary functions, else closely."""

import os

import hypothesis.strategies as st
import pytest
import torch
from cpu_graphs import compiled
from hypothesis import HealthCheck, given, settings
from mixed_programs import failure

from stator import aot, config
from stator.emit.cpu import Options, compile_graph
from stator.runtime.program import ProgramBuilder

OPTIONS = Options(ProgramBuilder)

EXAMPLES = int(os.environ.get("STATOR_FUZZ_EXAMPLES", "40"))
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-42, -1e-40, 3.4e38)

# name -> (operands, function); all of these round the same way wherever they run
EXACT = {
    "add": (2, torch.add),
    "sub": (2, torch.sub),
    "mul": (2, torch.mul),
    "div": (2, torch.div),
    "maximum": (2, torch.maximum),
    "minimum": (2, torch.minimum),
    "neg": (1, torch.neg),
    "abs": (1, torch.abs),
    "relu": (1, torch.relu),
    "floor": (1, torch.floor),
    "round": (1, torch.round),
    "square": (1, torch.square),
    "scale": (1, lambda x: x * 1.7 + 0.3),
    "where": (2, lambda x, y: torch.where(x > y, x, y * 2)),
    "clamp": (1, lambda x: x.clamp(-0.5, 2.0)),
    "copysign": (2, torch.copysign),
    "bfloat16": (1, lambda x: (x.bfloat16() * 1.3 + 2).float()),
    "half": (1, lambda x: (x.half() / 3 - 1).float()),
    "integer": (1, lambda x: (x.nan_to_num(0, 0, 0).clamp(-100, 100).to(torch.int64) * 3 - 7).float()),
    "boolean": (2, lambda x, y: ((x > 0) & (y <= x) | ~(y != 0)).float()),
    "flip": (1, lambda x: x.flip(0)),
    "transpose": (1, lambda x: x.transpose(0, 1) if x.dim() == 2 and x.shape[0] == x.shape[1] else x + 1),
    "reshape": (1, lambda x: x.reshape(-1).reshape(x.shape) - 1),
    "slice": (1, lambda x: torch.cat([x[:1], x[1:] * 2], 0)),
    "amax": (1, lambda x: x - x.amax(-1, keepdim=True)),
    "stacked rows": (
        2, lambda x, y: x + torch.stack([x.amax(-1) * 2, y.amin(-1), x.amax(-1)], -1).amin(-1, keepdim=True)
    ),
    "any": (1, lambda x: (x > 0).any(-1, keepdim=True).to(x.dtype) + x),
    "argmax": (1, lambda x: x.argmax(-1, keepdim=True).to(x.dtype) + x),
    "pad": (1, lambda x: torch.nn.functional.pad(x, (1, 2), value=3.0)[..., 1:-2] * 1),
    "expand": (1, lambda x: x[:1].expand(x.shape) + x),
    "in place": (2, lambda x, y: x.clone().add_(y).mul_(2)),
    "alpha": (2, lambda x, y: torch.add(x, y, alpha=3)),
}  # fmt: skip
INEXACT = {
    "sqrt": (1, lambda x: torch.sqrt(x.abs())),  # eager calls MKL, which is off by one in the last place now and then
    "exp": (1, lambda x: torch.exp(x.clamp(-20, 20))),
    "tanh": (1, torch.tanh),
    "sigmoid": (1, torch.sigmoid),
    "gelu": (1, torch.nn.functional.gelu),
    "softmax": (1, lambda x: torch.softmax(x.nan_to_num(0, 1, -1).clamp(-50, 50), -1)),
    "layer norm": (
        1, lambda x: torch.nn.functional.layer_norm(x.nan_to_num(0, 1, -1).clamp(-50, 50), x.shape[-1:], eps=1e-2)
    ),
    "sum": (1, lambda x: x.nan_to_num(0, 1, -1).clamp(-50, 50).sum(0, keepdim=True) + x),
    "mean": (1, lambda x: x.nan_to_num(0, 1, -1).clamp(-50, 50).mean(-1, keepdim=True) * x),
    "var": (1, lambda x: x.nan_to_num(0, 1, -1).clamp(-50, 50).var(-1, keepdim=True, correction=0) + x),
}  # fmt: skip
SHAPES = [(7,), (3, 5), (16, 16), (4, 33), (2, 3, 17), (1, 40), (65, 2)]


@st.composite
def programs(draw, names):
    shape = draw(st.sampled_from(SHAPES))
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from(sorted(names)), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=9
        )
    )
    return shape, steps, draw(st.integers(0, 2**20))


def inputs_for(shape, seed, special):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator) * 3 for _ in range(2)]
    if special:
        flat = made[0].view(-1)
        for place, value in enumerate(SPECIAL[: flat.numel()]):
            flat[place] = value
    strided = torch.randn((*shape, 2), generator=generator)[..., 0]
    return [*made, strided]


def function_of(steps, table):
    def run(*inputs):
        values = list(inputs)
        for name, first, second in steps:
            count, function = table[name]
            chosen = [values[first % len(values)], values[second % len(values)]][:count]
            values.append(function(*chosen))
        return values[len(inputs) :][-3:]

    return run


def check(program, table, special, **tolerance):
    shape, steps, seed = program
    inputs = inputs_for(shape, seed, special)
    function = function_of(steps, table)
    expected = function(*inputs)
    with config.patch(strict=True):
        found = compiled(function, *inputs)(*inputs)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, **tolerance)


@pytest.mark.parametrize("first", range(0, EXAMPLES * 2, 40))
def test_mixed_programs(first):
    """Types, layouts, places and writes mixed, to the last bit; a failure names its seed."""
    with config.patch(strict=True):
        found = [failure(seed, functional) for seed in range(first, min(first + 40, EXAMPLES * 2))]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.xfail(strict=True, reason="two results over one memory, a slice of which was turned by t_(): setStorage")
def test_a_slice_turned_in_place():
    def turned(x):
        copy = x.clone()
        copy[1:].add_(1).t_()
        return [copy, copy.squeeze()]

    x = torch.randn(6, 4)
    torch.testing.assert_close(list(functional(turned, x)(x)), turned(x))


def functional(function, *inputs):
    """The function as a program, what it writes made functional first."""
    graph = torch.fx.Graph()
    places = tuple(graph.placeholder(f"x{number}") for number in range(len(inputs)))
    graph.output(graph.call_function(function, places))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return aot.backend(lambda graph, examples: compile_graph(graph, examples, options=OPTIONS))(module, list(inputs))


SETTINGS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@SETTINGS
@given(programs(EXACT))
def test_exact(program):
    check(program, EXACT, True, rtol=0, atol=0)


@SETTINGS
@given(programs(EXACT | INEXACT))
def test_with_elementary_functions(program):
    if any(name in ("floor", "round", "integer", "boolean", "argmax", "any", "where") for name, *_ in program[1]):
        return  # a last bit decides: compared exactly above
    check(program, EXACT | INEXACT, False, rtol=3e-3, atol=3e-3)


@pytest.mark.slow
@settings(SETTINGS, max_examples=EXAMPLES * 10)
@given(programs(EXACT))
def test_exact_long(program):
    check(program, EXACT, True, rtol=0, atol=0)
