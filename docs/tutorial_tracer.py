"""The whole idea of stator in one small file; docs/tutorial-tracer.md walks through it.

`compile(f)` interprets the bytecode of `f`. Tensor operations are recorded into a graph, everything else is computed
while tracing, and what that relied on becomes guards. At an operation that cannot be traced the graph ends: it runs,
the one operation runs in plain Python, and tracing goes on behind it, from the frames as they then stand.

A program is at any moment a list of frames (code, position, locals, stack). That one structure is what is traced from,
what a break leaves, and what the table of compiled pieces is keyed by.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

# -- Frames: where a program is


@dataclass
class Frame:
    """One activation of a function. `pc` indexes the instructions of its code."""

    function: Any
    names: dict[str, Any]
    stack: list[Any] = field(default_factory=list)
    pc: int = 0

    def map(self, change: Callable[[Any], Any]) -> Frame:
        """This frame with each value changed into another."""
        names = {name: change(value) for name, value in self.names.items()}
        return Frame(change(self.function), names, [change(value) for value in self.stack], self.pc)


class Null:
    """What CPython pushes below a callable that is no method."""


@dataclass(eq=False)
class Items:
    """The iterator of a `for`: it can be looked at, left and entered again, as a C iterator cannot."""

    items: list[Any]
    at: int = 0


# -- The plain machine: one method for each instruction that does more than shuffle the stack

OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "@": operator.matmul, "&": operator.and_, "|": operator.or_,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv,
    "BINARY_SUBSCR": operator.getitem, "UNARY_NEGATIVE": operator.neg,
}  # fmt: skip
SHUFFLES: dict[str, Callable[[list[Any], dis.Instruction], Any]] = {
    "POP_TOP": lambda stack, one: stack.pop(),
    "COPY": lambda stack, one: stack.append(stack[-one.arg]),
    "PUSH_NULL": lambda stack, one: stack.append(Null),
    "LOAD_CONST": lambda stack, one: stack.append(one.argval),
    **dict.fromkeys(("RESUME", "NOP", "PRECALL", "COPY_FREE_VARS", "EXTENDED_ARG", "END_FOR"), lambda stack, one: None),
}
FORMS = re.compile("_FORWARD|_BACKWARD|_NO_INTERRUPT")  # of a jump, on 3.11; 3.12 has one of each


@functools.cache
def decode(code: types.CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    """Instructions, and the index of each offset."""
    listed = [one._replace(opname=FORMS.sub("", one.opname)) for one in dis.get_instructions(code)]
    return listed, {one.offset: index for index, one in enumerate(listed)}


def is_simple(function: Any) -> bool:
    """Whether each instruction is known here, and exceptions go straight through."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_exceptiontable:
        return False
    names = {one.opname for one in decode(function.__code__)[0]}
    return all(name in SHUFFLES or hasattr(Machine, name) for name in names)


