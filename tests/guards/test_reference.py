"""Each guard kind and step: holds on what it was made from, fails on each way it can change, runs no user code."""

import collections
import math
import types
import weakref

import numpy as np
import pytest
import torch
from torch.utils._device import DeviceContext

from stator.guards import all_misses, compile_guards, evaluate, explain_miss
from stator.guards.reference import tensor_facts
from stator.guards.size_program import SizeProgram
from stator.values.source import GUARD_KINDS, STEPS, SourceTree


class Trap:
    """Every special method of it that a guard might call by mistake raises."""

    def __init__(self):
        self.x = 1

    def _raise(self, *_):
        raise AssertionError("a guard ran user code")

    __getattribute__ = __getattr__ = __eq__ = __ne__ = __len__ = __getitem__ = __iter__ = __contains__ = _raise
    __bool__ = __call__ = __repr__ = __str__ = _raise

    def __hash__(self):
        if TRAPS_ARMED:
            raise AssertionError("a guard ran user code")
        return hash("key")


TRAPS_ARMED = False


class TrapDict(dict):
    def _raise(self, *_):
        raise AssertionError("a guard ran user code")

    __getitem__ = __contains__ = __iter__ = __len__ = get = keys = items = __missing__ = __eq__ = _raise


class TrapList(list):
    def _raise(self, *_):
        raise AssertionError("a guard ran user code")

    __getitem__ = __contains__ = __iter__ = __len__ = __eq__ = _raise


class TrapTuple(tuple):
    __getitem__ = __contains__ = __iter__ = __len__ = __eq__ = TrapList._raise
    __hash__ = None


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


def both(tree, fetches, function, arguments):
    """What native and reference say; they must say the same, first and repeated (with facts) alike."""
    program = compile_guards(tree, fetches)
    expected = evaluate(tree, fetches, function, arguments)
    for _ in range(3):
        actual = program.check(function, arguments)
        if expected is None:
            assert actual is None
        else:
            assert actual is not None and len(actual) == len(expected)
            for left, right in zip(actual, expected, strict=True):
                assert left is right or (type(left) is type(right) and left == right)
    misses = all_misses(tree, function, arguments, fetches)
    assert (expected is None) == bool(misses)
    assert explain_miss(tree, function, arguments, fetches) == (misses[0] if misses else None)
    assert all(str(miss) for miss in misses)
    return expected is not None


def holds(kind, expected, value, function=None):
    tree = SourceTree(("x",))
    tree.local(0).guard(kind, expected)
    return both(tree, [tree.local(0)], function, (value,))


class Sub(torch.Tensor):
    pass


def test_every_row_is_tried():
    """The two tables of values/source.py and this file go together."""
    tried = {row[0] for row in ROWS} | {"SAME", "DIFFERENT", "MODES", "SIZES"}
    assert tried == set(GUARD_KINDS)
    assert {row[0] for row in STEP_ROWS} | {"FROM_NUMPY", "FUNCTION_MODE"} == STEPS


def ordered(*keys):
    result = collections.OrderedDict((key, 1) for key in ("a", "b"))
    for key in keys:
        result.move_to_end(key)
    return result


def function_a():
    return 1


def function_b():
    return 1


