"""What compiling leaves alive, and what it does under threads: through the whole of `stator.compile`."""

import gc
import linecache
import os
import random
import resource
import sys
import threading
import time
import weakref

import pytest
import torch

import stator
from stator.runtime.region import all_regions

SECONDS = 3.0


@pytest.fixture(autouse=True)
def fresh():
    stator.reset()
    yield
    stator.reset()


def make_function(number):
    """A function with a code object, a closure and a module of its own."""
    source = (
        "def make(module, scale):\n"
        " def inner(x, flag):\n"
        "  y = module(x) * scale\n"
        f"  return y + {number} if flag else -y\n"
        " return inner"
    )
    names = {}
    exec(source, globals(), names)
    module = torch.nn.Linear(3, 3)
    return names["make"](module, 2.0), module


def compile_and_call(count, backend):
    """References to everything of `count` functions that were compiled, called, and dropped."""
    references = []
    for number in range(count):
        function, module = make_function(number)
        compiled = stator.compile(function, backend=backend)
        x = torch.ones(2, 3)
        assert torch.equal(compiled(x, True), function(x, True))
        assert torch.equal(compiled(x, False), function(x, False))
        references += [weakref.ref(one) for one in (function, module, module.weight, compiled, x, function.__code__)]
    return references


def resident():
    """Memory of this process now, in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "many"), (("eager", 1000), ("aot_eager", 150)))
def test_a_thousand_functions_leave_nothing_behind(backend, many):
    def round_of(count):
        references = compile_and_call(count, backend)
        torch.fx.graph_module._loader.eval_cache.clear()  # torch keeps the source of every graph module
        linecache.clearcache()
        gc.collect()
        gc.collect()  # what dies with a code object is seen by the next one
        alive = [reference() for reference in references if reference() is not None]
        assert not alive, f"{len(alive)} of {len(references)} alive, e.g. {alive[0]}"
        assert len(all_regions()) == regions
        del references
        return len(gc.get_objects()), resident()

    gc.collect()
    regions = len(all_regions())
    round_of(50)  # what is kept of torch itself
    objects, memory = round_of(50)
    later_objects, later_memory = round_of(many)
    assert later_objects - objects < many // 5, "objects that grow with the number of functions"
    assert later_memory - memory < 40, "memory that grows with the number of functions"


def test_entries_die_with_the_objects_they_are_about():
    def call(module, x):
        return module(x) + 1

    compiled = stator.compile(call, backend="eager")
    x = torch.ones(2, 3)
    modules = [torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())]
    for module in modules:
        compiled(module, x)
    references = [weakref.ref(part) for module in modules for part in (module, *module.parameters())]
    del module, modules
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []


def test_inputs_and_results_are_not_kept():
    compiled = stator.compile(lambda x, rows: (x @ rows[0]).relu(), backend="eager")
    x, rows = torch.ones(2, 3, requires_grad=True), [torch.ones(3, 3)]
    result = compiled(x, rows)
    references = [weakref.ref(one) for one in (x, rows[0], result)]
    del x, rows, result
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []


# Threads


class Changing(torch.nn.Module):
    """A module whose answer says which of its states it ran in."""

    def __init__(self):
        super().__init__()
        self.factor = 1
        self.layers = torch.nn.ModuleList([torch.nn.Identity()])
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, x):
        y = x * self.factor
        for layer in self.layers:
            y = layer(y)
        return y + self.shift


def run_all(workers):
    failures = []
    stop = threading.Event()

    def guarded(work):
        rng = random.Random()
        try:
            while not stop.is_set():
                work(rng)
        except BaseException as error:
            failures.append(error)
            stop.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in workers]
        for thread in threads:
            thread.start()
        stop.wait(SECONDS)
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "deadlock"
    finally:
        sys.setswitchinterval(before)
    if failures:
        raise failures[0]


@pytest.mark.parametrize("backend", ("eager", "stator"))
def test_threads_call_while_two_recompile_and_a_third_party_changes_the_module(backend):
    module = Changing()
    stator.compile(module, backend=backend, recompile_limit=64)
    calls = [0]

    def check(x):
        y = module(x)
        calls[0] += 1
        # Each factor, number of layers and shift that may be met gives a whole multiple of the ones put in.
        value = y.flatten()[0].item() if y.numel() else 1.0
        assert y.shape == x.shape and torch.equal(y, torch.full_like(y, value))
        assert value in ALLOWED, value

    def steady(rng):
        check(torch.ones(2, 3))

    def reshaping(rng):
        check(torch.ones(rng.randrange(1, 5), rng.randrange(1, 4), dtype=rng.choice((torch.float32, torch.float64))))

    def change(rng):
        what = rng.randrange(3)
        if what == 0:
            module.factor = rng.choice(FACTORS)
        elif what == 1:
            module.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(rng.randrange(3)))
        else:
            module.shift = torch.full((), float(rng.choice(SHIFTS)))
        time.sleep(1e-3)

    run_all([steady] * 6 + [reshaping] * 2 + [change])
    assert calls[0] > 20


FACTORS, SHIFTS = (1, 2, 3), (0, 10, 20)
ALLOWED = frozenset(float(factor + shift) for factor in FACTORS for shift in SHIFTS)


def test_threads_compile_different_functions_at_once():
    def work(rng):
        function, _ = make_function(rng.randrange(100))
        compiled = stator.compile(function, backend="eager")
        x = torch.ones(2, 3)
        assert torch.equal(compiled(x, True), function(x, True))

    run_all([work] * 4)


def test_code_compiled_while_compiling_may_call_compiled_code():
    """A backend, and a constant asked for while capturing, that run compiled functions of their own."""
    inner = stator.compile(lambda x: x * 2, backend="eager")

    @stator.assume_constant_result
    def constant():
        return inner(torch.ones(2)).sum().item()

    def backend(graph, examples):
        assert inner(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
        assert outer(torch.ones(1), 0).tolist() == [1.0]  # itself, on a way that needs another entry
        return graph

    @stator.compile(backend=backend)
    def outer(x, depth):
        return x + constant() if depth else x

    assert outer(torch.ones(2), 1).tolist() == [5.0, 5.0]


def test_a_compile_on_one_thread_does_not_stop_calls_on_another():
    started, go_on = threading.Event(), threading.Event()

    def backend(graph, examples):
        if examples and examples[0].shape[0] == 7:
            started.set()
            assert go_on.wait(30)
        return graph

    compiled = stator.compile(lambda x: x + 1, backend=backend, dynamic=False)
    compiled(torch.ones(2))
    thread = threading.Thread(target=lambda: compiled(torch.ones(7)))
    thread.start()
    assert started.wait(30)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    go_on.set()
    thread.join(30)
    assert not thread.is_alive()
