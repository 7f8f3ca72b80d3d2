"""functools, itertools, operator, collections.abc, math, copy, re, typing, inspect, pytree."""

import bisect
import collections
import copy
import functools
import heapq
import inspect
import itertools
import math
import operator
import re
import string
import time
import typing
import weakref

import torch
import torch.utils._pytree as pytree
from capture_harness import Collection, tensor

program = Collection("library")
T = torch.arange


def scale(x, k, *, plus=0):
    return x * k + plus


@program(
    lambda: (T(3.0), functools.partial(scale, k=2)),
    lambda: (T(3.0), functools.partial(scale, k=3)),
    lambda: (T(3.0), functools.partial(scale, k=2, plus=1)),
)
def partial_argument(x, f):
    return f(x), f.keywords, f.func is scale


@program(tensor)
def partials(x):
    f = functools.partial(scale, k=2)
    g = functools.partial(f, plus=1)
    return f(x), g(x), g.args, len(g.keywords), functools.partial(max, 5)(3), dict(g.keywords), f


class Owner:
    def __init__(self, scale):
        self.scale = scale


OWNERS = [Owner(2), Owner(3)]


@program(
    lambda: (T(3.0), weakref.ref(OWNERS[0])),
    lambda: (T(3.0), weakref.ref(OWNERS[1])),
    lambda: (T(3.0), weakref.ref(Owner(4))),
)
def weak_references(x, reference):
    owner = reference()
    if owner is None:
        return x
    owner.last = x
    return x * owner.scale, owner


class Cell:
    def __init__(self):
        self.alive = False
        self.calls = 0

    def set_state(self, state):
        self.alive = state

    set_alive = functools.partialmethod(set_state, True)

    @functools.cached_property
    def area(self):
        self.calls += 1
        return 42

    @functools.singledispatchmethod
    def show(self, v):
        return "object"

    @show.register
    def _(self, v: int):
        return "int"


@program(lambda: (T(3.0), Cell()))
def partial_method(x, c):
    c.set_alive()
    return x, c.alive


@program(lambda: (T(3.0), Cell()))
def cached_property(x, c):
    return x * c.area, c.area, c.calls


@program(lambda: (T(3.0), Cell()))
def single_dispatch_method(x, c):
    return x, c.show(1), c.show("a")


@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@functools.cache
def cached(n):
    return n * 2


@program(lambda: (T(3.0), 10), lambda: (T(3.0), 12))
def lru_cache(x, n):
    return x * fib(n), cached(n)


@functools.singledispatch
def show(v):
    return "object"


@show.register(int)
def _show_int(v):
    return f"int {v}"


@show.register
def _show_list(v: list):
    return f"list {len(v)}"


@program(lambda: (T(3.0), 10), lambda: (T(3.0), [1]), lambda: (T(3.0), "a"))
def single_dispatch(x, v):
    return x, show(v)


@functools.total_ordering
class Age:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __lt__(self, other):
        return self.n < other.n


@program(lambda: (T(3.0), Age(1), Age(2)), lambda: (T(3.0), Age(3), Age(2)))
def total_ordering(x, a, b):
    return x, a < b, a <= b, a > b, a >= b, a == b, a != b, max(a, b).n, sorted([b, a])[0].n


@program(tensor)
def reduce(x):
    return (
        functools.reduce(operator.add, [x, x, x]),
        functools.reduce(lambda a, b: a * b, range(1, 5), 10),
        functools.reduce(max, [1, 3, 2]),
    )


@program(tensor)
def cmp_to_key(x):
    return x, sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))


