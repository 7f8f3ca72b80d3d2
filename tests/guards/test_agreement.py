"""The native machine and the Python reference answer alike, whatever happens to the objects between two calls.

A world of nested objects is made at random, a guard tree is hung on what is there, and then the world is changed step
by step. One program sees the whole history, so facts it recorded earlier have to notice each change.
"""

import collections
import contextlib
import gc
import os
import random
import types
import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stator.guards import all_misses, compile_guards, evaluate
from stator.guards.reference import tensor_facts
from stator.guards.size_program import SizeProgram
from stator.values.source import SourceTree

EXAMPLES = int(os.environ.get("STATOR_TEST_EXAMPLES", "250"))


class Plain:
    kind = "plain"

    def method(self):
        return 1


class Other(Plain):
    kind = "other"


class Slots:
    __slots__ = ("__weakref__", "a", "b")


class MyDict(dict):
    pass


class MyList(list):
    pass


def leaf(rng):
    return rng.choice(
        [
            lambda: rng.randrange(5),
            lambda: rng.randrange(10**6, 10**6 + 3),
            lambda: float(rng.randrange(3)),
            lambda: -0.0,
            lambda: f"name{rng.randrange(4)}",
            lambda: None,
            lambda: rng.random() < 0.5,
            lambda: (rng.randrange(3), f"t{rng.randrange(2)}"),
            lambda: frozenset({rng.randrange(3), "z"}),
            lambda: torch.float32,
            lambda: tensor(rng),
            lambda: tensor(rng),
        ]
    )()


def tensor(rng):
    sizes = [rng.randrange(1, 4) for _ in range(rng.randrange(4))]
    result = torch.zeros(sizes, dtype=rng.choice([torch.float32, torch.float32, torch.float64]))
    if rng.random() < 0.2 and result.dim() > 1:
        result = result.transpose(0, 1)
    if rng.random() < 0.2:
        result.requires_grad_()
    return result


def make_function(value):
    def function(a=1, *, b=2):
        return value

    return function


REFERENTS = {}  # what the world's weak references point to, until a mutation drops it