def enter(function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Frame:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return Frame(function, dict(bound.arguments))


class Machine:
    """Runs instructions on real objects. Breaks are run by this."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.result: Any = Null

    def step(self) -> None:
        frame = self.frames[-1]
        one = decode(frame.function.__code__)[0][frame.pc]
        frame.pc += 1
        if one.opname in SHUFFLES:
            SHUFFLES[one.opname](frame.stack, one)
        else:
            getattr(self, one.opname)(frame, frame.stack, one)

    # Operations, which the tracer does in its own way
    def call(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return target(*args, **kwargs)

    def items(self, value: Any) -> Items:
        return value if isinstance(value, Items) else Items(list(value))

    attribute = staticmethod(getattr)
    item = staticmethod(operator.getitem)
    truth = staticmethod(bool)

    # Instructions: each reads what it needs, does its operation, and only then changes the frame
    def LOAD_FAST(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        if one.argval not in frame.names:
            raise UnboundLocalError(f"cannot access local variable '{one.argval}'")
        stack.append(frame.names[one.argval])

    def STORE_FAST(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        frame.names[one.argval] = stack.pop()

    def LOAD_GLOBAL(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        function, name = frame.function, one.argval
        space = "__globals__" if name in function.__globals__ else "__builtins__"
        found = self.item(self.attribute(function, space), name)
        stack.extend([Null, found] if one.arg & 1 else [found])

    def LOAD_DEREF(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        cells = self.attribute(frame.function, "__closure__")
        cell = self.item(cells, frame.function.__code__.co_freevars.index(one.argval))
        stack.append(self.attribute(cell, "cell_contents"))

    def LOAD_ATTR(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        method = one.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and one.arg & 1)
        found = self.attribute(stack[-1], one.argval)
        stack[-1:] = [Null, found] if method else [found]

    def KW_NAMES(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        frame.names["named arguments"] = frame.function.__code__.co_consts[one.arg]

    def CALL(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        values = stack[-(one.arg + 2) :]
        target, values = (values[1], values[2:]) if values[0] is Null else (values[0], values[1:])
        named = frame.names.get("named arguments", ())
        split = len(values) - len(named)
        result = self.call(target, values[:split], dict(zip(named, values[split:], strict=True)))
        frame.names.pop("named arguments", None)
        del stack[-(one.arg + 2) :]
        if result is not Null:  # else a frame was entered, and pushes its result when it is left
            stack.append(result)

    def BINARY_OP(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        count = 1 if one.opname.startswith("UNARY") else 2
        stack[-count:] = [self.call(OPERATIONS[one.argrepr or one.opname], stack[-count:], {})]

    def BUILD_TUPLE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        at = len(stack) - one.arg
        stack[at:] = [tuple(stack[at:]) if one.opname == "BUILD_TUPLE" else stack[at:]]

    def UNPACK_SEQUENCE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        parts = self.items(stack[-1]).items
        if len(parts) != one.arg:
            raise ValueError("wrong number of values to unpack")
        stack[-1:] = reversed(parts)

    def SWAP(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack[-1], stack[-one.arg] = stack[-one.arg], stack[-1]

    def GET_ITER(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack[-1] = self.items(stack[-1])

    def FOR_ITER(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        items, at = stack[-1].items, stack[-1].at
        if at < len(items):
            stack[-1:] = [Items(items, at + 1), items[at]]  # a new one: frames that were saved stay as they were
        else:
            stack.pop()
            self.JUMP(frame, stack, one)

    def JUMP(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        frame.pc = decode(frame.function.__code__)[1][one.argval]

    def POP_JUMP_IF_TRUE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        if one.opname.endswith("NONE"):
            taken = (stack[-1] is None) != one.opname.endswith("NOT_NONE")
        else:
            taken = self.truth(stack[-1]) == one.opname.endswith("TRUE")
        stack.pop()
        if taken:
            self.JUMP(frame, stack, one)

    def RETURN_VALUE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        value = one.argval if one.opname == "RETURN_CONST" else stack[-1]
        self.frames.pop()
        if self.frames:
            self.frames[-1].stack.append(value)
        else:
            self.result = value

    LOAD_FAST_CHECK, LOAD_METHOD, BUILD_LIST, RETURN_CONST = LOAD_FAST, LOAD_ATTR, BUILD_TUPLE, RETURN_VALUE
    COMPARE_OP = BINARY_SUBSCR = UNARY_NEGATIVE = BINARY_OP
    POP_JUMP_IF_FALSE = POP_JUMP_IF_NONE = POP_JUMP_IF_NOT_NONE = POP_JUMP_IF_TRUE


# -- The tracer: tensors are recorded, the rest is computed and guarded


class Break(Exception):
    """This instruction cannot be traced."""


@dataclass(eq=False)
class Abstract:
    """A tensor of the trace: a node of the graph, and a tensor without data that knows shape and dtype."""

    node: torch.fx.Node
    meta: torch.Tensor


# A source says how to reach a value from the frames an entry begins with: a frame, then attributes and items.
Source = tuple[Any, ...]


def fetch(source: Source, frames: list[Frame]) -> Any:
    kind, parent, *key = source
    if kind == "frame":
        return frames[parent]
    value = fetch(parent, frames)
    return getattr(value, *key) if kind == "attribute" else value[key[0]]


def facts(value: torch.Tensor) -> tuple[Any, ...]:
    return type(value), value.shape, value.stride(), value.dtype, value.device, value.requires_grad


# What a guard checks: how a value is compared with what was expected.
GUARDS: dict[str, Callable[[Any, Any], bool]] = {
    "tensor": lambda value, expected: isinstance(value, torch.Tensor) and facts(value) == expected,
    "equal": lambda value, expected: type(value) is type(expected) and value == expected,
    "type": lambda value, expected: type(value) is expected,
    "length": lambda value, expected: len(value) == expected,
}
CONSTANTS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size, slice)
FIXED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, type(torch.Tensor.relu))
READABLE = (types.ModuleType, types.FunctionType, types.CellType, torch.nn.Module, type)
PURE = (len, range, min, max, abs, int, float, bool, isinstance, *OPERATIONS.values())


class Tracer(Machine):
    """Runs instructions on values of the trace; leaves with `Break` before anything it cannot."""

    def __init__(self, frames: list[Frame]) -> None:
        self.graph = torch.fx.Graph()
        self.guards: list[tuple[Source, str, Any]] = []
        self.inputs: list[tuple[Source, Abstract]] = []
        self.origin: dict[int, Source] = {}  # id of a value of the user's -> how to reach it
        self.loaded: dict[Any, Any] = {}
        self.kept: list[Any] = []  # ids stay valid while the trace lives
        super().__init__([self.copy(frame, ("frame", depth)) for depth, frame in enumerate(frames)])

    def copy(self, frame: Frame, source: Source) -> Frame:
        names = ("attribute", source, "names")
        loaded = {name: self.load(value, ("item", names, name)) for name, value in frame.names.items()}
        stack = self.load_items(frame.stack, ("attribute", source, "stack"))
        return Frame(self.load(frame.function, ("attribute", source, "function")), loaded, stack, frame.pc)

    def load(self, value: Any, source: Source) -> Any:
        """A value of the user's enters the trace: note how to reach it, guard what will be relied on."""
        self.kept.append(value)
        if isinstance(value, torch.Tensor):
            if id(value) not in self.loaded:
                meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                abstract = Abstract(self.graph.placeholder(f"input_{len(self.inputs)}"), meta)
                self.inputs.append((source, abstract))
                self.guards.append((source, "tensor", facts(value)))
                self.loaded[id(value)] = abstract
                self.origin[id(value)] = self.origin[id(abstract)] = source
            else:  # the same tensor by another way: that it stays so is relied on
                self.guards.append((source, "alias", self.origin[id(value)]))
            return self.loaded[id(value)]
        if not isinstance(value, CONSTANTS):
            self.origin.setdefault(id(value), source)
        if isinstance(value, (*CONSTANTS, *FIXED)):  # functions, modules and classes are equal when they are the same
            self.guards.append((source, "equal", value))
            return value
        self.guards.append((source, "type", type(value)))
        if type(value) is tuple:
            copy = tuple(self.load_items(value, source))
        elif type(value) is Items:
            self.guards.append((("attribute", source, "at"), "equal", value.at))
            copy = Items(self.load_items(value.items, ("attribute", source, "items")), value.at)
        elif type(value) is types.MethodType:
            parts = (("attribute", source, name) for name in ("__func__", "__self__"))
            copy = types.MethodType(*(self.load(getattr(value, part[2]), part) for part in parts))
        else:
            return value
        self.origin[id(copy)] = source  # it is handed out as the user's own object, not as this copy
        self.kept.append(copy)
        return copy

    def load_items(self, values: Any, source: Source) -> list[Any]:
        self.guards.append((source, "length", len(values)))
        return [self.load(part, ("item", source, index)) for index, part in enumerate(values)]

    def item(self, value: Any, key: Any) -> Any:
        return self.load(value[key], ("item", self.origin[id(value)], key))

    def attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, Abstract):
            if name in ("shape", "dtype", "ndim"):
                return getattr(value.meta, name)
            if callable(getattr(torch.Tensor, name, None)):
                return types.MethodType(getattr(torch.Tensor, name), value)
            raise Break(f"tensor attribute {name}")
        source = self.origin.get(id(value))
        if source is None or not isinstance(value, READABLE):
            raise Break(f"attribute {name} of a {type(value).__name__}")
        return self.load(getattr(value, name), ("attribute", source, name))

    def record(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A tensor operation becomes a node; anything else that only computes is computed."""
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        if not all(isinstance(one, (Abstract, *CONSTANTS)) for one in flat):
            raise Break(f"{function} of user objects")
        if isinstance(args[0], list | dict) and (id(args[0]) in self.origin or function is operator.iadd):
            raise Break(f"{function.__name__} of a {type(args[0]).__name__} that others may see")
        result = function(*self._as("meta", args), **self._as("meta", kwargs))
        if not any(isinstance(one, Abstract) for one in flat):
            return result
        if not isinstance(result, torch.Tensor):
            raise Break(f"{function} gives a {type(result).__name__}")
        node = self.graph.call_function(function, tuple(self._as("node", args)), self._as("node", kwargs))
        return Abstract(node, result)

    def _as(self, part: str, values: Any) -> Any:
        leaf = lambda one: getattr(one, part) if isinstance(one, Abstract) else one  # noqa: E731
        return torch.utils._pytree.tree_map(leaf, values)

    def call(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(target, torch.nn.Module):
            forward = ("attribute", ("attribute", self.origin[id(target)], "__class__"), "forward")
            for hooks in ("_forward_hooks", "_forward_pre_hooks"):
                self.guards.append((("attribute", self.origin[id(target)], hooks), "length", 0))
                if getattr(target, hooks):
                    raise Break("hooks")
            return self.call(self.load(type(target).forward, forward), [target, *args], kwargs)
        if isinstance(target, types.MethodType):
            return self.call(target.__func__, [target.__self__, *args], kwargs)
        module = getattr(target, "__module__", None) or getattr(target, "__objclass__", target).__module__ or ""
        own = any(not isinstance(one, (Abstract, *CONSTANTS, tuple, list)) for one in (*args, *kwargs.values()))
        if target in PURE or (module.startswith("torch") and not own) or target in vars(torch._C._nn).values():
            return self.record(target, args, kwargs)
        if not is_simple(target) or id(target) not in self.origin:
            raise Break(f"call of {getattr(target, '__name__', target)}")
        self.frames.append(enter(target, args, kwargs))
        return Null

    def items(self, value: Any) -> Items:
        if type(value) is Items:
            return value
        if type(value) not in (tuple, list, range):
            raise Break(f"iteration over a {type(value).__name__}")
        users = type(value) is list and id(value) in self.origin  # its items are looked at where they are used
        return Items(self.load_items(value, self.origin[id(value)]) if users else list(value))

    def truth(self, value: Any) -> bool:
        if not isinstance(value, (*CONSTANTS, tuple)):
            raise Break(f"truth of a {type(value).__name__}")
        return bool(value)


# -- Residual programs and entries: what is left of a trace

# Makes a value out of the frames at entry, the results of the graph, and other values by their numbers.
Recipe = Callable[[list[Frame], Any, Callable[[int], Any]], Any]


class Entry:
    """A compiled piece: guards, a graph, and how the frames behind it are made from its results."""

    def __init__(self, frames: list[Frame], backend: Callable[..., Any]) -> None:
        tracer = Tracer(frames)
        self.reason = ""
        while tracer.result is Null:
            saved = [one.map(lambda value: value) for one in tracer.frames]
            try:
                tracer.step()
            except Exception as error:  # a break, or an error of the program: plain Python meets it at the same place
                self.reason, tracer.frames = str(error) or type(error).__name__, saved
                break
        self.guards = tracer.guards
        self.sources = [source for source, _ in tracer.inputs]
        self.origin, self.kept = tracer.origin, tracer.kept
        self.outputs: list[Abstract] = []
        self.recipes: dict[int, Recipe] = {}  # one for each value that lives on: a value met twice is one value
        self.returned = self.recipe(tracer.result) if not self.reason else None
        self.frames = [one.map(self.recipe) for one in tracer.frames] if self.reason else []
        tracer.graph.output(tuple(one.node for one in self.outputs))
        self.module = torch.fx.GraphModule(torch.nn.Module(), tracer.graph)
        works = any(node.op == "call_function" for node in tracer.graph.nodes)
        self.run_graph = backend(self.module, [one.meta for _, one in tracer.inputs]) if works else self.module

    def recipe(self, value: Any) -> int:
        """The number of a recipe that makes `value` out of the frames at entry and the results of the graph."""
        if id(value) not in self.recipes:
            self.kept.append(value)
            self.recipes[id(value)] = self._recipe(value)
        return id(value)

    def _recipe(self, value: Any) -> Recipe:
        if id(value) in self.origin:
            source = self.origin[id(value)]
            return lambda frames, results, make: fetch(source, frames)
        if isinstance(value, Abstract):
            self.outputs.append(value)
            at = len(self.outputs) - 1
            return lambda frames, results, make: results[at]
        if type(value) in (tuple, list):
            kind, parts = type(value), [self.recipe(part) for part in value]
            return lambda frames, results, make: kind(map(make, parts))
        if type(value) is Items:
            items, reached = self.recipe(value.items), value.at
            return lambda frames, results, make: Items(make(items), reached)
        if type(value) is types.MethodType:
            function, owner = self.recipe(value.__func__), self.recipe(value.__self__)
            return lambda frames, results, make: types.MethodType(make(function), make(owner))
        return lambda frames, results, make: value

    def matches(self, frames: list[Frame]) -> bool:
        try:
            for source, kind, expected in self.guards:
                value = fetch(source, frames)
                if not (value is fetch(expected, frames) if kind == "alias" else GUARDS[kind](value, expected)):
                    return False
            return True
        except (KeyError, IndexError, AttributeError, TypeError):
            return False

    def run(self, frames: list[Frame]) -> tuple[list[Frame], Any]:
        """The frames behind this piece, or the result."""
        results = self.run_graph(*(fetch(source, frames) for source in self.sources))

        @functools.cache
        def make(number: int) -> Any:
            return self.recipes[number](frames, results, make)

        behind = [one.map(make) for one in self.frames]
        return behind, make(self.returned) if self.returned is not None else None


# -- The dispatcher


class Compiled:
    """Stands for a function. Entries are kept by where the program is; the right one is the one whose guards hold."""

    def __init__(self, function: types.FunctionType, backend: Callable[..., Any]) -> None:
        self.function, self.backend = function, backend
        self.entries: dict[Any, list[Entry]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_simple(self.function):
            return self.function(*args, **kwargs)
        frames = [enter(self.function, list(args), kwargs)]
        while True:
            entry = self._entry(frames)
            frames, result = entry.run(frames)
            if not frames:
                return result
            machine = Machine(frames)
            machine.step()  # the one operation that could not be traced
            if not machine.frames:
                return machine.result

    def _entry(self, frames: list[Frame]) -> Entry:
        place = tuple((one.function.__code__, one.pc, len(one.stack), tuple(one.names)) for one in frames)
        known = self.entries.setdefault(place, [])
        for entry in known:
            if entry.matches(frames):
                return entry
        known.append(Entry(frames, self.backend))
        return known[-1]


def compile(function: Any = None, *, backend: Callable[..., Any] = lambda module, examples: module) -> Any:
    """Compile a function; `backend` takes a graph and example inputs, and returns a callable."""
    return functools.partial(Compiled, backend=backend) if function is None else Compiled(function, backend)
