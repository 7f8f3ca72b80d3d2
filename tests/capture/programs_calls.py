"""Calls, binding, closures, defaults, star arguments, unpacking, comprehensions, generators."""

import functools

import torch
from capture_harness import Collection, tensor

program = Collection("calls")
counter = 0
table = {"scale": 2.0}
numbers = [1, 2]
T = torch.arange


def plus(a, b=1, *rest, c=2, d, **named):
    return (a, b, rest, c, d, sorted(named.items()))


@program(lambda: (T(3.0), 1), lambda: (T(3.0), 2), lambda: (T(4.0), 1))
def keyword_binding(x, n):
    return x * n, plus(n, d=4), plus(1, n, 3, 4, d=n, e=6), plus(*[1, 2, n], **{"d": 1, "z": n})


@program(lambda: (T(3.0),), raises=True)
def missing_argument(x):
    return x, plus(1)


@program(tensor)
def missing_argument_caught(x):
    try:
        plus(1)
    except TypeError as error:
        return x + 1, str(error)


@program(tensor)
def too_many(x):
    def g(a, /, b, *, c=1):
        return a + b + c

    texts = []
    for args, kwargs in (((1, 2, 3), {}), ((1,), {}), ((), {"a": 1, "b": 2}), ((1, 2), {"d": 1}), ((1, 2), {"b": 1})):
        try:
            g(*args, **kwargs)
        except TypeError as error:
            texts.append(str(error))
    return x + g(1, 2), texts


@program(tensor)
def positional_only_with_named(x):
    def g(a, /, **kw):
        return a, kw

    return x + 1, g(1, a=2)


@program(lambda: (T(3.0), 2), lambda: (T(3.0), 5))
def closures(x, n):
    total = 0

    def add(k):
        nonlocal total
        total += k * n
        return total

    add(1)
    add(2)
    return x + total, total, add


@program(tensor)
def closure_over_loop(x):
    makers = [lambda: i for i in range(3)]
    bound = [lambda i=i: i for i in range(3)]
    return x + 1, [m() for m in makers], [m() for m in bound]


@program(tensor)
def unbound_local(x):
    try:
        if x.dim() == 5:
            y = 1
        return y
    except UnboundLocalError as error:
        return x, str(error)


@program(tensor)
def unbound_cell(x):
    def inner():
        return later

    try:
        inner()
    except NameError as error:
        text = str(error)
    later = 2
    return x + inner(), text


@program(tensor)
def deleted_local(x):
    y = 1
    del y
    try:
        return y
    except UnboundLocalError as error:
        return x, str(error)


@program(lambda: (T(3.0),), names=("counter",))
def global_write(x):
    global counter
    counter += 1
    counter = counter * 2
    return x + counter


@program(lambda: (T(3.0),), names=("counter",))
def global_delete(x):
    global counter
    del counter
    try:
        counter
    except NameError as error:
        text = str(error)
    counter = 5
    return x + 1, text


@program(lambda: (T(3.0),), names=("table", "numbers"))
def global_containers(x):
    table["new"] = x
    numbers.append(len(table))
    numbers[0] += 1
    return x * table["scale"] + sum(numbers)


@program(tensor)
def lambda_recursion(x):
    fact = lambda n: 1 if n == 0 else n * fact(n - 1)
    return x * fact(5)


@program(tensor)
def default_mutable(x):
    def g(v, acc=[]):
        acc.append(v)
        return acc

    g(1)
    return x + len(g(2)), g(3)


def outer_default(v, acc=[]):
    acc.append(v)
    return len(acc)


@program(tensor, rehits=False)
def outer_default_mutates(x):
    n = outer_default(1)
    outer_default.__defaults__[0].clear()
    return x + n


@program(tensor)
def unpacking(x):
    a, b, c = x
    (d, e), *f = (1, 2), 3, 4
    *g, h = [1, 2, 3]
    i, *j, k = range(5)
    return a + b + c, d, e, f, g, h, i, j, k


