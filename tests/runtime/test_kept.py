"""Memory of large results is used again, and nobody can tell."""

import gc
import subprocess
import sys

import pytest
import torch

import stator
from stator.runtime import native

SIZE = 1 << 20


@pytest.fixture
def double():
    module = native.runtime().module
    module.forget_kept()
    compiled = stator.compile(lambda x: x * 2)
    compiled(torch.ones(SIZE))
    gc.collect()
    yield compiled
    module.forget_kept()


def test_memory_of_a_dropped_result_is_used_again(double):
    first = double(torch.ones(SIZE))
    address = first.data_ptr()
    del first
    again = double(torch.full((SIZE,), 3.0))
    assert again.data_ptr() == address and again[0] == 6 and again._version == 0 and again._base is None


def test_memory_that_somebody_holds_is_not(double):
    results = [double(torch.full((SIZE,), float(k))) for k in range(4)]
    assert len({result.data_ptr() for result in results}) == 4
    assert [result[-1].item() for result in results] == [0, 2, 4, 6]
    view = results[0][5:7]
    array = results[1].numpy()
    exported = torch.utils.dlpack.to_dlpack(results[2])
    storage = results[3].untyped_storage()
    addresses = {result.data_ptr() for result in results}
    del results
    fresh = [double(torch.full((SIZE,), 9.0)) for _ in range(4)]
    assert addresses.isdisjoint(result.data_ptr() for result in fresh)
    assert view.tolist() == [0, 0] and array[7] == 2 and storage.nbytes() == 4 * SIZE
    assert torch.utils.dlpack.from_dlpack(exported)[8] == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result.resize_(2 * SIZE),
        lambda result: result.untyped_storage().resize_(0),
        lambda result: result.share_memory_(),
        lambda result: result.set_(torch.zeros(3)),
    ],
    ids=["resized", "emptied", "shared", "replaced"],
)
def test_a_changed_storage_is_left_alone(double, change):
    result = double(torch.ones(SIZE))
    change(result)
    del result
    fresh = double(torch.full((SIZE,), 5.0))
    assert fresh.untyped_storage().nbytes() == 4 * SIZE and not fresh.is_shared()
    assert torch.equal(fresh, torch.full((SIZE,), 10.0))


def test_a_lazy_copy_keeps_its_values(double):
    result = double(torch.ones(SIZE))
    copy = torch._lazy_clone(result)
    del result
    double(torch.full((SIZE,), 5.0))
    assert torch.equal(copy, torch.full((SIZE,), 2.0))


def test_results_of_inference_mode_are_its_own(double):
    del_me = double(torch.ones(SIZE))
    del del_me
    with torch.inference_mode():
        assert double(torch.ones(SIZE)).is_inference()
    assert not double(torch.ones(SIZE)).is_inference()


def test_idle_memory_is_bounded():
    program = """
import resource, torch, stator
compiled = stator.compile(lambda x: x + 1, dynamic=True)
for size in range(10, 60):
    compiled(torch.zeros(size << 18))
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before = resident()
from stator.runtime import native
native.runtime().module.forget_kept()
assert before - resident() <= 72 << 20, before - resident()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
