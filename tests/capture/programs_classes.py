"""Classes, attributes, descriptors, properties, slots, metaclasses, super, dunders, dataclasses, named tuples, enums."""

import abc
import collections
import dataclasses
import enum
import time
import typing

import torch
from capture_harness import Collection, tensor

program = Collection("classes")
T = torch.arange


class Point:
    kind = "point"

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def total(self):
        return self.x + self.y

    @property
    def double(self):
        return self.x * 2

    @double.setter
    def double(self, value):
        self.x = value / 2

    @double.deleter
    def double(self):
        del self.x

    @classmethod
    def origin(cls):
        return cls(0, 0)

    @staticmethod
    def add(a, b):
        return a + b


@program(lambda: (T(3.0), Point(1, 2)), lambda: (T(3.0), Point(3, 2)), lambda: (T(3.0), Point(1.0, 2)))
def attributes(x, p):
    return x * p.x + p.total(), p.double, p.kind, p.add(1, 2), type(p).origin()


@program(lambda: (T(3.0), Point(1, 2)), lambda: (T(3.0), Point(3, 2)))
def attribute_writes(x, p):
    p.x = x
    p.y += 1
    p.z = [p.x]
    p.double = p.x * 4
    return p.total()


@program(lambda: (T(3.0), Point(1, 2)))
def attribute_deletes(x, p):
    del p.x
    try:
        p.x
    except AttributeError as error:
        text = str(error)
    p.x = 5
    del p.double
    return x, text, hasattr(p, "x")


@program(lambda: (T(3.0), Point(1, 2)))
def attribute_errors(x, p):
    texts = []
    for act in (
        lambda: p.q,
        lambda: p.total.q,
        lambda: Point.q,
        lambda: delattr(p, "q"),
        lambda: (5).q,
        lambda: setattr(5, "q", 1),
    ):
        try:
            act()
        except AttributeError as error:
            texts.append(str(error))
    return x, texts


@program(lambda: (T(3.0), Point(1, 2)))
def dynamic_attributes(x, p):
    setattr(p, "w", 4)
    return x + getattr(p, "w") + getattr(p, "none", 3), hasattr(p, "none"), vars(p)["w"], sorted(p.__dict__)


@program(lambda: (T(3.0), Point(1, 2)), lambda: (T(3.0), Point(5, 2)))
def instance_dict_use(x, p):
    p.__dict__["x"] += 1
    p.__dict__.update(k=3)
    names = [name for name in p.__dict__]
    return x + p.__dict__.get("x") + p.k, names, {**vars(p)}, p.__dict__.pop("k")


@program(tensor)
def local_object(x):
    p = Point(x, 2)
    p.more = p.total()
    q = Point.origin()
    q.double = 8
    return p, q, p.more + q.x


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@program(lambda: (T(3.0), Slotted(1)), lambda: (T(3.0), Slotted(2)))
def slots(x, s):
    s.b = s.a + 1
    s.a = x
    texts = []
    try:
        s.c = 1
    except AttributeError as error:
        texts.append(str(error))
    del s.b
    try:
        s.b
    except AttributeError as error:
        texts.append(str(error))
    return x + s.a, texts, Slotted(3)


class Fallback:
    def __init__(self):
        self.known = 1

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(f"none of {name}")
        return len(name)


@program(lambda: (T(3.0), Fallback()))
def getattr_fallback(x, f):
    return x + f.known + f.four, hasattr(f, "nothing"), getattr(f, "nope", 7), hasattr(f, "yes")


class Everything:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __getattribute__(self, name):
        log = object.__getattribute__(self, "log")
        if name != "log":
            log.append(name)
            return name.upper()
        return log

    def __setattr__(self, name, value):
        self.log.append((name, value))

    def __delattr__(self, name):
        self.log.append(("del", name))


@program(lambda: (T(3.0), Everything()), known="isinstance asks objects for __class__, which their code may answer")
def getattribute(x, e):
    e.one = 1
    del e.two
    return x, e.three, e.log


