"""Where a value comes from: a tree of sources, with the guards hung on its nodes.

Contract. A `Source` says how a later call reaches the value again: a root, and a step from parent to child. Asking
a node twice for the same step gives the same node, so shared prefixes are one node and the tree *is* the guard tree:
the capture hangs `Guard`s on nodes, `guards/` compiles the tree to native instructions (each node that leads
to a guard or a fetch is loaded once) and explains misses from the same data. No step runs user code.

Nothing here is a Python lambda; everything but the objects in `CONST` roots and `IS` guards is plain data.

    root steps          value
    LOCAL  index        the index-th bound argument of the entry (see guards/layout in docs/layout.md)
    CELL   index        contents of the index-th closure cell of the function being called
    FUNCTION            the function object being called
    CONST  object       an object the entry holds on to (a module's globals dict, a class)
    STATE               the interpreter's and torch's global modes
    steps
    ATTR   name         instance `__dict__`[name], no descriptor consulted
    SLOT   name         through the member or getset descriptor of the value's (guarded) builtin or slotted type
    DICT                the instance `__dict__` itself
    INDEX  i            list or tuple item i (subclasses too, by their C storage)
    KEY    key          dict value for a constant key (subclasses too, by their C storage)
    DICT_KEY i          the i-th key of a dict
    TYPE                type(value)
    LOOKUP name         what the MRO of the value, a class, holds under name (no descriptor called)
    CONTENTS            contents of a cell object
    REFERENT            what a weak reference points to, None once that is gone
    SIZE/STRIDE dim, OFFSET    integers of a tensor
    GRAD                a tensor's `.grad`
    FROM_NUMPY          the tensor over a NumPy array's memory
    FUNCTION_MODE i     of STATE: the i-th torch function mode of the thread

Thread safety: a tree belongs to one trace, then is read only.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from stator.events import Location

_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_WRITTEN = (str, int, float, bool, bytes, complex, type(None))
ROOTS = frozenset({"LOCAL", "CELL", "FUNCTION", "CONST", "STATE"})
STEPS = frozenset(
    {
        "ATTR", "SLOT", "DICT", "INDEX", "KEY", "DICT_KEY", "TYPE", "LOOKUP", "CONTENTS",
        "REFERENT", "SIZE", "STRIDE", "OFFSET", "GRAD", "FROM_NUMPY", "FUNCTION_MODE",
    }
)  # fmt: skip

# kind -> what is expected, and when it holds for the node's value.
GUARD_KINDS: dict[str, str] = {
    "TYPE_IS": "expected: a type; type(value) is expected",
    "IS": "expected: an object; value is expected (None, booleans, functions, classes, modules, enum members)",
    "IS_NOT": "expected: an object; value is not expected (a missing-argument sentinel, None)",
    "EQUALS": "expected: int, float, complex, str, bytes, or tuples, frozensets, slices of these, torch.Size, "
    "dtype-like constants; same exact type and equal, floats bit by bit",
    "LENGTH": "expected: int; length of a list, tuple, dict, set, deque, str or bytes by its C storage",
    "KEYS": "expected: tuple; the dict's keys in order are equal to these constants (EQUALS-like, or IS for objects)",
    "HAS_KEY": "expected: constant; the dict has the key",
    "LACKS_KEY": "expected: constant; the dict lacks the key",
    "MEMBERS": "expected: frozenset; the set's members equal these constants",
    "LACKS_ATTR": "expected: name; the instance `__dict__` (if any) lacks it",
    "LOOKUP_ABSENT": "expected: name; no class in the MRO of the value, a class, has it",
    "TENSOR": "expected: TensorExpectation",
    "MODULE_CALL": "expected: None; calling the nn.Module goes straight to its class's forward: no hooks of its own, "
    "no `forward` or `_compiled_call_impl` or `__call__` in its instance dict",
    "CODE_IS": "expected: a code object; the value is a Python function with that code",
    "SAME": "expected: another Source; the two values are one object",
    "DIFFERENT": "expected: tuple of other Sources; this value is none of these objects",
    "MODES": "expected: ModesExpectation; on the STATE root",
    "SIZES": "expected: SizeProgram over other nodes (see sizes/); a size expression holds",
    "RANGE": "expected: (low, high); an integer lies within, None for unbounded",
    "ITERATOR": "expected: a type; a live iterator of that exact kind, whatever its position",
}


@dataclass(frozen=True, slots=True)
class TensorExpectation:
    """What a TENSOR guard expects. A `None` size or stride is free; `strides=None` frees all of them."""

    kind: type
    dtype: Any
    device: Any
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    layout: Any
    dispatch_keys: int | None = None  # the raw key set, where the native core can read it
    is_inference: bool = False
    is_conj: bool = False
    is_neg: bool = False
    storage_offset: int | None = None  # None: free


@dataclass(frozen=True, slots=True)
class ModesExpectation:
    """Global state a trace read or depends on. `None` means: not looked at."""

    grad_enabled: bool | None = None
    inference_mode: bool | None = None
    autocast: tuple[tuple[str, bool, Any], ...] | None = None  # (device type, enabled, dtype), cache flag last
    default_dtype: Any = None
    default_device: Any = None
    deterministic: tuple[bool, bool] | None = None  # (enabled, warn only)
    torch_function_modes: int | None = None  # depth of the mode stack
    torch_dispatch_modes: int | None = None
    torch_function_enabled: bool | None = None
    torch_function_off: bool | None = None  # for modes, too


@dataclass(frozen=True, slots=True)
class Guard:
    """One assumption: `kind` (a row of GUARD_KINDS), what is expected, and the user's line that cared."""

    source: Source
    kind: str
    expected: Any
    location: Location | None = None


