"""Higher-order operators under the recorder.

Contract. `run(interpreter, op, args, kwargs)` records one. Rows of `RULES`:

    cond, while_loop, map_impl, scan     one step, the bodies as graphs of their own; the backward is one step too
    associative_scan, flex_attention     what they mean, written out in ATen operators
    checkpoint and other wrappers        their body inline (checkpointed bodies as a region, see `checkpointing`)

Gradients come from an autograd function around the step: its backward records the operator over backward bodies,
which run their body again from the operands (`scan` keeps the carries it passes through).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch._ops import HigherOrderOperator

from stator.aot import recorder as recorder_module
from stator.aot.abstract import fresh
from stator.aot.attention import flex_attention
from stator.aot.bodies import Body, backward_body, forward_body
from stator.aot.checkpointing import run_checkpointed
from stator.aot.recorder import Recorder
from stator.aot.refusal import refuse
from stator.aot.tape import Step

operators = torch.ops.higher_order


class Context:
    """What a rule works with: the recorder, and how to run a body on abstract values."""

    def __init__(self, recorder: Recorder, function: Callable[[Any], Callable[..., Any]]) -> None:
        self.recorder = recorder
        self.function = function

    def body(self, body: Any) -> Callable[..., Any]:
        """The body as `run(recorder, *operands)`: it records with whatever recorder is given."""
        from_interpreter = self.function

        def run(recorder: Recorder, *operands: Any) -> Any:
            return bound(from_interpreter, recorder)(body)(*operands)

        return run

    def emit(self, op: Any, args: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...]:
        """Record one call that gives `values`, each in memory of its own."""
        recorder = self.recorder
        results = tuple(
            fresh(value.shape, value.dtype, value.device, value.stride()) if isinstance(value, torch.Tensor) else value
            for value in values
        )
        owned = [recorder.own(value) if not isinstance(value, Step) else value for value in args]
        step = recorder.write(op, tuple(_lower(recorder, value) for value in owned), {}, results)
        recorder._bind_results(step, results)
        return results


def _lower(recorder: Recorder, value: Any) -> Any:
    if isinstance(value, Step):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_lower(recorder, item) for item in value)
    return recorder.lower(value, [])


def bound(function: Callable[[Any], Callable[..., Any]], recorder: Recorder) -> Callable[[Any], Callable[..., Any]]:
    """How to run a body, for another recorder: interpreters make one of themselves per recorder."""
    rebind = getattr(function, "__self__", None)
    if rebind is not None and hasattr(rebind, "under"):
        found: Callable[[Any], Callable[..., Any]] = rebind.under(recorder).function
        return found
    return function


class _Differentiable(torch.autograd.Function):
    """A recorded operator with a recorded backward."""

    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, *tensors: Any) -> Any:
        ctx.run_backward = backward
        results, kept = forward(tensors)
        ctx.save_for_backward(*[value for value in (*tensors, *kept) if isinstance(value, torch.Tensor)])
        ctx.count = len(tensors)
        ctx.results = [(value.shape, value.dtype, value.device) for value in results]
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors
        whole = [
            torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
            for gradient, (shape, dtype, device) in zip(gradients, ctx.results, strict=True)
        ]
        found = ctx.run_backward(saved[: ctx.count], saved[ctx.count :], whole)
        return (None, None, *found)


def _floating(values: Sequence[Any]) -> list[int]:
    """Numbers of the values that can have gradients."""
    return [
        place
        for place, value in enumerate(values)
        if isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)
    ]


def _needs_gradient(values: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _spread(count: int, places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    row: list[Any] = [None] * count
    for place, value in zip(places, values, strict=True):
        row[place] = value
    return row


# --- cond --------------------------------------------------------------------------------------------------------
def _cond(context: Context, pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any] = ()) -> Any:
    if not isinstance(pred, torch.Tensor):
        return context.function(true_fn if pred else false_fn)(*operands)
    runs = (context.body(true_fn), context.body(false_fn))
    operands = list(operands)
    branches = [forward_body(context.recorder, run, operands, "Branch") for run in runs]
    captured = {id(tensor): tensor for branch in branches for tensor in branch.captured}
    if captured:
        operands += list(captured.values())
        branches = [forward_body(context.recorder, _ignore(run, len(captured)), operands, "Branch") for run in runs]
        runs = (_ignore(runs[0], len(captured)), _ignore(runs[1], len(captured)))
    _check_branches(branches)
    wanted = [place for place in _floating(operands) if operands[place].requires_grad]
    results = _floating(branches[0].values)

    def forward(tensors: Sequence[Any]) -> Any:
        given = _merge(operands, tensors)
        held = [context.recorder.hold(branch.module, "branch") for branch in branches]
        return context.emit(operators.cond, (pred, *held, tuple(given)), branches[0].values), ()

    def backward(tensors: Sequence[Any], kept: Sequence[Any], gradients: Sequence[Any]) -> Any:
        given = _merge(operands, tensors)
        bodies = [backward_body(context.recorder, run, given, wanted, results, "BranchBackward") for run in runs]
        held = [context.recorder.hold(body.module, "branch_backward") for body in bodies]
        dense = [gradients[place].contiguous() for place in results]
        found = context.emit(operators.cond, (pred, *held, (*given, *dense)), bodies[0].values)
        places = [place for place, value in enumerate(operands) if isinstance(value, torch.Tensor)]
        return _spread(len(tensors), [places.index(place) for place in wanted], found)

    return _apply(forward, backward, operands)


def _ignore(run: Callable[..., Any], extra: int) -> Callable[..., Any]:
    """The body with further operands it reaches by itself."""

    def runs(recorder: Recorder, *operands: Any) -> Any:
        return run(recorder, *operands[: len(operands) - extra])

    return runs


def _merge(operands: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    given = iter(tensors)
    return [next(given) if isinstance(value, torch.Tensor) else value for value in operands]


def _apply(forward: Any, backward: Any, operands: Sequence[Any]) -> Any:
    tensors = [value for value in operands if isinstance(value, torch.Tensor)]
    if _needs_gradient(tensors):
        return _Differentiable.apply(forward, backward, *tensors)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return forward(tensors)[0]


def _check_branches(branches: Sequence[Body]) -> None:
    first, second = branches[0].values, branches[1].values
    if len(first) != len(second):
        raise refuse("aot_higher_order", detail=f"`cond` has branches with {len(first)} and {len(second)} results")
    for one, other in zip(first, second, strict=True):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if one.shape != other.shape or one.dtype is not other.dtype or one.device != other.device:
                raise refuse("aot_higher_order", detail=f"`cond` has branches that return {one!r} and {other!r}")


# --- while_loop --------------------------------------------------------------------------------------------------
def _while_loop(
    context: Context, cond_fn: Any, body_fn: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    recorder = context.recorder
    additional = list(additional)
    runs = [context.body(cond_fn), context.body(body_fn)]

    def bodies_of(operands: Sequence[Any]) -> list[Body]:
        return [forward_body(recorder, run, operands, "Loop", run is runs[0]) for run in runs]

    bodies = bodies_of([*carried, *additional])
    captured = {id(tensor): tensor for body in bodies for tensor in body.captured}
    if captured:
        additional += list(captured.values())
        runs = [_ignore(run, len(captured)) for run in runs]
        bodies = bodies_of([*carried, *additional])
    operands = [*carried, *additional]

    def forward(tensors: Sequence[Any]) -> Any:
        given = _merge(operands, tensors)
        held = [recorder.hold(body.module, "loop") for body in bodies]
        split = (tuple(given[: len(carried)]), tuple(given[len(carried) :]))
        return context.emit(operators.while_loop, (*held, *split), bodies[1].values), ()

    def backward(*_: Any) -> Any:
        raise refuse("aot_higher_order", detail="`while_loop` has no gradient: how often it runs depends on values")

    return _apply(forward, backward, operands)


# --- map ---------------------------------------------------------------------------------------------------------
def _slice_of(tensor: Any) -> Any:
    """A stand-in for one element along the first dimension."""
    return fresh(tensor.shape[1:], tensor.dtype, tensor.device)


def _stacked(length: Any, values: Sequence[Any]) -> list[Any]:
    return [fresh((length, *value.shape), value.dtype, value.device) for value in values]


def _slices(operands: Sequence[Any]) -> list[Any]:
    return [_slice_of(tensor) for tensor in operands]


def _map(context: Context, body_fn: Any, xs: Sequence[Any], shared: Sequence[Any] = ()) -> Any:
    recorder, run, length = context.recorder, context.body(body_fn), xs[0].shape[0]
    shared = list(shared)
    body = forward_body(recorder, run, [*_slices(xs), *shared], "Map")
    if body.captured:
        extra = len(body.captured)
        shared, run = shared + body.captured, _ignore(run, extra)
        body = forward_body(recorder, run, [*_slices(xs), *shared], "Map")
    operands, count = [*xs, *shared], len(xs)
    wanted = [place for place in _floating(operands) if operands[place].requires_grad]
    results = _floating(body.values)

    def forward(tensors: Sequence[Any]) -> Any:
        given = _merge(operands, tensors)
        held = recorder.hold(body.module, "map")
        split = (tuple(given[:count]), tuple(given[count:]))
        return context.emit(operators.map_impl, (held, *split), _stacked(length, body.values)), ()

    def arrange(operand: list[Any], gradients: list[Any]) -> list[Any]:
        return [*operand[:count], *gradients, *operand[count:]]

    def backward(tensors: Sequence[Any], kept: Sequence[Any], gradients: Sequence[Any]) -> Any:
        given = _merge(operands, tensors)
        samples = [*_slices(given[:count]), *given[count:]]
        back = backward_body(recorder, run, samples, wanted, results, "MapBackward", arrange)
        held = recorder.hold(back.module, "map_backward")
        mapped = (*given[:count], *[gradients[place].contiguous() for place in results])
        found = context.emit(operators.map_impl, (held, mapped, tuple(given[count:])), _stacked(length, back.values))
        summed = [value if place < count else value.sum(0) for place, value in zip(wanted, found, strict=True)]
        places = [place for place, value in enumerate(operands) if isinstance(value, torch.Tensor)]
        return _spread(len(tensors), [places.index(place) for place in wanted], summed)

    return _apply(forward, backward, operands)


# --- scan --------------------------------------------------------------------------------------------------------
def _scan(context: Context, combine_fn: Any, init: Sequence[Any], xs: Sequence[Any], shared: Sequence[Any] = ()) -> Any:
    recorder, run, length = context.recorder, context.body(combine_fn), xs[0].shape[0]
    shared, carries = list(shared), len(init)
    body = forward_body(recorder, run, [*init, *_slices(xs), *shared], "Scan")
    if body.captured:
        extra = len(body.captured)
        shared, run = shared + body.captured, _ignore(run, extra)
        body = forward_body(recorder, run, [*init, *_slices(xs), *shared], "Scan")
    operands, count = [*init, *xs, *shared], len(xs)
    if not _needs_gradient(operands):
        with torch.no_grad():
            values = [*body.values[:carries], *_stacked(length, body.values[carries:])]
            held = recorder.hold(body.module, "scan")
            return context.emit(operators.scan, (held, tuple(init), tuple(xs), tuple(shared)), values)
    return _ScanGradient(context, run, operands, carries, count, length, body).apply()


class _ScanGradient:
    """A scan that keeps the carries it passes through, and its backward: a scan the other way round."""

    def __init__(
        self, context: Context, run: Any, operands: list[Any], carries: int, count: int, length: Any, body: Body
    ) -> None:
        self.context = context
        self.run = run
        self.operands = operands
        self.carries = carries
        self.count = count
        self.length = length
        self.body = body
        everything = _floating(operands)
        self.wanted = [place for place in everything if place < carries or operands[place].requires_grad]
        self.results = _floating(body.values)

    def apply(self) -> Any:
        return _apply(self.forward, self.backward, self.operands)

    def _split(self, given: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        first, second = self.carries, self.carries + self.count
        return list(given[:first]), list(given[first:second]), list(given[second:])

    def forward(self, tensors: Sequence[Any]) -> Any:
        carries = self.carries
        init, xs, shared = self._split(_merge(self.operands, tensors))

        def keeping(recorder: Recorder, *values: Any) -> Any:
            results = list(torch.utils._pytree.tree_leaves(self.run(recorder, *values)))
            return [*results, *[value.clone() for value in values[:carries]]]

        body = forward_body(self.context.recorder, keeping, [*init, *_slices(xs), *shared], "Scan")
        held = self.context.recorder.hold(body.module, "scan")
        values = [*body.values[:carries], *_stacked(self.length, body.values[carries:])]
        found = self.context.emit(operators.scan, (held, tuple(init), tuple(xs), tuple(shared)), values)
        return found[: len(self.body.values)], found[len(self.body.values) :]

    def backward(self, tensors: Sequence[Any], kept: Sequence[Any], gradients: Sequence[Any]) -> Any:
        context, carries, count = self.context, self.carries, self.count
        init, xs, shared = self._split(_merge(self.operands, tensors))
        of_carry = [place for place in self.wanted if place < carries]
        of_xs = [place for place in self.wanted if carries <= place < carries + count]
        of_shared = [place for place in self.wanted if place >= carries + count]
        moving = [place for place in self.results if place < carries]
        stacked = [place for place in self.results if place >= carries]

        def arrange(operand: list[Any], tangents: list[Any]) -> list[Any]:
            by_result = dict(zip(self.results, tangents, strict=True))
            first, second = carries, carries + count
            return [
                *[by_result[place] for place in moving],
                *operand[:first],
                *operand[first:second],
                *[by_result[place] for place in stacked],
                *operand[second:],
            ]

        samples = [*init, *_slices(xs), *shared]
        back = backward_body(context.recorder, self.run, samples, self.wanted, self.results, "ScanStep", arrange)
        accumulators = [torch.zeros_like(self.operands[place]) for place in of_shared]
        step = self._accumulating(back, len(of_carry), len(of_shared), len(moving))
        start = [*[gradients[place].contiguous() for place in moving], *accumulators]
        reversed_xs = [value.flip(0) for value in (*kept, *xs, *[gradients[place] for place in stacked])]
        whole = forward_body(context.recorder, step, [*start, *_slices(reversed_xs), *shared], "ScanBackward")
        held = context.recorder.hold(whole.module, "scan_backward")
        values = [*whole.values[: len(start)], *_stacked(self.length, whole.values[len(start) :])]
        found = list(context.emit(operators.scan, (held, tuple(start), tuple(reversed_xs), tuple(shared)), values))
        grown = [value.flip(0) for value in found[len(start) :]]
        made = [*found[: len(of_carry)], *grown, *found[len(moving) : len(start)]]
        places = [place for place, value in enumerate(self.operands) if isinstance(value, torch.Tensor)]
        return _spread(len(tensors), [places.index(place) for place in (*of_carry, *of_xs, *of_shared)], made)

    def _accumulating(self, back: Body, carried: int, shared: int, moving: int) -> Callable[..., Any]:
        """One backward step: new gradients of the carry, sums for what all steps share, gradients of this element."""

        def step(recorder: Recorder, *values: Any) -> Any:
            tangents, sums, rest = values[:moving], values[moving : moving + shared], values[moving + shared :]
            found = back.module.forward(*tangents, *rest)
            of_xs = found[carried : len(found) - shared]
            totals = [total + part for total, part in zip(sums, found[len(found) - shared :], strict=True)]
            return [*found[:carried], *totals, *of_xs]

        return step


# --- written out, or inline --------------------------------------------------------------------------------------
def _associative_scan(context: Context, combine_fn: Any, xs: Sequence[Any], shared: Sequence[Any] = ()) -> Any:
    return generic_associative_scan(context.function(combine_fn), list(xs), additional_inputs=tuple(shared))


def _flex_attention(context: Context, *args: Any, **kwargs: Any) -> Any:
    query, key, value, score_mod, block_mask, scale, *rest = args
    mask, score = _bare(context.function(block_mask[-1])), _bare(context.function(score_mod))
    buffers = [*rest[1:], (), ()][:2]
    return flex_attention(query, key, value, score, mask, scale, *buffers)


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A body of one result, which a graph returns in a tuple."""

    def call(*args: Any) -> Any:
        result = function(*args)
        return result[0] if isinstance(result, (tuple, list)) else result

    return call


