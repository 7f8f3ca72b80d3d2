"""Every exception stator raises on its own account; what the user's code raises passes through untouched.

The names mirror those of `torch._dynamo.exc` where a user would catch them. A message has the user's frame
first, one sentence of what happened, one action, and the reason id in brackets (see `reasons/`).
"""

from __future__ import annotations


class StatorError(RuntimeError):
    """Base of all errors stator raises."""

    def __init__(self, message: str = "", *, reason: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = detail  # what the reason's summary leaves open


class Unsupported(StatorError):
    """Something cannot be captured, and `fullgraph=True` (or `error_on_graph_break`) asked to hear of it."""


class UserError(Unsupported):
    """The user's own code or marks contradict each other, so no rewrite of stator's could help."""


class ConstraintViolationError(UserError):
    """A size marked dynamic cannot stay dynamic; the message names the line that specialises it."""


class DataDependentError(UserError):
    """A decision hangs on a value only known at run time; the message prints the `torch._check` that settles it."""


class BackendCompilerFailed(StatorError):
    """The backend raised while compiling a captured graph."""

    def __init__(self, backend: object, inner: BaseException, message: str = "") -> None:
        name = getattr(backend, "__name__", str(backend))
        super().__init__(
            message or f"backend {name!r} raised:\n{type(inner).__name__}: {inner}", reason="backend_failed"
        )
        self.backend_name = name
        self.inner_exception = inner


class InternalStatorError(StatorError):
    """A defect of stator itself."""


class FailOnRecompileLimitHit(StatorError):
    """The recompile limit was reached under `fail_on_recompile_limit_hit` or `fullgraph=True`."""


class RecompileError(StatorError):
    """A recompile was needed under a stance or setting that forbids it."""


class InvalidBackend(StatorError):
    """No backend of that name exists."""


class InvalidOption(StatorError, ValueError):
    """An argument or option of the public API has no such name or value."""