class Typed:
    def __init__(self, kind):
        self.kind = kind

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, target, owner=None):
        if target is None:
            return self
        return getattr(target, self.name, None)

    def __set__(self, target, value):
        if not isinstance(value, self.kind):
            raise TypeError(f"{self.name} wants {self.kind.__name__}")
        setattr(target, self.name, value)

    def __delete__(self, target):
        delattr(target, self.name)


class Record:
    age = Typed(int)

    def __init__(self, age):
        self.age = age


@program(lambda: (T(3.0), Record(4)), lambda: (T(3.0), Record(5)))
def descriptors(x, r):
    try:
        r.age = "a"
    except TypeError as error:
        text = str(error)
    r.age += 1
    old = r.age
    del r.age
    return x + old, text, r.age, Record(9), Record.age.name


class Lazy:
    def __get__(self, target, owner=None):
        return owner.__name__ if target is None else target.v * 2


class HasLazy:
    lazy = Lazy()

    def __init__(self, v):
        self.v = v


@program(lambda: (T(3.0), HasLazy(1)), lambda: (T(3.0), HasLazy(2)))
def non_data_descriptor(x, h):
    before = h.lazy
    h.lazy = 10
    return x + before + h.lazy, HasLazy.lazy


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.by_meta = True
        return made

    @property
    def title(cls):
        return cls.__name__.lower()

    def __len__(cls):
        return 3

    def __getitem__(cls, key):
        return (cls.__name__, key)

    def __iter__(cls):
        return iter([1, 2])

    def __contains__(cls, item):
        return item == 1

    def __instancecheck__(cls, value):
        return value == 5 or type.__instancecheck__(cls, value)


class WithMeta(metaclass=Meta):
    def __init__(self, a):
        self.a = a


@program(tensor)
def metaclass(x):
    made = WithMeta(1)
    return (
        x + len(WithMeta),
        made,
        WithMeta.title,
        WithMeta["k"],
        list(WithMeta),
        1 in WithMeta,
        isinstance(5, WithMeta),
        isinstance(made, WithMeta),
    )


class Base:
    def __init__(self, a):
        self.a = a
        self.order = ["Base"]

    def f(self, x):
        return x + self.a

    @property
    def p(self):
        return 1

    @classmethod
    def make(cls):
        return cls.__name__


class Left(Base):
    def __init__(self, a):
        super().__init__(a)
        self.order.append("Left")

    def f(self, x):
        return super().f(x) * 2


class Right(Base):
    def __init__(self, a):
        super().__init__(a)
        self.order.append("Right")

    def f(self, x):
        return super().f(x) * 3


class Both(Left, Right):
    def __init__(self, a):
        super(Both, self).__init__(a)
        self.order.append("Both")

    def f(self, x):
        return super().f(x) - 1

    @property
    def p(self):
        return super().p + 10

    @classmethod
    def make(cls):
        return super().make() + "!"


@program(tensor, lambda: (T(5.0),))
def inheritance(x):
    b = Both(2)
    return b.f(x), b.order, b.p, Both.make(), isinstance(b, Right), issubclass(Both, Base), Both.__mro__[1].__name__


@program(lambda: (T(3.0), Both(2)), lambda: (T(3.0), Left(2)), lambda: (T(3.0), Both(3)))
def inheritance_outside(x, b):
    return b.f(x), b.p, b.make(), type(b) is Both, b.__class__.__name__


@program(tensor)
def super_errors(x):
    try:
        super(Both, Both(1)).nothing
    except AttributeError as error:
        return x, str(error)


