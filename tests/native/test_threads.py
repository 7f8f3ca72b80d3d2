"""Calls, inserts, removals and mutations at once: never a wrong result, a crash or a deadlock."""

import random
import sys
import threading
import time

import pytest
import torch

from stator._native import core
from stator.guards import compile_guards
from stator.guards.reference import tensor_facts
from stator.values.source import SourceTree

SECONDS = 2.0


@pytest.fixture(autouse=True)
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


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

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in workers]
    for thread in threads:
        thread.start()
    stop.wait(SECONDS)
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "deadlock"
    if failures:
        raise failures[0]


def test_calls_while_entries_come_and_go():
    def function(x, n):
        return n

    table = core.EntryTable()

    def entry_for(shape, n):
        tree = SourceTree(("x", "n"))
        tree.local(0).guard("TENSOR", tensor_facts(torch.ones(shape)))
        tree.local(1).guard("EQUALS", n)
        return core.Entry(compile_guards(tree, [tree.local(0).child("SIZE", 0)]), lambda x, n, size: ("entry", size, n))

    def on_miss(dispatcher, original, arguments):
        x, n = arguments
        with table.lock:
            if len(table.entries) > 12:
                table.clear()
            table.insert(entry_for(tuple(x.shape), n))
        return ("miss", x.shape[0], n)

    dispatcher = core.Dispatcher(function, table, on_miss)
    tensors = [torch.ones(size, 2) for size in range(1, 6)]

    def call(rng):
        x, n = rng.choice(tensors), rng.randrange(4)
        how, size, m = dispatcher(x, n=n) if rng.random() < 0.5 else dispatcher(x, n)
        assert how in ("entry", "miss") and size == x.shape[0] and m == n

    def remove(rng):
        entries = table.entries
        if entries and rng.random() < 0.3:
            table.remove(rng.choice(entries))
        time.sleep(0)

    run_all([call] * 8 + [remove] * 2)


def test_calls_while_a_module_changes():
    """What the entry returns was true at some moment of the call: fetched values come from one consistent module."""

    class Holder:
        pass

    holder = Holder()
    holder.pair = (0, 0)
    holder.kind = "even"

    def function(h):
        raise AssertionError

    table = core.EntryTable()
    for kind in ("even", "odd"):
        tree = SourceTree(("h",))
        root = tree.local(0)
        root.guard("TYPE_IS", Holder)
        root.child("ATTR", "kind").guard("EQUALS", kind)
        pair = root.child("ATTR", "pair")
        pair.guard("LENGTH", 2)
        fetches = [pair.child("INDEX", 0), pair.child("INDEX", 1), root.child("ATTR", "kind")]
        table.insert(core.Entry(compile_guards(tree, fetches), lambda h, a, b, kind: (a, b, kind)))
    dispatcher = core.Dispatcher(function, table, lambda d, f, a: None)

    def call(rng):
        answer = dispatcher(holder)
        if answer is not None:
            assert answer[0] == answer[1]

    def change(rng):
        number = rng.randrange(10**6, 10**6 + 100)
        holder.pair = (number, int(str(number)))
        holder.kind = rng.choice(["even", "odd", "neither"])
        if rng.random() < 0.1:
            holder.__dict__ = dict(holder.__dict__)

    run_all([call] * 8 + [change] * 2)


def test_slow_ways_let_other_threads_in():
    """Guards that ask Python hold what they loaded while other threads drop it."""

    class Holder:
        pass

    holder = Holder()
    holder.items = [torch.ones(2).to_sparse(), [1, 2]]

    def function(h):
        return None

    tree = SourceTree(("h",))
    items = tree.local(0).child("ATTR", "items")
    items.guard("LENGTH", 2)
    tensor = items.child("INDEX", 0)
    tensor.guard("TENSOR", tensor_facts(holder.items[0]))
    last = items.child("INDEX", 1).child("INDEX", 0)
    table = core.EntryTable()
    table.insert(core.Entry(compile_guards(tree, [tensor, last]), lambda h, tensor, last: (tensor.shape, last)))
    dispatcher = core.Dispatcher(function, table, lambda d, f, a: None)

    def call(rng):
        answer = dispatcher(holder)
        assert answer is None or answer[0] == (2,) and type(answer[1]) is int

    def change(rng):
        holder.items = [torch.ones(rng.choice([2, 2, 3])).to_sparse(), [rng.randrange(10**6), 2]]

    run_all([call] * 6 + [change] * 2)


def test_weakly_held_objects_die_while_others_call():
    class Thing:
        pass

    def function(thing):
        return "eager"

    table = core.EntryTable()

    def on_miss(dispatcher, original, arguments):
        tree = SourceTree(("thing",))
        tree.local(0).guard("IS", arguments[0])
        table.insert(core.Entry(compile_guards(tree), lambda thing: thing.name))
        return arguments[0].name

    dispatcher = core.Dispatcher(function, table, on_miss)

    def call(rng):
        thing = Thing()
        thing.name = rng.random()
        assert dispatcher(thing) == thing.name
        assert dispatcher(thing) == thing.name

    run_all([call] * 8)
    import gc

    gc.collect()
    assert table.entries == ()


def test_modes_are_those_of_the_calling_thread():
    from stator.guards.modes import read_modes

    def function():
        return "eager"

    table = core.EntryTable()
    tree = SourceTree()
    tree.state().guard("MODES", read_modes())
    table.insert(core.Entry(compile_guards(tree), lambda: "grad"))
    dispatcher = core.Dispatcher(function, table, lambda d, f, a: "no grad")

    def with_grad(rng):
        assert dispatcher() == "grad"

    def without(rng):
        with torch.no_grad():
            assert dispatcher() == "no grad"

    run_all([with_grad, without] * 3)
