"""What autograd, hooks, checkpoints and in-place writes mean inside of compiled functions."""

import pytest
import torch
import torch.nn.functional as F
from against_eager import Cases, check
from torch.utils.checkpoint import checkpoint


def L(*size):
    return torch.randn(*size, requires_grad=True)


def T(*size):
    return torch.randn(*size)


case = Cases()


@case("gradient_call")
def backward_inside():
    def f(x, w):
        y = (x * w).sin()
        y.sum().backward()
        return w.grad + 1

    return f, lambda: (T(3), L(3))


@case("gradient_call")
def grad_inside():
    def f(x, w):
        l = (x * w).tanh().sum()
        (g,) = torch.autograd.grad(l, w)
        return g * 2

    return f, lambda: (T(3), L(3))


@case("gradient_call", error="aot_double_backward")
def grad_inside_create_graph():
    def f(x):
        l = (x**3).sum()
        (g,) = torch.autograd.grad(l, x, create_graph=True)
        return (g * x).sum()

    def outer(x):
        r = f(x)
        return r

    return outer, lambda: (L(3),)


@case("gradient_call", error="aot_double_backward")
def double_backward_inside():
    def f(x):
        l = (x**3).sum()
        (g,) = torch.autograd.grad(l, x, create_graph=True)
        (g**2).sum().backward()
        return x.grad.clone()

    return f, lambda: (L(3),)


@case("gradient_call")
def retain_graph():
    def f(x):
        l = (x**3).sum()
        l.backward(retain_graph=True)
        l.backward()
        return x.grad.clone()

    return f, lambda: (L(3),)


@case("gradient_call")
def backward_twice_err():
    def f(x):
        l = (x**3).sum()
        l.backward()
        l.backward()
        return x.grad.clone()

    return f, lambda: (L(3),)


@case()
def no_grad_island():
    def f(x, w):
        y = x * w
        with torch.no_grad():
            m = y.mean()
            z = m * w
        return y - m + z, m, z

    return f, lambda: (T(3), L(3))


@case()
def enable_grad_in_no_grad():
    def f(x, w):
        with torch.no_grad():
            y = x * w
            with torch.enable_grad():
                z = w * 2 + y
            return y, z

    return f, lambda: (T(3), L(3))


@case("autograd_state", "gradient_call")
def requires_grad_inside():
    def f(x):
        y = x * 2
        y.requires_grad_()
        z = (y * y).sum()
        z.backward()
        return y.grad, z

    return f, lambda: (T(3),)


@case("autograd_state")
def requires_grad_input():
    def f(x):
        x.requires_grad_()
        z = (x * x).sum()
        return z

    return f, lambda: (T(3),)


@case("autograd_state", "gradient_call")
def requires_grad_input_backward():
    def f(x):
        x.requires_grad_()
        z = (x * x).sum()
        z.backward()
        return z, x.grad

    return f, lambda: (T(3),)


@case()
def detach_inside():
    def f(x):
        y = x.detach() * 2
        return y * x, y, x.detach()

    return f, lambda: (L(3),)


@case()
def detach_():
    def f(x):
        y = x * 2
        y.detach_()
        return y * x, y

    return f, lambda: (L(3),)


@case("tensor_attribute")
def set_data():
    def f(x, y):
        x.data = y * 2
        return x + 1

    return f, lambda: (T(3), T(3))


@case()
def data_write():
    def f(x, w):
        w.data.mul_(0.5)
        return (x * w).sum()

    return f, lambda: (T(3), L(3))


@case()
def data_copy():
    def f(x, w):
        w.data.copy_(x)
        return w * 2

    return f, lambda: (T(3), L(3))


@case()
def no_grad_param_update():
    def f(x, w):
        y = (x * w).sum()
        with torch.no_grad():
            w.sub_(0.1 * x)
        return y * 2

    return f, lambda: (T(3), L(3))


@case()
def no_grad_param_update_then_use():
    def f(x, w):
        with torch.no_grad():
            w.sub_(0.1 * x)
        return (w * w * x).sum()

    return f, lambda: (T(3), L(3))


