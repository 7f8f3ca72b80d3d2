"""Torch-level graphs for these tests, recorded from running code, and the comparison with eager.

`record(fn, *args)` runs `fn` once on copies under a `TorchFunctionMode` and writes every torch function it calls into
an fx graph, the form a frontend hands to backends: tensors the function reaches by itself (parameters) become
placeholders, in-place calls and changes of grad mode stand as they ran.
"""

import contextlib

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode


class _Recorder(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.graph = torch.fx.Graph()
        self.nodes = {}
        self.alive = []
        self.inputs = []
        self.line = None

    def placeholder(self, tensor, name=None):
        with self.graph.inserting_before(self.first_call()):
            node = self.graph.placeholder(name or f"t{len(self.inputs)}")
        node.meta["example_value"] = tensor
        self.inputs.append(tensor)
        return self.bind(tensor, node)

    def first_call(self):
        for node in self.graph.nodes:
            if node.op != "placeholder":
                return node
        return self.graph._root

    def bind(self, tensor, node):
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)
        return node

    def lower(self, value):
        if isinstance(value, torch.Tensor):
            if id(value) not in self.nodes:
                self.placeholder(value)
            return self.nodes[id(value)]
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(self.lower(item) for item in value)
        if isinstance(value, dict):
            return {key: self.lower(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.lower(value.start), self.lower(value.stop), self.lower(value.step))
        return value

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") in ("__get__", "__set__") and not isinstance(result, torch.Tensor):
            return result
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        writes = func in (torch._C._set_grad_enabled, torch.Tensor.__setitem__)
        writes = writes or isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable
        if not leaves and not writes:
            return result
        node = self.graph.call_function(func, self.lower(args), self.lower(kwargs))
        node.meta["stack_trace"] = f'  File "test.py", line {len(self.nodes)}, in f\n    line {len(self.nodes)}\n'
        if isinstance(result, torch.Tensor):
            if id(result) not in self.nodes:
                self.bind(result, node)
        else:
            self.bind_nested(result, node)
        return result

    def bind_nested(self, result, node):
        if not isinstance(result, (tuple, list)):
            return
        for place, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                if id(item) not in self.nodes:
                    self.bind(item, self.graph.call_function(__import__("operator").getitem, (node, place)))
            else:
                self.bind_nested(item, self.graph.call_function(__import__("operator").getitem, (node, place)))


def copies(args, shared=None):
    """Copies that keep sharing of memory among the arguments, leaf or not, and who is whose view."""
    made = {}
    storages = {}
    result = []
    for value in args:
        if not isinstance(value, torch.Tensor):
            result.append(value)
            continue
        if id(value) in made:
            result.append(made[id(value)])
            continue
        key = value.untyped_storage()._cdata
        if value._base is not None and any(other is value._base for other in args):
            continue_base = made.get(id(value._base))
            copy = continue_base.as_strided(value.shape, value.stride(), value.storage_offset())
        else:
            if key not in storages:
                storages[key] = value.untyped_storage().clone()
            copy = torch.empty(0, dtype=value.dtype).set_(
                storages[key], value.storage_offset(), value.shape, value.stride()
            )
            copy.requires_grad_(value.requires_grad)
            if not value.is_leaf:
                leaf = copy
                copy = leaf * 1
                copy.origin = leaf
        made[id(value)] = copy
        result.append(copy)
    return result


def record(fn, *args):
    """The torch-level graph of `fn` and the tensors it takes beyond `args`."""
    recorder = _Recorder()
    inputs = copies(args)
    for place, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            recorder.placeholder(value, f"a{place}")
    given = len(recorder.inputs)
    grad = torch.is_grad_enabled()
    with recorder:
        result = fn(*inputs)
    torch.set_grad_enabled(grad)
    leaves = result if isinstance(result, (tuple, list)) else (result,)
    recorder.graph.output(tuple(recorder.lower(leaf) for leaf in leaves))
    module = torch.fx.GraphModule({}, recorder.graph)
    return module, recorder.inputs[given:]


def tensors(values):
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def same(one, other, what, exact):
    assert one.shape == other.shape, f"{what}: {one.shape} {other.shape}"
    assert one.dtype == other.dtype, f"{what}: {one.dtype} {other.dtype}"
    assert one.requires_grad == other.requires_grad, f"{what}: requires_grad {one.requires_grad}"
    if exact:
        assert (
            torch.equal(one, other)
            or torch.equal(one.isnan(), other.isnan())
            and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        ), f"{what}:\n{one}\n{other}"
        assert one.stride() == other.stride() or one.numel() <= 1, f"{what}: {one.stride()} {other.stride()}"
    else:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def alias_pattern(values):
    """Which tensors share memory, are one object, or are views of which others."""
    keys = [value.untyped_storage()._cdata for value in values]
    objects = [next(i for i, other in enumerate(values) if other is value) for value in values]
    return [keys.index(key) for key in keys], objects


def check(fn, *args, backend, exact=True, backward=True, seed=0, after=None):
    """Compile `fn` with `backend` and compare everything observable with eager. Returns the compiled callable."""
    module, further = record(fn, *args)
    compiled = backend(module, [*[a for a in copies(args) if isinstance(a, torch.Tensor)], *further])
    eager_args, our_args = copies(args), copies(args)
    saved = [tensor.detach().clone() for tensor in further]
    outcomes = []
    for run, values in ((fn, eager_args), (compiled, our_args)):
        for tensor, value in zip(further, saved):
            tensor.grad = None
            with torch.no_grad():
                tensor.copy_(value)
        torch.manual_seed(seed)
        given = values if run is fn else [*[v for v in values if isinstance(v, torch.Tensor)], *further]
        result = run(*given)
        result = list(result) if isinstance(result, (tuple, list)) else [result]
        if after is not None:
            after(result, values)
        stream = torch.rand(2)
        gradients = []
        outputs = [value for value in tensors(result) if value.requires_grad]
        sources = [getattr(v, "origin", v) for v in [*values, *further] if isinstance(v, torch.Tensor)]
        sources = [v for v in sources if v.requires_grad and v.is_leaf]
        if backward and outputs:
            torch.manual_seed(seed + 1)
            weights = [torch.randn_like(value) for value in outputs]
            gradients = torch.autograd.grad(outputs, sources, weights, allow_unused=True)
        contents = [value.detach().clone() for value in further]
        outcomes.append((result, values, gradients, stream, contents))
    (r1, a1, g1, s1, f1), (r2, a2, g2, s2, f2) = outcomes
    assert len(r1) == len(r2)
    for place, (one, other) in enumerate(zip(r1, r2)):
        if isinstance(one, torch.Tensor):
            same(one, other, f"output {place}", exact)
        else:
            assert one == other
    t1, t2 = tensors([*a1, *r1]), tensors([*a2, *r2])
    assert alias_pattern(t1) == alias_pattern(t2), f"aliasing: {alias_pattern(t1)} {alias_pattern(t2)}"
    for place, (one, other) in enumerate(zip(tensors(a1), tensors(a2))):
        same(one, other, f"input {place} afterwards", exact)
    for place, (one, other) in enumerate(zip(f1, f2)):
        same(one, other, f"captured tensor {place} afterwards", exact)
    assert torch.equal(s1, s2), "the random stream differs"
    for place, (one, other) in enumerate(zip(g1, g2)):
        assert (one is None) == (other is None), f"gradient {place}: {one} {other}"
        if one is not None:
            same(one, other, f"gradient {place}", exact)
    return compiled


@contextlib.contextmanager
def no_dynamo():
    """Fails if the block imports the compiler this project stands beside."""
    import sys

    before = "torch._dynamo" in sys.modules
    yield
    assert before or "torch._dynamo" not in sys.modules