@program(lambda: (T(3.0), [3, 1, 2]), lambda: (T(3.0), [5, 1]))
def iterator_tools(x, a):
    I = itertools
    return (
        x,
        list(I.chain(a, "ab")),
        list(I.chain.from_iterable([a, a])),
        list(I.islice(I.count(2, 3), 4)),
        list(I.islice(a, 1, None)),
        list(zip(a, I.cycle("xy"))),
        list(I.repeat(1, 2)),
        list(I.accumulate(a)),
        list(I.accumulate(a, operator.mul, initial=2)),
        list(I.product(a, [0, 1])),
        list(I.permutations(a, 2)),
        list(I.combinations(a, 2)),
        list(I.combinations_with_replacement("ab", 2)),
        list(I.zip_longest(a, [1], fillvalue=0)),
        list(I.takewhile(lambda v: v > 2, a)),
        list(I.dropwhile(lambda v: v > 2, a)),
        list(I.filterfalse(lambda v: v > 1, a)),
        list(I.compress(a, [1, 0, 1])),
        list(I.starmap(pow, [(2, 3), (3, 2)])),
        list(I.pairwise(a)),
        [(k, list(g)) for k, g in I.groupby([1, 1, 2], key=lambda v: v % 2)],
        [list(t) for t in I.tee(a, 2)],
    )


@program(lambda: (T(3.0), [3, 1, 2]))
def builtin_iterators(x, a):
    return (
        x,
        list(zip(a, "abc")),
        list(enumerate(a, 1)),
        list(map(lambda v, w: v + w, a, a)),
        list(filter(None, [0, 1, ""])),
        list(reversed(a)),
        sum(a, 10),
        max(a, key=lambda v: -v),
        min(a, default=3),
        min([], default=9),
        any(a),
        all(a),
        list(range(5, 0, -2)),
        list(map(str, a)),
        list(filter(lambda v: v > 1, a)),
        max(1, 5, 3),
        sum([[1], [2]], []),
        dict(zip("ab", a)),
        list(iter([1, 2].pop, 1)),
        next(iter(a)),
        sorted(a, reverse=True),
        divmod(7, 2),
        round(2.567, 1),
    )


@program(tensor)
def zip_strict(x):
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        return x, str(error)


@program(tensor)
def map_over_tensors(x):
    return (
        list(map(torch.sin, [x, x])),
        list(map(lambda t: t * 2, x)),
        sum(x),
        list(zip(x, [1, 2, 3])),
        [t for t in enumerate(x)],
    )


@program(lambda: (T(3.0), {"a": [1, 2]}), lambda: (T(3.0), {"a": [1, 3]}))
def operator_module(x, d):
    O = operator
    return (
        O.add(x, 1),
        O.itemgetter("a")(d),
        O.itemgetter(0, 1)(d["a"]),
        O.attrgetter("shape")(x),
        O.methodcaller("sum")(x),
        O.mul(2, 3),
        O.contains(d, "a"),
        O.getitem(d["a"], 1),
        O.not_(d),
        O.truth(d),
        O.concat([1], [2]),
        O.indexOf([1, 2], 2),
        O.countOf([1, 1], 1),
        O.is_(d, d),
        O.lt(1, 2),
        O.neg(x),
        O.index(3),
        O.length_hint([1]),
        O.floordiv(7, 2),
        O.iadd([1], [2]),
        O.xor(1, 3),
    )


@program(lambda: (T(3.0), Cell()))
def attrgetter_on_object(x, c):
    return x, operator.attrgetter("alive", "calls")(c), operator.methodcaller("set_state", 4)(c), c.alive


@program(lambda: (T(3.0), 2.5, 7), lambda: (T(3.0), 3.5, 8))
def math_module(x, f, n):
    return (
        x * math.sqrt(f),
        math.floor(f),
        math.ceil(f),
        math.gcd(n, 21),
        math.log2(n),
        math.prod([1, 2, n]),
        math.isclose(f, f),
        math.factorial(n),
        math.comb(n, 2),
        math.pi,
        math.inf,
        math.isnan(math.nan),
        math.hypot(3, 4),
        math.copysign(1, -0.0),
        math.fsum([0.1] * 3),
        math.trunc(f),
        math.exp(1),
        math.modf(f),
        math.frexp(f),
        math.dist([0, 0], [3, 4]),
    )


@program(tensor)
def math_errors(x):
    texts = []
    for act in (
        lambda: math.sqrt(-1),
        lambda: math.log(0),
        lambda: 1 // 0,
        lambda: 1.0 % 0,
        lambda: 10**400 * 1.0,
        lambda: math.factorial(-1),
    ):
        try:
            act()
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return x, texts


