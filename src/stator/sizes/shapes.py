"""Shape arithmetic for sizes that may be symbolic, asking as little as the result needs.

Contract. Sizes and strides are ints or `torch.SymInt`s of one context; results are too, and what is constant is an
int. Each function asks first what follows from what is known, then for equality, and for 0 or 1 only where the
outcome truly differs: torch's own helpers ask "is it 1?" first, which fixes every size that was ever dynamic.

Errors are those torch raises, in torch's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stator.sizes.expression import Expr
from stator.sizes.node import SizeNode

if TYPE_CHECKING:
    from stator.sizes.context import SizeContext

Size = Any  # int | torch.SymInt
Layout = tuple[list[Size], list[Size]]


def context_of(values: Iterable[Any]) -> SizeContext | None:
    """The context of the first symbolic size."""
    for value in values:
        if isinstance(value, torch.SymInt) and isinstance(value.node, SizeNode):
            context: SizeContext = value.node.context
            return context
    return None


def is_symbolic(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor has a symbolic size, stride or offset of ours."""
    return context_of((*tensor.shape, *tensor.stride(), tensor.storage_offset())) is not None


def empty_strided(sizes: Sequence[Size], strides: Sequence[Size], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A meta tensor of that layout, without the guards C++ would ask to compute its storage's size."""
    context = context_of((*sizes, *strides))
    if context is None:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    with context.shape_only():
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)


def as_strided(tensor: torch.Tensor, sizes: Sequence[Size], strides: Sequence[Size], offset: Size) -> torch.Tensor:
    """A view of a meta tensor, without the guards C++ would ask to check its storage's bounds."""
    context = context_of((*sizes, *strides, offset, *tensor.shape))
    if context is None:
        return torch.as_strided(tensor, sizes, strides, offset)
    with context.shape_only():
        made: torch.Tensor = torch.ops.aten.as_strided.default(tensor, sizes, strides, offset)
    return made


def known_equal(left: Size, right: Size) -> bool:
    """Whether they are equal without a guard."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    context = _context(left, right)
    first, second = context.expr_of(left), context.expr_of(right)
    return first is second or context.facts.decide(context.algebra.eq(first, second)) is True


def equal(left: Size, right: Size) -> bool:
    """Whether they are equal, by a guard where it must be; equal unbacked sizes are promised."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return _equal_or_promised(_context(left, right), left, right)


def _equal_or_promised(context: SizeContext, left: Size, right: Size) -> bool:
    question = context.algebra.eq(context.expr_of(left), context.expr_of(right))
    if context.facts.decide(question) is None and context.hint(question) is None:
        return context.promise(question)
    return context.decide(question)


def _context(*values: Size) -> SizeContext:
    context = context_of(values)
    if context is None:
        raise TypeError(f"no symbolic size of ours among {values}")
    return context


def _hint(value: Size) -> int | None:
    if isinstance(value, int):
        return value
    hint: int | None = value.node.hint
    return hint