@program(tensor)
def unpack_errors(x):
    texts = []
    for value in ((1, 2, 3), (1,), 5, "a", {1: 2}):
        try:
            a, b = value
        except (ValueError, TypeError) as error:
            texts.append((type(error).__name__, str(error)))
    try:
        a, *b, c = (1,)
    except ValueError as error:
        texts.append(str(error))
    return x, texts


@program(tensor)
def star_errors(x):
    def g(*args, **kwargs):
        return args, kwargs

    texts = []
    for call in (lambda: g(*5), lambda: g(**5), lambda: g(**{1: 2}), lambda: g(a=1, **{"a": 2}), lambda: 5()):
        try:
            call()
        except TypeError as error:
            texts.append(str(error))
    return x, texts


@program(tensor)
def star_building(x):
    a, b = [1, 2], {"k": 3}
    return x, [*a, 0, *a], (*a, *"xy"), {*a, 7}, {**b, "z": 1, **b}, {"k": 0, **b}


@program(lambda: (T(3.0), [1, 2, 3]), lambda: (T(3.0), [4, 5]))
def comprehensions(x, items):
    return (
        [x * i for i in items],
        {i: i * i for i in items if i > 1},
        {i % 2 for i in items},
        sum(i for i in items),
        [[i + j for j in range(i)] for i in items],
    )


@program(tensor)
def generators(x):
    def count(n):
        received = []
        for i in range(n):
            got = yield i
            received.append(got)
        return received

    g = count(3)
    first = next(g)
    second = g.send("a")
    third = g.send("b")
    try:
        g.send("c")
    except StopIteration as stop:
        result = stop.value
    return x + first + second + third, result


@program(tensor)
def generator_delegation(x):
    def inner():
        a = yield 1
        b = yield a
        return (a, b)

    def outer():
        result = yield from inner()
        yield result
        yield from [5, 6]

    g = outer()
    return x, next(g), g.send(10), g.send(20), list(g)


@program(tensor)
def generator_throw_close(x):
    log = []

    def g():
        try:
            yield 1
        except ValueError as error:
            log.append(str(error))
            yield 2
        finally:
            log.append("finally")

    one = g()
    next(one)
    log.append(one.throw(ValueError("v")))
    one.close()
    two = g()
    next(two)
    two.close()
    three = g()
    next(three)
    try:
        three.throw(KeyError("k"))
    except KeyError as error:
        log.append(repr(error))
    return x, log


@program(tensor)
def generator_stop_inside(x):
    def g():
        yield 1
        raise StopIteration(3)

    try:
        list(g())
    except RuntimeError as error:
        return x, str(error), type(error.__cause__).__name__


@program(tensor, rehits=False)
def generator_delegated_throw(x):
    log = []

    def inner():
        try:
            yield 1
        except ValueError:
            log.append("inner")
            yield 2
        return 3

    def outer():
        log.append((yield from inner()))

    g = outer()
    next(g)
    log.append(g.throw(ValueError))
    return x, list(g), log


@program(tensor)
def generator_expressions(x):
    pairs = ((i, j) for i in range(3) for j in range(i))
    return (
        x * sum(i * j for i, j in pairs),
        any(i > 1 for i in range(3)),
        all(i for i in range(3)),
        max(i for i in (3, 1)),
    )


@program(tensor)
def generator_lazy(x):
    log = []

    def g():
        for i in range(5):
            log.append(i)
            yield i

    for value in g():
        if value == 2:
            break
    return x, log


