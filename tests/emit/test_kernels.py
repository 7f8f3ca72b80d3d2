"""What fuses, what is stored, and that results are eager's."""

import pytest
import torch
import torch.nn.functional as F
from cpu_graphs import GraphByHand, compiled

import stator
from stator import config, events


@pytest.fixture(autouse=True)
def strict():
    with config.patch(strict=True):
        yield


def run(function, *inputs):
    """Results, kernel texts and the schedule."""
    texts, schedule = [], []
    end = [
        events.subscribe(lambda event: texts.append(event.fields["text"]), {"kernel_code"}),
        events.subscribe(lambda event: schedule.append(event.fields["text"]), {"schedule"}),
    ]
    try:
        program = compiled(function, *inputs)
    finally:
        for stop in end:
            stop()
    return program(*inputs), texts, schedule[0]


def check(function, *inputs, kernels=None, **tolerance):
    tolerance = tolerance or {"rtol": 1e-5, "atol": 1e-5}
    expected = [entry.clone() for entry in function(*[value.clone() for value in inputs])]
    found, texts, schedule = run(function, *inputs)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, **tolerance)
        assert mine.stride() == theirs.stride()
    if kernels is not None:
        assert len(texts) == kernels, "\n".join(texts)
    return texts, schedule


def test_pointwise_chain_is_one_flat_loop():
    texts, _ = check(lambda x, y: [torch.relu(x * 2 + y)], torch.randn(37, 65), torch.randn(37, 65), kernels=1)
    assert "parallel once" in texts[0] and "r0 < 2405" in texts[0]  # two dimensions became one


def test_softmax_is_three_sweeps_over_one_row():
    texts, _ = check(lambda x: [torch.softmax(x, -1)], torch.randn(50, 300), kernels=1)
    assert texts[0].count("stage") == 3
    assert "scratch" in texts[0]  # exp is computed once
    assert texts[0].count("exp(") == 1


def test_layer_norm_is_one_kernel():
    check(
        lambda x, w, b: [F.layer_norm(x, (96,), w, b)], torch.randn(9, 96), torch.randn(96), torch.randn(96), kernels=1
    )


def test_residual_is_stored_and_used_in_the_same_sweep():
    def block(x, y, w):
        hidden = x + y
        return [hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6) * w, hidden]

    check(block, torch.randn(8, 64), torch.randn(8, 64), torch.randn(64), kernels=1)


def test_cross_entropy_never_stores_the_log_softmax():
    logits, target = torch.randn(32, 1000), torch.randint(0, 1000, (32,))
    texts, _ = check(lambda x, t: [F.cross_entropy(x, t)], logits, target)
    assert not any("1000*o0 + r0)] =" in text for text in texts)


def test_batch_norm_statistics_follow_permuted_dimensions():
    def statistics(x):
        mean = x.mean((0, 2, 3), keepdim=True)
        return [(x - mean) * torch.rsqrt(((x - mean) ** 2).mean((0, 2, 3), keepdim=True) + 1e-5)]

    check(statistics, torch.randn(4, 6, 5, 7))


