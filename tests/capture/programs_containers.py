"""Lists, dicts, sets, deques, their subclasses and all their methods; mutation of arguments; identity and aliasing."""

import collections
from collections import Counter, OrderedDict, defaultdict, deque

import torch
from capture_harness import Collection, tensor

program = Collection("containers")
T = torch.arange


def moved(mapping):
    mapping.move_to_end("a")
    return mapping


@program(lambda: (T(3.0), [1, 2, 3]), lambda: (T(3.0), [3, 1]), lambda: (T(3.0), []))
def list_methods(x, a):
    a.append("x")
    a.extend([4, 5])
    a.extend(i for i in range(2))
    a.insert(1, "i")
    popped = a.pop()
    first = a.pop(0)
    a.reverse()
    n = a.count(4)
    where = a.index(4)
    a.remove(4)
    b = a.copy()
    a.clear()
    a += [1]
    return x + n, popped, first, where, b, a


@program(lambda: (T(3.0), [3, 1, 2]), lambda: (T(3.0), [1, 2, 3]))
def list_sort(x, a):
    a.sort()
    b = sorted(a, key=lambda v: -v)
    c = [(1, "b"), (0, "a")]
    c.sort(key=lambda p: p[1], reverse=True)
    return x, a, b, c, sorted("hello"), sorted({3: 1, 1: 2})


@program(lambda: (T(3.0), [1, 2, 3, 4, 5]))
def list_slices(x, a):
    b = a[1:3]
    a[1:2] = [9, 9, 9]
    del a[0]
    a[::2] = [0] * len(a[::2])
    del a[-2:]
    return x, a, b, a[-1], a[::-1], a * 2, a + [1], [0] * 3


@program(lambda: (T(3.0), [1, 2]))
def list_errors(x, a):
    texts = []
    for act in (
        lambda: a[5],
        lambda: a.index(9),
        lambda: a.remove(9),
        lambda: [].pop(),
        lambda: a["k"],
        lambda: a + (1,),
        lambda: a.pop(7),
        lambda: a.insert("a", 1),
        lambda: a.__setitem__(9, 1),
    ):
        try:
            act()
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return x, texts


@program(lambda: (T(3.0), {"a": 1, "b": 2}), lambda: (T(3.0), {"a": 1, "c": 2}), lambda: (T(3.0), {}))
def dict_methods(x, d):
    d["z"] = x
    d.update({"q": 1}, w=2)
    d.update([("r", 5)])
    got = d.get("a"), d.get("none"), d.get("none", 3)
    d.setdefault("l", []).append(1)
    d.setdefault("a", 100)
    gone = d.pop("q")
    also = d.pop("zzz", None)
    last = d.popitem()
    keys, values = list(d), list(d.values())
    e = d.copy()
    f = d | {"n": 1}
    d |= {"m": 2}
    return got, gone, also, last, keys, values, e, f, list(d.items()), "a" in d, len(d), list(reversed(d))


@program(lambda: (T(3.0), {"a": 1, "b": 2}))
def dict_errors(x, d):
    texts = []
    for act in (
        lambda: d["q"],
        lambda: d.pop("q"),
        lambda: {}.popitem(),
        lambda: d[[]],
        lambda: dict([1]),
        lambda: dict([(1, 2, 3)]),
        lambda: d.__delitem__("q"),
        lambda: {}.update(5),
    ):
        try:
            act()
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return x, texts


@program(lambda: (T(3.0), {"a": 1, "b": 2}))
def dict_views(x, d):
    keys, items, values = d.keys(), d.items(), d.values()
    d["c"] = 3
    return (
        x,
        list(keys),
        list(items),
        list(values),
        "c" in keys,
        ("a", 1) in items,
        keys & {"a"},
        keys | {"q"},
        len(values),
        keys == {"a", "b", "c"},
        3 in values,
    )


@program(lambda: (T(3.0), {"a": 1, "b": 2}))
def dict_changed_in_loop(x, d):
    try:
        for k in d:
            d[k + k] = 1
    except RuntimeError as error:
        return x, str(error)


@program(lambda: (T(3.0), [1, 2, 3]))
def list_changed_in_loop(x, a):
    seen = []
    for v in a:
        seen.append(v)
        if v == 1:
            a.remove(2)
            a.append(7)
    return x, seen, a


@program(tensor)
def dict_building(x):
    return (
        x,
        dict(a=1),
        dict([("a", 1)], b=2),
        dict({"a": 1}),
        dict(zip("ab", range(2))),
        dict.fromkeys("ab", 0),
        {i: x for i in range(2)},
        {(1, 2): 3}[1, 2],
    )


