"""Higher-order operators, torch.func, custom operators and functions traced non-strictly inside of compiled ones."""

import copy
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from against_eager import Cases, check
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as hmap
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import stator


def L(*size):
    return torch.randn(*size, requires_grad=True)


def T(*size):
    return torch.randn(*size)


case = Cases()


@case()
def cond_grad():
    def f(p, x, w):
        return torch.cond(p.sum() > 0, lambda x: (x * w).sin(), lambda x: x + w, (x,))

    return f, lambda: (T(3), L(3), L(3))


@case()
def cond_nested():
    def f(x):
        return torch.cond(
            x.sum() > 0,
            lambda x: torch.cond(x.sum() > 5, lambda x: x * 2, lambda x: x * 3, (x,)),
            lambda x: x - 1,
            (x,),
        )

    return f, lambda: (L(3),)


@case()
def cond_pytree():
    def f(x):
        return torch.cond(x.sum() > 0, lambda d: {"a": d["x"] * 2}, lambda d: {"a": d["x"] - 2}, ({"x": x},))

    return f, lambda: (L(3),)


@case()
def cond_python_bool():
    def f(x):
        return torch.cond(x.shape[0] > 2, lambda x: x * 2, lambda x: x - 2, (x,))

    return f, lambda: (L(3),)


@case(views=False)
def cond_module():
    m = torch.nn.Linear(3, 3)

    def f(x):
        return torch.cond(x.sum() > 0, m, lambda x: x - 2, (x,))

    return f, lambda: (L(3),)


@case()
def while_simple():
    def f(x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.1), (torch.tensor(0), x))

    return f, lambda: (T(3),)


@case("higher_order_results")
def while_int_carry():
    def f(x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.1), (0, x))

    return f, lambda: (T(3),)


@case(fallback="aot_higher_order", views=False)
def while_grad():
    def f(x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * x), (torch.tensor(0), x))[1]

    return f, lambda: (L(3),)


@case(views=False)
def map_grad():
    def f(x, w):
        return hmap(lambda a: (a * w).sin(), x)

    return f, lambda: (L(4, 3), L(3))


@case(views=False)
def map_pytree():
    def f(x, w):
        return hmap(lambda d, w: {"z": (d["a"] * w).sin() + d["b"]}, {"a": x, "b": x * 2}, w)

    return f, lambda: (L(4, 3), L(3))


@case()
def scan_grad():
    def f(c, x, w):
        return scan(lambda c, x: ((c * w + x).tanh(), c * x), c, x)

    return f, lambda: (L(3), L(5, 3), L(3))


@case(views=False)
def scan_reverse_dim():
    def f(c, x):
        return scan(lambda c, x: ((c + x).tanh(), c * x), c, x, dim=1, reverse=True)

    return f, lambda: (L(3), L(3, 5))


@case()
def scan_pytree():
    def f(c, x):
        return scan(lambda c, x: ({"h": (c["h"] + x).tanh()}, (c["h"] * x, x * 2)), {"h": c}, x)

    return f, lambda: (L(3), L(5, 3))


@case(views=False)
def ascan():
    def f(x):
        return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")

    return f, lambda: (L(5, 3),)


@case(views=False)
def ascan_pointwise_tuple():
    def f(x, y):
        return associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, y), 0, combine_mode="generic")

    return f, lambda: (L(5, 3), L(5, 3))


@case(views=False)
def ascan_reverse():
    def f(x):
        return associative_scan(lambda a, b: a + b, x, 1, reverse=True, combine_mode="generic")

    return f, lambda: (L(5, 3),)


@case()
def vmap_simple():
    def f(x, w):
        return vmap(lambda a: (a @ w).tanh())(x)

    return f, lambda: (L(4, 3), L(3, 3))


@case()
def vmap_nested():
    def f(x, y):
        return vmap(vmap(torch.dot, (None, 0)), (0, None))(x, y)

    return f, lambda: (L(4, 3), L(5, 3))


@case()
def vmap_random():
    def f(x):
        return vmap(lambda a: F.dropout(a, 0.5), randomness="different")(x)

    return f, lambda: (L(4, 3),)


@case()
def vmap_chunk():
    def f(x):
        return vmap(lambda a: a.sum() * 2, chunk_size=2)(x)

    return f, lambda: (L(4, 3),)


@case(views=False)
def vmap_outdims():
    def f(x):
        return vmap(lambda a: (a * 2, a.sum()), in_dims=1, out_dims=(1, 0))(x)

    return f, lambda: (L(4, 3),)


@case()
def grad_simple():
    def f(x):
        return grad(lambda a: (a**3).sum())(x)

    return f, lambda: (L(3),)


@case()
def grad_grad():
    def f(x):
        return grad(grad(lambda a: a**3))(x)

    return f, lambda: (torch.tensor(0.5, requires_grad=True),)


@case(views=False)
def per_sample():
    m = torch.nn.Linear(3, 1)

    def f(x):
        p = dict(m.named_parameters())

        def loss(p, x):
            return functional_call(m, p, (x,)).sum()

        return vmap(grad(loss), in_dims=(None, 0))(p, x)

    return f, lambda: (T(4, 3),)


