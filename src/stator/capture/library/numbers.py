"""Python's maths and torch's checks on symbolic numbers: what goes into the graph as a formula instead of a constant.

Contract. `FUNCTIONS` has the rows of `math` that the algebra of sizes knows (`sizes/expression.py`), and torch's
`_check` family. Rows answer for symbolic numbers alone; plain ones go their usual way.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stator.capture.control import Break
from stator.sizes.expression import MATH_FUNCTIONS

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer

Handler = Callable[["Tracer", list[Any], dict[str, Any]], Any]
_SYMBOLIC = (torch.SymInt, torch.SymFloat)
_SYM_FLOAT: Any = torch.SymFloat  # torch does not annotate it


def _formula(name: str) -> Handler:
    """A function of one float."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or type(args[0]) not in _SYMBOLIC:
            return NotImplemented
        node = args[0].node
        hint = node.hint
        try:
            if hint is not None:
                getattr(math, name)(hint)
        except (ValueError, OverflowError):
            return NotImplemented  # outside of the domain: the constant raises what it raises
        return _SYM_FLOAT(getattr(node, f"sym_{name}")())

    return handler


def _rounded(name: str) -> Handler:
    """`math.floor` and its kin: to an integer."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or type(args[0]) not in _SYMBOLIC:
            return NotImplemented
        return tracer.native(getattr(math, name), args[0])

    return handler


def _check(error: type[Exception]) -> Handler:
    """`torch._check(condition, message)`: a guard, or for what only the run time knows an assertion of the program."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        condition = args[0] if args else kwargs.get("cond")
        message = args[1] if len(args) > 1 else kwargs.get("message")
        if type(condition) is torch.SymBool:
            context = condition.node.context
            holds = context.promise(condition.node.expr, _text_of(message))
        elif type(condition) is bool:
            holds = condition
        else:
            return NotImplemented
        if not holds:
            raise Break("operator_error", f"a check that fails: {error.__name__}")
        return None

    return handler


def _check_is_size(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, limit = args[0], kwargs.get("max")
    check = _check(RuntimeError)
    check(tracer, [value >= 0, *args[1:]], {})
    if limit is not None:
        check(tracer, [value <= limit, *args[1:]], {})


def _text_of(message: Any) -> str:
    """The message, where it is the same on every call."""
    if type(message) is not types.FunctionType or message.__closure__ or message.__code__.co_names:
        return ""
    try:
        text = message()
    except Exception:
        return ""
    return text if type(text) is str else ""


FUNCTIONS: dict[Any, Handler] = {
    **{getattr(math, name): _formula(name) for name in MATH_FUNCTIONS if hasattr(math, name)},
    **{getattr(math, name): _rounded(name) for name in ("floor", "ceil", "trunc")},
    torch._check: _check(RuntimeError),
    torch._check_value: _check(ValueError),
    torch._check_index: _check(IndexError),
    torch._check_type: _check(TypeError),
    torch._check_not_implemented: _check(NotImplementedError),
    torch._check_is_size: _check_is_size,
}
