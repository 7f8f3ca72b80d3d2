"""Dispatcher, Continuation, EntryTable, TailCall: binding, looks, entries, misses, trampolines."""

import copy
import functools
import inspect
import pickle
import sys
import types
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stator._native import core
from stator.guards import compile_guards, explain_miss, weaken
from stator.guards.reference import tensor_facts
from stator.values.source import SourceTree


def locals_of(dispatcher, function, arguments):
    return arguments


def dispatcher_of(function, on_miss=locals_of, table=None):
    return core.Dispatcher(function, table or core.EntryTable(), on_miss)


def entry_for(function, guards, fetches=(), residual=None, **options):
    tree = SourceTree()
    nodes = [tree.local(index) for index in range(4)]
    guards(*nodes[: guards.__code__.co_argcount])
    return core.Entry(compile_guards(tree, [fetch(tree) for fetch in fetches]), residual or function, **options)


# ---- binding ----

SIGNATURES = [
    "a", "a, b=2", "a, /, b", "a, /, b=3, *, c", "*args", "**kw", "a, *args, b=5, **kw", "a, b, /, c=1, *, d=2, e",
    "a=1, b=2, *args, c, d=4, **kw", "", "a, /, **kw",
]  # fmt: skip


@settings(max_examples=600, deadline=None, database=None)
@given(
    st.sampled_from(SIGNATURES),
    st.lists(st.integers(0, 9), max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e", "z"]), st.integers(10, 19), max_size=4),
)
def test_binding_is_that_of_python(signature, positional, keywords):
    namespace = {}
    exec(f"def f({signature}):\n return tuple(locals().items())", namespace)
    function = namespace["f"]
    names = function.__code__.co_varnames

    def on_miss(dispatcher, original, arguments):
        assert original is function and len(arguments) == len(names)
        return tuple(zip(names, arguments, strict=True))

    dispatcher = dispatcher_of(function, on_miss)
    try:
        expected = function(*positional, **keywords)
    except TypeError as error:
        with pytest.raises(TypeError) as caught:
            dispatcher(*positional, **keywords)
        assert str(caught.value) == str(error)
    else:
        assert dict(dispatcher(*positional, **keywords)) == dict(expected)


def test_defaults_are_read_at_each_call():
    def f(a=1, *, b=2):
        return a, b

    d = dispatcher_of(f)
    assert d() == (1, 2)
    f.__defaults__ = (7,)
    f.__kwdefaults__ = {"b": 8}
    assert d() == (7, 8)
    f.__kwdefaults__["b"] = 9
    assert d() == (7, 9)
    f.__defaults__ = f.__kwdefaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional"):
        d()


def test_keywords_that_are_no_plain_strings():
    class Name(str):
        pass

    d = dispatcher_of(lambda a=1, **kw: (a, kw))
    assert d(**{Name("a"): 5}) == (5, {})
    with pytest.raises(TypeError):
        d(**{1: 2})


def test_many_arguments():
    names = [f"a{i}" for i in range(200)]
    namespace = {}
    exec(f"def f({', '.join(names)}, *rest): pass", namespace)
    d = dispatcher_of(namespace["f"])
    assert d(*range(203)) == (*range(200), (200, 201, 202))
    assert d(**dict.fromkeys(names, 1)) == (*(1,) * 200, ())


def test_the_code_of_the_function_is_replaced():
    def f(a):
        return "old"

    def g(a, b=2):
        return "new"

    table = core.EntryTable()
    d = dispatcher_of(f, table=table)
    table.insert(entry_for(f, lambda a: None, residual=lambda a: "entry"))
    assert d(1) == "entry"
    f.__code__ = g.__code__
    f.__defaults__ = (3,)
    assert d(1) == (1, 3)  # bound by the new code, and none of the old one's entries


# ---- looks ----


def module_level(x: int = 3) -> int:
    "What it does."
    return x


module_level.custom = "mine"
decorated = core.Dispatcher(module_level, core.EntryTable(), lambda d, f, a: f(*a))


def test_it_looks_like_the_function():
    f, d = module_level, decorated
    for name in (
        "__name__",
        "__qualname__",
        "__doc__",
        "__module__",
        "__defaults__",
        "__code__",
        "__annotations__",
        "custom",
    ):
        assert getattr(d, name) == getattr(f, name), name
    assert d.__wrapped__ is f and callable(d) and inspect.unwrap(d) is f
    assert inspect.signature(d) == inspect.signature(f)
    assert "module_level" in repr(d)
    assert not hasattr(d, "nothing")
    assert weakref.ref(d)() is d
    d.own = 5
    assert d.own == 5 and not hasattr(f, "own") and d.__dict__ == {"own": 5}
    del d.own


def test_names_can_be_set_without_touching_the_function():
    def f():
        "doc"

    d = dispatcher_of(f)
    d.__doc__, d.__name__ = "other", "g"
    assert (d.__doc__, d.__name__, f.__doc__, f.__name__) == ("other", "g", "doc", "f")
    del d.__doc__
    assert d.__doc__ == "doc"
    functools.update_wrapper(d, module_level)
    assert d.__name__ == "module_level" and d.custom == "mine"


def test_copy_and_pickle_go_by_identity():
    assert copy.copy(decorated) is decorated and copy.deepcopy([decorated])[0] is decorated
    f = types.FunctionType(module_level.__code__, globals(), "decorated")
    f.__qualname__, f.__module__ = "decorated", __name__
    named = core.Dispatcher(f, core.EntryTable(), locals_of)
    globals()["decorated_again"] = named
    f.__qualname__ = "decorated_again"
    assert pickle.loads(pickle.dumps(named)) is named


def test_as_a_method():
    class C:
        def m(self, x):
            return self, x

        m = dispatcher_of(m)
        s = staticmethod(dispatcher_of(lambda x: x))
        k = classmethod(dispatcher_of(lambda cls, x: x))

    c = C()
    assert c.m(3) == (c, 3) and C.m(c, 4) == (c, 4) and c.m.__self__ is c
    assert C.s(1) == (1,) and c.k(2) == (C, 2)
    assert type(c).__dict__["m"] is C.m
    assert isinstance(c.m, types.MethodType)


def test_arguments_of_the_wrong_type():
    for wrong in (len, 5, type, functools.partial(module_level)):
        with pytest.raises(TypeError):
            core.Dispatcher(wrong, core.EntryTable(), locals_of)
    with pytest.raises(TypeError):
        core.Dispatcher(module_level, None, locals_of)
    with pytest.raises(TypeError):
        core.Dispatcher(module_level, core.EntryTable(), None)
    with pytest.raises(TypeError):
        core.Entry(compile_guards(SourceTree()), None)
    with pytest.raises(TypeError):
        core.EntryTable().insert(None)
    with pytest.raises(TypeError):
        core.TailCall()
    with pytest.raises(TypeError):
        core.TailCall(len, x=1)
    with pytest.raises(ValueError):
        core.set_mode(7)


# ---- entries ----


def test_entries_pass_locals_then_fetched_values():
    def f(a, *args, b=1, **kw):
        raise AssertionError("not called")

    table = core.EntryTable()
    d = dispatcher_of(f, table=table)
    seen = []
    fetches = [lambda tree: tree.local(0).child("INDEX", 1), lambda tree: tree.root("FUNCTION")]
    entry = entry_for(
        f, lambda a: a.guard("LENGTH", 2), fetches, residual=lambda *v: seen.append(v), passes_function=True
    )
    assert table.insert(entry)
    d([1, "second"], 5, c=6)
    assert seen == [(f, [1, "second"], 1, (5,), {"c": 6}, "second", f)]
    assert d([1]) == ([1], 1, (), {})
    assert entry.hits == 1 and entry.owner is None and table.entries == (entry,)


@pytest.mark.parametrize("count", [1, 2, 200])
@pytest.mark.parametrize("passes_function", [False, True])
@pytest.mark.parametrize("pass_on", [lambda f: f, functools.partial], ids=["function", "callable"])
def test_a_call_without_locals_gives_the_fetched_values(count, passes_function, pass_on):
    """A closure that takes nothing: fetched values stand where the function would, and references stay even."""
    values = [object() for _ in range(count)]

    def f():
        return values

    def residual(*arguments):
        return arguments

    fetches = [lambda tree, index=index: tree.cell(0).child("INDEX", index) for index in range(count)]
    table = core.EntryTable()
    assert table.insert(entry_for(f, lambda: None, fetches, pass_on(residual), passes_function=passes_function))
    d = dispatcher_of(f, table=table)
    before = sys.getrefcount(f), sys.getrefcount(values[0])
    for _ in range(100):
        assert d() == ((f, *values) if passes_function else tuple(values))
    assert (sys.getrefcount(f), sys.getrefcount(values[0])) == before


def test_hot_entries_move_first():
    def f(x):
        return x

    table = core.EntryTable()
    d = dispatcher_of(f, table=table)
    entries = [entry_for(f, lambda x, n=n: x.guard("EQUALS", n)) for n in range(3)]
    entries = []
    for n in range(3):
        tree = SourceTree()
        tree.local(0).guard("EQUALS", n)
        entries.append(core.Entry(compile_guards(tree), f))
        table.insert(entries[-1])
    for _ in range(100):
        d(2)
    assert table.entries[0] is entries[2]
    before = table.entries
    for _ in range(100):
        d(0), d(2)
    assert set(table.entries) == set(before)
    assert [entry.hits for entry in entries] == [100, 0, 200]


def test_a_table_is_shared_between_closures():
    def make(scale):
        def inner(x):
            return x * scale

        return inner

    first, second = make(2), make(3)
    table = core.EntryTable()
    tree = SourceTree(("x",), ("scale",))
    tree.cell(0).guard("TYPE_IS", int)
    table.insert(core.Entry(compile_guards(tree, [tree.cell(0)]), lambda x, scale: ("compiled", x * scale)))
    assert dispatcher_of(first, table=table)(5) == ("compiled", 10)
    assert dispatcher_of(second, table=table)(5) == ("compiled", 15)


def test_an_entry_belongs_to_one_table():
    def f(x):
        return x

    first, second = core.EntryTable(), core.EntryTable()
    entry = entry_for(f, lambda x: None)
    assert first.insert(entry) and entry.in_table
    with pytest.raises(ValueError):
        second.insert(entry)
    assert not second.remove(entry) and first.remove(entry) and not first.remove(entry)
    assert not entry.in_table and second.insert(entry)
    second.clear()
    assert second.entries == () and not entry.in_table
    with pytest.raises(ValueError):
        core.Entry(entry.program, f)


def test_the_lock_is_reentrant():
    lock = core.EntryTable().lock
    with lock, lock:
        pass


def test_an_entry_removes_itself_while_it_runs():
    table = core.EntryTable()

    def f(x):
        return x

    def residual(x):
        table.clear()
        return ("ran", x, table.entries)

    table.insert(entry_for(f, lambda x: None, residual=residual))
    d = dispatcher_of(f, table=table)
    assert d(1) == ("ran", 1, ()) and d(1) == (1,)


def test_errors_of_residuals_and_misses_pass_through():
    def f(x):
        return x

    def fail(*_):
        raise KeyError("mine")

    table = core.EntryTable()
    d = dispatcher_of(f, fail, table)
    with pytest.raises(KeyError, match="mine"):
        d(1)
    table.insert(entry_for(f, lambda x: None, residual=fail))
    before = sys.getrefcount(f)
    for _ in range(10):
        with pytest.raises(KeyError, match="mine"):
            d(1)
    assert sys.getrefcount(f) == before


def test_force_eager():
    d = dispatcher_of(module_level)
    before = core.set_mode(1)
    try:
        assert before == 0 and core.get_mode() == 1
        assert d(4) == 4 and d(x=5) == 5
    finally:
        core.set_mode(before)
    assert d(4) == (4,)


def test_tensor_guards_select_the_entry():
    def f(x):
        return x

    table = core.EntryTable()

    def on_miss(dispatcher, function, arguments):
        tree = SourceTree(("x",))
        tree.local(0).guard("TENSOR", tensor_facts(arguments[0]))
        shape = tuple(arguments[0].shape)
        table.insert(core.Entry(compile_guards(tree), lambda x: shape))
        return "compiled"

    d = dispatcher_of(f, on_miss, table)
    shapes = [(1,), (2, 2), (3, 1, 2)]
    assert [d(torch.ones(shape)) for shape in shapes] == ["compiled"] * 3
    assert [d(torch.ones(shape)) for shape in shapes] == shapes


# ---- weak references ----


class Thing:
    pass


def test_an_entry_dies_with_the_object_it_is_about():
    def f(x):
        return x

    for make in (
        lambda tree, thing: tree.local(0).guard("IS", thing),
        lambda tree, thing: tree.const(thing).guard("TYPE_IS", Thing),
    ):
        thing = Thing()
        table = core.EntryTable()
        tree = SourceTree()
        make(tree, thing)
        residual = lambda x: "compiled"
        entry = core.Entry(compile_guards(tree), residual)
        alive = weakref.ref(entry)
        gone = weakref.ref(thing)
        table.insert(entry)
        d = dispatcher_of(f, table=table)
        assert d(thing) == "compiled"
        weaken(tree)
        assert explain_miss(tree, f, (thing,)) is None
        del entry, make
        del thing
        assert gone() is None and table.entries == () and alive() is None
        assert d(1) == (1,)
        assert "Thing" in str(explain_miss(tree, f, (1,)))


def test_an_entry_about_a_dead_object_cannot_be_inserted():
    thing = Thing()
    tree = SourceTree()
    tree.local(0).guard("IS", thing)
    program = compile_guards(tree)
    entry = core.Entry(program, lambda x: x)
    weaken(tree)
    del thing
    assert program.dead and core.EntryTable().insert(entry) is False
    assert program.check(None, (1,)) is None


def test_classes_modules_and_builtins_are_held_strongly():
    tree = SourceTree()
    for value in (int, types, len, None, Thing):
        tree.local(0).guard("IS", value)
    assert {row[0] for row in compile_guards(tree).listing()} == {"LOCAL", "IS"}


def test_keys_of_dicts_are_held_weakly():
    tree = SourceTree(("state",))
    keys = [Thing() for _ in range(3)]
    state = {keys[0]: 1, "name": 2, keys[1]: 3}
    root = tree.local(0)
    root.guard("KEYS", tuple(state))
    root.guard("HAS_KEY", keys[1])
    root.guard("LACKS_KEY", keys[2])
    program = compile_guards(tree, [root.child("KEY", keys[1])])
    weaken(tree)
    for _ in range(3):
        assert program.check(None, (state,)) == (3,)
    assert explain_miss(tree, None, (state,)) is None
    assert program.check(None, ({keys[1]: 1, "name": 2, keys[0]: 3},)) is None
    assert program.check(None, ({keys[0]: 1, "name": 2, keys[1]: 3, keys[2]: 4},)) is None
    gone = weakref.ref(keys[0])
    state.clear()
    keys.clear()
    assert gone() is None and program.dead
    assert str(root.child("KEY", 5)) == "state[5]"
    assert explain_miss(tree, None, ({1: 1},)) is not None


# ---- tail calls ----


def test_a_million_tail_calls_need_no_stack():
    def step(count, total):
        return core.TailCall(continuation, count - 1, total + count) if count else total

    continuation = core.Continuation(core.EntryTable(), lambda d, f, a: step(*a), ("count", "total"))
    assert continuation(10**6, 0) == 10**6 * (10**6 + 1) // 2


def test_tail_calls_between_dispatchers_continuations_and_functions():
    table = core.EntryTable()
    tree = SourceTree()
    tree.local(0).guard("RANGE", (1, None))
    table.insert(core.Entry(compile_guards(tree), lambda n: core.TailCall(divmod, n * 10, 3)))
    continuation = core.Continuation(table, lambda d, f, a: ("miss", f, a), ("n",))

    def f(n):
        pass

    d = dispatcher_of(f, lambda d, f, a: core.TailCall(continuation, *a))
    assert d(2) == (6, 2)
    assert d(0) == ("miss", None, (0,))
    assert continuation(1) == (3, 1)
    with pytest.raises(TypeError, match="takes 1 positional"):
        continuation(1, 2)
    with pytest.raises(TypeError):
        continuation(n=1)
    dd = dispatcher_of(f, lambda *_: core.TailCall(d))
    with pytest.raises(TypeError, match="missing 1 required"):
        dd(1)


def test_tail_call_shows_what_it_holds():
    for count in (0, 1, 24, 25, 60):
        call = core.TailCall(print, *range(count))
        assert call.callable is print and call.args == tuple(range(count))


def test_deep_recursion_is_an_error_not_a_crash():
    def f(n):
        return n

    d = dispatcher_of(f, lambda d, f, a: d(*a))
    with pytest.raises(RecursionError):
        d(1)
