"""The recorder: a dispatch mode that writes every ATen operator that runs below it onto a tape.

Contract. Inside `with recorder:` operators on abstract tensors are evaluated abstractly and appended to
`recorder.tape`; autograd, autocast, composite operators and torch.func transforms have done their part above it.
`input(...)` and `constant(...)` make the tensors a trace starts from. What a program may not do under a trace
(reading values, foreign tensors) raises the reasons of `reasons/aot.py`.

Detached aliases are not recorded: `detach` yields another tensor object for the same step. In-place changes of
sizes or strides (`t_`) are recorded as the view they amount to, and the tensor object moves on to it.

State: one recorder belongs to one trace and one thread.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from stator.aot import dynamo_free, rules
from stator.aot import layer_rules as layer_rules  # registers its rows
from stator.aot import meta as meta  # registers the fallback
from stator.aot import view_rules as view_rules  # registers its rows
from stator.aot.abstract import AbstractTensor, Storage, abstract_like, evaluate, map_tensors, view_of
from stator.aot.operators import IDENTITIES, Facts, facts
from stator.aot.refusal import refuse
from stator.aot.tape import CALL, CONSTANT, INPUT, ITEM, Step, Tape

aten = torch.ops.aten
# How higher-order operators are recorded; filled by `higher_order`, which needs recorders for their bodies.
HIGHER_ORDER: list[Callable[[Recorder, HigherOrderOperator, tuple[Any, ...], dict[str, Any]], Any]] = []

# Operators recorded under another name that says truly what they write.
_TRUE_NAMES: dict[Any, Callable[[tuple[Any, ...]], Any]] = {}


class Recorder(TorchDispatchMode):
    """Records one trace. `real` runs every operator on real tensors beside the abstract ones."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(
        self,
        real: bool = False,
        locate: Callable[[], str | None] | None = None,
        on_real_tensor: Callable[[torch.Tensor], None] | None = None,
        decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = Tape()
        self.real = real
        self.locate = locate
        self.on_real_tensor = on_real_tensor
        self.decompositions = decompositions or {}
        self.stack: str | None = None
        self.region: Any = None
        self.backward = False
        self.specialised: list[str] = []
        self.values: dict[int, torch.Tensor] = {}  # real mode: id of an abstract tensor -> its real twin
        self.alive: list[Any] = []
        self.adopt_real: Callable[[torch.Tensor], AbstractTensor] | None = None
        self.literals: set[Step] = set()
        self.moved: dict[Step, AbstractTensor] = {}  # step that made a memory -> the tensor whose sizes changed since
        self._constants: dict[int, AbstractTensor] = {}
        self._sequence: list[int] = []  # autograd sequence numbers at which a new user line began
        self._sequence_stacks: list[str | None] = []

    # --- what a trace starts from ------------------------------------------------------------------------------
    def input(self, name: str, real: torch.Tensor, memory: Storage | None = None, **sizes: Any) -> AbstractTensor:
        """A new argument of the tape that stands for `real`."""
        made = abstract_like(real, memory=memory, **sizes)
        self.adopt(made, name)
        if self.real:
            self.values[id(made)] = real.detach()
        return made

    def adopt(self, tensor: AbstractTensor, name: str) -> Step:
        """Make an abstract tensor an argument of the tape."""
        step = Step(INPUT, name, value=tensor)
        self.tape.inputs.append(step)
        self.bind(tensor, step)
        return step

    def constant(self, real: torch.Tensor, name: str | None = None) -> AbstractTensor:
        """A tensor the graph owns; the same real tensor twice is one constant."""
        made = self._constants.get(id(real))
        if made is None:
            made = abstract_like(real)
            made.constant = real.detach() if real.numel() <= 64 else None
            name = name or f"_tensor_constant{len(self.tape.constants)}"
            self.tape.constants[name] = real
            step = Step(CONSTANT, name, value=made)
            self.tape.steps.append(step)
            self.bind(made, step)
            self._constants[id(real)] = made
            self.alive.append(real)
            if self.real:
                self.values[id(made)] = real
        return made

    def literal(self, real: torch.Tensor) -> AbstractTensor:
        """A constant that `torch.tensor(...)` made while tracing: each run starts from its value now."""
        made = self.constant(real)
        self.literals.add(made.op)
        return made

    def hold(self, value: Any, stem: str) -> Step:
        """A constant step for something the graph owns that is no tensor (the graph of a body)."""
        name = f"{stem}_{len(self.tape.constants)}"
        self.tape.constants[name] = value
        step = Step(CONSTANT, name, value=value)
        self.tape.steps.append(step)
        return step

    def bind(self, tensor: AbstractTensor, step: Step) -> None:
        """`tensor` is what `step` yields."""
        tensor.op = step
        tensor.recorder = self
        self.alive.append(tensor)

    # --- recording ---------------------------------------------------------------------------------------------
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            with self:
                return HIGHER_ORDER[0](self, func, args, kwargs)
        row = facts(func)
        if row.composite:
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        if func in _TRUE_NAMES:
            func, args = _TRUE_NAMES[func](args)
            row = facts(func)
        rule = self.decompositions.get(func)
        if rule is not None:
            dynamo_free.settle_references()
            with self:
                decomposed = rule(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        return self.record(func, row, args, kwargs)

    def record(self, func: OpOverload, row: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Evaluate one operator and write it down."""
        if row.namespace != "aten":
            dynamo_free.settle_custom_operator(func)
        operands: list[Step] = []
        if row.name == "lift_fresh" and not isinstance(args[0], AbstractTensor):
            return self._identity(self.literal(args[0]))
        tensor_args = tuple([self.own(value) for value in args])
        if kwargs:
            kwargs = {name: self.own(value) for name, value in kwargs.items()}
        if row.name in IDENTITIES and row.namespace == "aten":
            return self._identity(tensor_args[0])
        step_args = tuple([self.lower(value, operands) for value in tensor_args])
        step_kwargs = {name: self.lower(value, operands) for name, value in kwargs.items()} if kwargs else {}
        if row.metadata_only and row.written:
            return self._metadata_change(func, row, tensor_args, kwargs, step_args, step_kwargs)
        try:
            result = self._evaluate(func, row, tensor_args, kwargs)
        except Exception as error:
            self._explain(error)
            raise
        if not row.returns and not row.written and row.namespace == "aten" and result is None:
            return result
        if isinstance(result, (bool, int, float, complex)) and not isinstance(result, torch.Tensor):
            self.specialised.append(f"the result of `{row.name}` is the constant {result!r}")
            return result
        step = self.write(func, step_args, step_kwargs, result, operands)
        if not row.written:
            self._bind_results(step, result)
        else:
            self._bind_new_results(step, row, result)
        return result

    def write(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: Any,
        operands: list[Step] | None = None,
    ) -> Step:
        """Append a call."""
        step = Step(CALL, target, args, kwargs, value, self.line(), operands)
        step.backward = self.backward
        step.region = self.region
        self.tape.steps.append(step)
        return step

    def _evaluate(self, func: OpOverload, row: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.real:
            return evaluate(func, args, kwargs)
        real_args = map_tensors(self._value, args)
        real_kwargs = map_tensors(self._value, kwargs)
        owners = {id(value): tensor for tensor in _tensors(args, kwargs) for value in [self._value(tensor)]}
        results = func(*real_args, **real_kwargs)
        memories = {
            _storage_key(value): tensor.memory for tensor in _tensors(args, kwargs) for value in [self._value(tensor)]
        }

        def dress(value: torch.Tensor) -> AbstractTensor:
            same = owners.get(id(value))
            if same is not None:
                same.constant = None
                return same
            made = abstract_like(value, memory=memories.get(_storage_key(value)))
            self.values[id(made)] = value
            return made

        return map_tensors(dress, results)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.values[id(tensor)]

    def _identity(self, tensor: AbstractTensor) -> AbstractTensor:
        result: AbstractTensor = rules.RULES[aten.detach.default](tensor)
        self.bind(result, tensor.op)
        if self.real:
            self.values[id(result)] = self.values[id(tensor)].detach()
        return result

    def _metadata_change(
        self,
        func: OpOverload,
        row: Facts,
        tensor_args: tuple[Any, ...],
        tensor_kwargs: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> AbstractTensor:
        """`x.t_()`: from here on `x` is the view `x.t()`, and its former step keeps the former sizes."""
        tensor: AbstractTensor = tensor_args[0]
        overload = _VIEW_OF_CHANGE.get(func)
        if overload is None:
            raise refuse("aot_storage_change", detail=f"`{row.name}`", line=self.line() or "")
        former = view_of(tensor, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
        former.op, former.recorder = tensor.op, self
        self._evaluate(func, row, tensor_args, tensor_kwargs)
        tensor.op.value = former
        self.moved[root_step(tensor.op)] = tensor
        self.bind(tensor, self.write(overload, args, kwargs, tensor))
        return tensor

    def _bind_results(self, step: Step, result: Any) -> None:
        if isinstance(result, AbstractTensor):
            if result.recorder is not self or result.op is None:
                self.bind(result, step)
        elif isinstance(result, (tuple, list)):
            for place, item in enumerate(result):
                self._bind_item(step, place, item)

    def _bind_item(self, step: Step, place: int, item: Any) -> None:
        if not isinstance(item, AbstractTensor) or (item.recorder is self and item.op is not None):
            if isinstance(item, (tuple, list)):
                inner = self._item(step, place, item)
                self._bind_results(inner, item)
            return
        self.bind(item, self._item(step, place, item))

    def _item(self, step: Step, place: int, value: Any) -> Step:
        made = Step(ITEM, place, (step,), None, value, step.stack, [step])
        made.backward = step.backward
        made.region = step.region
        self.tape.steps.append(made)
        return made

    def _bind_new_results(self, step: Step, row: Facts, result: Any) -> None:
        """Results of an operator that writes: those that are no argument are new."""
        if isinstance(result, (tuple, list)):
            for place, item in enumerate(result):
                if isinstance(item, AbstractTensor) and (item.recorder is not self or item.op is None):
                    self._bind_item(step, place, item)
        elif isinstance(result, AbstractTensor) and (result.recorder is not self or result.op is None):
            self.bind(result, step)

    # --- operands ----------------------------------------------------------------------------------------------
    def own(self, value: Any) -> Any:
        """`value` with every tensor in it one of this trace."""
        kind = type(value)
        if kind is AbstractTensor:
            if value.recorder is not self:
                return self.adopt_foreign(value)
            return value
        if kind is list or kind is tuple:
            return kind([self.own(item) for item in value])
        if isinstance(value, torch.Tensor):
            return self._own_real(value)
        return value

    def adopt_foreign(self, tensor: AbstractTensor) -> AbstractTensor:
        """A tensor another trace made: an error here; traces of bodies override it to take captured operands."""
        raise refuse("aot_escaped", detail=repr(tensor), line=self.line() or "")

    def _own_real(self, value: torch.Tensor) -> AbstractTensor:
        known = self._constants.get(id(value))
        if known is not None:
            return known
        if self.adopt_real is not None and not self.backward:
            return self.adopt_real(value)
        if self.on_real_tensor is not None:
            self.on_real_tensor(value)
        return self.constant(value)

    def lower(self, value: Any, operands: list[Step]) -> Any:
        """The step form of an argument."""
        kind = type(value)
        if kind is AbstractTensor:
            operands.append(value.op)
            return value.op
        if kind is list or kind is tuple or kind is torch.Size:
            made = [self.lower(item, operands) for item in value]
            return made if kind is list else tuple(made)
        return value

    # --- user lines --------------------------------------------------------------------------------------------
    def begin_line(self, stack: str | None) -> None:
        """Operators recorded from now on belong to this place in the user's source."""
        self.stack = stack
        self._sequence.append(torch.autograd._get_sequence_nr())
        self._sequence_stacks.append(stack)

    def line(self) -> str | None:
        """The user's place for what is recorded now; for a backward operator, that of its forward operator."""
        node = torch._C._current_autograd_node()
        if node is not None and self._sequence:
            place = bisect.bisect_right(self._sequence, node._sequence_nr()) - 1
            if place >= 0:
                return self._sequence_stacks[place]
        if self.locate is not None:
            return self.locate()
        return self.stack

    def _explain(self, error: Exception) -> None:
        line = self.line()
        if line and not getattr(error, "_stator_located", False):
            error.add_note(f"while tracing:\n{line.rstrip()}")
            error._stator_located = True  # type: ignore[attr-defined]

    def close(self) -> None:
        """Cut the ties from tensors to this trace, so that nothing outlives it."""
        self.adopt_real = None  # it holds the inputs, and graphs hold the recorder
        self.alive.clear()
        self.values.clear()
        self._constants.clear()


def _tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[AbstractTensor]:
    found: list[AbstractTensor] = []
    map_tensors(lambda tensor: found.append(tensor), [list(args), list(kwargs.values())])  # type: ignore[arg-type]
    return found


_VIEW_OF_CHANGE: dict[Any, OpOverload] = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.as_strided_.default: aten.as_strided.default,
}


def root_step(step: Step) -> Step:
    """The step that made the memory a recorded step shows, along its first operands."""
    memory = step.value.memory
    while step.operands and isinstance(step.value, AbstractTensor):
        source = step.operands[0]
        inner = source.operands[0] if source.kind == CALL and not isinstance(source.value, AbstractTensor) else source
        if not isinstance(inner.value, AbstractTensor) or inner.value.memory is not memory:
            break
        step = inner
    return step


def _storage_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _true_batch_norm(args: tuple[Any, ...]) -> Any:
    """`native_batch_norm` writes its running statistics without saying so; the legit overloads say it."""
    x, weight, bias, mean, _, training, momentum, eps = args
    if mean is None:
        return aten._native_batch_norm_legit.no_stats, (x, weight, bias, training, momentum, eps)
    return aten._native_batch_norm_legit.default, args


def _true_batch_norm_backward(args: tuple[Any, ...]) -> Any:
    """In training the running statistics are not read, and need not be kept for the backward."""
    gradient, x, weight, _, _, mean, deviation, training, eps, mask = args
    if not training:
        return aten.native_batch_norm_backward.default, args
    kept = (gradient, x, weight, None, None, mean, deviation, training, eps, mask)
    return aten.native_batch_norm_backward.default, kept


_TRUE_NAMES[aten.native_batch_norm.default] = _true_batch_norm
_TRUE_NAMES[aten.native_batch_norm_backward.default] = _true_batch_norm_backward