@program(tensor)
def generator_tensors(x):
    def halves(t):
        while t.shape[0] > 1:
            t = t[: t.shape[0] // 2]
            yield t

    return list(halves(torch.cat([x, x, x])))


@program(tensor)
def function_attributes(x):
    def g():
        g.count = getattr(g, "count", 0) + 1
        return g.count

    g()
    g()
    return x + g.count, g.__name__, g.__doc__, g.__defaults__


@program(tensor)
def decorator(x):
    def twice(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            return f(f(*args, **kwargs), **kwargs)

        return inner

    @twice
    def add(v, k=1):
        return v + k

    return add(x), add(x, k=3), add.__name__


@program(lambda: (T(3.0), lambda a: a + 1), lambda: (T(3.0), lambda a: a * 2))
def function_argument(x, f):
    return f(x), f


@program(tensor)
def returned_function(x):
    y = x * 2

    def g(v, k=3):
        return v + y + k

    return g, y


@program(lambda: (T(3.0), (1, [2, {"k": 3}])), lambda: (T(3.0), (1, [2, {"k": 4}])))
def nested_arguments(x, tree):
    a, (b, c) = tree
    return x * a * b * c["k"], tree


@program(lambda: (T(3.0), True), lambda: (T(3.0), False), lambda: (T(3.0), 1), lambda: (T(3.0), None))
def boolean_argument(x, flag):
    if flag is True:
        return x
    return -x if flag else x * 2


@program(lambda: (T(3.0), 1), lambda: (T(3.0), 1.0), lambda: (T(3.0), True))
def number_kinds(x, n):
    return x + n, n, type(n).__name__


@program(lambda: (T(3.0), 0.0), lambda: (T(3.0), -0.0), lambda: (T(3.0), float("nan")))
def float_bits(x, n):
    return x, n, str(n)


@program(tensor)
def walrus_and_chain(x):
    values = [y := 2, y**2]
    if (n := len(values)) > 1 < 3 != 4:
        return x + n, y, 1 < n < 2


@program(tensor)
def conditional_imports(x):
    import math
    from math import pi as circle
    import os.path as p

    return x * math.floor(circle), p.join("a", "b")


@program(tensor)
def local_names(x):
    y = 2
    names = locals()
    return sorted(names), names["y"] + 1, x


@program(tensor)
def assert_statement(x):
    assert x.shape[0] == 3, "no"
    try:
        assert x.shape[0] == 4, f"shape {x.shape[0]}"
    except AssertionError as error:
        return x, str(error)


@program(tensor)
def loops(x):
    out = []
    for i in range(10):
        if i % 2:
            continue
        if i > 6:
            break
        out.append(i)
    else:
        out.append("else")
    while out:
        if out.pop() == 2:
            break
    else:
        out.append("never")
    for _ in ():
        pass
    else:
        out.append("empty")
    return x, out


@program(tensor)
def recursion(x):
    def depth(tree):
        return 1 + max((depth(t) for t in tree), default=0)

    return x * depth([[[]], [], [[[]]]])


@program(lambda: (T(3.0), {"a": 1, "b": 2}), lambda: (T(3.0), {"a": 1, "c": 2}))
def kwargs_from_argument(x, named):
    def g(a, **rest):
        return a, rest

    return x, g(**named)


@program(tensor)
def many_tensors_by_keyword(x):
    return torch.add(input=x, other=x, alpha=2), torch.sum(x, dim=0, keepdim=True)


@program(tensor, raises=True)
def torch_refuses(x):
    return torch.sin(x, x)


@program(tensor, raises=True)
def torch_refuses_shapes(x):
    return x @ torch.ones(4, 4)


@program(lambda: (T(3.0),), raises=True)
def raises_after_effects(x):
    numbers.append(1)
    try:
        raise ValueError("after")
    finally:
        numbers.pop()


class Callable_:
    def __init__(self, k):
        self.k = k

    def __call__(self, x, *, plus=0):
        return x * self.k + plus


@program(lambda: (T(3.0), Callable_(2)), lambda: (T(3.0), Callable_(3)))
def callable_object(x, f):
    return f(x), f(x, plus=1)


@program(lambda: (T(3.0), Callable_(2).__call__), lambda: (T(3.0), Callable_(3).__call__))
def bound_method_argument(x, f):
    return f(x)


@program(lambda: (T(3.0), [1]), lambda: (T(3.0), [1, 2]))
def bound_builtin_made_inside(x, items):
    add = items.append
    add(5)
    n = items.__len__()
    return x + n