@case("operator_error")
def leaf_inplace_error():
    def f(w):
        return w.mul_(2)

    return f, lambda: (L(3),)


@case("gradient_call")
def saved_modified_error():
    def f(w):
        y = w.sin()
        z = y * y
        y.add_(1)
        z.sum().backward()
        return w.grad

    return f, lambda: (L(3),)


@case()
def view_of_mutated_input():
    def f(x):
        v = x[1:]
        x.mul_(2)
        return v, v + 1, x.view(-1)

    return f, lambda: (T(3, 2),)


@case()
def view_mutated_nonleaf():
    def f(x, w):
        y = x * w
        v = y[0]
        v.mul_(w[0])
        y.add_(1)
        return y, v

    return f, lambda: (T(3, 2), L(3, 2))


@case()
def synthetic_base():
    def f(x, y):
        x.add_(1)
        return x * y

    return f, lambda: (lambda b: (b[:2], b[1:]))(T(3, 2))


@case()
def synthetic_base_grad():
    def f(x, y, w):
        x.add_(w)
        return (x * y).sum()

    return f, lambda: (lambda b: (b[:2], b[1:], L(2)))(T(3, 2) * 1)


@case()
def synthetic_base_grad2():
    def f(x, y):
        x.mul_(2)
        return x, y, (x * y).sum()

    return f, lambda: (lambda b: (b[:2], b[1:]))(L(3, 2) * 1)


@case()
def outputs_alias_input_and_mutated():
    def f(x):
        y = x.view(-1)
        x.add_(1)
        y.mul_(2)
        return y, x.t()

    return f, lambda: (T(3, 2),)


@case()
def out_alias_intermediate():
    def f(x):
        y = x * 2
        return y, y[0], y.view(-1), y.t()

    return f, lambda: (L(3, 2),)


@case()
def out_alias_multi_output_view():
    def f(x):
        y = x * 2
        a, b, c = y.unbind(0)
        return a, b, c

    return f, lambda: (L(3, 2),)


@case("operator_error")
def chunk_mutation_error():
    def f(x):
        y = x * 2
        a, b = y.chunk(2)
        a.mul_(2)
        return a, b

    return f, lambda: (L(4, 2),)


@case("class_mutation", "gradient_call", "opaque_callable", "tensor_attribute")
def tensor_hook():
    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return y.sum()

    return lambda x: (lambda l: (l.backward(), x.grad.clone())[1])(f(x)), lambda: (L(3),)


@case("class_mutation", "gradient_call", "opaque_callable", "tensor_attribute")
def input_hook_inside():
    def f(x):
        h = x.register_hook(lambda g: g * 3)
        y = (x * 2).sum()
        return y

    return lambda x: (lambda l: (l.backward(), x.grad.clone())[1])(f(x)), lambda: (L(3),)


@case("class_mutation", "gradient_call", "opaque_callable", "tensor_attribute")
def hook_removed():
    def f(x):
        y = x * 2
        h = y.register_hook(lambda g: g * 3)
        z = y.sum()
        h.remove()
        return z

    return lambda x: (lambda l: (l.backward(), x.grad.clone())[1])(f(x)), lambda: (L(3),)


@case("class_mutation", "gradient_call", "opaque_callable", "tensor_attribute")
def hook_list_append():
    def f(x):
        seen = []
        y = x * 2
        y.register_hook(lambda g: seen.append(g.clone()))
        y.sum().backward()
        return seen, x.grad.clone()

    return f, lambda: (L(3),)


@case("class_mutation", "gradient_call", "opaque_callable", "tensor_attribute")
def post_acc_hook():
    def f(x):
        seen = []
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        (x * 2).sum().backward()
        return seen

    return f, lambda: (L(3),)


@case("autograd_state", "gradient_call", "tensor_attribute")
def retain_grad():
    def f(x):
        y = x * 2
        y.retain_grad()
        (y * y).sum().backward()
        return y.grad, x.grad.clone()

    return f, lambda: (L(3),)


