"""Nothing stays alive but entries and what they must hold; reference counts are what they were."""

import gc
import os
import resource
import sys
import weakref

import torch

from stator._native import core
from stator.guards import compile_guards, weaken
from stator.guards.modes import read_modes
from stator.guards.reference import tensor_facts
from stator.guards.size_program import SizeProgram
from stator.values.source import SourceTree


class Config:
    pass


def busy_program(module, tensor, config):
    """A program with an instruction of nearly every kind."""
    tree = SourceTree(("module", "x", "config"))
    root, x, held = tree.local(0), tree.local(1), tree.local(2)
    tree.state().guard("MODES", read_modes())
    root.guard("TYPE_IS", type(module))
    root.guard("MODULE_CALL", None)
    parameters = root.child("ATTR", "_parameters")
    parameters.guard("KEYS", tuple(module._parameters))
    weight = parameters.child("KEY", "weight")
    weight.guard("TENSOR", tensor_facts(module.weight))
    root.child("TYPE").child("LOOKUP", "forward").guard("IS", type(module).forward)
    x.guard("TENSOR", tensor_facts(tensor))
    x.guard("DIFFERENT", (weight,))
    x.guard("SIZES", SizeProgram((("load", x.child("SIZE", 0)), ("const", 0), ("gt",))))
    held.child("ATTR", "names").guard("MEMBERS", frozenset({"a", "b"}))
    held.child("ATTR", "big").guard("EQUALS", 10**20)
    held.child("ATTR", "items").child("INDEX", 0).guard("EQUALS", "long enough to be no shared constant")
    held.child("DICT").guard("HAS_KEY", "names")
    tree.const(config).child("ATTR", "names").guard("LENGTH", 2)
    program = compile_guards(tree, [weight, x.child("SIZE", 1), x.child("GRAD"), held.child("ATTR", "items")])
    weaken(tree)
    return program


def make_world():
    config = Config()
    config.names, config.big, config.items = {"a", "b"}, 10**20, ["".join(["long enough to be no ", "shared constant"])]
    return torch.nn.Linear(2, 2), torch.ones(3, 2), config


def test_checks_leave_reference_counts_alone():
    world = make_world()
    program = busy_program(*world)
    wrong = (world[0], torch.ones(3, 3), world[2])
    watched = [*world, world[0].weight, world[2].items, world[2].big, program, None, torch.nn.Linear]
    for _ in range(3):
        assert program.check(None, world) is not None and program.check(None, wrong) is None
    before = [sys.getrefcount(value) for value in watched]
    for _ in range(500):
        assert program.check(None, world) is not None and program.check(None, wrong) is None
    assert [sys.getrefcount(value) for value in watched] == before


def test_failing_programs_leave_nothing_behind():
    """Every way a malformed program can be refused, halfway through its tables."""
    good = {
        "registers": 1, "integers": 1, "instructions": [(core.OPCODES["LOCAL"], 0, -1, 0, 0, None)],
        "groups": [(0, 1, 1, 0, 0, 0, False)], "fetches": [0], "tensors": [], "modes": [], "sizes": [], "ranges": [],
    }  # fmt: skip
    assert core.GuardProgram(**good).check(None, (5,)) == (5,)
    marker = object()
    bad = [
        {"registers": -1}, {"instructions": [(999, 0, 0, 0, 0, marker)]}, {"instructions": [(0, 5, -1, 0, 0, marker)]},
        {"instructions": [(core.OPCODES["LOCAL"], 0, -1, 0, 0, marker), (0, 0, 7, 0, 0, marker)]},
        {"instructions": [(core.OPCODES["TENSOR"], -1, 0, 3, 0, marker)]}, {"instructions": [7]},
        {"instructions": [(core.OPCODES["IS_WEAK"], -1, 0, 0, 0, 5)]},
        {"instructions": [(core.OPCODES["KEYS"], -1, 0, 0, 0, marker)]},
        {"groups": [(0, 5, 5, 0, 0, 0, False)]}, {"groups": [(0, 1)]}, {"fetches": [4]}, {"fetches": [-3]},
        {"tensors": [(1, 2)]}, {"modes": [(marker, {}, False, 1)]}, {"sizes": [(("add", 0),)]},
        {"sizes": [(("const", 1),) * 2]}, {"sizes": [(("load_object", 9),)]}, {"sizes": [(("nonsense", 9),)]},
        {"ranges": [(2**70, None)]}, {"ranges": [5]},
    ]  # fmt: skip
    before = sys.getrefcount(marker)
    for change in bad:
        for _ in range(20):
            try:
                core.GuardProgram(**{**good, **change})
            except (ValueError, TypeError, OverflowError):
                continue
            raise AssertionError(f"accepted: {change}")
    del change
    assert sys.getrefcount(marker) == before


