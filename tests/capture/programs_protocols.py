"""Special methods as CPython asks them: refused ones (None), results of a wrong type, calls that are not well formed."""

import collections
import copy

import torch
from capture_harness import Collection

import stator

program = Collection("protocols")
T = torch.arange


def attempts(*calls):
    found = []
    for call in calls:
        try:
            found.append(call())
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found


class Refusing:
    __eq__ = __hash__ = __contains__ = __iter__ = __bool__ = __iadd__ = __radd__ = __len__ = __neg__ = None
    missing = None


class Wrong:
    def __bool__(self):
        return 3

    def __len__(self):
        return -1

    def __index__(self):
        return "one"

    def __float__(self):
        return "half"

    def __int__(self):
        return 1.5


class Empty(list):
    def __len__(self):
        return 0


class Full(dict):
    def __bool__(self):
        return True


@program()
def refused_special_methods(x):
    a = Refusing()

    def add():
        b = Refusing()
        b += 1

    return x, attempts(
        lambda: a == 1, lambda: hash(a), lambda: {a}, lambda: 1 in a, lambda: list(a), lambda: bool(a),
        lambda: 1 + a, add, lambda: len(a), lambda: -a, lambda: [*a],
    )  # fmt: skip


@program()
def attribute_that_is_none(x):
    return x + 1, Refusing().missing, Refusing.missing, getattr(Refusing(), "missing", 3)


@program()
def results_of_a_wrong_type(x):
    a = Wrong()
    return x, attempts(
        lambda: bool(a), lambda: not a, lambda: len(a), lambda: [1, 2][a], lambda: float(a), lambda: int(a),
        lambda: complex(a), lambda: range(a),
    )  # fmt: skip


@program()
def truth_of_container_subclasses(x):
    return x, bool(Empty([1])), not Empty([1]), len(Empty([1])), 1 if Full() else 2, bool(Full())


@program()
def calls_that_are_not_well_formed(x):
    return x, attempts(
        lambda: bool(x=1), lambda: len(), lambda: len([], []), lambda: getattr(1), lambda: iter(), lambda: next(),
        lambda: [].append(), lambda: [].append(1, 2), lambda: {}.get(), lambda: {}.__contains__(), lambda: round(),
        lambda: {}.pop(), lambda: set().add(), lambda: list(iterable=[]), lambda: isinstance(1), lambda: map(len),
        lambda: filter(None), lambda: zip(a=1), lambda: sorted(), lambda: sum(), lambda: divmod(1), lambda: abs(),
        lambda: [].count(), lambda: [].index(), lambda: collections.deque().append(), lambda: setattr(1, "a"),
    )  # fmt: skip


@program()
def required_arguments_by_name(x):
    return x, round(number=2.5), list(enumerate(iterable=[1, 2], start=3)), pow(base=2, exp=3)


class Left:
    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        self.log.append("eq")
        return NotImplemented

    def __ne__(self, other):
        self.log.append("ne")
        return NotImplemented


@program()
def order_of_comparisons(x):
    log = []
    a, b = Left(log), Left(log)
    return x, a == b, a != b, a != 1, 1 != a, log


class OwnCopy:
    def __deepcopy__(self, memo):
        return sorted(map(str, map(type, memo.values())))


class Reduced(list):
    def __reduce__(self):
        return Reduced, (), {"state": 1}, iter([1, 2])


@program()
def copies(x):
    shared = [1]
    nested = copy.deepcopy((shared, shared, (2, (3,))))
    constant = (1, (2, 3))
    return (
        x, nested, nested[0] is nested[1], copy.deepcopy(constant) is constant, copy.deepcopy([[1], OwnCopy()]),
        copy.copy(shared) is shared,
    )  # fmt: skip


@program(reason="c_reads_object")
def copies_by_reduction(x):
    a = copy.copy(Reduced())
    return x, a, a.state


@program(reason="opaque_callable")
def evaluated_where_it_stands(x):
    return x, eval("len([x.shape[0]])"), type("Made", (), {}).__module__


@program(reason="instance_dict")
def globals_are_those_of_the_function(x):
    return x, globals()["__name__"]


class Swallow:
    def __init__(self):
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        stator.graph_break()
        self.seen.append((kind.__name__, str(value)))
        return True


@program(reason="explicit_graph_break")
def break_while_leaving_a_block_by_an_exception(x):
    manager = Swallow()
    with manager:
        [].append()
    return x + 1, manager.seen


class Plain:
    pass


@program()
def unpacking_what_is_not_iterable(x):
    def one():
        a, b = Plain()

    def two():
        a, *b = Plain()

    return x, attempts(one, two)


@program(raises=True)
def unpacking_raises(x):
    y = x + 1
    a, b = Plain()
    return y


def booh(self):
    raise AttributeError("booh")


class InitByProperty:
    __init__ = property(booh)


@program()
def refused_by_builtins(x):
    return x, attempts(
        lambda: iter(42, 42), lambda: setattr(Plain(), 1, 2), lambda: delattr(Plain(), 1), lambda: sum(["a"], ""),
        lambda: type("A", [], {}), lambda: type("A", (None,), {}), lambda: InitByProperty(),
        lambda: collections.defaultdict(1), lambda: {}.__getitem__(), lambda: dict.fromkeys(1),
    )  # fmt: skip


def factorial(n):
    def down(m):
        return 1 if m < 2 else m * down(m - 1)

    stator.graph_break()
    return down(n)


@program(reason="explicit_graph_break")
def function_that_contains_itself(x):
    return x, factorial(5)


class Named(collections.namedtuple("Named", "a b")):
    def __getitem__(self, index):
        return "custom"


@program()
def fields_past_an_overridden_subscript(x):
    pair = Named(1, x)
    return pair.a, pair.b, pair[0]


@program()
def types_of_tensors(x):
    return x.type(), isinstance(x, torch.FloatTensor), x.type(torch.DoubleTensor), x.type("torch.HalfTensor")


@program()
def dictionaries_from_keys(x):
    return dict.fromkeys("ab", x), collections.defaultdict.fromkeys("a"), collections.OrderedDict.fromkeys([1, 2], value=x)


@program(reason="explicit_graph_break")
def exceptions_across_a_break(x):
    found = [OSError(2, "no such"), StopIteration(3), ImportError("m", name="q"), KeyError("k")]
    stator.graph_break()
    return x, found[0].errno, found[0].strerror, found[1].value, found[2].name, found[3].args
