"""Programs to stop everywhere in. Each gets a list to log to, and is deterministic; helpers are instrumented too."""

from __future__ import annotations

import contextlib
import sys


class Manager:
    """A context manager that logs, and swallows what it is told to."""

    def __init__(self, log, name, swallow=()):
        self.log = log
        self.name = name
        self.swallow = swallow

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", self.name, kind and kind.__name__))
        return bool(kind and issubclass(kind, self.swallow))


class Box:
    """Operators in Python."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"Box({self.value!r})"

    def __add__(self, other):
        if isinstance(other, Box):
            return Box(self.value + other.value)
        return Box(self.value + other)

    def __iadd__(self, other):
        self.value += other
        return self

    def __neg__(self):
        return Box(-self.value)

    def __getitem__(self, key):
        if key > 3:
            raise IndexError(key)
        return self.value + key

    def __setitem__(self, key, value):
        self.value = (self.value, key, value)

    def __delitem__(self, key):
        self.value = key

    def __contains__(self, item):
        return item == self.value

    def __bool__(self):
        return bool(self.value)

    def __eq__(self, other):
        return self.value == other

    def __lt__(self, other):
        return self.value < other

    @property
    def double(self):
        return self.value * 2

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return name.upper()

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

    def method(self, extra=0, *, scale=1):
        return (self.value + extra) * scale

    def __format__(self, spec):
        return f"<{self.value}:{spec}>"


class Countdown:
    """An iterator in Python."""

    def __init__(self, start):
        self.left = start

    def __iter__(self):
        return self

    def __next__(self):
        if self.left <= 0:
            raise StopIteration
        self.left -= 1
        return self.left


def case_straight(log):
    a = 1
    b = a + 2
    log.append(b)
    return (a, b, [a * b])


def case_for(log):
    total = 0
    for i in range(3):
        total += i
        log.append((i, total))
    return total


def case_for_else(log):
    for i in [1, 2]:
        log.append(i)
    else:
        log.append("else")
    return log


def case_for_break_continue(log):
    for i in range(6):
        if i == 1:
            continue
        if i == 4:
            break
        log.append(i)
    else:
        log.append("never")
    return i


def case_nested_for(log):
    out = []
    for i, row in enumerate([[1, 2], [3]]):
        for j in row:
            out.append((i, j))
            log.append(sum(j for _, j in out))
    return out


def case_while(log):
    n = 3
    while n:
        n -= 1
        log.append(n)
    return n


def case_while_else(log):
    n = 0
    while n < 2:
        n += 1
    else:
        log.append("else")
    return n


def case_while_true(log):
    n = 0
    while True:
        n += 1
        if n > 2:
            return n


def case_for_dict_items(log):
    data = {"a": 1, "b": 2}
    for key, value in data.items():
        log.append((key, value))
    return data


def case_for_zip_iterators(log):
    source = iter([1, 2, 3, 4])
    for a, b in zip(source, source):
        log.append((a, b))
    return list(source)


def case_with(log):
    with Manager(log, "a") as a:
        log.append(a.name)
        value = len(log)
    log.append(value)
    return value


def case_with_two(log):
    with Manager(log, "a") as a, Manager(log, "b"):
        log.append(a.name)
    return len(log)


def case_with_return(log):
    with Manager(log, "a"):
        return log.copy()


def case_with_raise(log):
    with Manager(log, "a"):
        log.append(1)
        raise ValueError("in with")


def case_with_swallow(log):
    with Manager(log, "outer"):
        with Manager(log, "a", (KeyError,)):
            {}["missing"]
            log.append("not here")
        log.append("after")
    return len(log)


def case_with_in_loop(log):
    for i in range(3):
        with Manager(log, i, (ZeroDivisionError,)):
            if i == 1:
                continue
            log.append(1 / (i - 2))
    return i


def case_with_break(log):
    for i in range(3):
        with Manager(log, i):
            if i == 1:
                break
    return i


def case_with_suppress(log):
    with contextlib.suppress(KeyError):
        log.append({}["x"])
    return log


def case_try_except(log):
    try:
        log.append("try")
        int("x")
    except ValueError as error:
        log.append(str(error))
    return "done"


def case_try_else_finally(log):
    try:
        log.append("try")
    except ValueError:
        log.append("no")
    else:
        log.append("else")
    finally:
        log.append("finally")
    return log


def case_try_finally_raise(log):
    try:
        log.append("try")
        raise KeyError("k")
    finally:
        log.append(sys.exc_info()[0])


def case_finally_return(log):
    try:
        return len(log)
    finally:
        log.append("finally")


def case_finally_overrides(log):
    try:
        raise KeyError("lost")
    finally:
        return len(log)


def case_finally_in_loop(log):
    for i in range(3):
        try:
            if i == 1:
                continue
            log.append(i)
        finally:
            log.append(("finally", i))
    return i


def case_reraise(log):
    try:
        try:
            int("x")
        except ValueError:
            log.append("inner")
            raise
    except ValueError as error:
        log.append(error.args)
        return error.__traceback__.tb_lineno - sys._getframe().f_code.co_firstlineno


def case_raise_from(log):
    try:
        int("x")
    except ValueError as error:
        raise KeyError("from") from error


def case_raise_in_handler(log):
    try:
        int("x")
    except ValueError:
        log.append("handling")
        raise KeyError("context")


def case_nested_handlers(log):
    try:
        int("x")
    except ValueError as outer:
        log.append(repr(sys.exc_info()[1]))
        try:
            {}["y"]
        except KeyError as inner:
            log.append((repr(inner.__context__), repr(outer)))
            try:
                1 / 0
            except ZeroDivisionError:
                log.append(repr(sys.exc_info()[1]))
            log.append(repr(sys.exc_info()[1]))
        log.append(repr(sys.exc_info()[1]))
    log.append(sys.exc_info()[1])
    return len(log)


def case_handler_in_loop(log):
    for text in ["1", "x", "2"]:
        try:
            log.append(int(text))
        except ValueError as error:
            log.append(error.args[0])
            continue
        log.append("ok")
    return text


def case_handler_with_loop(log):
    try:
        int("x")
    except ValueError as error:
        for i in range(2):
            log.append((i, str(error), sys.exc_info()[0].__name__))
    return 1


def case_handler_with_manager(log):
    try:
        int("x")
    except ValueError:
        with Manager(log, "h", (KeyError,)):
            raise KeyError("in handler")
    return log[-1]


def case_bare_except(log):
    try:
        log.append(1 / 0)
    except:  # noqa: E722
        log.append(sys.exc_info()[0].__name__)
    return 0


def case_except_tuple(log):
    for thing in ("a", 5, None):
        try:
            log.append(len(thing) + int(thing))
        except (ValueError, TypeError) as error:
            log.append(type(error).__name__)
    return thing


def case_uncaught(log):
    log.append(1)
    value = [1, 2][5]
    return value


def case_try_in_with_in_for(log):
    for i in range(2):
        with Manager(log, i):
            try:
                log.append(1 // i)
            except ZeroDivisionError as error:
                log.append(str(error))
            finally:
                log.append("f")
    return i


def case_exception_group(log):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), KeyError(3)])
    except* ValueError as group:
        log.append(("value", [e.args for e in group.exceptions]))
    except* TypeError as group:
        log.append(("type", [e.args for e in group.exceptions]))
    except* KeyError:
        log.append("key")
    return len(log)


def case_exception_group_rest(log):
    try:
        raise ExceptionGroup("g", [ValueError(1), OSError(2)])
    except* ValueError:
        log.append("value")


def case_exception_group_raise(log):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError:
        raise KeyError("new")
    except* TypeError as group:
        log.append(len(group.exceptions))


def case_exception_group_naked(log):
    try:
        int("q")
    except* ValueError as group:
        log.append(type(group).__name__)
        return_value = len(group.exceptions)
    return return_value


def case_expression_nulls(log):
    return max(1, len([1, 2]), abs(min(-5, int("3")))) + sum([len("ab"), 1])


def case_method_chain(log):
    return " a,b ".strip().split(",")[0].upper().center(5, "*")


def case_keyword_calls(log):
    box = Box(3)
    return sorted([3, 1, 2], reverse=True), box.method(1, scale=2), box.method(scale=len([1, 2])), dict(a=1, b=[2])


def case_star_calls(log):
    def take(*args, **kwargs):
        log.append((args, sorted(kwargs.items())))
        return len(args)

    rest = (2, 3)
    more = {"x": 1}
    return take(*rest), take(1, *rest, y=2, **more), take(**more, z=len(rest)), take(*rest, *rest)


def case_displays(log):
    a = [1, *range(2), 3]
    b = {*a, 9}
    c = {"x": 1, **{"y": 2}}
    d = (*a, *b)
    return a, sorted(b), c, len(d)


def case_list_comprehension(log):
    return [x * y for x in range(3) if x for y in (1, 2)]


def case_dict_comprehension(log):
    return {k: [v for v in range(k)] for k in range(3)}


def case_set_comprehension(log):
    limit = 2
    return sorted({x % limit for x in range(5)})


def case_comprehension_closure(log):
    scale = 3
    functions = [lambda x=i: x * scale + i for i in range(3)]
    return [function() for function in functions]


def case_comprehension_raise(log):
    x = "outer"
    try:
        return [10 // x for x in (2, 0)]
    except ZeroDivisionError:
        log.append(x)
    return x


def case_generator_expression(log):
    return sum(x * x for x in range(4))


def case_generator_loop(log):
    def generate(n):
        for i in range(n):
            log.append(("yield", i))
            got = yield i * 2
            log.append(("got", got))
        return "end"

    total = 0
    for value in generate(3):
        total += value
        log.append(total)
    return total


def case_generator_named(log):
    def generate():
        yield 1
        yield 2
        yield 3

    generator = generate()
    for value in generator:
        log.append(value)
        if value == 2:
            break
    return next(generator), list(generator)


def case_generator_try(log):
    def generate():
        try:
            yield 1
            log.append("second")
            yield 2
        except KeyError as error:
            log.append(repr(error))
            yield 3
        finally:
            log.append("closed")

    for value in generate():
        log.append(value)
    return value


def case_generator_with(log):
    def generate():
        with Manager(log, "g"):
            yield 1
            yield 2

    return [value + 1 for value in generate()]


def case_yield_from(log):
    def inner():
        log.append("inner")
        yield 1
        yield 2
        return "result"

    def outer():
        result = yield from inner()
        log.append(result)
        yield 3

    for value in outer():
        log.append(value)
    return value


def case_yield_from_list(log):
    def outer():
        yield from [1, 2]
        yield from range(2)

    for value in outer():
        log.append(value)
    return log


def case_generator_raises(log):
    def generate():
        yield 1
        raise ValueError("from generator")

    for value in generate():
        log.append(value)


def case_generator_in_handler(log):
    def generate():
        log.append(repr(sys.exc_info()[1]))
        try:
            int("g")
        except ValueError:
            yield repr(sys.exc_info()[1])
        yield repr(sys.exc_info()[1])

    try:
        int("f")
    except ValueError:
        for value in generate():
            log.append(value)
            log.append(repr(sys.exc_info()[1]))
    return len(log)


def case_closure_nonlocal(log):
    count = 0

    def bump(by):
        nonlocal count
        count += by
        return count

    log.append(bump(2))
    log.append(bump(3))
    count += 10
    return count, bump(1)


def case_closure_argument(log, base=5, *rest, key="k", **more):
    def show():
        return base, rest, key, more

    base += 1
    log.append(show())
    key = "changed"
    return show()


def case_closure_shared(log):
    items = []

    def make(i):
        def push():
            items.append(i)
            return len(items)

        return push

    pushes = [make(i) for i in range(2)]
    return [push() for push in pushes], items


def case_closure_deep(log):
    a = 1

    def middle(b):
        def inner(c):
            nonlocal a
            a += b + c
            return a

        return inner(b) + a

    return middle(2), a


def case_delete_cell(log):
    value = 1

    def read():
        return value

    log.append(read())
    del value
    try:
        return read()
    except NameError as error:
        log.append(type(error).__name__)
        value = 3
        return read()


def case_delete_local(log):
    x = 1
    y = [x]
    del x
    try:
        log.append(x)  # noqa: F821
    except UnboundLocalError as error:
        log.append(str(error))
    x = 2
    del y[0]
    return x, y


def case_conditionally_bound(log):
    for flag in (True, False):
        if flag:
            value = "bound"
        log.append(value)
        del value
        if not flag:
            break
        value = "again"
    return sorted(locals())


def case_locals(log):
    a = 1
    b = [a]
    log.append(sorted(locals()))
    c = lambda: (a, log)  # noqa: E731
    log.append(sorted(locals()))
    return {k: v for k, v in locals().items() if k in "ab"}


def here():
    """What the frame of the caller says of itself."""
    frame = sys._getframe(1)
    return frame.f_lineno, frame.f_code.co_name, frame.f_code.co_qualname, sorted(frame.f_locals)


def case_frame(log):
    shared = 1
    log.append(here())
    log.append(
        (
            here(),
            here(),
        )
    )
    return here(), (lambda: shared)()


def case_class_body(log):
    base = 10

    class Local:
        """doc"""

        value = base + 1

        def get(self, extra=base):
            return self.value + extra + base

    log.append(Local.__name__)
    return Local().get(), Local.__qualname__


def case_super(log):
    class A:
        def f(self, x):
            log.append(("A", x))
            return x + 1

        @classmethod
        def make(cls):
            return cls()

    class B(A):
        def f(self, x):
            y = x * 2
            result = super().f(y)
            log.append(("B", result))
            return result + super().f(1)

        def g(self):
            def read():
                return self

            return super().f(5), read() is self

        @classmethod
        def make(cls):
            return super().make()

    return B().f(3), B().g(), type(B.make()).__name__


def case_decorators(log):
    def double(function):
        def wrapped(*args, **kwargs):
            log.append(function.__name__)
            return function(*args, **kwargs) * 2

        return wrapped

    @double
    def add(a, b=1):
        return a + b

    return add(2), add(2, b=5)


def case_match(log):
    out = []
    for subject in (1, "two", [1, 2, 3], {"k": 5, "m": 6}, Countdown(4), (), None, ("x", 2)):
        match subject:
            case int(n) if n > 0:
                out.append(("int", n))
            case "two" | "three":
                out.append("word")
            case [first, *rest] if first == 1:
                out.append((first, rest))
            case {"k": value, **others}:
                out.append((value, others))
            case Countdown(left=left):
                out.append(left)
            case ():
                out.append("empty")
            case (name, number):
                out.append((name, number))
            case _:
                out.append("other")
    return out


def case_fstrings(log):
    name = "x"
    value = 3.14159
    width = 8
    return f"{name!r:>{width}}|{value:.2f}|{len(name)}|{value=}|{{}}"


def case_walrus(log):
    if (n := len([1, 2, 3])) > 2 and (m := n * 2):
        log.append((n, m))
    return [y := 1, y**2, (z := y + 1)]


def case_chained_comparison(log):
    def value(x):
        log.append(x)
        return x

    return value(1) < value(2) < value(3), value(1) < value(0) < value(9), 1 < value(2) <= value(2) != value(3)


def case_boolean_operators(log):
    def value(x):
        log.append(x)
        return x

    a = value(0) or value("b") or value("never")
    b = value(1) and value([]) and value("never")
    return a, b, not value(0), value(None) is None, 2 not in [value(1)]


def case_conditional_expression(log):
    return [x if x % 2 else -x for x in range(4)] if log == [] else "no"


def case_unpack(log):
    a, b = 1, 2
    a, b = b, a
    (c, *d), e = ([3, 4, 5], 6)
    *f, g = "xyz"
    return a, b, c, d, e, f, g


def case_slices(log):
    data = list(range(10))
    data[2:4] = ["a", "b"]
    part = data[1:8:2]
    del data[:3]
    data[0] += "!"
    return data, part, data[-1]


def case_augmented(log):
    x = 2
    x **= 3
    x //= 3
    x <<= 2
    x |= 1
    x ^= 3
    data = {"k": 1}
    data["k"] += x
    box = Box(1)
    box.value -= 5
    return x, data, box


def case_operators(log):
    box = Box(2)
    other = box + Box(3)
    more = other + 1
    more += 4
    box[1] = "one"
    log.append(box.value)
    del box[7]
    return -more, other[2], 5 in other, 6 in other, 5 not in other, box.value


def case_operator_errors(log):
    box = Box(1)
    try:
        log.append(box[2] + box[9])
    except IndexError as error:
        log.append(error.args)
    try:
        return box + None
    except TypeError as error:
        return type(error).__name__


def case_truth(log):
    out = []
    for box in (Box(0), Box(1)):
        if box:
            out.append("yes")
        if not box:
            out.append("no")
        out.append(box.value if box and out else "falsy")
        while box:
            box.value -= 1
        out.append(bool(box or out))
    return out


def case_comparisons(log):
    low, high = Box(1), Box(5)
    return low < 3, low == 1, low != 1, 0 if low < 0 < high else 1


def case_attributes(log):
    box = Box(4)
    box.extra = box.double
    log.append(box.missing)
    try:
        box._private
    except AttributeError as error:
        log.append(str(error))
    box.value = box.extra
    del box.extra
    return box.double, box.missing.lower(), box.method(*[1])


def case_python_iterator(log):
    total = []
    for value in Countdown(3):
        total.append(value)
        for inner in Countdown(value):
            log.append((value, inner))
    return total


def case_assert(log):
    assert log == [], "not empty"
    try:
        assert log, f"log is {log!r}"
    except AssertionError as error:
        log.append(str(error))
    return log


def case_imports(log):
    import math
    from os.path import basename as base
    from os.path import join

    return math.floor(2.5), base(join("a", "b"))


def case_global(log):
    global counter
    counter = 1
    counter += 1
    value = counter
    del counter
    return value, "counter" in globals()


def case_lambda_default(log):
    function = lambda a, b=len("xy"), *, c=3: (a, b, c)  # noqa: E731
    return function(1), function(1, c=4)


def case_annotated(log):
    value: int = 3
    other: list[int]  # noqa: F842

    def function(a: int, *, b: str = "x") -> bool:
        return b * a == "x"

    return value, function(1), sorted(function.__annotations__)


def case_recursion(log):
    def factorial(n):
        log.append(n)
        if n <= 1:
            return 1
        return n * factorial(n - 1)

    return factorial(4)


def helper_divide(log, a, b):
    log.append(("divide", a, b))
    return a / b


def helper_guarded(log, a, b):
    try:
        with Manager(log, (a, b)):
            return helper_divide(log, a, b)
    except ZeroDivisionError as error:
        log.append(str(error))
        raise ValueError(a) from error
    finally:
        log.append("guarded")


def helper_collect(log, pairs):
    out = []
    for a, b in pairs:
        try:
            out.append(round(helper_guarded(log, a, b), 3))
        except ValueError as error:
            out.append(repr(error.__cause__))
    return out


def case_chain(log):
    return helper_divide(log, 1, 2) + helper_divide(log, a=3, b=4) * len(log)


def case_chain_handlers(log):
    return helper_collect(log, [(1, 2), (3, 0)])


def case_chain_uncaught(log):
    with Manager(log, "top"):
        log.append(helper_guarded(log, 1, 0))


def case_chain_in_handler(log):
    try:
        int("z")
    except ValueError:
        value = helper_divide(log, *(1, 4))
        log.append(repr(sys.exc_info()[1]))
        try:
            helper_divide(log, 1, 0)
        except ZeroDivisionError as error:
            log.append(repr(error.__context__))
    return value


def case_chain_generators(log):
    def numbers():
        for value in Countdown(2):
            yield helper_divide(log, value, 2)

    def doubled():
        for value in numbers():
            yield value * 2

    total = 0
    for value in doubled():
        total += value
    return total


def case_many_locals(log):
    a = b = c = d = e = f = g = h = i = j = k = l = m = n = 1
    o = p = q = r = s = t = u = v = w = x = y = z = [a]
    for a in (b + c, d + e):
        log.append(a * f + len(z))
    return [a, b, c, d, e, f, g, h, i, j, k, l, m, n, len(o + p + q + r + s + t + u + v + w + x + y + z)]


def case_string_building(log):
    parts = []
    for word in "ab cd".split():
        parts.append(word.title() + "!" * len(parts))
    title = "%s=%d" % ("x", 3)  # noqa: UP031
    return "-".join(parts), title, f"{7:>3}"


def case_frozen_iterators(log):
    pairs = enumerate(reversed([1, 2, 3]), start=1)
    next(pairs)
    for index, value in pairs:
        log.append((index, value))
        for letter in iter("ab"):
            log.append(letter)
    return next(pairs, "empty")


def case_del_in_loop(log):
    data = {"a": 1, "b": 2}
    for key in list(data):
        value = data.pop(key)
        log.append((key, value))
        del value
    return data


def case_return_in_nested_finally(log):
    for i in range(2):
        try:
            try:
                if i:
                    return i
            finally:
                log.append(("inner", i))
        finally:
            log.append(("outer", i))


def case_raise_through_all(log):
    def fail():
        with Manager(log, "f"):
            for i in range(3):
                try:
                    if i == 1:
                        raise RuntimeError(i)
                finally:
                    log.append(i)

    try:
        fail()
    except RuntimeError as error:
        log.append(error.args)
        raise LookupError("end") from None


def case_ternary_in_call(log):
    return max([3, 1], key=None if log else abs), min(*([1] if not log else [2]), 5)


def case_global_lookup_errors(log):
    try:
        return undefined_name  # noqa: F821
    except NameError as error:
        return str(error)


def case_bytes_and_sets(log):
    values = {1, 2} | {3}
    values.discard(2)
    data = bytearray(b"ab")
    data[0] = 65
    return sorted(values), bytes(data)
