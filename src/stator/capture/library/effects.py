"""Calls whose effect nobody inside the program can see: printing, logging and warnings.

Contract. Such a call is not run while tracing. Where everything it shows is known now, its arguments are turned into
text and the call is replayed by the residual program, in order, after the graph. Where it would show a tensor's
values or an object that could still change, it breaks the graph.
"""

from __future__ import annotations

import builtins
import logging
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from stator.capture.control import Break
from stator.values.constants import is_constant

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


class Replay(NamedTuple):
    """One call for the residual program to make."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _print(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> None:
    if kwargs.get("file") is not None and kwargs["file"] is not sys.stdout and kwargs["file"] is not sys.stderr:
        raise Break("output", "print to a file")
    if not all(is_constant(value) for name, value in kwargs.items() if name != "file"):
        raise Break("output", "print")
    texts = tuple(tracer.to_string(arg, "__str__") for arg in args)
    tracer.effects.append(Replay(builtins.print, texts, dict(kwargs)))


def _warn(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Where a warning is shown from is part of it, so it is issued with the user's line."""
    message = args[0] if args else kwargs.get("message")
    category = args[1] if len(args) > 1 else kwargs.get("category")
    level = args[2] if len(args) > 2 else kwargs.get("stacklevel", 1)
    if not isinstance(message, (str, Warning)) or tracer.world.is_outside(message) or not isinstance(level, int):
        raise Break("output", "warnings.warn")
    if category is None:
        category = type(message) if isinstance(message, Warning) else UserWarning
    if any(action == "error" for action, *_ in warnings.filters):
        raise Break("output", "warnings.warn under an error filter")
    frame = tracer.frames[-min(max(level, 1), len(tracer.frames))]
    registry = frame.globals.setdefault("__warningregistry__", {})
    tracer.effects.append(
        Replay(
            warnings.warn_explicit,
            (message, category, frame.code.co_filename, frame.line(), frame.globals.get("__name__"), registry),
            {},
        )
    )


def _logged(logger: logging.Logger, level: int, text: Any, args: Any, file: str, line: int, function: str) -> None:
    """What a method of a logger does, called from the user's line."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, file, line, text, args, None, function))


def _get_logger(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A logger is the same object whenever its name is asked for."""
    if kwargs or not all(is_constant(arg) for arg in args):
        return NotImplemented
    logger = tracer.native(logging.getLogger, *args)
    return tracer.world.load(logger, tracer.tree.const(logger))


def _log(method: str) -> Any:
    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        logger = args[0]
        if not isinstance(logger, logging.Logger) or type(logger)._log is not logging.Logger._log:
            return NotImplemented
        if method == "log":
            level = args[1]
        else:
            level = getattr(logging, {"warn": "WARNING", "exception": "ERROR"}.get(method, method.upper()))
        if not logger.isEnabledFor(level):
            return None
        if kwargs or method == "exception" or not all(is_constant(arg) for arg in args[1:]):
            raise Break("output", f"logging.{method}")
        text, *rest = args[2:] if method == "log" else args[1:]
        frame = tracer.frames[-1]
        place = (frame.code.co_filename, frame.line(), frame.code.co_name)
        tracer.effects.append(Replay(_logged, (logger, level, text, tuple(rest), *place), {}))
        return None

    return handler


FUNCTIONS: dict[Any, Any] = {
    builtins.print: _print,
    warnings.warn: _warn,
    logging.getLogger: _get_logger,
    **{
        getattr(logging.Logger, name): _log(name)
        for name in ("debug", "info", "warning", "error", "critical", "log", "exception")
    },
}