def _inline(context: Context, body: Any, *args: Any, **kwargs: Any) -> Any:
    return context.function(body)(*args)


def _invoke(context: Context, body: Any, identifier: Any, *args: Any) -> Any:
    return context.function(body)(*args)


def _checkpoint(context: Context, body: Any, *args: Any, **kwargs: Any) -> Any:
    return run_checkpointed(context.recorder, context.function(body), args, {})


def _set_grad_enabled(context: Context, enabled: bool, body: Any, *args: Any) -> Any:
    with torch.set_grad_enabled(enabled):
        return context.function(body)(*args)


def _autocast(
    context: Context, device: str, dtype: Any, enabled: bool, cache: bool | None, body: Any, *args: Any
) -> Any:
    with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache):
        return context.function(body)(*args)


RULES: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "map_impl": _map,
    "scan": _scan,
    "associative_scan": _associative_scan,
    "flex_attention": _flex_attention,
    "tag_activation_checkpoint": _checkpoint,
    "wrap_activation_checkpoint": _checkpoint,
    "wrap": _inline,
    "invoke_subgraph": _invoke,
    "wrap_with_set_grad_enabled": _set_grad_enabled,
    "wrap_with_autocast": _autocast,
}


def run(interpreter: Any, op: HigherOrderOperator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Record one higher-order operator of a graph."""
    return _run(Context(interpreter.recorder, interpreter.function), op, args, kwargs)


def _run(context: Context, op: HigherOrderOperator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    rule = RULES.get(op.name())
    if rule is None:
        line = context.recorder.line() or ""
        raise refuse("aot_higher_order", detail=f"`{op.name()}` has no rule for tracing", line=line)
    return rule(context, *args, **kwargs)


def _run_called(recorder: Recorder, op: HigherOrderOperator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One that Python code called, its bodies Python functions (or graph modules run as they are)."""
    return _run(Context(recorder, lambda body: body), op, args, kwargs)


recorder_module.HIGHER_ORDER.append(_run_called)
