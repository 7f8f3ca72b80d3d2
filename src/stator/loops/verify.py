"""The rules every kernel obeys, checked before it is emitted.

Contract. `verify_kernel` raises `InvalidKernel` naming the first rule broken. It is cheap (one walk) and always on: a
wrong kernel is wrong memory, not an exception.

    types     operands are of a type the operation takes, and agree; memory and value agree at a store
    scope     an index uses only variables of its loop; a local value is computed in an earlier or the same row part
    rows      row values and row stores use no inner variable
    aliasing  a buffer stored in a stage is not read in a later one at another place
"""

from __future__ import annotations

from collections.abc import Iterable

from stator.exc import InternalStatorError
from stator.loops.integers import Atom
from stator.loops.ir import COMPARISONS, OPERATIONS, REDUCTIONS, TYPES, Expression, Kernel, index_variables, walk


class InvalidKernel(InternalStatorError):
    """A kernel breaks a rule of the loop language."""


def verify_kernel(kernel: Kernel) -> None:
    """Check every rule."""
    outer, inner = set(kernel.outer), set(kernel.inner)
    if outer & inner:
        raise InvalidKernel(f"{kernel.name}: a variable is both outer and inner", reason="invalid_kernel")
    names: set[str] = set()
    for stage in kernel.stages:
        for name, value in stage.row_values:
            check_value(kernel, value, outer, names)
            add_name(kernel, name, names)
        for store in stage.row_stores:
            check_store(kernel, store.index, store.value, store.buffer.type, outer, names)
        for accumulation in stage.accumulations:
            check_value(kernel, accumulation.value, outer | inner, names)
            row = REDUCTIONS.get(accumulation.kind)
            if row is None or accumulation.value.type not in row.types:
                fail(kernel, f"{accumulation.kind} over {accumulation.value.type}")
        for store in stage.stores:
            check_store(kernel, store.index, store.value, store.buffer.type, outer | inner, names)
        for accumulation in stage.accumulations:
            add_name(kernel, accumulation.name, names)


def add_name(kernel: Kernel, name: str, names: set[str]) -> None:
    if name in names:
        fail(kernel, f"{name} is given twice")
    names.add(name)


def check_store(
    kernel: Kernel, index: object, value: Expression, type_: str, variables: set[Atom], names: set[str]
) -> None:
    check_value(kernel, value, variables, names)
    if value.type != type_:
        fail(kernel, f"a {value.type} stored in memory of {type_}")
    if not index_variables(index) <= variables:  # type: ignore[arg-type]
        fail(kernel, f"the index {index} uses a variable of no loop around it")


def check_value(kernel: Kernel, value: Expression, variables: Iterable[Atom], names: set[str]) -> None:
    if not value.variables() <= set(variables):
        stray = ", ".join(sorted(str(atom) for atom in value.variables() - set(variables)))
        fail(kernel, f"{value} uses {stray} outside its loop")
    if not value.locals() <= names:
        fail(kernel, f"{value} uses {', '.join(sorted(value.locals() - names))} before it is computed")
    for node in walk([value]):
        check_node(kernel, node)


def check_node(kernel: Kernel, node: Expression) -> None:
    row = OPERATIONS.get(node.operation)
    if row is None or node.type not in TYPES:
        fail(kernel, f"no such operation or type: {node.operation} {node.type}")
        return
    if len(node.operands) != row.operands:
        fail(kernel, f"{node.operation} of {len(node.operands)} operands")
    if node.operation in ("convert", "place"):
        return
    kinds = [operand.type for operand in node.operands]
    compared = kinds[1:] if node.operation == "where" else kinds
    if node.operation == "where" and kinds[0] != "b1":
        fail(kernel, f"a condition of type {kinds[0]}")
    if len(set(compared)) > 1 or any(kind not in row.types for kind in compared):
        fail(kernel, f"{node.operation} of {', '.join(kinds)}")
    expected = "b1" if node.operation in COMPARISONS else (compared[0] if compared else node.type)
    if node.type != expected:
        fail(kernel, f"{node.operation} of {', '.join(kinds)} is no {node.type}")


def fail(kernel: Kernel, why: str) -> None:
    raise InvalidKernel(f"{kernel.name}: {why}", reason="invalid_kernel")
