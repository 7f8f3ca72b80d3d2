"""The residual program: what a compiled call still does in Python, as readable source text.

Contract. A residual program is a plain function of the bound locals and of the values the guards fetched. It calls the
graph, replays what the trace did to the user's objects, rebuilds the objects the trace made, and returns (or goes on
to a continuation). It is generated as Python text, so that it can be shown as it is; names in it are the
builder's own (`a0` a local, `f1` a fetched value, `g2` a graph output, `v3` a rebuilt object, `c4` a constant), so no
text of the user's is ever executed. Attribute and key names go through constants.

Objects that were the user's are referred to, never copied; objects of the trace are rebuilt once and shared, so
identities within and across what is returned are those of eager Python.
"""

from __future__ import annotations
import __future__

import collections
import functools
import gc
import itertools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator import events
from stator.bytecode.tables import Location, encode_locations
from stator.capture.ahead import COMPOSED, DICT_WALKS, changed_since, dict_under, peekable, reduced, skip
from stator.capture.asserts import RuntimeAssert
from stator.capture.calls import underlying
from stator.capture.control import Break
from stator.capture.frame import NULL, UNBOUND, ExceptionSlot, Frame, LastIndex, Pending
from stator.capture.instance_dicts import InstanceDict
from stator.capture.library.effects import Replay
from stator.capture.library.inference import InferenceMode
from stator.capture.library.torch_overrides import Switch
from stator.capture.symbolic import SYMBOLIC, fold
from stator.capture.tracer import Tracer
from stator.events import is_own
from stator.resume.support import Support
from stator.resume.tracebacks import FailedAssert, Passed, TracebackOf
from stator.tensors.abstract import AbstractTensor
from stator.values import arrays
from stator.values.constants import guard_kind
from stator.values.source import Source
from stator.values.world import DELETED, Overlay, Shadow, entries, same_constant

BINDING = (types.MethodDescriptorType, types.WrapperDescriptorType)
ITERATORS: tuple[type, ...] = (
    type(iter([])), type(iter(())), type(iter("")), type(iter(range(0))), type(iter(set())), type(reversed([])),
    type(iter(collections.deque())), map, filter, reversed, type(iter(b"")), type(iter(collections.OrderedDict())),
    itertools.accumulate, itertools.dropwhile, itertools.filterfalse, itertools.starmap, itertools.takewhile,
    *DICT_WALKS, *COMPOSED,
    *(kind for kind in vars(itertools).values() if isinstance(kind, type) and "__reduce__" in kind.__dict__),
)  # fmt: skip
HEAP_TYPE = 1 << 9
MADE_BY_C = 1 << 7 | 1 << 8  # not to be instantiated, or immutable
C_MEMBERS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.GetSetDescriptorType)
# C types whose `__new__` makes an empty instance of any class derived from them in Python.
SAFE_LAYOUTS = frozenset({object, list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict})
INLINE_TYPES = (int, float, str, bool, type(None))


@functools.lru_cache(4096)
def _made_by_python(kind: type) -> bool:
    """Whether a class is a class statement's: C makes types of the same flags, whose instances only it can make."""
    if not kind.__flags__ & HEAP_TYPE or kind.__flags__ & MADE_BY_C:
        return False
    return not any(
        type(held) in C_MEMBERS and name not in ("__dict__", "__weakref__") for name, held in kind.__dict__.items()
    )


@functools.lru_cache(1024)
def _fields_of_c(kind: Any) -> frozenset[str]:
    """The fields that exceptions have by C."""
    members = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return frozenset(name for base in kind.__mro__ for name, held in base.__dict__.items() if type(held) in members)