def make_dispatcher(number):
    """A function of its own, compiled: a cycle through function, dispatcher, table, entry and residual."""
    module, tensor, config = make_world()

    def function(module, x, config):
        return dispatcher, number

    table = core.EntryTable()
    dispatcher = core.Dispatcher(function, table, lambda d, f, a: table)
    table.insert(core.Entry(busy_program(module, tensor, config), lambda *values: ("entry", dispatcher)[0]))
    assert dispatcher(module, tensor, config) == "entry"
    tail = core.Continuation(table, lambda d, f, a: core.TailCall(print, tail), ("x",))
    dispatcher.tail = tail
    return dispatcher, (module, tensor, config)


def test_a_thousand_dispatchers_are_collected():
    def round_of(count):
        references = []
        for number in range(count):
            dispatcher, world = make_dispatcher(number)
            references += [weakref.ref(dispatcher), weakref.ref(dispatcher.__stator_table__), weakref.ref(world[0])]
            del dispatcher, world
        gc.collect()
        assert all(reference() is None for reference in references)

    round_of(100)
    gc.collect()
    objects, memory = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10):
        round_of(100)
    assert len(gc.get_objects()) <= objects + 50
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # the sanitizer keeps freed memory back on purpose
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= memory + 8 * 1024


def test_an_entry_keeps_no_argument_alive():
    (module, tensor, config) = world = make_world()
    program = busy_program(*world)
    table = core.EntryTable()
    table.insert(core.Entry(program, lambda *values: None))
    dispatcher = core.Dispatcher(lambda module, x, config: None, table, lambda *_: "miss")
    assert dispatcher(*world) is None
    references = [weakref.ref(value) for value in (module, tensor, config)]
    del world, module, tensor
    gc.collect()
    assert [reference() is None for reference in references] == [True, True, False]
    del config
    assert references[2]() is None and table.entries == ()


def test_a_cycle_through_a_constant_is_collected():
    """An entry whose program holds the globals of the function it is an entry of."""
    namespace = {"core": core}
    exec("def function(x): return x", namespace)
    tree = SourceTree(("x",))
    tree.const(namespace, "G").guard("HAS_KEY", "function")
    table = core.EntryTable()
    table.insert(core.Entry(compile_guards(tree), lambda x: x))
    namespace["function"] = core.Dispatcher(namespace["function"], table, lambda *_: None)
    assert namespace["function"](3) == 3
    gone = weakref.ref(table)
    del namespace, table, tree
    gc.collect()
    assert gone() is None


def test_a_dispatcher_called_from_a_finalizer_of_its_own_cycle():
    answers = []

    class Last:
        def __del__(self):
            answers.append(self.dispatcher(1))

    def build():
        last = Last()
        table = core.EntryTable()
        last.dispatcher = core.Dispatcher(lambda x: x, table, lambda d, f, a: a)
        last.dispatcher.last = last
        table.insert(core.Entry(compile_guards(SourceTree()), lambda x: ("entry", x)))

    build()
    gc.collect()
    assert answers == [("entry", 1)]


def test_tail_calls_are_reused_and_freed():
    marker = object()
    before = sys.getrefcount(marker)
    for count in (1, 3, 24, 25, 40):
        calls = [core.TailCall(print, *(marker,) * count) for _ in range(100)]
        assert sys.getrefcount(marker) == before + 100 * count
        del calls
        assert sys.getrefcount(marker) == before
    loop = []
    loop.append(core.TailCall(print, loop, marker))
    del loop
    gc.collect()
    assert sys.getrefcount(marker) == before
