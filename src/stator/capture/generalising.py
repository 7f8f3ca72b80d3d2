"""Which sizes and numbers from outside are symbolic in a trace.

Contract. A `History` belongs to a place where calls arrive. It remembers, for each source, the first value it was
traced with; a source that comes with a second value is symbolic from then on (`dynamic=None`), so that a size, an
integer or a float costs one recompile at most. `dynamic=True` makes every size symbolic at once, `dynamic=False` none.
Marks on tensors (torch's own spelling) come before both.

Sources are told apart by their steps from the root, never by the identity of what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stator import config
from stator.capture.graph import GraphBuilder
from stator.sizes import SizeContext
from stator.tensors.abstract import AbstractTensor
from stator.values.source import Source

Path = tuple[Any, ...]


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


class History:
    """What the sources of one place were seen to hold."""

    def __init__(self, dynamic: Any) -> None:
        self.dynamic = dynamic
        self.first: dict[Path, Any] = {}
        self.varying: set[Path] = set()

    def varies(self, path: Path, value: Any) -> bool:
        """Whether the source has been seen with another value; remembers this one."""
        if path in self.varying:
            return True
        known = self.first.setdefault(path, value)
        if type(known) is type(value) and (known == value or (known != known and value != value)):
            return False
        self.varying.add(path)
        return True


class Generaliser:
    """Makes the symbols of one trace."""

    def __init__(self, history: History, graph: GraphBuilder, context: SizeContext) -> None:
        self.history = history
        self.graph = graph
        self.context = context
        self.used = False

    def number(self, value: Any, source: Source) -> Any:
        """The symbolic stand-in of an int or float from outside, or None where it stays a constant."""
        if self.history.dynamic is False or source.step in ("LOOKUP", "CONST"):
            return None
        named = str(source) in self._named_sources()
        if type(value) is int:
            if config.specialize_int:
                return None
            varies = config.automatic_dynamic_shapes and self.history.varies(path_of(source), value)
            if not varies and not named:
                return None
            self.used = True
            source.guard("TYPE_IS", int, self.context.location())
            return self.context.symbol(source, value, low=None, duck=False)
        if config.specialize_float or not (named or self.history.varies(path_of(source), value)):
            return None
        self.used = True
        source.guard("TYPE_IS", float, self.context.location())
        return self.context.symbol_float(source, value)

    @staticmethod
    def _named_sources() -> frozenset[str]:
        text = config.dynamic_sources
        if not text:
            return frozenset()
        names = (part.strip() for part in text.split(","))
        return frozenset(name[3:-2] + "" if name.startswith("L['") and name.endswith("']") else name for name in names)

    def tensor(self, abstract: AbstractTensor) -> None:
        """Make the varying sizes of an input symbolic."""
        source, real = abstract.source, abstract.real
        if source is None or real is None or real.layout is not torch.strided or not real.dim():
            return
        marked, weak, static = (
            getattr(real, name, ()) for name in
            ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_static_indices")
        )  # fmt: skip
        if isinstance(real, torch.nn.Parameter) and not marked:
            return
        dims: dict[int, torch.SymInt] = {}
        path = path_of(source)
        ranges = {row.dim: row for row in getattr(real, "_dynamo_dynamic_range", ())}
        for dim, size in enumerate(real.shape):
            if dim in marked or dim in weak:
                pass
            elif dim in static or self.history.dynamic is False:
                continue
            elif self.history.dynamic is True or (
                isinstance(self.history.dynamic, Mapping) and self._declared(source, dim)
            ):
                if size in (0, 1) and not isinstance(self.history.dynamic, Mapping):
                    continue
            elif not config.automatic_dynamic_shapes or not self.history.varies((*path, ("SIZE", dim)), size):
                continue
            row = ranges.get(dim)
            low = 0 if row is None or row.min is None else row.min
            high = None if row is None else row.max
            symbol = self.context.symbol(source.child("SIZE", dim), size, low=low, high=high)
            if dim in marked:
                self.context.constrain(symbol, low, high, strict=True, mark=f"mark_dynamic({source}, {dim})")
            dims[dim] = symbol
        if not dims:
            return
        self.used = True
        sizes: Any = [dims.get(dim, size) for dim, size in enumerate(real.shape)]
        abstract.shape = torch.Size(sizes)
        abstract.strides = self._strides(real, abstract.shape)

    def _declared(self, source: Source, dim: int) -> bool:
        row = self.history.dynamic.get(str(source))
        return row is not None and (dim in row)

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
            value = value * real.shape[dim]
        return tuple(strides)