# kind, expected, values that hold, values that do not
ROWS = [
    ("TYPE_IS", int, [1, 10**30], [True, 1.0, None]),
    ("TYPE_IS", Trap, [Trap()], [1]),
    ("IS", None, [None], [0, False]),
    ("IS", True, [True], [1]),
    ("IS_NOT", None, [0, False], [None]),
    ("EQUALS", 3, [3], [3.0, True, 4, "3", None, Trap()]),
    ("EQUALS", 10**30, [10**30], [10**30 + 1]),
    ("EQUALS", True, [True], [1, False]),
    ("EQUALS", 0.0, [0.0], [-0.0, 0, False, math.nan]),
    ("EQUALS", math.nan, [math.nan, float("nan")], [0.0]),
    ("EQUALS", 1 + 0j, [1 + 0j], [1.0, complex(1, -0.0)]),
    ("EQUALS", "ab", ["ab", "".join(["a", "b"])], ["abc", b"ab"]),
    ("EQUALS", b"ab", [b"ab"], ["ab", b"a"]),
    ("EQUALS", (1, (2.0, "x"), None), [(1, (2.0, "x"), None)], [(1, (2, "x"), None), (1, (2.0, "x")), [1]]),
    ("EQUALS", frozenset({1, 2.5, (1,)}), [frozenset({2.5, (1,), 1})],
     [frozenset({1, 2}), {1, 2.5, (1,)}, frozenset()]),
    ("EQUALS", frozenset({1}), [frozenset({1})], [frozenset({True}), frozenset({1.0})]),
    ("EQUALS", slice(1, None, 2), [slice(1, None, 2)], [slice(1, 2, 2), slice(True, None, 2), None]),
    ("EQUALS", range(0, 4, 2), [range(0, 4, 2)], [range(0, 3, 2), range(4)]),
    ("EQUALS", torch.Size([1, 2]), [torch.Size([1, 2])], [(1, 2), torch.Size([1])]),
    ("EQUALS", torch.float32, [torch.float32], [torch.float64]),
    ("EQUALS", torch.device("cpu"), [torch.device("cpu")], [torch.device("meta"), "cpu"]),
    ("EQUALS", Ellipsis, [...], [None]),
    ("LENGTH", 2, [[1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", "αβ", b"ab", bytearray(b"ab"), collections.deque((1, 2)),
                   frozenset({1, 2}), range(2), TrapList((1, 2)), TrapDict(a=1, b=2), torch.Size([1, 2])],
     [[], "a", 2, None, Trap(), {1: 1}, range(3), collections.deque()]),
    ("KEYS", ("a", "b"), [{"a": 1, "b": 2}, ordered(), TrapDict(a=1, b=2), collections.defaultdict(int, a=1, b=2)],
     [{"b": 1, "a": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, ordered("a"), ["a", "b"]]),
    ("KEYS", (1, 2.0, (3,)), [{1: 0, 2.0: 0, (3,): 0}], [{1: 0, 2: 0, (3,): 0}, {True: 0, 2.0: 0, (3,): 0}]),
    ("HAS_KEY", "key", [{"key": 1}, {"key": 1, 5: 1}, TrapDict(key=1)], [{}, {"k": 1}, [], {Trap(): 1}, None]),
    ("HAS_KEY", 1, [{1: 1}], [{True: 1}, {1.0: 1}, {2: 1}]),
    ("LACKS_KEY", "key", [{}, {"k": 1}, {Trap(): 1}, {1: 1}], [{"key": 1}, {3: 1, "key": 1}, [], None]),
    ("MEMBERS", frozenset({1, "a"}), [{1, "a"}, frozenset({"a", 1})],
     [{1}, {1, "a", 2}, {True, "a"}, {Trap(), 1}, [1]]),
    ("LACKS_ATTR", "y", [Trap(), 1, Slotted(), int], [types.SimpleNamespace(y=1)]),
    ("LOOKUP_ABSENT", "nothing_here", [int, Trap, type], [1, None]),
    ("LOOKUP_ABSENT", "__len__", [int], [list, TrapList, collections.OrderedDict]),
    ("TENSOR", tensor_facts(torch.ones(2, 3)), [torch.zeros(2, 3)],
     [torch.ones(3, 2), torch.ones(3, 2).T, torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, device="meta"),
      torch.ones(2, 3, requires_grad=True), torch.nn.Parameter(torch.ones(2, 3)), torch.ones(2, 3).as_subclass(Sub),
      torch.ones(2, 3, 1), None, torch.ones(2, 3).to_sparse(), torch.ones(2, 3, dtype=torch.complex64).imag, Trap()]),
    ("MODULE_CALL", None, [torch.nn.Linear(1, 1)], [1, None, Trap(), torch.nn.Linear]),
    ("CODE_IS", function_a.__code__, [function_a], [function_b, len, None]),
    ("RANGE", (1, 3), [1, 2, 3], [0, 4, True, 2.0, 10**30, -(10**30), None]),
    ("RANGE", (None, 3), [-(10**30), 3], [4, 10**30]),
    ("RANGE", (2, None), [10**30, 2], [1]),
    ("ITERATOR", type(iter([])), [iter([1])], [iter(()), [], None]),
]  # fmt: skip


@pytest.mark.parametrize("kind, expected, good, bad", ROWS, ids=lambda item: item if isinstance(item, str) else "")
def test_kind(kind, expected, good, bad):
    global TRAPS_ARMED
    TRAPS_ARMED = True
    try:
        for value in good:
            assert holds(kind, expected, value), (kind, type(value))
        for value in bad:
            assert not holds(kind, expected, value), (kind, type(value))
    finally:
        TRAPS_ARMED = False


class Meta(type):
    def __getattribute__(cls, name):
        raise AssertionError("a guard ran user code")


class Odd(metaclass=Meta):
    marker = 5


def closure_over(value):
    def inner():
        return value

    return inner


def with_attr(value):
    holder = Trap()
    object.__getattribute__(holder, "__dict__")["x"] = value
    return holder


def with_slot(value):
    holder = Slotted()
    holder.a = value
    return holder


def grown(value):
    tensor = torch.zeros(2, requires_grad=True)
    tensor.grad = value
    return tensor


TENSOR = torch.arange(12.0).reshape(3, 4)[:, 1:]
GRAD = torch.ones(2)

# step, key, how to make a parent for a value, whether the child is that value
STEP_ROWS = [
    ("ATTR", "x", with_attr),
    ("SLOT", "a", with_slot),
    ("DICT", None, lambda value: types.SimpleNamespace(v=value)),
    ("INDEX", 1, lambda value: [0, value]),
    ("INDEX", 1, lambda value: (0, value)),
    ("INDEX", 1, lambda value: TrapList([0, value])),
    ("INDEX", 1, lambda value: TrapTuple([0, value])),
    ("INDEX", 1, lambda value: collections.deque([0, value])),
    ("KEY", "k", lambda value: {"k": value}),
    ("KEY", (1, 2.0), lambda value: {(1, 2.0): value, "k": 1}),
    ("KEY", "k", lambda value: TrapDict(k=value)),
    ("KEY", "k", lambda value: collections.OrderedDict(k=value)),
    ("DICT_KEY", 1, lambda value: {0: 0, value: 0}),
    ("TYPE", None, lambda value: value),
    ("LOOKUP", "marker", lambda value: Odd),
    ("CONTENTS", None, lambda value: closure_over(value).__closure__[0]),
    ("REFERENT", None, lambda value: weakref.ref(Odd)),
    ("SIZE", 1, lambda value: TENSOR),
    ("STRIDE", 0, lambda value: TENSOR),
    ("OFFSET", None, lambda value: TENSOR),
    ("GRAD", None, lambda value: grown(GRAD)),
]
ANSWERS = {"TYPE": int, "LOOKUP": 5, "REFERENT": Odd, "SIZE": 3, "STRIDE": 4, "OFFSET": 1, "GRAD": GRAD}


@pytest.mark.parametrize("step, key, make", STEP_ROWS, ids=lambda item: item if isinstance(item, str) else "")
def test_step(step, key, make):
    tree = SourceTree(("x",))
    node = tree.local(0).child(step, key)
    value = 7919
    parent = make(value)
    program = compile_guards(tree, [node])
    expected = {"v": value} if step == "DICT" else ANSWERS.get(step, value)
    for _ in range(3):
        (found,) = program.check(None, (parent,))
        assert type(found) is type(expected)
        assert found is expected or (step != "GRAD" and found == expected)
    (found,) = evaluate(tree, [node], None, (parent,))
    assert found is expected or found == expected or step == "GRAD"
    both(tree, [node], None, (parent,))
    nowhere = 3 if step == "TYPE" else object()
    assert both(tree, [node], None, (nowhere,)) == (step == "TYPE")
    assert not both(tree, [node], None, ())


def test_from_numpy_step():
    tree = SourceTree(("x",))
    node = tree.local(0).child("FROM_NUMPY")
    array = np.arange(6.0).reshape(2, 3)
    node.guard("TENSOR", tensor_facts(torch.from_numpy(array)))
    program = compile_guards(tree, [node])
    (found,) = program.check(None, (array,))
    assert found.data_ptr() == array.ctypes.data
    assert program.check(None, (array + 1,)) is not None
    assert evaluate(tree, [node], None, (array,)) is not None
    frozen = array.copy()
    frozen.flags.writeable = False
    for other in (array[:, ::-1], array[:1], array.astype(np.float32), np.array(["a"]), frozen, [1.0], None):
        assert not both(tree, [node], None, (other,))


def test_function_mode_step():
    tree = SourceTree(())
    node = tree.state().child("FUNCTION_MODE", 1)
    node.guard("TYPE_IS", DeviceContext)
    program = compile_guards(tree, [node])
    inner = DeviceContext("cpu")
    assert program.check(None, ()) is None
    with DeviceContext("meta"):
        assert not both(tree, [node], None, ())
        torch._C._push_on_torch_function_stack(inner)
        try:
            assert program.check(None, ()) == (inner,)
            assert both(tree, [node], None, ())
        finally:
            torch._C._pop_torch_function_stack()


def test_step_beyond_the_end():
    for step, key, parent in [
        ("INDEX", 2, [1, 2]), ("INDEX", 2, (1, 2)), ("INDEX", 5, collections.deque()), ("KEY", "z", {"k": 1}),
        ("DICT_KEY", 1, {"k": 1}), ("SIZE", 2, TENSOR), ("STRIDE", 2, TENSOR), ("SLOT", "b", Slotted()),
        ("SLOT", "x", Trap()), ("ATTR", "z", Trap()), ("ATTR", "x", 1), ("LOOKUP", "z", Odd),
        ("CONTENTS", None, types.CellType()), ("STRIDE", 0, torch.ones(2, 2).to_sparse()),
    ]:  # fmt: skip
        tree = SourceTree(("x",))
        assert not both(tree, [tree.local(0).child(step, key)], None, (parent,)), step


def test_slots_of_builtin_types():
    def f(a, b=2, *, c=3):
        return a

    tree = SourceTree(("f",))
    root = tree.local(0)
    root.guard("TYPE_IS", types.FunctionType)
    names = ["__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__", "__name__", "__module__"]
    assert both(tree, [root.child("SLOT", name) for name in names], None, (f,))
    tree = SourceTree(("m",))
    root = tree.local(0)
    root.guard("TYPE_IS", types.MethodType)
    method = torch.nn.Linear(1, 1).forward
    assert both(tree, [root.child("SLOT", "__self__"), root.child("SLOT", "__func__")], None, (method,))
    tree = SourceTree(("t",))
    root = tree.local(0)
    assert both(tree, [root.child("SLOT", "requires_grad"), root.child("SLOT", "is_leaf")], None, (torch.ones(2),))


def test_tensor_getters_call_no_torch_function():
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_):
            raise AssertionError("a guard ran user code")

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, *_):
            raise AssertionError("a guard ran user code")

    with torch._C.DisableTorchFunction():
        loud = torch.ones(2, 3).as_subclass(Loud)
    tree = SourceTree(("t",))
    root = tree.local(0)
    root.guard("TENSOR", tensor_facts(loud))
    with Mode():
        assert both(tree, [root.child("SIZE", 1), root.child("GRAD"), root.child("SLOT", "is_leaf")], None, (loud,))


