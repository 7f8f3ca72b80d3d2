"""Programs that stop in places the table's holes do not reach: each with the graphs and breaks of its first call.

A row is (graphs, breaks, text). Results, side effects, output, exceptions and tracebacks are eager's for each.
"""

from __future__ import annotations

PROGRAMS: dict[str, tuple[int, int, str]] = {
    "loop_zip_live": (
        4,
        3,
        """
def program(y, log):
    it = iter(range(6))
    for a in it:
        y = y + a
        log.append(opaque(y))
        b = next(it, None)
        log.append((a, b))
        y = y * 2
    return y
""",
    ),
    "loop_chain": (
        4,
        3,
        """
import itertools
def program(y, log):
    for a, b in zip(itertools.chain([1,2],[3]), itertools.count(5)):
        y = y + a*b
        log.append(opaque(y))
        y = y - 1
    return y
""",
    ),
    "loop_product": (
        3,
        3,
        """
import itertools
def program(y, log):
    for a, b in itertools.product([1,2],[3,4]):
        y = y + a*b
        log.append(opaque(y))
    return y
""",
    ),
    "loop_islice_cycle": (
        3,
        3,
        """
import itertools
def program(y, log):
    for a in itertools.islice(itertools.cycle([1,2,3]), 7):
        y = y + a
        log.append(opaque(y))
    return y
""",
    ),
    "loop_accumulate": (
        3,
        4,
        """
import itertools
def program(y, log):
    for a in itertools.accumulate([1,2,3]):
        y = y + a
        log.append(opaque(y))
    return y
""",
    ),
    "loop_groupby": (
        5,
        8,
        """
import itertools
def program(y, log):
    for k, g in itertools.groupby([1,1,2,3,3]):
        y = y + k
        log.append(opaque(y))
        for e in g:
            y = y * e
    return y
""",
    ),
    "loop_dict_items": (
        2,
        2,
        """
def program(y, log):
    d = {"a": y, "b": y*2}
    for k, v in d.items():
        y = y + v
        log.append((k, opaque(y)))
        d[k] = y
    return d
""",
    ),
    "loop_dict_changes": (
        1,
        2,
        """
def program(y, log):
    d = {"a": y, "b": y*2}
    for k, v in d.items():
        y = y + v
        opaque(y)
        d["c"] = y
    return d
""",
    ),
    "loop_list_grows": (
        3,
        5,
        """
def program(y, log):
    l = [1]
    for k in l:
        y = y + k
        opaque(y)
        if k < 4: l.append(k + 1)
    return y, l
""",
    ),
    "loop_set": (
        3,
        3,
        """
def program(y, log):
    for k in sorted({1,2,3}):
        y = y + k
        opaque(y)
    return y
""",
    ),
    "loop_set_raw": (
        3,
        3,
        """
def program(y, log):
    for k in {1,2,3}:
        y = y + k
        opaque(y)
    return y
""",
    ),
    "loop_reversed": (
        3,
        3,
        """
def program(y, log):
    for k in reversed([1,2,3]):
        y = y + k
        opaque(y)
    return y
""",
    ),
    "loop_map_filter": (
        2,
        3,
        """
def program(y, log):
    for k in map(lambda v: v + 1, filter(lambda v: v % 2, [1,2,3])):
        y = y + k
        opaque(y)
    return y
""",
    ),
    "loop_tensor": (
        2,
        2,
        """
def program(y, log):
    for k in y:
        y = y + k
        opaque(y)
    return y
""",
    ),
    "loop_genexp": (
        4,
        4,
        """
def program(y, log):
    for k in (v * 2 for v in [1,2,3]):
        y = y + k
        opaque(y)
        y = y * 2
    return y
""",
    ),
    "loop_generator_closed": (
        1,
        1,
        """
def gen(y, log):
    try:
        for i in range(5):
            yield y + i
    finally:
        log.append("closed")
def program(y, log):
    for k in gen(y, log):
        y = y + k
        opaque(y)
        if len(log) == 0:
            break
    return y, log
""",
    ),
    "loop_generator_closed_inside": (
        1,
        2,
        """
def gen(y, log):
    try:
        for i in range(5):
            opaque(y)
            yield y + i
    finally:
        log.append("closed")
def program(y, log):
    g = gen(y, log)
    for k in g:
        y = y + k
        break
    g.close()
    return y, log
""",
    ),
    "nested_with_raise": (
        1,
        1,
        """
def inner(y, log):
    with Noted(log):
        with noted(log):
            y = y + 1
            refuse(y)
def program(y, log):
    try:
        inner(y, log)
    except Broken as e:
        log.append(type(e.__context__).__name__)
        y = y * 2
    return y
""",
    ),
    "with_exception_in_exit": (
        1,
        1,
        """
class Bad:
    def __init__(self, log): self.log = log
    def __enter__(self): return self
    def __exit__(self, *a):
        self.log.append(opaque(1))
        raise KeyError("exit")
def program(y, log):
    try:
        with Bad(log):
            y = y + 1
            refuse(y)
    except KeyError as e:
        log.append((str(e), type(e.__context__).__name__))
    return y * 2
""",
    ),
    "exitstack": (
        2,
        1,
        """
import contextlib
def program(y, log):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Noted(log))
        stack.callback(log.append, "cb")
        y = y + 1
        v = opaque(y)
        y = y * 2
    return y, v
""",
    ),
    "suppress": (
        2,
        1,
        """
import contextlib
def program(y, log):
    with contextlib.suppress(Broken):
        y = y + 1
        refuse(y)
        y = y * 100
    return y * 2
""",
    ),
    "try_return_in_finally": (
        2,
        1,
        """
def inner(y, log):
    try:
        y = y + 1
        refuse(y)
    finally:
        return y * 2
def program(y, log):
    return inner(y, log) - 1
""",
    ),
    "nested_except_chain": (
        1,
        1,
        """
def inner(y, log):
    try:
        try:
            refuse(y)
        except Broken as a:
            opaque(y)
            raise ValueError("b") from a
    except ValueError as b:
        log.append((type(b.__cause__).__name__, type(b.__context__).__name__))
        opaque(y)
        y = y * 3
        raise
def program(y, log):
    inner(y + 1, log)
""",
    ),
    "raise_in_comprehension_chain": (
        1,
        2,
        """
def act(y, i):
    if i == 1:
        opaque(y)
        raise KeyError(i)
    return y + i
def inner(y):
    return {i: act(y, i) for i in range(3)}
def program(y, log):
    return inner(y)
""",
    ),
    "lambda_in_partial_in_decorator": (
        2,
        1,
        """
@doubled
def deco(y):
    return functools.partial(lambda y, k: (opaque(y), y * k)[1], k=2)(y)
def program(y, log):
    return deco(y + 1) - 1
""",
    ),
    "property_setter": (
        2,
        1,
        """
class A:
    def __init__(self): self._v = 0
    @property
    def v(self): return self._v
    @v.setter
    def v(self, value):
        opaque(value)
        self._v = value * 2
def program(y, log):
    a = A()
    a.v = y + 1
    return a.v * 2
""",
    ),
    "property_setter_user_obj": (
        3,
        2,
        """
class A:
    def __init__(self): self._v = 0
    @property
    def v(self): return self._v
    @v.setter
    def v(self, value):
        opaque(value)
        self._v = value * 2
HOLD = A()
def program(y, log):
    HOLD.v = y + 1
    HOLD.v += 2
    return HOLD.v * 2
""",
    ),
    "getattr_hook": (
        3,
        2,
        """
class A:
    def __getattr__(self, name):
        opaque(name)
        return len(name)
def program(y, log):
    a = A()
    return (y + 1) * a.hello + a.z
""",
    ),
    "cached_property": (
        2,
        1,
        """
class A:
    def __init__(self, y): self.y = y
    @functools.cached_property
    def v(self):
        opaque(self.y)
        return self.y * 2
def program(y, log):
    a = A(y + 1)
    return a.v + a.v
""",
    ),
    "nonlocal_two_closures": (
        1,
        2,
        """
def program(y, log):
    n = 0
    def inc():
        nonlocal n
        n += 1
        opaque(y)
        n += 1
    def get():
        return n
    inc()
    log.append(get())
    inc()
    z = y * get()
    return z, get
""",
    ),
    "callback_by_opaque": (
        1,
        1,
        """
def program(y, log):
    n = [0]
    def cb(v):
        n[0] += 1
        log.append(n[0])
        return v
    r = list(map(cb, [opaque(y), 2]))
    y = y * n[0]
    return y, r
""",
    ),
    "disabled_sees_mutation": (
        2,
        1,
        """
class S: pass
S.obj = S()
@stator.disable
def look(log, y):
    log.append((S.obj.a, len(log), y.tolist()))
    S.obj.a = 99
    log.append("added")
    y.add_(1)
def program(y, log):
    S.obj.a = 5
    log.append(1)
    y.mul_(2)
    look(log, y)
    log.append(S.obj.a)
    y = y * S.obj.a
    return y, list(log)
""",
    ),
    "modes_survive": (
        3,
        2,
        """
def program(y, log):
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = y + 1
            opaque(y)
            log.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
            z = torch.outer(y, y) @ torch.outer(y, y)
        log.append(torch.is_autocast_enabled("cpu"))
        opaque(y)
    log.append(torch.is_grad_enabled())
    return z
""",
    ),
    "grad_mode_disable_reads": (
        4,
        8,
        """
@stator.disable
def look(log): log.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
def program(y, log):
    look(log)
    with torch.no_grad():
        look(log)
        with torch.enable_grad():
            look(log)
    with torch.inference_mode():
        look(log)
        y = y + 1
    return y.tolist()
""",
    ),
    "set_grad_enabled_fn": (
        3,
        2,
        """
@stator.disable
def look(log): log.append(torch.is_grad_enabled())
def program(y, log):
    torch.set_grad_enabled(False)
    look(log)
    z = y * 2
    torch.set_grad_enabled(True)
    look(log)
    return z + 1
""",
    ),
    "exc_info_survives": (
        2,
        4,
        """
import sys
@stator.disable
def look(log): log.append(repr(sys.exc_info()[1]))
def program(y, log):
    try:
        raise KeyError("k")
    except KeyError:
        y = y + 1
        look(log)
        y = y * 2
        try:
            raise ValueError("v")
        except ValueError:
            look(log)
        look(log)
    look(log)
    return y
""",
    ),
    "default_dtype": (
        1,
        3,
        """
@stator.disable
def look(log): log.append(str(torch.get_default_dtype()))
def program(y, log):
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        look(log)
        z = torch.ones(3) + y
    finally:
        torch.set_default_dtype(old)
    return z
""",
    ),
    "rng": (
        3,
        3,
        """
def program(y, log):
    a = torch.rand(3)
    opaque(y)
    b = torch.rand(3)
    torch.manual_seed(3)
    opaque(y)
    c = torch.randn(3)
    return a, b, c
""",
    ),
    "assert_tensor": (
        1,
        0,
        """
def program(y, log):
    y = y + 1
    assert (y > 0).all(), "positive"
    return y * 2
""",
    ),
    "assert_tensor_fails": (
        1,
        0,
        """
def program(y, log):
    y = y + 1
    assert (y < 0).all(), "negative"
    return y * 2
""",
    ),
    "assert_tensor_plain": (
        1,
        0,
        """
def program(y, log):
    y = y + 1
    assert y.sum() < 0
    return y * 2
""",
    ),
    "input_builtin": (
        2,
        2,
        """
import sys, io
def program(y, log):
    old = sys.stdin
    sys.stdin = io.StringIO("hello\\n")
    try:
        y = y + 1
        log.append(input())
        y = y * 2
    finally:
        sys.stdin = old
    return y
""",
    ),
    "lock_with": (
        2,
        3,
        """
def program(y, log):
    with lock:
        y = y + 1
        log.append(lock.locked())
        y = y * 2
    return y
""",
    ),
    "open_file": (
        3,
        4,
        """
def program(y, log):
    y = y + 1
    with open(os.devnull) as f:
        y = y * 2
        log.append(f.read())
    return y * 2
""",
    ),
    "while_tensor": (
        3,
        2,
        """
def program(y, log):
    while y.sum() < 100:
        y = y * 2
        log.append(1)
    return y + 1
""",
    ),
    "item_in_loop": (
        3,
        3,
        """
def program(y, log):
    t = 0.0
    for i in range(4):
        y = y + 1
        t += y.sum().item()
    return y, t
""",
    ),
    "tolist_loop": (
        1,
        1,
        """
def program(y, log):
    for v in y.tolist():
        y = y + v
    return y
""",
    ),
    "class_with_iter_getitem": (
        2,
        4,
        """
class Seq:
    def __getitem__(self, i):
        if i >= 3: raise IndexError
        opaque(i)
        return i
def program(y, log):
    for v in Seq():
        y = y + v
    return y, list(Seq())
""",
    ),
    "star_args_generators": (
        2,
        1,
        """
def gen(y):
    yield y
    opaque(y)
    yield y + 1
def f(*a): return a[0] + a[1]
def program(y, log):
    return f(*gen(y + 1)) * 2
""",
    ),
    "tuple_of_gen": (
        1,
        1,
        """
def program(y, log):
    t = tuple((opaque(y), y * i)[1] for i in range(3))
    return t[0] + t[2]
""",
    ),
    "any_gen": (
        2,
        1,
        """
def program(y, log):
    y = y + 1
    r = any((opaque(y), i == 1)[1] for i in range(3))
    return y * 2, r
""",
    ),
    "max_key": (
        2,
        1,
        """
def program(y, log):
    y = y + 1
    r = max([1,2,3], key=lambda v: (opaque(v), -v)[1])
    return y * r
""",
    ),
    "traceback_depth": (
        3,
        3,
        """
def a(y):
    z = y + 1
    opaque(z)
    return b(z)
def b(y):
    w = y * 2
    return c(w)
def c(y):
    opaque(y)
    y = y + 1
    raise ValueError("deep")
def program(y, log):
    return a(y)
""",
    ),
    "traceback_index_error": (
        1,
        2,
        """
def a(y, l):
    opaque(y)
    return l[5]
def program(y, log):
    y = y + 1
    return a(y, log)
""",
    ),
    "traceback_torch_error": (
        1,
        2,
        """
def a(y):
    opaque(y)
    return torch.mm(y, y)
def program(y, log):
    y = y + 1
    return a(y)
""",
    ),
    "except_star_break": (
        0,
        1,
        """
def program(y, log):
    try:
        refuse(y)
    except* Broken as g:
        log.append(len(g.exceptions))
        y = y + 1
        opaque(y)
    return y * 2
""",
    ),
    "return_in_with_in_loop": (
        4,
        3,
        """
def f(y, log):
    for i in range(4):
        with Noted(log):
            y = y + 1
            if opaque(y) == 3 and i == 2:
                return y * 10
    return y
def program(y, log):
    return f(y, log) + 1
""",
    ),
    "continue_in_finally_loop": (
        3,
        2,
        """
def program(y, log):
    for i in range(3):
        try:
            y = y + 1
            if i == 1: continue
            opaque(y)
        finally:
            log.append(i)
            y = y * 2
    return y
""",
    ),
    "delete_local_after": (
        2,
        1,
        """
def program(y, log):
    z = y + 1
    opaque(z)
    del z
    try:
        z
    except UnboundLocalError as e:
        log.append(str(e))
    return y * 2
""",
    ),
    "locals_call": (
        2,
        1,
        """
def program(y, log):
    z = y + 1
    opaque(z)
    log.append(sorted(locals()))
    return z * 2
""",
    ),
    "generator_object_escapes": (
        1,
        1,
        """
def gen(y):
    yield y
    opaque(y)
    yield y * 2
def program(y, log):
    g = gen(y + 1)
    a = next(g)
    opaque(a)
    return a, g
""",
    ),
    "descriptor": (
        2,
        1,
        """
class Desc:
    def __get__(self, obj, cls):
        opaque(obj)
        return 3
class A:
    d = Desc()
def program(y, log):
    return (y + 1) * A().d
""",
    ),
    "comparison_dunder": (
        4,
        6,
        """
class N:
    def __init__(self, v): self.v = v
    def __lt__(self, o):
        opaque(o)
        return self.v < o.v
    def __eq__(self, o):
        opaque(o)
        return self.v == o.v
    def __contains__(self, o):
        opaque(o)
        return o == self.v
    def __len__(self):
        opaque(1)
        return 2
    def __bool__(self):
        opaque(1)
        return True
def program(y, log):
    y = y + 1
    log.append(N(1) < N(2))
    y = y * 2
    log.append(N(1) == N(2))
    log.append(3 in N(3))
    y = y * 2
    log.append(len(N(2)))
    if N(4):
        y = y + 1
    log.append(sorted([N(3), N(1)])[0].v)
    return y
""",
    ),
    "hash_dunder": (
        0,
        1,
        """
class N:
    def __init__(self, v): self.v = v
    def __hash__(self):
        opaque(1)
        return hash(self.v)
    def __eq__(self, o):
        return self.v == o.v
def program(y, log):
    d = {N(1): y}
    d[N(2)] = y + 1
    return d[N(1)] + d[N(2)]
""",
    ),
    "recursion_break_each": (
        6,
        6,
        """
def f(y, n):
    if n == 0: return y
    y = y + n
    opaque(y)
    r = f(y, n - 1)
    opaque(r)
    return r * 2
def program(y, log):
    return f(y, 3)
""",
    ),
    "modules_hooks": (
        5,
        4,
        """
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)
        self.calls = 0
    def forward(self, y):
        y = self.lin(y)
        self.calls += 1
        opaque(y)
        return torch.relu(y) * self.calls
torch.manual_seed(0)
NET = M()
NET.register_forward_hook(lambda m, a, o: (opaque(o), o * 2)[1])
def program(y, log):
    NET.calls = 0
    return NET(y) + NET(y)
""",
    ),
    "backward_around": (
        2,
        4,
        """
def program(y, log):
    w = torch.ones(3, requires_grad=True)
    z = (y * w).sum()
    opaque(z)
    z.backward()
    opaque(z)
    return w.grad * 2
""",
    ),
    "walrus_comprehension": (
        3,
        3,
        """
def program(y, log):
    r = [last := (opaque(y), y * i)[1] for i in range(3)]
    return r[0] + last
""",
    ),
    "nested_comprehension": (
        4,
        4,
        """
def program(y, log):
    return [[(opaque(y), y * i * j)[1] for j in range(2)] for i in range(2)]
""",
    ),
    "kwargs_mutation": (
        2,
        1,
        """
def f(**kw):
    kw["a"] = opaque(kw)
    return kw
def program(y, log):
    d = {"b": y + 1}
    r = f(**d)
    return r["b"] * 2, r, d
""",
    ),
    "print_between": (
        2,
        2,
        """
def program(y, log):
    print("a", y.shape)
    y = y + 1
    opaque(y)
    print("b", len(log))
    y = y * 2
    print("c", y.sum())
    return y
""",
    ),
    "print_mutable": (
        1,
        0,
        """
def program(y, log):
    l = [1]
    print(l)
    l.append(2)
    print(l, log)
    log.append(1)
    print(log)
    return y + 1
""",
    ),
    "print_object": (
        1,
        0,
        """
class O:
    def __init__(self): self.n = 1
    def __repr__(self): return f"O({self.n})"
def program(y, log):
    o = O()
    print(o)
    o.n = 2
    print(o, f"{o}", "%s" % o)
    return y + 1
""",
    ),
    "genclose_nobreak": (
        1,
        0,
        """
def gen(y, log):
    try:
        for i in range(5):
            yield y + i
    finally:
        log.append("closed")
def program(y, log):
    for k in gen(y, log):
        y = y + k
        if len(log) == 0:
            break
    return y, list(log)
""",
    ),
    "log_exception": (
        2,
        1,
        """
import logging, traceback
def act(y):
    raise KeyError("x")
def program(y, log):
    try:
        y = y + 1
        act(y)
    except KeyError:
        log.append(traceback.format_exc())
    return y * 2
""",
    ),
    "tb_disabled": (
        2,
        1,
        """
import sys, traceback
@stator.disable
def look(log):
    log.append(traceback.format_exc())
def act(y):
    raise KeyError("x")
def program(y, log):
    try:
        y = y + 1
        act(y)
    except KeyError:
        look(log)
    return y * 2
""",
    ),
    "tb_disabled2": (
        1,
        1,
        """
import sys, traceback
@stator.disable
def look(log):
    log.append(traceback.format_exc())
def act(y):
    refuse(y)
def program(y, log):
    try:
        y = y + 1
        act(y)
    except Broken:
        y = y * 3
        look(log)
    return y * 2
""",
    ),
    "ctx_of_raise_in_op": (
        1,
        1,
        """
def program(y, log):
    try:
        raise KeyError("k")
    except KeyError:
        y = y + 1
        refuse(y)
    return y
""",
    ),
    "hash_simple": (
        1,
        1,
        """
class N:
    def __init__(self, v): self.v = v
    def __hash__(self):
        opaque(1)
        return hash(self.v)
def program(y, log):
    d = {}
    d[N(2)] = y + 1
    return y
""",
    ),
    "assert_depth_fails": (
        1,
        0,
        """
def inner(y):
    y = y + 1
    assert y.sum() < 0, "deep"
    return y * 2
def middle(y):
    return 1 + inner(y) * 2
def program(y, log):
    print("before")
    z = middle(y)
    print("after")
    log.append(1)
    return z
""",
    ),
    "assert_passes_then_effects": (
        1,
        0,
        """
def program(y, log):
    print("before")
    assert (y > 0).all()
    log.append(1)
    print("after")
    return y * 2
""",
    ),
    "assert_after_effects": (
        1,
        2,
        """
def program(y, log):
    log.append(1)
    assert (y < 0).all(), "x"
    return y * 2
""",
    ),
    "assert_in_try": (
        2,
        1,
        """
def program(y, log):
    try:
        assert (y < 0).all(), "x"
    except AssertionError as e:
        log.append(str(e))
    return y * 2
""",
    ),
    "assert_mutates_later": (
        1,
        2,
        """
def program(y, log):
    assert (y < 0).all(), "x"
    y.add_(1)
    return y * 2
""",
    ),
    "assert_computed_message": (
        1,
        2,
        """
def program(y, log):
    assert (y < 0).all(), f"x {len(log)}"
    return y * 2
""",
    ),
    "assert_then_break": (
        2,
        1,
        """
def program(y, log):
    assert (y > 0).all()
    opaque(y)
    assert (y > 100).all(), "second"
    return y * 2
""",
    ),
    "assert_in_loop": (
        1,
        0,
        """
def program(y, log):
    for i in range(3):
        y = y + 1
        assert (y < 5).all(), "big"
    return y * 2
""",
    ),
    "assert_many_elements": (
        1,
        1,
        """
def program(y, log):
    assert y > 0
    return y * 2
""",
    ),
}
