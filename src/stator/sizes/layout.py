"""Contiguity of symbolic sizes and strides as boolean expressions.

Contract. Each function answers what torch's `TensorImpl` computes from concrete sizes and strides, as one expression
over the symbols, so that a decision on it guards exactly the layout question and not each size in turn. A size of
one or zero needs no guard where the layout holds for every size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stator.sizes.expression import Algebra, Expr

Decide = Callable[[Expr], bool]  # settles a question, by a guard where it must
Static = Callable[[Expr], bool | None]  # settles it without, or not at all

CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}  # rank -> dims, innermost first


def contiguous_strides(algebra: Algebra, sizes: Sequence[Expr]) -> list[Expr]:
    """The strides torch gives a fresh contiguous tensor: an empty dimension counts as one."""
    strides = [algebra.one]
    for size in reversed(sizes[1:]):
        strides.append(algebra.mul(strides[-1], algebra.maximum(size, algebra.one)))
    return strides[::-1][: len(sizes)]


def is_contiguous(algebra: Algebra, static: Static, sizes: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    """Row-major without gaps, or without elements."""
    conditions: list[Expr] = []
    expected, expected_of_empty = algebra.one, algebra.one
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        matches = algebra.eq(stride, expected)
        # the two differ only where a dimension is empty, and then the tensor is contiguous whatever its strides
        if static(matches) is not True and static(algebra.eq(stride, expected_of_empty)) is not True:
            conditions.append(algebra.logical_or(algebra.eq(size, algebra.one), matches))
        expected = algebra.mul(expected, size)
        expected_of_empty = algebra.mul(expected_of_empty, algebra.maximum(size, algebra.one))
    return algebra.logical_or(algebra.eq0(expected), algebra.logical_and(*conditions))


def is_channels_last_contiguous(algebra: Algebra, sizes: Sequence[Expr], strides: Sequence[Expr], rank: int) -> Expr:
    """Without gaps, the channel innermost."""
    if len(sizes) != rank:
        return algebra.false
    conditions: list[Expr] = []
    expected = algebra.one
    for dim in CHANNELS_LAST[rank]:
        matches = algebra.eq(strides[dim], expected)
        conditions.append(algebra.logical_or(algebra.eq(sizes[dim], algebra.one), matches))
        expected = algebra.mul(expected, sizes[dim])
    return algebra.logical_and(*conditions)


def is_channels_last_strides(algebra: Algebra, sizes: Sequence[Expr], strides: Sequence[Expr], rank: int) -> Expr:
    """The channel innermost, gaps allowed; ambiguous layouts (N111, or a broadcast channel) are not."""
    if len(sizes) != rank:
        return algebra.false
    conditions = [algebra.logical_not(algebra.eq0(strides[1]))]
    least = algebra.zero
    for dim in CHANNELS_LAST[rank]:
        size, stride = sizes[dim], strides[dim]
        conditions.append(algebra.logical_not(algebra.eq0(size)))
        conditions.append(algebra.ge(stride, least))
        if dim == 0:
            conditions.append(algebra.logical_not(algebra.eq(least, strides[1])))
        several = algebra.lt(algebra.one, size)
        least = algebra.choose(several, algebra.mul(stride, size), stride)
    return algebra.logical_and(*conditions)


def is_non_overlapping_and_dense(
    algebra: Algebra, static: Static, decide: Decide, sizes: Sequence[Expr], strides: Sequence[Expr]
) -> Expr:
    """Some order of the dimensions has no gaps. That order is decided (and guarded); the rest is the expression."""
    contiguous = is_contiguous(algebra, static, sizes, strides)
    if static(contiguous) is True or _dense_for_every_size(algebra, static, sizes, strides):
        return algebra.true
    two = algebra.integer(2)
    several = [dim for dim in range(len(sizes)) if not decide(algebra.lt(sizes[dim], two))]
    order: list[int] = []
    for dim in several:  # insertion sort by stride; statically ordered pairs cost no guard
        place = len(order)
        while place and decide(algebra.lt(strides[dim], strides[order[place - 1]])):
            place -= 1
        order.insert(place, dim)
    conditions: list[Expr] = []
    expected = algebra.one
    for dim in order:
        conditions.append(algebra.eq(strides[dim], expected))
        expected = algebra.mul(expected, sizes[dim])
    return algebra.logical_or(contiguous, algebra.logical_and(*conditions))


def _dense_for_every_size(algebra: Algebra, static: Static, sizes: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether one order of the dimensions has no gaps whatever the sizes (an empty tensor is contiguous anyway)."""
    remaining = list(range(len(sizes)))
    expected, expected_of_empty = algebra.one, algebra.one
    while remaining:
        for dim in remaining:
            if any(static(algebra.eq(strides[dim], each)) is True for each in (expected, expected_of_empty)):
                break
        else:
            return False
        remaining.remove(dim)
        expected = algebra.mul(expected, sizes[dim])
        expected_of_empty = algebra.mul(expected_of_empty, algebra.maximum(sizes[dim], algebra.one))
    return True