def test_roots():
    def outer():
        seen = [1]

        def inner():
            return seen

        return inner, seen

    inner, seen = outer()
    tree = SourceTree((), ("seen",))
    kept = types.SimpleNamespace(z=1)
    fetches = [tree.cell(0), tree.root("FUNCTION"), tree.const(kept, "kept").child("ATTR", "z")]
    tree.cell(0).guard("LENGTH", 1)
    assert both(tree, fetches, inner, ())
    other, other_seen = outer()
    assert both(tree, fetches, other, ())
    other_seen.append(2)
    assert not both(tree, fetches, other, ())
    assert not both(tree, fetches, None, ())
    assert str(tree.cell(0)) == "seen"


def test_same_and_different():
    tree = SourceTree(("a", "b", "c"))
    tree.local(0).guard("SAME", tree.local(1))
    tree.local(2).guard("DIFFERENT", (tree.local(0), tree.local(1)))
    a, b = torch.ones(1), torch.ones(1)
    assert both(tree, [], None, (a, a, b))
    assert not both(tree, [], None, (a, b, b))
    assert not both(tree, [], None, (a, a, a))


def test_sizes():
    x = torch.zeros(6, 4)
    tree = SourceTree(("x", "n"))
    rows, n = tree.local(0).child("SIZE", 0), tree.local(1)
    program = SizeProgram((("load", rows), ("load", n), ("mod",), ("const", 0), ("eq",)))
    tree.local(0).guard("SIZES", program)
    assert str(program) == "(x.size(0) % n) == 0"
    assert (
        both(tree, [rows], None, (x, 3)) and both(tree, [rows], None, (x, -2)) and both(tree, [rows], None, (x, True))
    )
    for wrong in (4, 0, 3.0, 10**30, None):
        assert not both(tree, [rows], None, (x, wrong))
    miss = explain_miss(tree, None, (x, 4))
    assert miss.actual == "x.size(0)=6, n=4"


