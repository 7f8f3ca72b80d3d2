"""Operators on meta tensors with symbolic sizes, where torch's own kernels refuse them or fix more than they need.

Contract. `RULES` maps an ATen operator to a function `rule(op, args, kwargs)` that computes its result on meta
tensors; NotImplemented means the case is not the rule's. `SymbolicMeta` is the mode that applies it: inside, every
operator with a symbolic tensor goes to its rule, else to torch's meta kernel, else to torch's decomposition, and only
if all refuse, sizes are specialised, with the operator named in the guard's `why`, and the concrete kernel runs.

Why rules at all: structured kernels in C++ take concrete sizes only, and torch's Python references ask of each size
whether it is 1 before they ask whether two sizes are equal. `tests/sizes/known_specialising.json` lists, from a sweep
over torch's operator database, which operators still guard or specialise, and with what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stator.sizes import shapes
from stator.sizes.shapes import Size, is_symbolic

if TYPE_CHECKING:
    from stator.sizes.context import SizeContext

aten = torch.ops.aten
_SYM_MIN: Any = torch.sym_min  # torch does not annotate these
_SYM_MAX: Any = torch.sym_max
_DispatchMode: Any = TorchDispatchMode
Rule = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[OpOverload, Rule] = {}

# Operators whose outcome is the same formula for every size, so that torch's kernels may be told "no" when they ask
# whether a size is 0 or 1 (they choose strides, or a shorter way, by that). The sweep evaluates each at 0 and 1.
_PRESUMING_NAMES = """
    _log_softmax _safe_softmax _softmax _softmax_backward_data _log_softmax_backward_data
    addmm baddbmm bmm mm mv dot vdot addr _cdist_forward
    sum mean var std var_mean std_mean prod all any count_nonzero logsumexp cumsum cumprod cummax cummin sort
    native_group_norm native_layer_norm native_dropout native_dropout_backward embedding
    cat stack split split_with_sizes unsafe_split flip roll rot90 tril triu trace diag_embed diagonal_scatter
    slice_scatter alias_copy diagonal_copy expand_copy permute_copy t_copy transpose_copy unsqueeze_copy
    index index_put index_copy index_fill gather scatter scatter_add scatter_reduce masked_fill masked_scatter
    fill polygamma nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss soft_margin_loss
    binary_cross_entropy binary_cross_entropy_with_logits glu pixel_shuffle pixel_unshuffle channel_shuffle
"""
PRESUMING = frozenset(_PRESUMING_NAMES.split())

# how torch's C++ says that it wants concrete sizes
_REFUSALS = ("only concrete integers", "symbolic sizes/strides", "dispatch_on_subclass", "customized tensor")


def _rule(*operators: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that is called like the operators themselves."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator in operators:
            RULES[operator] = lambda op, args, kwargs: function(*args, **kwargs)
        return function

    return register


def view(tensor: torch.Tensor, sizes: list[Size], strides: list[Size], offset: Size | None = None) -> torch.Tensor:
    """A view of a meta tensor."""
    return shapes.as_strided(tensor, sizes, strides, tensor.storage_offset() if offset is None else offset)


def _layout(tensor: torch.Tensor) -> shapes.Layout:
    return list(tensor.shape), list(tensor.stride())


# --- pointwise ---------------------------------------------------------------------------------------------------
def _one_element(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty([1] * tensor.dim(), dtype=tensor.dtype, device=tensor.device)


def _pointwise(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sizes by broadcasting, strides as TensorIterator gives them; dtypes by the kernel itself on one element."""
    memory_format = kwargs.get("memory_format")
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    sizes, strides = shapes.pointwise_layout([_layout(tensor) for tensor in tensors])
    kinds = _result_kinds(op, args, kwargs)
    target = args[0] if isinstance(args[0], torch.Tensor) else None
    if op._schema.is_mutable:
        if target is None or not all(map(shapes.equal, target.shape, sizes)) or len(sizes) != target.dim():
            return NotImplemented
        return target
    if memory_format is torch.contiguous_format:
        strides = shapes.contiguous_strides(sizes)
    return pytree.tree_map_only(
        torch.dtype, lambda dtype: shapes.empty_strided(sizes, strides, dtype, tensors[0].device), kinds
    )


