"""Programs run twice, eagerly and compiled: everything a caller can see of both must be the same.

`case(*breaks)` collects functions that return `(program, make arguments)`. `check` runs program and compiled program
twice on equal arguments under one seed, then differentiates what came out, and compares results (values, strides,
leaf or not, views), arguments, gradients, the random generator's state, errors, and the reasons for which
graphs ended.
"""

import torch
import torch.utils._pytree as pytree

import stator
from stator import events


class Cases(dict):
    """Programs by name, with the reasons their graphs end."""

    def __call__(self, *breaks, views=True, fallback=None, atol=0, error=None):
        """`error`: the reason for which `aot_eager` refuses; `fallback`: why it runs a graph as it was captured;
        `views`: whether results must agree in being views.
        """

        def add(build):
            self[build.__name__] = (build, set(breaks), views, fallback, atol, error)
            return build

        return add


def leaves(value):
    return [leaf for leaf in pytree.tree_leaves(value) if not callable(leaf) or isinstance(leaf, torch.Tensor)]


def outcome(program, make):
    """What two calls give: results or error, arguments afterwards, gradients, the generator's state."""
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        arguments = make()
        try:
            result = program(*arguments)
            made = [leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
            if made:
                torch.autograd.backward(made, [torch.full_like(one, 0.5) for one in made])
        except Exception as error:
            found.append((type(error), getattr(error, "reason", str(error).splitlines()[0][:60])))
            continue
        found.append((leaves(result), leaves(arguments), torch.get_rng_state()))
    return found


def assert_same(one, other, views, atol):
    assert type(one) is type(other)
    if not isinstance(one, torch.Tensor):
        assert one == other
        return
    assert (one.shape, one.dtype, one.layout, one.requires_grad) == (
        other.shape,
        other.dtype,
        other.layout,
        other.requires_grad,
    )
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    assert one.is_leaf == other.is_leaf and one.stride() == other.stride()
    assert not views or one._is_view() == other._is_view()
    torch.testing.assert_close(one, other, rtol=0, atol=atol, equal_nan=True)
    if one.is_leaf and (one.grad is not None or other.grad is not None):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-6)


def check(case, backend):
    build, expected_breaks, views, fallback, atol, error = case
    program, make = build()
    breaks, fallbacks = set(), set()

    def note(event):
        (breaks if event.kind == "graph_break" else fallbacks).add(event.fields["reason"])

    stator.reset()
    stop = events.subscribe(note, {"graph_break", "fallback"})
    try:
        eager = outcome(program, make)
        ours = outcome(stator.compile(program, backend=backend), make)
    finally:
        stop()
        stator.reset()
    if error is not None and backend != "eager":
        assert ours == [(stator.exc.Unsupported, error)] * 2
        return
    for expected, found in zip(eager, ours, strict=True):
        if isinstance(expected[0], type) or isinstance(found[0], type):
            assert expected == found
            continue
        for one, other in zip(expected, found, strict=True):
            one, other = (one, other) if isinstance(one, list) else ([one], [other])
            assert len(one) == len(other)
            for left, right in zip(one, other, strict=True):
                assert_same(left, right, views, atol)
    assert breaks == expected_breaks
    assert fallbacks == ({fallback} if fallback and backend != "eager" else set())