@case()
def fcall():
    m = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))

    def f(x, w):
        return functional_call(m, {"0.weight": w}, (x,))

    return f, lambda: (T(4, 3), L(3, 3))


@case()
def fcall_tied():
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.a = torch.nn.Linear(3, 3)
            s.b = torch.nn.Linear(3, 3)
            s.b.weight = s.a.weight

        def forward(s, x):
            return s.b(s.a(x))

    m = M()

    def f(x, w):
        return functional_call(m, {"a.weight": w}, (x,))

    return f, lambda: (T(4, 3), L(3, 3))


@case(views=False)
def jvp_():
    def f(x, t):
        return jvp(lambda a: a.sin() * a, (x,), (t,))

    return f, lambda: (L(3), T(3))


@case()
def vjp_():
    def f(x, t):
        y, back = vjp(lambda a: a.sin() * a, x)
        return y, back(t)

    return f, lambda: (L(3), T(3))


@case(views=False)
def jac():
    def f(x):
        return (
            jacrev(lambda a: a.sin() * a.sum())(x),
            jacfwd(lambda a: a.sin() * a.sum())(x),
            hessian(lambda a: (a**3).sum())(x),
        )

    return f, lambda: (L(3),)


@case()
def stack_module_state():
    ms = [torch.nn.Linear(3, 2) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(ms)
    base = copy.deepcopy(ms[0]).to("meta")

    def f(x):
        return vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(params, buffers, x)

    return f, lambda: (T(4, 3),)


@case("opaque_callable")
def functionalize_():
    def f(x):
        return torch.func.functionalize(lambda a: a.clone().add_(1))(x)

    return f, lambda: (T(3),)


@case()
def flex():
    from torch.nn.attention.flex_attention import flex_attention

    def f(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)

    return f, lambda: (T(1, 2, 8, 4), T(1, 2, 8, 4), T(1, 2, 8, 4))


@case()
def flex_mask():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def f(q, k, v):
        bm = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
        return flex_attention(q, k, v, block_mask=bm)

    return f, lambda: (T(1, 2, 128, 8), T(1, 2, 128, 8), T(1, 2, 128, 8))


@case()
def flex_mask_outside():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    bm = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")

    def f(q, k, v):
        return flex_attention(q, k, v, block_mask=bm, scale=0.3, enable_gqa=True)

    return f, lambda: (T(1, 4, 128, 8), T(1, 2, 128, 8), T(1, 2, 128, 8))


@case()
def flex_capture_bias():
    from torch.nn.attention.flex_attention import flex_attention

    def f(q, k, v, bias):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j], return_lse=True)

    return f, lambda: (T(1, 2, 8, 4), T(1, 2, 8, 4), T(1, 2, 8, 4), T(2, 8, 8))


@case()
def flex_bias_grad():
    from torch.nn.attention.flex_attention import flex_attention

    def f(q, k, v, bias):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j])

    return f, lambda: (T(1, 2, 8, 4), T(1, 2, 8, 4), T(1, 2, 8, 4), T(2, 8, 8))


@case("higher_order_operator")
def out_dtype_():
    from torch._higher_order_ops.out_dtype import out_dtype

    def f(x, y):
        return out_dtype(torch.ops.aten.mm.default, torch.int32, x, y)

    return f, lambda: (torch.ones(3, 3, dtype=torch.int8), torch.ones(3, 3, dtype=torch.int8))


@case()
def wrap_with_set_grad():
    @torch.no_grad()
    def g(x):
        return x * 2

    def f(x):
        return g(x) + x

    return f, lambda: (L(3),)


@torch.library.custom_op("stator_programs::lists", mutates_args={"xs"})
def lists(xs: list[torch.Tensor], y: torch.Tensor | None = None, s: float = 1.0) -> None:
    for x in xs:
        x.add_(s if y is None else y)


