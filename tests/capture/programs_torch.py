"""Subclasses and modes with `__torch_function__`, device contexts, and what torch's protocol for them offers."""

import torch
import torch.nn.functional as F
from capture_harness import Collection, tensor
from torch.overrides import TorchFunctionMode

import stator

program = Collection("torch")


class Quiet(torch.Tensor):
    """Takes nothing over: results are of its class all the same."""

    def twice(self):
        return self * 2


class Told(torch.Tensor):
    """Keeps what it was told of."""

    log: list = []

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        Told.log.append((function.__name__, len(kinds), kwargs is None))
        return super().__torch_function__(function, kinds, args, kwargs)


class Answer(torch.Tensor):
    """Gives something else for additions."""

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if function in (torch.add, torch.Tensor.add):
            return 42
        return super().__torch_function__(function, kinds, args, kwargs or {})


class Wrapped:
    """No tensor, but has one."""

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        opened = [part.held if isinstance(part, Wrapped) else part for part in args]
        return Wrapped(function(*opened, **(kwargs or {})))


class Named(torch.Tensor):
    """Made with something beside its data."""

    @staticmethod
    def __new__(cls, data, factor):
        made = torch.Tensor._make_subclass(cls, data)
        made.factor = factor
        return made

    def scaled(self):
        return self * self.factor


def quiet():
    return (torch.arange(6.0).reshape(2, 3).as_subclass(Quiet),)


def told():
    Told.log = []
    return (torch.arange(6.0).reshape(2, 3).as_subclass(Told),)


@program(quiet)
def subclass_results(x):
    return torch.sin(x), x + 1, 1 - x, x.sum(), x[0], x.T, x.max(0), x.split(1), x.shape, x.data


@program(quiet)
def subclass_methods(x):
    return x.twice().twice(), type(x), isinstance(x, Quiet), type(x.sum()).__name__


@program(quiet)
def subclass_functions(x):
    return F.softmax(F.dropout(x, 0.0), -1), F.linear(x, x), F.relu(x), torch.cat([x, x])


class Contrary(torch.Tensor):
    def __add__(self, other):
        return super().__sub__(other)

    def __rmul__(self, other):
        return "reflected"

    def __getitem__(self, key):
        return super().__getitem__(-1 - key)

    def __neg__(self):
        return self


@program(lambda: (torch.arange(3.0).as_subclass(Contrary),))
def subclass_special_methods(x):
    return x + 1, 2 * x, torch.ones(3) * x, x[0], -x, x - 1


@program(quiet)
def subclass_in_place(x):
    y = x.add_(1)
    y[0] = 3
    y *= 2
    return y, y is x


@program(told)
def subclass_is_told(x):
    y = torch.sin(x) + x.shape[0]
    return y, torch.add(x, 1, alpha=2), F.softmax(y, dim=-1), list(Told.log)


@program(lambda: (torch.arange(3.0).as_subclass(Answer),))
def subclass_answers(x):
    return torch.add(x, 1), x + 1, 1 + x, x.add(2), x - 1


@program(lambda: (Wrapped(torch.arange(3.0)),))
def wrapped_operand(x):
    return torch.sin(x).held, F.relu(x).held, torch.add(torch.ones(3), x).held


@program(tensor)
def subclass_made(x):
    named = Named(x, 3)
    return named.scaled(), type(named), named.factor, x.as_subclass(Quiet), Quiet(x).twice()


@program(quiet)
def subclass_unmade(x):
    return x.as_subclass(torch.Tensor), x.as_subclass(torch.Tensor) + 1


