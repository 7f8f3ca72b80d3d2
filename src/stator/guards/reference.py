"""What every guard means, in Python: the specification the native machine is tested against.

Contract. `evaluate(tree, fetches, function, arguments)` answers as `GuardProgram.check` does: None if a guard fails,
else the tuple of fetched values. `failures` yields a `Miss` for each guard that does not hold, in the order of the
plan, so that the first is what the native machine stumbled over. No user code runs (see `storage`).

It is slow and has no state; misses are explained with it and capture checks its own guards by it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.events import Location
from stator.guards.constants import is_value, same_constant, same_members
from stator.guards.modes import FIELDS, modes_match, read_like
from stator.guards.plan import guard_order, is_deferred, nodes_in_order
from stator.guards.storage import (
    Unreachable,
    find_key,
    follow,
    follow_root,
    instance_dict,
    isinstance_exact,
    keys_in_order,
    length,
    lookup,
    plain_tensor,
)
from stator.guards.weak import Weak, expected_now, strongly
from stator.values.source import Guard, Source, SourceTree, TensorExpectation

HOOK_DICTS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
CALL_ATTRIBUTES = ("forward", "_call_impl", "__call__")
Values = dict[Source, Any]


@dataclass(frozen=True, slots=True)
class Miss:
    """One assumption that does not hold: where, what was expected, what is there, and the user's line that cared."""

    source: str
    kind: str
    expected: str
    actual: str
    location: Location | None

    def __str__(self) -> str:
        where = f"  (assumed at {self.location})" if self.location is not None else ""
        return f"{self.source}: expected {self.expected}, got {self.actual}{where}"


def short(value: Any) -> str:
    """A short text for a value, running no user code: plain constants as written, all else by its type."""
    if type(value) is Weak:
        return value.text
    if isinstance_exact(value, type):
        return f"{type.__dict__['__module__'].__get__(value)}.{type.__dict__['__qualname__'].__get__(value)}"
    if is_value(value) or type(value) in (torch.dtype, torch.layout, torch.memory_format):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if type(value) is types.FunctionType:
        return f"function {value.__qualname__}"
    if type(value) is types.CodeType:
        return f"code of {value.co_qualname}"
    if isinstance_exact(value, torch.Tensor):
        return describe_tensor(value)
    for kind in (list, tuple, dict, set, frozenset):
        if isinstance_exact(value, kind):
            return f"{type(value).__name__} of {length(value)}"
    return f"{type(value).__name__} object"


def describe_tensor(value: Any) -> str:
    """`float32[2, 3] on cpu, requires_grad`."""
    try:
        facts = tensor_facts(value)
    except Unreachable as error:
        return f"{type(value).__name__} ({error})"
    return describe_expectation(facts)


def describe_expectation(facts: TensorExpectation) -> str:
    sizes = ", ".join("*" if size is None else str(size) for size in facts.sizes)
    parts = [f"{str(facts.dtype).removeprefix('torch.')}[{sizes}] on {facts.device}"]
    if facts.kind is not torch.Tensor:
        parts.insert(0, facts.kind.__name__)
    if facts.strides is not None:
        parts.append("strides (" + ", ".join("*" if item is None else str(item) for item in facts.strides) + ")")
    parts += [name for name in ("requires_grad", "is_inference", "is_conj", "is_neg") if getattr(facts, name)]
    if facts.layout is not torch.strided:
        parts.append(str(facts.layout))
    return ", ".join(parts)


def tensor_facts(value: Any) -> TensorExpectation:
    """All a TENSOR guard can look at, read through torch itself; `Unreachable` where there is no integer geometry."""
    tensor = plain_tensor(value)
    try:
        with torch._C.DisableTorchFunction():
            sizes = tuple(tensor.size())
            strided = tensor.layout is torch.strided
            strides = tuple(tensor.stride()) if strided else None
            offset: Any = tensor.storage_offset() if strided else None
            integers = (*sizes, *(strides or ()), *(() if offset is None else (offset,)))
            if any(type(number) is not int for number in integers):
                raise Unreachable("symbolic sizes")
            return TensorExpectation(
                kind=type(tensor),
                dtype=tensor.dtype,
                device=tensor.device,
                requires_grad=tensor.requires_grad,
                sizes=sizes,
                strides=strides,
                layout=tensor.layout,
                dispatch_keys=torch._C._dispatch_keys(tensor).raw_repr(),
                is_inference=tensor.is_inference(),
                is_conj=tensor.is_conj(),
                is_neg=tensor.is_neg(),
                storage_offset=offset,
            )
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise Unreachable(str(error).split("\n", 1)[0]) from None


def _fits(actual: tuple[int | None, ...] | None, expected: tuple[int | None, ...] | None) -> bool:
    if expected is None:
        return True
    if actual is None or len(actual) != len(expected):
        return False
    return all(wanted is None or wanted == found for found, wanted in zip(actual, expected, strict=True))


