"""Symbolic sizes of the traced graph as sizes of the loop language.

Contract. `Symbols.size` turns an `int` or a `torch.SymInt` into a `Size`. A term of the size algebra that is no
polynomial (a quotient, a minimum) becomes a symbol of its own: kernels need only its value. `Symbols.compute` says how
a program works that value out from the free sizes.

Free sizes are at least 0; what is proven beyond that stays with the guards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from stator.exc import InternalStatorError
from stator.loops.integers import Size, product_of, symbol
from stator.sizes.expression import OPAQUE, Expr


class Symbols:
    """The symbols of one graph."""

    def __init__(self) -> None:
        self.origin: dict[str, tuple[Any, Any]] = {}  # symbol name -> (its term, the algebra it belongs to)

    def size(self, value: Any) -> Size:
        if isinstance(value, torch.SymInt):
            context = value.node.context
            return self.expression(context.simplified(value.node.expr), context.algebra)
        return int(value)

    def expression(self, term: Any, algebra: Any) -> Size:
        """An integer term as a polynomial over symbols."""
        known = term.constant
        if known is not None:
            return int(known)
        if term.kind == "poly":
            total: Size = 0
            for monomial, factor in term.terms:
                total = total + product_of(self._atom(algebra.atoms[number], algebra) for number in monomial) * factor
            return total
        return self._atom(term, algebra)

    def _atom(self, term: Any, algebra: Any) -> Size:
        known = term.constant
        if known is not None:
            return int(known)
        if term.kind == "poly":
            return self.expression(term, algebra)
        name = str(term.name) if term.kind == "symbol" else f"n{term.number}"
        self.origin[name] = (term, algebra)
        return symbol(name)

    def can_compute(self, name: str) -> bool:
        """Whether `compute` knows the term behind a symbol; else a program asks `meaning`."""
        term, _ = self.origin.get(name, (None, None))
        return getattr(term, "kind", "") in COMPUTED

    def meaning(self, name: str) -> tuple[Callable[..., Any], list[Any]]:
        """A Python function, and the sizes it takes to the value of a symbol."""
        term, algebra = self.origin.get(name, (None, None))
        kind = getattr(term, "kind", "")
        if kind not in OPAQUE or any(getattr(operand, "type", int) is not int for operand in term.args):
            raise InternalStatorError(f"the program cannot know the size {name}", reason="graph_form")
        operands = [self.expression(part, algebra) if isinstance(part, Expr) else part for part in term.args]
        return OPAQUE[kind][1], operands

    def compute(self, name: str, value_of: Callable[[Size], Any]) -> Any:
        """The value of a symbol that is no input, from the values of the sizes it is made of."""
        term, algebra = self.origin.get(name, (None, None))
        rule = COMPUTED.get(getattr(term, "kind", ""))
        if rule is None:
            raise InternalStatorError(f"the program cannot know the size {name}", reason="graph_form")
        return rule([value_of(self.expression(operand, algebra)) for operand in term.args])


def _fold(name: str) -> Callable[[list[Any]], Any]:
    def rule(values: list[Any]) -> Any:
        result = values[0]
        for value in values[1:]:
            symbolic = result if not isinstance(result, int) else value
            if isinstance(symbolic, int):
                result = min(result, symbolic) if name == "minimum" else max(result, symbolic)
            else:
                result = getattr(type(symbolic), name)(result, value)
        return result

    return rule


# Terms a program can compute. `values` are ints or the runtime's integer expressions.
COMPUTED: Mapping[str, Callable[[list[Any]], Any]] = {
    "floordiv": lambda values: values[0] // values[1],
    "min": _fold("minimum"),
    "max": _fold("maximum"),
}
