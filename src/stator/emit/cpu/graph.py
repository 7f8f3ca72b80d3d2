"""Put a graph together: lower it, fuse it, compile its kernels and build the program that runs it.

Contract. `compile_graph(module, example_inputs, options=...)` returns `program(*inputs) -> tuple`. The program builder
comes with the options, since the runtime stands above this stage. Each step carries the user's line it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import torch

from stator import config, events
from stator.emit.cpu.compile import LINKER, Compiled, ObjectStore
from stator.emit.cpu.math_ir import host_target
from stator.emit.cpu.products import TILE_ROWS
from stator.emit.cpu.report import report_program
from stator.loops.fuse import Fused, fuse
from stator.loops.integers import Atom, Polynomial, Size
from stator.loops.ir import Buffer, Kernel, Nest
from stator.loops.schedule import schedule
from stator.loops.split import split_reductions
from stator.loops.verify import verify_kernel
from stator.lower.graph import Lowered, lower, user_line
from stator.lower.values import DTYPES, OPAQUE, Number, OperatorCall, Stored


@dataclass(frozen=True, slots=True)
class Options:
    """`builder` makes an empty program builder of a name; `objects` is where machine code outlives the process."""

    builder: Callable[[str], Any]
    name: str = "graph"
    objects: ObjectStore | None = None
    mode: str = "default"


# Calls given up one by one, before the whole graph runs as operators.
CULPRITS = 8

# Operators whose results are always contiguous, as their shape functions say.
KEEP_PROMISES = frozenset({"aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default"})

_reported: set[str] = set()


def compile_graph(module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Options) -> Any:
    """The graph as a native program. Where the compiler itself fails it retreats: to kernels that are not fused, then
    to ATen's operators for the calls it fails on."""
    try:
        return _compile(module, options)
    except Exception as error:
        if config.strict:
            raise
        failed = error
    try:
        program = _compile(module, options, apart=True)
    except Exception as error:
        return _without_culprits(module, options, error)
    _report_failure("fused kernels", failed)
    return program