@torch.library.custom_op("stator_programs::optmut", mutates_args={"y"})
def optmut(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    if y is not None:
        y.mul_(2)
    return x + 1


@optmut.register_fake
def _(x, y):
    return torch.empty_like(x)


@torch.library.custom_op("stator_programs::many", mutates_args=())
def many(xs: Sequence[torch.Tensor], k: int) -> list[torch.Tensor]:
    return [x * k for x in xs]


@many.register_fake
def _(xs, k):
    return [torch.empty_like(x) for x in xs]


def _mb(ctx, gs):
    return [g * ctx.k for g in gs], None


def _ms(ctx, inputs, output):
    ctx.k = inputs[1]


many.register_autograd(_mb, setup_context=_ms)


@torch.library.custom_op("stator_programs::kern", mutates_args=(), device_types="cpu")
def kern(x: torch.Tensor) -> torch.Tensor:
    return x.clone() * 3


kern.register_fake(lambda x: torch.empty_like(x))


@torch.library.custom_op("stator_programs::kern2", mutates_args=(), device_types="cuda")
def kern2(x: torch.Tensor) -> torch.Tensor:
    return x.clone() * 3


@kern2.register_kernel("cpu")
def _(x):
    return x * 4


kern2.register_fake(lambda x: torch.empty_like(x))


@kern2.register_vmap
def _(info, in_dims, x):
    return kern2(x), in_dims[0]


kern2.register_autograd(lambda ctx, g: g * 4)


@torch.library.custom_op("stator_programs::nz", mutates_args=())
def nz(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@nz.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("stator_programs::tup", mutates_args=())
def tup(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x * 2, 3


@tup.register_fake
def _(x):
    return torch.empty_like(x), 3


lib = torch.library.Library("stator_programs_lib", "FRAGMENT")
lib.define("foo(Tensor x, Tensor(a!) y) -> ()")


def _foo(x, y):
    y.add_(x)


lib.impl("foo", _foo, "CompositeExplicitAutograd")
lib.define("comp(Tensor x) -> Tensor")
lib.impl("comp", lambda x: x.sin() * 2, "CompositeImplicitAutograd")
lib.define("meta(Tensor x) -> Tensor")
lib.impl("meta", lambda x: x.sin() * 2, "CPU")
lib.impl("meta", lambda x: torch.empty_like(x), "Meta")
lib.define("autog(Tensor x) -> Tensor")
lib.impl("autog", lambda x: x * 2, "CPU")
torch.library.register_fake("stator_programs_lib::autog", lambda x: torch.empty_like(x), lib=lib)
torch.library.register_autograd("stator_programs_lib::autog", lambda ctx, g: g * 9, lib=lib)


@case()
def op_lists():
    def f(a, b):
        lists([a, b])
        lists([a[0:1], b], b[0] * 1, 2.0)
        return a * b

    return f, lambda: (T(3), T(3))


@case()
def op_optmut():
    def f(a, b):
        return optmut(a, b) + b, optmut(a, None)

    return f, lambda: (T(3), T(3))


@case()
def op_many():
    def f(a, b):
        return many([a, b], 3)[0] * many([a.sin()], 2)[0]

    return f, lambda: (L(3), L(3))


@case()
def op_kern():
    def f(a):
        return kern(a) + kern2(a)

    return f, lambda: (T(3),)


@case("operator_error")
def op_kern_vmap():
    def f(a):
        return vmap(kern2)(a), vmap(grad(lambda x: kern2(x).sum()))(a)

    return f, lambda: (T(3, 2),)


@case("operator_error")
def op_nz():
    def f(a):
        return nz(a) * 2

    return f, lambda: (T(6),)


@case()
def op_tup():
    def f(a):
        x, n = tup(a)
        return x * n

    return f, lambda: (T(6),)


@case()
def op_foo():
    def f(a, b):
        torch.ops.stator_programs_lib.foo(a, b)
        z = b.clone()
        torch.ops.stator_programs_lib.foo(a[1:2], z[1:2])
        return b * 2, z

    return f, lambda: (T(3), T(3))


@case()
def op_comp():
    def f(a):
        return torch.ops.stator_programs_lib.comp(a), torch.ops.stator_programs_lib.meta(a.detach())

    return f, lambda: (L(3),)


@case()
def op_autog():
    def f(a):
        return torch.ops.stator_programs_lib.autog(a) * 2

    return f, lambda: (L(3),)


# nonstrict
class P:
    def __init__(s, a, b):
        s.a = a
        s.b = b


torch.utils._pytree.register_pytree_node(
    P, lambda p: ((p.a, p.b), None), lambda c, _: P(*c), serialized_type_name="stator_programs.P"
)


@case()
def ns_pytree():
    @stator.nonstrict_trace
    def g(p, k):
        torch._dynamo_x = 1
        return P(p.a * k, p.b.sum())

    def f(x):
        r = g(P(x, x * 2), 3)
        return r.a, r.b

    return f, lambda: (L(3),)


@case()
def ns_inline():
    def h(x):
        n = 0
        for _ in range(3):
            n += len(str(type(x)))
        return x * 2

    def f(x):
        return stator.nonstrict_trace(h)(x) + 1

    return f, lambda: (L(3),)


@case()
def ns_closure_param():
    m = torch.nn.Linear(3, 3)

    @stator.nonstrict_trace
    def g(x):
        return m(x)

    def f(x):
        return g(x)

    return f, lambda: (L(2, 3),)


@case()
def ns_mutates():
    @stator.nonstrict_trace
    def g(x):
        x.add_(1)
        return x * 2

    def f(x):
        return g(x), x * 3

    return f, lambda: (T(3),)


@case()
def ns_kwargs_none():
    @stator.nonstrict_trace
    def g(x, *, y=None, flag="a"):
        return {"o": [x * 2, None, 3, flag]}

    def f(x):
        return g(x, flag="b")["o"]

    return f, lambda: (L(3),)


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
@pytest.mark.parametrize("name", case)
def test_as_eager(name, backend):
    check(case[name], backend)
