"""From a tree of sources to a native guard program.

Contract. `compile_guards(tree, fetches)` returns a `core.GuardProgram` that holds exactly when `reference.evaluate`
does. Every node that leads to a guard or a fetch is loaded once. What an entry assumed about a user's object by
identity is held weakly where the object allows it, so that entries do not keep it alive: when it dies, the entry goes.

Each group of nodes (an argument; the function and its cells; constants) is split into a stable part, which the machine
may vouch for by facts recorded earlier, and a volatile part, which runs each time; `_native/core/machine.c` says why.
What the native machine cannot decide exactly is left to the Python reference (the slow ways), never approximated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from stator._native import CALIBRATION, core
from stator._native.calibrate import DEVICE_TYPES, SCALAR_TYPES
from stator.guards.modes import modes_match, read_like
from stator.guards.plan import guard_order, is_deferred, roots_in_order
from stator.guards.reference import tensor_matches
from stator.guards.size_program import HIGHEST, LOWEST, SizeProgram
from stator.guards.storage import follow
from stator.guards.weak import is_held_weakly
from stator.values.source import Guard, ModesExpectation, Source, SourceTree, TensorExpectation

OPCODES: dict[str, int] = core.OPCODES
TYPED, VERSIONED, HELD, WEAK = 1, 2, 4, 8
ALL_KEYS = 2**64 - 1
ROOT_NONE, ROOT_FUNCTION = -1, -2

# Steps whose answer can be vouched for by facts, if their parent's can.
STABLE_STEPS = frozenset({"ATTR", "DICT", "INDEX", "KEY", "DICT_KEY", "TYPE", "LOOKUP", "CONTENTS", "REFERENT"})
VOLATILE_KINDS = frozenset({"TENSOR", "MEMBERS", "MODES"})
INTEGER_STEPS = {"SIZE": 0, "STRIDE": 1, "OFFSET": 2}
INTEGER_KINDS = frozenset({"EQUALS", "RANGE", "TYPE_IS", "SIZES"})
# Instructions that read the dict in their source register, and so record its version.
DICT_READERS = frozenset({"KEY", "DICT_KEY", "KEYS", "HAS_KEY", "LACKS_KEY"})
# Instructions whose object is a key.
KEY_READERS = frozenset({"KEY", "HAS_KEY", "LACKS_KEY"})
# Instructions that record the type of their source register.
TYPE_READERS = DICT_READERS | {
    "TYPE_IS",
    "DICT",
    "INDEX",
    "TYPE",
    "CONTENTS",
    "REFERENT",
    "MEMBER",
    "LENGTH",
    "MODULE_CALL",
    "CODE_IS",
}
# Groups of fewer stable instructions are run rather than remembered.
WORTH_REMEMBERING = 4

GRAD_GETTER = vars(torch._C.TensorBase)["grad"]
# Fields of a ModesExpectation that the native machine compares as they are.
PLAIN_MODES = (
    "grad_enabled", "inference_mode", "torch_function_enabled", "torch_function_off", "torch_function_modes",
    "torch_dispatch_modes",
)  # fmt: skip
SINGLETONS = (None, True, False, Ellipsis, NotImplemented)


class _Group:
    """Instructions over one root (or several that change together)."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.nodes: list[Source] = []
        self.stable: list[tuple[Any, ...]] = []
        self.volatile: list[tuple[Any, ...]] = []
        self.saved = (0, 0)
        self.typed: set[int] = set()
        self.versioned: set[int] = set()

    @property
    def memoized(self) -> bool:
        return len(self.stable) >= WORTH_REMEMBERING