def _without_culprits(module: torch.fx.GraphModule, options: Options, error: BaseException) -> Any:
    """The graph with those calls as operators that the compiler fails on. Each is found by halving: the last of the
    fewest first calls that do not compile while all later ones are operators."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    given_up: set[torch.fx.Node] = set()
    for _ in range(CULPRITS):
        low, high = 0, len(calls)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                _compile(module, options, True, given_up.union(calls[middle:]))
                low = middle
            except Exception as found:
                high, error = middle, found
        given_up.update(calls[high - 1 : high])
        _report_failure(f"{calls[high - 1].target} of {user_line(calls[high - 1])}" if calls else "the graph", error)
        try:
            return _compile(module, options, True, given_up)
        except Exception as found:
            error = found
    return _compile(module, options, True, set(calls))


def _report_failure(given_up: str, error: BaseException) -> None:
    detail = f"{given_up} ({type(error).__name__}: {error})"
    if detail not in _reported:
        _reported.add(detail)
        events.emit("fallback", reason="kernel_failed", detail=detail)


def _compile(
    module: torch.fx.GraphModule, options: Options, apart: bool = False, as_operators: Collection[torch.fx.Node] = ()
) -> Any:
    with events.stage("lower"):
        lowered = lower(module, as_operators, own_products())
    with events.stage("fuse"):
        outputs = {value.buffer for value in lowered.outputs if isinstance(value, Stored)}
        steps = fuse(split_reductions(lowered.steps), outputs, apart)
        kernels = {number: kernel_of(step, number) for number, step in enumerate(steps) if isinstance(step, Nest)}
    with events.stage("emit"):
        compiled = dict(zip(kernels, LINKER.kernels(list(kernels.values()), options.objects), strict=True))
    report_program(options.name, steps, kernels, lowered)
    return Assembly(lowered, steps, kernels, compiled, options).build()


def own_products() -> bool:
    """Whether products of matrices are kernels of ours: where MKL, on a processor not its maker's, stays below what
    the processor can do. The answer depends on the machine alone, so results repeat."""
    target = host_target()
    if config.products == "library" or target.bits not in TILE_ROWS:
        return False
    foreign = target.architecture == "x86_64" and llvm.get_host_cpu_name().startswith("znver")
    return config.products == "own" or (foreign and bool(torch.backends.mkl.is_available()))


def kernel_of(nest: Nest, number: int) -> Kernel:
    """The nest scheduled for this target, verified."""
    kernel = schedule(nest, f"kernel_{number}")
    verify_kernel(kernel)
    return kernel


def as_tensor(number: float) -> torch.Tensor:
    """A number where a kernel reads it."""
    return torch.scalar_tensor(number, dtype=torch.float64)


class Assembly:
    """Builds the program: where each buffer lives, then the steps in order."""

    def __init__(
        self,
        lowered: Lowered,
        steps: Sequence[Fused],
        kernels: dict[int, Kernel],
        compiled: dict[int, Compiled],
        options: Options,
    ) -> None:
        self.lowered = lowered
        self.steps = steps
        self.kernels = kernels
        self.compiled = compiled
        self.builder = options.builder(options.name)
        self.slots: dict[Buffer, Any] = {}
        self.symbols: dict[str, Any] = {}
        self.numbers: dict[Number, Any] = {}
        self.makers: dict[Buffer, OperatorCall] = {}
        self.expected: dict[Buffer, Any] = {}
        self.returned = {value.buffer for value in lowered.outputs if isinstance(value, Stored)}

    def build(self) -> Any:
        self._inputs()
        for number, step in enumerate(self.steps):
            if isinstance(step, OperatorCall):
                self._operator(step)
            else:
                self._kernel(self.kernels[number], self.compiled[number])
        for buffer in self.lowered.written:
            self.builder.mutated(self.slots[buffer])
        self.builder.outputs([self._output(value) for value in self.lowered.outputs])
        return self.builder.build()

    def _inputs(self) -> None:
        waiting: list[tuple[Size, Any]] = []
        for value in self.lowered.inputs:
            if isinstance(value, Stored):
                slot = self.slots[value.buffer] = self.builder.input_tensor()
                for dim, size in enumerate(value.sizes):
                    waiting.append((size, lambda slot=slot, dim=dim: self.builder.size(slot, dim)))
                for dim, stride in enumerate(value.strides):
                    waiting.append((stride, lambda slot=slot, dim=dim: self.builder.stride(slot, dim)))
            elif value is None:
                self.builder.input_object()
            elif isinstance(value, Number):
                self.numbers[value] = self.builder.input_object()
            else:
                slot = self.builder.input_int()
                waiting.insert(0, (value, lambda slot=slot: self.builder.integer(slot)))
        for stored, tensor in self.lowered.constants:
            self.slots[stored.buffer] = self.builder.constant(tensor)
        self._bind_symbols(waiting)

    def _bind_symbols(self, known: Sequence[tuple[Size, Any]]) -> None:
        """A symbol is what an input's size, stride or integer is; other origins are computed from those."""
        for size, read in known:
            if isinstance(size, Polynomial) and len(size.terms) == 1:
                ((monomial, coefficient),) = size.terms.items()
                if coefficient == 1 and len(monomial) == 1 and monomial[0].kind == "Symbol":
                    self.symbols.setdefault(monomial[0].name, read())

    def size(self, size: Size) -> Any:
        """A size as the program computes it."""
        if isinstance(size, int):
            return size
        total: Any = 0
        for monomial, coefficient in size.terms.items():
            product: Any = coefficient
            for atom in monomial:
                product = self._atom(atom) * product
            total = total + product
        return total

    def _atom(self, atom: Atom) -> Any:
        if atom.kind == "Symbol":
            found = self.symbols.get(atom.name)
            if found is None:
                found = self.symbols[atom.name] = self._computed(atom.name)
            return found
        left, right = self.size(atom.left), self.size(atom.right)
        if atom.kind == "Quotient":
            return left // right
        if atom.kind == "Remainder":
            return left % right
        return type(left).minimum(left, right) if not isinstance(left, int) else type(right).minimum(left, right)

    def _computed(self, name: str) -> Any:
        """A size that is no polynomial of those at hand."""
        if self.lowered.symbols.can_compute(name):
            return self.lowered.symbols.compute(name, self.size)
        function, operands = self.lowered.symbols.meaning(name)
        (slot,) = self.builder.python(function, [self._argument(operand) for operand in operands], ("integer",))
        return self.builder.integer(slot)

    def _number(self, number: Number) -> Any:
        """The slot of a number."""
        slot = self.numbers.get(number)
        if slot is None:
            assert number.function is not None
            parts = [self._argument(part) for part in number.parts]
            (slot,) = self.builder.python(number.function, parts, ("object",))
            self.numbers[number] = slot
        return slot

    def sizes(self, sizes: Sequence[Size]) -> list[Any]:
        return [self.size(size) for size in sizes]

    def _slot(self, buffer: Buffer) -> Any:
        """Memory for a buffer, made the first time something writes it."""
        slot = self.slots.get(buffer)
        number = self.lowered.numbers.get(buffer)
        if slot is None and number is not None:
            (slot,) = self.builder.python(as_tensor, [self._number(number)], ("tensor",))
            self.slots[buffer] = slot
        elif slot is None:
            slot = self.slots[buffer] = self.builder.empty(
                self.sizes(buffer.sizes),
                self.sizes(buffer.strides),
                DTYPES[buffer.type],
                "cpu",
                arena=buffer not in self.returned,
            )
        return slot

    def _readable(self, buffer: Buffer) -> Any:
        """The slot of a buffer as kernels and views see it: an operator's result is what the trace said it would be."""
        slot, maker = self._slot(buffer), self.makers.get(buffer)
        if maker is None or buffer.type == OPAQUE or str(maker.operator) in KEEP_PROMISES:
            return slot
        if buffer not in self.expected:
            sizes, strides = self.sizes(buffer.sizes), self.sizes(buffer.strides)
            what, line = maker.operator, maker.line or None
            self.expected[buffer] = self.builder.expect(slot, sizes, strides, DTYPES[buffer.type], what, line)
        return self.expected[buffer]

    def _kernel(self, kernel: Kernel, compiled: Compiled) -> None:
        tensors = [self._readable(buffer) for buffer in kernel.buffers]
        ints = [self._atom(atom) for atom in kernel.symbols]
        shape = compiled.shape
        total = self.size(shape.total)
        line = kernel.lines[-1] if kernel.lines else None
        self.builder.kernel(compiled.address, compiled.owner, kernel.name, tensors, ints, total, shape.grain, line)

    def _operator(self, call: OperatorCall) -> None:
        self.makers.update(dict.fromkeys(call.made(), call))
        arguments = self._argument(call.arguments)
        keywords = {name: self._argument(value) for name, value in call.keywords.items()}
        if isinstance(call.operator, torch._ops.HigherOrderOperator):
            (slot,) = self.builder.python(call.operator, arguments, ("list",), call.line or None)
            self._bind_result(call.results, slot)
            return
        slots = self.builder.extern(call.operator, arguments, keywords, call.line or None, call.instead)
        for result, slot in zip(call.results, slots, strict=True):
            self._bind_result(result, slot)

    def _bind_result(self, result: Any, slot: Any) -> None:
        if isinstance(result, Buffer):
            self.slots[result] = slot
        elif isinstance(result, list):
            for number, entry in enumerate(result):
                if isinstance(entry, Buffer):
                    self.slots[entry] = self.builder.item(slot, number)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Stored):
            return self._view(value)
        if isinstance(value, Polynomial):
            return self.size(value)
        if isinstance(value, Number):
            return self._number(value)
        if isinstance(value, (list, tuple)):
            return [self._argument(entry) for entry in value]
        return value

    def _view(self, value: Stored) -> Any:
        """The slot itself where the value is the whole buffer, else a view."""
        buffer = value.buffer
        slot = self._slot(buffer)
        if value.sizes == buffer.sizes and value.strides == buffer.strides and value.offset == 0:
            return slot
        slot = self._readable(buffer)
        return self.builder.view(slot, self.sizes(value.sizes), self.sizes(value.strides), self.size(value.offset))

    def _output(self, value: Any) -> Any:
        if isinstance(value, (Stored, Polynomial, Number)):
            return self._argument(value)
        return value