class ResidualBuilder:
    """Builds the text of one residual program."""

    def __init__(self, tracer: Tracer, local_count: int) -> None:
        self.tracer = tracer
        self.world = tracer.world
        self.local_count = local_count
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"make": Support, "tuple": tuple, "dict": dict, "list": list, "set": set}
        self.fetches: list[Source] = []
        self.fetch_names: dict[Source, str] = {}
        self.names: dict[int, str] = {}
        self.constant_names: dict[int, str] = {}
        self.building: set[int] = set()
        self.outputs: list[torch.fx.Node] = []
        self.output_names: dict[torch.fx.Node, str] = {}
        self.wrapped: list[str] = []  # what makes results of the graph tensors of a subclass
        self.kept: list[Any] = []
        self.replayed: set[int] = set()  # effects that stand in the text already
        self._count = 0
        # The code and line of the program whose call the residual program makes.
        self.stands_for: tuple[types.CodeType, int] | None = None
        self.deferred: list[tuple[str, Any]] = []  # cells whose contents are not made yet
        # How the broken call's callee is called, where it runs uncompiled but what it calls does not.
        self.callees_compiled: Callable[[Any], Any] | None = None

    # Names

    def constant(self, value: Any) -> str:
        """The text of an object the program holds on to: a literal, or a name."""
        if type(value) in INLINE_TYPES and not (isinstance(value, float) and value != value):
            text = repr(value)
            if len(text) < 60 and "inf" not in text:
                return text
        return self.held(value)

    def held(self, value: Any) -> str:
        """The name of an object the program holds on to."""
        name = self.constant_names.get(id(value))
        if name is None:
            name = self.constant_names[id(value)] = f"c{len(self.constant_names)}"
            self.constants[name] = value
            self.kept.append(value)
        return name

    def operand(self, value: Any) -> str:
        """Text of a value that something is done to: never a literal, whose sign would bind to the wrong operator and
        whose use Python may warn of."""
        return self.held(value) if type(value) in INLINE_TYPES else self.expression(value)

    def callee(self, function: Any) -> str:
        """The expression of what the broken call calls."""
        text = self.operand(function)
        return text if self.callees_compiled is None else f"{self.constant(self.callees_compiled)}({text})"

    def fetch(self, source: Source) -> str:
        """The name of a value the guards hand over."""
        if source.step == "LOCAL" and source.key < self.local_count:
            return f"a{source.key}"
        if source.step == "CONST":
            return self.constant(source.key)
        name = self.fetch_names.get(source)
        if name is None:
            name = self.fetch_names[source] = f"f{len(self.fetches)}"
            self.fetches.append(source)
        return name

    def _fresh(self, text: str) -> str:
        name = f"v{self._count}"
        self._count += 1
        self.lines.append(f"{name} = {text}")
        return name

    def _named(self, value: Any, text: str) -> str:
        name = self._fresh(text)
        self.names[id(value)] = name
        self.kept.append(value)
        return name

    # Values

    def expression(self, value: Any) -> str:
        """Text that gives the real object for a value of the trace."""
        if type(value) is AbstractTensor:
            return self._tensor(value)
        if type(value) is Pending:
            return self.fetch(value.source)
        if type(value) in INLINE_TYPES:
            return self.constant(value)
        if type(value) in SYMBOLIC:
            return self._number(value)
        if type(value) is torch.Size and any(type(size) in SYMBOLIC for size in value):
            return self._named(value, f"{self.constant(torch.Size)}(({self.sequence(value)}))")
        if value is not None and value is self.tracer.arrived:
            raise Break("program_raises", type(value).__name__)
        source = self.world.arrays.get(id(value)) or self.world.sources.get(id(value))
        if source is not None and guard_kind(value) is None:
            return self.fetch(source)
        if id(value) in self.tracer.own_functions:
            if isinstance(value, type):
                raise Break("class_escapes", value.__name__, self.tracer.born.get(id(value)))
        elif guard_kind(value) is not None or type(value) is types.FunctionType:
            return self.constant(value)  # a function from outside was found through a class or module that is guarded
        name = self.names.get(id(value))
        if name is not None:
            return name
        if id(value) in self.building:
            raise Break("cannot_rebuild", f"a {type(value).__name__} that contains itself")
        self.building.add(id(value))
        try:
            return self._rebuild(value)
        except RecursionError:
            raise Break("cannot_rebuild", f"a {type(value).__name__} nested too deeply") from None
        finally:
            self.building.discard(id(value))

    def _tensor(self, tensor: AbstractTensor) -> str:
        if tensor.source is not None:
            return self.fetch(tensor.source)
        node = self.tracer.graph.node_of(tensor)
        plain = self._output(node)
        # An input of the graph is given back as another object than it came: its class may be another one.
        as_it_is = tensor.kind is torch.Tensor and node.op != "placeholder"
        name = plain if as_it_is else self.names.get(id(tensor))
        if name is None:
            name = f"s{len(self.wrapped)}"
            kind = self.constant(tensor.kind)
            self.wrapped.append(f"{name} = {self.constant(torch.Tensor.as_subclass)}({plain}, {kind})")
        if id(tensor) not in self.names:
            self.names[id(tensor)] = name
            self.kept.append(tensor)
            if tensor.attributes:
                for attribute, value in tensor.attributes.items():
                    self.lines.append(f"setattr({name}, {self.constant(attribute)}, {self.expression(value)})")
        return name

    def _output(self, node: torch.fx.Node) -> str:
        """The name of what a node of the graph gives."""
        name = self.output_names.get(node)
        if name is None:
            name = self.output_names[node] = f"g{len(self.outputs)}"
            self.outputs.append(node)
        return name

    def _number(self, value: Any) -> str:
        """A symbolic number, computed from the sizes and numbers it is made of."""
        context = self.tracer.graph.sizes
        assert context is not None

        def leaf(symbol: Any) -> str:
            sources = context.infos[symbol].sources
            return self.fetch(sources[0]) if sources else self._output(self.tracer.graph.symbol_node(symbol))

        def call(function: Any, *parts: Any) -> str:
            return f"{self.constant(function)}({', '.join(map(written, parts))})"

        def written(part: Any) -> str:
            return part if type(part) is str else self.constant(part)

        return written(fold(context.algebra, context.simplified(context.expr_of(value)), leaf, call))

    def sequence(self, values: Any) -> str:
        """Comma-separated expressions, with a trailing comma."""
        return "".join(f"{self.expression(value)}, " for value in values)

    def _rebuild(self, value: Any) -> str:
        kind = type(value)
        if kind is tuple:
            text = f"({self.sequence(value)})"
            return self._named(value, text)
        if kind is list:
            return self._filled(value, "[]", "extend", value)
        if kind is dict:
            name = self._named(value, "{}")
            self._fill_dict(name, value, "dict")
            return name
        if kind is slice:
            parts = ", ".join(self.expression(part) for part in (value.start, value.stop, value.step))
            return self._named(value, f"slice({parts})")
        if kind is arrays.array_kind():
            return self._named(value, f"make.array({self.expression(value.tensor)})")
        if arrays.is_scalar(value):
            return self.held(value)
        builder = REBUILDERS.get(kind)
        if builder is not None:
            return str(builder(self, value))
        if isinstance(value, BaseException):
            return self._exception(value)
        if isinstance(value, tuple):
            return self._tuple_subclass(value)
        if kind in ITERATORS:
            return self._iterator(value)
        if kind is types.GeneratorType:
            return self._generator(value)
        return self._instance(value)

    def _filled(self, value: Any, empty: str, method: str, parts: Any) -> str:
        name = self._named(value, empty)
        if len(value):
            self.lines.append(f"{name}.{method}(({self.sequence(parts)}))")
        return name

    def _fill_dict(self, name: str, value: dict[Any, Any], owner: str) -> None:
        for key, held in entries(value):
            self.lines.append(f"{owner}.__setitem__({name}, {self.expression(key)}, {self.expression(held)})")

    def _tuple_subclass(self, value: Any) -> str:
        kind = type(value)
        parts = f"({self.sequence(tuple(value))})"
        if hasattr(kind, "n_sequence_fields"):
            return self._named(value, f"{self.constant(kind)}({parts})")
        name = self._named(value, f"tuple.__new__({self.constant(kind)}, {parts})")
        self._fill_attributes(name, value)
        return name

    def _generator(self, value: Any) -> str:
        row = self.tracer.generators.get(id(value))
        if id(value) in self.tracer.index_walks:
            return self._index_walk(value)
        if row is None:
            raise Break("foreign_iterator", "a generator made outside of the compiled function")
        frame: Frame = row[1]
        if value.gi_running or value.gi_frame is None:
            if value.gi_frame is None:  # exhausted: any exhausted generator of that name will do
                return self._named(value, "make.exhausted()")
            raise Break("cannot_rebuild", "a generator that is running")
        decoded = frame.decoded
        started = frame.pc > 0
        index = frame.current
        if not started:
            index = next(row.index for row in decoded.instructions if row.opname == "RETURN_GENERATOR") + 2
            self._prepare_generator(frame, index)
        first_free = len(frame.locals) - decoded.nfrees
        for part in frame.stack:
            if part is NULL or type(part) in (ExceptionSlot, LastIndex):
                raise Break("cannot_rebuild", "a generator suspended in a handler")
        # Parts first: the generator may be reached from them only through itself.
        slots = "".join(
            f"{self.constant(UNBOUND) if part is UNBOUND else self.expression(part)}, "
            for part in frame.locals[:first_free]
        )
        cells = self.sequence(frame.locals[first_free:])
        stack = self.sequence(frame.stack)
        return self._named(
            value,
            f"make.generator({self.constant(frame.code)}, {index}, {started}, {self.constant(frame.globals)}, "
            f"({slots}), ({cells}), ({stack}))",
        )

    def _index_walk(self, value: Any) -> str:
        """An iterator over an object with `__getitem__` alone."""
        _, walked, index = self.tracer.index_walks[id(value)]
        if value.gi_frame is None:
            return self._named(value, "make.exhausted()")
        return self._named(value, f"make.iterator({self.constant(iter)}, ({self.expression(walked)},), {index()})")

    def _prepare_generator(self, frame: Frame, index: int) -> None:
        """What stands before RETURN_GENERATOR only makes cells; the trace has not run it yet."""
        for row in frame.decoded.instructions[:index]:
            if row.opname == "MAKE_CELL" and not isinstance(frame.locals[row.arg], types.CellType):
                frame.locals[row.arg] = self.tracer.new_cell(frame.locals[row.arg])

    def _exception(self, error: BaseException) -> str:
        name = self._named(error, f"make.exception({self.constant(type(error))}, ({self.sequence(error.args)}))")
        self._fill_attributes(name, error)
        kind: Any = type(error)
        fields = _fields_of_c(kind)
        for field in ("name", "path", "obj"):  # of ImportError, NameError, AttributeError: given by keyword
            held = getattr(error, field, None) if field in fields else None
            if held is not None:
                self.lines.append(f"{name}.{field} = {self.expression(held)}")
        for link in ("__cause__", "__context__"):
            held = getattr(error, link)
            if held is not None:
                self.lines.append(f"{name}.{link} = {self.expression(held)}")
        places = self.tracer.passed.get(id(error))
        if places:
            self.lines.append(f"{name}.__traceback__ = {self._traceback(places)}")
        if error.__suppress_context__:
            self.lines.append(f"{name}.__suppress_context__ = True")
        return name

    def _traceback(self, places: Sequence[Any]) -> str:
        made = TracebackOf(tuple(Passed(*place) for place in places if not is_own(place[0].co_filename)))
        return f"{self.held(made)}.made()"

    def _iterator(self, value: Any) -> str:
        walk = DICT_WALKS.get(type(value))
        if walk is not None and peekable(value):
            return self._dict_walk(value, walk)
        try:
            made = reduced(value)
        except RuntimeError:  # what it iterates over has changed meanwhile
            raise Break("cannot_rebuild", f"a {type(value).__name__}", self.tracer.born.get(id(value))) from None
        function, args = made[0], made[1]
        state = made[2] if len(made) > 2 else None
        args = tuple(self.tracer.proxied.get(id(arg), arg) for arg in args)
        texts = self.sequence(args)
        return self._named(value, f"make.iterator({self.constant(function)}, ({texts}), {self.expression(state)})")

    def _dict_walk(self, value: Any, walk: Callable[[Any], Any]) -> str:
        mapping = dict_under(value)
        self._change_first(mapping)
        if changed_since(value):
            return self._named(value, "make.broken_walk()")
        done = len(mapping) - operator.length_hint(value)
        return self._named(value, f"make.dict_walk({self.constant(walk)}, {self.expression(mapping)}, {done})")

    def _instance(self, value: Any) -> str:
        """An instance of a class of the program, made without running its constructor."""
        kind = type(value)
        if id(kind) in self.tracer.own_functions:
            raise Break("class_escapes", kind.__name__, self.tracer.born.get(id(kind)))
        layout = next(base for base in kind.__mro__ if not _made_by_python(base))
        if layout in SAFE_LAYOUTS:
            name = self._named(value, f"make.new({self.constant(kind)})")
        else:
            raise Break("cannot_rebuild", f"a {kind.__module__}.{kind.__qualname__}", self.tracer.born.get(id(value)))
        if isinstance(value, collections.OrderedDict):
            self._fill_dict(name, value, self.constant(collections.OrderedDict))
        elif isinstance(value, dict):
            if isinstance(value, collections.defaultdict) and value.default_factory is not None:
                self.lines.append(f"{name}.default_factory = {self.expression(value.default_factory)}")
            self._fill_dict(name, value, "dict")
        elif isinstance(value, list) and len(value):
            self.lines.append(f"list.extend({name}, ({self.sequence(list.__iter__(value))}))")
        elif isinstance(value, set) and len(value):
            self.lines.append(f"set.update({name}, ({self.sequence(set.__iter__(value))}))")
        elif isinstance(value, collections.deque):
            owner = self.constant(collections.deque)
            parts = self.sequence(collections.deque.__iter__(value))
            self.lines.append(f"{owner}.__init__({name}, ({parts}), {value.maxlen!r})")
        self._fill_attributes(name, value)
        return name

    def _fill_attributes(self, name: str, value: Any) -> None:
        try:
            names = object.__getattribute__(value, "__dict__")
        except AttributeError:
            names = None
        if names:
            for attribute, held in names.items():
                text = f"{name}.__dict__[{self.constant(attribute)}] = {self.expression(held)}"
                self.lines.append(text)
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot in ("__dict__", "__weakref__"):
                    continue
                mangled = f"_{base.__name__.lstrip('_')}{slot}" if slot.startswith("__") else slot
                try:
                    held = object.__getattribute__(value, mangled)
                except AttributeError:
                    continue
                self.lines.append(f"object.__setattr__({name}, {self.constant(mangled)}, {self.expression(held)})")

    # Effects

    def effects(self) -> None:
        """Everything the trace did to the user's objects, and the calls it put off."""
        for replay in self.tracer.effects:
            self._replay(replay)
        for shadow in list(self.world.changed_shadows()):
            self._replay_shadow(shadow)
        for overlay in list(self.world.overlays.values()):
            self._replay_overlay(overlay)

    def _change_first(self, mapping: dict[Any, Any]) -> None:
        """A dict that was changed before it was walked over is changed before the walk is made again."""
        shadow = self.world.shadow_of_copy.get(id(mapping))
        if shadow is None or not shadow.changed():
            return
        for replay in self.tracer.effects:
            if replay.function is skip:
                self._replay(replay)
        self._replay_shadow(shadow)

    def _runtime_assert(self, row: RuntimeAssert) -> None:
        if any(tensor.mutated for tensor in self.world.tensors.values()):
            # What the graph writes after a failing assert would be seen: it must not run as far.
            raise Break("data_dependent_branch", "an assert", row.step)
        failing = FailedAssert(tuple(Passed(*place) for place in row.places), row.args)
        self.lines.append(f"if not {self.expression(row.condition)}: return {self.held(failing)}()")

    def _replay(self, replay: Replay | RuntimeAssert) -> None:
        if id(replay) in self.replayed:
            return
        self.replayed.add(id(replay))
        if isinstance(replay, RuntimeAssert):
            self._runtime_assert(replay)
            return
        parts = self.sequence(replay.args)
        named = "".join(
            f"**{{{self.constant(key)}: {self.expression(value)}}}, " for key, value in replay.kwargs.items()
        )
        self.lines.append(f"{self.constant(replay.function)}({parts}{named})")

    def _replay_shadow(self, shadow: Shadow) -> None:
        if id(shadow) in self.replayed:
            return
        self.replayed.add(id(shadow))
        target = self.fetch(shadow.source)
        now, before = shadow.copy, shadow.snapshot
        if isinstance(now, dict):
            if shadow.overwritten:
                self.lines.append(f"{self._dict_type(now)}.clear({target})")
                before = ()
            self._replay_dict(target, now, before)
        elif isinstance(now, set):
            self.lines.append(f"set.clear({target})")
            self.lines.append(f"set.update({target}, ({self.sequence(now)}))")
        elif isinstance(now, bytearray):
            self.lines.append(f"{target}[:] = {self.constant(bytes(now))}")
        elif isinstance(now, collections.deque):
            owner = self.constant(collections.deque)
            parts = self.sequence(collections.deque.__iter__(now))
            self.lines.append(f"{owner}.clear({target})")
            self.lines.append(f"{owner}.extend({target}, ({parts}))")
        elif shadow.overwritten:
            self.lines.append(f"list.__setitem__({target}, slice(None), ({self.sequence(list.__iter__(now))}))")
        elif not shadow.read:
            self._replay_places(target, list(list.__iter__(now)), before)
        else:
            parts_now = list(list.__iter__(now))
            kept = 0
            for left, right in zip(parts_now, before, strict=False):
                if left is not right and not same_constant(left, right):
                    break
                kept += 1
            if kept == len(before):
                self.lines.append(f"list.extend({target}, ({self.sequence(parts_now[kept:])}))")
            else:
                tail = f"slice({kept}, None)"
                self.lines.append(f"list.__setitem__({target}, {tail}, ({self.sequence(parts_now[kept:])}))")

    def _replay_places(self, target: str, now: list[Any], before: tuple[Any, ...]) -> None:
        """A list not looked at as a whole: single places were written, and something was put behind."""
        for place, old in enumerate(before):
            if now[place] is not old and not same_constant(now[place], old):
                self.lines.append(f"list.__setitem__({target}, {place}, {self.expression(now[place])})")
        if len(now) > len(before):
            self.lines.append(f"list.extend({target}, ({self.sequence(now[len(before) :])}))")

    def _dict_type(self, mapping: dict[Any, Any]) -> str:
        ordered = isinstance(mapping, collections.OrderedDict)
        return self.constant(collections.OrderedDict) if ordered else "dict"

    def _replay_dict(self, target: str, now: dict[Any, Any], before: tuple[Any, ...]) -> None:
        owner = self._dict_type(now)
        old_keys = list(before[::2])
        new_keys = [key for key, _ in entries(now)]
        kept = [key for key in old_keys if dict.__contains__(now, key)]
        if [id(key) for key in kept] != [id(key) for key in new_keys[: len(kept)]] and kept != new_keys[: len(kept)]:
            self.lines.append(f"{owner}.clear({target})")
            self._fill_dict(target, now, owner)
            return
        for key in old_keys:
            if not dict.__contains__(now, key):
                self.lines.append(f"{owner}.__delitem__({target}, {self.expression(key)})")
        old_values = {id(key): value for key, value in zip(before[::2], before[1::2], strict=True)}
        for key, value in entries(now):
            held = old_values.get(id(key), DELETED)
            if held is DELETED:
                held = next((old for one, old in zip(before[::2], before[1::2], strict=True) if one == key), DELETED)
            if held is value or same_constant(held, value):
                continue
            self.lines.append(f"{owner}.__setitem__({target}, {self.expression(key)}, {self.expression(value)})")

    def _replay_overlay(self, overlay: Overlay) -> None:
        target = overlay.target
        if isinstance(target, types.CellType):
            source = self.tracer.cell_sources[id(target)].parent
            assert source is not None
            text = self.fetch(source)
            value = overlay.writes["cell_contents"]
            if value is UNBOUND:
                self.lines.append(f"del {text}.cell_contents")
            else:
                self.lines.append(f"{text}.cell_contents = {self.expression(value)}")
            return
        if id(target) not in self.world.sources and isinstance(target, dict):
            text = self.constant(target)  # a module's globals
            for name, value in overlay.writes.items():
                if value is DELETED:
                    self.lines.append(f"dict.__delitem__({text}, {self.constant(name)})")
                else:
                    self.lines.append(f"dict.__setitem__({text}, {self.constant(name)}, {self.expression(value)})")
            return
        text = self.expression(target)
        setter = "setattr" if type(target) is AbstractTensor else "object.__setattr__"
        deleter = "delattr" if type(target) is AbstractTensor else "object.__delattr__"
        for name, value in overlay.writes.items():
            if value is DELETED:
                self.lines.append(f"{deleter}({text}, {self.constant(name)})")
            else:
                self.lines.append(f"{setter}({text}, {self.constant(name)}, {self.expression(value)})")

    # Assembly

    def _surrounded(self, lines: list[str]) -> list[str]:
        """The graph runs under the modes it was traced under; what overrides do is in it already."""
        tracer = self.tracer
        overridden = any(
            tracer.has_torch_function(value) for _, value in tracer.graph.inputs if type(value) is AbstractTensor
        )
        if overridden or tracer.outer_modes:
            lines = [f"with {self.constant(torch._C.DisableTorchFunction)}():", *(f"    {line}" for line in lines)]
        if tracer.inference is not None or tracer.inference_over:
            lines = [f"with {self.constant(torch.inference_mode)}():", *(f"    {line}" for line in lines)]
        return lines

    def _plain_input(self, text: str, row: tuple[Source, Any]) -> str:
        """A tensor of a subclass without its class, whose methods the nodes of the graph must not reach."""
        value = row[1]
        if type(value) is not AbstractTensor or not self.tracer.has_torch_function(value):
            return text
        return f"{self.constant(torch.Tensor.as_subclass)}({text}, {self.constant(torch.Tensor)})"

    def restored_modes(self) -> list[str]:
        """The thread's torch function modes made what the trace left."""
        before, after = self.tracer.outer_modes, self.tracer.function_modes
        same = 0
        while same < min(len(before), len(after)) and before[same] is after[same]:
            same += 1
        pop, push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
        lines = [f"{self.constant(pop)}()"] * (len(before) - same)
        return lines + [f"{self.constant(push)}({self.expression(mode)})" for mode in after[same:]]

    def _future_flags(self) -> int:
        """The `__future__` statements the broken operation is under: `exec` and `compile` go by their caller's."""
        if not self.tracer.frames:
            return 0
        known = (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
        flags = self.tracer.frames[-1].code.co_flags
        return sum(flag for flag in known if flags & flag == flag and flag > 0x10000)

    def assemble(self, graph: Any, inputs: list[str], ending: list[str]) -> tuple[types.FunctionType, str]:
        """The residual function and its text."""
        arguments = [f"a{index}" for index in range(self.local_count)] + [
            f"f{index}" for index in range(len(self.fetches))
        ]
        body: list[str] = []
        if graph is not None:
            call = f"graph({', '.join(map(self._plain_input, inputs, self.tracer.graph.inputs))})"
            if len(self.outputs) > 0:
                outputs = ", ".join(f"g{index}" for index in range(len(self.outputs)))
                call = f"{outputs}, = {call}"
            body += self._surrounded([call, *self.wrapped])
        body += self.lines
        body += ending
        text = f"def residual({', '.join(arguments)}):\n" + "".join(f"    {line}\n" for line in body)
        # Classes that the broken operation makes belong to the module of the code it stands in.
        module = self.tracer.frames[-1].globals.get("__name__") if self.tracer.frames else None
        namespace: dict[str, Any] = {**self.constants, "graph": graph, "__name__": module}
        exec(compile(text, "<stator residual program>", "exec", self._future_flags(), dont_inherit=True), namespace)
        function = namespace["residual"]
        if self.stands_for is not None:
            function.__code__ = standing_for(function.__code__, *self.stands_for)
        return function, (self._legend() if events.wanted("residual") else "") + text

    def _legend(self) -> str:
        """What the names in the text are."""
        known = {f"a{index}": name for index, name in enumerate(self.tracer.tree.local_names[: self.local_count])}
        known |= {name: str(source) for source, name in self.fetch_names.items()}
        known |= {
            name: value.__qualname__
            for name, value in self.constants.items()
            if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) and name[0] == "c"
        }
        named = ", ".join(f"{name} is {meaning}" for name, meaning in known.items() if name[1:].isdigit())
        return f"# {named}\n" if named else ""