def world(rng, depth):
    """A random object."""
    if depth == 0 or rng.random() < 0.1:
        return leaf(rng)
    kind = rng.randrange(11)
    items = [world(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    keys = rng.sample(["a", "b", "c", 1, 2, (1, "x"), "weight"], len(items))
    if kind == 0:
        return rng.choice([list, MyList])(items)
    if kind == 1:
        return tuple(items)
    if kind in (2, 3):
        return rng.choice([dict, dict, MyDict, collections.OrderedDict])(zip(keys, items, strict=True))
    if kind in (4, 5):
        made = rng.choice([Plain, Other])()
        for key, item in zip(keys, items, strict=True):
            setattr(made, str(key), item)
        return made
    if kind == 6:
        made = Slots()
        made.a = items[0]
        return made
    if kind == 7:
        made = torch.nn.Linear(2, 2)
        made.extra = items[0] if not isinstance(items[0], torch.Tensor) else 1
        return made
    if kind == 8:
        return make_function(items[0])
    if kind == 9:
        referent = Plain()
        referent.item = items[0]
        REFERENTS[id(referent)] = referent
        return weakref.ref(referent)
    return {rng.randrange(4), "m", 2.5}


def steps_of(value, rng):
    """Steps that lead somewhere from a value."""
    steps = [("TYPE", None)] * (rng.random() < 0.3)
    if isinstance(value, (list, tuple)):
        steps += [("INDEX", index) for index in range(len(value))]
    if isinstance(value, dict):
        steps += [("KEY", key) for key in list(value)[:6]]
        steps += [("DICT_KEY", index) for index in range(min(len(value), 2))]
    if isinstance(value, type):
        steps += [("LOOKUP", name) for name in ("kind", "method", "__init__") if hasattr(value, name)]
    elif isinstance(value, torch.Tensor):
        steps += [("SIZE", index) for index in range(value.dim())]
        steps += [("STRIDE", index) for index in range(value.dim())]
        steps += [("OFFSET", None), ("GRAD", None)]
    elif isinstance(value, types.FunctionType):
        steps += [("SLOT", name) for name in ("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__name__")]
    elif isinstance(value, types.CellType):
        steps += [("CONTENTS", None)]
    elif isinstance(value, weakref.ref):
        steps += [("REFERENT", None)]
    elif isinstance(value, Slots):
        steps += [("SLOT", "a")]
    elif hasattr(value, "__dict__"):
        steps += [("DICT", None)]
        steps += [("ATTR", name) for name in list(value.__dict__)[:8] if isinstance(name, str)]
    return steps


def follow(value, step, key):
    from stator.guards.storage import follow

    return follow(step, key, value)


def hang_guards(node, value, rng):
    """Guards that hold for a value, some of them."""
    options = [("TYPE_IS", type(value))]
    if not isinstance(value, (int, float)) or value is None or isinstance(value, bool):
        options.append(("IS", value))
    options.append(("IS_NOT", Plain))
    if isinstance(value, (int, float, str, tuple, frozenset, type(None), torch.dtype)):
        options += [("EQUALS", value)] * 2
    if type(value) is int:
        options.append(("RANGE", (value - 1, value + 1)))
    if isinstance(value, (list, tuple, dict, set, frozenset, str)):
        options.append(("LENGTH", len(value)))
    if isinstance(value, dict):
        options += [("KEYS", tuple(value)), ("LACKS_KEY", "absent"), ("LACKS_KEY", 77)]
        options += [("HAS_KEY", key) for key in list(value)[:1]]
    if isinstance(value, (set, frozenset)):
        options.append(("MEMBERS", frozenset(value)))
    if isinstance(value, type):
        options.append(("LOOKUP_ABSENT", "late"))
    elif not isinstance(value, torch.Tensor):
        options.append(("LACKS_ATTR", "late"))
    if isinstance(value, torch.Tensor):
        options += [("TENSOR", tensor_facts(value))] * 3
    if isinstance(value, torch.nn.Module):
        options.append(("MODULE_CALL", None))
    if isinstance(value, types.FunctionType):
        options.append(("CODE_IS", value.__code__))
    for kind, expected in rng.sample(options, rng.randrange(min(3, len(options)) + 1)):
        node.guard(kind, expected)


def grow(node, value, rng, depth, nodes):
    nodes.append((node, value))
    hang_guards(node, value, rng)
    if depth == 0:
        return
    steps = steps_of(value, rng)
    for step, key in rng.sample(steps, min(len(steps), rng.randrange(5))):
        child = follow(value, step, key)
        if not (step == "GRAD" and child is None):
            grow(node.child(step, key), child, rng, depth - 1, nodes)


def containers(value, found, depth=5):
    """Everything mutable that can be reached."""
    if depth == 0 or id(value) in found:
        return
    if isinstance(
        value, (list, dict, set, torch.Tensor, Plain, Slots, torch.nn.Module, types.FunctionType, tuple, weakref.ref)
    ):
        found[id(value)] = value
    parts = ()
    if isinstance(value, dict):
        parts = tuple(value.values())
    elif isinstance(value, (list, tuple)):
        parts = tuple(value)
    elif isinstance(value, (Plain, torch.nn.Module)):
        parts = (value.__dict__, *value.__dict__.values())
    elif isinstance(value, Slots):
        parts = (getattr(value, "a", None),)
    elif isinstance(value, weakref.ref):
        parts = (value(),)
    for part in parts:
        containers(part, found, depth - 1)


def mutate_dict(value, rng):
    key = rng.choice([*value, "absent", "late", "new"])
    action = rng.randrange(6)
    if action == 0:
        value[key] = leaf(rng)
    elif action == 1:
        value.pop(key, None)
    elif action == 2 and key in value:
        value[key] = value.pop(key)
    elif action == 3 and isinstance(value, collections.OrderedDict) and value:
        value.move_to_end(next(iter(value)))
    elif action == 4:
        copy = dict(value)
        value.clear()
        value.update(copy)
    elif key in value:
        value[key] = again(value[key])


def again(value):
    """An equal object of another identity, where there is such."""
    if type(value) is int:
        return int(str(value))
    if type(value) is float:
        return float(str(value))
    if type(value) is str:
        return "".join(list(value))
    if type(value) in (list, dict):
        return value.copy()
    if type(value) is tuple:
        return tuple(list(value))
    return value


def mutate_tensor(value, rng):
    action = rng.randrange(5)
    with torch.no_grad():
        if action == 0 and not value.requires_grad:
            value.resize_(rng.randrange(1, 4), rng.randrange(1, 3))
        elif action == 1 and value.is_leaf and value.is_floating_point():
            value.requires_grad_(not value.requires_grad)
        elif action == 2 and value.is_floating_point():
            value.grad = torch.ones_like(value) if rng.random() < 0.5 else None
        elif action == 3 and value.is_leaf:
            value.data = torch.zeros(rng.randrange(1, 4), rng.randrange(1, 4), dtype=value.dtype)[:, ::1]
        elif action == 4 and value.is_leaf:
            value.data = value.data.clone()


def mutate(value, rng):
    if isinstance(value, dict):
        mutate_dict(value, rng)
    elif isinstance(value, torch.Tensor):
        mutate_tensor(value, rng)
    elif isinstance(value, list) and value:
        rng.choice(
            [
                lambda: value.append(leaf(rng)),
                lambda: value.pop(),
                lambda: value.__setitem__(0, leaf(rng)),
                lambda: value.__setitem__(-1, again(value[-1])),
                lambda: value.reverse(),
            ]
        )()
    elif isinstance(value, set):
        value.symmetric_difference_update({rng.randrange(4)})
    elif isinstance(value, Plain):
        rng.choice(
            [
                lambda: setattr(value, "late", 1),
                lambda: value.__dict__.pop("late", None),
                lambda: setattr(value, "__dict__", dict(value.__dict__)),
                lambda: setattr(value, "__class__", Other if type(value) is Plain else Plain),
                lambda: mutate_dict(value.__dict__, rng) if all(isinstance(k, str) for k in value.__dict__) else None,
            ]
        )()
    elif isinstance(value, Slots):
        if rng.random() < 0.3 and hasattr(value, "a"):
            del value.a
        else:
            value.a = leaf(rng)
    elif isinstance(value, weakref.ref):
        if value() is not None and rng.random() < 0.5:
            del REFERENTS[id(value())]
        elif value() is not None:
            value().item = leaf(rng)
    elif isinstance(value, torch.nn.Module):
        rng.choice(
            [
                lambda: setattr(value, "extra", leaf(rng)) if "extra" in value.__dict__ else None,
                lambda: value.register_forward_hook(lambda *_: None),
                lambda: value._forward_hooks.clear(),
                lambda: setattr(value, "forward", lambda x: x),
                lambda: value.__dict__.pop("forward", None),
                lambda: value.requires_grad_(rng.random() < 0.5),
                lambda: setattr(value, "weight", torch.nn.Parameter(torch.zeros(2, 2))),
            ]
        )()
    elif isinstance(value, types.FunctionType):
        rng.choice(
            [
                lambda: setattr(value, "__defaults__", (rng.randrange(3),)),
                lambda: setattr(value, "__kwdefaults__", {"b": rng.randrange(3)}),
                lambda: setattr(value, "late", 1),
                lambda: setattr(value.__closure__[0], "cell_contents", leaf(rng)) if value.__closure__ else None,
            ]
        )()


def mutate_class(rng):
    if "late" in Plain.__dict__:
        del Plain.late
    elif rng.random() < 0.5:
        Plain.late = 1
    else:
        Plain.kind = rng.choice(["plain", "changed"])


def compare(program, tree, fetches, function, arguments):
    expected = evaluate(tree, fetches, function, arguments)
    actual = program.check(function, arguments)
    misses = all_misses(tree, function, arguments, fetches)
    assert (actual is None) == (expected is None) == bool(misses), [str(miss) for miss in misses]
    if expected is not None:
        for node, left, right in zip(fetches, actual, expected, strict=True):
            assert left is right or (type(left) is type(right) is int and left == right), node


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.integers(0, 2**32))
def test_native_and_reference_agree(seed):
    rng = random.Random(seed)
    captured = world(rng, 2)
    function = make_function(captured)
    arguments = tuple(world(rng, 3) for _ in range(rng.randrange(1, 4)))
    kept = world(rng, 3)
    tree = SourceTree(tuple("xyz"), ("value",))
    nodes = []
    for index, argument in enumerate(arguments):
        grow(tree.local(index), argument, rng, 4, nodes)
    grow(tree.cell(0), captured, rng, 3, nodes)
    grow(tree.root("FUNCTION"), function, rng, 2, nodes)
    grow(tree.const(kept), kept, rng, 3, nodes)
    between_nodes(tree, nodes, rng)
    fetches = [node for node, value in rng.sample(nodes, min(3, len(nodes))) if not isinstance(value, Plain)]
    program = compile_guards(tree, fetches)
    try:
        for _ in range(2):
            compare(program, tree, fetches, function, arguments)
        for _ in range(12):
            found = {}
            for root in (*arguments, captured, kept, function):
                containers(root, found)
            if rng.random() < 0.1:
                mutate_class(rng)
            elif found:
                with contextlib.suppress(AttributeError, KeyError, RuntimeError, TypeError):
                    mutate(rng.choice(list(found.values())), rng)
            if rng.random() < 0.2:
                found = None
                gc.collect(0)
            if rng.random() < 0.1:
                arguments = tuple(again(argument) for argument in arguments)
            compare(program, tree, fetches, function, arguments)
            compare(program, tree, fetches, function, arguments)
    finally:
        REFERENTS.clear()
        Plain.kind = "plain"
        if "late" in Plain.__dict__:
            del Plain.late


def between_nodes(tree, nodes, rng):
    """Guards over two nodes, and size programs that hold now."""
    for _ in range(rng.randrange(3)):
        (first, left), (second, right) = rng.choice(nodes), rng.choice(nodes)
        if isinstance(left, (int, float)) or isinstance(right, (int, float)):
            continue
        if left is right:
            first.guard("SAME", second)
        else:
            first.guard("DIFFERENT", (second,))
    numbers = [(node, value) for node, value in nodes if type(value) is int]
    if numbers:
        (first, left), (second, right) = rng.choice(numbers), rng.choice(numbers)
        tail = (("const", left * 3 - right), ("eq",))
        first.guard("SIZES", SizeProgram((("load", first), ("const", 3), ("mul",), ("load", second), ("sub",), *tail)))


OPERATORS = ["add", "sub", "mul", "floordiv", "mod", "min", "max", "eq", "ne", "lt", "le", "gt", "ge", "and", "or"]
INTERESTING = [0, 1, -1, 2, -2, 3, 7, -7, 2**31, -(2**31), 2**62, -(2**62), 2**63 - 1, -(2**63)]


@settings(max_examples=EXAMPLES * 4, deadline=None, database=None)
@given(
    st.lists(st.one_of(st.sampled_from(INTERESTING), st.integers(-(2**63), 2**63 - 1)), min_size=2, max_size=5),
    st.lists(st.sampled_from([*OPERATORS, "neg", "not"]), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
def test_size_programs_agree(values, names, seed):
    rng = random.Random(seed)
    tree = SourceTree(tuple("abcde"))
    operations = [("load", tree.local(0))]
    for name in names:
        if name not in ("neg", "not"):
            position = rng.randrange(len(values))
            operations.append(("load", tree.local(position)) if rng.random() < 0.6 else ("const", values[position]))
        operations.append((name,))
    tree.local(0).guard("SIZES", SizeProgram(tuple(operations)))
    program = compile_guards(tree)
    compare(program, tree, [], None, tuple(values))
    compare(program, tree, [], None, tuple(rng.choice(INTERESTING) for _ in values))
    value = SizeProgram(tuple(operations)).value({tree.local(i): v for i, v in enumerate(values)})
    if value is not None:  # the exact number, not only its truth
        tree = SourceTree(tuple("abcde"))
        moved = tuple(("load", tree.local(row[1].key)) if row[0] == "load" else row for row in operations)
        tree.local(0).guard("SIZES", SizeProgram((*moved, ("const", value), ("eq",))))
        assert compile_guards(tree).check(None, tuple(values)) == ()
