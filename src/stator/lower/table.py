"""The lowering table: ATen operator -> rule.

Contract. `rule_of(operator)` is the rule of the overload, else of the operator whatever its overload, else None. An
operator that writes into an argument never has a rule. Rules raise `NotLowered` for calls outside their form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stator.lower import creation, indexing, pointwise, products, reductions, views

RULES: dict[str, Callable[..., Any]] = {}
for _rows in (pointwise.RULES, views.RULES, reductions.RULES, creation.RULES, indexing.RULES, products.RULES):
    if RULES.keys() & _rows.keys():
        raise ValueError(f"two rules for {sorted(RULES.keys() & _rows.keys())}")
    RULES.update(_rows)

# Overloads that share a packet with a row but mean something else.
EXCLUDED: frozenset[str] = frozenset(
    {"round.decimals", "sum.dim_DimnameList", "where.default", "any.dims_out", "add.t", "mean.names_dim"}
)

# prims that mean what an ATen row of another name means; pointwise ones share the names of their rows.
PRIMS: dict[str, str] = {
    "sum": "sum", "prod": "prod", "amax": "amax", "amin": "amin", "transpose": "permute", "squeeze": "squeeze",
    "clone": "clone", "rev": "flip",
}  # fmt: skip


def rule_of(operator: Any) -> Callable[..., Any] | None:
    """The rule for an operator overload."""
    if operator._schema.is_mutable:
        return None
    packet = operator.overloadpacket.__name__
    overload = f"{packet}.{operator._overloadname}"
    if operator.namespace == "prims":
        return RULES.get(f"prims.{packet}") or RULES.get(PRIMS.get(packet, packet if packet in pointwise.ROWS else ""))
    if operator.namespace != "aten" or overload in EXCLUDED:
        return None
    return RULES.get(overload) or RULES.get(packet)


def without_rows(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions of the operators that the table has no row for: a row keeps eager's own order of operations."""
    return {operator: function for operator, function in decompositions.items() if rule_of(operator) is None}