@program(quiet)
def overrides_off(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x + 1
    return y, x + 1, torch._C._is_torch_function_enabled()


@program(quiet, reason="explicit_graph_break")
def overrides_off_at_a_break(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x + 1
        stator.graph_break()
        z = x + y
    return y, z, x + 1


class Cosine(TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        return (torch.cos if function is torch.sin else function)(*args, **(kwargs or {}))


class Log(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.log = []

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        self.log.append(getattr(function, "__name__", "?"))
        return function(*args, **(kwargs or {}))


@program(tensor)
def mode_inside(x):
    with Cosine():
        y = torch.sin(x)
    return y, torch.sin(x)


@program(tensor)
def modes_see_operations(x):
    log = Log()
    with Cosine(), log:
        y = torch.sin(x) + x.shape[0]
        y = F.softmax(y, -1)
        y[0] = 2
        y += 1
        z = torch.ones(2)
    return y, log.log, z


@program(tensor, reason="explicit_graph_break")
def mode_over_a_break(x):
    with Cosine():
        y = torch.sin(x)
        stator.graph_break()
        z = torch.sin(x)
    return y, z, torch.sin(x), torch._C._len_torch_function_stack()


@program(quiet)
def mode_and_subclass(x):
    with Cosine():
        return torch.sin(x), F.relu(x)


@program(tensor)
def device_context(x):
    with torch.device("meta"):
        y = torch.ones(3)
        with torch.device("cpu"):
            z = torch.ones(3) + x
        depth = torch._C._len_torch_function_stack()
        inner = torch.get_default_device()
    return y.device, z, depth, inner, torch.get_default_device(), torch.zeros(2)


@program(tensor, reason="explicit_graph_break")
def device_context_over_a_break(x):
    with torch.device("meta"):
        y = torch.ones(3)
        stator.graph_break()
        z = torch.ones(3)
    return y.device, z.device, torch.ones(3) + x, torch._C._len_torch_function_stack()


@program(tensor, raises=True)
def device_context_left_by_an_exception(x):
    with torch.device("meta"):
        torch.ones(3)
        raise ValueError(torch._C._len_torch_function_stack())


@program(lambda: (torch.arange(16.0).reshape(4, 4),))
def autocast_types(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.mm(x, x)
        with torch.autocast("cpu", enabled=False):
            z = torch.mm(x, x)
        kinds = [y.dtype, z.dtype, F.softmax(y, -1).dtype, F.linear(x, x).dtype, (x * y).dtype, (x @ x)[0].dtype]
    return y, z, kinds, torch.mm(x, x)


def multiplied_after_a_break(x):
    stator.graph_break()
    return torch.mm(x, x)


@program(lambda: (torch.arange(16.0).reshape(4, 4),), reason="explicit_graph_break")
def autocast_over_breaks(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            stator.graph_break()
            y = torch.mm(x, x)
        z = multiplied_after_a_break(x)
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return y, z, depth, torch.is_autocast_enabled("cpu")


@program(tensor)
def whole_under_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
        seen = torch.is_inference_mode_enabled()
    return y, seen, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@torch.inference_mode()
def decorated(x):
    return (x + 1).relu()


@program(tensor)
def decorated_with_inference_mode(x):
    return decorated(x)


@program(tensor, reason="inference_mode")
def partly_under_inference_mode(x):
    y = x + 1
    with torch.inference_mode():
        z = y * 2
    return z, y * 3


@program(tensor, reason="inference_mode")
def going_on_after_inference_mode(x):
    with torch.inference_mode():
        z = x * 2
    return z, x * 3


@program(tensor)
def sizes_of_inputs_change_in_place(x):
    x.unsqueeze_(-1)
    return x + 1, x.shape


@program(lambda: (torch.arange(3.0), torch.empty(3)))
def result_into_a_tensor(x, y):
    return torch.add(x, x, out=y), torch.mul(x, 2, out=y) is y


@program(lambda: (torch.arange(3.0), torch.empty(0), torch.empty(0, dtype=torch.long)), reason="operator_without_shape_rule")
def results_into_tensors_of_other_sizes(x, y, z):
    found = torch.sort(x, out=(y, z))
    return found[0] + 1, torch.add(x, 1, out=torch.empty(1))


@program(lambda: (torch.arange(3.0),), reason="new_leaf")
def leaves_made_inside(x):
    leaf = torch.ones(3, requires_grad=True)
    other = (x * 2).requires_grad_()
    return leaf, leaf * x, other, other * 2


@torch.jit.script
def scripted(x, factor: float):
    return torch.tanh(x * factor), x + 1


@program(tensor)
def scripted_function(x):
    y, z = scripted(x + 1, 2.0)
    return y * 2, z


@program(tensor)
def arguments_named_by_keywords(x):
    return x.clone().random_(**{"from": 1, "to": 9}), x.clone().uniform_(**{"from": -1, "to": 2})
