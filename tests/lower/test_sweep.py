"""PyTorch's own operator samples through the compiler: a few of each in every run, all of them in the slow sweep."""

import pytest
import torch
from known_failures import KNOWN, KNOWN_LAYOUTS
from lowering_sweep import LAYOUTS, sweep

QUICK = (
    "add", "sub", "mul", "div.floor_rounding", "remainder", "pow", "where", "clamp", "sum", "mean", "var", "argmax",
    "max.reduction_with_dim", "softmax", "log_softmax", "nn.functional.layer_norm", "nn.functional.gelu", "cat",
    "gather", "index_select", "constant_pad_nd", "tril", "flip", "repeat", "permute", "nn.functional.embedding",
    "arange", "masked_fill", "nn.functional.cross_entropy", "sigmoid", "isnan", "logical_and", "bitwise_xor",
    "std_mean", "roll", "unfold", "floor_divide", "copysign", "abs", "isclose", "logaddexp", "nn.functional.hardtanh",
    "nn.functional.pixel_shuffle",
)  # fmt: skip
QUICK_DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def unknown(failures):
    return [
        failure
        for failure in failures
        if (failure.operator, failure.dtype) not in KNOWN and (failure.operator, failure.layout) not in KNOWN_LAYOUTS
    ]


def test_some_samples_of_many_operators():
    assert not unknown(sweep(QUICK, QUICK_DTYPES, limit=2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_of_many_operators_in_other_layouts(layout):
    assert not unknown(sweep(QUICK, (torch.float32,), limit=1, layouts=(layout,)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_samples_of_all_operators():
    failures = list(sweep())
    assert not unknown(failures)
    failures += sweep(limit=3, layouts=tuple(LAYOUTS))
    assert not unknown(failures)
    stale = KNOWN.keys() - {(failure.operator, failure.dtype) for failure in failures}
    assert not stale, f"these pass now: {sorted(stale)}"


def test_the_table_of_failures_names_dtypes_and_reasons():
    for (operator, dtype), reason in KNOWN.items():
        assert hasattr(torch, dtype) and len(reason) > 20, operator
    for (operator, layout), reason in KNOWN_LAYOUTS.items():
        assert layout in LAYOUTS and len(reason) > 20, operator