class _Compiler:
    def __init__(self, tree: SourceTree, fetches: Sequence[Source]) -> None:
        self.tree = tree
        self.fetches = fetches
        self.registers: dict[Source, int] = {}
        self.dict_registers: dict[Source, int] = {}
        self.integers: dict[Source, int] = {}
        self.register_count = 0
        self.tensors: list[Any] = []
        self.tensor_numbers: dict[TensorExpectation, int] = {}
        self.modes: list[Any] = []
        self.sizes: list[Any] = []
        self.ranges: list[Any] = []
        self.deferred: list[Guard] = []
        self.named: set[Source] = set()  # nodes that a guard of another node looks at
        self.compared: set[Source] = set()  # nodes whose identity a guard compares with another's
        self._find_named_nodes()
        self.used = self._used_nodes()
        self.stable: set[Source] = set()
        self.held: set[Source] = set()

    # ---- which nodes, in which groups ----

    def _find_named_nodes(self) -> None:
        for guard in self.tree.guards():
            if guard.kind == "SIZES":
                self.named.update(guard.expected.sources())
            elif is_deferred(guard):
                others = (guard.expected,) if guard.kind == "SAME" else guard.expected
                self.named.update(others)
                self.compared.update((guard.source, *others))

    def _used_nodes(self) -> set[Source]:
        used: set[Source] = set()
        pending = [node for node in self.tree.nodes() if node.guards]
        pending += [*self.fetches, *self.named]
        for leaf in pending:
            node: Source | None = leaf
            while node is not None and node not in used:
                used.add(node)
                node = node.parent
        return used

    def _walk(self, root: Source) -> Iterable[Source]:
        pending = [root]
        while pending:
            node = pending.pop()
            if node in self.used:
                yield node
                pending.extend(reversed(node.children.values()))

    def _groups(self) -> list[_Group]:
        groups: list[_Group] = []
        shared: dict[int, _Group] = {}
        for root in roots_in_order(self.tree):
            if root not in self.used:
                continue
            if root.step == "LOCAL":
                group = _Group(root.key)
                groups.append(group)
            else:
                key = ROOT_FUNCTION if root.step in ("CELL", "FUNCTION") else ROOT_NONE
                handle = -3 if root.step == "STATE" else key
                if handle not in shared:
                    groups.append(shared.setdefault(handle, _Group(key)))
                group = shared[handle]
            group.nodes.extend(self._walk(root))
        return groups

    # ---- properties of nodes ----

    def _type_of(self, node: Source) -> type | None:
        """The type a guard promises for a node."""
        for guard in node.guards.values():
            if guard.kind == "TYPE_IS":
                return guard.expected  # type: ignore[no-any-return]
        return None

    def _is_field(self, node: Source) -> bool:
        kind = self._type_of(node.parent) if node.parent is not None else None
        return kind is not None and bool(core.is_field(kind, node.key))

    def _classify(self, node: Source) -> None:
        parent = node.parent
        if parent is None:
            if node.step != "STATE":
                self.stable.add(node)
            if node.step == "CONST":
                self.held.add(node)
            return
        if parent in self.stable and (node.step in STABLE_STEPS or (node.step == "SLOT" and self._is_field(node))):
            self.stable.add(node)
        if node.step in ("ATTR", "KEY", "DICT_KEY", "LOOKUP"):
            self.held.add(node)
        if node.step == "INDEX" and parent in self.held and self._type_of(parent) is tuple:
            self.held.add(node)

    def _is_integer(self, node: Source) -> bool:
        """Whether a size, stride or offset can stay a C integer."""
        return (
            node.step in INTEGER_STEPS
            and node not in self.compared
            and not any(child in self.used for child in node.children.values())
            and all(guard.kind in INTEGER_KINDS for guard in node.guards.values())
        )

    def _is_needed_later(self, node: Source, fetched: set[Source]) -> bool:
        """Whether a stable node is looked at outside the stable part."""
        return (
            node in fetched
            or node in self.named
            or any(is_deferred(guard) or guard.kind in VOLATILE_KINDS for guard in node.guards.values())
            or any(child in self.used and child not in self.stable for child in node.children.values())
        )

    # ---- registers ----

    def _register(self, table: dict[Source, int], node: Source) -> None:
        table[node] = self.register_count
        self.register_count += 1

    def _assign_registers(self, group: _Group) -> None:
        fetched = set(self.fetches)
        later = [node for node in group.nodes if node in self.stable and self._is_needed_later(node, fetched)]
        start = self.register_count
        for node in later:
            self._register(self.registers, node)
        group.saved = (start, self.register_count)
        for node in group.nodes:
            if self._is_integer(node):
                self.integers[node] = len(self.integers)
            elif node not in self.registers and node.step != "STATE":
                self._register(self.registers, node)
            if any(child in self.used and child.step == "ATTR" for child in node.children.values()):
                self._register(self.dict_registers, node)

    # ---- instructions ----

    def _emit(
        self,
        group: _Group,
        stable: bool,
        name: str,
        *,
        destination: int = -1,
        source: int = -1,
        number: int = 0,
        flags: int = 0,
        value: Any = None,
    ) -> None:
        if stable and source >= 0:
            if source in group.typed:
                flags |= TYPED
            if source in group.versioned:
                flags |= VERSIONED
            if name in TYPE_READERS:
                group.typed.add(source)
            if name in DICT_READERS:
                group.versioned.add(source)
        if name in KEY_READERS and is_held_weakly(value):
            flags |= WEAK
        elif name == "KEYS":
            value = [(key, is_held_weakly(key)) for key in value]
        row = (OPCODES[name], destination, source, number, flags, value)
        (group.stable if stable else group.volatile).append(row)

    def _emit_root(self, group: _Group, node: Source) -> None:
        destination = self.registers[node]
        if node.step == "CONST":
            name = "CONST_WEAK" if is_held_weakly(node.key) else "CONST"
            self._emit(group, True, name, destination=destination, value=node.key)
        else:
            self._emit(group, True, node.step, destination=destination, number=node.key or 0)

    def _emit_load(self, group: _Group, node: Source) -> None:
        parent = node.parent
        if parent is None:
            if node.step != "STATE":
                self._emit_root(group, node)
            return
        stable = node in self.stable
        source = self.registers.get(parent, -1)  # none for global state
        flags = HELD if parent in self.held else 0
        step, key = node.step, node.key
        if node in self.integers:
            self._emit(
                group, False, "INTEGER", destination=self.integers[node], source=source, flags=INTEGER_STEPS[step],
                number=key or 0, value=(step, key, torch.Tensor),
            )  # fmt: skip
            return
        destination = self.registers[node]
        if step in INTEGER_STEPS or step in ("FROM_NUMPY", "FUNCTION_MODE"):
            self._emit(group, False, "FOLLOW", destination=destination, source=source, value=(step, key))
        elif step == "GRAD":
            self._emit(group, False, "GETTER", destination=destination, source=source, value=GRAD_GETTER)
        elif step == "SLOT":
            name = "MEMBER" if stable or self._is_field(node) else "GETTER"
            self._emit(group, stable, name, destination=destination, source=source, flags=flags, value=key)
        elif step == "ATTR":
            self._emit(group, stable, "KEY", destination=destination, source=self.dict_registers[parent], value=key)
        elif step in ("INDEX", "DICT_KEY"):
            if key < 0:
                raise ValueError(f"{step} counts from the start: {node}")
            self._emit(group, stable, step, destination=destination, source=source, number=key, flags=flags)
        else:
            self._emit(group, stable, step, destination=destination, source=source, flags=flags, value=key)

    def _emit_guard(self, group: _Group, guard: Guard) -> None:
        node = guard.source
        stable = node in self.stable and guard.kind not in VOLATILE_KINDS
        if guard.kind == "MODES":
            self.modes.append(_modes_row(guard.expected))
            self._emit(group, False, "MODES", number=len(self.modes) - 1)
        elif node in self.integers:
            self._emit_integer_guard(group, guard)
        else:
            fields = _GUARDS[guard.kind](self, guard)
            flags = HELD if node in self.held else 0
            self._emit(
                group, stable, fields.pop("name", guard.kind), source=self.registers[node], flags=flags, **fields
            )

    def _emit_integer_guard(self, group: _Group, guard: Guard) -> None:
        expected, register = guard.expected, self.integers[guard.source]
        if guard.kind == "RANGE":
            self._emit(group, False, "INTEGER_RANGE", destination=register, number=self._range(expected))
        elif guard.kind == "EQUALS" and type(expected) is int and LOWEST <= expected <= HIGHEST:
            self._emit(group, False, "INTEGER_IS", destination=register, number=expected)
        elif not (guard.kind == "TYPE_IS" and expected is int):
            self._emit(group, False, "FAIL")

    def _range(self, bounds: tuple[int | None, int | None]) -> int:
        for bound in bounds:
            if bound is not None and not LOWEST <= bound <= HIGHEST:
                raise ValueError(f"the bound {bound} does not fit 64 bits")
        self.ranges.append(bounds)
        return len(self.ranges) - 1

    def _emit_group(self, group: _Group) -> None:
        for node in group.nodes:
            self._emit_load(group, node)
            for guard in guard_order(node):
                if is_deferred(guard):
                    self.deferred.append(guard)
                else:
                    self._emit_guard(group, guard)
            if node in self.dict_registers:
                self._emit(
                    group, node in self.stable, "DICT", destination=self.dict_registers[node],
                    source=self.registers[node],
                )  # fmt: skip

    def _emit_deferred(self, group: _Group) -> None:
        for guard in self.deferred:
            if guard.kind == "SIZES":
                self.sizes.append(self._size_row(guard.expected))
                self._emit(group, False, "SIZES", number=len(self.sizes) - 1)
                continue
            others = (guard.expected,) if guard.kind == "SAME" else guard.expected
            source = self.registers[guard.source]
            for other in others:
                self._emit(group, False, guard.kind, source=source, destination=self.registers[other])

    def _size_row(self, program: SizeProgram) -> tuple[tuple[str, int], ...]:
        row: list[tuple[str, int]] = []
        for operation in program.operations:
            name = operation[0]
            if name == "load":
                node = operation[1]
                integer = node in self.integers
                row.append(("load_integer", self.integers[node]) if integer else ("load_object", self.registers[node]))
            else:
                row.append((name, operation[1] if name == "const" else 0))
        return tuple(row)

    # ---- the whole ----

    def compile(self) -> core.GuardProgram:
        groups = self._groups()
        for group in groups:
            for node in group.nodes:
                self._classify(node)
        for group in groups:
            self._assign_registers(group)
        for group in groups:
            self._emit_group(group)
        last = _Group(ROOT_NONE)
        self._emit_deferred(last)
        instructions: list[tuple[Any, ...]] = []
        rows: list[tuple[int, ...]] = []
        for group in [*groups, last]:
            start = len(instructions)
            middle = start + len(group.stable)
            instructions += group.stable
            instructions += group.volatile
            if group.memoized:
                rows.append((start, middle, len(instructions), *group.saved, group.root, True))
            elif rows and not rows[-1][-1]:  # nothing to remember on either side: one run of instructions
                rows[-1] = (rows[-1][0], rows[-1][1], len(instructions), 0, 0, ROOT_NONE, False)
            else:
                rows.append((start, start, len(instructions), 0, 0, ROOT_NONE, False))
        return core.GuardProgram(
            registers=self.register_count,
            integers=len(self.integers),
            instructions=instructions,
            groups=rows,
            fetches=[~self.integers[node] if node in self.integers else self.registers[node] for node in self.fetches],
            tensors=self.tensors,
            modes=self.modes,
            sizes=self.sizes,
            ranges=self.ranges,
        )

    def tensor(self, expected: TensorExpectation) -> int:
        """The number of a tensor check; equal expectations share one, which keeps them in the processor's cache."""
        number = self.tensor_numbers.setdefault(expected, len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(_tensor_row(expected))
        return number


def _is_fields(_: _Compiler, guard: Guard) -> dict[str, Any]:
    return {"name": "IS_WEAK" if is_held_weakly(guard.expected) else "IS", "value": guard.expected}


def _equals_fields(_: _Compiler, guard: Guard) -> dict[str, Any]:
    if any(guard.expected is single for single in SINGLETONS):
        return {"name": "IS", "value": guard.expected}
    return {"value": guard.expected}


# kind -> the fields of its instruction.
_GUARDS: dict[str, Callable[[_Compiler, Guard], dict[str, Any]]] = {
    "IS": _is_fields,
    "EQUALS": _equals_fields,
    "LENGTH": lambda _, guard: {"number": guard.expected},
    "TENSOR": lambda compiler, guard: {"number": compiler.tensor(guard.expected)},
    "MODULE_CALL": lambda _, guard: {"value": torch.nn.Module},
    "RANGE": lambda compiler, guard: {"number": compiler._range(guard.expected)},
    "ITERATOR": lambda _, guard: {"name": "TYPE_IS", "value": guard.expected},
    "MEMBERS": lambda _, guard: {"value": frozenset(guard.expected)},
    "KEYS": lambda _, guard: {"value": tuple(guard.expected)},
} | {
    kind: lambda _, guard: {"value": guard.expected}
    for kind in ("TYPE_IS", "IS_NOT", "HAS_KEY", "LACKS_KEY", "LACKS_ATTR", "LOOKUP_ABSENT", "CODE_IS")
}


def _tensor_row(expected: TensorExpectation) -> tuple[Any, ...]:
    """What tensor_check_init in tensor.c reads."""
    masks = CALIBRATION.masks
    plain = masks.get("plain", 0)
    conjugate, negative, inplace = (masks.get(name, 0) for name in ("conjugate", "negative", "inplace"))
    traits = (conjugate if expected.is_conj else 0) | (negative if expected.is_neg else 0)
    traits |= 0 if expected.is_inference else inplace
    if expected.dispatch_keys is None:
        # Any plain key set with the wanted traits.
        mask, keys = ALL_KEYS & ~plain | conjugate | negative | inplace, traits
        consistent = True
    else:
        mask, keys = ALL_KEYS, expected.dispatch_keys
        consistent = keys & ~plain == 0 and keys & (conjugate | negative | inplace) == traits
    dtype = CALIBRATION.dtype_codes.get(expected.dtype, -1)
    device_type = DEVICE_TYPES.get(expected.device.type, -1)
    index = expected.device.index
    fast = consistent and expected.layout is torch.strided and dtype >= 0 and device_type >= 0 and bool(plain)
    return (
        expected, expected.kind, fast, mask, keys, dtype, device_type, -1 if index is None else index,
        expected.requires_grad, tuple(expected.sizes), expected.strides, expected.storage_offset,
    )  # fmt: skip


def _modes_row(expected: ModesExpectation) -> tuple[Any, dict[str, Any], bool]:
    """What modes_check_init in modes.c reads."""
    slow = False
    codes: dict[str, Any] = {name: getattr(expected, name) for name in PLAIN_MODES}
    if expected.default_dtype is not None:
        codes["default_dtype"] = SCALAR_TYPES.get(expected.default_dtype)
        slow = slow or codes["default_dtype"] is None
    if expected.default_device is not None:
        codes["cpu_default_device"] = expected.default_device == torch.device("cpu")
    if expected.deterministic is not None:
        codes["deterministic"], codes["warn_only"] = expected.deterministic
    if expected.autocast is not None:
        *devices, last = expected.autocast
        known = last[0] == "cache" and all(row[0] in DEVICE_TYPES and row[2] in SCALAR_TYPES for row in devices)
        if known:
            rows = tuple((DEVICE_TYPES[kind], enabled, SCALAR_TYPES[dtype]) for kind, enabled, dtype in devices)
            codes["autocast"] = (last[1], rows)
        slow = slow or not known
    return expected, codes, slow


def _modes_hold(expected: ModesExpectation) -> bool:
    return modes_match(expected, read_like(expected)) is None


core.set_slow_ways(follow, tensor_matches, _modes_hold)


def compile_guards(tree: SourceTree, fetches: Sequence[Source] = ()) -> core.GuardProgram:
    """The native program of a guard tree; `check` returns the values of `fetches` when every guard holds."""
    return _Compiler(tree, fetches).compile()
