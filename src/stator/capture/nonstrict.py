"""Calls recorded whole: functions marked `nonstrict_trace` or `allow_in_graph`, and `torch.autograd.Function`.

Contract. Such a function is not interpreted: it runs on stand-ins to learn what it gives, and the graph calls it with
real tensors. Arguments and results may be nested in any registered pytree; tensors travel flat, everything else is a
constant of the node, frozen and not guarded, as the non-strict model has it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils._python_dispatch import TorchDispatchMode

from stator.capture.control import Break
from stator.tensors import twins
from stator.tensors.abstract import AbstractTensor

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


class FlatCall:
    """A graph node's target: calls `function` with tensors put back where they stood, and gives tensors flat."""

    def __init__(self, function: Any, leaves: list[Any], structure: Any, positions: list[int]) -> None:
        self.function = function
        self.leaves = leaves  # constants; None where a tensor goes
        self.structure = structure
        self.positions = positions
        self.result_structure: Any = None
        self.result_leaves: list[Any] = []
        self.result_positions: list[int] = []
        name = getattr(function, "__name__", type(function).__name__)
        self.__name__ = name.strip("<>")  # fx cannot write the name of a lambda
        self.__qualname__ = self.__name__
        self.__module__ = __name__  # fx writes what it takes for torch's own by name, and would not find this

    def run(self, tensors: tuple[Any, ...]) -> Any:
        """The function's own result."""
        leaves = list(self.leaves)
        for position, tensor in zip(self.positions, tensors, strict=True):
            leaves[position] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        leaves = pytree.tree_leaves(self.run(tensors))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


class _OnMeta(TorchDispatchMode):
    """Real tensors a function reaches by itself take part as meta tensors; none of them is written."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by identity: a real tensor and its twin
        self.reals: dict[int, torch.Tensor] = {}

    def _twin(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type == "meta":
            return value
        known = self.twins.get(id(value))
        if known is None:
            twin = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            known = self.twins[id(value)] = (value, twin)
            self.reals[id(twin)] = value
        return known[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        args, kwargs = pytree.tree_map(self._twin, (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        result = func(*args, **kwargs)
        return pytree.tree_map(lambda value: self.reals.get(id(value), value), result)


def is_leaf(value: Any) -> bool:
    return type(value) is AbstractTensor


def record_call(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Record one call of `function`."""
    for part in (*args, *kwargs.values()):
        tracer.world.read_deep(part)
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=is_leaf)
    positions = [position for position, leaf in enumerate(leaves) if type(leaf) is AbstractTensor]
    tensors = tuple(leaves[position] for position in positions)
    constants = [None if type(leaf) is AbstractTensor else tracer.world.original_of(leaf) for leaf in leaves]
    call = FlatCall(function, constants, structure, positions)

    def shapes(*stand_ins: Any) -> tuple[Any, ...]:
        with _OnMeta():
            result = call.run(stand_ins)
        found, call.result_structure = pytree.tree_flatten(result)
        call.result_leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in found]
        call.result_positions = [position for position, leaf in enumerate(found) if isinstance(leaf, torch.Tensor)]
        return tuple(leaf for leaf in found if isinstance(leaf, torch.Tensor))

    try:
        flat = twins.run(shapes, tensors, {}, _map_flat)
    except Exception as error:
        text = f"{call.__name__}: {type(error).__name__}: {error}".splitlines()[0]
        raise Break("nonstrict_call_failed", text) from None
    node = tracer.graph.call(call, tensors, {}, flat)
    tracer.attach_results(node, flat, {id(tensor) for tensor in tensors})
    result_leaves = list(call.result_leaves)
    for position, tensor in zip(call.result_positions, flat, strict=True):
        result_leaves[position] = tensor
    return pytree.tree_unflatten(result_leaves, call.result_structure)


def _map_flat(value: Any, convert: Any) -> Any:
    return tuple(convert(leaf) for leaf in value) if isinstance(value, tuple) else convert(value)


def scripted_function(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A function that `torch.jit` made: it has no state, and the graph calls it."""
    return record_call(tracer, function, args, kwargs)


def autograd_function(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`SomeFunction.apply(...)`: forward and backward are called by the graph as they are."""
    cls = args[0]
    if cls is BackwardHookFunction:
        raise Break("backward_hook", "its hooks follow the gradients of what goes in and comes out")
    return record_call(tracer, cls.apply, args[1:], kwargs)


def call_whole(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What `nonstrict_trace(function)` gives inside of captured code; a row of `LATE_FUNCTIONS` stands for it there."""
    return function(*args, **kwargs)


def mark_inline(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`nonstrict_trace(function)` in captured code."""
    function = args[0] if args else kwargs["traceable_fn"]
    for cell in getattr(function, "__closure__", None) or ():
        if type(cell.cell_contents) is AbstractTensor:
            raise Break(
                "nonstrict_call_failed", f"{function.__name__}: it closes over a tensor; pass it as an argument"
            )
    return functools.partial(call_whole, function)


def call_marked_inline(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of what `mark_inline` gave."""
    return record_call(tracer, args[0], args[1:], kwargs)
