"""Lets torch's own Python kernels run without importing the compiler this project stands beside.

Contract. Torch decorates some of its Python functions (reference implementations, kernels of custom operators)
so that their *first call* imports `torch._dynamo`, only to tell that compiler to leave them alone. The import costs
a second. `settle(function)` and `settle_references()` put the answer in place beforehand, in the very slot the
decorator looks into: a forwarder which calls the function directly while `torch._dynamo` is not loaded, and
through its `disable` as torch meant it once something else has loaded it. Behaviour for such other users of torch
is therefore unchanged.

`settle_references` walks torch's reference modules once per process, in about 3 ms, on the first meta fallback.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._functorch.eager_transforms
from torch._compile import _disable_dynamo
from torch._decomp import decomposition_table

from stator.tensors import lazy_symbolic

_SLOT = "__dynamo_disable"
_DECORATED = _disable_dynamo(lambda: None).__code__


class _Forwarder:
    """What the decorator finds in its slot."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.disabled: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return self.function(*args, **kwargs)
        if self.disabled is None:
            self.disabled = sys.modules["torch._dynamo"].disable(self.function, True, wrapping=False)
        return self.disabled(*args, **kwargs)


def _inner_functions(function: types.FunctionType) -> Iterator[types.FunctionType]:
    wrapped = getattr(function, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType):
        yield wrapped
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        if isinstance(content, types.FunctionType):
            yield content


def settle(function: Any) -> None:
    """Answer the decorator on `function` and on every function it wraps."""
    pending = [function]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if not isinstance(current, types.FunctionType) or id(current) in seen:
            continue
        seen.add(id(current))
        inner = list(_inner_functions(current))
        if current.__code__ is _DECORATED:
            for target in inner:
                if _SLOT not in target.__dict__:
                    setattr(target, _SLOT, _Forwarder(target))
        pending.extend(inner)


@functools.cache
def settle_references() -> None:
    """Answer the decorator on all of torch's reference functions and decompositions."""
    lazy_symbolic.install()
    modules = [module for name, module in sys.modules.items() if name.startswith(("torch._refs", "torch._prims"))]
    modules += [torch._meta_registrations, sys.modules["torch._decomp.decompositions"]]
    for module in modules:
        for value in list(vars(module).values()):
            settle(value)
    for value in list(decomposition_table.values()):
        settle(value)


def settle_custom_operator(op: Any) -> None:
    """Answer the decorator on the kernels of a `torch.library.custom_op`."""
    from_library = sys.modules.get("torch._library.custom_ops")
    definition = None if from_library is None else from_library.OPDEFS.get(op._schema.name)
    if definition is not None:
        for kernel in definition._backend_fns.values():
            settle(kernel)


@functools.cache
def settle_transforms() -> None:
    """Let `torch.func.grad` and its kin differentiate without asking a compiler that is not loaded to stand aside."""
    module = torch._functorch.eager_transforms
    original = module._autograd_grad

    @functools.wraps(original)
    def differentiate(
        outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool = False, create_graph: bool = True
    ) -> Any:
        if "torch._dynamo" in sys.modules:
            return original(outputs, inputs, grad_outputs, retain_graph, create_graph)
        weights = [None] * len(outputs) if grad_outputs is None else grad_outputs
        pairs = [(output, weight) for output, weight in zip(outputs, weights, strict=True) if output.requires_grad]
        if not pairs:
            return tuple(torch.zeros_like(value) for value in inputs)
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            inputs,
            None if grad_outputs is None else [weight for _, weight in pairs],
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=True,
        )
        return tuple(
            torch.zeros_like(value) if gradient is None else gradient
            for gradient, value in zip(found, inputs, strict=True)
        )

    module._autograd_grad = differentiate
