"""What the facts answer is true of every value that satisfies what was learned."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from integer_programs import COMPARISONS, NAMES, build, integer_programs, value_of

from stator.sizes.bounds import INF
from stator.sizes.expression import Algebra
from stator.sizes.facts import Contradiction, Facts

LOW = {"a": 0, "b": 0, "c": -5}
ENVIRONMENTS = st.fixed_dictionaries({name: st.integers(LOW[name], 24) for name in NAMES})
SIMPLE = integer_programs(2)
COMPARISON = st.tuples(st.sampled_from(sorted(COMPARISONS)), SIMPLE, SIMPLE)


def make_facts():
    algebra = Algebra()
    facts = Facts(algebra)
    symbols = {name: algebra.symbol(name) for name in NAMES}
    for name, symbol in symbols.items():
        facts.declare(symbol, LOW[name], INF)
    return algebra, facts, symbols


def holds(program, environment):
    try:
        return value_of(program, environment)
    except ZeroDivisionError:
        return None


@settings(max_examples=500, deadline=None)
@given(
    ENVIRONMENTS,
    st.lists(COMPARISON, min_size=1, max_size=5),
    st.lists(COMPARISON, min_size=1, max_size=4),
    st.lists(integer_programs(3), min_size=1, max_size=3),
    st.lists(ENVIRONMENTS, max_size=12),
)
def test_answers_and_simplifications_are_sound(truth_environment, learned, questions, expressions, others):
    algebra, facts, symbols = make_facts()
    taken = []
    for program in learned:  # learn what holds in one environment, so that it is consistent
        held = holds(program, truth_environment)
        if held is None:
            continue
        truth = build(algebra, program, symbols)
        facts.learn(truth if held else algebra.logical_not(truth))
        taken.append((program, held))
    for environment in [truth_environment, *others]:
        if any(holds(program, environment) is not held for program, held in taken):
            continue
        values = {symbols[name]: environment[name] for name in NAMES}
        values.update({symbol: algebra.evaluate(value, values) for symbol, value in facts.definitions.items()})
        for program in questions:
            expected = holds(program, environment)
            if expected is None:
                continue
            question = build(algebra, program, symbols)
            assert facts.decide(question) in (expected, None)
            simplified = facts.simplify(question)
            assert algebra.evaluate(simplified, values) is expected
            assert algebra.evaluate(facts.expand(simplified), values) is expected
        for program in expressions:
            expected = holds(program, environment)
            if expected is None:
                continue
            expr = build(algebra, program, symbols)
            low, high = facts.bounds(facts.simplify(expr))
            assert low <= expected <= high
            simplified = facts.simplify(expr)
            assert algebra.evaluate(simplified, values) == expected
            assert algebra.evaluate(facts.expand(simplified), values) == expected
            assert not facts.expand(simplified).symbols & set(facts.definitions)


def test_an_equality_makes_one_symbol():
    algebra, facts, symbols = make_facts()
    a, b = symbols["a"], symbols["b"]
    facts.learn(algebra.eq(a, b))
    assert facts.simplify(algebra.sub(algebra.mul(a, b), algebra.mul(a, a))) is algebra.zero
    assert facts.simplify(b) is a


def test_a_linear_equality_is_solved_for_a_symbol():
    algebra, facts, symbols = make_facts()
    a, b = symbols["a"], symbols["b"]
    facts.learn(algebra.eq(b, algebra.scale(a, 2)))
    assert facts.simplify(algebra.floordiv(b, algebra.integer(2))) is a
    assert facts.decide(algebra.eq(algebra.mod(b, algebra.integer(2)), algebra.zero)) is True


def test_unbacked_symbols_are_replaced_rather_than_kept():
    algebra = Algebra()
    facts = Facts(algebra)
    unbacked, size = algebra.symbol("u0"), algebra.symbol("s0")
    facts.declare(unbacked, 0, INF, eliminate_first=True)
    facts.declare(size, 0, INF)
    facts.learn(algebra.eq(unbacked, size))
    assert facts.simplify(unbacked) is size


def test_divisibility_settles_quotients_and_remainders():
    algebra, facts, symbols = make_facts()
    a = symbols["a"]
    four, two = algebra.integer(4), algebra.integer(2)
    facts.learn(algebra.eq0(algebra.mod(a, four)))
    assert facts.decide(algebra.eq0(algebra.mod(a, two))) is True
    assert facts.decide(algebra.eq(algebra.mul(algebra.floordiv(a, two), two), a)) is True
    assert facts.decide(algebra.eq0(algebra.mod(a, algebra.integer(8)))) is None
    assert facts.expand(facts.simplify(a)) is a
    assert facts.expand(facts.simplify(algebra.mul(a, a))) is algebra.mul(a, a)
    quarter = algebra.floordiv(a, four)
    assert facts.expand(facts.simplify(quarter)) is quarter
    facts.learn(algebra.eq0(algebra.mod(a, algebra.integer(6))))
    assert facts.decide(algebra.eq0(algebra.mod(a, algebra.integer(12)))) is True


def test_ranges_follow_from_comparisons():
    algebra, facts, symbols = make_facts()
    a, b = symbols["a"], symbols["b"]
    facts.learn(algebra.ge(b, a))  # a <= b
    facts.learn(algebra.ge(algebra.integer(10), b))  # b <= 10
    assert facts.bounds(a) == (0, 10)
    assert facts.decide(algebra.lt(a, algebra.integer(11))) is True
    assert facts.decide(algebra.ge(algebra.add(b, algebra.one), a)) is True
    facts.learn(algebra.logical_not(algebra.eq0(algebra.mul(a, b))))
    assert facts.decide(algebra.ge(a, algebra.one)) is True


def test_products_and_remainders_have_tight_bounds():
    algebra, facts, symbols = make_facts()
    a, b = symbols["a"], symbols["b"]
    facts.learn(algebra.ge(b, algebra.one))
    assert facts.decide(algebra.ge(algebra.mul(a, b), a)) is True
    assert facts.bounds(algebra.mod(a, algebra.integer(8))) == (0, 7)
    assert facts.decide(algebra.lt(algebra.mod(a, b), b)) is True
    assert facts.simplify(algebra.maximum(a, algebra.zero)) is a


def test_a_range_of_one_value_is_a_constant_and_reported():
    algebra, facts, symbols = make_facts()
    a = symbols["a"]
    facts.learn(algebra.ge(a, algebra.integer(5)))
    facts.learn(algebra.ge(algebra.integer(5), a))
    assert facts.simplify(a).constant == 5
    assert facts.fixed == [a]


def test_contradictions_are_refused():
    algebra, facts, symbols = make_facts()
    a = symbols["a"]
    facts.learn(algebra.ge(a, algebra.integer(5)))
    try:
        facts.learn(algebra.ge(algebra.integer(4), a))
    except Contradiction:
        return
    raise AssertionError("learned that a size is at least 5 and at most 4")
