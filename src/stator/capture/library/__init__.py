"""What the interpreter knows of particular callables: one row each, by topic.

Contract. A row maps a callable to a handler `(tracer, args, kwargs) -> value`, or for classes
`(tracer, cls, args, kwargs) -> value`. A handler that returns NotImplemented leaves the call to the general rules.
`LATE_FUNCTIONS` names callables by (module, qualified name) that must not be imported for it; `CODES` knows functions
that a decorator makes by the code they share, with handlers `(tracer, function, args, kwargs) -> value`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stator.capture import higher_order
from stator.capture.library import (
    arrays,
    builtin_functions,
    classes,
    effects,
    functional,
    inference,
    modules,
    numbers,
    polyfills,
    standard,
    torch_overrides,
    torch_state,
    training,
)

FunctionHandler = Callable[[Any, list[Any], dict[str, Any]], Any]
ClassHandler = Callable[[Any, type, list[Any], dict[str, Any]], Any]

FUNCTIONS: dict[Any, FunctionHandler] = {
    **builtin_functions.FUNCTIONS,
    **standard.FUNCTIONS,
    **polyfills.FUNCTIONS,
    **torch_state.FUNCTIONS,
    **torch_overrides.FUNCTIONS,
    **inference.FUNCTIONS,
    **effects.FUNCTIONS,
    **modules.FUNCTIONS,
    **higher_order.FUNCTIONS,
    **functional.FUNCTIONS,
    **training.FUNCTIONS,
    **numbers.FUNCTIONS,
    **arrays.FUNCTIONS,
}
CLASSES: dict[type, ClassHandler] = {
    **classes.CLASSES,
    **standard.CLASSES,
    **torch_overrides.CLASSES,
    **inference.CLASSES,
    **arrays.CLASSES,
    **training.CLASSES,
}
# By the type of a callable object that C implements.
INSTANCES: dict[type, Any] = {**standard.INSTANCES, **arrays.INSTANCES}
# By the identity of a code object, for functions that are made anew by each use of a decorator.
CODES: dict[int, Any] = {id(code): handler for code, handler in (*standard.CODES.items(), *training.CODES.items())}
LATE_FUNCTIONS: dict[tuple[Any, Any], FunctionHandler] = {**torch_state.LATE_FUNCTIONS}

__all__ = ["CLASSES", "CODES", "FUNCTIONS", "INSTANCES", "LATE_FUNCTIONS"]
