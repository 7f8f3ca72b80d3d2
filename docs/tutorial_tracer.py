"""The whole idea of stator in one small file; docs/tutorial-tracer.md walks through it.

`compile(f)` interprets the bytecode of `f`. Tensor operations are recorded into a graph, everything else is computed
while tracing, and what that relied on becomes guards. At an operation that cannot be traced the graph ends: it runs,
the one operation runs in plain Python, and tracing goes on behind it, from the frames as they then stand.

A program is at any moment a list of frames (code, position, locals, stack). That one structure is what is traced from,
what a break leaves, and what the table of compiled pieces is keyed by.
"""

from __future__ import annotations

import dis
import inspect
import operator
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

# -- Frames: where a program is


@dataclass
class Frame:
    """One activation of a function. `pc` indexes the instructions of the code."""

    function: types.FunctionType
    names: dict[str, Any]
    stack: list[Any] = field(default_factory=list)
    pc: int = 0

    @property
    def code(self) -> types.CodeType:
        return self.function.__code__


class Null:
    """What CPython pushes below a callable that is no method."""


class Items:
    """An iterator of ours: it can be looked at, left and entered again, as a C iterator cannot."""

    def __init__(self, items: Any, at: int = 0) -> None:
        self.items, self.at = list(items), at

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]


# -- The plain machine: one method for each instruction, and each operation as Python does it

BINARY = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "@": operator.matmul, "&": operator.and_, "|": operator.or_,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv,
}  # fmt: skip
_decoded: dict[types.CodeType, tuple[list[dis.Instruction], dict[int, int]]] = {}


