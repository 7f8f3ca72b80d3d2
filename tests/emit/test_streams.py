"""Large results go past the cache: which, and that they are eager's whatever the sizes and the threads."""

import pytest
import torch
from test_kernels import run

from stator import config
from stator.emit.cpu import streams
from stator.emit.cpu.compile import LINKER


@pytest.fixture(autouse=True)
def small_threshold(monkeypatch):
    monkeypatch.setattr(streams, "LEAST_BYTES", 1 << 12)
    monkeypatch.setattr(LINKER, "_known", {})
    with config.patch(strict=True, force_disable_caches=True):
        yield


def stored_past_cache(function, *inputs):
    """How many buffers of the program's kernels are stored so."""
    seen = []
    original = streams.streamed

    def recorded(kernel, way):
        seen.append(original(kernel, way))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stator.emit.cpu.kernel.streamed", recorded)
        found, _, _ = run(function, *inputs)
    for mine, theirs in zip(found, function(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs)
    return sum(map(len, seen))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(64, 64), (301, 333), (3, 1000, 7)], ids=str)
def test_pointwise_results(shape, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert stored_past_cache(lambda x, y: [torch.relu(x * 2 + y)], torch.randn(shape), torch.randn(shape)) == 1
    finally:
        torch.set_num_threads(before)


def test_transposes_with_whole_lines_and_without():
    assert stored_past_cache(lambda x, y: [x.t() + y], torch.randn(96, 64), torch.randn(64, 96)) == 1
    assert stored_past_cache(lambda x, y: [x.t() - y], torch.randn(97, 65), torch.randn(65, 97)) == 0


def test_what_the_kernel_reads_again_stays():
    def block(x):
        hidden = torch.exp(x)
        return [hidden, hidden / hidden.sum(-1, keepdim=True)]

    assert stored_past_cache(block, torch.randn(64, 128)) == 1


def test_inputs_are_never_written_so():
    def step(p, g):
        p.add_(g, alpha=0.125)
        return [p.clone()]

    p, g = torch.randn(4097)[1:], torch.randn(4097)[1:]
    expected = p + g * 0.125
    run(step, p, g)
    torch.testing.assert_close(p, expected)
