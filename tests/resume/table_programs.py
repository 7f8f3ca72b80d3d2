"""The rows of the table: kinds of break, and places where one can stand.

A kind is an expression over the tensor `y`; a place is the body of a function of `y` and `log` with a hole `E` for it.
Every place has operations before its first break and after its last one, so that its counts hold at every depth.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

import breaking


@dataclass(frozen=True)
class Kind:
    """`breaks`: reasons of the breaks of one execution. `varies`: each execution gives another number, so that the
    first two compile what follows, and the second for good."""

    name: str
    text: str
    breaks: tuple[str, ...]
    varies: bool = False


@dataclass(frozen=True)
class Place:
    """`graphs` and `breaks`: how many of each, for a kind that breaks once. `exact`: all else runs in graphs.

    `before`: what stands in front of the function. `again`: graphs compiled by a second call.
    """

    name: str
    graphs: int
    breaks: int
    body: str
    exact: bool = True
    before: str = ""
    again: int = 0
    graphs_below: int = 0  # if another number at depths above 0
    reasons: tuple[str, ...] = ()  # of breaks besides the kind's own
    neutral: bool = False  # counts hang on what the kind does: the plainest one is taken


KINDS = [
    Kind("graph_break", "stator.graph_break()", ("explicit_graph_break",)),
    Kind("torch_graph_break", "torch._dynamo.graph_break()", ("explicit_graph_break",)),
    Kind("disabled", "opaque(y)", ("disabled_function",)),
    Kind("torch_disabled", "torch_disabled(y)", ("disabled_function",)),
    Kind("item", "y.sum().item()", ("tensor_to_python",)),
    Kind("tolist", "y.tolist()", ("tensor_to_python",)),
    Kind("numpy", "len(str(y.numpy()))", ("numpy_operation",)),
    Kind("data_ptr", "(y.data_ptr() > 0)", ("data_dependent_operator",), varies=True),
    Kind("branch", "(1 if y.sum() > -1000 else 2)", ("data_dependent_branch",)),
    Kind("float", "float(y[0])", ("tensor_to_python",)),
    Kind("print_tensor", "print(y)", ("tensor_to_python",)),
    Kind("sleep", "time.sleep(0)", ("opaque_callable",)),
    Kind("random", "random.random()", ("opaque_callable",)),
    Kind("process", "(os.getpid() > 0)", ("opaque_callable",)),
    Kind("lock", "lock.locked()", ("opaque_callable",)),
    Kind("save", "torch.save(y, os.devnull)", ("opaque_callable",)),
]

PLACES = [
    Place(
        "top",
        2,
        1,
        """
y = y + 1
v = E
y = y * 2
return y, v
""",
    ),
    Place(
        "twice",
        3,
        2,
        """
y = y + 1
v = E
y = y * 2
w = E
return y - 1, v, w
""",
    ),
    Place(
        "in_if",
        2,
        1,
        """
y = y + 1
if len(log) == 0:
    log.append("before")
    v = E
    log.append(v)
else:
    v = None
y = y * 2
return y, v
""",
    ),
    Place(
        "for_range",
        4,
        3,
        """
for i in range(3):
    y = y + i
    log.append(E)
    y = y * 2
return y + 1
""",
    ),
    Place(
        "for_list_with_continue",
        4,
        3,
        """
for i in [1, 2, 3, 4]:
    y = y + i
    if i == 2:
        continue
    log.append((i, E))
    y = y * 2
else:
    y = y - 1
return y
""",
    ),
    Place(
        "for_break",
        3,
        2,
        """
for i in range(10):
    y = y + 1
    log.append(E)
    if i == 1:
        break
    y = y * 2
else:
    y = y * 1000
return y - 1
""",
    ),
    Place(
        "while_loop",
        4,
        3,
        """
i = 0
while i < 3:
    y = y + 1
    log.append(E)
    i += 1
    y = y * 2
return y - 1
""",
    ),
    Place(
        "nested_for",
        5,
        4,
        """
for i in range(2):
    y = y + 1
    for j in (1, 2):
        y = y * j
        log.append((i, j, E))
        y = y - 1
