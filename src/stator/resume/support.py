"""What residual programs call by the name `make`: object making, the rarer operations, and recovery.

Nothing here knows of tracing; it runs on every call of an entry that needs it.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from stator._native import core
from stator.capture.ahead import END, Upcoming
from stator.capture.frame import UNBOUND
from stator.resume.layout import FrameContext, Layout, states_to_run
from stator.resume.state import UNBOUND as STATE_UNBOUND
from stator.resume.state import FrameState, make_function, prepare_chain, resume_suspended

IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv, "//=": operator.ifloordiv,
    "%=": operator.imod, "**=": operator.ipow, "@=": operator.imatmul, "<<=": operator.ilshift,
    ">>=": operator.irshift, "&=": operator.iand, "|=": operator.ior, "^=": operator.ixor,
}  # fmt: skip


class Support:
    """The namespace `make`."""

    END = END
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
    def exception(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
        error = cls.__new__(cls, *args) if "__new__" not in cls.__dict__ else BaseException.__new__(cls, *args)
        error.args = args
        return error

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
    def set_item(value: Any, container: Any, key: Any) -> None:
        container[key] = value

    @staticmethod
    def delete_item(container: Any, key: Any) -> None:
        del container[key]

    @staticmethod
    def in_place(symbol: str, left: Any, right: Any) -> Any:
        return IN_PLACE[symbol](left, right)

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
        iterator = iter(values)
        for item in iterator:
            found.append(item)
            if len(found) > count:
                raise ValueError(f"too many values to unpack (expected {count})")
        if len(found) < count:
            raise ValueError(f"not enough values to unpack (expected {count}, got {len(found)})")
        return tuple(found)

    @staticmethod
    def unpack_around(values: Any, before: int, after: int) -> tuple[Any, ...]:
        found = list(values)
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
        return core.TailCall(prepare_chain(states_to_run(layout, contexts, values, before=False), exception=error))

    @staticmethod
    def arrived(error: BaseException) -> BaseException:
        """An exception as the program sees it: without the frame that asks."""
        catcher, traceback = sys._getframe(1), error.__traceback__
        while traceback is not None and traceback.tb_frame is catcher:
            traceback = traceback.tb_next
        return error.with_traceback(traceback)

    @staticmethod
    def run_on(layout: Layout, contexts: tuple[FrameContext, ...], values: tuple[Any, ...]) -> Any:
        """Go on eagerly from where the program stands."""
        return core.TailCall(prepare_chain(states_to_run(layout, contexts, values, before=True)))