class Vector:
    def __init__(self, *v):
        self.v = v

    def __repr__(self):
        return f"Vector{self.v}"

    def __add__(self, other):
        return Vector(*[a + b for a, b in zip(self.v, other.v)]) if isinstance(other, Vector) else NotImplemented

    def __radd__(self, other):
        return ("radd", other)

    def __iadd__(self, other):
        self.v = (*self.v, other)
        return self

    def __neg__(self):
        return Vector(*[-a for a in self.v])

    def __mul__(self, k):
        return Vector(*[a * k for a in self.v])

    __rmul__ = __mul__

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.v, other.v))

    def __eq__(self, other):
        return isinstance(other, Vector) and self.v == other.v

    def __lt__(self, other):
        return self.v < other.v

    def __hash__(self):
        return hash(self.v)

    def __len__(self):
        return len(self.v)

    def __getitem__(self, key):
        return self.v[key]

    def __contains__(self, item):
        return item in self.v

    def __bool__(self):
        return any(self.v)

    def __call__(self, k):
        return self.v[k]

    def __abs__(self):
        return max(self.v)

    def __index__(self):
        return len(self.v)

    def __float__(self):
        return float(len(self.v))

    def __int__(self):
        return 7

    def __round__(self, n=None):
        return ("round", n)

    def __format__(self, spec):
        return f"<{spec}>"

    def __divmod__(self, other):
        return ("divmod", other)

    def __pow__(self, other, mod=None):
        return ("pow", other, mod)

    def __rsub__(self, other):
        return ("rsub", other)

    def __invert__(self):
        return "inverted"

    def __reversed__(self):
        return iter(("r", *self.v))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return True


VECTORS = (lambda: (T(3.0), Vector(1, 2), Vector(3, 4)), lambda: (T(3.0), Vector(1, 2), Vector(1, 2)))


@program(*VECTORS)
def arithmetic_dunders(x, a, b):
    c = a + b
    d = 5 + a
    a += 9
    return x * (c @ b), d, a, -b, b * 2, 2 * b, 5 - b, ~b, divmod(b, 2), b**2, pow(b, 2, 3), abs(b)


@program(*VECTORS)
def comparison_dunders(x, a, b):
    return (
        x,
        a == b,
        a != b,
        a < b,
        a > b,
        a == 5,
        sorted([b, a]),
        max(a, b),
        a in [b],
        [a, b].index(b),
        (a, 1) == (b, 1),
    )


@program(*VECTORS)
def container_dunders(x, a, b):
    first, second = a
    return (
        x,
        len(a),
        a[0],
        a[-1:],
        list(b),
        2 in a,
        bool(a),
        a(1),
        [*a],
        reversed(a).__next__(),
        list(reversed(b)),
        tuple(map(str, a)),
    )


@program(*VECTORS)
def conversion_dunders(x, a, b):
    return (
        x[: int(a)],
        float(a),
        [0, 1, 2, 3][a],
        round(a),
        round(a, 2),
        f"{a} {a!r} {a:>5}",
        format(b, "x"),
        "%s" % (b,),
        repr(a),
        str(b),
        range(9)[b],
    )


@program(*VECTORS)
def with_dunder(x, a, b):
    with a as c:
        raise ValueError("gone")
    return x, c is a


@program(lambda: (T(3.0), Vector(1, 2)))
def unsupported_operands(x, a):
    texts = []
    for act in (
        lambda: a - 1,
        lambda: a <= 3,
        lambda: a & 1,
        lambda: 1 + "a",
        lambda: [] < 1,
        lambda: -"a",
        lambda: a % 1,
        lambda: {}[[]],
        lambda: len(5),
        lambda: 5[0],
        lambda: iter(5),
        lambda: "a" in 5,
        lambda: {1: 2}.x,
    ):
        try:
            act()
        except (TypeError, AttributeError) as error:
            texts.append(str(error))
    return x, texts


@program(lambda: (T(3.0), {}), lambda: (T(3.0), {Vector(1): 1}))
def hashed_by_user(x, d):
    own = {Vector(1): 5, Vector(2): 6}
    return x + own[Vector(1)], Vector(3) in own, {Vector(1), Vector(1)}.__len__()


class Sub(int):
    def __add__(self, other):
        return Sub(int(self) + other + 100)


@program(lambda: (T(3.0), Sub(3)), lambda: (T(3.0), Sub(4)), reason="c_reads_object", rehits=False)
def int_subclass(x, n):
    return x * int(n), n + 1, n * 2, Sub(4) + 1


@dataclasses.dataclass
class Data:
    a: int
    b: list = dataclasses.field(default_factory=list)
    c: typing.Any = None

    def __post_init__(self):
        self.d = self.a * 2


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: int = 2


@dataclasses.dataclass(slots=True, kw_only=True)
class SlotData:
    a: int = 1