def standing_for(code: types.CodeType, user: types.CodeType, line: int) -> types.CodeType:
    """The code of a residual program that makes a call in place of a frame of the program.

    What is called (a logger, say) may ask who calls it: file, line and name are the user's.
    """
    place = encode_locations([(len(code.co_code) >> 1, Location(line, line, None, None))], user.co_firstlineno)
    return code.replace(
        co_filename=user.co_filename,
        co_name=user.co_name,
        co_qualname=user.co_qualname,
        co_firstlineno=user.co_firstlineno,
        co_linetable=place,
    )


def _rebuild_function(builder: ResidualBuilder, value: types.FunctionType) -> str:
    closure = "None"
    if value.__closure__:
        closure = f"({builder.sequence(value.__closure__)})"
    keywords = builder.expression(value.__kwdefaults__)
    defaults = builder.expression(value.__defaults__)
    text = (
        f"make.function({builder.constant(value.__code__)}, {builder.constant(value.__globals__)}, "
        f"{builder.constant(value.__name__)}, {defaults}, {closure}, {keywords}, {builder.constant(value.__module__)})"
    )
    name = builder._named(value, text)
    own = [cell for cell, contents in builder.deferred if contents is value]
    builder.lines += [f"{cell}.cell_contents = {name}" for cell in own]
    builder.deferred = [row for row in builder.deferred if row[1] is not value]
    if value.__qualname__ != value.__code__.co_qualname:
        builder.lines.append(f"{name}.__qualname__ = {builder.constant(value.__qualname__)}")
    if value.__doc__ is not None and value.__doc__ != (value.__code__.co_consts or (None,))[0]:
        builder.lines.append(f"{name}.__doc__ = {builder.constant(value.__doc__)}")
    if value.__annotations__:
        builder.lines.append(f"{name}.__annotations__ = {builder.expression(value.__annotations__)}")
    builder._fill_attributes(name, value)
    return name


