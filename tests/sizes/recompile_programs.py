"""Programs that are called with values that vary, and how often each may compile again.

Contract. `PROGRAMS` maps a name to a row: `run(system)` is a generator that compiles what it wants through
`system.compile` and yields the result of each call; `recompiles` is the number of graphs stator hands to its backend
after the first result. `tests/sizes/recompiles.json` has torch.compile's number for each (`make table-recompiles`
measures both); stator's is below it in the rows whose `fewer` says why, and above it only where `more` says why.
"""

from __future__ import annotations

import collections
import enum
import functools
import math
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

# Why fewer
ZERO_ONE = "0 and 1 are sizes like others"
STATE = "numbers that modules, globals and objects hold generalise as arguments do"
USED = "only what is used is guarded"
BREAKS = "a source that varies is symbolic on both sides of a break, for all sizes"
FLOAT = "floats are inputs of a formula, not constants"

SIZES = (8, 5, 3, 2, 1, 0, 64, 8)


@dataclass(frozen=True)
class Row:
    """One program."""

    run: Callable[[Any], Iterator[Any]]
    recompiles: int
    fewer: str = ""  # why stator needs fewer than torch.compile
    more: str = ""  # why it needs more: a known shortcoming


PROGRAMS: dict[str, Row] = {}


def program(recompiles: int, fewer: str = "", more: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a program to the table."""

    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[run.__name__] = Row(run, recompiles, fewer, more)
        return run

    return add


def calls(recompiles: int, *sequence: Any, fewer: str = "", more: str = "", **options: Any) -> Callable[..., Any]:
    """A row for a plain function called with each of `sequence`: a tuple of arguments, or one argument."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(system: Any) -> Iterator[Any]:
            compiled = system.compile(function, **options)
            for arguments in sequence:
                arguments = arguments if isinstance(arguments, tuple) else (arguments,)
                yield compiled(*(part() if isinstance(part, functools.partial) else part for part in arguments))

        PROGRAMS[function.__name__] = Row(run, recompiles, fewer, more)
        return function

    return add


def T(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Any:
    """A tensor made when the call is, the same each time."""

    def make() -> torch.Tensor:
        count = math.prod(shape)
        flat = torch.arange(count).sub(count // 2).to(dtype)
        return (flat * 0.25 if dtype.is_floating_point else flat).reshape(shape).requires_grad_(grad)

    return functools.partial(make)


def rows(width: int = 4, sizes: tuple[int, ...] = SIZES) -> list[Any]:
    return [T(size, width) for size in sizes]


# --- sizes of tensors


@calls(1, *rows(), fewer=ZERO_ONE)
def one_size(x):
    return torch.relu(x) * 2 + 1


@calls(1, T(1, 4), T(8, 4), T(0, 4), T(1, 4), T(3, 4), fewer=ZERO_ONE)
def starts_at_one(x):
    return torch.sin(x) + x


@calls(1, T(0, 4), T(8, 4), T(1, 4), T(0, 4), fewer=ZERO_ONE)
def starts_at_zero(x):
    return x * 3 - x


@calls(1, *[T(n, n + 2) for n in SIZES], fewer=ZERO_ONE)
def two_sizes_at_once(x):
    return x.cos() + 1


@calls(2, T(8, 4), T(5, 4), T(5, 6), T(3, 2), T(1, 1), T(64, 9), fewer=ZERO_ONE)
def two_sizes_one_after_the_other(x):
    return x.exp() * x


@calls(1, *[T(n, n) for n in (8, 5, 3, 2, 1, 64)], fewer=ZERO_ONE)
def square(x):
    return x @ x + x.T


@calls(1, *[(T(n, 4), T(n, 4)) for n in SIZES], fewer=ZERO_ONE)
def two_inputs_of_one_size(x, y):
    return x + y


@calls(2, (T(8, 4), T(8, 4)), (T(5, 4), T(5, 4)), (T(3, 4), T(1, 4)), (T(64, 4), T(1, 4)), (T(2, 4), T(2, 4)))
def broadcast_over_rows(x, y):
    return x + y


@calls(1, *[(T(n, 4), T(4)) for n in SIZES], fewer=ZERO_ONE)
def bias(x, y):
    return x + y


@calls(1, *[(T(n, 4), T(4, 3)) for n in SIZES], fewer=ZERO_ONE)
def matrix_product(x, y):
    return x @ y


@calls(1, *[(T(2, n, 4), T(2, 4, n)) for n in (8, 5, 3, 1, 64, 2)], fewer=ZERO_ONE)
def batched_product(x, y):
    return torch.bmm(x, y)


@calls(1, *[T(2, n, 8) for n in SIZES], fewer=ZERO_ONE)
def view_of_heads(x):
    batch, length, width = x.shape
    return x.view(batch, length, 2, width // 2).transpose(1, 2)


@calls(1, *[T(n, 6) for n in SIZES], fewer=ZERO_ONE)
def flatten(x):
    return x.reshape(-1) + x.numel()


@calls(1, *[T(n, 6) for n in SIZES], fewer=ZERO_ONE)
def flatten_and_back(x):
    return x.flatten().view(x.shape[0], 2, 3).sum(-1)


@calls(1, *[T(2 * n, 3) for n in (4, 3, 1, 2, 32)], fewer=ZERO_ONE)
def halves(x):
    half = x.shape[0] // 2
    return x[:half] + x[half:]


@calls(1, *[T(2 * n, 3) for n in (4, 3, 1, 2, 32)], fewer=ZERO_ONE)
def chunks(x):
    first, second = x.chunk(2)
    return first * second


@calls(1, *[(T(n, 3), T(m, 3)) for n, m in ((8, 2), (5, 3), (1, 1), (0, 4), (64, 2), (3, 3))], fewer=ZERO_ONE)
def cat(x, y):
    return torch.cat([x, y]) * 2


@calls(1, *[T(n, 3) for n in SIZES], fewer=ZERO_ONE)
def cat_with_itself(x):
    return torch.cat([x, x + 1, x * 2], 0)


@calls(1, *[T(n, 3) for n in SIZES], fewer=ZERO_ONE)
def stack(x):
    return torch.stack([x, -x], 1).sum(0)


@calls(1, *[T(n, 3) for n in (8, 5, 3, 2, 64)])
def slice_off_ends(x):
    return x[1:-1].sum() + x[:1].sum()


@calls(1, *[T(n, 3) for n in (8, 5, 3, 2, 1, 64)], fewer=ZERO_ONE)
def last_row(x):
    return x[-1] * 2


@calls(1, *[T(n, 4) for n in SIZES], fewer=ZERO_ONE)
def mean_by_size(x):
    return x.sum(0) / max(x.size(0), 1)


@calls(1, *[T(n, 4) for n in (8, 5, 3, 2, 1, 64)], fewer=ZERO_ONE)
def softmax(x):
    return torch.softmax(x, 0) * x.shape[0] ** -0.5


@calls(1, *[T(2, n, 8) for n in (8, 5, 3, 1, 64)], fewer=ZERO_ONE)
def layer_norm(x):
    return F.layer_norm(x, (8,))


@calls(1, *[T(2, n) for n in SIZES], fewer=ZERO_ONE)
def zeros_of_size(x):
    return x + torch.zeros(x.shape[0], x.shape[1])


@calls(1, *[T(n) for n in SIZES], fewer=ZERO_ONE)
def arange_of_size(x):
    return x + torch.arange(x.shape[0])


@calls(1, *[T(n, n) for n in (8, 5, 3, 1, 64)], fewer=ZERO_ONE)
def causal_mask(x):
    length = x.shape[-1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return x.masked_fill(~mask, -1.0)


@calls(2, *[T(n, 4) for n in SIZES], fewer=ZERO_ONE)
def pad(x):
    return F.pad(x, (0, 0, 1, 2))


@calls(1, *[T(n, 4) for n in SIZES], fewer=ZERO_ONE)
def expand(x):
    return x.unsqueeze(0).expand(3, -1, -1) + 1


@calls(1, *[T(n, 4) for n in (8, 5, 3, 1, 64)], fewer=ZERO_ONE)
def repeat(x):
    return x.repeat(2, 3)


@calls(1, *[T(1, 3, n, n) for n in (16, 12, 9, 33, 8)])
def convolution(x):
    return F.conv2d(x, torch.ones(2, 3, 3, 3), stride=2, padding=1)


@calls(1, *[T(1, 2, n, n) for n in (16, 12, 9, 33, 8)])
def pooling(x):
    return F.max_pool2d(x, 2)


@calls(1, *[T(n, dtype=torch.int64) for n in (8, 5, 3, 1, 64)], fewer=ZERO_ONE)
def embedding(x):
    return F.embedding(x.abs(), torch.ones(128, 4)).sum(-1)


@calls(1, *[(T(2, 2, n, 4),) for n in (8, 5, 3, 1, 64)], fewer=ZERO_ONE)
def attention(x):
    return F.scaled_dot_product_attention(x, x, x)


@calls(1, *[T(n, 4) for n in SIZES], fewer=ZERO_ONE)
def result_of_size(x):
    return x * 2, x.shape[0] + 1, tuple(x.shape)


@calls(1, *[T(n, 4, grad=True) for n in (8, 5, 3, 1, 64)], fewer=ZERO_ONE)
def with_gradient(x):
    return (x * x).sum()


@program(1, fewer=ZERO_ONE)
def backward(system):
    compiled = system.compile(lambda x, w: torch.tanh(x @ w).sum(0))
    for size in (8, 5, 3, 1, 64):
        x, w = T(size, 4)(), T(4, 3, grad=True)()
        compiled(x, w).sum().backward()
        yield w.grad


@program(1, fewer=ZERO_ONE)
def backward_through_views(system):
    compiled = system.compile(lambda x: x.view(x.shape[0] * 2, 2).transpose(0, 1).reshape(-1).sin())
    for size in (8, 5, 3, 1, 64):
        x = T(size, 4, grad=True)()
        compiled(x).sum().backward()
        yield x.grad


@calls(3, *[T(n, 4) for n in SIZES])
def transposed_input(x):
    return x.t().contiguous() + 1


@program(1)
def strided_input(system):
    compiled = system.compile(lambda x: x * 2 + 1)
    for size in (8, 5, 3, 64):
        yield compiled(T(size, 8)()[:, ::2])


@program(1)
def noncontiguous_input(system):
    compiled = system.compile(lambda x: x.exp())
    for size in (8, 5, 3, 64):
        yield compiled(T(size, 6)().t())


@program(2)
def rank_changes(system):
    compiled = system.compile(lambda x: x + 1)
    for shape in ((8,), (8, 2), (5, 2), (5,), (9, 2), (3,)):
        yield compiled(T(*shape)())


@program(3)
def dtype_changes(system):
    compiled = system.compile(lambda x: x * 2)
    for size, dtype in ((8, torch.float32), (8, torch.float64), (5, torch.float32), (5, torch.float64)):
        yield compiled(T(size, dtype=dtype)())


# --- branches on sizes


@calls(2, *[T(n) for n in (8, 9, 3, 2, 64, 1)], fewer=ZERO_ONE)
def branch_on_a_size(x):
    if x.shape[0] > 4:
        return x + 1
    return x - 1


@calls(2, *[T(n) for n in (8, 6, 5, 3, 64, 7)])
def branch_on_evenness(x):
    if x.shape[0] % 2 == 0:
        return x.view(-1, 2).sum(1)
    return x * 2


@calls(2, *[T(n, 3) for n in (8, 5, 1, 3, 1, 64)])
def branch_on_one(x):
    if x.shape[0] == 1:
        return x.squeeze(0) + 1
    return x + 2


@calls(2, *[T(n, 3) for n in (8, 5, 0, 3, 0, 64)])
def branch_on_empty(x):
    if x.numel() == 0:
        return x + 1
    return x - x.mean()


@calls(1, *[T(n) for n in (8, 5, 3, 64)])
def check_in_range(x):
    assert x.shape[0] > 0, "empty"
    torch._check(x.shape[0] < 1000)
    return x.sum() / x.shape[0]


@calls(3, *[T(n, 2) for n in (4, 3, 2, 1)])
def python_loop_over_rows(x):
    total = x.new_zeros(2)
    for index in range(x.shape[0]):
        total = total + x[index] * index
    return total


@calls(3, *[T(n, 2) for n in (4, 3, 2, 1)])
def unbind(x):
    return sum(row * 2 for row in x.unbind(0))


# --- numbers of the caller's


@calls(1, *[(T(4), n) for n in (3, 5, 2, 1, 0, -4, 64)])
def an_int(x, n):
    return x * n


@calls(1, *[(T(4), n) for n in (0.5, 0.25, 1.0, 0.0, -3.5, 1e9)])
def a_float(x, n):
    return x * n


@calls(1, *[(T(4), n) for n in (0.5, 0.25, 1.0, -3.5)])
def float_arithmetic(x, n):
    return x * (n * 2 + 1) - n / 4


@calls(1, *[(T(4), n) for n in (3, 5, 2, 1, 7)])
def int_arithmetic(x, n):
    return x * (n * 2 + 1) + n // 2


@calls(1, *[(T(8), n) for n in (3, 5, 2, 1, 0, 7)])
def int_slice(x, n):
    return x[:n].sum()


@calls(1, *[(T(4), n) for n in (3, 5, 2, 1, 7)], fewer=ZERO_ONE)
def int_makes_a_size(x, n):
    return x.sum() + torch.ones(n)


@calls(2, *[(T(4), n) for n in (3, 5, 2, 9, 1)])
def branch_on_an_int(x, n):
    return x + n if n > 2 else x - n


@calls(3, *[(T(4), flag) for flag in (True, False, True, None, "a", None)])
def flags(x, flag):
    if flag is None:
        return x * 2
    return x + 1 if flag else x - 1


@calls(2, *[(T(4), mode) for mode in ("sum", "mean", "none", "sum", "mean")])
def strings(x, mode):
    return x.sum() if mode == "sum" else x.mean() if mode == "mean" else x * 2


@calls(1, (T(4), None), (T(4), T(4)), (T(4), None), (T(4), T(4)))
def optional_tensor(x, y):
    return x * 2 if y is None else x + y


@calls(3, (T(4), 2), (T(4), 2.0), (T(4), 3), (T(4), 3.0), (T(4), 4))
def int_then_float(x, n):
    return x * n


@calls(1, *[(T(4), (n, n + 1)) for n in (1, 2, 5, 9)])
def tuple_of_ints(x, pair):
    return x * pair[0] + pair[1]


@calls(1, *[(T(4), {"scale": n}) for n in (0.5, 0.25, 3.0)])
def float_in_a_dict(x, options):
    return x * options["scale"]


@calls(1, *[(T(4), [n, 2]) for n in (1, 2, 5, 9)])
def int_in_a_list(x, numbers):
    return x * numbers[0] + numbers[1]


@calls(1, *[(T(4), n) for n in (1, 2, 5)], more="a number that is only passed on is guarded as if it were used")
def int_only_stored(x, n):
    return {"x": x + 1, "n": n}


@calls(0, *[(T(4), n) for n in (1, 2, 5)])
def unused_int(x, n):
    return x + 1


@calls(0, *[(T(4), n) for n in (1.5, 2.5, "a", None)])
def unused_anything(x, n):
    return x + 1


@calls(0, *[(T(4), T(n)) for n in (1, 2, 5)])
def unused_tensor(x, y):
    return x + 1


@calls(0, *[(T(4), functools.partial(torch.tensor, n)) for n in (0.1, 0.2, 0.3)])
def numbers_as_tensors(x, n):
    return x * n


@calls(3, *[(T(4, 6, 2), n) for n in (0, 1, 2, 0, -1)])
def dimension_as_argument(x, dim):
    return x.sum(dim)


@calls(1, *[(T(4), n) for n in (2**40, 2**50, 3, -(2**45))])
def large_ints(x, n):
    return x + n


@calls(1, *[(T(4), n) for n in (0.5, math.inf, -math.inf, 2.0)], fewer=FLOAT)
def infinities(x, n):
    return torch.clamp(x, max=n)


@calls(0, *[(T(4), n) for n in (math.nan, math.nan, math.nan)])
def the_same_nan(x, n):
    return x * n


@calls(3, *[(T(4), n) for n in (0.1, 0.2, 0.3, 0.4)])
def dropout_probability_unused(x, p):
    return F.dropout(x, p, training=False)


@calls(1, *[(T(6), n) for n in (2, 3, 1, 6)])
def int_divides_a_size(x, n):
    return x.view(n, x.shape[0] // n).sum(1)


@calls(1, *[(T(4), n) for n in (3, 5, 2, 7)])
def formatted_int(x, n):
    return x + 1, n + 1


@calls(1, *[(T(4), n) for n in (1, 4, 9, 16, 2)])
def square_root_of_int(x, n):
    return x / math.sqrt(n)


@calls(1, *[(T(4), n) for n in (1.5, 4.25, 9.0, 16.0)], fewer=FLOAT)
def math_of_a_float(x, n):
    return x * math.sqrt(n) + math.exp(-n)


@calls(1, *[T(2, n, 4) for n in (8, 5, 3, 1, 64)], fewer=ZERO_ONE)
def scale_by_square_root_of_size(x):
    return x / math.sqrt(x.shape[1])


@calls(1, *[T(n, 4) for n in (8, 5, 3, 1, 64)], fewer=ZERO_ONE)
def ceil_of_size(x):
    return x.sum() * math.ceil(x.shape[0] / 2)


@calls(1, *[(T(4), n) for n in (3, 5, 2, 1, 7)])
def min_and_max(x, n):
    return x * min(n, 4) + max(n, 2)


@calls(1, *[(T(4), float(n)) for n in (3, 5, 2, 1)])
def float_fills(x, n):
    return torch.full_like(x, n) + x.new_full((2, 4), n)


# --- containers


@calls(3, *[([T(4)()] * n,) for n in (1, 2, 3, 4)])
def growing_list(xs):
    return sum(xs)


@calls(3, *[({f"k{i}": T(4)() for i in range(n)},) for n in (1, 2, 3, 4)])
def growing_dict(table):
    return sum(table.values())


@calls(0, *[({f"k{i}": T(4)() for i in range(n)},) for n in (1, 2, 3, 4)])
def one_key_of_a_growing_dict(table):
    return table["k0"] * 2


@calls(0, *[([T(4)()] * n,) for n in (1, 2, 3, 4)], fewer=USED)
def one_element_of_a_growing_list(xs):
    return xs[0] * 2


@calls(1, *[([T(n)(), T(n)()],) for n in (8, 5, 3, 1, 0, 64)], fewer=ZERO_ONE)
def tensors_in_a_list(xs):
    return xs[0] + xs[1]


@calls(1, *[({"a": T(n, 2)()},) for n in (8, 5, 3, 1, 0, 64)], fewer=ZERO_ONE)
def tensors_in_a_dict(table):
    return table["a"] * 2


@program(0, fewer=USED)
def appends_to_a_list(system):
    seen: list[torch.Tensor] = []

    def step(x):
        seen.append(x + 1)
        return x * 2

    compiled = system.compile(step)
    for _ in range(5):
        yield compiled(T(4)())


@program(1)
def cache_by_name(system):
    cache: dict[str, torch.Tensor] = {}

    def step(x):
        if "k" not in cache:
            cache["k"] = x + 1
        return cache["k"] * x

    compiled = system.compile(step)
    for _ in range(4):
        yield compiled(T(4)())


@program(2)
def growing_cache(system):
    cache: list[Any] = [None]

    def step(x):
        cache[0] = x if cache[0] is None else torch.cat([cache[0], x])
        return cache[0].sum(0)

    compiled = system.compile(step)
    for _ in range(8):
        yield compiled(T(1, 4)())


# --- state: counters, attributes, globals


@program(1, fewer=STATE)
def step_counter(system):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step = 0

        def forward(self, x):
            self.step += 1
            return x * self.step

    module = Counter()
    compiled = system.compile(module)
    for _ in range(8):
        yield compiled(T(4)())


@program(1, fewer=STATE)
def step_counter_not_used_in_the_graph(system):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + 1

    module = Counter()
    compiled = system.compile(module)
    for _ in range(8):
        yield compiled(T(4)()), module.calls


@program(1, fewer=STATE)
def counter_in_a_plain_object(system):
    state = types.SimpleNamespace(count=0)

    def step(x):
        state.count += 1
        return x * state.count

    compiled = system.compile(step)
    for _ in range(8):
        yield compiled(T(4)())


GLOBAL_SCALE = 1.0
GLOBAL_COUNT = 0


@program(1)
def global_float(system):
    global GLOBAL_SCALE

    def step(x):
        return x * GLOBAL_SCALE

    compiled = system.compile(step)
    for scale in (1.0, 2.0, 0.5, 0.25):
        GLOBAL_SCALE = scale
        yield compiled(T(4)())
    GLOBAL_SCALE = 1.0


@program(1, fewer=STATE)
def global_counter(system):
    global GLOBAL_COUNT
    GLOBAL_COUNT = 0

    def step(x):
        global GLOBAL_COUNT
        GLOBAL_COUNT += 1
        return x + GLOBAL_COUNT

    compiled = system.compile(step)
    for _ in range(6):
        yield compiled(T(4)())


@program(1)
def closure_counter(system):
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x + count

    compiled = system.compile(step)
    for _ in range(6):
        yield compiled(T(4)())


@program(1)
def closure_float(system):
    def outer(scale):
        def step(x):
            return x * scale

        return step

    for scale in (0.5, 0.25, 2.0, 3.0):
        yield system.compile(outer(scale))(T(4)())


@program(1)
def module_float_attribute(system):
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha = 0.5

        def forward(self, x):
            return x * self.alpha

    module = Scale()
    compiled = system.compile(module)
    for alpha in (0.5, 0.25, 2.0, 3.0):
        module.alpha = alpha
        yield compiled(T(4)())


@program(1, fewer=STATE)
def module_int_attribute(system):
    class Width(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.width = 3

        def forward(self, x):
            return x[:, : self.width] * self.width

    module = Width()
    compiled = system.compile(module)
    for width in (3, 2, 1, 4):
        module.width = width
        yield compiled(T(2, 4)())


@program(3)
def modules_in_a_loop(system):
    for size in (4, 5, 6, 7):
        torch.manual_seed(0)
        yield system.compile(torch.nn.Linear(size, 3))(T(2, size)())


@program(0)
def equal_modules_in_a_loop(system):
    for seed in range(4):
        torch.manual_seed(seed)
        yield system.compile(torch.nn.Linear(4, 3))(T(2, 4)())


@program(0)
def equal_functions_in_a_loop(system):
    for _ in range(4):
        yield system.compile(plain_step)(T(4)())


def plain_step(x):
    return x * 2 + 1


@program(3)
def two_layers_of_different_widths(system):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)]
    compiled = system.compile(lambda layer, x: torch.relu(layer(x)))
    x = T(3, 4)()
    for layer in layers:
        x = compiled(layer, x)
        yield x


@program(1)
def train_and_eval(system):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    compiled = system.compile(module)
    for training in (True, False, True, False):
        module.train(training)
        yield compiled(T(3, 4)())


@program(1)
def grad_mode_toggles(system):
    compiled = system.compile(lambda x: x * 2)
    for enabled in (True, False, True, False):
        with torch.set_grad_enabled(enabled):
            yield compiled(T(3, grad=True)()).requires_grad


@program(1)
def requires_grad_toggles(system):
    compiled = system.compile(lambda x: x * 2)
    for grad in (True, False, True, False):
        yield compiled(T(3, grad=grad)()).requires_grad


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


@calls(1, *[(T(4), mode) for mode in (Mode.SUM, Mode.MEAN, Mode.SUM)])
def enum_argument(x, mode):
    return x.sum() if mode is Mode.SUM else x.mean()


@dataclass
class Settings:
    scale: float
    width: int
    name: str = ""


@calls(2, *[(T(4), Settings(n / 2, n)) for n in (1, 2, 3, 4)], (T(4), Settings(0.5, 1, "b")))
def dataclass_of_numbers(x, settings):
    x = x[: settings.width] * settings.scale
    return x + 1 if settings.name else x


Pair = collections.namedtuple("Pair", "left right")


@calls(1, *[(Pair(T(n)(), n),) for n in (4, 5, 6, 1)], fewer=ZERO_ONE)
def named_tuple(pair):
    return pair.left + pair.right


# --- breaks, continuations, nested functions, loops


@program(2, fewer=BREAKS)
def size_across_a_break(system):
    def step(x):
        y = x * 2
        system.graph_break()
        return y + x.shape[0]

    compiled = system.compile(step)
    for size in SIZES:
        yield compiled(T(size, 2)())


@program(2, fewer=STATE)
def counter_across_a_break(system):
    state = types.SimpleNamespace(count=0)

    def step(x):
        state.count += 1
        y = x * state.count
        system.graph_break()
        return y + state.count

    compiled = system.compile(step)
    for _ in range(6):
        yield compiled(T(4)())


@program(2, fewer=BREAKS)
def int_computed_before_a_break(system):
    def step(x):
        n = x.shape[0] * 2 + 1
        y = x.sin()
        system.graph_break()
        return y.sum() * n

    compiled = system.compile(step)
    for size in (8, 5, 3, 1, 64):
        yield compiled(T(size)())


@program(1)
def only_the_rest_recompiles(system):
    def step(x, n):
        y = torch.exp(x)
        system.graph_break()
        return y * n

    compiled = system.compile(step)
    for n in (1, 2, 3, 4):
        yield compiled(T(4)(), n)


@program(2, fewer=BREAKS)
def break_in_a_nested_function(system):
    def inner(x, n):
        y = x * n
        system.graph_break()
        return y + n

    def outer(x, n):
        return inner(x + 1, n) * 2

    compiled = system.compile(outer)
    for n in (1, 2, 3, 4):
        yield compiled(T(4)(), n)


@program(0)
def break_in_a_loop(system):
    def step(x):
        for index in range(6):
            x = x * index + 1
            system.graph_break()
        return x

    compiled = system.compile(step)
    for _ in range(3):
        yield compiled(T(4)())


@program(1)
def nested_functions(system):
    def scale(x, n):
        return x * n

    def shift(x, n):
        return scale(x, n + 1) + n

    compiled = system.compile(lambda x, n: shift(scale(x, n), n))
    for n in (1, 2, 3, 0, 7):
        yield compiled(T(4)(), n)


@program(1)
def batch_loop_with_a_tail(system):
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 2)
    compiled = system.compile(lambda x: module(x).relu().sum())
    data = T(70, 4)()
    for epoch in range(2):
        for batch in data.split(16):
            yield compiled(batch)


@program(2, more="zero_grad is traced and sees gradients from the second call on; torch.compile runs it in Python")
def training_loop_with_a_tail(system):
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        loss = module(batch).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = system.compile(step)
    data = T(70, 4)()
    for _ in range(2):
        for batch in data.split(16):
            yield compiled(batch).detach()


@program(1)
def scheduled_float_learning_rate(system):
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    compiled = system.compile(lambda: optimizer.step())
    for _ in range(6):
        optimizer.zero_grad()
        module(T(3, 4)()).sum().backward()
        compiled()
        scheduler.step()
        yield [parameter.detach().clone() for parameter in module.parameters()]


@program(1)
def loop_over_lengths(system):
    compiled = system.compile(lambda x: torch.cumsum(x, 0) / x.shape[0])
    for length in range(1, 12):
        yield compiled(T(length)())


@program(1)
def decode_positions(system):
    compiled = system.compile(lambda x, position: x + torch.arange(position, position + x.shape[1]))
    for position in range(6):
        yield compiled(T(2, 3)(), position)


@program(1)
def static_cache_write(system):
    cache = torch.zeros(16, 4)

    def step(x, position):
        cache[position] = x
        return cache[: position + 1].sum(0)

    compiled = system.compile(step)
    for position in range(8):
        yield compiled(T(4)(), position)


@program(1, fewer=ZERO_ONE)
def generator_over_sizes(system):
    def step(x):
        return sum(x * factor for factor in (1, 2, 3)) + x.shape[0]

    compiled = system.compile(step)
    for size in (4, 5, 6, 1):
        yield compiled(T(size)())


@program(1)
def keyword_arguments(system):
    def step(x, *, scale=1.0, **rest):
        return x * scale + rest.get("shift", 0)

    compiled = system.compile(step)
    for shift in (1, 2, 3, 4):
        yield compiled(T(4)(), shift=shift)


@program(1)
def default_then_given(system):
    def step(x, n=2):
        return x * n

    compiled = system.compile(step)
    yield compiled(T(4)())
    for n in (2, 3, 5, 7):
        yield compiled(T(4)(), n)


@program(1)
def star_arguments(system):
    def step(x, *numbers):
        return x * numbers[0] + numbers[1]

    compiled = system.compile(step)
    for n in (1, 2, 3, 4):
        yield compiled(T(4)(), n, n + 1)


# --- asked for by the user


@calls(0, *[T(n, 4) for n in (8, 5, 3, 64)], dynamic=True)
def dynamic_true(x):
    return x * 2 + 1


@calls(0, *[T(n, 4) for n in (8, 5, 1, 0, 64)], dynamic=True, fewer=ZERO_ONE)
def dynamic_true_down_to_zero(x):
    return x * 2 + 1


@calls(1, *[T(n, 4) for n in (1, 5, 1, 0, 64)], dynamic=True, fewer=ZERO_ONE)
def dynamic_true_from_one(x):
    return x * 2 + 1


@calls(3, *[T(n, 4) for n in (8, 5, 3, 64)], dynamic=False)
def dynamic_false(x):
    return x * 2 + 1


@calls(0, *[(T(4), n) for n in (8, 5, 3, 64)], dynamic=True)
def dynamic_true_ints(x, n):
    return x * n


@program(0)
def marked_dynamic(system):
    compiled = system.compile(lambda x: x * 2)
    for size in (8, 5, 3, 64):
        x = T(size, 4)()
        system.mark_dynamic(x, 0)
        yield compiled(x)


@program(0)
def marked_dynamic_once(system):
    compiled = system.compile(lambda x: x * 2)
    x = T(8, 4)()
    system.mark_dynamic(x, 0)
    yield compiled(x)
    for size in (5, 3, 64):
        yield compiled(T(size, 4)())


@program(3)
def marked_static(system):
    compiled = system.compile(lambda x: x * 2)
    for size in (8, 5, 3, 64):
        x = T(size, 4)()
        system.mark_static(x, 0)
        yield compiled(x)


@program(0)
def maybe_marked(system):
    compiled = system.compile(lambda x: x * 2)
    for size in (8, 5, 3, 64):
        x = T(size, 4)()
        system.maybe_mark_dynamic(x, 0)
        yield compiled(x)


@calls(1, *[(T(n, m),) for n, m in ((8, 5), (5, 3), (3, 4), (64, 2))])
def index_by_grids(x):
    rows = torch.arange(x.shape[0])[:, None]
    return x[rows, torch.arange(x.shape[1])] * 2
