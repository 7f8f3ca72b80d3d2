"""Every rewrite of the algebra against plain Python integers and floats."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from integer_programs import COMPARISONS, NAMES, build, integer_programs, value_of

from stator.sizes.expression import Algebra

VALUES = st.fixed_dictionaries({name: st.integers(-9, 40) for name in NAMES})


@settings(max_examples=600, deadline=None)
@given(integer_programs(), st.lists(VALUES, min_size=6, max_size=6))
def test_integer_expressions_have_pythons_value(program, environments):
    algebra = Algebra()
    symbols = {name: algebra.symbol(name) for name in NAMES}
    try:
        expr = build(algebra, program, symbols)
    except ZeroDivisionError:
        expr = None
    for environment in environments:
        try:
            expected = value_of(program, environment)
        except ZeroDivisionError:
            continue  # no value to preserve
        assert expr is not None, "a constant zero divisor has no value anywhere"
        assert algebra.evaluate(expr, {symbols[name]: environment[name] for name in NAMES}) == expected


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(COMPARISONS)), integer_programs(2), integer_programs(2)), max_size=4),
    st.sampled_from(["logical_and", "logical_or"]),
    st.booleans(),
    st.lists(VALUES, min_size=6, max_size=6),
)
def test_boolean_expressions_have_pythons_value(comparisons, connective, negated, environments):
    algebra = Algebra()
    symbols = {name: algebra.symbol(name) for name in NAMES}
    try:
        expr = getattr(algebra, connective)(*(build(algebra, comparison, symbols) for comparison in comparisons))
        expr = algebra.logical_not(expr) if negated else expr
    except ZeroDivisionError:
        return
    for environment in environments:
        try:
            truths = [value_of(comparison, environment) for comparison in comparisons]
        except ZeroDivisionError:
            continue
        expected = (all if connective == "logical_and" else any)(truths) is not negated
        assert algebra.evaluate(expr, {symbols[name]: environment[name] for name in NAMES}) is expected


@settings(max_examples=200, deadline=None)
@given(integer_programs(3))
def test_building_twice_gives_the_same_object(program):
    algebra = Algebra()
    symbols = {name: algebra.symbol(name) for name in NAMES}
    try:
        assert build(algebra, program, symbols) is build(algebra, program, symbols)
    except ZeroDivisionError:
        pass


def test_identities_that_views_rely_on():
    algebra = Algebra()
    a, b, c = (algebra.symbol(name) for name in NAMES)
    two, four = algebra.integer(2), algebra.integer(4)
    product = algebra.product
    assert algebra.floordiv(product((a, b, four)), product((b, four))) is a
    assert algebra.floordiv(algebra.mul(algebra.add(a, b), c), algebra.add(a, b)) is c
    assert algebra.floordiv(algebra.mul(algebra.add(a, b), algebra.add(b, c)), algebra.add(c, b)) is algebra.add(a, b)
    assert algebra.floordiv(algebra.floordiv(a, two), two) is algebra.floordiv(a, four)
    quotient, rest = algebra.floordiv(a, four), algebra.mod(a, four)
    assert algebra.add(algebra.mul(quotient, four), rest) is a
    assert algebra.floordiv(algebra.mul(two, a), four) is algebra.floordiv(a, two)
    assert algebra.mod(algebra.mul(a, four), two) is algebra.zero
    assert algebra.maximum(a, algebra.add(a, algebra.one)) is algebra.add(a, algebra.one)
    assert algebra.sub(algebra.mul(a, b), algebra.mul(b, a)) is algebra.zero
    assert algebra.pow(a, two) is algebra.mul(a, a)
    assert algebra.floordiv(algebra.integer(7), algebra.integer(-2)) is algebra.integer(-4)


def test_comparisons_are_canonical():
    algebra = Algebra()
    a, b = algebra.symbol("a"), algebra.symbol("b")
    assert algebra.lt(a, b) is algebra.logical_not(algebra.ge(a, b))
    assert algebra.eq(a, b) is algebra.eq(b, a)
    double = algebra.mul(algebra.integer(2), a)
    assert algebra.eq(double, algebra.integer(6)) is algebra.eq(a, algebra.integer(3))
    assert algebra.eq(double, algebra.integer(7)) is algebra.false
    assert algebra.ge(double, algebra.integer(7)) is algebra.ge(a, algebra.integer(4))
    truth = algebra.eq(a, b)
    assert algebra.logical_and(truth, algebra.logical_not(truth)) is algebra.false
    assert algebra.logical_or(truth, algebra.logical_not(truth)) is algebra.true


def test_floats_are_not_reassociated_and_not_negated_through_nan():
    algebra = Algebra()
    f, g = algebra.symbol("f", float), algebra.symbol("g", float)
    less = algebra.opaque("flt", f, g)
    nan = float("nan")
    for left, right in itertools.product((0.0, 1.5, nan), repeat=2):
        values = {f: left, g: right}
        assert algebra.evaluate(algebra.logical_not(less), values) is (not left < right)
    assert algebra.real(0.0) is not algebra.real(-0.0)
    assert algebra.opaque("fadd", f, algebra.real(0.0)) is not f
    assert algebra.opaque("fmul", algebra.real(3.0), algebra.real(0.5)).constant == 1.5


def test_ite_and_undefined_parts():
    algebra = Algebra()
    a, b = algebra.symbol("a"), algebra.symbol("b")
    safe = algebra.logical_or(algebra.eq0(b), algebra.ge0(algebra.floordiv(a, b)))
    assert algebra.evaluate(safe, {a: 3, b: 0}) is True
    chosen = algebra.choose(algebra.eq0(b), a, algebra.floordiv(a, b))
    assert algebra.evaluate(chosen, {a: 3, b: 0}) == 3
    assert algebra.evaluate(chosen, {a: 7, b: 2}) == 3