return y * 3
""",
    ),
    Place(
        "zip_enumerate",
        3,
        2,
        """
for i, (a, b) in enumerate(zip([1, 2], {3: 0, 4: 0})):
    y = y * a + b
    log.append((i, E))
    y = y + i
return y * 2
""",
    ),
    Place(
        "with_class",
        2,
        1,
        """
y = y + 1
with Noted(log) as seven:
    y = y * seven
    v = E
    y = y - 1
return y, v
""",
    ),
    Place(
        "with_generator",
        2,
        2,
        """
y = y + 1
with noted(log) as five:
    y = y * five
    v = E
    y = y - 1
return y, v
""",
        exact=False,
        graphs_below=3,
        reasons=("foreign_iterator",),
    ),
    Place(
        "with_two",
        2,
        2,
        """
with Noted(log) as a, noted(log) as b:
    y = y * a
    v = E
    y = y - b
return y, v
""",
        exact=False,
        graphs_below=3,
        reasons=("foreign_iterator",),
    ),
    Place(
        "with_swallow",
        2,
        1,
        """
with Noted(log, swallow=True):
    y = y * 2
    v = E
    raise Broken("inside")
return y * 3
""",
    ),
    Place(
        "no_grad",
        2,
        1,
        """
with torch.no_grad():
    y = y * 2
    v = E
    log.append(torch.is_grad_enabled())
    z = y - 1
log.append(torch.is_grad_enabled())
return y * z, v
""",
    ),
    Place(
        "autocast",
        2,
        1,
        """
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = y * 2
    v = E
    z = torch.outer(y, y) @ torch.outer(y, y)
return y, z * 2, v
""",
    ),
    Place(
        "in_try",
        2,
        1,
        """
try:
    y = y + 1
    v = E
    y = y * 2
except Broken:
    y = y * 100
else:
    y = y - 1
finally:
    log.append("finally")
return y, v
""",
    ),
    Place(
        "in_except",
        2,
        1,
        """
try:
    y = y + 1
    raise Broken("first")
except Broken as error:
    v = E
    log.append(str(error))
    y = y * 2
return y, v
""",
    ),
    Place(
        "in_except_raise_again",
        2,
        1,
        """
try:
    try:
        y = y + 1
        raise Broken("first")
    except Broken as error:
        log.append(E)
        raise
except Broken as error:
    log.append(error.args)
return y * 2
""",
    ),
    Place(
        "in_except_raise_other",
        2,
        1,
        """
try:
    try:
        y = y + 1
        raise Broken("first")
    except Broken as error:
        log.append(E)
        raise KeyError("second")
except KeyError as error:
    log.append((error.args, type(error.__context__).__name__))
return y * 2
""",
    ),
    Place(
        "in_else",
        2,
        1,
        """
try:
    y = y + 1
except Broken:
    y = y * 100
else:
    log.append(E)
    y = y - 1
return y * 2
""",
    ),
    Place(
        "in_finally",
        2,
        1,
        """
try:
    y = y + 1
finally:
    log.append(E)
    y = y - 1
return y * 2
""",
    ),
    Place(
        "in_finally_of_return",
        2,
        1,
        """
def inner(y):
    try:
        return y + 1
    finally:
        log.append(E)
return inner(y) * 2
""",
    ),
    Place(
        "in_finally_of_exception",
        2,
        1,
        """
try:
    try:
        y = y + 1
        raise Broken("once")
    finally:
        log.append(E)
        y = y - 1
except Broken as error:
    log.append(error.args)
return y * 2
""",
    ),
    Place(
        "raise_after",
        2,
        1,
        """
def inner(y):
    y = y + 1
    log.append(E)
    raise Broken("after")
try:
    inner(y + 1)
except Broken as error:
    log.append(error.args)
return y * 2
""",
    ),
    Place(
        "except_group",
        2,
        1,
        """
y = y + 1
try:
    raise ExceptionGroup("group", [ValueError(1), TypeError(2)])
except* ValueError as group:
    log.append(E)
    y = y * 2