@program(lambda: (T(3.0), {1, 2, 3}), lambda: (T(3.0), {1}), lambda: (T(3.0), set()))
def set_methods(x, s):
    s.add(9)
    s.discard(1)
    s.discard(100)
    t = s | {5}
    u, v, w = s & {2, 9}, s - {2}, s ^ {9, 8}
    s.update([11, 12])
    s.remove(9)
    flags = s <= t, s.isdisjoint({99}), s.issuperset({11}), {1} < {1, 2}, s == t
    s -= {11}
    s |= {20}
    s &= {20, 12, 2}
    n = len(s)
    return (
        x + n,
        t,
        u,
        v,
        w,
        flags,
        sorted(s),
        frozenset(s),
        s.copy(),
        s.union([1], [2]),
        s.intersection({20}),
        s.difference([20]),
    )


@program(lambda: (T(3.0), {5}))
def set_errors(x, s):
    texts = []
    for act in (lambda: s.remove(1), lambda: set().pop(), lambda: s | [1], lambda: s.add([])):
        try:
            act()
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return x, texts, s.pop(), s


@program(lambda: (T(3.0), frozenset({1, 2})), lambda: (T(3.0), frozenset({1, 3})))
def frozen_sets(x, s):
    return x * len(s), s | {7}, 2 in s, {s: 1}[s]


@program(lambda: (T(3.0), deque([1, 2, 3])), lambda: (T(3.0), deque([4])))
def deque_methods(x, q):
    q.append(x)
    q.appendleft(0)
    q.extend([5, 6])
    q.extendleft([8, 9])
    a, b = q.pop(), q.popleft()
    q.rotate(1)
    q[0] = "first"
    n = len(q)
    r = deque(q, maxlen=2)
    r.append(1)
    return a, b, n, list(q), r, q[-1], r.maxlen


@program(lambda: (T(3.0), deque([1, 2], maxlen=2)))
def deque_limited(x, q):
    q.append(3)
    q.insert if False else None
    q.reverse()
    return x, list(q), q.count(3), 3 in q, q.index(3), q.copy()


@program(lambda: (T(3.0), defaultdict(list, {"a": [1]})), lambda: (T(3.0), defaultdict(list)))
def default_dict(x, d):
    d["a"].append(2)
    d["b"].append(x)
    e = defaultdict(int)
    for c in "hello":
        e[c] += 1
    f = defaultdict(lambda: defaultdict(int))
    f[1][2] += 3
    return d.get("q"), dict(e), "q" in d, f[1][2], e, len(d)


@program(lambda: (T(3.0), OrderedDict(a=1, b=2)))
def ordered_dict(x, d):
    d["c"] = 3
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    d["b"] = 10
    last = d.popitem()
    e = OrderedDict([("x", x)])
    e.update(y=1)
    first = e.popitem(last=False)
    return list(d), last, first, e, d == OrderedDict(c=3, b=10), list(reversed(d)), d


@program(lambda: (T(3.0), moved(OrderedDict(a=1, b=2))), lambda: (T(3.0), OrderedDict(b=2, a=1)))
def ordered_dict_reordered_before(x, d):
    copy = dict(**d)
    d["c"] = 3
    return x + 1, list(d), list(d.items()), copy, list(copy), d


@program(lambda: (T(3.0), Counter("hello")), lambda: (T(3.0), Counter("help")))
def counters(x, c):
    c["z"] += 2
    c.update("ll")
    d = Counter(a=3, b=1)
    d.subtract({"a": 1})
    return (
        x * c["l"],
        c["none"],
        c.most_common(1),
        sorted(d.elements()),
        d + Counter(a=1),
        d - Counter(a=1),
        sum(d.values()),
        d & Counter(a=1),
        d | Counter(q=1),
    )


@program(tensor)
def chain_map(x):
    m = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    m["c"] = x
    return m["a"], m["b"], list(m), m.maps[0]


class Loud(dict):
    def __setitem__(self, k, v):
        super().__setitem__(k, v * 2)

    def __missing__(self, k):
        return f"no {k}"


@program(lambda: (T(3.0), Loud(a=1)), lambda: (T(3.0), Loud(a=2)))
def dict_subclass(x, d):
    d["b"] = x
    d["c"] = 1
    d.update(d=5)
    return d["a"], d["zz"], d.get("zz"), d["b"], dict(d), Loud(q=1)


class Stack(list):
    limit = 3

    def push(self, v):
        self.append(v)
        return len(self)

    def __getitem__(self, i):
        return super().__getitem__(i) if i != 0 else "zero"


@program(lambda: (T(3.0), Stack([1, 2])), lambda: (T(3.0), Stack([5])))
def list_subclass(x, s):
    n = s.push(x)
    s.note = "n"
    return n, s[0], s[-1], list(s), len(s), Stack([4]), s.limit, type(s[1:]).__name__ if len(s) else 0


class Odd(OrderedDict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = len(self)

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name)


