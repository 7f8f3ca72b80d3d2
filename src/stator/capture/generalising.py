"""Makes the sizes and numbers from outside that vary symbolic in one trace.

Contract. What is symbolic is decided by the `DynamicHistory` of the place where the call arrives (`sizes/policy.py`);
here its decisions become symbols, ranges and guards. Sources are told apart by their steps from the root, never by the
identity of what they hold.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.capture.graph import GraphBuilder
from stator.sizes import Decision, DynamicHistory, SizeContext, Treatment
from stator.sizes.marks import marks_of
from stator.sizes.policy import CONSTANT, Path
from stator.tensors.abstract import AbstractTensor
from stator.values.source import Source

# Steps from an argument to what it holds: a number reached so is the caller's, not a setting of some object.
_OF_ARGUMENTS = frozenset({"LOCAL", "INDEX", "KEY"})


def path_of(source: Source) -> Path:
    """The structural name of a source."""
    steps: list[Any] = []
    for step, key in source.path():
        try:
            hash(key)
        except TypeError:
            key = id(key)
        steps.append((step, key))
    return tuple(steps)


class Generaliser:
    """Makes the symbols of one trace."""

    def __init__(self, history: DynamicHistory, graph: GraphBuilder, context: SizeContext) -> None:
        self.history = history
        self.graph = graph
        self.context = context
        self.used = False

    def number(self, value: Any, source: Source) -> Any:
        """The symbolic stand-in of an int or float from outside, or None where it stays a constant."""
        decision = self._decide(value, source, remember=True)
        if decision.treatment is Treatment.CONSTANT:
            return None
        self.used = True
        location = self.context.location()
        source.guard("TYPE_IS", type(value), location)
        if type(value) is float:
            return self.context.symbol_float(source, value)
        symbol = self.context.symbol(source, value, low=None, duck=False)
        if decision.strict:
            self.context.constrain(symbol, decision.low, decision.high, strict=True, mark=decision.mark)
        return symbol

    def would_vary(self, value: Any, source: Source) -> bool:
        """Whether `number` would make a stand-in; remembers nothing."""
        return self._decide(value, source, remember=False).treatment is not Treatment.CONSTANT

    def _decide(self, value: Any, source: Source, remember: bool) -> Decision:
        if source.step in ("LOOKUP", "CONST") or _is_static_attribute(source):
            return CONSTANT
        path = path_of(source)
        given = all(step in _OF_ARGUMENTS for step, _ in path)
        return self.history.number(path, str(source), value, given, remember)

    def tensor(self, abstract: AbstractTensor) -> None:
        """Make the varying sizes of an input symbolic."""
        source, real = abstract.source, abstract.real
        if source is None or real is None or abstract.layout is not torch.strided or not real.dim():
            return
        marks = marks_of(real)
        constant = isinstance(real, torch.nn.Parameter)
        if constant and not marks:
            return
        dims: dict[int, torch.SymInt] = {}
        path, text, rank = path_of(source), str(source), real.dim()
        self.history.rank(path, rank)
        for dim, size in enumerate(real.shape):
            decision = self.history.size(path, text, dim, size, marks, rank, constant)
            if decision.treatment is not Treatment.CONSTANT:
                dims[dim] = self._size(source, dim, size, decision)
        if not dims:
            return
        self.used = True
        sizes: Any = [dims.get(dim, size) for dim, size in enumerate(real.shape)]
        abstract.shape = torch.Size(sizes)
        abstract.strides = self._strides(real, abstract.shape)

    def _size(self, source: Source, dim: int, size: int, decision: Decision) -> torch.SymInt:
        child = source.child("SIZE", dim)
        low = max(decision.low or 0, 0)
        if decision.treatment is Treatment.UNBACKED:
            return self.context.unbacked(str(child), low, decision.high, child)
        duck = not decision.strict  # what must stay dynamic by itself is not made equal to another by its example
        symbol = self.context.symbol(child, size, duck=duck)
        if decision.strict or decision.low is not None or decision.high is not None:
            self.context.constrain(symbol, low, decision.high, strict=decision.strict, mark=decision.mark)
        return symbol

    def _strides(self, real: torch.Tensor, shape: Any) -> tuple[Any, ...]:
        """Strides as products of the sizes inside of them, where they are that; else as they stand."""
        strides: list[Any] = list(real.stride())
        order = sorted(range(real.dim()), key=lambda dim: (real.stride(dim), -dim))
        expected: Any = 1
        value = 1
        for dim in order:
            if real.stride(dim) != value:
                if real.shape[dim] == 1:
                    continue
                expected, value = real.stride(dim), real.stride(dim)
            strides[dim] = expected
            expected = expected * shape[dim]
            value = value * max(real.shape[dim], 1)
        return tuple(strides)


def _is_static_attribute(source: Source) -> bool:
    """Whether it is an attribute of a module whose class `mark_static` names."""
    node = source.parent if source.step == "ATTR" else None
    if node is None:
        return False
    return any(
        guard.kind == "TYPE_IS" and getattr(guard.expected, "_dynamo_marked_static", False)
        for guard in node.guards.values()
    )
