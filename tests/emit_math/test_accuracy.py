"""Every form of every function against a reference of higher precision, and the eager forms against torch's bits."""

from __future__ import annotations

import warnings

import cases
import harness
import numpy as np
import pytest
import torch

from stator.emit.cpu import math

warnings.filterwarnings("ignore", category=RuntimeWarning)
# Three and more roundings, none of which is worth the time to avoid.
ALLOWED = {"silu": 2.8, "erfinv": 2.1}


def same_bits(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return ((left == right) & (np.signbit(left) == np.signbit(right))) | (np.isnan(left) & np.isnan(right))


def error_of(name: str, x: np.ndarray, found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    if name not in cases.AGAINST_ARGUMENT:
        return harness.ulp_error(found, exact)
    unit = np.spacing(np.abs(x)).astype(exact.dtype)
    error = np.abs(found.astype(exact.dtype) - exact) / unit
    return np.where(np.isfinite(exact), error, 0).astype(np.float64)


@pytest.mark.parametrize("name", sorted(math.UNARY))
def test_float_error(name):
    x = cases.singles(name, 16381)
    exact = cases.reference(name, np.float64)(x.astype(np.float64))
    found = harness.function(name, False, "fast")(x)
    error = error_of(name, x, found, exact)
    worst = error.argmax()
    assert error[worst] < ALLOWED.get(name, 2.0), (x[worst], found[worst], exact[worst])
    if name not in cases.AGAINST_ARGUMENT:
        assert not harness.sign_mistakes(found, exact).any(), x[harness.sign_mistakes(found, exact)]


@pytest.mark.parametrize("name", [name for name in sorted(math.UNARY) if math.UNARY[name].supports(True)])
def test_double_error(name):
    slow = name in cases.SPECIAL_FUNCTIONS or name == "gelu"
    x = cases.doubles(name, 64 if slow else 2**14)
    exact = cases.reference(name, np.longdouble)(x if slow else x.astype(np.longdouble))
    found = harness.function(name, True, "fast", 8)(x)
    error = error_of(name, x, found, exact)
    worst = error.argmax()
    assert error[worst] < ALLOWED.get(name, 2.0), (x[worst], found[worst], exact[worst])


@pytest.mark.parametrize("name", sorted(math.UNARY))
@pytest.mark.parametrize("double", [False, True])
def test_eager_has_torchs_bits(name, double):
    row = math.UNARY[name]
    if not row.supports(double):
        pytest.skip("no form for double")
    if name == "gelu":
        pytest.skip("oneDNN computes it; see the row's note")
    kind = np.float64 if double else np.float32
    x = cases.whole(cases.singles(name, 65521).astype(kind))
    expected = cases.eager(name)(torch.from_numpy(x)).numpy()
    for width in (16, 8, 4):
        found = harness.function(name, double, "eager", width)(x)
        wrong = ~same_bits(found, expected)
        assert not wrong.any(), (width, x[wrong][:3], found[wrong][:3], expected[wrong][:3])


@pytest.mark.parametrize("name", sorted(math.UNARY))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_has_torchs_bits_for_every_16_bit_number(name, dtype):
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    # For gelu in half precision torch calls oneDNN where the processor has FP16 arithmetic: other bits elsewhere.
    with torch.backends.mkldnn.flags(enabled=(name, dtype) != ("gelu", torch.float16)):
        expected = cases.eager(name)(every)
    found = torch.from_numpy(harness.function(name, False, "half")(every.float().numpy())).to(dtype)
    wrong = (found.view(torch.int16) != expected.view(torch.int16)) & ~(found.isnan() & expected.isnan())
    if name == "gelu" and dtype is torch.bfloat16:
        # torch calls oneDNN, whose polynomial differs in a few numbers, flushes denormals and overflows early.
        wrong &= (every.abs() > 3e-38) & (every.abs() < 1.6e38)
        assert int(wrong.sum()) < 40
        assert float((found.double() - expected.double())[wrong].abs().max()) < 2e-5
        return
    assert not wrong.any(), (every[wrong][:5], found[wrong][:5], expected[wrong][:5])


@pytest.mark.parametrize("name", sorted(math.BINARY))
@pytest.mark.parametrize("double", [False, True])
def test_eager_binary_has_torchs_bits(name, double):
    x, y = cases.pairs(np.float64 if double else np.float32, 2**14)
    expected = cases.eager(name)(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    for width in (16, 8, 4):
        found = harness.function(name, double, "eager", width)(x, y)
        wrong = ~same_bits(found, expected)
        assert not wrong.any(), (width, x[wrong][:3], y[wrong][:3], found[wrong][:3], expected[wrong][:3])


def test_pow_error_and_special_cases():
    x, y = cases.pairs(np.float32, 2**18)
    exact = np.power(x.astype(np.float64), y.astype(np.float64))
    found = harness.function("pow", False, "fast")(x, y)
    error = harness.ulp_error(found, exact)
    worst = error.argmax()
    assert error[worst] < 1.5, (x[worst], y[worst], found[worst], exact[worst])
    assert not harness.sign_mistakes(found, exact).any()


@pytest.mark.parametrize("name", [n for n in sorted(math.UNARY) if n != "gelu"])
def test_scalars_and_odd_widths_agree_with_vectors(name):
    """Remaining lanes must not differ from whole vectors, whatever the width they are emitted in."""
    row = math.UNARY[name]
    for double in (False, True):
        if not row.supports(double):
            continue
        x = cases.singles(name, 2**23).astype(np.float64 if double else np.float32)
        x = np.ascontiguousarray(np.concatenate([x, x])[: x.size // 96 * 96])
        for style in ("fast", "eager"):
            wide = harness.function(name, double, style, 16)(x)
            for width in (None, 3, 2, 32):
                found = harness.function(name, double, style, width)(x)
                assert same_bits(found, wide).all(), (double, style, width, x[~same_bits(found, wide)][:3])


@pytest.mark.parametrize("features", ["+avx2,+fma,+f16c", "+sse4.2"])
def test_narrower_processors(features):
    """The forms for hosts without AVX-512, run on this one."""
    bits = 256 if "avx2" in features else 128
    target = math.Target("x86_64", bits, frozenset(features.replace("+", "").split(",")))
    for name in ("exp", "expm1", "tanh", "log", "log1p", "sin", "erf", "erfc", "sigmoid", "sinh", "acosh", "asin"):
        x = cases.singles(name, 2**20 - 1)
        x = np.ascontiguousarray(x[: x.size // 8 * 8])
        exact = cases.reference(name, np.float64)(x.astype(np.float64))
        found = harness.function(name, False, "fast", 8, target, features)(x)
        error = harness.ulp_error(found, exact)
        assert error.max() < 2.0, (name, x[error.argmax()])
    x, y = cases.pairs(np.float32, 2**12)
    found = harness.function("pow", False, "fast", 8, target, features)(x, y)
    assert harness.ulp_error(found, np.power(x.astype(np.float64), y.astype(np.float64))).max() < 1.5