def tensor_matches(expected: TensorExpectation, value: Any) -> bool:
    """The TENSOR guard."""
    if type(value) is not expected.kind:
        return False
    try:
        facts = tensor_facts(value)
    except Unreachable:
        return False
    same = ("dtype", "device", "requires_grad", "layout", "is_inference", "is_conj", "is_neg")
    return (
        all(getattr(facts, name) == getattr(expected, name) for name in same)
        and (expected.dispatch_keys is None or facts.dispatch_keys == expected.dispatch_keys)
        and (expected.storage_offset is None or facts.storage_offset == expected.storage_offset)
        and _fits(facts.sizes, expected.sizes)
        and _fits(facts.strides, expected.strides)
    )


def _has_key(value: Any, key: Any) -> bool:
    if not isinstance_exact(value, dict):
        raise Unreachable(f"a {type(value).__name__} is no dict")
    try:
        find_key(value, key)
    except Unreachable:
        return False
    return True


def _keys(value: Any, expected: tuple[Any, ...]) -> bool:
    if not isinstance_exact(value, dict) or dict.__len__(value) != len(expected):
        return False
    return all(map(same_constant, keys_in_order(value), expected))


def _members(value: Any, expected: frozenset[Any]) -> bool:
    kind: Any = next((kind for kind in (set, frozenset) if isinstance_exact(value, kind)), None)
    return kind is not None and same_members(kind.__iter__(value), expected)


def _lacks_attr(value: Any, name: str) -> bool:
    namespace = instance_dict(value)
    return namespace is None or not _has_key(namespace, name)


def _lookup_absent(value: Any, name: str) -> bool:
    if not isinstance_exact(value, type):
        return False
    try:
        lookup(value, name)
    except Unreachable:
        return True
    return False


def _module_call(value: Any, _: None) -> bool:
    namespace = instance_dict(value)
    if namespace is None or not isinstance_exact(value, torch.nn.Module):
        return False
    if any(_has_key(namespace, name) for name in CALL_ATTRIBUTES):
        return False
    hooks: list[Any] = [find_key(namespace, name) if _has_key(namespace, name) else None for name in HOOK_DICTS]
    return all(isinstance_exact(entry, dict) and dict.__len__(entry) == 0 for entry in hooks)


def _code_is(value: Any, code: types.CodeType) -> bool:
    return type(value) is types.FunctionType and value.__code__ is code


def _in_range(value: Any, bounds: tuple[int | None, int | None]) -> bool:
    low, high = bounds
    return type(value) is int and (low is None or low <= value) and (high is None or value <= high)


# kind -> whether it holds for a value (kinds that look at other nodes are in `_holds`).
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "TYPE_IS": lambda value, expected: type(value) is expected,
    "IS": lambda value, expected: value is expected,
    "IS_NOT": lambda value, expected: value is not expected,
    "EQUALS": same_constant,
    "LENGTH": lambda value, expected: length(value) == expected,
    "KEYS": _keys,
    "HAS_KEY": _has_key,
    "LACKS_KEY": lambda value, expected: not _has_key(value, expected),
    "MEMBERS": _members,
    "LACKS_ATTR": _lacks_attr,
    "LOOKUP_ABSENT": _lookup_absent,
    "TENSOR": lambda value, expected: tensor_matches(expected, value),
    "MODULE_CALL": _module_call,
    "CODE_IS": _code_is,
    "MODES": lambda _, expected: modes_match(expected, read_like(expected)) is None,
    "RANGE": _in_range,
    "ITERATOR": lambda value, expected: type(value) is expected,
}


class Evaluation:
    """One evaluation: the values of nodes, each followed once."""

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.values: Values = {}
        self.unreachable: dict[Source, str] = {}

    def value(self, node: Source) -> Any:
        """The value of a node; `Unreachable` if a step on the way leads nowhere."""
        if node in self.values:
            return self.values[node]
        if node in self.unreachable:
            raise Unreachable(self.unreachable[node])
        try:
            if node.parent is None:
                value = follow_root(node.step, strongly(node.key), self.function, self.arguments)
            else:
                value = follow(node.step, strongly(node.key), self.value(node.parent))
        except Unreachable as error:
            self.unreachable[node] = str(error)
            raise
        self.values[node] = value
        return value

    def holds(self, guard: Guard) -> bool:
        """Whether one guard holds; False where its node is unreachable."""
        try:
            value = self.value(guard.source)
            if guard.kind == "SAME":
                return value is self.value(guard.expected)
            if guard.kind == "DIFFERENT":
                return all(value is not self.value(other) for other in guard.expected)
            if guard.kind == "SIZES":
                program = guard.expected
                return bool(program.holds({source: self.value(source) for source in program.sources()}))
            return HOLDS[guard.kind](value, expected_now(guard))
        except Unreachable:
            return False


