"""Exceptions, with-blocks, contextlib, pattern matching, formatting."""

import contextlib
import dataclasses

import torch
from capture_harness import Collection, tensor

program = Collection("control")
T = torch.arange


class Custom(Exception):
    def __init__(self, code, detail="d"):
        super().__init__(code)
        self.code = code
        self.detail = detail

    def __str__(self):
        return f"custom {self.code}"


@program(tensor)
def try_parts(x):
    log = []
    for act in (lambda: 1, lambda: 1 / 0, lambda: {}["k"]):
        try:
            act()
        except ZeroDivisionError as error:
            log.append(str(error))
        except (KeyError, IndexError) as error:
            log.append(repr(error))
        else:
            log.append("else")
        finally:
            log.append("finally")
    return x, log


@program(tensor)
def finally_return(x):
    def f(n):
        try:
            if n == 0:
                return "try"
            raise ValueError(n)
        except ValueError:
            return "except"
        finally:
            if n == 2:
                return "finally"

    return x, [f(n) for n in range(3)]


@program(tensor)
def finally_in_loop(x):
    log = []
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            log.append(i)
        finally:
            log.append(-i)
    return x, log


@program(tensor)
def raise_from(x):
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error
    except ValueError as error:
        a = error
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b") from None
    except ValueError as error:
        b = error
    return (
        x,
        type(a.__cause__).__name__,
        a.__suppress_context__,
        b.__cause__,
        type(b.__context__).__name__,
        b.__suppress_context__,
    )


@program(tensor)
def implicit_context(x):
    try:
        try:
            1 / 0
        except ZeroDivisionError:
            {}["k"]
    except KeyError as error:
        return x, type(error.__context__).__name__, error.__cause__


@program(tensor)
def reraise(x):
    try:
        try:
            raise Custom(5)
        except Custom as error:
            error.detail = "changed"
            raise
    except Exception as error:
        return x * error.code, str(error), error.detail, error.args


@program(tensor)
def exception_name_unbound(x):
    try:
        raise ValueError
    except ValueError as error:
        pass
    try:
        error
    except UnboundLocalError as problem:
        return x, str(problem)


@program(tensor)
def bare_raise_outside(x):
    try:
        raise
    except RuntimeError as error:
        return x, str(error)


@program(tensor)
def raise_bad(x):
    texts = []
    for what in (5, "a", int):
        try:
            raise what
        except TypeError as error:
            texts.append(str(error))
    try:
        raise ValueError from 5
    except TypeError as error:
        texts.append(str(error))
    return x, texts


@program(tensor)
def nested_handlers(x):
    def inner():
        try:
            raise ValueError("inner")
        finally:
            log.append("cleanup")

    log = []
    try:
        inner()
    except ValueError as error:
        log.append(error.args)
        try:
            raise TypeError("second")
        except TypeError as second:
            log.append(type(second.__context__).__name__)
        log.append(error.args)
    return x, log


@program(tensor)
def exception_groups(x):
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), ExceptionGroup("h", [ValueError(3)])])
    except* ValueError as group:
        log.append([str(e) for e in group.exceptions])
    except* TypeError as group:
        log.append(len(group.exceptions))
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError:
            log.append("v")
    except ExceptionGroup as rest:
        log.append([repr(e) for e in rest.exceptions])
    try:
        raise ValueError("plain")
    except* ValueError as group:
        log.append(repr(group))
    return x, log


@program(tensor)
def exception_group_raises(x):
    log = []
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError:
            raise OSError("new")
    except ExceptionGroup as group:
        log.append([type(e).__name__ for e in group.exceptions])
    return x, log


@program(lambda: (T(3.0), ValueError("given")), lambda: (T(3.0), KeyError("given")))
def exception_argument(x, error):
    try:
        raise error
    except ValueError as caught:
        return x, caught is error, caught.args
    except KeyError:
        return x * 2


@program(lambda: (T(3.0), ValueError, 1), lambda: (T(3.0), KeyError, 2), raises=True)
def leaves_with(x, kind, n):
    y = x + n
    raise kind(f"n is {n}")


