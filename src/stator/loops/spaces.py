"""Finding one iteration space for two definitions.

Contract. `unify` makes, of two lists of variables that walk equally many elements in the same order, one list that both
can be written in: where one side has a single variable for several of the other's, the finer side wins, since a coarse
index is a polynomial in fine ones and no quotient ever appears. `follow` instead finds, by the coefficients of a
shared buffer's index, which variable of one definition is which of the other (permuted and broadcast uses).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from stator.loops.integers import Atom, Polynomial, Size, atoms, of_atom, product_of, terms_of, variable

Mapping = dict[Atom, Size]

_numbers = itertools.count()


@dataclass(slots=True)
class Unified:
    """New variables, and each side's old variables in terms of them. `owners[v]` are indices of the left side's
    variables that a new variable stands for."""

    variables: tuple[Atom, ...]
    left: Mapping
    right: Mapping
    owners: dict[Atom, list[int]]


def extent(atom: Atom) -> Size:
    return atom.left  # type: ignore[no-any-return]


def total(atoms: Sequence[Atom]) -> Size:
    return product_of(extent(atom) for atom in atoms)


def cut_alike(first: Sequence[Size], second: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Cut two shapes of one tensor into the smallest runs of dimensions with equal products."""
    result = []
    i = j = 0
    while i < len(first) or j < len(second):
        left, right = [], []
        left_product: Size = 1
        right_product: Size = 1
        if i < len(first):
            left.append(i)
            left_product = first[i]
            i += 1
        if j < len(second):
            right.append(j)
            right_product = second[j]
            j += 1
        while left_product != right_product:
            grow_left = _smaller(left_product, right_product)
            if grow_left and i < len(first):
                left.append(i)
                left_product = left_product * first[i]
                i += 1
            elif j < len(second):
                right.append(j)
                right_product = right_product * second[j]
                j += 1
            elif i < len(first):
                left.append(i)
                left_product = left_product * first[i]
                i += 1
            else:
                return None
        result.append((left, right))
    return result


def _smaller(left: Size, right: Size) -> bool:
    """Whether the left product is the one to grow: it is smaller, or divides the right one."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int)
    return len(next(iter(left.terms))) <= len(next(iter(right.terms)))


def unify(left: Sequence[Atom], right: Sequence[Atom]) -> Unified | None:
    """One list of variables for two that walk the same elements in the same order."""
    cut = cut_alike([extent(atom) for atom in left], [extent(atom) for atom in right])
    if cut is None:
        return None
    result = Unified((), {}, {}, {})
    for left_places, right_places in cut:
        mine = [left[k] for k in left_places]
        theirs = [right[k] for k in right_places]
        if len(mine) == 1 and theirs:
            fine, coarse, mapping, identity = theirs, mine[0], result.left, result.right
        elif len(theirs) == 1 and mine:
            fine, coarse, mapping, identity = mine, theirs[0], result.right, result.left
        else:
            return None
        linear: Size = 0
        for atom in fine:
            name = f"v{next(_numbers)}" if atom in result.owners else atom.name
            new = variable(name, extent(atom))
            (fresh,) = atoms(new)
            linear = linear * extent(atom) + new
            identity[atom] = new
            result.owners[fresh] = left_places
            result.variables += (fresh,)
        mapping[coarse] = linear
    return result


def follow(index: Size, variables: Sequence[Atom], store: Size, targets: Sequence[Atom]) -> Mapping | None:
    """Which target each of `variables` is, where `index` (over them) and `store` (over targets) address one buffer."""
    by_coefficient: dict[Size, Atom] = {}
    for atom in targets:
        coefficient = _linear_coefficient(store, atom)
        if coefficient is None or coefficient in by_coefficient:
            return None
        if coefficient != 0:
            by_coefficient[coefficient] = atom
    mapping: Mapping = {}
    for atom in variables:
        coefficient = _linear_coefficient(index, atom)
        if coefficient is None:
            return None
        if coefficient == 0:
            continue
        target = by_coefficient.get(coefficient)
        if target is None or extent(target) != extent(atom) or of_atom(target) in mapping.values():
            return None
        mapping[atom] = of_atom(target)
    return mapping


def _linear_coefficient(value: Size, atom: Atom) -> Size | None:
    """The factor of an atom in a value, which must be affine in plain variables."""
    result: Size = 0
    for monomial, coefficient in terms_of(value).items():
        if any(other.kind not in ("Variable", "Symbol") for other in monomial):
            return None
        if atom in monomial:
            rest = list(monomial)
            rest.remove(atom)
            if atom in rest:
                return None
            result = result + (Polynomial({tuple(rest): coefficient}) if rest else coefficient)
    return result