@program(lambda: (T(3.0), Data(1)), lambda: (T(3.0), Data(2)), lambda: (T(3.0), Data(1, [1])))
def dataclass_use(x, d):
    d.b.append(d.a)
    e = Data(d.a, c=x)
    return x * d.d, e, d == Data(d.a), d == e if d.c is None and e.c is None else 0, repr(d.b), len(e.b)


@program(lambda: (T(3.0), Frozen(1)), lambda: (T(3.0), Frozen(2)))
def dataclass_frozen(x, f):
    try:
        f.a = 3
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    return x * f.a, text, f < Frozen(5), hash(Frozen(3)) == hash(Frozen(3)), repr(Frozen(4)), {Frozen(1): 2}[Frozen(1)]


@program(lambda: (T(3.0), Data(1)), lambda: (T(3.0), Data(2)))
def dataclass_functions(x, d):
    names = [field.name for field in dataclasses.fields(d)]
    other = dataclasses.replace(d, a=5)
    return (
        x,
        names,
        other,
        dataclasses.asdict(d),
        dataclasses.astuple(Frozen(1)),
        dataclasses.is_dataclass(d),
        SlotData(a=4),
    )


class Pair(typing.NamedTuple):
    left: typing.Any
    right: int = 2

    def swap(self):
        return Pair(self.right, self.left)


Old = collections.namedtuple("Old", "p q", defaults=(3,))


@program(lambda: (T(3.0), Pair(1)), lambda: (T(3.0), Pair(2, 3)))
def named_tuples(x, p):
    q = p._replace(left=x)
    left, right = p
    return (
        q,
        q.left * p.left,
        p.swap(),
        Old(1),
        Old(1, 2).q,
        Pair._fields,
        p._asdict(),
        p == (1, 2),
        len(p),
        Pair._make([1, 2]),
    )


@program(lambda: (T(3.0), Pair(T(2.0), 3)), lambda: (T(3.0), Pair(T(2.0), 4)))
def named_tuple_of_tensor(x, p):
    return p.left + p.right, p, p.left is p[0]


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def label(self):
        return self.name.title()

    @classmethod
    def first(cls):
        return cls.RED


class Flags(enum.IntFlag):
    A = 1
    B = 2


@program(lambda: (T(3.0), Color.RED, Flags.A), lambda: (T(3.0), Color.GREEN, Flags.A | Flags.B))
def enums(x, c, f):
    return (
        x * c.value,
        c.label,
        c is Color.RED,
        Color(2),
        Color["RED"],
        list(Color),
        Color.first(),
        c in (Color.RED,),
        f & Flags.B,
        bool(f & Flags.A),
        {Color.RED: 1}.get(c),
        f"{c.name}",
    )


@program(tensor)
def enum_error(x):
    try:
        Color(9)
    except ValueError as error:
        return x, str(error)


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self): ...


class Concrete(Abstract):
    def f(self):
        return 3


@program(tensor)
def abstract_classes(x):
    try:
        Abstract()
    except TypeError as error:
        text = str(error)
    return x * Concrete().f(), text, isinstance(Concrete(), Abstract)


@program(tensor)
def local_class(x):
    class Local(Base):
        scale = 3

        def __init__(self):
            super().__init__(1)

        def g(self, v):
            return self.f(v) * self.scale * __class__.scale

    return Local().g(x), Local.__name__, Local.__qualname__, isinstance(Local(), Base)


@program(tensor)
def new_method(x):
    class Single:
        made = None

        def __new__(cls, *args):
            if cls.made is None:
                cls.made = super().__new__(cls)
            return cls.made

        def __init__(self, v):
            self.v = v

    a, b = Single(1), Single(2)
    return x * a.v, a is b