@program(lambda: (T(3.0), [1, [2, 3]]), lambda: (T(3.0), [1, [2, 4]]))
def copies(x, a):
    b, c = copy.copy(a), copy.deepcopy(a)
    b[1].append(9)
    c[1].append(8)
    return x, b, c, b[1] is a[1], c[1] is a[1]


@program(lambda: (T(3.0), Age(3)), lambda: (T(3.0), Age(4)))
def copy_objects(x, a):
    b, c = copy.copy(a), copy.deepcopy(a)
    b.n = 10
    return x * a.n, b, c, b is a


@program(lambda: (T(3.0), "model.layers.3.weight"), lambda: (T(3.0), "model.layers.4.bias"))
def regular_expressions(x, name):
    m = re.match(r"model\.layers\.(\d+)\.(\w+)", name)
    p = re.compile("[aeiou]")
    return (
        x * int(m.group(1)),
        m.groups(),
        m[2],
        m.span(),
        p.sub("_", name),
        p.findall(name),
        re.split(r"\.", name),
        bool(p.search("x")),
        re.fullmatch("a", "b"),
        [n.start() for n in p.finditer("banana")],
    )


PATTERN = re.compile(r"(?P<k>\w)(\d)?")


@program(lambda: (T(3.0), "a1"), lambda: (T(3.0), "b"))
def compiled_pattern(x, s):
    m = PATTERN.match(s)
    return x, m.groupdict(), m.group("k"), m.lastgroup, m.string, m.end()


@program(tensor)
def typing_module(x):
    a: typing.Optional[int] = 3
    return (
        x * typing.cast(int, a),
        typing.get_origin(list[int]),
        typing.get_args(dict[str, int]),
        typing.TYPE_CHECKING,
        isinstance(a, int | str),
        typing.Optional[int] == int | None,
    )


@program(tensor)
def inspection(x):
    sig = inspect.signature(scale)
    return (
        x,
        list(sig.parameters),
        sig.parameters["plus"].default,
        "k" in sig.parameters,
        inspect.isfunction(scale),
        inspect.isclass(Age),
        callable(scale),
        str(sig),
    )


@program(tensor)
def signature_binding(x):
    bound = inspect.signature(scale).bind(x, 2)
    bound.apply_defaults()
    return scale(*bound.args, **bound.kwargs), list(bound.arguments)


@program(
    lambda: (T(3.0), {"a": [T(2.0), (1, None)], "b": T(1.0)}), lambda: (T(3.0), {"a": [T(2.0), (2, None)], "b": T(1.0)})
)
def pytrees(x, tree):
    leaves, spec = pytree.tree_flatten(tree)
    mapped = pytree.tree_map(lambda v: v * 2 if isinstance(v, torch.Tensor) else v, tree)
    return x, len(leaves), mapped, pytree.tree_unflatten(leaves, spec), pytree.tree_leaves(mapped), spec.num_leaves


@program(tensor)
def pytree_more(x):
    tree = [x, {"k": (x, 1)}]
    out = pytree.tree_map_only(torch.Tensor, lambda t: t + 1, tree)
    return out, pytree.tree_all(lambda v: v is not None, tree), pytree.tree_map(lambda a, b: a + b, [1, 2], [3, 4])


@program(lambda: (T(3.0), [5, 1, 4]), lambda: (T(3.0), [5, 1, 4, 2]))
def heaps_and_bisect(x, a):
    heapq.heapify(a)
    heapq.heappush(a, 2)
    least = heapq.heappop(a)
    b = sorted(a)
    bisect.insort(b, 3)
    return x * least, a, b, bisect.bisect_left(b, 3), heapq.nsmallest(2, a), heapq.nlargest(1, a)


@program(tensor)
def string_module(x):
    return x, string.ascii_lowercase[:3], string.Template("$a b").substitute(a=1), string.capwords("a b")


@program(tensor)
def abstract_collections(x):
    A = collections.abc
    return (
        x,
        isinstance([], A.Sequence),
        isinstance({}, A.Mapping),
        isinstance(iter([]), A.Iterator),
        isinstance(5, A.Hashable),
        isinstance(x, A.Iterable),
        issubclass(dict, A.MutableMapping),
    )