@program(lambda: (T(3.0), Odd(a=1)), lambda: (T(3.0), Odd(a=2)))
def ordered_subclass(x, d):
    e = Odd(a=x)
    d["b"] = 5
    return d.a, d.extra, e, e.a, list(d.values()), d.b


class Tup(tuple):
    def second(self):
        return self[1]


@program(lambda: (T(3.0), Tup((1, 2))), lambda: (T(3.0), Tup((1, 3))))
def tuple_subclass(x, t):
    return x * t.second(), t, Tup([5, 6]), t + (1,), len(t)


@program(tensor)
def tuples(x):
    t = (1, 2, x)
    return (
        t[2],
        t[:2],
        t + (4,),
        t[:2] * 2,
        t.index(2),
        t[:2].count(1),
        2 in t[:2],
        (1, 2) < (1, 3),
        tuple([1]),
        hash((1, 2)) == hash((1, 2)),
    )


@program(tensor)
def bytes_and_strings(x):
    b = bytearray(b"abc")
    b[0] = 65
    b.append(66)
    b.extend(b"zz")
    return x, b, bytes(b), b"ab".hex(), "a,b".split(","), "-".join(["x", "y"]), "abc"[::-1], "x".center(5, "*"), b[1:3]


@program(lambda: (T(3.0), bytearray(b"ab")), reason="c_reads_object")
def bytearray_argument(x, b):
    b.append(67)
    b[0] = 90
    return x * len(b), bytes(b)


# Identity


@program(lambda: (T(3.0), [1], {"k": [2]}))
def same_out(x, a, d):
    return x, a, d, d["k"], [a, a], x


@program(lambda: (lambda a: (T(3.0), a, a))([1]), lambda: (T(3.0), [1], [1]))
def alias_lists(x, a, b):
    a.append(2)
    return x * len(b), a is b


@program(lambda: (T(3.0), [1], [1]), lambda: (lambda a: (T(3.0), a, a))([1]))
def alias_lists_later(x, a, b):
    a.append(2)
    b.append(3)
    return x * len(b), a, b


@program(lambda: (T(3.0), [[1], [1]]), lambda: (lambda a: (T(3.0), [a, a]))([1]))
def alias_inner_lists_later(x, both):
    both[0].append(2)
    both[1].append(3)
    return x * len(both[0])


@program(lambda: (T(3.0), T(3.0)), lambda: (lambda t: (t, t))(T(3.0)))
def alias_tensors_later(x, y):
    x.add_(1)
    return y * 2, x is y


@program(lambda: (lambda t: (t, t))(T(3.0)), lambda: (T(3.0), T(3.0)))
def alias_tensors(x, y):
    x.add_(1)
    return y * 2, x is y


@program(lambda: (T(3.0), {"a": 1}, {"a": 1}), lambda: (lambda a: (T(3.0), a, a))({"a": 1}))
def alias_dicts_later(x, a, b):
    a["n"] = 1
    return x * len(b)


def circle():
    a = [1]
    a.append(a)
    return T(3.0), a


@program(circle)
def circular_list(x, a):
    a[1][1].append(5)
    return x * len(a), a


@program(tensor)
def circular_made(x):
    a = []
    a.append(a)
    d = {"self": a}
    d["d"] = d
    return a, d, x


@program(lambda: (T(6.0),))
def views(x):
    y = x.view(2, 3)
    z = y[0]
    w = x.clone()
    return y, z, w, x.detach(), y.t(), x[1:4]


@program(lambda: (T(6.0),))
def view_mutation(x):
    y = x.view(2, 3)
    y[0].zero_()
    z = x[3:]
    z.mul_(2)
    x[0] = 7
    return x.sum(), y, z


@program(lambda: (T(6.0),))
def inplace_operators(x):
    y = x
    y += 1
    z = y * 1
    z *= 2
    z[1:3] = 0
    z[0] += 5
    x.add_(z)
    return y, z, y is x


@program(lambda: (T(6.0), [T(3.0), T(3.0)]))
def tensors_in_containers(x, ts):
    ts[0].add_(1)
    ts[1] = ts[0] * 2
    ts.append(ts[0])
    return x.sum(), ts[2] is ts[0]


@program(lambda: (T(3.0), {"t": T(3.0)}))
def state_dictionary(x, state):
    state["t"] = state["t"] + x
    state["n"] = state.get("n", 0) + 1
    return state["t"] * 2


@program(lambda: (T(3.0), [[1, 2], [3]]), lambda: (T(3.0), [[1], [3]]))
def nested_lists(x, a):
    flat = [v for row in a for v in row]
    a[0], a[1] = a[1], a[0]
    a[0].append(len(flat))
    return x * sum(flat), a[0] is a[0]