def test_size_compared_by_identity_is_loaded_as_an_object():
    tree = SourceTree(("x", "n"))
    size = tree.local(0).child("SIZE", 0)
    size.guard("SAME", tree.local(1))
    assert both(tree, [size], None, (torch.zeros(6), 6))


def test_guards_on_integers():
    tree = SourceTree(("x",))
    size = tree.local(0).child("SIZE", 0)
    size.guard("RANGE", (2, 9))
    size.guard("TYPE_IS", int)
    assert both(tree, [size], None, (torch.zeros(6),))
    assert not both(tree, [size], None, (torch.zeros(10),))
    size.guard("EQUALS", 7)
    assert not both(tree, [size], None, (torch.zeros(6),))
    assert both(tree, [size], None, (torch.zeros(7),))


def test_modes():
    from stator.guards.modes import read_modes

    tree = SourceTree()
    tree.state().guard("MODES", read_modes())

    def ok():
        return both(tree, [], None, ())

    assert ok()
    with torch.no_grad():
        assert not ok()
        assert "grad_enabled=False" in str(explain_miss(tree, None, ()))
    with torch.inference_mode():
        assert not ok()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not ok()
    with torch.device("meta"):
        assert not ok()
    with torch.overrides.BaseTorchFunctionMode():
        assert not ok()
    with torch._C.DisableTorchFunctionSubclass():
        assert not ok()
    torch.set_default_dtype(torch.float64)
    try:
        assert not ok()
    finally:
        torch.set_default_dtype(torch.float32)
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        assert not ok()
    finally:
        torch._C._set_deterministic_algorithms(False)
    assert ok()


