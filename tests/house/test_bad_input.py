"""What `stator.compile` is given that it cannot compile: a clear error, or a pass-through that loses nothing."""

import asyncio
import copy
import functools
import inspect
import math
import pickle

import pytest
import torch

import stator
from stator import events
from stator.exc import InvalidBackend, InvalidOption, Unsupported

x = torch.arange(3.0)


def double(x):
    return x * 2


@pytest.mark.parametrize(
    "thing", [3, "double", [double], property(double), iter([1])], ids=lambda it: type(it).__name__
)
def test_what_cannot_be_called_is_named(thing):
    with pytest.raises(InvalidOption, match=f"not a {type(thing).__name__}"):
        stator.compile(thing)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"backend": "nonsense"}, InvalidBackend, "no backend 'nonsense': stator has aot_eager"),
        ({"backend": 3}, InvalidBackend, "a name or a callable, not a int"),
        ({"mode": "fastest"}, InvalidOption, "it is one of default, reduce-overhead"),
        ({"mode": "default", "options": {}}, InvalidOption, "Either mode or options"),
        ({"options": 3}, InvalidOption, "a mapping of names to values, not a int"),
        ({"options": {"triton.cudagraphs": True}}, InvalidOption, "no option 'triton.cudagraphs': it has numerics"),
        ({"options": {"numerics": "sloppy"}}, InvalidOption, "'numerics' cannot be 'sloppy'"),
        ({"fullgraph": "yes"}, InvalidOption, "True or False, not 'yes'"),
        ({"dynamic": "yes"}, InvalidOption, "None, True, False or a mapping"),
        ({"recompile_limit": 0}, InvalidOption, "a positive number, not 0"),
        ({"recompile_limit": True}, InvalidOption, "a positive number, not True"),
        ({"recompile_limit": "many"}, InvalidOption, "a positive number, not 'many'"),
        ({"fast": True}, TypeError, "fast"),
    ],
    ids=repr,
)
def test_a_wrong_setting_says_what_would_be_right(settings, error, text):
    with pytest.raises(error, match=text):
        stator.compile(double, **settings)


def test_settings_are_checked_before_the_function_is_seen():
    decorate = stator.compile(mode="fastest")
    with pytest.raises(InvalidOption):
        decorate(double)


def test_every_own_option_is_accepted_and_none_stays_set():
    values = {"numerics": "fast", "activation_memory_budget": 0.5, "force_disable_caches": True}
    assert set(values) == set(stator.api.compile.BACKEND_OPTIONS)
    before = dict(stator.config.items())
    assert torch.equal(stator.compile(double, options=values)(x), double(x))
    assert dict(stator.config.items()) == before


def test_no_backend_means_stators_own():
    assert torch.equal(stator.compile(double, backend=None)(x), double(x))


def numbers(x):
    yield x + 1
    yield x + 2


async def later(x):
    return x + 1


async def stream(x):
    yield x + 1


class Holder:
    def numbers(self, x):
        yield x + 3


@pytest.mark.parametrize("function", [numbers, later, stream, Holder().numbers], ids=lambda it: it.__qualname__)
def test_functions_that_run_piece_by_piece_stay_what_they_are(function):
    said = []
    unsubscribe = events.subscribe(lambda event: said.append(event.fields["reason"]), {"fallback"})
    try:
        assert stator.compile(function) is function
    finally:
        unsubscribe()
    assert said == ["suspended_function"]
    with pytest.raises(Unsupported, match="suspended_function"):
        stator.compile(function, fullgraph=True)


def test_generators_and_coroutines_still_work():
    assert [value.tolist() for value in stator.compile(numbers)(x)] == [[1, 2, 3], [2, 3, 4]]
    assert asyncio.run(stator.compile(later)(x)).tolist() == [1, 2, 3]
    assert inspect.iscoroutinefunction(stator.compile(later))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (len, ([1, 2],)),
        (math.sqrt, (4.0,)),
        (str.upper, ("a",)),
        (torch.relu, (x,)),
        (functools.partial(torch.add, x), (x,)),
        (functools.partial(double), (x,)),
        (x.add, (x,)),
        (lambda value: value + 1, (x,)),
    ],
    ids=["builtin", "function of math", "method", "torch", "partial of torch", "partial", "bound", "lambda"],
)
def test_other_callables_are_compiled_through(function, arguments):
    expected = function(*arguments)
    found = stator.compile(function, backend="eager")(*arguments)
    assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected


def test_callables_compiled_through_have_limits_of_their_own(recwarn):
    for _ in range(3):
        for factor in range(8):
            part = functools.partial(torch.mul, torch.full((), float(factor)))
            assert torch.equal(stator.compile(part, backend="eager")(x), x * factor)
    assert torch.equal(stator.compile(torch.sin, backend="eager")(x), x.sin())
    assert not [warning for warning in recwarn if "limit" in str(warning.message) and "sin" in str(warning.message)]


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Doubling(torch.nn.Module):
    def forward(self, x):
        return x * 2


def test_an_instance_with_call():
    assert torch.equal(stator.compile(Scale(3), backend="eager")(x), x * 3)


def graphs_of(call):
    seen = []
    unsubscribe = events.subscribe(seen.append, {"graph"})
    try:
        result = call()
    finally:
        unsubscribe()
    return result, len(seen)


def test_a_class_stays_a_class_and_its_calls_are_compiled():
    class Local(Scale):
        def __call__(self, x):
            return x * self.factor + 1

    assert stator.compile(Local, backend="eager") is Local
    one = Local(3)
    assert isinstance(one, Local)
    result, graphs = graphs_of(lambda: one(x))
    assert torch.equal(result, x * 3 + 1) and graphs == 1


def test_a_module_class_compiles_its_instances():
    class Local(Doubling):
        pass

    assert stator.compile(Local, backend="eager") is Local
    module = Local()
    result, graphs = graphs_of(lambda: module(x))
    assert torch.equal(result, x * 2) and graphs == 1
    assert "_compiled_call_impl" not in module.__dict__
    assert copy.deepcopy(module)(x).tolist() == [0, 2, 4]
    assert Doubling._compiled_call_impl is None


def test_a_class_without_call_is_an_error():
    class Plain:
        pass

    with pytest.raises(InvalidOption, match="class Plain has no __call__"):
        stator.compile(Plain)


def test_a_closure_over_something_that_cannot_be_pickled():
    lock = __import__("threading").Lock()

    def locked(x):
        with lock:
            return x + 1

    with pytest.raises(Exception):
        pickle.dumps(locked)
    assert torch.equal(stator.compile(locked, backend="eager")(x), x + 1)
    assert not lock.locked()