@program(lambda: (T(3.0), 1), lambda: (T(3.0), 2))
def numbers_module(x, n):
    return (
        x,
        n.bit_length(),
        (n).__add__(1),
        int.from_bytes(b"\x01\x02", "big"),
        (2.5).is_integer(),
        (0.5).as_integer_ratio(),
        float.fromhex("0x1p3"),
        complex(1, n).conjugate(),
        (1 + 2j).real,
        n.to_bytes(2, "little"),
        float("inf"),
        int("12"),
        int("ff", 16),
        bool(n),
        hex(n),
        bin(n),
        chr(65),
        ord("a"),
        abs(-n),
        True + True,
        -7 // 2,
        -7 % 3,
        2**-1,
        7 & 3,
        1 << 4,
        ~n,
    )


class Seq(collections.abc.Sequence):
    def __init__(self, *v):
        self.v = v

    def __len__(self):
        return len(self.v)

    def __getitem__(self, i):
        return self.v[i]


@program(lambda: (T(3.0), Seq(1, 2, 3)), lambda: (T(3.0), Seq(1, 2, 4)))
def sequence_mixin(x, s):
    return x * len(s), list(s), 2 in s, s.index(2), s.count(2), list(reversed(s)), s[-1]


class Map(collections.abc.MutableMapping):
    def __init__(self):
        self.d = {}

    def __getitem__(self, k):
        return self.d[k]

    def __setitem__(self, k, v):
        self.d[k] = v

    def __delitem__(self, k):
        del self.d[k]

    def __iter__(self):
        return iter(self.d)

    def __len__(self):
        return len(self.d)


@program(lambda: (T(3.0), Map()))
def mapping_mixin(x, m):
    m["a"] = 1
    m.update(b=2, c=x)
    m.setdefault("e", 5)
    return m.pop("a"), list(m.items()), m.get("zz"), "b" in m, {**m}, list(m.keys()), len(m), m == {"b": 2}


class UserD(collections.UserDict):
    def __getitem__(self, k):
        return super().__getitem__(k) * 2


@program(lambda: (T(3.0), UserD(a=1)), lambda: (T(3.0), UserD(a=2)))
def user_dict(x, d):
    d["b"] = 4
    return x * d["a"], d["b"], d.data, list(d)


@program(tensor, reason="opaque_callable")
def random_seed(x):
    torch.manual_seed(3)
    return torch.rand(3) + x


@program(tensor)
def random_module(x):
    return torch.rand(3) + x, torch.randn_like(x), torch.dropout(x, 0.5, True)


@program(tensor)
def random_stream(x):
    return torch.rand(3) + x, torch.bernoulli(x * 0.1), torch.randint(0, 5, (2,)), torch.randperm(4)


@program(lambda: (T(3.0), [3, 1, 2]), lambda: (T(3.0), [4, 1, 2]), lambda: (T(3.0), [5, 0, 2]))
def c_functions_as_callbacks(x, a):
    return (
        x,
        list(map(str, a)),
        ",".join(map(repr, a)),
        list(filter(int.__bool__, a)),
        max(a, key=lambda v: -v),
        min(a, key=abs),
        a[0].bit_length(),
        list(map(len, [a, a[1:]])),
        divmod(a[0], 2),
        pow(a[0], 2, 5),
    )


@program(lambda: (T(3.0), [4, 1, 2]), reason="opaque_callable")
def break_while_c_code_iterates(x, a):
    left = filter(lambda v: time.sleep(0) or v, a)
    return list(left), x + 1


@program(lambda: (torch.ones(2, 3),), lambda: (torch.ones(4, 3),), lambda: (torch.ones(5, 3),))
def parts_of_a_size_are_sizes(x):
    size = x.shape
    parts = size[1:], size[:1] + (3,), (1, *size), torch.Size((7,)) + size, size[::-1]
    return x + size[1:].numel(), [type(part) for part in parts], size[-1:].numel()
