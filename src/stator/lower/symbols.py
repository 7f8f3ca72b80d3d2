"""Symbolic sizes of the traced graph as sizes of the loop language.

Contract. `Symbols.size` turns an `int`, a `torch.SymInt` or a number into a `Size`. What a SymInt's expression is
made of (a free size, a quotient of sizes, ...) becomes one symbol each; `Symbols.origin` remembers the atom's
expression, so that the program builder can compute it from the program's inputs.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.loops.integers import Polynomial, Size, of_atom, product_of, quotient, single_atom, symbol



class Symbols:
    """The symbols of one graph."""

    def __init__(self) -> None:
        self.origin: dict[str, Any] = {}  # symbol name -> the expression object it stands for

    def size(self, value: Any) -> Size:
        if isinstance(value, torch.SymInt):
            return self.expression(value.node.expr)
        return int(value)

    def expression(self, expression: Any) -> Size:
        """An integer expression of the size algebra (`sizes/expression.py`)."""
        known = expression.constant
        if known is not None:
            return int(known)
        if expression.kind == "poly":
            total: Size = 0
            for factors, coefficient in expression.factors():
                total = total + product_of([self.expression(factor) for factor in factors]) * coefficient
            return total
        name = str(expression)
        self.origin[name] = expression
        return symbol(name)


def symbol_name(value: Size) -> str | None:
    """The name, if the size is exactly one symbol."""
    atom = single_atom(value) if isinstance(value, Polynomial) else None
    return atom.name if atom is not None and atom.kind == "Symbol" else None


