"""Symbolic numbers in graphs and residual programs: an expression over symbols as calls over its inputs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from stator.capture.control import Break
from stator.sizes import Algebra, Expr
from stator.sizes.expression import OPAQUE

SYMBOLIC: tuple[type, ...] = (torch.SymInt, torch.SymFloat, torch.SymBool)
COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "not": operator.not_,
}  # fmt: skip
IN_GRAPH: dict[str, Callable[..., Any]] = {"min": torch.sym_min, "max": torch.sym_max}

# Operations whose result on symbolic numbers is a symbolic number, so that nodes can tell what they give.
EXACT = frozenset({*COMPARISONS.values(), *IN_GRAPH.values(), operator.add, operator.mul, operator.floordiv})


def is_symbolic(value: Any) -> bool:
    return type(value) in SYMBOLIC


def fold(
    algebra: Algebra, expr: Expr, leaf: Callable[[Expr], Any], call: Callable[..., Any], in_graph: bool = False
) -> Any:
    """`expr` built bottom up: `leaf(symbol)` for symbols, `call(function, *parts)` for operations."""
    kind = expr.kind
    if kind == "symbol":
        return leaf(expr)
    if expr.constant is not None or kind in ("true", "false", "constant"):
        return expr.constant
    if kind == "poly":
        total: Any = None
        for monomial, factor in expr.terms:
            term: Any = None
            for number in monomial:
                part = fold(algebra, algebra.atoms[number], leaf, call, in_graph)
                term = part if term is None else call(operator.mul, term, part)
            if term is None:
                term = factor
            elif factor != 1:
                term = call(operator.mul, term, factor)
            total = term if total is None else call(operator.add, total, term)
        return 0 if total is None else total
    function = (IN_GRAPH.get(kind) if in_graph else None) or COMPARISONS.get(kind)
    if function is None and kind in OPAQUE:
        function = OPAQUE[kind][1]
    if function is None:
        raise Break("graph_argument", f"a symbolic number made by {kind}")
    parts = [fold(algebra, part, leaf, call, in_graph) if isinstance(part, Expr) else part for part in expr.args]
    if function in IN_GRAPH.values():  # these take two
        return functools.reduce(lambda left, right: call(function, left, right), parts)
    return call(function, *parts)