@case("gradient_call")
def ckpt_nonreentrant():
    def f(x, w):
        y = checkpoint(lambda a: (a @ w).tanh(), x, use_reentrant=False)
        y.sum().backward()
        return y, w.grad.clone()

    return f, lambda: (L(3, 3), L(3, 3))


@case("gradient_call", "reentrant_checkpoint")
def ckpt_reentrant():
    def f(x, w):
        y = checkpoint(lambda a: (a @ w).tanh(), x, use_reentrant=True)
        y.sum().backward()
        return y, w.grad.clone()

    return f, lambda: (L(3, 3), L(3, 3))


@case("gradient_call")
def ckpt_dropout():
    def f(x, w):
        y = checkpoint(lambda a: F.dropout((a @ w).tanh(), 0.5), x, use_reentrant=False)
        y.sum().backward()
        return y, w.grad.clone()

    return f, lambda: (L(8, 8), L(8, 8))


@case("gradient_call", "higher_order_operator")
def ckpt_selective():
    import functools

    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx, op, *a, **k):
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def f(x, w):
        y = checkpoint(
            lambda a: (a @ w).tanh().sigmoid(),
            x,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, policy),
        )
        y.sum().backward()
        return y, w.grad.clone()

    return f, lambda: (L(3, 3), L(3, 3))


@case("gradient_call", "higher_order_operator")
def ckpt_selective_list():
    import functools

    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    def f(x, w):
        y = checkpoint(
            lambda a: (a @ w).tanh().sigmoid(),
            x,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]),
        )
        return y

    return lambda x, w: (lambda y: (y.sum().backward(), y, w.grad.clone())[1:])(f(x, w)), lambda: (L(3, 3), L(3, 3))


@case("gradient_call", "opaque_callable", "tensor_creation")
def ckpt_sequential():
    from torch.utils.checkpoint import checkpoint_sequential

    def f(x):
        torch.manual_seed(3)
        m = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(4)])
        y = checkpoint_sequential(m, 2, x, use_reentrant=False)
        y.sum().backward()
        return y, [p.grad for p in m.parameters()]

    return f, lambda: (L(3, 3),)


class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g * ctx.k, None


class Sq2(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * x * k, x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return 3 * x * g * ctx.k, None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 7


class NeedsGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y if ctx.needs_input_grad[0] else None, g * x * 5 if ctx.needs_input_grad[1] else None


@case("gradient_call")
def fn_sq():
    return lambda x: (lambda y: (y.sum().backward(), y, x.grad.clone())[1:])(Sq.apply(x, 3)), lambda: (L(3),)


@case("gradient_call")
def fn_sq2():
    return lambda x: (lambda y: (y[0].sum().backward(), y, x.grad.clone())[1:])(Sq2.apply(x, 3)), lambda: (L(3),)


@case("gradient_call")
def fn_dirty():
    return lambda x: (lambda y: (y.sum().backward(), y.detach(), x.grad.clone())[1:])(InPlace.apply(x * 1)), lambda: (
        L(3),
    )


@case("gradient_call")
def fn_needs():
    return lambda x, y: (lambda z: (z.sum().backward(), z, x.grad.clone())[1:])(NeedsGrad.apply(x, y)), lambda: (
        L(3),
        T(3),
    )


@case("gradient_call", error="aot_double_backward")
def fn_double():
    def f(x):
        y = Sq.apply(x, 2).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.sum().backward()
        return x.grad.clone()

    return f, lambda: (L(3),)


@case("gradient_call")
def autocast_fwd_bwd():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (x @ w).relu() @ w
        y.float().sum().backward()
        return y, w.grad.clone()

    return f, lambda: (T(4, 4), L(4, 4))


@case("gradient_call")
def autocast_outside_bwd():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (x @ w).relu() @ w
            z = y.exp()
        return y.sum(), z

    return lambda x, w: (lambda r: (r[1].sum().backward(), r, w.grad.clone())[1:])(f(x, w)), lambda: (T(4, 4), L(4, 4))


@case("gradient_call")
def grad_accumulation():
    def f(x, w):
        for i in range(3):
            ((x * w).sin().sum() / 3).backward()
        return w.grad.clone()

    return f, lambda: (T(3), L(3))


@case()
def nondiff_outputs():
    def f(x):
        return x.argmax(), x > 0, x.topk(2), x.int(), x.sort()

    return f, lambda: (L(5),)


@case("gradient_call", "opaque_callable")
def saved_hooks():
    def f(x):
        n = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (n.append(1), t.double())[1], lambda t: t.float()):
            y = (x * x).sum()
        y.backward()
        return x.grad.clone()

    return f, lambda: (L(3),)


