"""Writes random programs: control flow, containers, closures, classes, exceptions, generators, `with`, tensors.

Contract. `write(seed, breaking)` gives the text of a program whose `program(x, items, table, holder, log)` ends,
whatever the seed. The same seed gives the same text. Exceptions are part of it: most are caught, some leave. With
`breaking`, calls that end a graph stand at random places: in expressions, conditions, loops, handlers, generators,
methods and context managers. What the program may change: its arguments, the globals `COUNT` and `NAMES`, and what it
prints.

Variables are kept by kind, so that most of what is written makes sense: `t` tensors of one shape, `n` integers, `l`
lists, `d` dicts, `o` objects. A scope starts with the variables that are surely bound in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HEADER = """
COUNT = 0
NAMES = []

class Plain:
    def __init__(self, n, t):
        self.n = n
        self.t = t
    @property
    def double(self):
        {break_in_property}
        return self.n * 2
    @double.setter
    def double(self, value):
        {break_in_setter}
        self.n = value // 2
    def __call__(self, t):
        {break_in_call}
        return t * self.n

class Derived(Plain):
    __slots__ = ("extra",)
    def __init__(self, n, t):
        super().__init__(n, t)
        self.extra = n + 1
    def __call__(self, t):
        return super().__call__(t) + self.extra
    def __getitem__(self, index):
        {break_in_item}
        if index >= 3:
            raise IndexError(index)
        return self.n + index
    def __len__(self):
        return 3
    def __eq__(self, other):
        return isinstance(other, Derived) and self.n == other.n
    def __hash__(self):
        return 5

class Managed:
    def __init__(self, log, swallow):
        self.log = log
        self.swallow = swallow
    def __enter__(self):
        {break_in_enter}
        self.log.append("enter")
        return len(self.log)
    def __exit__(self, kind, error, trace):
        {break_in_exit}
        self.log.append(("exit", None if kind is None else kind.__name__))
        return self.swallow and kind is KeyError

class Steps:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return self
    def __next__(self):
        {break_in_next}
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n

@contextlib.contextmanager
def managed(log, n):
    log.append(("begin", n))
    try:
        {break_in_manager}
        yield n + 1
    finally:
        log.append(("end", n))

def counted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        global COUNT
        COUNT += 1
        return function(*args, **kwargs)
    return wrapper
