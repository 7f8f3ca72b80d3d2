"""Index and size expressions: canonical integer polynomials over loop variables and symbolic sizes.

Contract. A `Size` is an `int` or a `Polynomial`; arithmetic with Python's operators returns an `int` whenever the
result is constant, so graphs with static shapes never leave Python's integers. Two polynomials are equal exactly if
their canonical forms are. Atoms are interned, so they compare by identity:

    Variable     a loop variable, 0 <= v < extent
    Symbol       a size only known at run time, `low` is a proven lower bound
    Quotient     floor(numerator / divisor), of non-negative integers
    Remainder    numerator mod divisor, of non-negative integers
    Least        the smaller of two expressions
    Fetched      the value of a loop expression used as an index (embedding, gather)

Why not a general algebra system: indices are sums of products, and the only hard question is whether a quotient or
remainder vanishes, which the ranges of the variables answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union
from weakref import WeakValueDictionary

_interned: WeakValueDictionary[tuple[Any, ...], Atom] = WeakValueDictionary()
_interned_lock = threading.Lock()


class Atom:
    """A factor of a monomial. `kind` is one of the rows of the module's table."""

    __slots__ = ("__weakref__", "key", "kind", "left", "name", "right")

    kind: str
    name: str
    left: Any
    right: Any
    key: str

    def __repr__(self) -> str:
        return self.key

    def __lt__(self, other: Atom) -> bool:
        return self.key < other.key


def _atom(kind: str, name: str, left: Any = None, right: Any = None) -> Atom:
    handle = (kind, name, left, right)
    with _interned_lock:
        found = _interned.get(handle)
        if found is None:
            found = Atom()
            found.kind, found.name, found.left, found.right = kind, name, left, right
            found.key = _KEYS[kind](name, left, right)
            _interned[handle] = found
    return found


_KEYS: dict[str, Callable[[str, Any, Any], str]] = {
    "Variable": lambda name, left, right: name,
    "Symbol": lambda name, left, right: name,
    "Quotient": lambda name, left, right: f"({left} // {right})",
    "Remainder": lambda name, left, right: f"({left} % {right})",
    "Least": lambda name, left, right: f"min({left}, {right})",
    "Fetched": lambda name, left, right: f"[{left}]",
}