except* TypeError as group:
    log.append(len(group.exceptions))
return y - 1
""",
    ),
    Place(
        "list_comprehension",
        4,
        3,
        """
y = y + 1
values = [(y * i, E) for i in range(3)]
return [(value + 1, got) for value, got in values]
""",
    ),
    Place(
        "dict_comprehension",
        3,
        2,
        """
y = y + 1
values = {i: (y * i, E) for i in range(2)}
return {key: (value + 1, got) for key, (value, got) in values.items()}
""",
    ),
    Place(
        "set_comprehension",
        2,
        2,
        """
y = y + 1
values = {(i, repr(E)) for i in range(2)}
return y * len(values)
""",
        neutral=True,
    ),
    Place(
        "comprehension_condition",
        4,
        3,
        """
y = y + 1
values = [y * i for i in range(3) if E is not ...]
return values[0] + values[1]
""",
    ),
    Place(
        "generator_in_for",
        2,
        2,
        """
def produce(y):
    for i in range(2):
        y = y + 1
        log.append(E)
        yield y * i
total = y * 0
for part in produce(y):
    total = total + part
return total
""",
        graphs_below=3,
        exact=False,
        neutral=True,
        reasons=("foreign_iterator",),
    ),
    Place(
        "generator_expression",
        2,
        1,
        """
def add(y, v):
    log.append(v)
    return y * 2
y = y + 1
total = sum(add(y, E) for i in range(2))
return total + 1
""",
        exact=False,
        neutral=True,
    ),
    Place(
        "generator_next_send",
        2,
        1,
        """
def produce(y):
    got = yield y + 1
    log.append(E)
    yield got * 2
it = produce(y)
first = next(it)
second = it.send(first + 1)
return first - second
""",
        exact=False,
    ),
    Place(
        "yield_from",
        2,
        2,
        """
def inner(y):
    yield y + 1
    log.append(E)
    yield y * 2
def outer(y):
    yield from inner(y)
total = y * 1
for part in outer(y):
    total = total + part
return total
""",
        graphs_below=3,
        exact=False,
        neutral=True,
        reasons=("foreign_iterator",),
    ),
    Place(
        "consumer_breaks",
        2,
        3,
        """
def produce(y):
    for i in range(2):
        y = y + 1
        yield y * i
total = y * 0
for part in produce(y):
    log.append(E)
    total = total + part
return total
""",
        graphs_below=3,
        exact=False,
        neutral=True,
        reasons=("foreign_iterator",),
    ),
    Place(
        "lambda",
        2,
        1,
        """
act = lambda y: (y + 1, E, y * 2)
got = act(y)
return got, got[0] + got[2]
""",
    ),
    Place(
        "decorator",
        2,
        1,
        """
@doubled
def act(y):
    y = y + 1
    log.append(E)
    return y
return act(y) - 1
""",
    ),
    Place(
        "partial",
        2,
        1,
        """
def act(y, a, *, b):
    y = y + a
    log.append(E)
    return y * b
return functools.partial(act, a=2)(y, b=3) - 1
""",
    ),
    Place(
        "closure",
        3,
        2,
        """
n = 1
def act(y):
    nonlocal n
    n += 1
    y = y + n
    log.append(E)
    n += 10
    return y * n
first = act(y)
return act(first) + n
""",
    ),
    Place(
        "closure_cell_written_by_caller",
        2,
        1,
        """
n = 1
def read():
    return y * n
y = y + 1
n = 5
log.append(E)
n = n + 1
return read()
""",
    ),
    Place(
        "middle_of_expression",
        2,
        1,
        """
def act(y, z):
    log.append(E)
    return y - z
return (y + 1) * act(y * 2, y) + (y - 1)
""",
    ),
    Place(
        "call_arguments",
        2,
        1,
        """
def act(a, b, *rest, c, **more):
    return a + c, b, rest, more
return act(y + 1, E, *[y * 2], c=y - 1, **{"d": y})
""",
    ),
    Place(
        "in_f_string",
        2,
        1,
        """
