"""Operators that write their arguments, made functional: they write copies and return them.

Contract. `WriteCopies(op)` is a callable for graphs. Called with the arguments of `op` it clones those that `op`
writes, runs `op` on the clones, and returns a tuple: the results of `op` that are no argument, then the clones in the
order of writing. It serves operators that have no functional variant of their own: custom operators with
`mutates_args`, `out=` variants.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from stator.aot.abstract import evaluate, map_tensors
from stator.aot.operators import argument, facts, replace_argument


class WriteCopies:
    """See the module."""

    has_effects = False

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.__name__ = f"write_copies_{facts(op).name.strip('_')}"
        self.__qualname__ = self.__name__
        self.__module__ = __name__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WriteCopies) and other.op is self.op

    def __hash__(self) -> int:
        return hash((WriteCopies, self.op))

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return self._run(args, kwargs, torch.Tensor.clone, self.op)

    def abstract(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The same on abstract tensors."""

        def clone(tensor: torch.Tensor) -> Any:
            return evaluate(torch.ops.aten.clone.default, (tensor,), {})

        return self._run(args, kwargs, clone, lambda *args, **kwargs: evaluate(self.op, args, kwargs))

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], clone: Any, run: Any) -> tuple[Any, ...]:
        row = facts(self.op)
        copies: list[torch.Tensor] = []
        for position in row.written:
            value = map_tensors(clone, argument(row, position, args, kwargs))
            map_tensors(copies.append, value)
            if value is not None:
                args, kwargs = replace_argument(row, position, args, kwargs, value)
        result = run(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        fresh = [item for item, alias in zip(results, row.returns, strict=False) if alias is None]
        return (*fresh, *copies)
