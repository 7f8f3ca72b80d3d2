"""Run PyTorch's own operator samples through the compiler and compare with eager.

Contract. `sweep(names, dtypes, limit)` yields a `Failure` for each (operator, dtype) whose first failing sample is
described. Operators whose results are random or uninitialised are compared by shape only. Used by `test_sweep.py` with
few samples, and as a script over everything (`make sweep-lowering`). Each sample runs as torch gives it; `LAYOUTS` are
the same sample with its tensors in memory otherwise, of which every operator and dtype has the first samples checked.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db

from stator import aot, config
from stator.emit.cpu import Options, compile_graph
from stator.runtime.program import ProgramBuilder

DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int64, torch.int32, torch.uint8,
    torch.bool,
)  # fmt: skip
TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (2e-3, 2e-3)}
# Results depend on the random stream or on memory nobody wrote.
SHAPE_ONLY = frozenset(
    {
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "rand_like",
        "randint_like", "randn_like", "randn", "randint", "bernoulli", "multinomial", "normal", "uniform", "cauchy",
        "exponential", "geometric", "log_normal", "nn.functional.dropout", "nn.functional.dropout2d",
        "nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
        "nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
        "svd_lowrank", "pca_lowrank", "nn.functional.multi_head_attention_forward",
        "empty_strided", "nn.functional.scaled_dot_product_attention",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    operator: str
    dtype: str
    sample: int
    layout: str
    kind: str  # "wrong" or "error"
    text: str


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """Memory in the opposite order of dimensions."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    """Every second element of memory that begins before it."""
    sizes = [*tensor.shape[:-1], tensor.shape[-1] * 2 + 1] if tensor.dim() else [3]
    memory = torch.zeros(sizes, dtype=tensor.dtype)
    view = memory[..., 1::2] if tensor.dim() else memory[1]
    return view.copy_(tensor)


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """One row for all."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() and tensor.shape[0] else tensor


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else turned(tensor)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "turned": turned, "sliced": sliced, "expanded": expanded, "channels last": channels_last,
}  # fmt: skip


class NotTraced(Exception):
    """The sample never reached the compiler: its operator reads values, or has no shape function."""


def compiled(function: Any, inputs: Sequence[torch.Tensor]) -> Any:
    """The function of tensors as a compiled program, by way of a functional graph."""
    graph = torch.fx.Graph()
    places = tuple(graph.placeholder(f"x{number}") for number in range(len(inputs)))
    graph.output(graph.call_function(function, places))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    reached = []

    def compiler(functional: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        reached.append(functional)
        return compile_graph(functional, examples, options=Options(ProgramBuilder))

    try:
        return aot.backend(compiler)(module, list(inputs))
    except Exception as error:
        if reached:
            raise
        raise NotTraced(f"{type(error).__name__}: {error}") from error


def program_of(operator: Any, sample: Any) -> tuple[Any, list[torch.Tensor]]:
    """The sample as a function of its tensors, that returns a flat list."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(*given: torch.Tensor) -> list[Any]:
        rest = iter(given)
        filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        result = operator(first, *args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    return call, tensors


def check_sample(operator: Any, sample: Any, dtype: torch.dtype, name: str, layout: str = "") -> tuple[str, str] | None:
    """What is wrong with one sample, if anything."""
    call, tensors = program_of(operator, sample)
    try:
        if layout:
            tensors = [LAYOUTS[layout](tensor) for tensor in tensors]
        expected = call(*tensors)
    except Exception:
        return None  # eager refuses it
    try:
        found = list(compiled(call, tensors)(*tensors))
    except NotTraced as error:
        return "trace", str(error).splitlines()[0]
    except Exception as error:
        return "error", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    try:
        compare(found, expected, dtype, name)
    except AssertionError as error:
        return "wrong", " ".join(str(error).split())[:200]
    return None


def compare(found: Sequence[Any], expected: Sequence[Any], dtype: torch.dtype, name: str) -> None:
    assert len(found) == len(expected), f"{len(found)} results, eager has {len(expected)}"
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape, f"shape {tuple(mine.shape)}, eager has {tuple(theirs.shape)}"
        assert mine.dtype == theirs.dtype, f"{mine.dtype}, eager has {theirs.dtype}"
        if name in SHAPE_ONLY:
            continue
        relative, absolute = TOLERANCE.get(theirs.dtype, (0.0, 0.0)) if theirs.dtype.is_floating_point else (0.0, 0.0)
        if theirs.dtype.is_complex:
            relative, absolute = 1e-5, 1e-5
        if theirs.dtype == torch.float64:
            relative, absolute = 1e-9, 1e-9
        torch.testing.assert_close(mine, theirs, rtol=relative, atol=absolute, equal_nan=True)
        assert same_layout(mine, theirs), f"strides {mine.stride()}, eager has {theirs.stride()}"


def same_layout(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Strides as eager's, where they matter: of dimensions with several elements."""
    if mine.layout != torch.strided or theirs.layout != torch.strided or theirs.numel() == 0:
        return mine.layout == theirs.layout
    pairs = zip(mine.shape, mine.stride(), theirs.stride(), strict=True)
    return all(size == 1 or own == wanted for size, own, wanted in pairs)


def sweep(
    names: Sequence[str] | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    limit: int = 1000,
    layouts: Sequence[str] = ("",),
) -> Iterator[Failure]:
    """Failures over operators, dtypes, layouts and samples; samples of a failing one end at the first failure."""
    warnings.simplefilter("ignore")
    with config.patch(strict=True):
        for info in op_db:
            full = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
            if names is not None and full not in names:
                continue
            for dtype in dtypes:
                if dtype not in info.supported_dtypes("cpu"):
                    continue
                for layout in layouts:
                    yield from sweep_one(info, full, dtype, limit, layout)


def sweep_one(info: Any, name: str, dtype: torch.dtype, limit: int, layout: str) -> Iterator[Failure]:
    torch.manual_seed(0)
    try:
        samples = list(info.sample_inputs("cpu", dtype))
    except Exception:
        return
    step = max(len(samples) // limit, 1)
    for number in range(0, len(samples), step):
        torch.manual_seed(number)
        with torch.no_grad():
            failed = check_sample(info.op, samples[number], dtype, info.name, layout)
        if failed is not None and failed[0] != "trace":  # what cannot be traced is the tracer's table
            yield Failure(name, str(dtype).removeprefix("torch."), number, layout, *failed)
            return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=1000, help="samples of each operator and dtype")
    parser.add_argument("--dtypes", nargs="*", default=[])
    parser.add_argument("--layouts", nargs="*", default=[""], choices=["", *LAYOUTS])
    parser.add_argument("names", nargs="*", help="operators; all without any")
    options = parser.parse_args()
    chosen = [getattr(torch, name) for name in options.dtypes] or DTYPES
    start, count = time.perf_counter(), 0
    for failure in sweep(options.names or None, chosen, options.limit, options.layouts):
        count += 1
        print(" ".join(map(str, dataclasses.astuple(failure))), flush=True)
    print(f"{count} failures in {time.perf_counter() - start:.0f} s")