def _text(key: Any) -> str:
    """A key as written, if writing it runs no code of the user's."""
    return repr(key) if type(key) in _WRITTEN else f"<{type(key).__name__}>"


class Source:
    """A node of the tree. Made by `SourceTree` roots and by `child`, never directly."""

    __slots__ = ("children", "guards", "key", "parent", "step", "tree")

    def __init__(self, tree: SourceTree, parent: Source | None, step: str, key: Any) -> None:
        self.tree = tree
        self.parent = parent
        self.step = step
        self.key = key
        self.children: dict[Any, Source] = {}
        self.guards: dict[Any, Guard] = {}

    def child(self, step: str, key: Any = None) -> Source:
        """The node one step further."""
        handle = (step, type(key), key)
        try:
            node = self.children.get(handle)
        except TypeError:  # an unhashable key is told apart by identity
            handle = (step, type(key), id(key))
            node = self.children.get(handle)
        if node is None:
            node = self.children[handle] = Source(self.tree, self, step, key)
        return node

    def guard(self, kind: str, expected: Any, location: Location | None = None) -> None:
        """Hang a guard here; the same kind and expectation twice is one guard."""
        try:
            handle: Any = (kind, type(expected), expected)
            hash(handle)
        except TypeError:
            handle = (kind, id(expected))
        if handle not in self.guards:
            self.guards[handle] = Guard(self, kind, expected, location)

    def path(self) -> tuple[tuple[str, Any], ...]:
        """Steps from the root, the structural name of this source."""
        steps: list[tuple[str, Any]] = []
        node: Source | None = self
        while node is not None:
            steps.append((node.step, node.key))
            node = node.parent
        return tuple(reversed(steps))

    def is_variable(self) -> bool:
        """Whether a name in the program stands for it, not an expression."""
        return str(self).isidentifier()

    def is_global(self) -> bool:
        """Whether the program reaches it by a global name."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node.step == "CONST"

    def __str__(self) -> str:
        base = "" if self.parent is None else str(self.parent)
        return self.tree.describe_step(base, self.step, self.key)

    __repr__ = __str__


_CELL = "the cell of "
_STEP_FORMS: dict[str, str] = {
    "ATTR": "{base}.{key}",
    "SLOT": "{base}.{key}",
    "DICT": "{base}.__dict__",
    "INDEX": "{base}[{key!r}]",
    "KEY": "{base}[{key!r}]",
    "DICT_KEY": "list({base})[{key}]",
    "TYPE": "type({base})",
    "LOOKUP": "{base}.{key}",
    "CONTENTS": "{base}.cell_contents",
    "REFERENT": "{base}()",
    "SIZE": "{base}.size({key})",
    "STRIDE": "{base}.stride({key})",
    "OFFSET": "{base}.storage_offset()",
    "GRAD": "{base}.grad",
    "FROM_NUMPY": "{base}",
    "FUNCTION_MODE": "torch function mode {key}",
}


class SourceTree:
    """All sources of one trace.

    `local_names[i]` names the i-th LOCAL, `cell_names[i]` the i-th CELL; `aliases` are what people call sources that
    a wrapper's signature hides: `args[0]` of a module's call is the `x` of its `forward`.
    """

    def __init__(
        self,
        local_names: tuple[str, ...] = (),
        cell_names: tuple[str, ...] = (),
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.local_names = local_names
        self.cell_names = cell_names
        self.aliases = aliases
        self.roots: dict[Any, Source] = {}
        self.const_names: dict[int, str] = {}

    def root(self, step: str, key: Any = None) -> Source:
        """The root node of that kind."""
        handle = (step, id(key) if step == "CONST" else key)
        node = self.roots.get(handle)
        if node is None:
            node = self.roots[handle] = Source(self, None, step, key)
        return node

    def local(self, index: int) -> Source:
        return self.root("LOCAL", index)

    def cell(self, index: int) -> Source:
        return self.root("CELL", index)

    def const(self, value: Any, name: str = "") -> Source:
        """A root that is one object; `name` is how people call it (a module's globals: `G`)."""
        if name:
            self.const_names[id(value)] = name
        return self.root("CONST", value)

    def state(self) -> Source:
        return self.root("STATE")

    def nodes(self) -> Iterator[Source]:
        """All nodes, parents before children."""
        pending = list(reversed(self.roots.values()))
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children.values()))

    def guards(self) -> Iterator[Guard]:
        """All guards, in tree order."""
        for node in self.nodes():
            yield from node.guards.values()

    def adopt(self, other: SourceTree) -> None:
        """Assume what `other`, a tree over the same arguments, assumes as well."""
        own: dict[Source, Source] = {}
        for node in other.nodes():
            parent = node.parent
            own[node] = self.root(node.step, node.key) if parent is None else own[parent].child(node.step, node.key)
        for guard in other.guards():
            expected = guard.expected
            if guard.kind == "SAME":
                expected = own[expected]
            elif guard.kind == "DIFFERENT":
                expected = tuple(own[one] for one in expected)
            own[guard.source].guard(guard.kind, expected, guard.location)

    def describe_step(self, base: str, step: str, key: Any) -> str:
        """How people read a source: `self.layers[0].weight`, `G.scale`, `x.size(1)`."""
        if step == "LOCAL":
            return self.local_names[key] if key < len(self.local_names) else f"argument {key}"
        if step == "CELL":
            return self.cell_names[key] if key < len(self.cell_names) else f"closure cell {key}"
        if step == "FUNCTION":
            return "the function"
        if step == "STATE":
            return "global state"
        if step == "CONST":
            name = self.const_names.get(id(key))
            if name is None and issubclass(type(key), _NAMED):  # nothing else is asked: an object's own getattr may run
                name = getattr(key, "__qualname__", None) or getattr(key, "__name__", None)
            return name or type(key).__name__
        if step == "KEY" and base in ("G", "builtins"):
            return str(key)
        if base == "the function.__closure__" and step == "INDEX" and key < len(self.cell_names):
            return f"{_CELL}{self.cell_names[key]}"
        if step == "CONTENTS" and base.startswith(_CELL):
            return base.removeprefix(_CELL)
        text = _STEP_FORMS[step].format(base=base, key=key)
        return self.aliases.get(text, text) if self.aliases else text
