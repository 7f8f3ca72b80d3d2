"""The order in which guards are checked: cheap and discriminating first, yet never before what protects a load.

Contract. `nodes_in_order` yields every node after its parent; `guard_order` the guards of a node, the type first.
Guards over several nodes (`DEFERRED`) come after all nodes. The explanation of misses follows this order; the native
machine does too, except that under one root it checks what it can remember before what it reads each time.

Arguments come before global state and closed-over or global objects: they are what changes from call to call.
"""

from __future__ import annotations

from collections.abc import Iterator

from stator.values.source import Guard, Source, SourceTree

# Guards that look at more than one node.
DEFERRED = frozenset({"SAME", "DIFFERENT", "SIZES"})

# Lower is earlier. Roots by how often they change, guards by price and by what they protect.
ROOT_RANK = {"LOCAL": 0, "STATE": 1, "CELL": 2, "FUNCTION": 3, "CONST": 4}
GUARD_RANK = {
    "TYPE_IS": 0, "IS": 1, "IS_NOT": 1, "ITERATOR": 1, "TENSOR": 2, "CODE_IS": 2, "LENGTH": 2, "RANGE": 2,
    "EQUALS": 3, "MODES": 3, "KEYS": 4, "HAS_KEY": 4, "LACKS_KEY": 4, "LACKS_ATTR": 4, "LOOKUP_ABSENT": 4,
    "MODULE_CALL": 5, "MEMBERS": 6,
}  # fmt: skip


def is_deferred(guard: Guard) -> bool:
    """Whether it can only be checked once other nodes are loaded."""
    return guard.kind in DEFERRED


def guard_order(node: Source) -> list[Guard]:
    """The guards of a node in the order they are checked."""
    return sorted(node.guards.values(), key=lambda guard: GUARD_RANK.get(guard.kind, 9))


def roots_in_order(tree: SourceTree) -> list[Source]:
    """The roots, those that change most first."""
    return sorted(tree.roots.values(), key=lambda root: ROOT_RANK[root.step])


def nodes_in_order(tree: SourceTree) -> Iterator[Source]:
    """Every node after its parent."""
    for root in roots_in_order(tree):
        pending = [root]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children.values()))