def decode(code: types.CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    """Instructions, and the index of each offset."""
    if code not in _decoded:
        listed = list(dis.get_instructions(code))
        _decoded[code] = listed, {one.offset: index for index, one in enumerate(listed)}
    return _decoded[code]


def plain_name(name: str) -> str:
    """3.11 has a forward and a backward form of each jump; 3.12 has one."""
    return name.replace("_FORWARD", "").replace("_BACKWARD", "").replace("_NO_INTERRUPT", "")


def is_simple(function: Any) -> bool:
    """Whether each instruction is known here, and exceptions go straight through."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_exceptiontable:
        return False
    suspends = function.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
    return not suspends and all(hasattr(Machine, plain_name(one.opname)) for one in decode(function.__code__)[0])


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
        one = decode(frame.code)[0][frame.pc]
        frame.pc += 1
        getattr(self, plain_name(one.opname))(frame, frame.stack, one)

    # Operations, which the tracer does in its own way

    def load_global(self, frame: Frame, name: str) -> Any:
        space = frame.function.__globals__
        return space[name] if name in space else frame.function.__builtins__[name]

    def load_cell(self, frame: Frame, index: int) -> Any:
        return frame.function.__closure__[index].cell_contents

    def attribute(self, value: Any, name: str) -> Any:
        return getattr(value, name)

    def operate(self, function: Any, *args: Any) -> Any:
        return function(*args)

    def call(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return target(*args, **kwargs)

    def items(self, value: Any) -> Items:
        return value if isinstance(value, Items) else Items(value)

    def truth(self, value: Any) -> bool:
        return bool(value)

    # Instructions: each reads what it needs, does its operation, and only then changes the frame

    def RESUME(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None: ...

    NOP = PRECALL = COPY_FREE_VARS = EXTENDED_ARG = RESUME

    def LOAD_FAST(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        if one.argval not in frame.names:
            raise UnboundLocalError(f"cannot access local variable '{one.argval}'")
        stack.append(frame.names[one.argval])

    LOAD_FAST_CHECK = LOAD_FAST

    def STORE_FAST(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        frame.names[one.argval] = stack.pop()

    def LOAD_CONST(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack.append(one.argval)

    def LOAD_GLOBAL(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        found = self.load_global(frame, one.argval)
        stack.extend([Null, found] if one.arg & 1 else [found])

    def LOAD_DEREF(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack.append(self.load_cell(frame, frame.code.co_freevars.index(one.argval)))

    def LOAD_ATTR(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        method = one.opname == "LOAD_METHOD" or ("LOAD_METHOD" not in dis.opmap and one.arg & 1)
        found = self.attribute(stack[-1], one.argval)
        stack[-1:] = [Null, found] if method else [found]

    LOAD_METHOD = LOAD_ATTR

    def PUSH_NULL(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack.append(Null)

    def KW_NAMES(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        frame.names["named arguments"] = frame.code.co_consts[one.arg]

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
        stack[-2:] = [self.operate(BINARY[one.argrepr], *stack[-2:])]

    COMPARE_OP = BINARY_OP

    def BINARY_SUBSCR(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack[-2:] = [self.operate(operator.getitem, *stack[-2:])]

    def UNARY_NEGATIVE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack[-1] = self.operate(operator.neg, stack[-1])

    def UNARY_NOT(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack[-1] = not self.truth(stack[-1])

    def BUILD_TUPLE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        at = len(stack) - one.arg
        stack[at:] = [tuple(stack[at:]) if one.opname == "BUILD_TUPLE" else stack[at:]]

    BUILD_LIST = BUILD_TUPLE

    def UNPACK_SEQUENCE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        parts = self.items(stack[-1]).items
        if len(parts) != one.arg:
            raise ValueError("wrong number of values to unpack")
        stack[-1:] = reversed(parts)

    def POP_TOP(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack.pop()

    def COPY(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack.append(stack[-one.arg])

    def SWAP(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack[-1], stack[-one.arg] = stack[-one.arg], stack[-1]

    def GET_ITER(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        stack[-1] = self.items(stack[-1])

    def FOR_ITER(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        items, at = stack[-1].items, stack[-1].at
        if at < len(items):
            stack[-1:] = [Items(items, at + 1), items[at]]  # a new one: frames that were saved stay as they were
            return
        stack.pop()
        self.JUMP(frame, stack, one)
        frame.pc += "END_FOR" in dis.opmap  # 3.12 jumps to an END_FOR, whose work is done

    def END_FOR(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        raise AssertionError("FOR_ITER goes past it")

    def JUMP(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        frame.pc = decode(frame.code)[1][one.argval]

    def POP_JUMP_IF_TRUE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        if one.opname.endswith("NONE"):
            taken = (stack[-1] is None) != one.opname.endswith("NOT_NONE")
        else:
            taken = self.truth(stack[-1]) == one.opname.endswith("TRUE")
        stack.pop()
        if taken:
            self.JUMP(frame, stack, one)

    POP_JUMP_IF_FALSE = POP_JUMP_IF_NONE = POP_JUMP_IF_NOT_NONE = POP_JUMP_IF_TRUE

    def RETURN_VALUE(self, frame: Frame, stack: list[Any], one: dis.Instruction) -> None:
        value = one.argval if one.opname == "RETURN_CONST" else stack[-1]
        self.frames.pop()
        if self.frames:
            self.frames[-1].stack.append(value)
        else:
            self.result = value

    RETURN_CONST = RETURN_VALUE


# -- The tracer: tensors are recorded, the rest is computed and guarded


class Break(Exception):
    """This instruction cannot be traced."""


@dataclass(eq=False)
class Abstract:
    """A tensor of the trace: a node of the graph, and a tensor without data that knows shape and dtype."""

    node: torch.fx.Node
    meta: torch.Tensor


# A source says how to reach a value from the frames an entry begins with.
Source = tuple[Any, ...]
ROOTS = {
    "name": lambda frames, depth, name: frames[depth].names[name],
    "stack": lambda frames, depth, index: frames[depth].stack[index],
    "function": lambda frames, depth, _: frames[depth].function,
}


def fetch(source: Source, frames: list[Frame]) -> Any:
    kind, *rest = source
    if kind in ROOTS:
        return ROOTS[kind](frames, *rest)
    parent, key = fetch(rest[0], frames), rest[1]
    return getattr(parent, key) if kind == "attribute" else parent[key]


def facts(value: torch.Tensor) -> tuple[Any, ...]:
    return type(value), value.shape, value.stride(), value.dtype, value.device, value.requires_grad


# What a guard checks: how a value is compared with what was expected.
GUARDS: dict[str, Callable[[Any, Any], bool]] = {
    "tensor": lambda value, expected: isinstance(value, torch.Tensor) and facts(value) == expected,
    "equal": lambda value, expected: type(value) is type(expected) and value == expected,
    "same": lambda value, expected: value is expected,
    "type": lambda value, expected: type(value) is expected,
    "length": lambda value, expected: len(value) == expected,
}
CONSTANTS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size, slice)
FIXED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, type(torch.Tensor.relu))
PURE = (len, range, min, max, abs, int, float, bool, isinstance)


class Tracer(Machine):
    """Runs instructions on values of the trace; leaves with `Break` before anything it cannot."""

    def __init__(self, frames: list[Frame]) -> None:
        self.graph = torch.fx.Graph()
        self.guards: list[tuple[Source, str, Any]] = []
        self.inputs: list[tuple[Source, Abstract]] = []
        self.origin: dict[int, Source] = {}  # id of a value of the user's -> how to reach it
        self.loaded: dict[Any, Any] = {}
        self.kept: list[Any] = []  # ids stay valid while the trace lives
        self.own = [self._copy(depth, frame) for depth, frame in enumerate(frames)]
        super().__init__(self.own)

    def _copy(self, depth: int, frame: Frame) -> Frame:
        names = {name: self.load(value, ("name", depth, name)) for name, value in frame.names.items()}
        stack = [self.load(value, ("stack", depth, index)) for index, value in enumerate(frame.stack)]
        self.load(frame.function, ("function", depth, None))
        return Frame(frame.function, names, stack, frame.pc)

    def load(self, value: Any, source: Source) -> Any:
        """A value of the user's enters the trace: note how to reach it, guard what will be relied on."""
        kind = type(value)
        self.kept.append(value)
        if isinstance(value, torch.Tensor):
            if id(value) not in self.loaded:
                meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                abstract = Abstract(self.graph.placeholder(f"input_{len(self.inputs)}"), meta)
                self.inputs.append((source, abstract))
                self.guards.append((source, "tensor", facts(value)))
                self.loaded[id(value)], self.origin[id(value)] = abstract, source
            else:  # the same tensor by another way: that it stays so is relied on
                self.guards.append((source, "alias", self.origin[id(value)]))
            return self.loaded[id(value)]
        if isinstance(value, CONSTANTS):
            self.guards.append((source, "equal", value))
            return value
        self.origin.setdefault(id(value), source)
        if isinstance(value, FIXED):
            self.guards.append((source, "same", value))
            return value
        self.guards.append((source, "type", kind))
        if kind is tuple:
            copy = tuple(self.load_items(value, source))
        elif kind is Items:
            self.guards.append((("attribute", source, "at"), "equal", value.at))
            copy = Items(self.load_items(value.items, ("attribute", source, "items")), value.at)
        elif kind is types.MethodType:
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

    # What traced programs do

    def load_global(self, frame: Frame, name: str) -> Any:
        space = "__globals__" if name in frame.function.__globals__ else "__builtins__"
        self.load(frame.function, self.origin[id(frame.function)])
        source = ("item", ("attribute", self.origin[id(frame.function)], space), name)
        return self.load(super().load_global(frame, name), source)

    def load_cell(self, frame: Frame, index: int) -> Any:
        cells = ("attribute", self.origin[id(frame.function)], "__closure__")
        return self.load(super().load_cell(frame, index), ("attribute", ("item", cells, index), "cell_contents"))

    def attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, Abstract):
            if name in ("shape", "dtype", "ndim"):
                return getattr(value.meta, name)
            if callable(getattr(torch.Tensor, name, None)):
                return types.MethodType(getattr(torch.Tensor, name), value)
            raise Break(f"tensor attribute {name}")
        source = self.origin.get(id(value))
        if source is None or not isinstance(value, (types.ModuleType, torch.nn.Module, type)):
            raise Break(f"attribute {name} of a {type(value).__name__}")
        return self.load(getattr(value, name), ("attribute", source, name))

    def operate(self, function: Any, *args: Any) -> Any:
        return self.record(function, list(args), {})

    def record(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A tensor operation becomes a node; anything else that only computes is computed."""
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        if not all(isinstance(one, (Abstract, *CONSTANTS)) for one in flat):
            raise Break(f"{function} of user objects")
        tensors = any(isinstance(one, Abstract) for one in flat)
        try:
            result = function(*self._as("meta", args), **self._as("meta", kwargs))
        except Exception as error:  # run it for real: it works there, or it raises there
            raise Break(str(error)) from error
        if not tensors:
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
            if target._forward_hooks or target._forward_pre_hooks:
                raise Break("hooks")
            return self.call(
                types.MethodType(self.load(type(target).forward, self._forward(target)), target), args, kwargs
            )
        if isinstance(target, types.MethodType):
            return self.call(target.__func__, [target.__self__, *args], kwargs)
        module = getattr(target, "__module__", None) or getattr(target, "__objclass__", target).__module__ or ""
        own = any(not isinstance(one, (Abstract, *CONSTANTS, tuple, list)) for one in (*args, *kwargs.values()))
        if target in PURE or (module.startswith("torch") and not own) or target in vars(torch._C._nn).values():
            return self.record(target, args, kwargs)
        if not is_simple(target) or id(target) not in self.origin:
            raise Break(f"call of {getattr(target, '__name__', target)}")
        frame = enter(target, args, kwargs)
        self.frames.append(frame)
        return Null

    def _forward(self, module: torch.nn.Module) -> Source:
        source = self.origin[id(module)]
        self.guards += [
            (("attribute", source, hooks), "length", 0) for hooks in ("_forward_hooks", "_forward_pre_hooks")
        ]
        return ("attribute", ("attribute", source, "__class__"), "forward")

    def items(self, value: Any) -> Items:
        if type(value) is Items:
            return value
        if type(value) not in (tuple, list, range):
            raise Break(f"iteration over a {type(value).__name__}")
        if type(value) is list and id(value) in self.origin:  # one of the user's is looked at where it is used
            return Items(self.load_items(value, self.origin[id(value)]))
        return Items(value)

    def truth(self, value: Any) -> bool:
        if not isinstance(value, (*CONSTANTS, tuple)):
            raise Break(f"truth of a {type(value).__name__}")
        return bool(value)


# -- Residual programs and entries: what is left of a trace


class Entry:
    """A compiled piece: guards, a graph, and how the frames behind it are made from its results."""

    def __init__(self, frames: list[Frame], backend: Callable[..., Any]) -> None:
        tracer = Tracer(frames)
        self.reason = ""
        while tracer.result is Null:
            saved = [Frame(one.function, dict(one.names), list(one.stack), one.pc) for one in tracer.frames]
            try:
                tracer.step()
            except Exception as error:  # a break, or an error of the program: plain Python meets it at the same place
                self.reason, tracer.frames = str(error) or type(error).__name__, saved
                break
        self.guards = tracer.guards
        self.sources = [source for source, _ in tracer.inputs]
        self.inputs = {id(abstract): source for source, abstract in tracer.inputs}
        self.origin, self.kept = tracer.origin, tracer.kept
        self.outputs: list[Abstract] = []
        # One recipe for each value that lives on; a value met twice is one value.
        self.recipes: dict[int, tuple[Any, ...]] = {}
        self.returned = self.recipe(tracer.result) if not self.reason else None
        self.frames = [self._frame(one) for one in tracer.frames] if self.reason else []
        tracer.graph.output(tuple(one.node for one in self.outputs))
        self.module = torch.fx.GraphModule(torch.nn.Module(), tracer.graph)
        self.run_graph = backend(self.module, [one.meta for _, one in tracer.inputs]) if self.outputs else None

    def _frame(self, one: Frame) -> tuple[int, dict[str, int], list[int], int]:
        names = {name: self.recipe(value) for name, value in one.names.items()}
        return self.recipe(one.function), names, [self.recipe(value) for value in one.stack], one.pc

    def recipe(self, value: Any) -> int:
        """The number of a recipe that makes `value` out of the frames at entry and the results of the graph."""
        if id(value) not in self.recipes:
            self.kept.append(value)
            self.recipes[id(value)] = self._recipe(value)
        return id(value)

    def _recipe(self, value: Any) -> tuple[Any, ...]:
        if id(value) in self.inputs:
            return "source", self.inputs[id(value)]
        if isinstance(value, Abstract):
            self.outputs.append(value)
            return "output", len(self.outputs) - 1
        if id(value) in self.origin:
            return "source", self.origin[id(value)]
        if type(value) in (tuple, list):
            return "sequence", type(value), [self.recipe(part) for part in value]
        if type(value) is Items:
            return "items", self.recipe(value.items), value.at
        if type(value) is types.MethodType:
            return "method", self.recipe(value.__func__), self.recipe(value.__self__)
        return "constant", value

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
        results = self.run_graph(*(fetch(source, frames) for source in self.sources)) if self.run_graph else ()
        made: dict[int, Any] = {}

        def make(number: int) -> Any:
            if number not in made:
                kind, *rest = self.recipes[number]
                if kind == "source":
                    made[number] = fetch(rest[0], frames)
                elif kind == "sequence":
                    made[number] = rest[0]([make(part) for part in rest[1]])
                elif kind == "items":
                    made[number] = Items(make(rest[0]), rest[1])
                elif kind == "method":
                    made[number] = types.MethodType(make(rest[0]), make(rest[1]))
                else:
                    made[number] = results[rest[0]] if kind == "output" else rest[0]
            return made[number]

        behind = [
            Frame(make(function), {name: make(one) for name, one in names.items()}, [make(one) for one in stack], pc)
            for function, names, stack, pc in self.frames
        ]
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
        place = tuple((frame.code, frame.pc, len(frame.stack), tuple(frame.names)) for frame in frames)
        known = self.entries.setdefault(place, [])
        for entry in known:
            if entry.matches(frames):
                return entry
        known.append(Entry(frames, self.backend))
        return known[-1]


def compile(function: Any = None, *, backend: Callable[..., Any] = lambda module, examples: module) -> Any:
    """Compile a function; `backend` takes a graph and example inputs, and returns a callable."""
    if function is None:
        return lambda function: Compiled(function, backend)
    return Compiled(function, backend)
