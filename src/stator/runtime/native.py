"""From a plan to the native program, or to the reference execution where the native runtime cannot be used.

Contract. `compile_plan` returns a callable for a settled plan. The native runtime is connected to libtorch once per
process: the torch version must be one it was written for, every function it needs must be found, tensors must keep
their handle where the samples show it, and a small program must give what the reference execution gives. If any of this
fails, all programs of the process run by reference, with reason `native_runtime_unavailable`, reported once.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from stator import config
from stator.events import emit
from stator.exc import StatorError
from stator.runtime import integers
from stator.runtime.externs import DISPATCHER, PYTHON, Codes, Encoder, Route
from stator.runtime.integers import INPUT, Integer, IntegerTable, IntExpr, as_expression
from stator.runtime.plan import (
    HOLDS_INTEGER,
    SLOT_KINDS,
    Allocate,
    Expect,
    Extern,
    Item,
    Kernel,
    Memory,
    Plan,
    Release,
    Slot,
    Step,
    View,
    leaves,
    results,
)
from stator.runtime.reference import EXCLUDED_KEYS, ReferenceProgram, as_expected
from stator.runtime.text import describe, note, operator_name

LOWEST_TORCH, HIGHEST_TORCH = (2, 11), (2, 13)
KIND_CODES = {kind: code for code, kind in enumerate(SLOT_KINDS)}

# Kinds of steps and outputs: the order of StepKind and OutputKind in _native/program/program.h.
EVALUATE, ALLOCATE, VIEW, KERNEL, CALL, ITEM, RELEASE, EXPECT = range(8)
OUTPUT_NONE, OUTPUT_SLOT, OUTPUT_INTEGER = range(3)

NEEDS_DATA, NEEDS_HANDLE, NEEDS_PLAIN, NEEDS_ELEMENT = 1, 2, 4, 8

# Kernels of less work than this many threads' shares (see `Kernel.grain`) are not worth letting other threads run.
LIGHT = 1


class NotNative(Exception):
    """The native runtime cannot run a plan, and why."""


class Runtime:
    """The connected extension module."""

    def __init__(self, module: ModuleType, codes: Codes) -> None:
        self.module = module
        self.codes = codes


_lock = threading.Lock()
_runtime: Runtime | None = None
_failure = ""


def runtime() -> Runtime | None:
    """The native runtime, connected on first use; None if it cannot be used."""
    global _runtime, _failure
    if _runtime is None and not _failure:
        with _lock:
            if _runtime is None and not _failure:
                try:
                    _runtime = connect()
                except Exception as error:  # whatever an unknown torch or a stale build does, programs run
                    _failure = f"{type(error).__name__}: {error}"
                    if config.strict:
                        raise StatorError(_failure, reason="native_runtime_unavailable") from error
                    emit("fallback", reason="native_runtime_unavailable", detail=_failure)
    return _runtime


def why_not() -> str:
    """Why the native runtime is not used; empty while it is."""
    return _failure


def torch_version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def connect() -> Runtime:
    """Find libtorch's functions and the layout of tensors, then try them on a small program."""
    if not LOWEST_TORCH <= torch_version() <= HIGHEST_TORCH:
        raise RuntimeError(f"the native runtime was not written for torch {torch.__version__}")
    module = importlib.import_module("stator._native.program")
    suffix = "dylib" if sys.platform == "darwin" else "so"
    library = os.path.join(os.path.dirname(torch.__file__), "lib", f"libtorch_python.{suffix}")
    tensors = [torch.empty(2), torch.nn.Parameter(torch.empty(2)), torch.empty(0, dtype=torch.int64)]
    samples = [(tensor, torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)) for tensor in tensors]
    module.connect(
        library, torch._C.TensorBase, torch.Tensor, torch.nn.Parameter, torch._C._disabled_torch_dispatch_impl, samples
    )
    functions = ctypes.CDLL(library)

    def number(name: str) -> int | None:
        function = getattr(functions, name, None)
        return None if function is None else int(function())

    connected = Runtime(module, Codes.read(number))
    check(connected)
    try:
        connect_blas(module)
    except (AttributeError, RuntimeError):  # this torch keeps something elsewhere: ATen multiplies
        module.forget_blas()
    connect_kept(module)
    return connected