"""
# What a break looks like as an expression; `{t}` a tensor.
BREAKS = (
    "opaque({t})", "opaque({t})", "stator.graph_break()", "float({t}.sum())", "{t}.tolist()", "time.sleep(0)",
    "int({t}.numel() if {t}.sum() > 3 else 0)", "print({t}.sum())", "torch._dynamo.graph_break()",
)  # fmt: skip
OPERATORS = ("+", "-", "*")
FUNCTIONS = ("torch.sin", "torch.relu", "torch.abs", "torch.neg", "torch.clone")


class Writer:
    """One program under way."""

    def __init__(self, seed: int, breaking: bool) -> None:
        self.rng = random.Random(seed)
        self.breaking = breaking
        self.lines: list[str] = []
        self.level = 0
        self.depth = 0
        self.budget = self.rng.randint(8, 26)
        self.counter = 0
        self.kinds: dict[str, list[str]] = {kind: [] for kind in "tnldo"}
        self.functions: list[tuple[str, str]] = []  # name, and kind of what it gives
        self.generators: list[str] = []
        self.in_loop = False
        self.returns = True

    # Text

    def put(self, line: str) -> None:
        self.lines.append("    " * self.level + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A block: what is bound inside is not known to be bound behind it."""
        self.put(head)
        known = {kind: list(names) for kind, names in self.kinds.items()}
        self.level += 1
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.put("pass")
        self.level -= 1
        self.depth -= 1
        self.kinds = known

    def fresh(self, kind: str) -> str:
        self.counter += 1
        return f"{kind}{self.counter}"

    def bind(self, kind: str, text: str) -> None:
        """Assign to a new name, or to an old one."""
        names = self.kinds[kind]
        own = [name for name in names if name not in ("items", "table", "holder")]
        if own and self.rng.random() < 0.5:
            name = self.rng.choice(own)
        else:
            name = self.fresh(kind)
        self.put(f"{name} = {text}")
        if name not in names:
            names.append(name)

    def name(self, kind: str) -> str:
        return self.rng.choice(self.kinds[kind])

    # Expressions

    def broken(self) -> str:
        return self.rng.choice(BREAKS).format(t=self.name("t"))

    def maybe_break(self, chance: float) -> None:
        if self.breaking and self.rng.random() < chance:
            self.put(self.rng.choice(("{}", "log.append({})")).format(self.broken()))

    def number(self, depth: int = 0) -> str:
        rng = self.rng
        choices: list[Callable[[], str]] = [
            lambda: str(rng.randint(0, 4)),
            lambda: self.name("n"),
            lambda: f"len({self.name('l')})",
            lambda: f"{self.name('o')}.n",
            lambda: f"sum({self.name('l')})",
            lambda: f"{self.name('d')}.get({rng.choice('abc')!r}, {rng.randint(0, 3)})",
        ]
        if depth < 2:
            choices += [
                lambda: f"({self.number(depth + 1)} {rng.choice(OPERATORS)} {self.number(depth + 1)})",
                lambda: f"({self.number(depth + 1)} if {self.condition(depth + 1)} else {self.number(depth + 1)})",
                lambda: f"(lambda v: v + {self.name('n')})({self.number(depth + 1)})",
                lambda: f"max({self.number(depth + 1)}, {self.number(depth + 1)})",
                lambda: f"{self.name('o')}.double",
                lambda: f"({self.number(depth + 1)} % 5)",
            ]
        return f"min({rng.choice(choices)()}, 50)" if depth == 0 else rng.choice(choices)()

    def condition(self, depth: int = 0) -> str:
        rng = self.rng
        choices: list[Callable[[], str]] = [
            lambda: f"{self.number(2)} {rng.choice(('<', '>', '==', '!=', '<='))} {self.number(2)}",
            lambda: f"{rng.choice('abc')!r} in {self.name('d')}",
            lambda: self.name("l"),
            lambda: f"{self.name('n')} in {self.name('l')}",
            lambda: f"isinstance({self.name('o')}, Derived)",
            lambda: f"{self.name('l')} is {self.name('l')}",
        ]
        if depth < 2:
            choices.append(lambda: f"not {self.condition(depth + 1)}")
            choices.append(lambda: f"({self.condition(depth + 1)} {rng.choice(('and', 'or'))} {self.condition(2)})")
        if self.breaking and rng.random() < 0.08:
            return f"{self.name('t')}.sum() > {rng.randint(-2, 6)}"
        return rng.choice(choices)()

    def tensor(self, depth: int = 0) -> str:
        rng = self.rng
        choices: list[Callable[[], str]] = [lambda: self.name("t"), lambda: f"{self.name('o')}.t"]
        if depth < 3:
            choices = [
                lambda: f"({self.tensor(depth + 1)} {rng.choice(OPERATORS)} {self.tensor(depth + 1)})",
                lambda: f"({self.tensor(depth + 1)} {rng.choice(OPERATORS)} {self.number(1)})",
                lambda: f"{rng.choice(FUNCTIONS)}({self.tensor(depth + 1)})",
                lambda: f"{self.name('t')}.clamp(-9, 9)",
                lambda: f"{self.name('o')}({self.tensor(depth + 1)})",
                *choices,
            ]
        if self.breaking and rng.random() < 0.05:
            return f"({self.broken()}, {self.name('t')})[1]"
        return rng.choice(choices)()

    def iterable(self) -> str:
        """Something to loop over that gives a few integers."""
        rng = self.rng
        choices: list[Callable[[], str]] = [
            lambda: f"range({rng.randint(0, 4)})",
            lambda: f"range(len({self.name('l')}))",
            lambda: f"list({self.name('l')})",
            lambda: f"{self.name('l')}[:3]",
            lambda: f"sorted({self.name('l')})[:4]",
            lambda: f"reversed({self.name('l')}[:3])",
            lambda: f"[v for v in {self.name('l')} if v != {rng.randint(0, 3)}][:4]",
            lambda: f"(v + 1 for v in {self.name('l')}[:3])",
            lambda: f"map(lambda v: v + {self.name('n')}, {self.name('l')}[:3])",
            lambda: f"Steps({rng.randint(0, 3)})",
            lambda: f"itertools.chain({self.name('l')}[:2], [{self.name('n')}])",
            lambda: f"tuple({self.name('d')}.values())[:0] or ({self.name('n')},)",
            lambda: "Derived(2, x)",
        ]
        if self.generators:
            choices += [lambda: f"{rng.choice(self.generators)}({self.name('t')}, log)"] * 4
        return rng.choice(choices)()

    # Statements

    def statement(self) -> None:
        self.budget -= 1
        rng = self.rng
        self.maybe_break(0.15)
        simple = [
            self.put_tensor, self.put_tensor, self.put_tensor, self.put_number, self.put_number, self.put_list,
            self.put_dict, self.put_object, self.put_global, self.put_log, self.put_print, self.put_in_place,
            self.put_unpacking, self.put_call, self.put_comprehension,
        ]  # fmt: skip
        compound = [
            self.put_if, self.put_if, self.put_for, self.put_for, self.put_while, self.put_try, self.put_try,
            self.put_with, self.put_closure, self.put_match,
        ]  # fmt: skip
        if self.depth < 4 and rng.random() < 0.45:
            rng.choice(compound)()
        else:
            rng.choice(simple)()

    def body(self, most: int) -> None:
        for _ in range(self.rng.randint(1, most)):
            if self.budget > 0:
                self.statement()

    def put_tensor(self) -> None:
        self.bind("t", self.tensor())

    def put_number(self) -> None:
        self.bind("n", self.number())

    def put_list(self) -> None:
        rng, name = self.rng, self.name("l")
        rng.choice(
            (
                lambda: self.bind("l", f"[{self.number(1)}, {self.number(1)}]"),
                lambda: self.put(f"{name}.append({self.number()})"),
                lambda: self.put(f"{name}[{rng.choice(('0', '-1', '2'))}] = {self.number()}"),
                lambda: self.put(f"{name}.extend([{self.number(1)}])"),
                lambda: self.put(f"{name}.insert({rng.randint(0, 2)}, {self.number()})"),
                lambda: self.put(f"{name}.pop()"),
                lambda: self.put(f"{name}.sort()"),
                lambda: self.put(f"{name} += [{self.number(1)}]"),
                lambda: self.put(f"del {name}[2:]"),
                lambda: self.bind("l", name),
            )
        )()

    def put_dict(self) -> None:
        rng, name = self.rng, self.name("d")
        key = repr(rng.choice("abc"))
        rng.choice(
            (
                lambda: self.bind("d", f"{{'a': {self.number(1)}, {key}: {self.number(1)}}}"),
                lambda: self.put(f"{name}[{key}] = {self.number()}"),
                lambda: self.put(f"{name}.pop({key}, None)"),
                lambda: self.put(f"del {name}[{key}]"),
                lambda: self.put(f"{name}.setdefault({key}, {self.number()})"),
                lambda: self.put(f"{name}.update(a={self.number()})"),
                lambda: self.bind("d", f"dict({name}, c={self.number()})"),
            )
        )()

    def put_object(self) -> None:
        rng, name = self.rng, self.name("o")
        rng.choice(
            (
                lambda: self.bind("o", f"{rng.choice(('Plain', 'Derived'))}({self.number()}, {self.tensor(2)})"),
                lambda: self.put(f"{name}.n = {self.number()}"),
                lambda: self.put(f"{name}.n += {rng.randint(1, 3)}"),
                lambda: self.put(f"{name}.t = {self.tensor(1)}"),
                lambda: self.put(f"{name}.double = {self.number()}"),
            )
        )()

    def put_global(self) -> None:
        self.put(self.rng.choice(("COUNT += 1", "NAMES.append(COUNT)", f"COUNT = {self.number()}")))

    def put_log(self) -> None:
        self.put(f"log.append({self.rng.choice((self.number(), self.tensor(2), self.condition()))})")

    def put_print(self) -> None:
        self.put(f"print({self.number()}, {self.name('l')}, {self.name('t')}.shape)")

    def put_in_place(self) -> None:
        method = self.rng.choice(("add_", "mul_", "sub_"))
        self.put(f"{self.name('t')}.{method}({self.rng.randint(0, 2)})")

    def put_unpacking(self) -> None:
        self.put(f"{self.fresh('u')}, *{self.fresh('u')} = {self.name('l')}")

    def put_comprehension(self) -> None:
        inside = self.broken() if self.breaking and self.rng.random() < 0.3 else "0"
        self.rng.choice(
            (
                lambda: self.bind("l", f"[v * 2 for v in {self.iterable()} if ({inside}, v != 1)[1]]"),
                lambda: self.bind("d", f"{{str(v): (v, {inside})[0] for v in {self.iterable()}}}"),
                lambda: self.bind("n", f"len({{v % 2 for v in {self.iterable()} if ({inside}, True)[1]}})"),
                lambda: self.bind("n", f"sum((v, {inside})[0] for v in {self.iterable()})"),
                lambda: self.bind("t", f"sum([{self.name('t')} * v for v in {self.iterable()}], {self.name('t')})"),
            )
        )()

    def put_call(self) -> None:
        if not self.functions:
            self.put_tensor()
            return
        name, kind = self.rng.choice(self.functions)
        arguments = f"{self.tensor(2)}, {self.number()}, log"
        form = self.rng.choice(("{0}({1})", "{0}(*({1},))", "functools.partial({0}, {2})({3})"))
        first, rest = arguments.split(", ", 1)
        if "(" in first and form.startswith("functools"):
            form = "{0}({1})"
        self.bind(kind, form.format(name, arguments, first, rest))

    def put_if(self) -> None:
        with self.block(f"if {self.condition()}:"):
            self.body(3)
            self.leave()
        if self.rng.random() < 0.4:
            with self.block("else:"):
                self.body(2)

    def leave(self) -> None:
        """Perhaps leave the block early."""
        if self.rng.random() < 0.2:
            ways = ["return " + self.result()] if self.returns else []
            if self.in_loop:
                ways += ["break", "continue", "continue"]
            ways.append(f"raise {self.rng.choice(('KeyError', 'ValueError'))}({self.number()})")
            self.put(self.rng.choice(ways))

    def put_for(self) -> None:
        variable = self.fresh("n")
        heads = [f"for {variable} in {self.iterable()}:"]
        heads.append(f"for {self.fresh('u')}, {variable} in enumerate({self.iterable()}):")
        heads.append(f"for {self.fresh('u')}, {variable} in zip({self.iterable()}, {self.iterable()}):")
        heads.append(f"for {self.fresh('u')}, {variable} in {self.name('d')}.items():")
        outer, self.in_loop = self.in_loop, True
        with self.block(self.rng.choice(heads)):
            if self.rng.random() < 0.9:
                self.put(f"{variable} = {variable} if isinstance({variable}, int) else 1")
            self.kinds["n"].append(variable)
            self.body(3)
            if self.rng.random() < 0.3:
                with self.block(f"if {self.condition()}:"):
                    self.leave()
            self.body(1)
        self.in_loop = outer
        if self.rng.random() < 0.2:
            with self.block("else:"):
                self.body(1)

    def put_while(self) -> None:
        turns = self.fresh("w")
        self.put(f"{turns} = 0")
        outer, self.in_loop = self.in_loop, True
        with self.block(f"while {turns} < {self.rng.randint(1, 4)}:"):
            self.put(f"{turns} += 1")
            self.body(3)
        self.in_loop = outer

    def put_try(self) -> None:
        with self.block("try:"):
            self.body(3)
            if self.rng.random() < 0.5:
                raising = (
                    "raise KeyError('key')", "raise ValueError(len(log))", "{}['missing']", "[][3]", "1 // 0",
                    "raise KeyError(1) from ValueError(2)", "None.missing",
                )  # fmt: skip
                refusing = ("refuse(x)", "log.append(refuse(x))") if self.breaking else ()
                self.put(self.rng.choice(raising + refusing * 2))
        handled = self.rng.random() < 0.85
        if handled:
            for kind in self.rng.sample(("KeyError", "ValueError", "(LookupError, ArithmeticError)", "Broken"), 2):
                with self.block(f"except {kind} as error:"):
                    self.put(self.rng.choice(("log.append(str(error))", "log.append(type(error).__name__)", "pass")))
                    self.maybe_break(0.2)
                    self.body(2)
                    if self.rng.random() < 0.15:
                        self.put(
                            self.rng.choice(("raise", "raise ValueError('again')", "raise KeyError(0) from error"))
                        )
            if self.rng.random() < 0.5:
                with self.block("except Exception as error:"):
                    self.put("log.append(repr(error))")
            if self.rng.random() < 0.3:
                with self.block("else:"):
                    self.body(1)
        if not handled or self.rng.random() < 0.4:
            outer, self.in_loop = self.in_loop, False
            kept, self.returns = self.returns, False
            with self.block("finally:"):
                self.maybe_break(0.2)
                self.body(2)
            self.in_loop, self.returns = outer, kept

    def put_with(self) -> None:
        variable = self.fresh("n")
        heads = (
            f"with Managed(log, {self.rng.random() < 0.5}) as {variable}:", f"with managed(log, 1) as {variable}:",
            f"with Managed(log, True) as {self.fresh('u')}, managed(log, 2) as {variable}:",
            f"with torch.no_grad(), managed(log, 3) as {variable}:",
            f"with contextlib.suppress(KeyError), Managed(log, False) as {variable}:",
        )  # fmt: skip
        with self.block(self.rng.choice(heads)):
            self.kinds["n"].append(variable)
            self.body(3)
            if self.rng.random() < 0.25:
                self.put(self.rng.choice(("raise KeyError('in with')", "raise ValueError('in with')")))

    def put_closure(self) -> None:
        shared, name = self.fresh("n"), self.fresh("f")
        self.put(f"{shared} = {self.number()}")
        outer, self.in_loop = self.in_loop, False
        kept, self.returns = self.returns, False
        with self.block(f"def {name}(v, w=1):"):
            self.put(f"nonlocal {shared}")
            self.put(f"{shared} += w")
            self.maybe_break(0.3)
            self.put(f"return v * {shared}")
        self.in_loop, self.returns = outer, kept
        self.kinds["n"].append(shared)
        self.bind("t", f"{name}({self.tensor(2)})")
        if self.rng.random() < 0.5:
            self.bind("t", f"{name}({self.tensor(2)}, w={self.number()})")

    def put_match(self) -> None:
        with self.block(f"match {self.name('l')}:"):
            with self.block("case [only]:"):
                self.put("log.append(only)")
            with self.block(f"case [first, *rest] if {self.condition()}:"):
                self.put("log.append((first, len(rest)))")
                self.body(1)
            with self.block("case _:"):
                self.body(1)

    def result(self) -> str:
        return "(" + "".join(f"{self.name(kind)}, " for kind in "tnldot") + ")"

    # Functions

    @contextmanager
    def scope(self) -> Iterator[None]:
        kept = self.kinds, self.in_loop, self.returns, self.budget, self.depth
        self.in_loop = False
        self.depth = 1
        yield
        self.kinds, self.in_loop, self.returns, self.budget, self.depth = kept

    def put_function(self) -> None:
        name = self.fresh("g")
        kind = self.rng.choice("ttn")
        decorated = self.rng.random() < 0.3
        with self.scope():
            self.budget = self.rng.randint(2, 7)
            self.returns = False
            self.kinds = {"t": ["x"], "n": ["n"], "l": ["items"], "d": ["table"], "o": ["holder"]}
            if decorated:
                self.put("@counted")
            with self.block(f"def {name}(x, n, log):"):
                self.put("global COUNT")
                self.put("items = [n, 1, 2]")
                self.put("table = {'a': n}")
                self.put("holder = Plain(n, x)")
                self.body(5)
                self.maybe_break(0.4)
                self.put(f"return {self.tensor() if kind == 't' else self.number()}")
        self.functions.append((name, kind))

    def put_generator(self) -> None:
        name = self.fresh("h")
        with self.scope():
            self.budget = self.rng.randint(1, 4)
            self.returns = False
            self.kinds = {"t": ["x"], "n": ["n"], "l": ["items"], "d": ["table"], "o": ["holder"]}
            with self.block(f"def {name}(x, log):"):
                self.put("global COUNT")
                self.put("n, items, table, holder = 2, [3, 1, 2], {'a': 1}, Plain(1, x)")
                self.body(2)
                form = self.rng.randrange(3)
                if form == 0:
                    with self.block("try:"):
                        with self.block(f"for n in range({self.rng.randint(1, 4)}):"):
                            self.maybe_break(0.4)
                            self.put("yield n")
                    with self.block("finally:"):
                        # Behind a break a generator that is left early is closed late (see KNOWN in test_fuzz.py).
                        self.put("pass" if self.breaking else "log.append('closed')")
                elif form == 1 and self.generators:
                    self.put(f"yield from {self.rng.choice(self.generators)}(x, log)")
                    self.put("yield 7")
                else:
                    self.maybe_break(0.4)
                    self.put("yield n")
                    self.maybe_break(0.4)
                    self.put(f"yield {self.number()}")
        self.generators.append(name)

    def program(self) -> str:
        for _ in range(self.rng.randint(0, 2)):
            self.put_generator()
        for _ in range(self.rng.randint(0, 3)):
            self.put_function()
        self.kinds = {"t": ["x"], "n": ["k"], "l": ["items"], "d": ["table"], "o": ["holder"]}
        with self.block("def program(x, items, table, holder, log):"):
            self.put("global COUNT")
            self.put("k = len(items)")
            while self.budget > 0:
                self.statement()
            self.put("return " + self.result())
        return "\n".join(self.lines)


def write(seed: int, breaking: bool = False) -> str:
    """The text of one program."""
    writer = Writer(seed, breaking)
    rng = random.Random(seed)
    places = [name.split("}")[0] for name in HEADER.split("{break_in_")[1:]]
    inside = {f"break_in_{place}": "opaque(0)" if breaking and rng.random() < 0.15 else "pass" for place in places}
    return HEADER.format(**inside) + writer.program() + "\n"


__all__ = ["write"]
