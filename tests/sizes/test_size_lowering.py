"""The guard programs hold exactly where the decisions of the trace come out alike."""

from __future__ import annotations

import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from integer_programs import COMPARISONS, NAMES, integer_programs, value_of

from stator.events import Location
from stator.guards.size_program import SizeProgram
from stator.sizes import SizeContext
from stator.sizes.lowering import lower_guards
from stator.values.source import SourceTree

OPERATORS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "minimum": min,
    "maximum": max,
    **COMPARISONS,
}


def make(hints, duck=False):
    sizes = SizeContext(lambda: Location("user.py", 3))
    tensor = SourceTree(("x",)).local(0)
    sources = {name: tensor.child("SIZE", dim) for dim, name in enumerate(hints)}
    symbols = {name: sizes.symbol(source, hints[name], duck=duck) for name, source in sources.items()}
    return sizes, sources, symbols


def run(program, values):
    """The program by Python's own operators, on ints or on symbolic ints alike."""
    if isinstance(program, str):
        return values[program]
    if isinstance(program, int):
        return program
    name, left, right = program
    left, right = run(left, values), run(right, values)
    if name in ("minimum", "maximum"):
        import torch

        return (torch.sym_min if name == "minimum" else torch.sym_max)(left, right)
    return OPERATORS[name](left, right)


def all_hold(sizes, sources, values):
    lowered = lower_guards(sizes)
    loads = {sources[name]: value for name, value in values.items()}
    return all(SizeProgram(guard.operations).holds(loads) for guard in lowered.programs) and all(
        loads[pin.source] == pin.value for pin in lowered.pinned
    )


ENVIRONMENTS = st.fixed_dictionaries({name: st.integers(0, 20) for name in NAMES})
COMPARISON = st.tuples(st.sampled_from(sorted(COMPARISONS)), integer_programs(2), integer_programs(2))


@settings(max_examples=300, deadline=None)
@given(ENVIRONMENTS, st.lists(COMPARISON, min_size=1, max_size=5), st.lists(ENVIRONMENTS, min_size=4, max_size=12))
def test_guards_hold_where_the_decisions_come_out_alike(hints, questions, others):
    sizes, sources, symbols = make(hints)
    answers = []
    for question in questions:
        try:
            expected = bool(value_of(question, hints))
        except ZeroDivisionError:
            assume(False)
        answers.append(expected)
        assert bool(run(question, symbols)) is expected
    assert all_hold(sizes, sources, hints)
    for values in others:
        try:
            alike = all(bool(value_of(q, values)) is answer for q, answer in zip(questions, answers))
        except ZeroDivisionError:
            alike = False  # Python raises: the guard on the divisor must miss
        assert all_hold(sizes, sources, values) is alike


def test_equal_sizes_are_guarded_to_stay_equal():
    sizes, sources, symbols = make({"a": 8, "b": 8}, duck=True)
    assert str(symbols["a"]) == str(symbols["b"])
    assert all_hold(sizes, sources, {"a": 5, "b": 5})
    assert not all_hold(sizes, sources, {"a": 5, "b": 6})


def test_redundant_guards_are_dropped():
    sizes, sources, symbols = make({"a": 8, "b": 4})
    a, b = symbols["a"], symbols["b"]
    assert a >= 2 and a >= 5 and a != 0 and b <= 10 and a * 2 >= b
    assert a + b >= 3
    texts = [guard.text for guard in lower_guards(sizes).programs]
    assert texts == ["x.size(0) >= 5", "x.size(1) <= 10"]


def test_a_specialised_size_is_pinned_and_nothing_else_is_checked_of_it():
    sizes, sources, symbols = make({"a": 8, "b": 4})
    assert symbols["a"] >= 3
    assert int(symbols["a"]) == 8
    lowered = lower_guards(sizes)
    assert lowered.programs == ()
    ((pin),) = lowered.pinned
    assert (pin.source, pin.value, pin.location) == (sources["a"], 8, Location("user.py", 3))


def test_declared_ranges_are_guarded_unless_they_are_a_sizes_own():
    sizes = SizeContext()
    tree = SourceTree(("x", "n"))
    sizes.symbol(tree.local(0).child("SIZE", 0), 8)
    sizes.symbol(tree.local(0).child("SIZE", 1), 9, low=2, high=100)
    number = sizes.symbol(tree.local(1), -3, low=None)
    assert number < 0
    assert [guard.text for guard in lower_guards(sizes).programs] == ["x.size(1) >= 2", "x.size(1) <= 100", "n <= -1"]


def test_what_the_machine_cannot_compute_pins_its_sources():
    sizes = SizeContext()
    tree = SourceTree(("x", "scale"))
    size = sizes.symbol(tree.local(0).child("SIZE", 0), 8)
    scale = sizes.symbol_float(tree.local(1), 0.5)
    assert scale < 1.0
    lowered = lower_guards(sizes)
    assert [(pin.source, pin.value) for pin in lowered.pinned] == [(tree.local(1), 0.5)]
    assert 2**size > 100
    assert sorted(str(pin.source) for pin in lower_guards(sizes).pinned) == ["scale", "x.size(0)"]


def test_remainders_are_lowered_as_remainders():
    sizes, sources, symbols = make({"a": 8})
    assert symbols["a"] % 4 == 0
    (guard,) = lower_guards(sizes).programs
    assert guard.text == "x.size(0) % 4 == 0"
    assert [operation[0] for operation in guard.operations] == ["load", "const", "mod", "const", "eq"]


def test_a_condition_beyond_64_bits_pins():
    sizes, sources, symbols = make({"a": 2**40})
    assert symbols["a"] ** 3 > 5 * symbols["a"]
    lowered = lower_guards(sizes)
    assert lowered.programs == () and [pin.value for pin in lowered.pinned] == [2**40]


def test_choices_and_ceilings_are_lowered():
    import torch

    sizes, sources, symbols = make({"a": 9})
    a = symbols["a"]
    assert torch.sym_ite(a > 4, a * 2, a) == 18
    assert math.ceil(a / 4) == 3
    for value in range(0, 20):
        alike = math.ceil(value / 4) == 3 and (value * 2 if value > 4 else value) == 18
        assert all_hold(sizes, sources, {"a": value}) is alike