@case("gradient_call", "opaque_callable")
def save_on_cpu():
    def f(x):
        with torch.autograd.graph.save_on_cpu():
            y = (x * x).sum()
        y.backward()
        return x.grad.clone()

    return f, lambda: (L(3),)


@case("tensor_attribute")
def inference_mode():
    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y.is_inference(), y.shape

    return f, lambda: (L(3),)


@case()
def set_grad_enabled_return():
    def f(x):
        torch.set_grad_enabled(False)
        y = x * 2
        torch.set_grad_enabled(True)
        return y, x * 3

    return f, lambda: (L(3),)


@case(fallback="aot_storage_change")
def resize_input():
    def f(x):
        x.resize_(4)
        return x.shape

    return f, lambda: (T(6),)


@case(fallback="aot_storage_change")
def set_():
    def f(x, y):
        x.set_(y)
        return x + 1

    return f, lambda: (T(6), T(3))


@case()
def inplace_on_view_of_leaf_no_grad():
    def f(w):
        with torch.no_grad():
            w[0].zero_()
            w.view(-1)[1] = 5
        return w * 2

    return f, lambda: (L(3, 2),)


@case("gradient_call")
def unused_output_grad():
    def f(x, w):
        return (x * w, (x + w).exp())

    return lambda x, w: (lambda r: (r[1].sum().backward(), w.grad.clone())[1:])(f(x, w)), lambda: (T(3), L(3))


@case("gradient_call", "operator_without_shape_rule", fallback="aot_layout")
def sparse_embedding():
    def f(i, w):
        F.embedding(i, w, sparse=True).sum().backward()
        return w.grad.to_dense()

    return f, lambda: (torch.tensor([0, 2]), L(4, 3))


@case("gradient_call")
def grad_attr_read():
    def f(x, w):
        l = (x * w).sum()
        l.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad.zero_()
        return w * 1

    return f, lambda: (T(3), L(3))


@case("gradient_call")
def grad_attr_set_none():
    def f(x, w):
        w.grad = None
        (x * w).sum().backward()
        g = w.grad
        w.grad = None
        return g

    return f, lambda: (T(3), L(3))


@case("gradient_call")
def backward_with_inputs():
    def f(x, w):
        (x * w).sum().backward(inputs=[w])
        return w.grad.clone(), x.grad

    return f, lambda: (L(3), L(3))


@case("gradient_call")
def autograd_grad_allow_unused():
    def f(x, w):
        return torch.autograd.grad((x * 2).sum(), [x, w], allow_unused=True)

    return f, lambda: (L(3), L(3))


@case("tensor_attribute")
def is_leaf_checks():
    def f(x, w):
        y = x * w
        return y.is_leaf, w.is_leaf, y.requires_grad, y.grad_fn is None, y.detach().is_leaf

    return f, lambda: (T(3), L(3))


@case()
def expanded_written():
    def f(x, z):
        y = x.expand(3, *x.shape)
        y[1, 1].mul_(5)
        return y * z

    return f, lambda: (T(6), L(6))


@case(views=False)
def overlapping_windows_written():
    def f(x):
        y = (x * 2).unfold(0, 3, 1)
        y[1].add_(1)
        return y, y.sum(0)

    return f, lambda: (L(6),)


@case()
def silu_gradient():
    return lambda x: F.silu(x) + F.mish(x), lambda: (L(64),)


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
@pytest.mark.parametrize("name", case)
def test_as_eager(name, backend):
    check(case[name], backend)