def numel(sizes: Sequence[Size]) -> Size:
    """The number of elements."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def contiguous_strides(sizes: Sequence[Size]) -> list[Size]:
    """The strides of a fresh contiguous tensor."""
    strides: list[Size] = [1]
    for size in reversed(sizes[1:]):
        strides.append(strides[-1] * at_least_one(size))
    return strides[::-1][: len(sizes)]


def at_least_one(size: Size) -> Size:
    """An empty dimension counts as one in strides."""
    if isinstance(size, int):
        return max(size, 1)
    context = _context(size)
    algebra = context.algebra
    return as_size(context, context.simplified(algebra.maximum(context.expr_of(size), algebra.one)))


def as_size(context: SizeContext, expr: Expr) -> Size:
    """An int if the expression is constant, else a SymInt."""
    constant = expr.constant
    return context.integer(expr) if constant is None else constant


def broadcast(shapes: Sequence[Sequence[Size]]) -> list[Size]:
    """The common size; raises what torch raises where there is none."""
    rank = max((len(shape) for shape in shapes), default=0)
    sizes: list[Size] = [1] * rank
    for shape in shapes:
        shift = rank - len(shape)
        for axis, length in enumerate(shape):
            sizes[shift + axis] = _common(sizes[shift + axis], length, shift + axis)
    return sizes


def _common(left: Size, right: Size, axis: int) -> Size:
    if known_equal(left, right):
        return left if isinstance(left, int) else right
    if isinstance(left, int) and isinstance(right, int):
        if 1 not in (left, right):
            raise _mismatch(left, right, axis)
        return right if left == 1 else left
    for one, other in ((left, right), (right, left)):
        if isinstance(one, int) and one == 1:
            return other
    first, second = _hint(left), _hint(right)
    if first == second or first is None or second is None:  # unbacked: promised
        if equal(left, right):
            return left if isinstance(left, int) else right
        raise _mismatch(left, right, axis)
    for one, other in ((left, right), (right, left)):
        if _hint(one) == 1 and equal(one, 1):
            return other
    raise _mismatch(left, right, axis)


def _mismatch(left: Size, right: Size, axis: int) -> RuntimeError:
    return RuntimeError(
        f"The size of tensor a ({left}) must match the size of tensor b ({right}) at non-singleton dimension {axis}"
    )


def same_stride(left: Size, right: Size) -> bool:
    """Whether two strides are known to be equal where no size is 0 or 1: no element tells them apart where one is."""
    if known_equal(left, right):
        return True
    context = context_of((left, right))
    if context is None:
        return False
    return context.presumption(context.algebra.eq(context.expr_of(left), context.expr_of(right))) is True


def is_contiguous(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether it follows, without a guard, that the layout is contiguous."""
    return len(sizes) == len(strides) and all(
        same_stride(stride, expected) or known_equal(size, 1)
        for size, stride, expected in zip(sizes, strides, contiguous_strides(sizes), strict=True)
    )