def evaluate(
    tree: SourceTree, fetches: Sequence[Source], function: Any, arguments: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """What `GuardProgram.check` answers."""
    evaluation = Evaluation(function, arguments)
    try:
        if not all(evaluation.holds(guard) for guard in tree.guards()):
            return None
        return tuple(evaluation.value(source) for source in fetches)
    except Unreachable:
        return None


def describe_expected(guard: Guard) -> str:
    """The expectation of a guard as people read it."""
    expected = guard.expected
    if guard.kind == "TENSOR":
        return describe_expectation(expected)
    if guard.kind == "MODES":
        wanted = [f"{name}={getattr(expected, name)}" for name in FIELDS if getattr(expected, name) is not None]
        return ", ".join(wanted)
    if guard.kind in ("SAME", "SIZES"):
        return str(expected)
    if guard.kind == "DIFFERENT":
        return "none of " + ", ".join(map(str, expected))
    forms = {
        "TYPE_IS": "type {}", "ITERATOR": "a live {}", "IS_NOT": "not {}", "LENGTH": "length {}", "KEYS": "keys {}",
        "HAS_KEY": "key {}", "LACKS_KEY": "no key {}", "MEMBERS": "members {}", "LACKS_ATTR": "no own attribute {}",
        "LOOKUP_ABSENT": "no class attribute {}", "MODULE_CALL": "a module without hooks or own forward",
        "CODE_IS": "{}", "RANGE": "within {}",
    }  # fmt: skip
    if guard.kind in ("KEYS", "MEMBERS"):
        parts = ", ".join(map(short, expected))
        return forms[guard.kind].format(parts if len(parts) <= 200 else parts[:197] + "...")
    return forms.get(guard.kind, "{}").format(short(expected))


def describe_actual(guard: Guard, evaluation: Evaluation) -> str:
    """What is there instead."""
    if guard.kind == "MODES":
        actual = read_like(guard.expected)
        wrong = [
            name
            for name in FIELDS
            if getattr(guard.expected, name) is not None and getattr(guard.expected, name) != getattr(actual, name)
        ]
        return ", ".join(f"{name}={getattr(actual, name)}" for name in wrong)
    try:
        value = evaluation.value(guard.source)
        if guard.kind == "SIZES":
            sources = guard.expected.sources()
            return ", ".join(f"{source}={short(evaluation.value(source))}" for source in sources)
        if guard.kind in ("TYPE_IS", "ITERATOR"):
            return f"type {short(type(value))}"
        if guard.kind == "LENGTH":
            return f"length {length(value)}"
        if guard.kind == "KEYS" and isinstance_exact(value, dict):
            text = ", ".join(map(short, keys_in_order(value)))
            return "keys " + (text if len(text) <= 200 else text[:197] + "...")
        if guard.kind == "CODE_IS" and type(value) is types.FunctionType:
            return short(value.__code__)
    except Unreachable as error:
        return f"nothing ({error})"
    return short(value)


def _miss(guard: Guard, evaluation: Evaluation) -> Miss:
    source = str(guard.source)
    if guard.kind == "SIZES":
        source = ", ".join(dict.fromkeys(map(str, guard.expected.sources())))
    return Miss(source, guard.kind, describe_expected(guard), describe_actual(guard, evaluation), guard.location)


def failures(
    tree: SourceTree, function: Any, arguments: tuple[Any, ...], fetches: Sequence[Source] = ()
) -> Iterator[Miss]:
    """Every guard that does not hold, in the order the native machine meets them; then fetches that lead nowhere."""
    evaluation = Evaluation(function, arguments)
    deferred: list[Guard] = []
    for node in nodes_in_order(tree):
        for guard in guard_order(node):
            if is_deferred(guard):
                deferred.append(guard)
            elif not evaluation.holds(guard):
                yield _miss(guard, evaluation)
    for guard in deferred:
        if not evaluation.holds(guard):
            yield _miss(guard, evaluation)
    for source in fetches:
        try:
            evaluation.value(source)
        except Unreachable as error:
            yield Miss(str(source), "FETCH", "a value to fetch", f"nothing ({error})", None)


def explain_miss(
    tree: SourceTree, function: Any, arguments: tuple[Any, ...], fetches: Sequence[Source] = ()
) -> Miss | None:
    """The first guard that does not hold, None if all do."""
    return next(failures(tree, function, arguments, fetches), None)


def all_misses(
    tree: SourceTree, function: Any, arguments: tuple[Any, ...], fetches: Sequence[Source] = ()
) -> list[Miss]:
    """Every guard that does not hold."""
    return list(failures(tree, function, arguments, fetches))
