"""Higher-order operators: one node each, the functions they run as graphs that the graph module owns.

Contract. A program calls `torch.cond`, `while_loop`, `map`, `scan`, `associative_scan` or `checkpoint` with functions
of its own. Torch's Python around each operator is interpreted; at the operator itself its row of `RULES`
interprets the functions (see `bodies`) and records the call as the ecosystem's graphs have it: bodies as `get_attr`
nodes, operands flat, what the bodies use of the enclosing program appended to them, a tuple as result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
import torch.utils.checkpoint
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_function
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from stator.capture.bodies import Body, BodyBuilder, refuse, trace_body
from stator.capture.control import Break
from stator.tensors.abstract import AbstractTensor
from stator.values.constants import is_constant

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer

operators = torch.ops.higher_order


def is_leaf(value: Any) -> bool:
    return type(value) is AbstractTensor


def flat(tracer: Tracer, value: Any) -> tuple[list[Any], Any]:
    """Leaves and structure of a value of the program."""
    tracer.world.read_deep(value)
    return pytree.tree_flatten(value, is_leaf=is_leaf)


def union(bodies: Sequence[Body]) -> list[Any]:
    """What the bodies use of the enclosing program, each value once; every body takes all of it."""
    found = {id(value): value for body in bodies for value in body.builder.lifted_values()}
    for body in bodies:
        body.builder.align(list(found.values()))
    return list(found.values())


def fresh(tensor: AbstractTensor, requires_grad: bool, shape: Any = None) -> AbstractTensor:
    """A result of the operator: a new tensor with the facts of a body's, or a dense one of the shape given."""
    sizes, strides = tensor.shape, tensor.strides
    if shape is not None:
        sizes, strides = torch.Size(shape), dense_strides(shape)
    wanted = requires_grad and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    return AbstractTensor(sizes, strides, tensor.dtype, tensor.device, wanted, not wanted)


def dense_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    strides: list[Any] = []
    total: Any = 1
    for size in reversed(shape):
        strides.insert(0, total)
        total = total * (1 if type(size) is int and size == 0 else size)
    return tuple(strides)


def tensors_of(tracer: Tracer, values: Sequence[Any], what: str) -> list[AbstractTensor]:
    for value in values:
        if type(value) is not AbstractTensor:
            raise refuse(tracer, f"{what} is a {type(value).__name__}, not a tensor", "higher_order_results")
    return list(values)