_kinds: dict[Any, Any] = {}  # operands' dtypes -> results' dtypes: the same few recur through a model


def _result_kinds(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator's results with a dtype in the place of each tensor."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    key = (op, structure, torch.get_default_dtype(), *(_kind_of(leaf) for leaf in leaves))
    found = _kinds.get(key)
    if found is None:
        small = pytree.tree_unflatten(
            [_one_element(x) if isinstance(x, torch.Tensor) else x for x in leaves], structure
        )
        found = pytree.tree_map_only(torch.Tensor, lambda result: result.dtype, op(*small[0], **small[1]))
        if len(_kinds) > 4096:
            _kinds.clear()
        _kinds[key] = found
    return found


def _kind_of(leaf: Any) -> Any:
    """What the dtype of a result may hang on: a tensor's dtype, whether it has dimensions, the type of a number."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.dim() == 0
    return type(leaf) if isinstance(leaf, (bool, int, float, complex, torch.SymInt, torch.SymFloat)) else leaf


# Tagged pointwise, but with arguments that are no operands, or results of another shape.
_NOT_POINTWISE = frozenset({"polygamma", "special_polygamma", "bernoulli"})


def _register_pointwise() -> None:
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace != "aten" or base in _NOT_POINTWISE or "out" in overload.split("_") or overload == "out":
            continue
        operator = getattr(getattr(aten, base, None), overload or "default", None)
        if operator is None or torch.Tag.pointwise not in operator.tags or "Tensor" not in str(operator._schema):
            continue
        if any(argument.is_out for argument in operator._schema.arguments):
            continue
        RULES[operator] = _pointwise


_register_pointwise()
for _operator in (aten.clone.default, aten._to_copy.default, aten.empty_like.default, aten.zeros_like.default):
    RULES[_operator] = _pointwise
for _operator in (aten.ones_like.default, aten.full_like.default, aten.rand_like.default, aten.randn_like.default):
    RULES[_operator] = _pointwise


# --- views -------------------------------------------------------------------------------------------------------
@_rule(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
def _view(x: torch.Tensor, size: Any, *ignored: Any) -> Any:
    new = shapes.infer_size(list(size), shapes.numel(x.shape))
    strides = shapes.view_strides(*_layout(x), new)
    if strides is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
            "contiguous subspaces). Use .reshape(...) instead."
        )
    return view(x, new, strides)


@_rule(aten.expand.default)
def _expand(x: torch.Tensor, size: Any, *, implicit: bool = False) -> Any:
    shift = len(size) - x.dim()
    if shift < 0:
        return NotImplemented
    sizes: list[Size] = []
    strides: list[Size] = []
    for axis, wanted in enumerate(size):
        if axis < shift:
            sizes.append(wanted)
            strides.append(-1)  # known once the dimension inside it is
            continue
        have, stride = x.shape[axis - shift], x.stride()[axis - shift]
        if (isinstance(wanted, int) and wanted == -1) or shapes.known_equal(wanted, have):
            repeats = False
        elif isinstance(have, int) and have == 1:
            repeats = True
        else:
            repeats = shapes.context_of((have, wanted)) is not None and _expands(have, wanted)
            if not repeats and not shapes.equal(have, wanted):
                raise RuntimeError(
                    f"The expanded size of the tensor ({wanted}) must match the existing size ({have}) at "
                    f"non-singleton dimension {axis}.  Target sizes: {list(size)}.  Tensor sizes: {list(x.shape)}"
                )
        sizes.append(wanted if repeats else have)
        strides.append(0 if repeats else stride)
    for axis in reversed(range(shift)):
        inside = sizes[axis + 1] * strides[axis + 1] if axis + 1 < len(sizes) else 1
        strides[axis] = inside if isinstance(sizes[axis], int) and sizes[axis] == 1 else 0
    return view(x, sizes, strides)


def _expands(have: Size, wanted: Size) -> bool:
    """Whether a symbolic dimension of one element is repeated: only asked where the example says so."""
    hints = [value if isinstance(value, int) else value.node.hint for value in (have, wanted)]
    return hints[0] == 1 and hints[1] != 1 and shapes.equal(have, 1)


@_rule(aten.permute.default)
def _permute(x: torch.Tensor, dims: Any) -> Any:
    axes = [axis % max(x.dim(), 1) for axis in dims]
    if sorted(axes) != list(range(x.dim())):
        return NotImplemented
    return view(x, [x.shape[axis] for axis in axes], [x.stride()[axis] for axis in axes])


@_rule(aten.unsqueeze.default)
def _unsqueeze(x: torch.Tensor, dim: int) -> Any:
    if not -x.dim() - 1 <= dim <= x.dim():
        return NotImplemented
    axis = dim % (x.dim() + 1)
    sizes, strides = _layout(x)
    step = sizes[axis] * strides[axis] if axis < x.dim() else 1
    return view(x, [*sizes[:axis], 1, *sizes[axis:]], [*strides[:axis], step, *strides[axis:]])


@_rule(aten.slice.Tensor)
def _slice(x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    if not x.dim() or not -x.dim() <= dim < x.dim() or not isinstance(step, int) or step < 1:
        return NotImplemented
    axis = dim % x.dim()
    length = x.shape[axis]
    first = _from_start(0 if start is None else start, length)
    last = _at_most(_from_start(length if end is None else end, length), length)
    count = _not_negative(last - first)  # no clipping of `first` is needed: beyond the end nothing is left
    if step != 1:
        count = (count + step - 1) // step
    sizes, strides = _layout(x)
    offset = x.storage_offset() + _at_most(first, length, presume=True) * strides[axis]
    sizes[axis], strides[axis] = count, strides[axis] * step
    return view(x, sizes, strides, offset)


def _from_start(position: Size, length: Size) -> Size:
    """A slice bound counted from the start; only the sign of a symbolic one is asked, as Python asks it."""
    if isinstance(position, int) and position == 2**63 - 1:
        return length
    return _not_negative(position + length) if position < 0 else position


def _at_most(position: Size, length: Size, presume: bool = False) -> Size:
    """The smaller one, by `min` so that nothing is decided; `presume` takes sizes of two and more for granted."""
    if isinstance(position, int) and isinstance(length, int):
        return min(position, length)
    context = shapes.context_of((position, length))
    assert context is not None
    algebra = context.algebra
    fits = algebra.ge(context.expr_of(length), context.expr_of(position))
    if context.static(fits) or (presume and context.presumption(fits)):
        return position
    return _simplified(_SYM_MIN(position, length))


def _not_negative(value: Size) -> Size:
    return max(value, 0) if isinstance(value, int) else _simplified(_SYM_MAX(value, 0))


def _simplified(value: Size) -> Size:
    if isinstance(value, int):
        return value
    context = value.node.context
    return shapes.as_size(context, context.simplified(value.node.expr))


# --- padding -----------------------------------------------------------------------------------------------------
@_rule(aten.constant_pad_nd.default)
def _pad(x: torch.Tensor, pad: list[Size], value: Any = 0) -> Any:
    """An empty dimension that is padded is another program: elsewhere the nearest element is read, and dropped."""
    if len(pad) % 2 or len(pad) // 2 > x.dim():
        return NotImplemented
    sizes = list(x.shape)
    for place in range(len(pad) // 2):
        axis, before, after = x.dim() - 1 - place, pad[2 * place], pad[2 * place + 1]
        if shapes.known_equal(before, 0) and shapes.known_equal(after, 0):
            continue
        if isinstance(sizes[axis], torch.SymInt) and not sizes[axis] >= 1:
            return NotImplemented
        sizes[axis] = before + sizes[axis] + after
        if sizes[axis] < 0:
            return NotImplemented
    return shapes.empty_strided(sizes, shapes.contiguous_strides(sizes), x.dtype, x.device)


# --- indexing ----------------------------------------------------------------------------------------------------
@_rule(aten.index.Tensor)
def _index(x: torch.Tensor, indices: list[torch.Tensor | None]) -> Any:
    """Elements at integer places of neighbouring dimensions of a contiguous tensor; else the kernel decides."""
    places = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if not given or any(index.dtype not in (torch.int64, torch.int32) for index in given):
        return NotImplemented
    if places != list(range(places[0], places[-1] + 1)) or not shapes.is_contiguous(*_layout(x)):
        return NotImplemented
    if not all(shapes.is_contiguous(*_layout(index)) for index in given):
        return NotImplemented
    common = shapes.broadcast([list(index.shape) for index in given])
    sizes = [*x.shape[: places[0]], *common, *x.shape[places[-1] + 1 :]]
    return shapes.empty_strided(sizes, shapes.contiguous_strides(sizes), x.dtype, x.device)


# --- questions -----------------------------------------------------------------------------------------------------
@_rule(aten.size.default, aten.sym_size.default)
def _size(x: torch.Tensor) -> Any:
    return x.shape


@_rule(aten.size.int, aten.sym_size.int)
def _size_of(x: torch.Tensor, dim: int) -> Any:
    return x.shape[dim]


@_rule(aten.stride.default, aten.sym_stride.default)
def _stride(x: torch.Tensor) -> Any:
    return x.stride()


@_rule(aten.stride.int, aten.sym_stride.int)
def _stride_of(x: torch.Tensor, dim: int) -> Any:
    return x.stride(dim)


@_rule(aten.sym_numel.default, aten.numel.default)
def _numel(x: torch.Tensor) -> Any:
    return shapes.numel(x.shape)


@_rule(aten.sym_storage_offset.default, aten.storage_offset.default)
def _offset(x: torch.Tensor) -> Any:
    return x.storage_offset()


# --- the mode ----------------------------------------------------------------------------------------------------
class SymbolicMeta(_DispatchMode):  # type: ignore[misc]
    """Inside, torch functions on meta tensors with symbolic sizes compute shapes; see the module's contract."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first dispatch imports torch's own compiler, to be left alone by it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return func(*args, **kwargs) if symbols_in(args, kwargs) is None else run(self, func, args, kwargs)


def run(mode: SymbolicMeta, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operator on symbolic meta tensors."""
    if op._overloadpacket.__name__ in PRESUMING:
        context = symbols_in(args, kwargs)
        if context is not None:
            with context.presuming():
                return _run(mode, op, args, kwargs)
    return _run(mode, op, args, kwargs)


def symbols_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> SizeContext | None:
    """The context of the first symbolic size among arguments."""
    for value in pytree.tree_leaves((args, kwargs)):
        parts = (value,)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            parts = (*value.shape, *value.stride(), value.storage_offset())
        context = shapes.context_of(parts)
        if context is not None:
            return context
    return None


def _run(mode: SymbolicMeta, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rule = RULES.get(op)
    if rule is not None:
        result = rule(op, args, kwargs)
        if result is not NotImplemented:
            return result
    if op._can_decompose():
        with mode:
            result = op.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        if not refuses_symbols(error):
            raise
    decomposition = decomposition_table.get(op)
    if decomposition is not None:
        try:
            with mode:
                return decomposition(*args, **kwargs)
        except RuntimeError as error:
            if not refuses_symbols(error):
                raise
    result = op(*specialised(op, args), **specialised(op, kwargs))
    if not op._schema.is_mutable:
        return result
    target = args[0] if args else None
    if isinstance(target, torch.Tensor) and isinstance(result, torch.Tensor):
        sizes, others = list(target.shape), list(result.shape)
        if len(sizes) == len(others) and all(map(shapes.known_equal, sizes, others)):
            return target
    raise NotImplementedError(f"{op} changes the size of a tensor with symbolic sizes")


def refuses_symbols(error: RuntimeError) -> bool:
    """Whether a kernel says that it takes concrete sizes only."""
    return any(text in str(error) for text in _REFUSALS)


def specialised(op: Any, values: Any) -> Any:
    """Arguments with every symbolic size fixed to its example."""

    def fix(value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return value.node.context.specialise(value.node.expr, f"{op} takes concrete sizes only")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and is_symbolic(value):
            sizes, strides = [fix(size) for size in value.shape], [fix(stride) for stride in value.stride()]
            concrete = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
            return concrete.requires_grad_(value.requires_grad and value.is_leaf)
        return value

    return pytree.tree_map(fix, values)