@pytest.mark.parametrize("shape", [(64, 64), (37, 53), (16, 16), (3, 40, 50), (130, 129)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_transposes(shape, dtype):
    x = (torch.randn(shape) * 3).to(dtype)
    check(lambda x: [x.transpose(-1, -2).contiguous()], x, rtol=0, atol=0)


@pytest.mark.parametrize("dims", [0, 1, 2, (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("layout", ["contiguous", "permuted", "sliced", "expanded"])
def test_sums_over_any_dimensions(dims, layout):
    x = torch.randn(13, 18, 35)
    x = {
        "contiguous": x,
        "permuted": x.permute(2, 0, 1),
        "sliced": x[:, 1:, ::2],
        "expanded": x[:, :1].expand(13, 18, 35),
    }[layout]
    check(lambda x: [x.sum(dims), x.amax(dims)], x, rtol=1e-4, atol=1e-4)


def test_long_reductions_are_cut_in_parts():
    texts, _ = check(lambda x: [x.sum(), x.amax()], torch.randn(300, 1001), rtol=1e-3, atol=1e-2)
    assert "parallel o0 < 18" in texts[0] and "_part" in texts[0]


@pytest.mark.parametrize("join", [torch.stack, torch.cat])
@pytest.mark.parametrize("dim", [0, -1])
def test_results_of_rows_that_are_pieces_of_one(join, dim):
    def function(x):
        most, least = x.amax(1), x.amin(1)
        return [join([most - least, least * 2, most], dim), join([most, x.sum(1)], dim)]

    check(function, torch.randn(6, 5, 4))


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("dim", [0, 1])
def test_places_of_extremes_with_ties_and_nan(kind, dim):
    x = torch.randint(0, 3, (40, 37)).float()
    x[3, 5] = x[3, 9] = x[7, 9] = float("nan")
    x[8] = -float("inf")
    check(lambda x: [getattr(x, kind)(dim)], x, rtol=0, atol=0)


def test_low_precision_rounds_after_every_operator():
    x, y = torch.randn(500).bfloat16(), torch.randn(500).bfloat16()
    check(lambda x, y: [(x * y + x) * 1.7 - y / 3], x, y, rtol=0, atol=0)
    check(lambda x, y: [(x * y + x) * 1.7 - y / 3], x.half(), y.half(), rtol=0, atol=0)


def test_zero_sizes_and_no_dimensions():
    check(lambda x, y: [x + y, (x * 2).sum(), x.sum(0)], torch.randn(0, 5), torch.randn(5))
    check(lambda x, y: [x + y, x.sum(), torch.exp(y)], torch.tensor(2.0), torch.tensor(3.0))


def test_channels_last_keeps_its_layout():
    x = torch.randn(2, 8, 5, 6).contiguous(memory_format=torch.channels_last)
    check(lambda x: [torch.relu(x) * 2], x, kernels=1)


def test_an_index_out_of_range_raises():
    table, places = torch.randn(10, 4), torch.tensor([0, 9, 3])
    program = compiled(lambda t, i: [F.embedding(i, t) * 2], table, places)
    torch.testing.assert_close(program(table, places)[0], table[places] * 2)
    with pytest.raises(IndexError, match="out of range"):
        program(table, torch.tensor([0, 10, 3]))


@pytest.mark.parametrize(
    "function",
    [
        lambda t, i: F.embedding(i, t),
        lambda t, i: t[i],
        lambda t, i: t.index_select(0, i),
        lambda t, i: t.gather(0, i[:, None]),
        lambda t, i: F.cross_entropy(t[:3], i),
        lambda t, i: torch.take(t, i * 4),
        lambda t, i: t.scatter(0, i[:, None], 1.0),
    ],
)
def test_places_out_of_range_raise_what_eager_raises(function):
    table, places = torch.randn(10, 4), torch.tensor([0, 12, 3])
    program = compiled(lambda t, i: [function(t, i) * 2], table, torch.tensor([0, 1, 2]))
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        function(table, places)
    with pytest.raises(type(theirs.value)) as mine:
        program(table, places)
    assert type(mine.value) is type(theirs.value)
    assert any("test_kernels.py" in note for note in mine.value.__notes__)


def test_operators_without_rows_stand_between_kernels():
    x, w = torch.randn(6, 5), torch.randn(5, 7)
    _, schedule = check(lambda x, w: [torch.relu((x * 2) @ w + 1).sort(-1)[0] * 2], x, w, kernels=3)
    assert "aten.mm" in schedule and "aten.sort" in schedule


def test_an_unread_operator_does_not_run():
    _, schedule = check(lambda x: [x + 1] if x.sort()[0] is not None else [], torch.randn(9))
    assert "sort" not in schedule


def test_inputs_are_written_only_by_the_graph():
    graph_inputs = torch.randn(64), torch.randn(64)

    def step(p, g):
        p.copy_(p - 0.1 * g)
        return [g * 2]

    program = compiled(step, *graph_inputs)
    p, g = (value.clone() for value in graph_inputs)
    (doubled,) = program(p, g)
    torch.testing.assert_close(p, graph_inputs[0] - 0.1 * graph_inputs[1])
    assert torch.equal(g, graph_inputs[1]) and torch.equal(doubled, g * 2)


def test_same_kernels_are_compiled_once():
    from stator.emit.cpu.compile import LINKER

    def twice(x, y):
        return [torch.relu(x * 3 + 1).mm(y), torch.relu(y * 3 + 1).mm(x)]

    before = len(LINKER._known)
    check(twice, torch.randn(31, 31), torch.randn(31, 31))
    assert len(LINKER._known) - before <= 2  # two inputs, one shape: the same kernel


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_threads(threads):
    x = torch.randn(700, 900)
    program = compiled(lambda x: [x.sum(), torch.softmax(x, -1), x.t().contiguous(), x.sum(0)], x)
    before = torch.get_num_threads()
    expected = program(x)
    try:
        torch.set_num_threads(threads)
        for mine, theirs in zip(program(x), expected, strict=True):
            assert torch.equal(mine, theirs)
    finally:
        torch.set_num_threads(before)


def test_a_failing_emitter_retreats_to_operators(monkeypatch):
    from stator.emit.cpu import kernel

    def broken(*_):
        raise ValueError("deliberate")

    monkeypatch.setattr(kernel.Emitter, "run", broken)
    seen = []
    stop = events.subscribe(seen.append, {"fallback"})
    x = torch.randn(3, 77)
    try:
        with config.patch(strict=False):
            program = compiled(lambda x: [torch.tanh(x * 0.123) + x.sum(1, keepdim=True)], x)
    finally:
        stop()
    torch.testing.assert_close(program(x)[0], torch.tanh(x * 0.123) + x.sum(1, keepdim=True))
    assert {event.fields["reason"] for event in seen} == {"kernel_failed"}
    assert "kernel_" not in program.describe()
    with config.patch(strict=True), pytest.raises(ValueError, match="deliberate"):
        compiled(lambda x: [torch.tanh(x * 0.321)], x)


def test_only_the_call_that_fails_becomes_an_operator(monkeypatch):
    from stator.emit.cpu.elements import Elements

    def broken(self, operation, type_, operands, types, apply=Elements.apply):
        if operation == "tanh":
            raise ValueError("deliberate")
        return apply(self, operation, type_, operands, types)

    monkeypatch.setattr(Elements, "apply", broken)
    seen = []
    stop = events.subscribe(seen.append, {"fallback"})
    x = torch.randn(5, 71)

    def function(x):
        y = torch.exp(x * 0.731) + 1
        return [torch.tanh(y).sum(1) * y.amax(1), y.flip(0)]

    try:
        with config.patch(strict=False):
            program = compiled(function, x)
    finally:
        stop()
    torch.testing.assert_close(program(x), tuple(function(x)))
    text = program.describe()
    assert text.count("aten.") == 1 and "aten.tanh" in text and "kernel_" in text
    assert len(seen) == 1 and "aten.tanh" in seen[0].fields["detail"] and "test_kernels.py" in seen[0].fields["detail"]


def test_fast_numerics_keep_single_precision_between_operators():
    x = torch.randn(1000).bfloat16()
    function = lambda x: [x * 1.1 + 3.3]
    with config.patch(numerics="fast"):
        found = compiled(function, x)(x)[0]
    assert torch.equal(found, (x.float() * 1.1 + 3.3).bfloat16())
    assert not torch.equal(found, function(x)[0])


def test_points_wait_for_what_their_readers_also_need():
    def update(value, gradient, count):
        moved = value * 0.5 + gradient
        correction = torch.sqrt(1 - torch.pow(0.9, count + 1))
        return [moved / correction, moved]

    check(update, torch.randn(40, 40), torch.randn(40, 40), torch.tensor(3.0), kernels=2)


def test_points_do_not_wait_past_what_overwrites_their_inputs():
    def update(value, other):
        moved = value * 2
        value.copy_(other.sort().values)
        return [moved + value]

    value, other = torch.randn(30), torch.randn(30)
    expected = value * 2 + other.sort().values
    found, _, _ = run(update, value, other)
    torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize("layer", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
def test_recurrent_layers(layer):
    """Gates are split from memory that the program owns: it must live as long as they do."""
    stator.reset()  # one function of three models has their entries
    model = layer(4, 5, 2, batch_first=True)
    function = stator.compile(lambda x: model(x))
    with torch.no_grad():
        for batch, length in ((3, 6), (2, 7), (5, 1), (1, 3)):
            x = torch.randn(batch, length, 4)
            torch.testing.assert_close(function(x), model(x))


def test_reduce_overhead_says_that_it_is_the_default():
    seen = []
    stop = events.subscribe(seen.append, {"warning"})
    try:
        assert torch.equal(
            stator.compile(lambda x: x + 1, mode="reduce-overhead")(torch.ones(2)), torch.full((2,), 2.0)
        )
    finally:
        stop()
    assert any("same as default on the CPU" in event.fields["text"] for event in seen)


def test_operators_that_keep_their_arguments_memory_unsaid():
    """`unsafe_split` names no alias in its schema, and its results are views."""
    graph = GraphByHand()
    x, w = graph.input((6, 6)), graph.input((6, 6))
    doubled = graph.call(torch.ops.aten.mul.Tensor, x, 2, shape=(6, 6))
    lifted = graph.call(torch.ops.aten.lift.default, doubled, shape=(6, 6))
    other = graph.call(torch.ops.aten.mul.Tensor, w, 3, shape=(6, 6))
    sorted_ = graph.call(torch.ops.aten.cumsum.default, other, 0, shape=(6, 6))
    program = graph.program(graph.call(torch.ops.aten.mm.default, lifted, sorted_, shape=(6, 6)))
    x, w = torch.randn(6, 6), torch.randn(6, 6)
    torch.testing.assert_close(program(x, w)[0], (x * 2) @ (w * 3).cumsum(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_rows_repeated_and_turned(dtype):
    x = (torch.randn(5, 4, 1) * 2).to(dtype)
    for dim in range(3):
        check(lambda x, dim=dim: [x.repeat(2, 3, 2).flip(dim)], x)
    check(lambda x: [x.repeat(2, 3, 2).flip(0, 2).roll(3, 0)], x)


def test_a_tensor_without_memory_is_an_error_and_not_a_crash():
    program = compiled(lambda x: [x * 2 + 1], torch.ones(3))
    with pytest.raises(RuntimeError, match="no memory of its own"):
        program(torch._efficientzerotensor(3))


def test_zeros_that_eager_keeps_no_memory_for():
    check(lambda x: [x + torch.func.hessian(lambda z: (z**3).sum())(x[0])], torch.randn(3, 3))