def _rebuild_cell(builder: ResidualBuilder, value: types.CellType) -> str:
    if id(value) not in builder.tracer.own_cells:
        source = builder.tracer.cell_sources[id(value)].parent
        assert source is not None
        return builder.fetch(source)
    name = builder._named(value, f"{builder.constant(types.CellType)}()")
    try:
        contents = value.cell_contents
    except ValueError:
        return name
    itself = type(contents) is types.FunctionType and id(contents) in builder.building
    if itself and id(contents) not in builder.names:
        builder.deferred.append((name, contents))  # a function that contains itself: filled in when it is made
    else:
        builder.lines.append(f"{name}.cell_contents = {builder.expression(contents)}")
    return name


def _rebuild_method(builder: ResidualBuilder, value: types.MethodType) -> str:
    if type(value.__self__) is arrays.array_kind():
        return _rebuild_builtin_method(builder, value)
    function, target = builder.expression(value.__func__), builder.expression(value.__self__)
    return builder._named(value, f"{builder.constant(types.MethodType)}({function}, {target})")


def _rebuild_builtin_method(builder: ResidualBuilder, value: Any) -> str:
    owner = value.__self__
    target = builder.expression(owner)
    descriptor = underlying(value, owner)
    if type(descriptor) in BINDING and descriptor.__get__(owner) == value:
        # By name one may find another: a method that overrides it, where the program said `super()`.
        return builder._named(value, f"{builder.constant(descriptor)}.__get__({target})")
    return builder._named(value, f"getattr({target}, {builder.constant(value.__name__)})")


