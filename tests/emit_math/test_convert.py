from __future__ import annotations

import harness
import numpy as np
import torch
from llvmlite import ir

from stator.emit.cpu import math

FLOAT, SHORT = ir.FloatType(), ir.IntType(16)


def tricky_floats() -> np.ndarray:
    """Every 16-bit pattern in the upper half with the lower halves that decide rounding, then random bits."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    lower = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1000, 0x0FFF, 0x1001, 0x3000, 0x2FFF, 0x3001]
    fixed = np.concatenate([upper | low for low in lower])
    random = np.random.default_rng(1).integers(0, 2**32, 2**20, dtype=np.uint32)
    return np.concatenate([fixed, random]).view(np.float32)


def as_torch_rounds(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(x).to(dtype).view(torch.int16).numpy().view(np.uint16)


def test_to_bfloat16_has_torchs_bits():
    x = tricky_floats()
    for width in (16, 8, 4):
        found = harness.loop(math.emit_to_bf16_bits, [FLOAT], SHORT, width)(x)
        assert np.array_equal(found, as_torch_rounds(x, torch.bfloat16)), width


def test_to_float16_has_torchs_bits():
    x = tricky_floats()
    for width in (16, 8):
        found = harness.loop(math.emit_to_f16, [FLOAT], SHORT, width)(x)
        assert np.array_equal(found, as_torch_rounds(x, torch.float16)), width


def test_from_sixteen_bits_has_torchs_bits_for_every_pattern():
    every = np.arange(2**16, dtype=np.uint16)
    for emit, dtype in ((math.emit_from_bf16_bits, torch.bfloat16), (math.emit_from_f16, torch.float16)):
        for width in (16, None):
            found = harness.loop(emit, [SHORT], FLOAT, width)(every)
            expected = torch.from_numpy(every.view(np.int16).copy()).view(dtype).float().numpy()
            assert np.array_equal(found.view(np.uint32), expected.view(np.uint32)), (emit.__name__, width)


def test_scalars_round_as_vectors_do():
    x = tricky_floats()[::97].copy()
    for emit, dtype in ((math.emit_to_bf16_bits, torch.bfloat16), (math.emit_to_f16, torch.float16)):
        found = harness.loop(emit, [FLOAT], SHORT, None)(x)
        wide = x[: x.size // 16 * 16].copy()
        assert np.array_equal(found[: wide.size], harness.loop(emit, [FLOAT], SHORT, 16)(wide))
