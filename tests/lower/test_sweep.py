"""PyTorch's own operator samples through the compiler: a few of each in every run, all of them in the slow sweep."""

import pytest
import torch
from known_failures import KNOWN
from lowering_sweep import sweep

QUICK = (
    "add", "sub", "mul", "div.floor_rounding", "remainder", "pow", "where", "clamp", "sum", "mean", "var", "argmax",
    "max.reduction_with_dim", "softmax", "log_softmax", "nn.functional.layer_norm", "nn.functional.gelu", "cat",
    "gather", "index_select", "constant_pad_nd", "tril", "flip", "repeat", "permute", "nn.functional.embedding",
    "arange", "masked_fill", "nn.functional.cross_entropy", "sigmoid", "isnan", "logical_and", "bitwise_xor",
    "std_mean", "roll", "unfold",
)  # fmt: skip


def unknown(failures):
    return [failure for failure in failures if (failure.operator, failure.dtype) not in KNOWN]


def test_some_samples_of_many_operators():
    assert not unknown(sweep(QUICK, limit=3))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_samples_of_all_operators():
    failures = list(sweep())
    assert not unknown(failures)
    stale = KNOWN.keys() - {(failure.operator, failure.dtype) for failure in failures}
    assert not stale, f"these pass now: {sorted(stale)}"


def test_the_table_of_failures_names_dtypes_and_reasons():
    for (operator, dtype), reason in KNOWN.items():
        assert hasattr(torch, dtype) and len(reason) > 20, operator