@program(lambda: (T(3.0), (T(2.0), [T(2.0)])))
def tuple_holding_list(x, t):
    t[1].append(t[0] * 2)
    return t, t[1][0] + 1


@program(lambda: (T(3.0), [1, 2, 3]), lambda: (T(3.0), [1, 2, 4]), lambda: (T(3.0), [9, 2, 3]))
def partial_reads(x, a):
    return x * a[0]


@program(lambda: (T(3.0), {"a": 1, "b": 2}), lambda: (T(3.0), {"a": 1, "b": 3}), lambda: (T(3.0), {"b": 3}))
def partial_key_reads(x, d):
    if "a" in d:
        return x * d["a"]
    return x - 1


@program(lambda: (T(3.0), [1, 2]), lambda: (T(3.0), [1, 2, 3]), lambda: (T(3.0), []))
def emptiness(x, a):
    return x if a else -x


@program(lambda: (T(3.0), [1, 2]))
def swap_and_delete(x, a):
    a[0], a[1] = a[1], a[0]
    del a[0]
    a[:] = [a[0], x]
    return a


@program(lambda: (T(3.0), {"a": {"b": {"c": 1}}}), lambda: (T(3.0), {"a": {"b": {"c": 2}}}))
def deep_dicts(x, d):
    d["a"]["b"]["c"] += 1
    d["a"]["n"] = d["a"]["b"]
    return x * d["a"]["n"]["c"]


@program(lambda: (T(3.0), [None, 1, "a", 2.5, (1, 2), T(2.0)]))
def mixed(x, a):
    return [v for v in a if isinstance(v, (int, float))], a[5] + x[:2], [type(v).__name__ for v in a]


@program(lambda: (T(3.0), [0, 1]), lambda: (T(3.0), [False, True]))
def equal_but_of_other_kind(x, a):
    return a, [str(v) for v in a], x


@program(lambda: (T(3.0), {1: "a"}), lambda: (T(3.0), {True: "a"}), lambda: (T(3.0), {1.0: "a"}))
def equal_keys_of_other_kind(x, d):
    return [str(k) for k in d], d[1], x


@program(
    lambda: (T(4.0).reshape(2, 2), (0, ...)),
    lambda: (T(4.0).reshape(2, 2), (1, ...)),
    lambda: (T(4.0).reshape(2, 2), (..., 1)),
)
def tuple_of_constants_compared_by_identity(x, key):
    return x[key], torch.ones(1).to(*(torch.float64,))


@program(
    lambda: (T(2.0), (torch.float64, [1])),
    lambda: (T(2.0), (torch.int32, [1])),
)
def tuple_that_is_passed_on(x, kinds):
    return x.to(*kinds[:1]), f"{kinds}"


@program(lambda: (T(3.0), [1, 2], deque([1])))
def repeated_in_place(x, a, d):
    b = a
    a *= 2
    d *= 3
    c = [x]
    c *= 2
    a += (7,)
    a += "xy"
    return a is b, a, d, c


def _lists(*starts):
    """The same program on lists that differ only where it does not look."""
    return [lambda start=start: (T(2.0), list(start)) for start in starts]


MOVED = _lists([1, 1], [1, 2], [2, 1], [3, 1], [1, 7, 1], [1, 1, 9], [4, 5, 1])


@program(*MOVED)
def elements_moved_by_insert(x, items):
    items.insert(1, len(items) % 5)
    return x


@program(*MOVED)
def elements_moved_by_deletion(x, items):
    del items[0]
    return x


@program(*MOVED)
def elements_moved_by_slices(x, items):
    items[:0] = [items[0]]
    items[2:2] = [1]
    return x


@program(*MOVED)
def elements_written_and_put_behind(x, items):
    items[0] = 1
    items[-1] = x.shape[0]
    items.append(3)
    return x


@program(*MOVED)
def elements_that_all_go(x, items):
    items.clear()
    items.append(1)
    return x, sum(items)


@program(*MOVED)
def list_written_whole(x, items):
    items[:] = [1, *items[:1]]
    return x


@program(*[lambda start=start, size=size: (T(2.0), deque(start, size)) for size in (None, 3) for start in
           ([1, 1], [1, 7, 1], [4, 5, 1])])
def deque_from_outside(x, items):
    items.append(1)
    items.appendleft(2)
    items.extend([3])
    return x


@program(lambda: (T(2.0), {"a": 1}), lambda: (T(2.0), {"b": 2}), lambda: (T(2.0), {}), lambda: (T(2.0), {"a": 3}))
def dict_whose_entries_all_go(x, table):
    table.clear()
    table["a"] = 1
    return x


@program(lambda: (T(2.0), bytearray(b"ab")), lambda: (T(2.0), bytearray(b"cd")), reason="c_reads_object")
def bytearray_from_outside(x, data):
    data.append(5)
    data[0] = 7
    return x, data[1]
