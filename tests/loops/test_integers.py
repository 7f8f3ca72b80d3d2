"""Index arithmetic: canonical forms, quotients that vanish, bounds."""

import random

import pytest

from stator.loops.integers import (
    coefficient_of,
    contiguous_strides,
    divide_exactly,
    least,
    lower_bound,
    quotient,
    remainder,
    single_atom,
    substitute,
    symbol,
    upper_bound,
    variable,
)

i, j = variable("i", 16), variable("j", 64)
n = symbol("n")


def test_constants_are_ints():
    assert (i + 3) - i == 3 and isinstance((i + 3) - i, int)
    assert i * 0 == 0
    assert n * 2 - n - n == 0


def test_equal_structure_is_equal():
    assert i * 64 + j == j + 64 * i
    assert hash(i * 64 + j) == hash(j + i * 64)
    assert variable("i", 16) == i and variable("i", 17) != i


def test_quotients_vanish_by_range():
    assert quotient(i * 64 + j, 64) == i
    assert remainder(i * 64 + j, 64) == j
    assert quotient(j, 64) == 0
    assert quotient(quotient(n, 4), 8) == quotient(n, 32)
    assert remainder(remainder(n, 32), 8) == remainder(n, 8)


def test_symbolic_quotients():
    row, column = variable("r", symbol("h")), variable("c", symbol("w"))
    assert quotient(row * symbol("w") + column, symbol("w")) == row
    assert remainder(row * symbol("w") + column, symbol("w")) == column


def test_bounds():
    assert upper_bound(i * 64 + j) == 15 * 64 + 63
    assert lower_bound(i * 64 + 5) == 5
    assert upper_bound(n) is None and lower_bound(n) == 0
    assert least(8, i * 0 + 8) == 8
    assert upper_bound(least(10, n)) == 10


def test_division_of_polynomials():
    assert divide_exactly(n * 6, 3) == n * 2
    assert divide_exactly(n * i, n) == i
    assert divide_exactly(n + 1, 2) is None


def test_coefficients():
    atom = single_atom(i)
    assert coefficient_of(i * n + 3, atom) == n
    assert coefficient_of(j, atom) == 0
    assert coefficient_of(i * i, atom) is None


def test_strides():
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides((2, n)) == (n, 1)


@pytest.mark.parametrize("seed", range(30))
def test_arithmetic_is_arithmetic(seed):
    """Random expressions evaluated both ways."""
    chance = random.Random(seed)
    values = {"i": chance.randrange(16), "j": chance.randrange(64), "n": chance.randrange(1, 50)}
    pairs = [(i, values["i"]), (j, values["j"]), (n, values["n"]), (3, 3), (8, 8)]
    for _ in range(25):
        (left, a), (right, b) = chance.choice(pairs), chance.choice(pairs)
        kind = chance.choice("+*/%")
        if kind == "+":
            pairs.append((left + right, a + b))
        elif kind == "*" and a * b < 10**6:
            pairs.append((left * right, a * b))
        elif kind in "/%" and isinstance(right, int) and right > 0:
            pairs.append((quotient(left, right), a // b) if kind == "/" else (remainder(left, right), a % b))
    for expression, expected in pairs:
        assert evaluate(expression, values) == expected


def evaluate(value, values):
    def replace(atom):
        if atom.kind in ("Variable", "Symbol"):
            return values[atom.name]
        return None

    return substitute(value, replace)


def test_quotients_of_falling_indices():
    """A flipped and repeated row: 9 - i for i < 10 lies in [0, 10), but 4 - i does not lie in [0, 5)."""
    i = variable("i", 10)
    atom = single_atom(i)
    for divide, whole in ((quotient, True), (remainder, False)):
        found = divide(9 - i, 5)
        for value in range(10):
            got = evaluated(found, {atom: value})
            assert got == ((9 - value) // 5 if whole else (9 - value) % 5)


def evaluated(value, known):
    """A size with numbers for its variables."""
    if isinstance(value, int):
        return value
    total = 0
    for monomial, coefficient in value.terms.items():
        product = coefficient
        for atom in monomial:
            if atom.kind == "Variable":
                product *= known[atom]
                continue
            left, right = evaluated(atom.left, known), evaluated(atom.right, known)
            assert left >= 0, "processors divide what is not negative"
            product *= left // right if atom.kind == "Quotient" else left % right
        total += product
    return total
