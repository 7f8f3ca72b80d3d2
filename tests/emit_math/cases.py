"""For every function: torch's operator, a reference of higher precision, and where to try and to time it."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import torch
import torch.nn.functional as F

SPECIAL = np.array([
    0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, -0.5, 1e-45, -1e-45, 1.17e-38, -1.17e-38, 3.4028235e38,
    -3.4028235e38, 88.7, -88.7, 103.9, -103.9, 1e-10, -1e-10, 1e5, 1e10, 1e30, -1e30, 2.0, 3.0, -2.0, 1.5, np.pi, 7.5,
    -7.5,
])  # fmt: skip
SPECIAL_PAIRS = np.array([
    0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e-40, -1e-40, 1e30, -1e30, 7.5,
    -7.5, 1e10, 16777217.0, 4.0, 0.1, -0.1,
])  # fmt: skip

TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
}


def eager(name: str) -> Callable[..., torch.Tensor]:
    return TORCH.get(name) or getattr(torch, name)


def _silu(x):
    return x / (1 + np.exp(-x))


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu_tanh(x):
    u = np.asarray(0.7978845608028654, x.dtype) * (x + np.asarray(0.044715, x.dtype) * x * x * x)
    return x / (1 + np.exp(-2 * u))


def _torch(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """torch's own function in double, for references of float results only."""
    return lambda x: getattr(torch, name)(torch.from_numpy(x)).numpy()


def _precise(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """mpmath, for references of double results, through the 64 bits of a long double."""
    special = {"lgamma": lambda v: mpmath.log(abs(mpmath.gamma(v)))}

    def one(value: float) -> np.longdouble:
        if not 1e-300 < abs(value) < 1e3 or (name == "lgamma" and value <= 0 and value == int(value)):
            return np.longdouble(getattr(torch, name)(torch.tensor(float(value), dtype=torch.float64)).item())
        with mpmath.workprec(120):
            exact = (special.get(name) or getattr(mpmath, name))(mpmath.mpf(float(value)))
            high = float(exact)
            return np.longdouble(high) + (np.longdouble(float(exact - high)) if np.isfinite(high) else 0)

    return lambda x: np.array([one(v) for v in x], np.longdouble)


NUMPY = {
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "silu": _silu, "softplus": _softplus,
    "gelu_tanh": _gelu_tanh, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "round": np.rint,
    "frac": lambda x: x - np.trunc(x), "neg": np.negative, "pow": np.power, "atan2": np.arctan2, "fmod": np.fmod,
    "hypot": np.hypot, "copysign": np.copysign, "minimum": np.minimum, "maximum": np.maximum, "fmin": np.fmin,
    "fmax": np.fmax,
}  # fmt: skip
# torch has these in double only; numpy has them in long double too, where they are the reference of double.
SPECIAL_FUNCTIONS = frozenset({"erf", "erfc", "erfinv", "lgamma"})


def reference(name: str, wide: type) -> Callable[..., np.ndarray]:
    """The function in float64 or long double: `wide`."""
    if name == "gelu":
        erf = reference("erf", wide)
        half, root = wide(0.5), np.sqrt(wide(0.5))
        return lambda x: x * half * (1 + erf((x * root).astype(np.float64) if wide is not np.float64 else x * root))
    if name in SPECIAL_FUNCTIONS:
        return _torch(name) if wide is np.float64 else _precise(name)
    return NUMPY.get(name) or getattr(np, name)


# Where a function is timed, when not on [-5, 5], and tried densely, in addition to bit patterns.
DOMAIN: dict[str, tuple[float, float]] = {
    "log": (0.1, 10), "log2": (0.1, 10), "log10": (0.1, 10), "log1p": (-0.9, 10), "sqrt": (0.1, 10), "rsqrt": (0.1, 10),
    "acosh": (1, 10), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-1, 1), "erfinv": (-1, 1), "lgamma": (0.1, 10),
}  # fmt: skip
# Where the library that eager calls gives up before the result overflows: larger arguments are not tried.
TRUSTED = {"lgamma": 1e36, ("sinh", "double"): 709.0, ("cosh", "double"): 709.0}
# GELU loses its negative tail to cancellation, in eager too: its error counts against its argument.
AGAINST_ARGUMENT = frozenset({"gelu", "gelu_tanh"})


def trusted(name: str, x: np.ndarray) -> np.ndarray:
    """Without the arguments of TRUSTED, and those near the zeros of lgamma, where an error has no relative measure."""
    limit = TRUSTED.get((name, "double"), np.inf) if x.dtype == np.float64 else np.inf
    keep = ~(np.abs(x) > min(limit, TRUSTED.get(name, np.inf)))
    return x[keep & ~(x < 0)] if name == "lgamma" else x[keep]


def bit_patterns(step: int, start: int = 0, stop: int = 2**32) -> np.ndarray:
    return np.arange(start, stop, step, dtype=np.int64).astype(np.uint32).view(np.float32)


def whole(x: np.ndarray, width: int = 32) -> np.ndarray:
    return np.ascontiguousarray(x[: x.size // width * width])


def singles(name: str, step: int) -> np.ndarray:
    """float arguments: special ones, bit patterns, and a dense range."""
    low, high = DOMAIN.get(name, (-20, 20))
    count = min(2**20, 2**32 // step)
    parts = [SPECIAL.astype(np.float32), bit_patterns(step), np.linspace(low, high, count).astype(np.float32)]
    x = np.concatenate(parts)
    return whole(trusted(name, x))


def doubles(name: str, count: int) -> np.ndarray:
    """double arguments: special ones, random bit patterns, and random ones from the function's range."""
    random = np.random.default_rng(5)
    low, high = DOMAIN.get(name, (-20, 20))
    patterns = random.integers(-(2**63), 2**63 - 1, count).view(np.float64)
    wide = (random.random(count) - 0.5) * 1500 if name not in DOMAIN else random.random(count) * high
    near = (random.random(count) - 0.5) * 2.0 ** random.integers(-40, 0, count)
    x = np.concatenate([SPECIAL, random.uniform(low, high, count), patterns, wide, near])
    return whole(trusted(name, x))


def pairs(kind: type, count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    bits = random.integers(-(2**31), 2**31 - 1, 2 * count).astype(np.int32).view(np.float32)
    ordinary = random.normal(size=(4, count)) * np.array([[5], [5], [5], [20]])
    small = random.integers(-20, 20, (2, count))
    left = [np.repeat(SPECIAL_PAIRS, SPECIAL_PAIRS.size), ordinary[0], np.abs(ordinary[1]), bits[:count], small[0]]
    right = [np.tile(SPECIAL_PAIRS, SPECIAL_PAIRS.size), ordinary[2], ordinary[3], bits[count:], small[1]]
    with np.errstate(all="ignore"):
        return whole(np.concatenate(left).astype(kind)), whole(np.concatenate(right).astype(kind))