@program(lambda: (T(3.0), [1]), raises=True)
def effects_before_raise(x, a):
    a.append(2)
    x.add_(1)
    raise Custom(len(a))


@program(tensor, raises=True)
def chained_leaves(x):
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise Custom(3) from error


class Manager:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self.log

    def __exit__(self, kind, error, traceback):
        self.log.append(None if kind is None else (kind.__name__, str(error)))
        return self.swallow


@program(lambda: (T(3.0), []))
def with_blocks(x, log):
    with Manager(log) as a, Manager(a, True) as b:
        b.append("body")
        raise ValueError("v")
    with Manager(log):
        pass
    return x, a is log


@program(lambda: (T(3.0), Manager([], True)))
def with_given_manager(x, m):
    with m:
        m.log.append(x + 1)
        1 / 0
    return m.log


@program(tensor)
def with_return(x):
    log = []

    def f():
        for i in range(3):
            with Manager(log):
                if i == 1:
                    return i

    return x * f(), log


@program(tensor)
def with_bad(x):
    try:
        with 5:
            pass
    except (TypeError, AttributeError) as error:
        return x, str(error)


@contextlib.contextmanager
def managed(log, name):
    log.append(name)
    try:
        yield name * 2
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("end " + name)


@program(tensor)
def context_manager(x):
    log = []
    with managed(log, "a") as a, managed(log, "b"):
        log.append(a)
        raise ValueError("inside")
    try:
        with managed(log, "c"):
            raise KeyError("through")
    except KeyError as error:
        log.append(repr(error))
    return x, log


@program(tensor)
def context_decorator(x):
    log = []

    @managed(log, "deco")
    def f(v):
        log.append("called")
        return v + 1

    return f(x), f(x), log


@program(tensor)
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed(log, "a"))
        stack.callback(log.append, "callback")
        stack.push(Manager(log))
        stack.enter_context(Manager(log, True))
        raise ValueError("v")
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: log.append("kept"))
        kept = stack.pop_all()
    kept.close()
    return x, log


@program(tensor)
def other_contexts(x):
    log = []
    with contextlib.suppress(ValueError, KeyError):
        log.append(1)
        raise KeyError
    with contextlib.nullcontext(5) as five:
        log.append(five)

    class Closes:
        def close(self):
            log.append("closed")

    with contextlib.closing(Closes()) as c:
        pass
    return x, log


