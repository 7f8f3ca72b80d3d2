"""Symbolic sizes: see `context.py` for what a trace calls, `expression.py` for the algebra under it."""

from __future__ import annotations

from stator.sizes.context import (
    Constraint,
    RuntimeAssert,
    SizeContext,
    SizeGuard,
    Specialisation,
    SymbolInfo,
)
from stator.sizes.expression import Algebra, Expr
from stator.sizes.node import SizeNode

__all__ = [
    "Algebra",
    "Constraint",
    "Expr",
    "RuntimeAssert",
    "SizeContext",
    "SizeGuard",
    "SizeNode",
    "Specialisation",
    "SymbolInfo",
]