def _rebuild_partial(builder: ResidualBuilder, value: functools.partial[Any]) -> str:
    function = builder.expression(value.func)
    keywords = "".join(f"{builder.constant(key)}: {builder.expression(part)}, " for key, part in value.keywords.items())
    parts = builder.sequence(value.args)
    name = builder._named(value, f"{builder.constant(type(value))}({function}, {parts}**{{{keywords}}})")
    builder._fill_attributes(name, value)
    return name


def _rebuild_set(builder: ResidualBuilder, value: Any) -> str:
    return builder._named(value, f"{builder.constant(type(value))}(({builder.sequence(value)}))")


def _rebuild_deque(builder: ResidualBuilder, value: Any) -> str:
    parts = builder.sequence(value)
    return builder._named(value, f"{builder.constant(collections.deque)}(({parts}), {value.maxlen!r})")


def _rebuild_view(builder: ResidualBuilder, value: Any) -> str:
    method = {"dict_keys": "keys", "dict_values": "values", "dict_items": "items"}[
        type(value).__name__[-12:].lstrip("o")
    ]
    mapping = next(part for part in gc.get_referents(value) if isinstance(part, dict))
    return builder._named(value, f"{builder.expression(mapping)}.{method}()")


def _rebuild_namespace(builder: ResidualBuilder, value: types.SimpleNamespace) -> str:
    name = builder._named(value, f"{builder.constant(types.SimpleNamespace)}()")
    builder._fill_attributes(name, value)
    return name


