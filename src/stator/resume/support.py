"""What residual programs call by the name `make`: object making, the rarer operations, and recovery.

Nothing here knows of tracing; it runs on every call of an entry that needs it.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from stator import config, events
from stator._native import core
from stator.capture.ahead import END, Upcoming, broken_walk, dict_walk
from stator.capture.frame import UNBOUND
from stator.exc import StatorError
from stator.resume.layout import FrameContext, Layout, states_to_run
from stator.resume.state import UNBOUND as STATE_UNBOUND
from stator.resume.state import FrameState, make_function, prepare_chain, resume_suspended

IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv, "//=": operator.ifloordiv,
    "%=": operator.imod, "**=": operator.ipow, "@=": operator.imatmul, "<<=": operator.ilshift,
    ">>=": operator.irshift, "&=": operator.iand, "|=": operator.ior, "^=": operator.ixor,
}  # fmt: skip


def below_catcher(error: BaseException) -> types.TracebackType | None:
    """The traceback of what a broken operation raised, without the residual program and what it calls from here."""
    catcher, traceback = sys._getframe(2), error.__traceback__
    while traceback is not None and (
        traceback.tb_frame is catcher or traceback.tb_frame.f_code.co_filename == __file__
    ):
        traceback = traceback.tb_next
    return traceback


def _of_c(cls: type, name: str, kind: type) -> Any:
    """What the nearest class that C made has under the name."""
    for base in cls.__mro__:
        held = base.__dict__.get(name)
        if isinstance(held, kind):
            return held
        if isinstance(held, staticmethod):
            continue
    return getattr(BaseException, name)


def unpacked(values: Any) -> Any:
    """An iterator for an unpacking assignment, which words it its own way where there is none."""
    kind = type(values)
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise TypeError(f"cannot unpack non-iterable {kind.__name__} object")
    return iter(values)


class Support:
    """The namespace `make`."""

    END = END
    set_item = staticmethod(operator.setitem)
    delete_item = staticmethod(operator.delitem)
    dict_walk = staticmethod(dict_walk)
    broken_walk = staticmethod(broken_walk)
    ahead = Upcoming

    @staticmethod
    def new(cls: type) -> Any:
        for base in cls.__mro__:
            if "__new__" in base.__dict__ and not isinstance(
                base.__dict__["__new__"], (staticmethod, types.FunctionType)
            ):
                make: Any = base.__new__
                return make(cls)
        return object.__new__(cls)

    @staticmethod
    def array(tensor: torch.Tensor) -> Any:
        """What an operation of NumPy's gives: an array, or a number if it has no dimensions."""
        made = tensor.detach().resolve_conj().resolve_neg().numpy()
        return made if made.ndim else made[()]

    @staticmethod
    def exception(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
        """An exception of this class, made as C makes one: no code of the program runs."""
        make: Any = _of_c(cls, "__new__", types.BuiltinFunctionType)
        start: Any = _of_c(cls, "__init__", types.WrapperDescriptorType)
        error: BaseException = make(cls, *args)
        with contextlib.suppress(TypeError, ValueError):  # arguments that only the program's own `__init__` takes
            start(error, *args)
        error.args = args
        return error

    @staticmethod
    def raised_nothing(detail: str) -> None:
        """The operation was to raise, says the trace, and it did not."""
        events.emit("fallback", reason="exception_not_raised", detail=detail)
        if config.strict:
            raise StatorError(f"the trace met an exception that the program did not raise: {detail}")

    @staticmethod
    def iterator(function: Any, args: tuple[Any, ...], state: Any) -> Any:
        made = function(*args)
        if state is not None:
            made.__setstate__(state)
        return made

    @staticmethod
    def function(
        code: types.CodeType, names: dict[str, Any], name: str, defaults: Any, closure: Any, keywords: Any, module: Any
    ) -> types.FunctionType:
        made = types.FunctionType(code, names, name, defaults, closure)
        made.__kwdefaults__ = keywords
        made.__module__ = module
        return made

    @staticmethod
    def generator(
        code: types.CodeType, index: int, started: bool, names: dict[str, Any], slots: tuple[Any, ...],
        cells: tuple[Any, ...], stack: tuple[Any, ...],
    ) -> Any:  # fmt: skip
        """A generator of the trace, as it stands: not begun, or suspended at a yield."""
        state = FrameState(
            code, index, [STATE_UNBOUND if slot is UNBOUND else slot for slot in slots], names, cells, list(stack)
        )
        return resume_suspended(state) if started else make_function(state)()

    @staticmethod
    def exhausted() -> Any:
        nothing: tuple[Any, ...] = ()
        made = (item for item in nothing)
        for _ in made:
            pass
        return made

    @staticmethod
    def enter(manager: Any) -> tuple[Any, Any]:
        kind = type(manager)
        for name in ("__enter__", "__exit__"):
            if not hasattr(kind, name):
                missed = " (missed __exit__ method)" if name == "__exit__" else ""
                raise TypeError(f"'{kind.__qualname__}' object does not support the context manager protocol{missed}")
        leave = kind.__exit__.__get__(manager, kind) if hasattr(kind.__exit__, "__get__") else kind.__exit__
        return leave, kind.__enter__(manager)

    @staticmethod
    def unpack(values: Any, count: int) -> tuple[Any, ...]:
        found = []
        for item in unpacked(values):
            found.append(item)
            if len(found) > count:
                raise ValueError(f"too many values to unpack (expected {count})")
        if len(found) < count:
            raise ValueError(f"not enough values to unpack (expected {count}, got {len(found)})")
        return tuple(found)

    @staticmethod
    def unpack_around(values: Any, before: int, after: int) -> tuple[Any, ...]:
        found = list(unpacked(values))
        if len(found) < before + after:
            raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(found)})")
        stop = len(found) - after
        return (*found[:before], found[before:stop], *found[stop:])

    @staticmethod
    def import_from(module: Any, name: str) -> Any:
        try:
            return getattr(module, name)
        except AttributeError:
            full = f"{getattr(module, '__name__', '')}.{name}"
            if full in sys.modules:
                return sys.modules[full]
            file = getattr(module, "__file__", "unknown location")
            raise ImportError(f"cannot import name {name!r} from {module.__name__!r} ({file})") from None

    @staticmethod
    def recover(
        layout: Layout, contexts: tuple[FrameContext, ...], values: tuple[Any, ...], error: BaseException
    ) -> Any:
        """The broken operation raised: the program's own handlers take over."""
        error.__traceback__ = below_catcher(error)
        return core.TailCall(prepare_chain(states_to_run(layout, contexts, values, before=False), exception=error))

    @staticmethod
    def arrived(error: BaseException) -> BaseException:
        """An exception as the program sees it: without the frame that asks."""
        return error.with_traceback(below_catcher(error))

    @staticmethod
    def run_on(layout: Layout, contexts: tuple[FrameContext, ...], values: tuple[Any, ...]) -> Any:
        """Go on eagerly from where the program stands."""
        return core.TailCall(prepare_chain(states_to_run(layout, contexts, values, before=True)))
