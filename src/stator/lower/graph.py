"""Walk a functional ATen graph and turn it into steps of the loop language and operator calls.

Contract. `lower(graph_module)` returns a `Lowered`: inputs, constants, steps in order, outputs. For each call: the
rule of the table; else torch's decomposition, whose calls are lowered in turn; else the operator itself. A rule that
refuses (`NotLowered`) or fails falls back to the operator for that one call: a refusal is listed in the report, a
failure is reported once with reason `lowering_failed`, and raises under `config.strict`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stator import config, events
from stator.aot import operators
from stator.aot.writes import WriteCopies
from stator.exc import InternalStatorError
from stator.loops.integers import Size
from stator.loops.ir import Buffer, loads_of
from stator.lower import decompositions
from stator.lower.context import Lowering
from stator.lower.indexing import REFUSALS
from stator.lower.symbols import Symbols
from stator.lower.table import rule_of
from stator.lower.values import OPAQUE, Lazy, NotLowered, Number, Step, Stored, flatten
from stator.lower.views import converted

CALLS_LIMIT = 4  # of decompositions within decompositions


@dataclass(slots=True)
class Lowered:
    """A graph as steps. An input is a `Stored` value, a size, or None for an object only operators read."""

    inputs: list[Any]
    constants: list[tuple[Stored, torch.Tensor]]
    steps: list[Step]
    outputs: list[Any]  # Stored, Size, number or None
    symbols: Symbols
    numbers: dict[Buffer, Number] = field(default_factory=dict)  # memory that holds a number
    written: list[Buffer] = field(default_factory=list)  # inputs that steps of the loop language write
    refused: list[tuple[str, str, str]] = field(default_factory=list)  # operator, why, line


def lower(
    module: torch.fx.GraphModule, as_operators: Collection[torch.fx.Node] = (), products: bool = False
) -> Lowered:
    """The graph as steps; each call among `as_operators` is the operator itself; with `products`, those of matrices
    are contractions."""
    return GraphLowering(module, as_operators, products).run()


class GraphLowering:
    def __init__(self, module: torch.fx.GraphModule, as_operators: Collection[torch.fx.Node], products: bool) -> None:
        self.module = module
        self.as_operators = as_operators
        self.operator_only = False  # the running call is one of them
        self.symbols = Symbols()
        self.lowering = Lowering(self.symbols, products)
        self.values: dict[torch.fx.Node, Any] = {}
        self.result = Lowered([], [], self.lowering.steps, [], self.symbols, self.lowering.numbers)
        self.handlers: dict[str, Callable[[torch.fx.Node], None]] = {
            "placeholder": self.placeholder,
            "get_attr": self.get_attr,
            "call_function": self.call_function,
            "output": self.output,
        }

    def run(self) -> Lowered:
        for node in self.module.graph.nodes:
            handler = self.handlers.get(node.op)
            if handler is None:
                raise InternalStatorError(f"a functional graph holds no {node.op} ({node.name})", reason="graph_form")
            self.lowering.line = user_line(node)
            self.operator_only = node in self.as_operators
            handler(node)
        return self.result

    def placeholder(self, node: torch.fx.Node) -> None:
        meta = node.meta.get("val")
        value: Any = None
        if isinstance(meta, (int, torch.SymInt)) and not isinstance(meta, bool):
            value = self.lowering.size(meta)
        elif isinstance(meta, torch.SymFloat):
            value = Number(float)
        elif hasattr(meta, "stride"):
            value = self.outside(meta, "input")
        self.values[node] = value
        self.result.inputs.append(value)

    def outside(self, meta: Any, role: str) -> Stored:
        """A tensor from outside; one without plain strided memory is only passed on to operators."""
        plain = meta.layout == torch.strided and not meta.is_sparse and not meta.is_quantized
        sizes = self.lowering.sizes(meta.shape)
        strides = self.lowering.sizes(meta.stride()) if plain else tuple(0 for _ in sizes)
        buffer = self.lowering.buffer(sizes, strides, meta.dtype, role)
        if not plain or meta.is_conj() or meta.is_neg() or meta.device.type not in ("cpu", "meta"):
            buffer.type = OPAQUE
        return Stored(buffer, sizes, strides, 0, meta.dtype)

    def get_attr(self, node: torch.fx.Node) -> None:
        target: Any = self.module
        for part in str(node.target).split("."):
            target = getattr(target, part)
        if not isinstance(target, torch.Tensor):
            self.values[node] = target
            return
        stored = self.outside(target, "constant")
        self.result.constants.append((stored, target))
        self.values[node] = stored

    def call_function(self, node: torch.fx.Node) -> None:
        target = node.target
        if getattr(target, "__name__", "") == "getitem" and not isinstance(target, torch._ops.OpOverload):
            source, key = node.args
            value = self.argument(source)[key]
            self.values[node] = value if self._known(source) else self.lowering.settle(value, users_of(node))
            return
        if isinstance(target, torch._ops.HigherOrderOperator) and not node.kwargs:
            self.lowering.current = node.meta.get("val")
            self.values[node] = self.lowering.call(target, self.argument(node.args), {}, "runs graphs of its own")
            return
        if isinstance(target, WriteCopies):
            self.values[node] = self.write_copies(target.op, node)
            return
        if not isinstance(target, torch._ops.OpOverload) or target in SIZE_QUESTIONS:
            self.values[node] = self.plain_call(node)
            return
        arguments = self.argument(node.args)
        keywords = self.argument(node.kwargs)
        value = self.call(target, arguments, keywords, node.meta.get("val"), 0)
        if isinstance(value, (tuple, list)):
            self.values[node] = value
        else:
            self.values[node] = self.lowering.settle(value, users_of(node))

    def _known(self, source: Any) -> bool:
        return not isinstance(source, torch.fx.Node)

    def plain_call(self, node: torch.fx.Node) -> Any:
        """Python arithmetic on sizes: the trace has worked out the value."""
        meta = node.meta.get("val")
        if isinstance(meta, (int, torch.SymInt)) and not isinstance(meta, bool):
            return self.lowering.size(meta)
        if isinstance(meta, (torch.SymFloat, torch.SymBool)):
            kind = float if isinstance(meta, torch.SymFloat) else bool
            return Number(kind, node.target, tuple(self.argument(node.args)))
        raise InternalStatorError(f"a functional graph calls {node.target}", reason="graph_form")

    def write_copies(self, operator: torch._ops.OpOverload, node: torch.fx.Node) -> tuple[Any, ...]:
        """An operator that writes its arguments, called on copies: its own results, then the copies."""
        arguments, keywords = self.argument(node.args), self.argument(node.kwargs)
        row = operators.facts(operator)
        metas = list(node.meta["val"])
        fresh = sum(alias is None for alias in row.returns)
        left = iter(metas[fresh:])
        copies: list[Any] = []

        def copied(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [copied(entry) for entry in value]
            if not isinstance(value, (Stored, Lazy)):
                return value
            meta = next(left)
            copy = self.call(torch.ops.aten.clone.default, [value], {}, meta, 0)
            copies.append(self.lowering.store(copy, self.lowering.sizes(meta.stride())))
            return copies[-1]

        for position in row.written:
            value = copied(operators.argument(row, position, tuple(arguments), keywords))
            if value is not None:
                arguments, keywords = operators.replace_argument(row, position, tuple(arguments), keywords, value)
        own = iter(metas[:fresh])
        described = [next(own) if alias is None else None for alias in row.returns]
        self.lowering.current = described[0] if len(described) == 1 else described
        results = self.lowering.call(operator, arguments, keywords, "writes its arguments")
        listed = [results] if len(described) == 1 else results
        kept = [value for value, alias in zip(listed, row.returns, strict=True) if alias is None]
        return (*kept, *copies)

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return [self.argument(entry) for entry in value]
        if isinstance(value, dict):
            return {key: self.argument(entry) for key, entry in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(entry) for entry in (value.start, value.stop, value.step)))
        return value

    def call(self, operator: Any, arguments: Any, keywords: dict[str, Any], meta: Any, depth: int) -> Any:
        """One operator, by the best way there is."""
        if operator is torch.ops.aten.copy_.default and isinstance(arguments[0], Stored) and not self.operator_only:
            value = self.write_back(arguments[0], arguments[1], meta)
            if value is not None:
                return value
        why = "has no row"
        rule = None if self.operator_only else rule_of(operator)
        if rule is not None and not getattr(rule, "takes_numbers", False) and has_number(arguments, keywords):
            rule = None
        if rule is not None:
            value, why = self.attempt(rule, operator, arguments, keywords, meta)
            if why == "":
                return value
        if depth < CALLS_LIMIT and not self.operator_only and decompositions.has_decomposition(operator):
            value, refusal = self.decomposed(operator, arguments, keywords, meta, depth)
            if refusal == "":
                return value
            why = refusal if rule is None else why
        self.result.refused.append((str(operator), why, self.lowering.line))
        self.lowering.current = meta
        if operator is torch.ops.aten.copy_.default:
            arguments = [self.lowering.store(arguments[0]), *arguments[1:]]
            self.before_write(arguments[0])
        return self.lowering.call(operator, arguments, keywords, why)

    def attempt(self, rule: Any, operator: Any, arguments: Any, keywords: Any, meta: Any) -> tuple[Any, str]:
        """A rule's value, or why there is none; a failed rule leaves no steps behind."""
        self.lowering.current = meta
        mark = len(self.lowering.steps)
        try:
            return self.laid_out(rule(self.lowering, *arguments, **keywords), meta), ""
        except NotLowered as refusal:
            why = str(refusal)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            report_failure(str(operator), why, error, self.lowering.line)
        self.discard(mark)
        return None, why

    def laid_out(self, value: Any, meta: Any) -> Any:
        """A value that is stored later is stored as eager would: under the strides the trace saw."""
        if isinstance(value, Lazy) and value.layout is None and hasattr(meta, "stride"):
            value.layout = self.lowering.sizes(meta.stride())
        return value

    def discard(self, mark: int) -> None:
        """Forget unfinished work: steps after the mark whose buffers nothing refers to yet are dead code later on, but
        checks among them would still run."""
        kept = [step for step in self.lowering.steps[mark:] if not _is_check(step)]
        self.lowering.steps[mark:] = kept

    def decomposed(self, operator: Any, arguments: Any, keywords: Any, meta: Any, depth: int) -> tuple[Any, str]:
        """The value by torch's own decomposition, recorded over meta tensors."""
        values: list[Any] = []

        def as_meta(value: Any) -> Any:
            if isinstance(value, (Stored, Lazy)):
                sizes = [self.as_int(size) for size in value.sizes]
                layout = value.strides if isinstance(value, Stored) else value.layout
                strides = None if layout is None else [self.as_int(stride) for stride in layout]
                made = (
                    torch.empty(sizes, dtype=value.dtype, device="meta")
                    if strides is None
                    else torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
                )
                values.append((made, value))
                return made
            if isinstance(value, (list, tuple)):
                return [as_meta(entry) for entry in value]
            return value

        if any(leaf_is_symbolic(leaf) for leaf in flatten((arguments, keywords))):
            return None, "symbolic sizes"
        made_arguments = as_meta(arguments)
        made_keywords = {name: as_meta(value) for name, value in keywords.items()}
        try:
            calls, returned, recorder = decompositions.expand(operator, made_arguments, made_keywords)
        except Exception as error:
            return None, f"its decomposition raised {type(error).__name__}: {error}"
        known: dict[int, Any] = {recorder.reference(made).number: value for made, value in values}
        outer = self.lowering.refusal
        self.lowering.refusal = REFUSALS.get(operator.overloadpacket.__name__, outer)
        try:
            return self.retyped(self.replay(calls, returned, known, depth), meta), ""
        finally:
            self.lowering.refusal = outer

    def retyped(self, value: Any, meta: Any) -> Any:
        """Results in the types the trace saw: a decomposition may keep statistics more precisely than the operator."""
        if isinstance(value, (list, tuple)):
            return tuple(self.retyped(entry, part) for entry, part in zip(value, meta, strict=True))
        if isinstance(value, (Stored, Lazy)) and meta is not None and value.dtype != meta.dtype:
            self.lowering.current = meta
            return converted(self.lowering, value, meta.dtype)
        return value

    def as_int(self, size: Any) -> int:
        return int(size)

    def replay(self, calls: Any, returned: Any, known: dict[int, Any], depth: int) -> Any:
        """Lower the calls a decomposition made."""
        uses: dict[int, int] = {}
        for call in calls:
            for leaf in flatten((call.arguments, call.keywords)):
                if isinstance(leaf, decompositions.Reference):
                    uses[leaf.number] = uses.get(leaf.number, 0) + 1
        for leaf in flatten(returned):
            if isinstance(leaf, decompositions.Reference):
                uses[leaf.number] = uses.get(leaf.number, 0) + 1

        def resolved(value: Any) -> Any:
            if isinstance(value, decompositions.Reference):
                return known[value.number]
            if isinstance(value, (list, tuple)):
                return [resolved(entry) for entry in value]
            if isinstance(value, dict):
                return {key: resolved(entry) for key, entry in value.items()}
            return value

        for call in calls:
            value = self.call(call.operator, resolved(call.arguments), resolved(call.keywords), call.meta, depth + 1)
            self.bind(call.reference, value, known, uses)
        value = resolved(returned)
        return tuple(value) if isinstance(value, list) else value

    def bind(self, reference: Any, value: Any, known: dict[int, Any], uses: dict[int, int]) -> None:
        if isinstance(reference, decompositions.Reference):
            if reference.number not in known:
                known[reference.number] = self.lowering.settle(value, uses.get(reference.number, 0))
        elif isinstance(reference, (list, tuple)):
            for entry, part in zip(reference, value, strict=True):
                self.bind(entry, part, known, uses)

    def write_back(self, target: Stored, source: Any, meta: Any) -> Any:
        """`copy_` into an input at the end of the graph: a step that writes the input's memory."""
        if target.type == OPAQUE or not isinstance(source, (Stored, Lazy)) or source.type == OPAQUE:
            return None
        if any(stride == 0 and size != 1 for stride, size in zip(target.strides, target.sizes, strict=True)):
            return None
        self.before_write(target)
        self.lowering.assign(target, self.lowering.broadcast(source, target.sizes))
        self.result.written.append(target.buffer)
        return target

    def before_write(self, target: Stored) -> None:
        """Values not yet computed that read the memory about to change are computed first."""
        pending = [value for entry in self.values.values() for value in flatten(entry) if isinstance(value, Lazy)]
        for value in pending:
            if value.stored is None and any(buffer is target.buffer for buffer, _ in reads_of(value)):
                self.lowering.store(value)

    def output(self, node: torch.fx.Node) -> None:
        (returned,) = node.args
        listed: Any = returned if isinstance(returned, (list, tuple)) else (returned,)
        for entry in listed:
            value = self.argument(entry)
            if isinstance(value, Stored) and value.buffer.role == "temporary" and value.type != OPAQUE:
                strides = self.lowering.sizes(entry.meta["val"].stride())
                if not same_layout(value.sizes, value.strides, strides):
                    value = self.lowering.write(value, strides)
            elif isinstance(value, Lazy):
                strides = self.lowering.sizes(entry.meta["val"].stride())
                if value.stored is None or tuple(value.stored.strides) != strides:
                    value = self.output_of(value, strides)
                else:
                    value = value.stored
            self.result.outputs.append(value)

    def output_of(self, value: Lazy, strides: tuple[Any, ...]) -> Stored:
        if value.stored is None:
            value.stored = self.lowering.write(value, strides)
            return value.stored
        return self.lowering.write(value, strides)