def connect_kept(module: ModuleType) -> None:
    """Keep the memory of large results for the next ones, where storages count their holders as expected."""
    samples: list[tuple[torch.Tensor, int, int, int, int]] = []
    holders: list[Any] = []
    for size, views in ((2, 0), (100, 1), (33, 5)):
        tensor = torch.empty(size)
        storage = tensor.untyped_storage()
        holders += [storage, *(tensor.view(-1) for _ in range(views))]
        samples.append((tensor, storage._cdata, 2 + views, storage.nbytes(), tensor.data_ptr()))
    module.connect_kept(samples)


# Rows, inner and columns of the products that decide whether BLAS is used (too small for it to start threads), each in
# four layouts and two dtypes.
BLAS_SHAPES = ((2, 3, 4), (8, 8, 8), (6, 7, 5), (12, 16, 15))


def connect_blas(module: ModuleType) -> None:
    """Use BLAS directly for small products where that gives ATen's bits."""
    complex_numbers = torch.ones(2, dtype=torch.complex64)
    tensors = (torch.ones(2), complex_numbers.conj().imag, complex_numbers, complex_numbers.conj())
    keys = [int(torch._C._dispatch_keys(tensor).raw_repr()) for tensor in tensors]
    lazy = (keys[1] ^ keys[0]) | (keys[3] ^ keys[2])
    if torch._C._get_fp32_precision_getter("mkldnn", "matmul") not in ("none", "ieee"):
        return
    if module.connect_blas(list(zip(tensors, keys, strict=True)), lazy) and not all(
        map(_same_product(module), BLAS_SHAPES)
    ):
        module.forget_blas()


def _same_product(module: ModuleType) -> Callable[[tuple[int, int, int]], bool]:
    """Whether a product by BLAS has the bits of torch.mm."""

    def same(shape: tuple[int, int, int]) -> bool:
        rows, inner, columns = shape
        for dtype in (torch.float32, torch.float64):
            left = torch.arange(rows * inner, dtype=dtype).mul_(0.7).sin_().view(rows, inner)
            right = torch.arange(inner * columns, dtype=dtype).mul_(1.3).cos_().view(inner, columns)
            for one in (left, left.t().contiguous().t()):
                for other in (right, right.t().contiguous().t()):
                    out = torch.empty(rows, columns, dtype=dtype)
                    if not module.small_product(out, None, one, other, 0.0, 1.0) or not torch.equal(out, one.mm(other)):
                        return False
        return True

    return same


def check(connected: Runtime) -> None:
    """Compare a program that uses each way into libtorch with the reference execution."""
    aten = torch.ops.aten
    value, column, product, total = (
        Slot(i, kind) for i, kind in enumerate(("tensor_input", "view", "tensor", "tensor"))
    )
    plan = Plan(
        "check",
        inputs=(value,),
        slots=[value, column, product, total],
        steps=[
            View(column, value, (2, 1), (2, 1), 1),
            Extern(aten.mm.default, (value, column), (product,), None),
            Extern(aten.sum.dim_IntList, (product, [0], True, torch.float64), (total,), None),
            Release((column,)),
        ],
        outputs=(total, product, value),
    )
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    expected = ReferenceProgram(plan, "", str)(tensor)
    found = encode(connected, plan)(tensor)
    if found[2] is not tensor or not all(
        type(one) is torch.Tensor
        and one.dtype == other.dtype
        and one.device == other.device
        and torch.equal(one, other)
        for one, other in zip(found[:2], expected[:2], strict=True)
    ):
        raise RuntimeError("the native runtime computes something else than Python does")


