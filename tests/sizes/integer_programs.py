"""Random integer programs: how they are drawn, run by Python, and built as expressions."""

from __future__ import annotations

from hypothesis import strategies as st

from stator.sizes.expression import Algebra, Expr

NAMES = ("a", "b", "c")
INTEGER_OPERATORS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "minimum": min,
    "maximum": max,
}
COMPARISONS = {
    "eq": lambda x, y: x == y,
    "ge": lambda x, y: x >= y,
    "lt": lambda x, y: x < y,
}


def integer_programs(depth: int = 4):
    leaf = st.one_of(st.sampled_from(NAMES), st.integers(-7, 12))
    return st.recursive(
        leaf, lambda inner: st.tuples(st.sampled_from(sorted(INTEGER_OPERATORS)), inner, inner), max_leaves=2**depth
    )


def value_of(program, environment):
    if isinstance(program, str):
        return environment[program]
    if isinstance(program, int):
        return program
    name, left, right = program
    table = INTEGER_OPERATORS if name in INTEGER_OPERATORS else COMPARISONS
    return table[name](value_of(left, environment), value_of(right, environment))


def build(algebra: Algebra, program, symbols) -> Expr:
    if isinstance(program, str):
        return symbols[program]
    if isinstance(program, int):
        return algebra.integer(program)
    name, left, right = program
    return getattr(algebra, name)(build(algebra, left, symbols), build(algebra, right, symbols))
