"""Symbolic sizes. What a trace calls is in `context.py`; the layers under and over it, in order:

expression   canonical terms              bounds, facts   what is known, and what follows from it
printer      terms as Python text         layout          contiguity as terms
node         the node of torch.SymInt     context         symbols, decisions, guards, specialisations
torch_names  torch's helpers for our nodes
lowering     guards as data               shapes, meta_rules, function_rules   shapes of operators
marks, policy, profile                    what starts symbolic
"""

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
from stator.sizes.lowering import LoweredGuard, LoweredGuards, PinnedSource, lower_expression, lower_guards
from stator.sizes.node import SizeNode
from stator.sizes.policy import Decision, DynamicHistory, Treatment

__all__ = [
    "Algebra",
    "Constraint",
    "Decision",
    "DynamicHistory",
    "Expr",
    "LoweredGuard",
    "LoweredGuards",
    "PinnedSource",
    "RuntimeAssert",
    "SizeContext",
    "SizeGuard",
    "SizeNode",
    "Specialisation",
    "SymbolInfo",
    "Treatment",
    "lower_expression",
    "lower_guards",
]