def emit(
    tracer: Tracer, operator: Any, args: tuple[Any, ...], results: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> tuple[Any, ...]:
    """Record the operator; the results say how the graph computes them."""
    given = tuple(results)
    node = tracer.graph.call(operator, args, kwargs or {}, given)
    tracer.attach_results(node, given, set())
    return given


def hold(tracer: Tracer, body: Body, results: Any, name: str) -> Any:
    """The body's module, owned by the graph under construction."""
    return tracer.graph.attach(name, body.builder.finish(results, name.title().replace("_", "")))


def nodes(body: Body, values: Sequence[AbstractTensor]) -> tuple[list[AbstractTensor], tuple[Any, ...]]:
    """Results of the body in memory of their own, and their nodes."""
    taken: set[int] = set()
    owned = [body.own_result(value, taken) for value in values]
    return owned, tuple(body.builder.node_of(value) for value in owned)


def same_facts(one: AbstractTensor, other: AbstractTensor) -> bool:
    return tuple(one.shape) == tuple(other.shape) and one.dtype is other.dtype and one.device == other.device


def summary(tensor: AbstractTensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def as_given(values: Sequence[Any]) -> Callable[[BodyBuilder], list[Any]]:
    """The enclosing program's values themselves: they are lifted where they are used."""
    return lambda builder: list(values)


# Rules


def _cond(tracer: Tracer, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    tracer.world.read_deep(operands)
    if type(pred) is not AbstractTensor:
        return tracer.call(true_fn if tracer.truth(pred) else false_fn, list(operands), {})
    if pred.numel() != 1:
        raise Break("operator_error", f"torch.cond: a predicate of shape {list(pred.shape)}")
    bodies = [trace_body(tracer, branch, as_given(operands), "torch.cond") for branch in (true_fn, false_fn)]
    (left, structure), (right, other) = (flat(tracer, body.result) for body in bodies)
    if structure != other or len(left) != len(right):
        raise refuse(tracer, "the branches of torch.cond return different structures", "higher_order_results")
    places = [place for place, value in enumerate(left) if is_leaf(value)]
    for one, two in zip(left, right, strict=True):
        if is_leaf(one) and is_leaf(two):
            if not same_facts(one, two):
                text = f"the branches of torch.cond return {summary(one)} and {summary(two)}"
                raise refuse(tracer, text, "higher_order_results")
        elif is_leaf(one) or is_leaf(two) or not is_constant(one) or type(one) is not type(two) or one != two:
            text = "the branches of torch.cond return different values that are not tensors"
            raise refuse(tracer, text, "higher_order_results")
    rows = [nodes(body, [side[place] for place in places]) for body, side in zip(bodies, (left, right), strict=True)]
    for place, (one, two) in enumerate(zip(rows[0][0], rows[1][0], strict=True)):
        if tuple(one.strides) != tuple(two.strides):
            text = f"result {place} of the branches of torch.cond has strides {one.strides} and {two.strides}"
            raise refuse(tracer, text, "higher_order_results")
    lifted = union(bodies)
    held = [
        hold(tracer, body, row[1], name)
        for body, row, name in zip(bodies, rows, ("true_branch", "false_branch"), strict=True)
    ]
    results = [
        fresh(one, one.requires_grad or two.requires_grad) for one, two in zip(rows[0][0], rows[1][0], strict=True)
    ]
    made = emit(tracer, operators.cond, (pred, *held, tuple(lifted)), results)
    leaves = list(left)
    for place, value in zip(places, made, strict=True):
        leaves[place] = value
    return pytree.tree_unflatten(leaves, structure)


def _while_loop(tracer: Tracer, cond_fn: Any, body_fn: Any, carried: Any, additional: Any = ()) -> Any:
    what = "while_loop"
    given = tensors_of(tracer, [*carried], "a carried value of while_loop")

    def make(builder: BodyBuilder) -> list[Any]:
        return [*[builder.stand_in(tensor) for tensor in given], *additional]

    bodies = [trace_body(tracer, function, make, what) for function in (cond_fn, body_fn)]
    decision = bodies[0].result
    if not is_leaf(decision) or decision.numel() != 1:
        raise refuse(tracer, "the condition of while_loop gives no tensor of one element", "higher_order_results")
    values = _carried_results(tracer, given, flat(tracer, bodies[1].result)[0], what)
    owned, result_nodes = nodes(bodies[1], values)
    decided = bodies[0].builder.node_of(decision)
    lifted = union(bodies)
    held = [hold(tracer, bodies[0], decided, "loop_condition"), hold(tracer, bodies[1], result_nodes, "loop_body")]
    results = [
        fresh(value, value.requires_grad or start.requires_grad) for value, start in zip(owned, given, strict=True)
    ]
    return emit(tracer, operators.while_loop, (*held, tuple(given), tuple(lifted)), results)


def _carried_results(
    tracer: Tracer, given: Sequence[AbstractTensor], values: Sequence[Any], what: str
) -> list[AbstractTensor]:
    """What the next turn starts from: of the kind this one started from."""
    if len(values) != len(given):
        text = f"the body of {what} returns {len(values)} values for {len(given)} carried ones"
        raise refuse(tracer, text, "higher_order_results")
    tensors = tensors_of(tracer, values, f"a result of the body of {what}")
    for one, other in zip(given, tensors, strict=True):
        if not same_facts(one, other):
            text = f"the body of {what} turns {summary(one)} into {summary(other)}"
            raise refuse(tracer, text, "higher_order_results")
    return tensors


def _slices(builder: BodyBuilder, xs: Sequence[AbstractTensor]) -> list[AbstractTensor]:
    return [builder.stand_in(tensor, tensor.shape[1:], tensor.strides[1:]) for tensor in xs]


def _map(tracer: Tracer, function: Any, xs: Any, shared: Any = ()) -> Any:
    given = tensors_of(tracer, list(xs), "what map goes over")
    body = trace_body(tracer, function, lambda builder: [*_slices(builder, given), *shared], "map")
    leaves, structure = flat(tracer, body.result)
    owned, result_nodes = nodes(body, tensors_of(tracer, leaves, "a result of the body of map"))
    lifted = union([body])
    held = hold(tracer, body, result_nodes, "map_body")
    length = given[0].shape[0]
    results = [fresh(value, value.requires_grad, (length, *value.shape)) for value in owned]
    made = emit(tracer, operators.map_impl, (held, tuple(given), tuple(lifted)), results)
    return pytree.tree_unflatten(list(made), structure)


def _scan(tracer: Tracer, combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    starts = tensors_of(tracer, list(init), "a carry of scan")
    given = tensors_of(tracer, list(xs), "what scan goes over")

    def make(builder: BodyBuilder) -> list[Any]:
        return [*[builder.stand_in(tensor) for tensor in starts], *_slices(builder, given), *additional_inputs]

    body = trace_body(tracer, combine_fn, make, "scan")
    leaves, structure = flat(tracer, body.result)
    tensors_of(tracer, leaves, "a result of the body of scan")
    _carried_results(tracer, starts, leaves[: len(starts)], "scan")
    owned, result_nodes = nodes(body, leaves)
    lifted = union([body])
    held = hold(tracer, body, result_nodes, "scan_body")
    count, length = len(starts), given[0].shape[0]
    grows = any(value.requires_grad for value in owned)
    results = [fresh(value, grows or start.requires_grad) for value, start in zip(owned[:count], starts, strict=True)]
    results += [fresh(value, grows, (length, *value.shape)) for value in owned[count:]]
    made = emit(tracer, operators.scan, (held, tuple(starts), tuple(given), tuple(lifted)), results)
    return pytree.tree_unflatten(list(made), structure)


def _flex_attention(
    tracer: Tracer, query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, options: Any
) -> Any:
    """Both functions of the user's see numbers of their own: a score and four indices, tensors without dimensions."""
    what = "flex_attention"
    *block_facts, mask_mod = block_mask

    def indices(builder: BodyBuilder) -> list[AbstractTensor]:
        number = AbstractTensor(torch.Size(()), (), torch.int32, query.device, False, True)
        return [builder.stand_in(number) for _ in range(4)]

    def with_score(builder: BodyBuilder) -> list[AbstractTensor]:
        return [builder.stand_in(query, (), ()), *indices(builder)]

    held, operands = [], []
    for function, make, name in ((score_mod, with_score, "score_mod"), (mask_mod, indices, "mask_mod")):
        before, tracer.gathers = tracer.gathers, True
        try:
            body = trace_body(tracer, function, make, what)
        finally:
            tracer.gathers = before
        (result,) = tensors_of(tracer, [body.result], f"the result of a {name} of {what}")
        operands.append(tuple(body.builder.lifted_values()))
        held.append(hold(tracer, body, body.builder.node_of(result), name))
    precise = torch.float64 if query.dtype is torch.float64 else torch.float32
    size = (*query.shape[:-1], value.shape[-1])
    grows = any(tensor.requires_grad for tensor in (query, key, value))
    first = AbstractTensor(torch.Size(size), dense_strides(size), query.dtype, query.device, grows, not grows)
    statistic = AbstractTensor(torch.Size(size[:-1]), dense_strides(size[:-1]), precise, query.device, False, True)
    results = [first, fresh(statistic, grows), fresh(statistic, grows)]
    mask = (*block_facts, held[1])
    return emit(
        tracer, operators.flex_attention, (query, key, value, held[0], mask, scale, options, *operands), results
    )


RULES: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "flex_attention": _flex_attention,
    "while_loop": _while_loop,
    "map_impl": _map,
    "scan": _scan,
}


def call_operator(tracer: Tracer, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """One call of a higher-order operator."""
    tracer.indirect()
    rule = RULES.get(operator.name())
    if rule is None:
        raise Break("higher_order_operator", operator.name())
    return rule(tracer, *args, **kwargs)


# Functions that end in an operator


def _whole(function: Any) -> Callable[..., Any]:
    """Interpreted, and left as a whole: a break inside of it is one before the program's own call."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return tracer._interpret(function, args, kwargs)

    return handler


def _checkpoint(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    rest = dict(kwargs)
    options = {
        name: rest.pop(name, default)
        for name, default in (
            ("use_reentrant", None), ("preserve_rng_state", True), ("context_fn", None),
            ("determinism_check", "default"), ("debug", False), ("early_stop", True),
        )
    }  # fmt: skip
    function, *operands = args if args else (rest.pop("function"),)
    if options["use_reentrant"] is not False:
        raise Break("reentrant_checkpoint")
    if options["context_fn"] not in (None, torch.utils.checkpoint.noop_context_fn):
        raise Break("higher_order_operator", "checkpoint with a context_fn")
    body = trace_body(tracer, function, as_given(operands), "checkpoint", rest)
    leaves, structure = flat(tracer, body.result)
    places = [place for place, value in enumerate(leaves) if is_leaf(value)]
    owned, result_nodes = nodes(body, [leaves[place] for place in places])
    lifted = union([body])
    held = hold(tracer, body, result_nodes, "checkpointed")
    results = [fresh(value, value.requires_grad) for value in owned]
    keep = {"use_reentrant": False, "preserve_rng_state": options["preserve_rng_state"]}
    made = emit(tracer, operators.tag_activation_checkpoint, (held, *lifted), results, keep)
    for place, value in zip(places, made, strict=True):
        leaves[place] = value
    return pytree.tree_unflatten(leaves, structure)


FUNCTIONS: dict[Any, Any] = {
    **{function: _whole(function) for function in (torch.cond, while_loop, map_function, scan, associative_scan)},
    torch.utils.checkpoint.checkpoint: _checkpoint,
}
