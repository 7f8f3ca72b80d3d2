"""Products of matrices in the loop language: a `contraction` is a sum of products of two loads.

Contract. `roles_of` says which variable of a contraction is what: `rows` moves only the left factor, `columns` only the
right one, `summed` both and not the result; all others are `rest` (batches). It gives None for a contraction of another
form, which an emitter then runs as the plain reduction it also is. `after_contraction` holds what may share a nest with
one: only what is computed from its results, element by element and along its columns, since everything else would be
computed again for each tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stator.loops.integers import Atom, Size, coefficient_of
from stator.loops.ir import Definition, Expression, Nest
from stator.loops.spaces import total

CONTRACTION = "contraction"


@dataclass(frozen=True, slots=True)
class Roles:
    """The variables of a contraction and its two loads. The indices move by the given steps."""

    rows: Atom
    columns: Atom
    summed: Atom
    rest: tuple[Atom, ...]
    left: Expression
    right: Expression

    def left_steps(self) -> tuple[int, int]:
        """Of the left index, along the rows and along the sum."""
        return step_along(self.left, self.rows), step_along(self.left, self.summed)

    def right_steps(self) -> tuple[int, int]:
        """Of the right index, along the sum and along the columns."""
        return step_along(self.right, self.summed), step_along(self.right, self.columns)


def step_along(node: Expression, atom: Atom) -> int:
    step = coefficient_of(node.attribute[1], atom)
    assert isinstance(step, int)
    return step


def roles_of(value: Expression, outer: Sequence[Atom], inner: Sequence[Atom]) -> Roles | None:
    """The roles in a contraction of `value` over `inner`, the result's last variable being its columns."""
    if value.operation != "mul" or len(inner) != 1 or len(outer) < 2:
        return None
    columns, (summed,) = outer[-1], inner
    left, right = value.operands
    if columns in left.variables():
        left, right = right, left
    if left.operation != "load" or right.operation != "load":
        return None
    rows = next((atom for atom in reversed(outer[:-1]) if atom in left.variables() - right.variables()), None)
    if rows is None or columns in left.variables():
        return None
    for node, atoms in ((left, (rows, summed)), (right, (summed, columns))):
        if not all(isinstance(coefficient_of(node.attribute[1], atom), int) for atom in atoms):
            return None
    rest = tuple(atom for atom in outer if atom is not rows and atom is not columns)
    return Roles(rows, columns, summed, rest, left, right)


def holds_contraction(nest: Nest) -> bool:
    return nest.definitions[0].reduction == CONTRACTION


def why_apart(nest: Nest, definition: Definition) -> str:
    """Why a definition may not join a nest for the sake of a contraction; empty if it may."""
    if definition.reduction == CONTRACTION:
        return "a product of matrices starts a kernel of its own"
    if not holds_contraction(nest):
        return ""
    made = {done.buffer for done in nest.definitions}
    if definition.reduction or not any(buffer in made for buffer, _ in definition.reads()):
        return "only what is computed from a product's elements shares its kernel"
    if total(definition.variables) != total(nest.outer):
        return "it needs other elements than the product gives"
    return ""


def why_across(joined: Nest) -> str:
    """Why a joined nest would spoil its contraction; empty if it does not."""
    if not holds_contraction(joined):
        return ""
    columns = single_columns(joined)
    if columns is None:
        return "it cuts the product's columns"
    for definition in joined.definitions[1:]:
        steps = [(definition.store, (1,)), *((index, (0, 1)) for _, index in definition.reads())]
        if any(coefficient_of(index, columns) not in allowed for index, allowed in steps):
            return "it walks across the product's columns"
    return ""


def single_columns(nest: Nest) -> Atom | None:
    """The only variable along which just the right factor moves, and the result by one."""
    product = nest.definitions[0]
    left, right = product.value.operands
    own: set[Atom] = set(right.variables() - left.variables() - set(nest.inner))
    if any(coefficient_of(product.store, atom) == 1 for atom in left.variables()):
        left, right = right, left
        own = set(right.variables() - left.variables() - set(nest.inner))
    found: Size | None = None
    if len(own) == 1:
        (atom,) = own
        found = coefficient_of(product.store, atom)
        return atom if found == 1 else None
    return None