def dense_strides(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether it follows that some order of the dimensions has no gaps and no overlaps."""
    remaining = list(range(len(sizes)))
    expected: Size = 1
    while remaining:
        for axis in remaining:
            if known_equal(sizes[axis], 1) or same_stride(strides[axis], expected):
                break
        else:
            return False
        remaining.remove(axis)
        expected = expected * at_least_one(sizes[axis])
    return True


def pointwise_layout(operands: Sequence[Layout]) -> Layout:
    """Sizes and strides of the result of a pointwise operator, as TensorIterator chooses them.

    How dimensions of 0 or 1 elements are ordered is left open (see `SizeContext.presume`): no element tells.
    """
    shaped = [operand for operand in operands if operand[0]] or list(operands)
    sizes = broadcast([shape for shape, _ in operands])
    same = all(
        len(shape) == len(sizes) and all(map(known_equal, shape, sizes)) for shape, _ in (shaped if sizes else [])
    )
    if same and all(is_contiguous(shape, strides) for shape, strides in shaped):
        return sizes, contiguous_strides(sizes)
    first = list(shaped[0][1])
    if same and all(all(map(same_stride, strides, first)) for _, strides in shaped) and dense_strides(sizes, first):
        return sizes, first
    order = _order([_stretched(operand, sizes) for operand in shaped], sizes)
    if order == list(reversed(range(len(sizes)))):
        return sizes, contiguous_strides(sizes)
    return sizes, strides_in_order(sizes, order)


def strides_in_order(sizes: Sequence[Size], order: Sequence[int]) -> list[Size]:
    """Strides without gaps for dimensions listed from the innermost out."""
    strides: list[Size] = [0] * len(sizes)
    step: Size = 1
    for axis in order:
        strides[axis] = step
        step = step * sizes[axis]
    return strides


def _stretched(operand: Layout, sizes: Sequence[Size]) -> list[Size]:
    """Strides of an operand seen at the broadcast size: zero where it repeats."""
    shape, strides = operand
    shift = len(sizes) - len(shape)
    return [0] * shift + [
        0 if isinstance(length, int) and length == 1 and not known_equal(sizes[shift + axis], 1) else strides[axis]
        for axis, length in enumerate(shape)
    ]


def _order(operands: Sequence[Sequence[Size]], sizes: Sequence[Size]) -> list[int]:
    """Dimensions from the innermost out: by the strides of the first operand that tells two of them apart."""
    order = list(reversed(range(len(sizes))))
    for start in range(1, len(order)):
        moving = start
        for place in range(start - 1, -1, -1):
            verdict = _compare(operands, sizes, order[place], order[moving])
            if verdict > 0:
                order[place], order[moving] = order[moving], order[place]
                moving = place
            elif verdict < 0:
                break
    return order


def _compare(operands: Sequence[Sequence[Size]], sizes: Sequence[Size], inner: int, outer: int) -> int:
    """Positive where the two dimensions must change places."""
    for strides in operands:
        left, right = strides[inner], strides[outer]
        if any(isinstance(side, int) and side == 0 for side in (left, right)):
            continue
        if known_equal(left, right):
            if _less(sizes[outer], sizes[inner]):
                return 1
            continue
        return -1 if _less(left, right) else 1
    return 0


def _less(left: Size, right: Size) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    context = _context(left, right)
    return context.presume(context.algebra.lt(context.expr_of(left), context.expr_of(right)), "order of strides")


def infer_size(sizes: Sequence[Size], count: Size) -> list[Size]:
    """`sizes` of a view with its -1, if any, replaced, for `count` elements; raises what torch raises."""
    text = f"shape '{list(sizes)}' is invalid for input of size {count}"
    missing = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(missing) > 1:
        raise RuntimeError("only one dimension can be inferred")
    if any(isinstance(size, int) and size < -1 for size in sizes):
        raise RuntimeError(f"invalid shape dimension {min(size for size in sizes if isinstance(size, int))}")
    result = list(sizes)
    if not missing:
        if not equal(numel(sizes), count):
            raise RuntimeError(text)
        return result
    given = numel([size for axis, size in enumerate(sizes) if axis != missing[0]])
    if isinstance(given, int) and isinstance(count, int):
        if given == 0:
            raise RuntimeError(
                f"cannot reshape tensor of 0 elements into shape {list(sizes)} because the unspecified dimension size "
                "-1 can be any value and is ambiguous"
            )
        if count % given:
            raise RuntimeError(text)
        result[missing[0]] = count // given
        return result
    if isinstance(given, torch.SymInt) and _cancels(count, given):
        result[missing[0]] = _quotient(count, given)
        return result
    if not equal(count % given, 0):
        raise RuntimeError(text)
    result[missing[0]] = _quotient(count, given)
    return result


def _cancels(count: Size, given: Size) -> bool:
    """Whether the quotient is exact as a polynomial; that `given` is not zero is still asked by the division."""
    context = _context(count, given)
    return context.algebra.exact_quotient(context.expr_of(count), context.expr_of(given)) is not None


def _quotient(count: Size, given: Size) -> Size:
    quotient = count // given
    if isinstance(quotient, torch.SymInt):
        context = _context(quotient)
        return as_size(context, context.simplified(context.expr_of(quotient)))
    return quotient


def view_strides(sizes: Sequence[Size], strides: Sequence[Size], new: Sequence[Size]) -> list[Size] | None:
    """Strides that show a tensor at another size of as many elements without a copy, None where there are none.

    The example sizes say which runs of old and new dimensions belong together; that they do is then guarded.
    """
    if is_contiguous(sizes, strides):
        return contiguous_strides(new)
    kept = [axis for axis, size in enumerate(sizes) if not (isinstance(size, int) and size == 1)]
    old = [(sizes[axis], strides[axis]) for axis in kept]
    result: list[Size] = [0] * len(new)
    axis = len(new) - 1
    while old:
        count, base = old[-1]
        step, size = base, old.pop()[0]
        while old and _continues(old[-1][1], step, size):
            size, step = old[-1][0], old[-1][1]
            count = count * size
            old.pop()
        axis = _fill_run(new, result, axis, count, base)
        if axis is None:
            return None
    while axis >= 0:  # what is left has one element each
        if not equal(new[axis], 1):
            return None
        result[axis] = result[axis + 1] * new[axis + 1] if axis + 1 < len(new) else 1
        axis -= 1
    return result


def _continues(outer: Size, step: Size, size: Size) -> bool:
    """Whether a dimension of that stride continues a run; of an empty tensor it does not matter."""
    return known_equal(outer, step * at_least_one(size)) or equal(outer, step * size)


def _fill_run(new: Sequence[Size], result: list[Size], axis: int, count: Size, step: Size) -> Any:
    """Give strides to the new dimensions, from `axis` inwards-out, whose product is `count`; the next axis or None."""
    filled: Size = 1
    while axis >= 0 and not known_equal(filled, count):
        if _hint(filled) == _hint(count) and _hint(new[axis]) != 1:
            break
        result[axis] = step * filled
        filled = filled * new[axis]
        axis -= 1
    if not equal(filled, count):
        return None
    while axis >= 0 and isinstance(new[axis], int) and new[axis] == 1:  # belongs to the run inside it
        result[axis] = step * filled
        axis -= 1
    return axis
