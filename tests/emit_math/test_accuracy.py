from __future__ import annotations

import harness
import numpy as np
import pytest
import torch

from stator.emit.cpu import math

SPECIAL = [
    0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, -0.5, 1e-45, -1e-45, 1.17e-38, -1.17e-38, 3.4028235e38,
    -3.4028235e38, 88.7, -88.7, 103.9, -103.9, 1e-10, -1e-10, 1e5, 1e10, 1e30, -1e30, 2.0, 3.0, -2.0, 1.5, np.pi, 7.5,
    -7.5,
]  # fmt: skip


def bit_patterns(step: int) -> np.ndarray:
    every = np.arange(0, 2**32, step, dtype=np.int64).astype(np.uint32).view(np.float32)
    both = np.concatenate([np.array(SPECIAL, np.float32), every])
    return both[: both.size // 16 * 16].copy()


def reference(name: str, x: torch.Tensor) -> torch.Tensor:
    if name == "silu":
        return x / (1 + torch.exp(-x))
    return getattr(torch, name)(x)


@pytest.mark.parametrize("name", sorted(math.UNARY))
def test_float_is_within_two_units_over_bit_patterns(name):
    x = bit_patterns(8191)
    exact = reference(name, torch.from_numpy(x.astype(np.float64))).numpy()
    found = harness.function(name, style="fast")(x)
    error = harness.ulp_error(found, exact)
    worst = error.argmax()
    assert error[worst] < (2.5 if name == "silu" else 2.0), (name, x[worst], found[worst], exact[worst])
    assert not harness.sign_mistakes(found, exact).any()