y = y + 1
text = f"<{len(log)}:{E!r:>5}>"
return y * 2, text
""",
    ),
    Place(
        "subscript_store",
        2,
        1,
        """
table = {"a": y + 1}
table["b"] = E
table["c"] = table["a"] * 2
return table
""",
    ),
    Place(
        "unpacking",
        2,
        1,
        """
first, *rest = [y + 1, E, 3]
return first * 2, rest
""",
    ),
    Place(
        "boolean_chain",
        2,
        1,
        """
y = y + 1
value = len(log) == 0 and (E is not ...) and 0 < len(log) + 1 <= 1
return y * 2, value
""",
    ),
    Place(
        "ternary",
        2,
        1,
        """
y = y + 1
z = y * 2 if E is not ... else y * 3
return z - 1
""",
    ),
    Place(
        "match",
        2,
        1,
        """
match [1, y + 1]:
    case [int(n), z] if E is not ...:
        y = z * n
    case _:
        y = y * 100
return y - 1
""",
    ),
    Place(
        "walrus",
        2,
        1,
        """
y = y + 1
if (v := E) is not ...:
    y = y * 2
return y, v
""",
    ),
    Place(
        "default_and_keyword",
        2,
        1,
        """
def act(y, *, scale=y * 3):
    log.append(E)
    return y * scale
return act(y + 1)
""",
    ),
    Place(
        "recursion",
        2,
        1,
        """
def act(n, y):
    if n == 0:
        log.append(E)
        return y
    return act(n - 1, y + 1) * 2
return act(4, y)
""",
    ),
    Place(
        "mutated_argument",
        2,
        1,
        """
log.append(y + 1)
log.append(E)
log.append(log[0] * 2)
return log
""",
    ),
    Place(
        "tensor_mutation",
        2,
        1,
        """
z = y + 1
z.add_(1)
y.mul_(2)
log.append(E)
z.sub_(y)
return z
""",
    ),
    Place(
        "shared_objects",
        2,
        1,
        """
inner = [y + 1]
outer = {"a": inner, "b": inner}
log.append(E)
inner.append(inner[0] * 2)
return outer, outer["a"] is inner
""",
    ),
    Place(
        "delete_and_rebind",
        2,
        1,
        """
y = y + 1
z = y
del z
log.append(E)
z = y * 2
return z
""",
    ),
    Place(
        "global_counter",
        2,
        1,
        """
y = y + 1
counter.append(1)
log.append((E, len(counter)))
counter.pop()
return y * 2
""",
    ),
    Place(
        "sort_key",
        2,
        1,
        """
z = y + 1
def key(value):
    log.append(E)
    return -value
order = sorted([1, 3, 2], key=key)
return z * order[0]
""",
        exact=False,
    ),
    Place(
        "property",
        2,
        1,
        """
return WithProperty(y, log).value * 3
""",
        before="""
class WithProperty:
    def __init__(self, y, log):
        self.y = y + 1
        self.log = log
    @property
    def value(self):
        y = self.y * 2
        self.log.append(E)
        return y - 1
""",
    ),
    Place(
        "call_method",
        2,
        1,
        """
holder = Called(y)
return holder(y) - 1, holder.v
""",
        before="""
class Called:
    def __init__(self, y):
        self.y = y + 1
    def __call__(self, y):
        y = y + self.y
        self.v = E
        return y * 2
""",
    ),
    Place(
        "constructor",
        2,
        1,
        """
holder = Constructed(y)
return holder.y + holder.z, holder.v
""",
        before="""
class Constructed:
    __slots__ = ("y", "v", "z")
    def __init__(self, y):
        self.y = y + 1
        self.v = E
        self.z = y * 2
""",
    ),
    Place(
        "super_method",
        2,
        1,
        """
return Derived().act(y, log) * 3
""",
        before="""
class Base:
    def act(self, y, log):
        y = y + 1
        log.append(E)
        return y * 2
class Derived(Base):
    def act(self, y, log):
        return super().act(y, log) - 1
""",
    ),
    Place(
        "static_and_class_methods",
        3,
        2,
        """