def same_layout(sizes: Sequence[Size], one: Sequence[Size], other: Sequence[Size]) -> bool:
    """Whether strides agree where they matter."""
    if any(size == 0 for size in sizes):
        return True
    return all(size == 1 or mine == theirs for size, mine, theirs in zip(sizes, one, other, strict=True))


def reads_of(value: Lazy) -> list[tuple[Buffer, Size]]:
    return loads_of([value.expression])


def _is_check(step: Step) -> bool:
    return getattr(step, "operator", None) is torch.ops.aten._assert_async.msg


def leaf_is_symbolic(leaf: Any) -> bool:
    if isinstance(leaf, (Stored, Lazy)):
        return not all(isinstance(size, int) for size in leaf.sizes)
    return isinstance(leaf, (torch.SymInt, Number)) or hasattr(leaf, "terms")


def has_number(*values: Any) -> bool:
    return any(isinstance(leaf, Number) for leaf in flatten(values))


# Operators that yield a size the trace knows as an expression.
SIZE_QUESTIONS = frozenset(
    {torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int, torch.ops.aten.sym_storage_offset.default,
     torch.ops.aten.sym_numel.default}
)  # fmt: skip

# Views read their argument without computing anything: their users count as users of what they view.
VIEWS = frozenset(
    {"view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "alias",
     "detach", "slice", "select"}
)  # fmt: skip


def users_of(node: torch.fx.Node) -> int:
    """How many computing calls read a node, through views."""
    count = 0
    for user in node.users:
        packet = getattr(getattr(user.target, "overloadpacket", None), "__name__", "")
        count += users_of(user) if packet in VIEWS else 1
    return count


_FRAME = re.compile(r'File "([^"]*)", line (\d+)')


def user_line(node: torch.fx.Node) -> str:
    """The user's line a node came from: `file:line`, from the innermost frame of its stack trace outside torch."""
    found = [match.groups() for match in _FRAME.finditer(str(node.meta.get("stack_trace") or ""))]
    own = [frame for frame in found if events.is_users(frame[0])]
    return ":".join((own or found)[-1]) if found else ""


_reported: set[str] = set()


def report_failure(operator: str, detail: str, error: BaseException, line: str) -> None:
    """A defect: raise under `config.strict`, else report it once."""
    if config.strict:
        raise InternalStatorError(f"lowering {operator} failed: {detail}", reason="lowering_failed") from error
    if operator not in _reported:
        _reported.add(operator)
        events.emit("fallback", reason="lowering_failed", detail=f"{operator}: {detail}", line=line)