def test_default_device_alone():
    from stator.values.source import ModesExpectation

    tree, on_meta = SourceTree(), SourceTree()
    tree.state().guard("MODES", ModesExpectation(default_device=torch.device("cpu")))
    on_meta.state().guard("MODES", ModesExpectation(default_device=torch.device("meta")))
    assert both(tree, [], None, ()) and not both(on_meta, [], None, ())
    with torch.overrides.BaseTorchFunctionMode():
        assert both(tree, [], None, ()) and not both(on_meta, [], None, ())
    with torch.device("meta"):
        assert both(on_meta, [], None, ()) and not both(tree, [], None, ())


def test_autocast_rows():
    from stator.guards.modes import read_modes

    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        tree = SourceTree()
        tree.state().guard("MODES", read_modes())
        assert both(tree, [], None, ())
    assert not both(tree, [], None, ())
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert not both(tree, [], None, ())
    with torch.autocast("cpu", dtype=torch.float16):
        assert not both(tree, [], None, ())


def test_module_call():
    def fresh():
        return torch.nn.Linear(2, 2)

    tree = SourceTree(("m",))
    tree.local(0).guard("MODULE_CALL", None)
    program = compile_guards(tree)
    module = fresh()
    assert program.check(None, (module,)) == ()
    handles = [
        module.register_forward_hook(lambda *_: None),
        module.register_forward_pre_hook(lambda *_: None),
        module.register_full_backward_hook(lambda *_: None),
        module.register_full_backward_pre_hook(lambda *_: None),
    ]
    while handles:
        assert program.check(None, (module,)) is None and not both(tree, [], None, (module,))
        handles.pop().remove()
    assert program.check(None, (module,)) == ()
    for name in ("forward", "__call__", "_call_impl"):
        module = fresh()
        module.__dict__[name] = lambda x: x
        assert program.check(None, (module,)) is None and not both(tree, [], None, (module,))
    module = fresh()
    module.__dict__["_compiled_call_impl"] = lambda x: x  # compiling a module leaves what its call means alone
    assert both(tree, [], None, (module,))


def test_explain_names_what_changed():
    tree = SourceTree(("x", "scale"))
    tree.local(0).guard("TENSOR", tensor_facts(torch.ones(2, 3)))
    tree.local(1).guard("EQUALS", 2)
    miss = explain_miss(tree, None, (torch.ones(2, 4, dtype=torch.float16), 3))
    assert miss.source == "x" and miss.kind == "TENSOR"
    assert miss.expected.startswith("float32[2, 3] on cpu") and miss.actual.startswith("float16[2, 4] on cpu")
    assert [miss.source for miss in all_misses(tree, None, (torch.ones(2, 4), 3))] == ["x", "scale"]


def test_a_closure_itself_has_a_name():
    tree = SourceTree(("x",), ("value",))
    closure = tree.root("FUNCTION").child("ATTR", "__closure__")
    assert str(closure.child("TYPE")) == "type(the function.__closure__)"
    assert str(closure.child("INDEX", 0).child("CONTENTS")) == "value"
