"""The tutorial's tracer: under 500 lines, and every program means under it what it means in Python."""

import copy
import importlib.util
import pathlib
import sys

import pytest
import torch

PATH = pathlib.Path(__file__).parents[2] / "docs" / "tutorial_tracer.py"
SCALE = 3
_printed = []


def _load():
    spec = importlib.util.spec_from_file_location("tutorial_tracer", PATH)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tutorial = _load()


def pointwise(x):
    return (x * SCALE + 1).relu() - x.mean()


def helper(x, shift=1.0):
    _printed.append(float(x.sum()))
    return x * 2 + shift


def break_two_calls_deep(x):
    y = torch.sin(x)
    y = helper(y, shift=0.5) + y
    return y.exp()


def branch(x, flip=False):
    y = x + 1
    if y.sum() > 0:
        y = y * 2
    else:
        y = y - 5
    return -y if flip else y


def loop(xs, turns):
    total = xs[0] * 0
    for x in xs:
        for _ in range(turns):
            total = total + x
        _printed.append(total.tolist())
    return total, len(xs)


def in_place(x):
    x.mul_(2)


def in_place_and_aliases(x, y):
    x += 1
    y = y * x
    return x, y


def unpack(pair, sizes):
    left, right = pair
    return left.reshape(sizes[0], -1) @ right.reshape(sizes[1], -1).transpose(0, 1), pair


def of_a_dict(options, x):
    return x * len(options) * options["scale"]


def appended(x, xs):
    xs += [2.0]
    return x * xs[0] + xs[-1]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.residual = True

    def mix(self, x):
        return torch.nn.functional.gelu(self.inner(x))

    def forward(self, x):
        y = self.mix(x)
        if self.residual:
            y = y + x
        return y


BLOCK = Block()


def module_call(x):
    return BLOCK(x).sum()


def make_closure():
    factor, weights = 2.5, torch.ones(4)
    return lambda x: x * factor + weights


def ones(*sizes):
    return torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes)


# program -> the argument lists of its calls, and how many graphs are compiled for them together
PROGRAMS = {
    pointwise: ([(ones(3, 4),), (ones(3, 4) * 2,), (ones(2),)], 2),
    break_two_calls_deep: ([(ones(4),), (ones(4) + 1,)], 3),
    branch: ([(ones(3),), (-ones(3) * 9,), (ones(3), True)], 5),
    loop: ([([ones(3), ones(3)], 2), ([ones(3), ones(3)], 2), ([ones(3)], 1)], None),
    in_place: ([(ones(3),), (ones(3),)], 1),
    in_place_and_aliases: ([(ones(3), ones(3)), (ones(2), ones(2))], 2),
    unpack: ([((ones(4), ones(4)), (2, 2)), ((ones(4), ones(4)), (4, 4))], 2),
    of_a_dict: ([({"scale": 2}, ones(2)), ({"scale": 3, "more": 1}, ones(2))], None),
    appended: ([(ones(2), [1.0]), (ones(2), [3.0, 4.0])], None),
    module_call: ([(ones(2, 4),), (ones(2, 4) + 1,)], 1),
    make_closure(): ([(ones(2, 4),)], 1),
}


def test_it_is_under_500_lines():
    assert len(PATH.read_text().splitlines()) < 500


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_mean_what_they_mean_in_python(program):
    calls, expected_graphs = PROGRAMS[program]
    graphs = []

    def backend(module, examples):
        graphs.append(module)
        return module

    compiled = tutorial.compile(program, backend=backend)
    for arguments in calls:
        seen = []
        for function in (program, compiled):
            _printed.clear()
            own = copy.deepcopy(arguments)
            seen.append((function(*own), own, list(_printed)))
        torch.testing.assert_close(seen[0][0], seen[1][0], rtol=0, atol=0)
        assert str(seen[0]) == str(seen[1])
    if expected_graphs is not None:
        assert len(graphs) == expected_graphs, [graph.code for graph in graphs]


def test_a_changed_attribute_or_global_is_noticed():
    model = Block()
    compiled = tutorial.compile(lambda x: model(x) * SCALE)
    x = ones(2, 4)
    first = compiled(x)
    model.residual = False
    second = compiled(x)
    assert not torch.equal(first, second)
    assert torch.equal(second, model(x) * SCALE)


def test_gradients_and_errors_are_those_of_python():
    x = ones(3).requires_grad_()
    compiled = tutorial.compile(lambda x: (x * x).sum())
    compiled(x).backward()
    assert torch.equal(x.grad, 2 * x.detach())
    with pytest.raises(ZeroDivisionError):
        tutorial.compile(lambda x, n: x * (1 / n))(x, 0)
    with pytest.raises(RuntimeError, match="must match"):
        tutorial.compile(lambda x, y: x + y)(ones(3), ones(2))


def test_a_loop_without_a_break_is_one_graph():
    graphs = []
    compiled = tutorial.compile(loop_of_operations, backend=lambda module, _: graphs.append(module) or module)
    assert torch.equal(compiled(ones(3)), loop_of_operations(ones(3)))
    assert len(graphs) == 1


def loop_of_operations(x):
    for power in range(4):
        x = x + x**power
    return x
