from __future__ import annotations

import platform

import pytest
import torch
from runtime_helpers import build_native
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from stator.runtime.externs import DIRECT
from stator.runtime.native import torch_version
from stator.runtime.program import ProgramBuilder

aten = torch.ops.aten

# Operators whose results their arguments and the seed do not determine, or that change what memory a tensor has.
UNDETERMINED = frozenset(
    """aten.empty.memory_format aten.empty_like.default aten.empty_strided.default aten.new_empty.default
    aten.new_empty_strided.default aten.resize_.default aten.set_.source_Storage_storage_offset
    aten.empty_permuted.default
    aten._ctc_loss.default aten._ctc_loss.Tensor""".split()  # leave what lies beyond each target unset
)


class Recorder(TorchDispatchMode):
    """The operators a function calls, with copies of their arguments from before the call."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if isinstance(function, torch._ops.OpOverload) and str(function) not in UNDETERMINED:
            self.calls.append((function, copied(args), copied(kwargs)))
        return function(*args, **kwargs)


def copied(value):
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return value.clone()
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        if copy.is_conj() != value.is_conj() or copy.is_neg() != value.is_neg():
            return value.clone()
        if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
            return value  # expanded: nothing writes it
        return copy.copy_(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(copied, value)) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {name: copied(entry) for name, entry in value.items()}
    return value


def flat(value):
    if isinstance(value, (list, tuple)):
        return [leaf for entry in value for leaf in flat(entry)]
    return [value]


def program_of(function, args, kwargs):
    """One operator as a program, its tensors as inputs."""
    builder = ProgramBuilder(str(function))
    tensors = []

    def declared(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return builder.input_tensor()
        if isinstance(value, (list, tuple)):
            return [declared(entry) for entry in value]
        return value

    arguments = [declared(value) for value in args]
    named = {name: declared(value) for name, value in kwargs.items()}
    builder.outputs(builder.extern(function, arguments, named))
    return build_native(builder), tensors


def same(one, other):
    if isinstance(one, torch.Tensor):
        assert type(one) is torch.Tensor
        assert one.dtype == other.dtype and one.shape == other.shape and one.layout == other.layout
        if one.layout is torch.strided:
            assert one.stride() == other.stride() and one.device == other.device
        assert one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    elif isinstance(one, float) or isinstance(other, float):
        assert one == other or (one != one and other != other)
    else:
        assert one == other, (one, other)


def check(function, args, kwargs):
    first, second = copied((args, kwargs)), copied((args, kwargs))
    state = torch.get_rng_state()
    try:
        returned = function(*first[0], **first[1])
        expected = flat(returned) if function._schema.returns else []
        error = None
    except Exception as raised:
        expected, error = [], raised
    program, tensors = program_of(function, *second)
    torch.set_rng_state(state)
    if error is not None:
        with pytest.raises(type(error)) as found:
            program(*tensors)
        assert str(found.value) == str(error)
        return program
    found = flat(list(program(*tensors)))
    assert len(found) == len(expected), (found, expected)
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    for one, other in zip(
        tensors, [leaf for leaf in flat(list(first)) if isinstance(leaf, torch.Tensor)], strict=False
    ):
        if one.layout is torch.strided and other.layout is torch.strided:
            same(one, other)  # what the operator writes, and what it must not
    return program


def recorded(info, dtype, most):
    """The operators that `most` samples of an OpInfo call, each form once."""
    seen = {}
    for number, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
        if number >= most:
            break
        with Recorder() as recorder:
            try:
                info(sample.input, *sample.args, **sample.kwargs)
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                continue
        for function, args, kwargs in recorder.calls:
            shape = repr((function, [type(value) for value in flat([*args, *kwargs.values()])]))
            seen.setdefault(shape, (function, args, kwargs))
    return seen.values()


# One of each shape of schema: scalars, optionals, lists of each kind, strings, dtypes, several results, views, writes.
FAST = frozenset(
    """add addmm as_strided baddbmm bmm cat chunk clamp clone cumsum cross diff einsum expand fft.fft fill gather
    index_add index_put index_select isin kthvalue linalg.svd logsumexp lu_solve masked_select max mean meshgrid
    mm native_layer_norm nn.functional.adaptive_avg_pool2d nn.functional.conv2d nn.functional.conv_transpose2d
    nn.functional.embedding nn.functional.interpolate nn.functional.layer_norm nn.functional.pad
    nn.functional.scaled_dot_product_attention nonzero norm permute quantile rand_like randn repeat_interleave roll
    scatter_reduce searchsorted select slice sort split stack sum tensor_split to topk unbind uniform var_mean
    view_as_complex where""".split()
)


def sweep(infos, dtypes, most):
    ways = set()
    failures = []
    for info in infos:
        for dtype in dtypes:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            for function, args, kwargs in recorded(info, dtype, most):
                try:
                    text = check(function, args, kwargs).describe()
                except AssertionError as error:
                    failures.append(f"{info.name} {dtype}: {function}: {error}")
                    continue
                ways.update(way for way in ("direct", "by the dispatcher", "from Python") if f"# {way}" in text)
    assert not failures, "\n".join(failures)
    return ways


@pytest.mark.filterwarnings("ignore")
def test_operators_of_every_schema_shape():
    torch.manual_seed(0)
    infos = [info for info in op_db if info.name in FAST]
    assert {info.name for info in infos} >= FAST - {"native_layer_norm"}
    assert sweep(infos, (torch.float32,), 3) == {"direct", "by the dispatcher", "from Python"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(8))
def test_operators_of_the_whole_table(part):
    torch.manual_seed(0)
    infos = [info for info in op_db if not info.name.startswith("jiterator")]
    sweep(infos[part::8], (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64), 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
def test_direct_operators_over_layouts_and_sizes(dtype):
    def tensor(*shape):
        made = torch.randn(shape, dtype=torch.float32) * 3
        return made.to(dtype)

    scales = [{}] if not dtype.is_floating_point else [{}, {"beta": 0.5, "alpha": 2}, {"beta": 0}]
    if dtype is torch.int64:
        scales = [{}, {"beta": 2, "alpha": 3}]
    for m, k, n in ((3, 4, 5), (0, 4, 5), (3, 0, 5), (1, 1, 1)):
        left, right = tensor(m, k), tensor(k, n)
        for a, b in ((left, right), (tensor(k, m).t(), tensor(n, k).t()), (tensor(m, 2 * k)[:, ::2], right)):
            check(aten.mm.default, (a, b), {})
            check(aten.mm.out, (a, b), {"out": torch.empty(m, n, dtype=dtype)})
            for added in (tensor(n), tensor(m, n), tensor(m, 1)):
                for scale in scales:
                    check(aten.addmm.default, (added, a, b), scale)
                    check(aten.addmm.out, (added, a, b), {**scale, "out": torch.empty(m, n, dtype=dtype)})
        batch = (tensor(2, m, k), tensor(2, k, n))
        check(aten.bmm.default, batch, {})
        check(aten.bmm.out, batch, {"out": torch.empty(2, m, n, dtype=dtype)})
        check(aten.baddbmm.default, (tensor(2, m, n), *batch), scales[-1])
        check(aten.cat.default, ([left, tensor(2, k)],), {})
        check(aten.cat.default, ([tensor(n, k).t(), right],), {"dim": 1})
    check(aten.mm.default, (tensor(3, 4), torch.ones(4, 3, dtype=torch.float16)), {})  # an error
    if dtype is torch.complex64:
        check(aten.mm.default, (tensor(3, 4).conj(), tensor(3, 4).t().conj()), {})


def test_direct_convolutions_and_attention():
    image, filters, bias = torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3), torch.randn(6)
    for with_bias in (bias, None):
        shape = ([2, 1], [1, 0], [1, 2], False, [0, 0], 2)
        for layout in (torch.contiguous_format, torch.channels_last):
            x = image.to(memory_format=layout)
            check(aten.convolution.default, (x, filters, with_bias, *shape), {})
            grad = torch.randn_like(aten.convolution.default(x, filters, with_bias, *shape))
            sizes = None if with_bias is None else [6]
            for mask in ([True, True, with_bias is not None], [False, True, False], [True, False, False]):
                check(aten.convolution_backward.default, (grad, x, filters, sizes, *shape, mask), {})
    q, k, v = torch.randn(3, 2, 4, 16, 8).unbind()
    attention = aten._scaled_dot_product_flash_attention_for_cpu
    for options in ({}, {"scale": 0.3}, {"attn_mask": torch.randn(2, 4, 16, 16)}):
        for causal in (False, True) if "attn_mask" not in options else (False,):
            check(attention.default, (q, k, v, 0.0, causal), options)
            out, logsumexp = attention.default(q, k, v, 0.0, causal, **options)
            backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
            check(backward, (torch.randn_like(out), q, k, v, out, logsumexp, 0.0, causal), options)


def test_direct_operators_leave_other_layouts_to_the_dispatcher():
    sparse = torch.eye(3).to_sparse()
    check(aten.mm.default, (sparse, torch.randn(3, 3)), {})
    check(aten.cat.default, ([sparse, sparse],), {})
    meta = torch.empty(2, 2, device="meta")
    program, _ = program_of(aten.mm.default, (torch.eye(2), torch.eye(2)), {})
    assert program(meta, meta)[0].device.type == "meta"


def small(module, added, left, right, beta=1.0, alpha=1.0, out=None):
    """A product by BLAS alone, or None where it is left to ATen."""
    out = torch.full((left.shape[0], right.shape[1]), 7.0, dtype=left.dtype) if out is None else out
    return out if module.small_product(out, added, left, right, beta, alpha) else None


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only used on x86")
def test_small_products_by_blas_have_the_bits_of_aten(native_runtime):
    module = native_runtime.module
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        for m, k, n in ((2, 2, 2), (3, 4, 5), (8, 8, 8), (17, 33, 6), (64, 64, 64)):
            lefts = (torch.randn(m, k, dtype=dtype), torch.randn(k, m, dtype=dtype).t())
            for left in (*lefts, torch.randn(m, 2 * k, dtype=dtype)[:, k:]):
                for right in (torch.randn(k, n, dtype=dtype), torch.randn(n, k, dtype=dtype).t()):
                    assert torch.equal(small(module, None, left, right), torch.mm(left, right))
                    wide, other = (torch.empty(m, n + 3, dtype=dtype)[:, :n] for _ in range(2))
                    torch.mm(left, right, out=other)  # MKL rounds by the distance of rows, too
                    assert torch.equal(small(module, None, left, right, out=wide), other)
                    for added in (
                        torch.randn(n, dtype=dtype),
                        torch.randn(m, n, dtype=dtype),
                        torch.randn(1, n, dtype=dtype),
                    ):
                        for beta, alpha in ((1.0, 1.0), (0.5, 2.0), (0.0, 1.0)):
                            found = small(module, added, left, right, beta, alpha)
                            assert torch.equal(found, torch.addmm(added, left, right, beta=beta, alpha=alpha))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only used on x86")
def test_what_blas_must_not_compute_is_left_to_aten(native_runtime):
    module = native_runtime.module
    x = torch.randn(4, 4)
    assert small(module, None, x, x) is not None
    complex_numbers = torch.randn(4, 4, dtype=torch.complex64)
    lazy = complex_numbers.conj().imag
    assert lazy.is_neg()
    for left, right in (
        (lazy, x), (x, lazy), (x.half(), x.half()), (x.long(), x.long()), (complex_numbers, complex_numbers),
        (x, x.double()), (x, torch.randn(3, 4)), (torch.randn(4, 1), torch.randn(1, 4)),
        (torch.randn(4, 0), torch.randn(0, 4)), (torch.randn(8, 8)[::2, ::2], x), (x[0], x),
        (torch.randn(1).expand(4, 4), x), (torch.randn(4, 300), torch.randn(300, 900)),
    ):  # fmt: skip
        out = torch.full((left.shape[0], right.shape[-1]), 7.0, dtype=left.dtype)
        assert small(module, None, left, right, out=out) is None and bool((out == 7).all())
    for out in (x, x.t(), torch.empty(4, 5), torch.empty(4, 4).t(), torch.empty(4, 4, dtype=torch.float64)):
        assert small(module, None, x, x, out=out) is None
    for added in (torch.randn(4, 1), torch.randn(()), torch.randn(4, 8)[:, ::2], lazy, torch.randn(4).double()):
        assert small(module, added, x, x) is None
    for precision in ("bf16", "tf32"):
        before = torch.backends.mkldnn.matmul.fp32_precision
        try:
            torch.backends.mkldnn.matmul.fp32_precision = precision
            assert small(module, None, x, x) is None
            assert small(module, None, x.double(), x.double()) is not None
        finally:
            torch.backends.mkldnn.matmul.fp32_precision = before
    assert small(module, None, x, x) is not None


def test_every_direct_row_is_reached_directly(native_runtime):
    for name, (_, shim) in DIRECT.items():
        assert native_runtime.module.has_shim(shim), name


def test_optional_and_undefined_results():
    grad, x, w = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4), torch.ones(3)
    forward = aten.native_batch_norm.default(x, w, w, None, None, True, 0.1, 1e-5)
    args = (grad, x, w, None, None, forward[1], forward[2], True, 1e-5, [True, False, True])
    program, tensors = program_of(aten.native_batch_norm_backward.default, args, {})
    found = program(*tensors)
    expected = aten.native_batch_norm_backward.default(*args)
    assert found[1] is None and expected[1] is None
    assert torch.equal(found[0], expected[0]) and torch.equal(found[2], expected[2])


def test_operators_written_in_cpp_elsewhere_raise_their_own_message():
    library = torch.library.Library("stator_test_cpp", "DEF")
    library.define("undefined(Tensor x) -> Tensor")  # no kernel at all
    program, tensors = program_of(torch.ops.stator_test_cpp.undefined.default, (torch.ones(2),), {})
    # Before 2.12 libtorch has the message printed and does not hand it out: the operator is named at least.
    text = "stator_test_cpp::undefined" if torch_version() >= (2, 12) else r"stator_test_cpp\.undefined"
    with pytest.raises((NotImplementedError, RuntimeError), match=text):
        program(*tensors)
