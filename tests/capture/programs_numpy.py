"""NumPy inside of compiled functions: arrays in and out, between tensors, and what is left to NumPy."""

import numpy as np
import torch
from capture_harness import Collection, tensor

import stator

program = Collection("numpy")


def floats():
    return (np.arange(6, dtype=np.float32).reshape(2, 3),)


def integers():
    return (np.arange(6).reshape(2, 3),)


@program(floats, integers, lambda: (np.ones((3, 3)),))
def arithmetic(a):
    return a + 1, a * 2.5, a / 2, a // 2, a**2, -a, abs(a), a > 2, a == a, 1 - a, a % 2, np.maximum(a, 1)


@program(floats)
def functions(a):
    return np.abs(a), np.where(a > 2, a, 0), np.concatenate([a, a], axis=1), np.stack([a, a]), np.zeros((2, 3)) + a


@program(floats, integers)
def reductions(a):
    return a.sum(), a.max(axis=1), a.argmax(), (a > 2).sum(), a.mean(), np.any(a > 4), a.sum() * 2 + 1


@program(floats)
def shapes(a):
    return a.reshape(-1), a.T, a[0, 1:], a[:, None].shape, a.ndim, a.size, len(a), a.dtype, a.astype(np.float64).dtype


@program(floats)
def classes(a):
    return type(a), isinstance(a, np.ndarray), isinstance(a, torch.Tensor), a.dtype == np.float32, type(a + 1)


@program(floats)
def changed_in_place(a):
    a[0] = 5
    a[1] += 1
    a *= 2
    return a, a[0]


@program(floats)
def walked(a):
    return [row * 2 for row in a], [float(size) for size in a.shape]


@program(tensor)
def from_a_tensor_and_back(x):
    a = x.numpy()
    return a + 1, torch.from_numpy(np.square(a)) * 2, torch.as_tensor(a) + x, torch.tensor(a) is x


@program(lambda: (torch.arange(6.0).reshape(2, 3),))
def numbers(x):
    size = np.prod(x.shape)
    return x.reshape(size), x * np.sqrt(4.0), x + torch.from_numpy(np.arange(3)), x * np.pi, int(np.ceil(2.5))


@program(floats, reason="explicit_graph_break")
def arrays_over_a_break(a):
    b = a * 2
    stator.graph_break()
    return b + a, a


@program(floats, reason="numpy_operation")
def left_to_numpy(a):
    data = (a * 2).tobytes()
    return data, np.cumsum(a.astype(np.int32)), np.median(a), np.fft.fft(a).dtype


@program(floats, reason="data_dependent_branch")
def branches_on_values(a):
    return a * 2 if a.sum() > 3 else a


@program(floats)
def the_same_array(a):
    return a, [a, a]


@program(lambda: (np.arange(6.0).reshape(2, 3),))
def copies_are_no_views(x):
    same = x.astype(np.float64)
    same[0] = 9
    flat = x.flatten()
    flat[0] = 8
    view = x.ravel()
    view[1] = 3
    return x, same, flat, view


@program(lambda: (np.arange(6.0).reshape(2, 3),), reason="numpy_operation")
def reversed_views_are_written_through(x):
    y = x[::-1]
    y[0, 0] = 100
    return x, y