class Config(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


@program(lambda: (T(3.0), Config(a=1)), lambda: (T(3.0), Config(a=2)))
def attribute_dict(x, c):
    c.b = c.a + 1
    return x * c.b, hasattr(c, "zz"), c.get("a"), sorted(c)


@program(lambda: (T(3.0), Point(1, 2), Point(1, 2)), lambda: (lambda p: (T(3.0), p, p))(Point(1, 2)))
def alias_objects(x, p, q):
    p.x = 10
    return x * q.x, p is q


@program(lambda: (T(3.0), [Point(1, 2)] * 2), lambda: (T(3.0), [Point(1, 2), Point(1, 2)]))
def alias_in_list(x, ps):
    ps[0].x += 1
    return x * ps[1].x


@program(lambda: (T(3.0), Point(1, 2)))
def method_objects(x, p):
    m = p.total
    return x + m(), m.__self__ is p, m.__func__ is Point.total, m.__name__, p.total == p.total


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


@program(lambda: (T(3.0), Countdown(3)), lambda: (T(3.0), Countdown(4)))
def user_iterator(x, c):
    first = next(c)
    return (
        x + first,
        list(c),
        next(c, None),
        list(zip(Countdown(2), "ab")),
        sum(Countdown(3)),
        [*Countdown(2)],
        dict(enumerate(Countdown(2))),
    )


class Bag:
    def __init__(self):
        self.d = {}

    def __setitem__(self, k, v):
        self.d[k] = v

    def __getitem__(self, k):
        return self.d[k]

    def __delitem__(self, k):
        del self.d[k]

    def __missing__(self, k):
        return 0


@program(lambda: (T(3.0), Bag()))
def item_dunders(x, b):
    b["a"] = x
    b["b"] = b["a"] * 2
    b["a"] += 1
    del b["b"]
    return b["a"], b.d


class Multi:
    @typing.overload
    def f(self, a: int) -> int: ...

    def f(self, a):
        return a

    g = f
    h = staticmethod(lambda a: a + 1)


@program(lambda: (T(3.0), Multi()))
def aliased_methods(x, m):
    m.f = lambda a: a * 100
    return x, m.f(1), m.g(2), m.h(3), Multi.f(m, 4)


@program(lambda: (T(3.0), Point(1, 2)))
def class_reassignment(x, p):
    y = type("Made", (Point,), {"z": 3})(5, 6)
    return x + y.z, y.total(), type(y).__name__, callable(p), callable(Point)


class Cooperative:
    def __init_subclass__(cls, tag="none", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag


@program(tensor, reason="class_definition", rehits=False)
def init_subclass(x):
    class Child(Cooperative, tag="child"):
        pass

    return x, Child.tag, Child().tag


class Private:
    def __init__(self):
        self.__secret = 3

    def get(self):
        return self.__secret


@program(lambda: (T(3.0), Private()))
def name_mangling(x, p):
    return x * p.get(), p._Private__secret


class Generic_(typing.Generic[typing.TypeVar("V")]):
    def __init__(self, v):
        self.v = v


@program(tensor)
def generic_class(x):
    return Generic_(x).v, Generic_[int](3).v, isinstance(Generic_(1), Generic_)


@program(lambda: (T(3.0), Point(1, 2)))
def weird_getattr_defaults(x, p):
    return (
        x,
        getattr(p, "x", None),
        getattr(p, "zzz", None) is None,
        type(p).__dict__.get("kind") if False else Point.kind,
    )


class Registry(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.registered = True
        return made


class Registered(metaclass=Registry):
    def __init__(self, x):
        time.sleep(0)
        self.x = x + 1

    def __call__(self):
        raise AssertionError("the class is called, not the instance")


@program(tensor, reason="opaque_callable")
def break_below_a_metaclass(x):
    made = Registered(x * 2)
    return made.x * 3, made.registered


class Appending(list):
    def append(self, value):
        plain = super().append
        time.sleep(0)
        plain(value)
        return len(self)


@program(tensor, reason="opaque_callable")
def method_of_a_base_kept_over_a_break(x):
    values = Appending()
    own = values.append
    time.sleep(0)
    return own(x + 1), values.append(x * 2), values


class Defaults:
    scale = None
    count = 0
    meta = None

    @classmethod
    def is_default(cls):
        return cls.scale is None


@program(lambda: (T(3.0), Defaults()))
def class_attributes_that_are_none(x, settings):
    own = Defaults()
    assert settings.scale is None and own.scale is None and Defaults.meta is None and Defaults.is_default()
    own.scale = 2
    return x * own.scale + own.count, hasattr(settings, "scale"), getattr(settings, "scale", 5)