def compile_plan(plan: Plan) -> Any:
    """A callable for a settled plan."""
    connected = runtime()
    why = _failure
    if connected is not None:
        try:
            return encode(connected, plan)
        except NotNative as reason:
            why = str(reason)
            emit("fallback", reason="native_runtime_unavailable", detail=f"{plan.name}: {why}")
    return ReferenceProgram(plan, why, lambda: f"by reference: {why}\n" + describe(plan))


def encode(connected: Runtime, plan: Plan) -> Any:
    """The native program of a plan."""
    return _Encoding(connected, plan).program()


class _Encoding:
    """One plan on its way into the tuples of `_native/program/build.c`."""

    def __init__(self, connected: Runtime, plan: Plan) -> None:
        self.connected = connected
        self.plan = plan
        self.made = {slot.index: at for at, step in enumerate(plan.steps) for slot in results(step)}
        self.memory = {step.slot.index: step.memory for step in plan.steps if isinstance(step, Allocate)}
        self.elements: dict[int, int] = {}  # bytes of an element, where the plan knows them
        for step in plan.steps:
            if isinstance(step, (Allocate, Expect)):
                self.elements[step.slot.index] = step.memory.dtype.itemsize
            elif isinstance(step, View) and step.base.index in self.elements:
                self.elements[step.slot.index] = self.elements[step.base.index]
        self._number_integers()
        encoder = Encoder(connected.codes, self.row)
        self.routes: dict[int, Route] = {
            at: encoder.route(step, connected.module.has_shim)
            for at, step in enumerate(plan.steps)
            if isinstance(step, Extern)
        }
        self.arena = [index for index in plan.arena if self._planned(index)]

    # integers

    def _number_integers(self) -> None:
        """Rows in evaluation order: constants, what the inputs give, then what each step makes known."""
        table = IntegerTable()
        for step in self.plan.steps:
            for value in _integers(step):
                table.add(value)
        for output in self.plan.outputs:
            if isinstance(output, (int, IntExpr)):
                table.add(output)
        when: list[int] = []
        for operation, left, right in table.rows:
            if operation == integers.CONSTANT:
                when.append(-2)
            elif operation in integers.LEAVES:
                when.append(self.made.get(left, -1))
            else:
                when.append(max(when[left], when[right], -1))
        order = sorted(range(len(when)), key=lambda row: (when[row], row))
        place = {row: position for position, row in enumerate(order)}
        self.rows = tuple(
            (operation, left, right) if operation in integers.LEAVES else (operation, place[left], place[right])
            for operation, left, right in (table.rows[row] for row in order)
        )
        self.when = [when[row] for row in order]
        self.row_of = {expression: place[row] for expression, row in table.index.items()}

    def row(self, value: Integer) -> int:
        return self.row_of[as_expression(value)]

    def numbers(self, values: tuple[Integer, ...]) -> tuple[int, ...]:
        return tuple(map(self.row, values))

    def _known_first(self, memory: Memory) -> bool:
        """Whether the inputs alone give sizes and strides."""
        return all(self.when[self.row(value)] < 0 for value in (*memory.sizes, *memory.strides))

    def _planned(self, index: int) -> bool:
        """Whether a slot can lie in the arena: on the CPU, with a size the inputs give."""
        memory = self.memory[index]
        return memory.device.type == "cpu" and self._known_first(memory)

    # slots

    def _needs(self) -> list[int]:
        needs = [0] * len(self.plan.slots)
        for expression in self.row_of:
            if expression.operation in integers.OF_SLOT and expression.operation != INPUT:
                needs[expression.left] |= NEEDS_HANDLE
        for output in self.plan.outputs:
            if isinstance(output, Slot):
                needs[output.index] |= NEEDS_HANDLE
        for at, step in enumerate(self.plan.steps):
            if isinstance(step, Kernel):
                for slot in step.tensors:
                    needs[slot.index] |= NEEDS_DATA
            elif isinstance(step, Extern):
                plain = NEEDS_PLAIN if self.routes[at].way not in (PYTHON, DISPATCHER) else 0
                for value in leaves(step.arguments):
                    if isinstance(value, Slot):
                        needs[value.index] |= NEEDS_HANDLE | plain
        for step in reversed(self.plan.steps):
            if isinstance(step, View):
                element = 0 if step.slot.index in self.elements else NEEDS_ELEMENT
                needs[step.base.index] |= needs[step.slot.index] | element
            elif isinstance(step, Expect):
                needs[step.base.index] |= needs[step.slot.index] | NEEDS_HANDLE
        return needs

    # steps

    def _encoded(self, at: int, step: Step) -> tuple[Any, ...]:
        match step:
            case Allocate(slot, memory):
                codes = self.connected.codes
                dtype, device = codes.of.get(memory.dtype), codes.device_types.get(memory.device.type)
                if dtype is None or device is None:
                    raise NotNative(f"libtorch's interface has no number for {memory.dtype} or {memory.device}")
                index = -1 if memory.device.index is None else memory.device.index
                arena = (
                    self.arena.index(slot.index) if slot.index in self.plan.arena and self._planned(slot.index) else -1
                )
                sizes, strides = self.numbers(memory.sizes), self.numbers(memory.strides)
                text = note(f"an allocation in {self.plan.name}", None)
                return (ALLOCATE, slot.index, sizes, strides, dtype, device, index, arena, text)
            case View(slot, base, sizes, strides, offset):
                shape = Memory(sizes, (*strides, offset), torch.uint8, torch.device("cpu"))
                element = self.elements.get(slot.index, 0)
                where = (self.numbers(sizes), self.numbers(strides), self.row(offset))
                return (VIEW, slot.index, base.index, *where, element, int(self._known_first(shape)), None)
            case Kernel():
                slots = tuple(slot.index for slot in step.tensors)
                text = note(step.name, step.line)
                total = self.row(step.total)
                return (KERNEL, step.address, slots, self.numbers(step.ints), total, step.grain, text)
            case Extern():
                return self._call(step, self.routes[at])
            case Expect(slot, base, memory):
                dtype = self.connected.codes.of.get(memory.dtype)
                if dtype is None:
                    raise NotNative(f"libtorch's interface has no number for {memory.dtype}")
                where = (self.numbers(memory.sizes), self.numbers(memory.strides), dtype)
                otherwise = functools.partial(as_expected, dtype=memory.dtype, what=step.what, view=step.view)
                return (EXPECT, slot.index, base.index, *where, otherwise, note(step.what, step.line))
            case Item(slot, source, index):
                return (ITEM, slot.index, source.index, index, None)
            case Release(slots):
                return (RELEASE, tuple(slot.index for slot in slots), None)

    def _call(self, step: Extern, route: Route) -> tuple[Any, ...]:
        operator, overload, function = "", "", step.op
        if isinstance(step.op, torch._ops.OpOverload):
            operator, _, overload = step.op._name.partition(".")
            function = step.instead or step.op._op
        return (
            CALL,
            route.way,
            int(route.rerun),
            operator,
            overload,
            route.values,
            tuple(slot.index for slot in step.results),
            function,
            route.python,
            route.positional,
            route.names or None,
            note(operator_name(step.op), step.line),
        )

    def _steps(self) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
        """The steps with evaluations between them, and where each step of the plan went."""
        steps: list[tuple[Any, ...]] = []
        moved: dict[int, int] = {}
        row = sum(when < 0 for when in self.when)
        for at, step in enumerate(self.plan.steps):
            moved[at] = len(steps)
            steps.append(self._encoded(at, step))
            end = row
            while end < len(self.when) and self.when[end] == at:
                end += 1
            if end > row:
                steps.append((EVALUATE, row, end, None))
                row = end
        return steps, moved

    def _output(self, output: Any) -> tuple[int, int]:
        if output is None:
            return (OUTPUT_NONE, 0)
        if isinstance(output, Slot):
            return (OUTPUT_SLOT, output.index)
        return (OUTPUT_INTEGER, self.row(output))

    def _apart(self, moved: dict[int, int], end: int) -> tuple[tuple[int, int, int, int, int], ...]:
        """Lifetimes of what is allocated outside the arena with sizes known first: the arena's plan counts them in."""
        last = {
            slot.index: moved[at]
            for at, step in enumerate(self.plan.steps)
            if isinstance(step, Release)
            for slot in step.slots
        }
        return tuple(
            (index, self.row(_bytes(memory)), moved[self.made[index]], last.get(index, end), moved[self.made[index]])
            for index, memory in self.memory.items()
            if index not in self.arena and self._known_first(memory)
        )

    def _light(self) -> bool:
        """Whether a call is so short that letting other threads run costs more than it gives."""
        kernels = [step for step in self.plan.steps if isinstance(step, Kernel)]
        if self.routes or not all(isinstance(step.total, int) for step in kernels):
            return False
        return sum(int(step.total) / step.grain for step in kernels if isinstance(step.total, int)) <= LIGHT

    def program(self) -> Any:
        plan = self.plan
        steps, moved = self._steps()
        needs = self._needs()
        lifetimes = tuple(
            (
                index,
                self.row(_bytes(self.memory[index])),
                moved[plan.arena[index][0]],
                moved[plan.arena[index][1]],
                moved[self.made[index]],
            )
            for index in self.arena
        )
        layout: set[int] = set()
        inside = set(self.arena)
        for step in plan.steps:
            if isinstance(step, Allocate) and step.slot.index in inside:
                layout.update(self.numbers((*step.memory.sizes, *step.memory.strides)))
            elif isinstance(step, View) and step.base.index in inside:
                inside.add(step.slot.index)
                layout.update(self.numbers((*step.sizes, *step.strides, step.offset)))
        apart = self._apart(moved, len(steps))
        layout.update(row for _, row, *_ in apart if self.arena)
        return self.connected.module.Program(
            name=plan.name,
            plan=plan,
            describe=lambda: describe(plan, self._way),
            slots=tuple((KIND_CODES[slot.kind], needs[slot.index]) for slot in plan.slots),
            inputs=tuple(slot.index for slot in plan.inputs),
            constants=tuple(plan.constants.items()),
            constant_rows=self.when.count(-2),
            first_rows=sum(when < 0 for when in self.when),
            rows=self.rows,
            steps=tuple(steps),
            arena=lifetimes,
            apart=apart,
            layout=tuple(sorted(row for row in layout if -2 < self.when[row] < 0)),
            outputs=tuple(map(self._output, plan.outputs)),
            mutated=tuple(slot.index for slot in plan.mutated),
            mutation=torch._C._increment_version,
            plain_functions=torch._C.DisableTorchFunctionSubclass,
            excluded_keys=EXCLUDED_KEYS,
            calls_operators=bool(self.routes),
            releases_gil=not self._light(),
        )

    def _way(self, step: Extern) -> str:
        route = next(self.routes[at] for at, other in enumerate(self.plan.steps) if other is step)
        if route.way == PYTHON:
            return f"from Python: {route.why}"
        return "by the dispatcher" if route.way == DISPATCHER else "direct"


def _bytes(memory: Memory) -> Integer:
    return memory.elements() * memory.dtype.itemsize


def _integers(step: Step) -> list[Integer]:
    """Every integer a step needs as a row."""
    match step:
        case Allocate(memory=memory):
            return [*memory.sizes, *memory.strides, _bytes(memory)]
        case Expect(memory=memory):
            return [*memory.sizes, *memory.strides]
        case View():
            return [*step.sizes, *step.strides, step.offset]
        case Kernel():
            return [*step.ints, step.total]
        case Extern():
            return [
                IntExpr(INPUT, value.index) if isinstance(value, Slot) else value
                for value in leaves(step.arguments)
                if isinstance(value, IntExpr) or (isinstance(value, Slot) and value.kind in HOLDS_INTEGER)
            ]
        case _:
            return []