return Methods.second(Methods.first(y, log), log) - 1
""",
        before="""
class Methods:
    @staticmethod
    def first(y, log):
        y = y + 1
        log.append(E)
        return y
    @classmethod
    def second(cls, y, log):
        y = y * 2
        log.append((cls.__name__, E))
        return y
""",
    ),
    Place(
        "augmented_attribute",
        2,
        1,
        """
holder = Plain()
holder.y = y + 1
def act(y):
    log.append(E)
    return 2
holder.y *= act(y)
return holder.y - 1
""",
        before="""
class Plain:
    pass
""",
    ),
    Place(
        "operator_method",
        2,
        1,
        """
return (Number(y + 1, log) + 3) - 1
""",
        exact=False,
        before="""
class Number:
    def __init__(self, y, log):
        self.y, self.log = y, log
    def __add__(self, other):
        y = self.y + other
        self.log.append(E)
        return y * 2
""",
    ),
    Place(
        "item_method",
        2,
        1,
        """
z = y - 1
return Table(log, y)[3] * z
""",
        exact=False,
        before="""
class Table:
    def __init__(self, log, y):
        self.log, self.y = log, y
    def __getitem__(self, key):
        y = self.y
        v = y * key
        self.log.append(E)
        return v + 1
""",
    ),
    Place(
        "iterator_class",
        3,
        2,
        """
z = y + 1
for step in Steps(log, y):
    z = z * step
return z - 1
""",
        exact=False,
        before="""
class Steps:
    def __init__(self, log, y):
        self.n, self.log, self.y = 0, log, y
    def __iter__(self):
        return self
    def __next__(self):
        self.n += 1
        y = self.y
        if self.n > 2:
            raise StopIteration
        self.log.append(E)
        return self.n
""",
    ),
    Place(
        "context_enter_exit",
        3,
        2,
        """
z = y + 1
with Breaking(log, y) as two:
    z = z * two
return z - 1
""",
        exact=False,
        before="""
class Breaking:
    def __init__(self, log, y):
        self.log, self.y = log, y
    def __enter__(self):
        y = self.y
        self.log.append(("in", E))
        return 2
    def __exit__(self, *error):
        y = self.y
        self.log.append(("out", E))
""",
    ),
    Place(
        "module_forward",
        2,
        1,
        """
return NET(y)
""",
        before="""
class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)
    def forward(self, y):
        y = y * self.scale
        self.got = E
        return y + 1
NET = torch.nn.Sequential(Inner(), torch.nn.ReLU())
""",
    ),
    Place(
        "local_class",
        2,
        1,
        """
z = y + 1
class Local:
    def act(self, y):
        log.append(E)
        return y * 2
return Local().act(z) - 1
""",
    ),
]


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" if line else "\n" for line in text.strip().splitlines())


def source_of(place: Place, kind: Kind, depth: int) -> str:
    """The text of one program."""
    text = hole(place.before, kind.text) + f"def place(y, log):\n{indented(hole(place.body, kind.text), 4)}"
    inner = "place"
    for level in range(depth):
        name = f"level{level}"
        text += f"\ndef {name}(y, log):\n    y = y + 1\n    got = {inner}(y, log)\n    return y * 2, got\n"
        inner = name
    return text + f"\ndef program(y, log):\n    return {inner}(y, log)\n" if depth else text + "\nprogram = place\n"


def hole(body: str, text: str) -> str:
    """Put the expression where the hole is: an `E` that stands alone."""
    out, previous = "", " "
    for position, letter in enumerate(body):
        following = body[position + 1] if position + 1 < len(body) else " "
        alone = letter == "E" and not (previous.isalnum() or previous == "_" or following.isalnum() or following == "_")
        out += text if alone else letter
        previous = letter
    return out


def build(name: str, text: str) -> Any:
    """The function `program` of a text, with lines tracebacks can show."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace: dict[str, Any] = {key: getattr(breaking, key) for key in breaking.__all__}
    namespace["__name__"] = "programs"
    exec(compile(text, file, "exec"), namespace)
    return namespace["program"]