@program(lambda: (T(3.0, requires_grad=True),))
def torch_contexts(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        c = torch.is_grad_enabled()
    with torch.set_grad_enabled(False):
        d = x + 1
    e = x * 4
    return a, b, c, d, e


@program(lambda: (T(3.0, requires_grad=True),))
def grad_mode_left(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch._C._set_grad_enabled(True)
    return y, x * 3


@program(lambda: (T(3.0, requires_grad=True),))
def no_grad_function(x):
    @torch.no_grad()
    def f(v):
        return v * 2

    return f(x), x * 2


@dataclasses.dataclass
class Shape:
    kind: str
    size: int


@program(
    lambda: (
        T(3.0),
        [1, [2, 3], (4,), {"k": 5, "z": 6}, Shape("c", 2), "text", None, 7.0, True, [], {"other": 1}, Shape("d", 9)],
    ),
)
def matching(x, values):
    out = []
    for value in values:
        match value:
            case True | None:
                out.append("single")
            case int(n) if n < 3:
                out.append(("int", n))
            case float():
                out.append("float")
            case [a, b]:
                out.append(("two", a, b))
            case [a]:
                out.append(("one", a))
            case []:
                out.append("empty")
            case {"k": k, **rest}:
                out.append(("map", k, rest))
            case Shape("c", size=s):
                out.append(("shape", s))
            case Shape(kind=k):
                out.append(("other shape", k))
            case str() as text:
                out.append(text)
            case _:
                out.append("default")
    return x, out


@program(lambda: (T(3.0), ("go", 1, 2, 3)), lambda: (T(3.0), ("stop",)), lambda: (T(3.0), ("x", "y")))
def match_commands(x, command):
    match command:
        case ("go", first, *rest):
            return x * first, rest
        case ["stop"]:
            return x
        case (a, b):
            return -x, a, b


@program(lambda: (T(3.0), 3, "s", 2.5), lambda: (T(3.0), 4, "t", 1.5))
def formatting(x, n, s, f):
    return (
        x,
        f"{n} {s!r} {f:.2f} {n:>5} {s:*^7} {n + 1 = } {'a' if n else 'b'} {{}}",
        "%d %s %5.1f %r %%" % (n, s, f, s),
        "{} {0!r}".replace("0", "").format(n, s) if False else "{} {!r} {k:>4}".format(n, s, k=f),
        f"{n:{n}d}",
        f"{x.shape} {x.dtype} {tuple(x.shape)}",
        "%(a)s" % {"a": n},
        format(n, "b"),
        f"{[n, s]} {(n,)} { ({s: n}) }",
        str(n) + repr(s) + ascii("é"),
    )


@program(tensor)
def format_errors(x):
    texts = []
    for act in (
        lambda: "%d" % "a",
        lambda: "%s %s" % 1,
        lambda: "{}".format(),
        lambda: f"{'a':d}",
        lambda: "{a}".format(b=1),
        lambda: int("x"),
        lambda: float("y"),
    ):
        try:
            act()
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return x, texts


@program(tensor)
def string_methods(x):
    s = "Hello, World"
    return (
        x,
        s.upper(),
        s.split(", "),
        s.partition(","),
        s.find("o"),
        s.startswith(("He", "x")),
        s.encode(),
        s.title(),
        s.strip("d"),
        s.zfill(15),
        s.count("l"),
        s.isalpha(),
        "\n".join(s.splitlines()),
        s.removeprefix("He"),
        s[1:-1:2],
        s.translate({72: "J"}),
        "a" * 3,
        "b" in s,
        s < "I",
        list("ab"),
        s.casefold(),
        "x=%s" % 1,
        str.maketrans("a", "b"),
    )


@program(tensor)
def print_and_warn(x):
    import warnings

    print("shape", x.shape[0], sep="=", end=";\n")
    warnings.warn("careful", UserWarning)
    print()
    return x


@program(tensor)
def stop_iteration(x):
    it = iter([1])
    next(it)
    try:
        next(it)
    except StopIteration as stop:
        return x, stop.value, next(it, "default")


@program(tensor)
def exception_attributes(x):
    error = ValueError("a", 1)
    error.add_note("note")
    error.extra = 3
    try:
        raise error
    except ValueError as caught:
        return x, caught.args, caught.extra, caught.__notes__, caught is error, repr(caught)


@program(tensor)
def oserror(x):
    error = OSError(2, "text", "file")
    return x, error.errno, error.strerror, error.filename, str(error), isinstance(error, FileNotFoundError)


@program(tensor)
def key_error_text(x):
    try:
        {"a": 1}["b"]
    except LookupError as error:
        return x, str(error), error.args, isinstance(error, KeyError)


@program()
def generators_take_a_generator_exit(x):
    seen = []

    def inner():
        try:
            yield 1
        except GeneratorExit:
            seen.append("exit")
            raise

    def outer():
        yield from inner()

    generator = outer()
    next(generator)
    try:
        generator.throw(GeneratorExit)
    except GeneratorExit:
        seen.append("out")
    return x, seen, generator.__name__


@program()
def class_patterns_that_are_wrong(x):
    class NoTuple:
        __match_args__ = ["a"]
        a = 1

    class NoName:
        __match_args__ = (1,)

    def one():
        match NoTuple():
            case NoTuple(a):
                return a

    def two():
        match NoName():
            case NoName(a):
                return a

    def three():
        match 1:
            case int(a, b):
                return a

    found = []
    for attempt in (one, two, three):
        try:
            attempt()
        except TypeError as error:
            found.append(str(error))
    return x, found


@program(lambda: (T(3.0), 1), lambda: (T(3.0), 2), lambda: (T(3.0), 3), lambda: (T(3.0), 4))
def exceptions_that_show_a_number_that_varies(x, n):
    try:
        raise ValueError("bad", n * 2)
    except ValueError as error:
        return x + n, str(error), repr(error), f"{error}", error.args
