"""The text of an expression is Python that computes it."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from integer_programs import COMPARISONS, NAMES, build, integer_programs, value_of

from stator.sizes.expression import Algebra
from stator.sizes.printer import text_of

VALUES = st.fixed_dictionaries({name: st.integers(-9, 30) for name in NAMES})


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        integer_programs(4),
        st.tuples(st.sampled_from(sorted(COMPARISONS)), integer_programs(3), integer_programs(3)),
    ),
    st.booleans(),
    st.lists(VALUES, min_size=4, max_size=4),
)
def test_text_computes_the_expression(program, negated, environments):
    algebra = Algebra()
    symbols = {name: algebra.symbol(name) for name in NAMES}
    try:
        expr = build(algebra, program, symbols)
    except ZeroDivisionError:
        return
    if expr.type is bool and negated:
        expr = algebra.logical_not(expr)
    text = text_of(algebra, expr)
    for environment in environments:
        try:
            value = value_of(program, environment)
        except ZeroDivisionError:
            continue
        expected = (not value) if expr.type is bool and negated else value
        assert eval(text, {"math": math}, environment) == expected, text


def test_texts_read_as_a_person_would_write_them():
    algebra = Algebra()
    a, b = algebra.symbol("a"), algebra.symbol("b")
    four = algebra.integer(4)
    expected = {
        "a - b": algebra.sub(a, b),
        "a % 4": algebra.mod(a, four),
        "a // 4": algebra.floordiv(a, four),
        "a == b": algebra.eq(a, b),
        "a < b": algebra.lt(a, b),
        "a <= 3": algebra.lt(a, four),
        "a >= 4": algebra.ge(a, four),
        "a % 4 == 0": algebra.eq0(algebra.mod(a, four)),
        "(a + b) // 4": algebra.floordiv(algebra.add(a, b), four),
        "2*a*b + 1": algebra.add(algebra.scale(algebra.mul(a, b), 2), algebra.one),
    }
    assert {text_of(algebra, expr) for expr in expected.values()} == set(expected)
    ratio = algebra.opaque("fdiv", algebra.opaque("to_float", a), algebra.real(3.0))
    assert text_of(algebra, ratio) == "(float(a) / 3.0)"
    assert text_of(algebra, algebra.real(math.inf)) == "float('inf')"