def _rebuild_super(builder: ResidualBuilder, value: Any) -> str:
    target = builder.expression(value.__self__)
    return builder._named(value, f"{builder.constant(super)}({builder.constant(value.__thisclass__)}, {target})")


def _rebuild_object(builder: ResidualBuilder, value: Any) -> str:
    return builder._named(value, f"{builder.constant(object)}()")


def _rebuild_bytearray(builder: ResidualBuilder, value: bytearray) -> str:
    return builder._named(value, f"{builder.constant(bytearray)}({builder.constant(bytes(value))})")


def _rebuild_traceback(builder: ResidualBuilder, value: types.TracebackType) -> str:
    row = builder.tracer.tracebacks.get(id(value))
    if row is None:
        raise Break("cannot_rebuild", "a traceback")
    return builder._named(value, builder._traceback(row[2]))


def _rebuild_null(builder: ResidualBuilder, value: Any) -> str:
    return builder.constant(value)


def _rebuild_switch(builder: ResidualBuilder, value: Any) -> str:
    raise Break("cannot_rebuild", "a mode that only torch's C code can enter", builder.tracer.born.get(id(value)))


def _rebuild_exception_slot(builder: ResidualBuilder, value: ExceptionSlot) -> str:
    return builder._named(value, f"{builder.constant(ExceptionSlot)}({builder.expression(value.previous)})")


def _rebuild_instance_dict(builder: ResidualBuilder, value: InstanceDict) -> str:
    target = builder.expression(value.target)
    return builder._named(value, f"{builder.constant(object.__getattribute__)}({target}, '__dict__')")


REBUILDERS: dict[type, Any] = {
    InstanceDict: _rebuild_instance_dict,
    types.FunctionType: _rebuild_function,
    types.CellType: _rebuild_cell,
    types.MethodType: _rebuild_method,
    types.BuiltinMethodType: _rebuild_builtin_method,
    types.MethodWrapperType: _rebuild_builtin_method,
    functools.partial: _rebuild_partial,
    set: _rebuild_set,
    frozenset: _rebuild_set,
    collections.deque: _rebuild_deque,
    type({}.keys()): _rebuild_view,
    type({}.values()): _rebuild_view,
    type({}.items()): _rebuild_view,
    types.SimpleNamespace: _rebuild_namespace,
    super: _rebuild_super,
    object: _rebuild_object,
    bytearray: _rebuild_bytearray,
    types.TracebackType: _rebuild_traceback,
    type(NULL): _rebuild_null,
    ExceptionSlot: _rebuild_exception_slot,
    Switch: _rebuild_switch,
    InferenceMode: _rebuild_switch,
}