class Polynomial:
    """A sum of integer multiples of monomials; a monomial is a sorted tuple of atoms."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[tuple[Atom, ...], int]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Polynomial) and self._hash == other._hash and self.terms == other.terms

    def __repr__(self) -> str:
        parts = []
        for monomial, coefficient in sorted(self.terms.items(), key=lambda item: (-len(item[0]), item[0])):
            factors = [str(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        text = " + ".join(parts)
        return f"({text})" if len(parts) > 1 else text

    def __add__(self, other: Size) -> Size:
        if isinstance(other, int):
            if other == 0:
                return self
            other_terms: Mapping[tuple[Atom, ...], int] = {(): other}
        else:
            other_terms = other.terms
        terms = dict(self.terms)
        for monomial, coefficient in other_terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _normal(terms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __rsub__(self, other: Size) -> Size:
        return -self + other

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):
            if other == 0:
                return 0
            return self if other == 1 else Polynomial({m: c * other for m, c in self.terms.items()})
        terms: dict[tuple[Atom, ...], int] = {}
        for left, left_coefficient in self.terms.items():
            for right, right_coefficient in other.terms.items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + left_coefficient * right_coefficient
        return _normal(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return quotient(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return quotient(other, self)

    def __mod__(self, other: Size) -> Size:
        return remainder(self, other)

    def __rmod__(self, other: int) -> Size:
        return remainder(other, self)


Size = Union[int, Polynomial]  # noqa: UP007 (a forward reference inside a runtime alias)


def _normal(terms: dict[tuple[Atom, ...], int]) -> Size:
    terms = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Polynomial(terms)


def of_atom(atom: Atom) -> Polynomial:
    return Polynomial({(atom,): 1})


def variable(name: str, extent: Size) -> Polynomial:
    """A loop variable with 0 <= v < extent."""
    return of_atom(_atom("Variable", name, extent))


def symbol(name: str, low: int = 0) -> Polynomial:
    """A size only known at run time, at least `low`."""
    return of_atom(_atom("Symbol", name, low))


def fetched(expression: Any) -> Polynomial:
    """The value of a loop expression as an index."""
    return of_atom(_atom("Fetched", "", expression))


def least(left: Size, right: Size) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    if left == right:
        return left
    low = lower_bound(left - right)
    if low is not None and low >= 0:
        return right
    low = lower_bound(right - left)
    if low is not None and low >= 0:
        return left
    return of_atom(_atom("Least", "", left, right))


def terms_of(value: Size) -> Mapping[tuple[Atom, ...], int]:
    if isinstance(value, int):
        return {(): value} if value else {}
    return value.terms


def single_atom(value: Size) -> Atom | None:
    """The atom, if the value is exactly one."""
    if isinstance(value, Polynomial) and len(value.terms) == 1:
        ((monomial, coefficient),) = value.terms.items()
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def atoms(value: Size) -> Iterable[Atom]:
    """Every atom at the top level of a value."""
    if isinstance(value, Polynomial):
        for monomial in value.terms:
            yield from monomial


def all_atoms(value: Size) -> set[Atom]:
    """Every atom of a value, those inside other atoms included (not inside fetched expressions)."""
    found: set[Atom] = set()
    pending = list(atoms(value))
    while pending:
        atom = pending.pop()
        if atom in found:
            continue
        found.add(atom)
        if atom.kind in ("Quotient", "Remainder", "Least"):
            pending.extend(atoms(atom.left))
            pending.extend(atoms(atom.right))
    return found


def bounds(atom: Atom) -> tuple[int | None, int | None]:
    """Proven inclusive bounds of an atom."""
    if atom.kind == "Variable":
        high = upper_bound(atom.left)
        return 0, None if high is None else high - 1
    if atom.kind == "Symbol":
        return atom.left, None
    if atom.kind == "Remainder":
        low, high = 0, upper_bound(atom.right)
        return low, None if high is None else high - 1
    if atom.kind == "Quotient":
        high = upper_bound(atom.left)
        divisor = lower_bound(atom.right)
        return 0, None if high is None else high // max(divisor or 1, 1)
    if atom.kind == "Least":
        left, right = upper_bound(atom.left), upper_bound(atom.right)
        high = min((value for value in (left, right) if value is not None), default=None)
        lows = (lower_bound(atom.left), lower_bound(atom.right))
        return None if None in lows else min(lows), high  # type: ignore[type-var]
    return None, None


def _bound(value: Size, upper: bool) -> int | None:
    if isinstance(value, int):
        return value
    total = 0
    for monomial, coefficient in value.terms.items():
        want_upper = upper == (coefficient > 0)
        product = 1
        for atom in monomial:
            low, high = bounds(atom)
            if low is None or low < 0:
                return None
            factor = high if want_upper else low
            if factor is None:
                return None
            product *= factor
        total += coefficient * product
    return total


def upper_bound(value: Size) -> int | None:
    """A proven inclusive upper bound, or None."""
    return _bound(value, True)


def lower_bound(value: Size) -> int | None:
    """A proven inclusive lower bound, or None."""
    return _bound(value, False)


def _below(value: Size, limit: Size) -> bool:
    """Whether 0 <= value < limit is proven."""
    low = lower_bound(value)
    if low is None or low < 0:
        return False
    if isinstance(limit, int):
        high = upper_bound(value)
        return high is not None and high < limit
    return _symbolically_below(value, limit)


def _symbolically_below(value: Size, limit: Size) -> bool:
    """value < limit, replacing each variable by its (symbolic) extent - 1 where that is monotone."""
    highest: Size = 0
    for monomial, coefficient in terms_of(value).items():
        if coefficient < 0:
            return False
        product: Size = coefficient
        for atom in monomial:
            if atom.kind == "Variable":
                product = product * (atom.left - 1)
            elif atom.kind == "Remainder":
                product = product * (atom.right - 1)
            elif atom.kind == "Symbol":
                product = product * of_atom(atom)
            else:
                return False
        highest = highest + product
    gap = lower_bound(limit - 1 - highest)
    return gap is not None and gap >= 0


def divide_exactly(value: Size, divisor: Size) -> Size | None:
    """value / divisor if that is a polynomial with integer coefficients, else None."""
    if isinstance(divisor, int):
        if divisor == 0:
            return None
        if isinstance(value, int):
            return value // divisor if value % divisor == 0 else None
        if any(coefficient % divisor for coefficient in value.terms.values()):
            return None
        return _normal({monomial: coefficient // divisor for monomial, coefficient in value.terms.items()})
    if value == divisor:
        return 1
    if value == 0:
        return 0
    if len(divisor.terms) != 1:
        return None
    ((divisor_monomial, divisor_coefficient),) = divisor.terms.items()
    result: dict[tuple[Atom, ...], int] = {}
    for monomial, coefficient in terms_of(value).items():
        rest = list(monomial)
        for atom in divisor_monomial:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % divisor_coefficient:
            return None
        result[tuple(rest)] = coefficient // divisor_coefficient
    return _normal(result)


def _split(value: Size, divisor: Size) -> tuple[Size, Size]:
    """value = whole * divisor + rest, term by term; `rest` is not negative, as `value` is not."""
    whole: Size = 0
    rest: Size = 0
    for monomial, coefficient in terms_of(value).items():
        term: Size = Polynomial({monomial: coefficient}) if monomial else coefficient
        if isinstance(divisor, int) and monomial == ():
            whole, rest = whole + coefficient // divisor, rest + coefficient % divisor
            continue
        exact = divide_exactly(term, divisor)
        if exact is None:
            rest = rest + term
        else:
            whole = whole + exact
    low = lower_bound(rest)
    return (whole, rest) if low is not None and low >= 0 else (0, value)


def quotient(value: Size, divisor: Size) -> Size:
    """floor(value / divisor) of non-negative integers."""
    if isinstance(divisor, int) and divisor == 1:
        return value
    if isinstance(value, int) and isinstance(divisor, int):
        return value // divisor
    whole, rest = _split(value, divisor)
    if rest == 0 or _below(rest, divisor):
        return whole
    atom = single_atom(rest)
    if atom is not None and atom.kind == "Quotient":  # (a // b) // c == a // (b * c)
        return whole + quotient(atom.left, atom.right * divisor)
    return whole + of_atom(_atom("Quotient", "", rest, divisor))


def remainder(value: Size, divisor: Size) -> Size:
    """value mod divisor of non-negative integers."""
    if isinstance(divisor, int) and divisor == 1:
        return 0
    if isinstance(value, int) and isinstance(divisor, int):
        return value % divisor
    _, rest = _split(value, divisor)
    if rest == 0 or _below(rest, divisor):
        return rest
    atom = single_atom(rest)
    if atom is not None and atom.kind == "Remainder" and divide_exactly(atom.right, divisor) is not None:
        return remainder(atom.left, divisor)  # (a % (b * c)) % c == a % c
    return of_atom(_atom("Remainder", "", rest, divisor))


def substitute(value: Size, replace: Callable[[Atom], Size | None]) -> Size:
    """Replace atoms; `replace` returns None for an atom that stays (its own operands are then visited)."""
    if isinstance(value, int):
        return value
    result: Size = 0
    changed = False
    for monomial, coefficient in value.terms.items():
        product: Size = coefficient
        for atom in monomial:
            new = _substitute_atom(atom, replace)
            if new is None:
                product = product * of_atom(atom)
            else:
                changed = True
                product = product * new
        result = result + product
    return result if changed else value


def _substitute_atom(atom: Atom, replace: Callable[[Atom], Size | None]) -> Size | None:
    new = replace(atom)
    if new is not None:
        return new
    if atom.kind in ("Quotient", "Remainder", "Least"):
        left, right = substitute(atom.left, replace), substitute(atom.right, replace)
        if left is atom.left and right is atom.right:
            return None
        return {"Quotient": quotient, "Remainder": remainder, "Least": least}[atom.kind](left, right)
    return None


def coefficient_of(value: Size, atom: Atom) -> Size | None:
    """The factor of a variable in a value that is affine in it; None where it is not (or hides in another atom)."""
    if isinstance(value, int):
        return 0
    result: Size = 0
    for monomial, coefficient in value.terms.items():
        if atom in monomial:
            rest = list(monomial)
            rest.remove(atom)
            if atom in rest:
                return None
            result = result + (Polynomial({tuple(rest): coefficient}) if rest else coefficient)
        for other in monomial:
            if other is not atom and other.kind not in ("Variable", "Symbol") and depends(other, atom):
                return None
    return result


def depends(holder: Atom, atom: Atom) -> bool:
    """Whether an atom's value depends on another atom."""
    if holder is atom:
        return True
    if holder.kind in ("Quotient", "Remainder", "Least"):
        return any(depends(inner, atom) for inner in (*atoms(holder.left), *atoms(holder.right)))
    if holder.kind == "Fetched":
        return atom in holder.left.variables()
    return False


def product_of(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def contiguous_strides(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """Row-major strides."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(list(sizes)):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))
