"""Calls: binding arguments, interpreting Python functions, making instances, and deciding who runs a C function.

Contract. `call` runs any callable of the traced program. A Python function is interpreted; a torch operation is
recorded; a C function runs natively if the tables (`library/`) say what it reads, stores and calls back; a class makes
an instance as `type.__call__` does. Everything else breaks the graph: no C code runs whose effects are unknown.
"""

from __future__ import annotations

import builtins
import enum
import functools
import re
import types
from typing import Any

import torch

from stator import config
from stator._native.core import Dispatcher
from stator.capture import higher_order, marks, nonstrict
from stator.capture.attributes import is_trusted
from stator.capture.changes import Changes, caller_step
from stator.capture.control import Break, Restart, UserException
from stator.capture.frame import NULL, UNBOUND, Frame, Pending
from stator.capture.instance_dicts import InstanceDictMethod
from stator.capture.library import CLASSES, CODES, FUNCTIONS, INSTANCES, LATE_FUNCTIONS
from stator.capture.library.arity import accepts, placed
from stator.capture.library.arrays import attribute as array_attribute
from stator.capture.library.arrays import run as run_numpy
from stator.capture.library.effects import Replay
from stator.capture.library.methods import call_c_method
from stator.capture.library.pure import is_pure
from stator.capture.operators import lookup_special, specialised
from stator.capture.state import TracerState
from stator.capture.symbolic import SYMBOLIC
from stator.capture.torch_functions import Role, role_of
from stator.tensors.abstract import AbstractTensor
from stator.tensors.engine import Uninitialised
from stator.values.constants import guard_kind, is_constant

GENERATOR = 0x20
COROUTINE = 0x80 | 0x200 | 0x100
TYPE_CALL = type.__dict__["__call__"]
NN_CALL = torch.nn.Module.__call__
NN_CALL_IMPL: Any = torch.nn.Module._call_impl
NN_CALLS = frozenset({NN_CALL, torch.nn.Module._call_impl, torch.nn.Module._wrapped_call_impl})
GLOBAL_HOOKS = tuple(
    names
    for names in (
        "_global_backward_hooks", "_global_backward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
    )
    if hasattr(torch.nn.modules.module, names)
)  # fmt: skip
OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
BOUND_C_METHOD = type(re.compile("").match)  # what binding a method that asks for its class gives
C_CALLABLES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
               types.MethodWrapperType, types.ClassMethodDescriptorType, BOUND_C_METHOD)  # fmt: skip


class Calls(TracerState):
    """The calls part of the tracer."""

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        kind = type(function)
        if config.ignore_logging_functions or config.reorderable_logging_functions:
            if _listed_in(function, config.ignore_logging_functions):
                return None
            if _listed_in(function, config.reorderable_logging_functions):
                self.effects.append(Replay(function, tuple(args), dict(kwargs)))
                return None
        if id(function) in marks.forbidden:
            raise Break("forbidden_function", describe(function))
        substitute = marks.substitute_of(function)
        if substitute is not None:
            if substitute.fold_constants and all(guard_kind(arg) for arg in (*args, *kwargs.values())):
                return self.native(function, *args, **kwargs)
            function = substitute.function
            kind = type(function)
        if kind is types.FunctionType:
            return self._call_function(function, args, kwargs)
        if kind is types.MethodType:
            return self.call(*self._opened_method(function, args), kwargs)
        if isinstance(function, type):
            return self._call_class(function, args, kwargs)
        if kind in C_CALLABLES:
            return self._call_c(function, args, kwargs)
        if isinstance(function, torch.nn.Module):
            return self._call_module(function, args, kwargs)
        if isinstance(function, functools.partial):
            return self._call_partial(function, args, kwargs)
        if kind is InstanceDictMethod:
            self.indirect()
            return self.call_instance_dict(function, args, kwargs)
        if kind is Dispatcher:
            return self.call(function.__wrapped__, args, kwargs)
        if kind is AbstractTensor:
            raise UserException(TypeError("'Tensor' object is not callable"))
        handler = INSTANCES.get(kind)
        if handler is not None:
            return handler(self, function, args, kwargs)
        if isinstance(function, torch._ops.HigherOrderOperator):
            return higher_order.call_operator(self, function, args, kwargs)  # type: ignore[arg-type]  # parts are joined in Tracer
        handler = self._late_handler(function)
        if handler is not None:
            return handler(self, args, kwargs)
        if role_of(function) is Role.OPERATION:
            return self.operate(function, tuple(args), kwargs)
        mark = marks.mark_of(function)
        if mark is not None:
            return self._call_marked(function, mark, args, kwargs)
        if kind is functools._lru_cache_wrapper:
            return self._call_cached(function, args, kwargs)
        if lookup_special(kind, "__call__") is None:
            raise UserException(TypeError(f"'{kind.__name__}' object is not callable"))
        method = self.special(function, "__call__")
        if type(method) in C_CALLABLES:
            raise Break("opaque_callable", describe(function))
        return self.call(method, args, kwargs)

    def _call_cached(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A call through `functools.lru_cache`: where it only computes, the cache only spares work."""
        self.indirect()  # what a function gives that breaks must get into its cache: the call runs as a whole
        before = Changes(self, (args, kwargs))
        value = self.call(function.__wrapped__, args, kwargs)
        changed = before.changed(self)
        if not changed and not (type(value) is AbstractTensor or type(value) in SYMBOLIC or is_constant(value)):
            changed = f"gives a {type(value).__name__}, the same one each time"
        if changed:
            raise Restart(caller_step(self), Break("opaque_callable", f"a cached function that {changed}"))
        return value

    def _opened_method(self, method: types.MethodType, args: list[Any]) -> tuple[Any, list[Any]]:
        """Function and arguments of a bound method; what is in one from outside is the user's."""
        source = self.world.source_of(method)
        if source is None:
            return method.__func__, [method.__self__, *args]
        self.world.guard_type(method)
        function = self.world.load(method.__func__, source.child("SLOT", "__func__"))
        return function, [self.world.load(method.__self__, source.child("SLOT", "__self__")), *args]

    def _opened_builtin(self, method: Any, owner: Any) -> Any:
        """What a C method is bound to; for a method from outside it is the user's."""
        source = self.world.source_of(method)
        if source is None:
            return owner
        self.world.guard_type(method)
        self.world.load(method.__name__, source.child("SLOT", "__name__"))
        owner = self.world.load(owner, source.child("SLOT", "__self__"))
        self.world.guard_type(owner)
        return owner

    def _late_handler(self, function: Any) -> Any:
        """Handlers of things that may not be imported here, known by module and name."""
        handle = (getattr(function, "__module__", None), getattr(function, "__qualname__", None))
        return LATE_FUNCTIONS.get(handle)

    # Python functions

    def _call_function(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if function in NN_CALLS and isinstance(args[0], torch.nn.Module):
            return self._call_plain_module(args[0], args[1:], kwargs)
        handler = FUNCTIONS.get(function)
        if handler is not None:
            resumable = self.frames[-1].resumable
            self.indirect()
            result = handler(self, args, kwargs)
            if result is not NotImplemented:
                return result
            self.frames[-1].resumable = resumable
        handler = CODES.get(id(function.__code__))
        if handler is not None:
            self.indirect()
            return handler(self, function, args, kwargs)
        module = function.__module__
        if module is not None and module.startswith("torch._numpy"):
            return run_numpy(self, function, args, kwargs)  # type: ignore[arg-type]  # parts are joined in Tracer
        if module is not None and module.startswith(("torch", "stator")):
            handler = self._late_handler(function)
            if handler is not None:
                return handler(self, args, kwargs)
            if role_of(function) is Role.OPERATION:
                return self.operate(function, tuple(args), kwargs)
        mark = marks.mark_of(function)
        if mark is not None:
            return self._call_marked(function, mark, args, kwargs)
        return self._interpret(function, args, kwargs)

    def _call_marked(self, function: Any, mark: marks.Mark, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if mark is marks.Mark.DISABLED:
            original = marks.shut_out_from_torch(function)
            if original is not None:
                return self.call(original, args, kwargs)
            raise _disabled(function)
        self.indirect()
        if mark is marks.Mark.ALLOWED or mark is marks.Mark.NONSTRICT:
            return nonstrict.record_call(self, function, args, kwargs)  # type: ignore[arg-type]  # parts are joined in Tracer
        if mark is marks.Mark.CONSTANT:
            return self._constant_result(function, args, kwargs)
        raise Break("forbidden_function", describe(function))

    def _constant_result(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The program promised that the result never changes: it is called now, once."""
        for part in (*args, *kwargs.values()):
            if type(part) is AbstractTensor:
                raise Break(
                    "tensor_to_python", f"an argument of {describe(function)}, whose result is assumed constant"
                )
        originals = [self.world.original_of(arg) for arg in args]
        value = self.native(function, *originals, **{key: self.world.original_of(arg) for key, arg in kwargs.items()})
        if guard_kind(value) is None:
            return self.world.element(value, self.tree.const(value))
        return value

    def _interpret(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        self.guard_function(function)
        code = function.__code__
        if function.__module__ in marks.RUN_WHOLE:
            raise Break("opaque_callable", describe(function))
        if code.co_flags & COROUTINE:
            raise Break("asynchronous_code", describe(function))
        frame = self.make_frame(function)
        self._bind(frame, function, args, kwargs)
        if code.co_flags & GENERATOR:
            return self.make_generator(frame)
        return self.run(frame)

    def make_frame(self, function: types.FunctionType) -> Frame:
        closure = function.__closure__ or ()
        builtin_names = getattr(function, "__builtins__")
        frame = Frame(function.__code__, function.__globals__, builtin_names, closure, function)
        if closure:
            self._note_cells(function, closure)
            start = len(frame.locals) - len(closure)
            frame.locals[start:] = closure
        return frame

    def _note_cells(self, function: types.FunctionType, closure: tuple[Any, ...]) -> None:
        """Say where the cells of a function from outside come from."""
        source = None
        for index, cell in enumerate(closure):
            if id(cell) in self.own_cells or id(cell) in self.cell_sources:
                continue
            if source is None:
                source = self.world.source_of(function) or self.tree.const(function)
            self.cell_sources[id(cell)] = source.child("SLOT", "__closure__").child("INDEX", index).child("CONTENTS")
            if is_trusted(function.__module__):
                self.trusted_cells.add(id(cell))
            self.world.kept.append(cell)

    def guard_function(self, function: types.FunctionType) -> None:
        """Which function was called is used: by identity where functions rarely change, else by its code."""
        source = self.world.source_of(function)
        if source is None or id(function) in self.world.touched:
            return
        self.world.touched.add(id(function))
        if source.step in ("KEY", "LOOKUP") and function.__closure__ is None:
            source.guard("IS", function, self.location())
        else:
            source.guard("CODE_IS", function.__code__, self.location())

    def _default(self, function: types.FunctionType, values: Any, key: Any, field: str) -> Any:
        value = values[key]
        if id(function) in self.own_functions or guard_kind(value) is not None:
            return value
        source = self.world.source_of(function) or self.tree.const(function)
        return self.world.load(value, source.child("SLOT", field).child("INDEX" if type(key) is int else "KEY", key))

    def _bind(self, frame: Frame, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Bind arguments to parameters as CPython does; Python itself words what does not fit."""
        code = function.__code__
        count = code.co_argcount
        slots = frame.locals
        if not kwargs and len(args) == count and not code.co_flags & 12 and not code.co_kwonlyargcount:
            slots[:count] = args
            return
        names = code.co_varnames
        total = count + code.co_kwonlyargcount
        positional = min(len(args), count)
        slots[:positional] = args[:positional]
        position = total
        if code.co_flags & 4:
            slots[position] = tuple(args[count:])
            position += 1
        elif len(args) > count:
            self._refuse_arguments(function, args, kwargs)
        extra: dict[str, Any] | None = {} if code.co_flags & 8 else None
        for name, value in kwargs.items():
            try:
                index = names.index(name, code.co_posonlyargcount, total)
            except ValueError:
                if extra is None:
                    self._refuse_arguments(function, args, kwargs)
                    raise
                extra[name] = value
                continue
            if slots[index] is not UNBOUND:
                self._refuse_arguments(function, args, kwargs)
            slots[index] = value
        if extra is not None:
            slots[position] = extra
        defaults = function.__defaults__ or ()
        for index in range(positional, count):
            if slots[index] is UNBOUND:
                key = index - (count - len(defaults))
                if key < 0:
                    self._refuse_arguments(function, args, kwargs)
                slots[index] = self._default(function, defaults, key, "__defaults__")
        for index in range(count, total):
            if slots[index] is UNBOUND:
                keyword_defaults = function.__kwdefaults__ or {}
                if names[index] not in keyword_defaults:
                    self._refuse_arguments(function, args, kwargs)
                slots[index] = self._default(function, keyword_defaults, names[index], "__kwdefaults__")

    def _refuse_arguments(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Have Python raise its own TypeError: a function of the same signature that does nothing is called."""
        hollow = types.FunctionType(
            function.__code__, {"__builtins__": builtins}, function.__name__, function.__defaults__,
            tuple(types.CellType() for _ in function.__code__.co_freevars) or None,
        )  # fmt: skip
        hollow.__qualname__ = function.__qualname__
        hollow.__kwdefaults__ = function.__kwdefaults__
        placeholder = [None] * len(args)
        self.native(hollow, *placeholder, **dict.fromkeys(kwargs))
        raise AssertionError(f"arguments of {function.__qualname__} were refused without a reason")

    def _call_partial(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        inner = self.load_attr(function, "func")
        first = self.load_attr(function, "args")
        named = self.load_attr(function, "keywords")
        self.world.read(first)
        return self.call(inner, [*first, *args], {**self.pairs_of(named), **kwargs})

    # Modules

    def _call_module(self, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if marks.mark_of(module) is marks.Mark.DISABLED:
            raise _disabled(module)
        if lookup_special(type(module), "__call__") is NN_CALL:
            return self._call_plain_module(module, args, kwargs)
        return self.call(self.special(module, "__call__"), args, kwargs)

    def _call_plain_module(self, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`nn.Module.__call__`, wherever it was called from (a class that overrides it does so by `super()`)."""
        kind = type(module)
        names = module.__dict__
        if "_initialize_hook" in names:  # a lazy module before its first call
            raise Uninitialised
        overlay = self.world.overlays.get(id(module))
        if (
            (
                overlay is not None
                and any(name in overlay.writes for name in (*OWN_HOOKS, "forward", "_compiled_call_impl"))
            )
            or "forward" in names
            or any(self._hooks(names.get(hook)) for hook in OWN_HOOKS)
            or any(getattr(torch.nn.modules.module, hook) for hook in GLOBAL_HOOKS)
            or "_slow_forward" in names
        ):
            return self._interpret(NN_CALL_IMPL, [module, *args], kwargs)
        source = self.world.source_of(module)
        if source is not None:
            self.world.guard_type(module)
            source.guard("MODULE_CALL", None, self.location())
            self._guard_no_global_hooks()
        forward = lookup_special(kind, "forward")
        if not isinstance(forward, types.FunctionType):
            return self.call(self.load_attr(module, "forward"), args, kwargs)
        self._guard_lookup(kind, "forward", forward)
        outer = self.graph.module_stack
        path = str(source) if source is not None else kind.__name__
        self.graph.module_stack = {**outer, path: (path, kind)}
        try:
            return self.call(forward, [module, *args], kwargs)
        finally:
            self.graph.module_stack = outer

    def _hooks(self, hooks: Any) -> bool:
        """Whether a dictionary of hooks has entries, those the trace itself registered included."""
        if hooks is None:
            return False
        shadow = self.world.shadow_of_original.get(id(hooks))
        return bool(hooks) if shadow is None else bool(shadow.copy)

    def _guard_no_global_hooks(self) -> None:
        names = torch.nn.modules.module.__dict__
        for hook in GLOBAL_HOOKS:
            self.globals_source(names).child("KEY", hook).guard("LENGTH", 0, None)

    def _guard_lookup(self, kind: type, name: str, value: Any) -> None:
        raise NotImplementedError

    def globals_source(self, names: dict[str, Any]) -> Any:
        raise NotImplementedError

    def make_generator(self, frame: Frame) -> Any:
        raise NotImplementedError

    # Classes

    def _call_class(self, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
        handler = CLASSES.get(cls)
        if handler is not None:
            self.check_arity(cls, args, kwargs)
            args, kwargs = placed(cls, args, kwargs) if kwargs else (args, kwargs)
            resumable = self.frames[-1].resumable
            self.indirect()
            result = handler(self, cls, args, kwargs)
            if result is not NotImplemented:
                return result
            self.frames[-1].resumable = resumable
        meta_call = lookup_special(type(cls), "__call__")
        if isinstance(cls, enum.EnumMeta):
            if all(guard_kind(arg) is not None for arg in args):
                return self.native(cls, *args, **kwargs)
            raise Break("c_reads_object", f"making a {cls.__name__}")
        if isinstance(meta_call, types.FunctionType):
            return self.call(meta_call, [cls, *args], kwargs)
        return self.instantiate(cls, args, kwargs)

    def instantiate(self, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`type.__call__`."""
        make = lookup_special(cls, "__new__")
        caller = self.frames[-1]
        resumable = caller.resumable
        self.indirect()
        if isinstance(make, staticmethod):
            make = make.__func__
        if make is object.__new__:
            self._check_object_arguments(cls, args, kwargs)
            value = self.native(object.__new__, cls)
        elif isinstance(make, types.FunctionType):
            value = self.call(make, [cls, *args], kwargs)
        elif issubclass(cls, torch.Tensor):
            value = self._new_tensor(cls, make, args, kwargs)
        else:
            value = self._new_of_c_base(cls, make, args, kwargs)
        if not isinstance(value, cls):
            return value
        kind = value.kind if type(value) is AbstractTensor else type(value)
        initialise = lookup_special(kind, "__init__")
        if isinstance(initialise, types.FunctionType):
            self._guard_lookup(kind, "__init__", initialise)
            caller.resumable, caller.substitute = resumable, value
            result = self.call(initialise, [value, *args], kwargs)
            caller.substitute = NULL
            if result is not None:
                text = f"__init__() should return None, not '{type(result).__name__}'"
                raise UserException(TypeError(text))
        elif type(initialise) not in C_CALLABLES:
            self.call(self.special(value, "__init__"), args, kwargs)
        elif initialise is not object.__init__ and kind is type(value):
            call_c_method(self, initialise, [value, *args], kwargs)  # type: ignore[arg-type]  # parts are joined in Tracer
        return value

    def _new_tensor(self, cls: type, make: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A class derived from `Tensor` called with a tensor: another object for the same tensor."""
        plain = (
            len(args) == 1 and not kwargs and type(args[0]) is AbstractTensor and make is torch._C.TensorBase.__new__
        )
        if not plain or cls is torch.Tensor or args[0].dtype is not torch.get_default_dtype():
            raise Break("tensor_creation", cls.__name__)
        return self.as_kind(args[0], cls)

    def make_class(self, make: Any, metaclass: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`type.__new__`: it calls `__init_subclass__` and `__set_name__` in C, so they may not be the program's."""
        if len(args) == 3 and type(args[1]) is tuple and isinstance(args[2], dict):
            name, bases, names = args
            for base in bases:
                if not isinstance(base, type):
                    break  # Python refuses it
                hook = lookup_special(base, "__init_subclass__")
                if hook is not None and hook is not object.__dict__["__init_subclass__"]:
                    owner = next(one for one in base.__mro__ if "__init_subclass__" in one.__dict__)
                    if not is_trusted(owner.__module__):
                        raise Break("class_definition", f"{owner.__name__}.__init_subclass__ for {name}")
            for value in names.values():
                if self.is_python_method(value, "__set_name__") and not is_trusted(type(value).__module__):
                    raise Break("class_definition", f"{type(value).__name__}.__set_name__ in {name}")
        made = self.native(make, metaclass, *args, **kwargs)
        if len(args) == 3 and "__module__" not in args[2]:
            # C takes it from the caller's frame.
            type.__setattr__(made, "__module__", self.frames[-1].globals.get("__name__", "builtins"))
        self.own_functions[id(made)] = made
        self.born[id(made)] = self.frames[-1].step
        return made

    def _check_object_arguments(self, cls: type, args: list[Any], kwargs: dict[str, Any]) -> None:
        if (args or kwargs) and lookup_special(cls, "__init__") is object.__init__:
            raise UserException(TypeError(f"{cls.__name__}() takes no arguments"))

    def _new_of_c_base(self, cls: type, make: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        bases = [base for base in cls.__mro__ if not base.__flags__ & (1 << 9) or base.__module__ in ("builtins",)]
        base = bases[0] if bases else object
        if issubclass(cls, BaseException):
            return self.native(make, cls, *args, **kwargs)
        if issubclass(cls, type):
            return self.make_class(make, cls, args, kwargs)
        if base in (list, dict, set) or base.__module__ in ("collections",):
            return self.native(make, cls)
        if base in (tuple, frozenset):
            return self.native(make, cls, *self.for_c(args))
        if cls.__module__ == "torch.return_types" and len(args) == 1:
            return self.native(cls, self.listed(args[0]), **kwargs)
        if base in (int, float, str, bytes, complex) and all(guard_kind(arg) is not None for arg in args):
            return self.native(make, cls, *args, **kwargs)
        raise Break("opaque_callable", f"making a {cls.__qualname__}")

    # C functions

    def _call_c(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if type(function) is types.MethodWrapperType and underlying(function, function.__self__) is TYPE_CALL:
            # A metaclass's `super().__call__(...)` is as if the class were called: the trace can be left in there.
            return self.instantiate(self._opened_builtin(function, function.__self__), args, kwargs)
        self.indirect()
        try:
            handler = FUNCTIONS.get(function)
        except TypeError:  # bound to something unhashable
            handler = None
        if handler is not None:
            self.check_arity(function, args, kwargs)
            args, kwargs = placed(function, args, kwargs) if kwargs else (args, kwargs)
            result = handler(self, args, kwargs)
            if result is not NotImplemented:
                return result
        role = role_of(function)
        if role is Role.OPERATION:
            return self.operate(function, tuple(args), kwargs)
        if role is Role.NO_EFFECT:
            return None
        owner = getattr(function, "__self__", None)
        if isinstance(owner, type) and function.__name__ == "__new__" and args and isinstance(args[0], type):
            if owner is object:
                return self.native(object.__new__, args[0])
            return self._new_of_c_base(args[0], function, args[1:], kwargs)
        if isinstance(owner, type) and function.__name__ == "fromkeys" and issubclass(owner, dict) and args:
            return self._from_keys(owner, *args, **kwargs)
        if owner is not None and not isinstance(owner, types.ModuleType):
            kind = type(function)
            if kind is types.BuiltinFunctionType or kind is types.MethodWrapperType or kind is BOUND_C_METHOD:
                plain = underlying(function, owner)
                owner = self._opened_builtin(function, owner)
                if plain is not None:
                    return self._call_c_method(plain, [owner, *args], kwargs)
        elif type(function) in (types.MethodDescriptorType, types.WrapperDescriptorType) and args:
            return self._call_c_method(function, args, kwargs)
        if is_pure(function):
            args = [specialised(arg) for arg in args]
            for arg in (*args, *kwargs.values()):
                if type(arg) is AbstractTensor:
                    raise Break("tensor_to_python", describe(function))
                self.require_c_value(arg, describe(function))
                self.world.read_deep(arg)
            return self.native(function, *args, **kwargs)
        raise Break("opaque_callable", describe(function))

    def check_arity(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Have Python refuse a call of a C function that is not well formed: it says so before it looks at anything."""
        if accepts(function, len(args), kwargs):
            return
        given: list[Any] = [None] * len(args)
        if type(function) in (types.MethodDescriptorType, types.WrapperDescriptorType):
            given[:1] = args[:1]
        self.native(function, *given, **dict.fromkeys(kwargs))
        raise Break("opaque_callable", describe(function))

    def _from_keys(self, owner: type, keys: Any, value: Any = None) -> Any:
        """`dict.fromkeys`, of subclasses too."""
        made = self.call(owner, [], {})
        for key in self.listed(keys):
            self.set_item(made, key, value)
        return made

    def _call_c_method(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if type(args[0]) is not AbstractTensor:
            self.check_arity(function, args, kwargs)
        try:
            handler = FUNCTIONS.get(function)
        except TypeError:
            handler = None
        if handler is not None:
            result = handler(self, args, kwargs)
            if result is not NotImplemented:
                return result
        if type(args[0]) is AbstractTensor and role_of(function) is Role.OPERATION:
            return self.operate(function, tuple(args), kwargs)
        return call_c_method(self, function, args, kwargs)  # type: ignore[arg-type]  # parts are joined in Tracer

    def array_attr(self, array: Any, name: str) -> Any:
        return array_attribute(self, array, name)  # type: ignore[arg-type]  # parts are joined in Tracer

    def require_c_value(self, value: Any, what: str) -> None:
        raise NotImplementedError

    # Super

    def implicit_super(self, frame: Frame) -> Any:
        """`super()`: the class cell and the first argument of the running function."""
        names = frame.decoded.localsplus_names
        if "__class__" not in names or not frame.code.co_argcount:
            raise UserException(RuntimeError("super(): no arguments"))
        owner = self.read_cell(frame.locals[names.index("__class__")])
        first = frame.locals[0]
        if isinstance(first, types.CellType):
            first = self.read_cell(first)
        if type(first) is Pending:
            first = frame.locals[0] = self.world.load(first.value, first.source)
        return self.native(super, owner, first)

    # Callbacks

    def callable_for_c(self, function: Any) -> Any:
        """A callable that C code may call: it comes back to the interpreter, for C functions read values, too."""
        if function is None:
            return None

        def interpreted(*args: Any, **kwargs: Any) -> Any:
            return self.from_c(self.call, function, list(args), kwargs)

        self.proxied[id(interpreted)] = function
        self.world.kept.append(interpreted)
        return interpreted

    def from_c(self, function: Any, *args: Any) -> Any:
        raise NotImplementedError

    def described(self, function: Any) -> str:
        """How CPython's messages about arguments name a callable."""
        return f"{describe(function)}()"

    def call_instance_dict(self, method: InstanceDictMethod, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


def underlying(function: Any, owner: Any) -> Any:
    """The descriptor that a bound C method was made from."""
    for base in type(owner).__mro__:
        found = base.__dict__.get(function.__name__)
        if type(found) in C_CALLABLES and getattr(function, "__objclass__", base) is base:
            return found
    return None


def _listed_in(function: Any, functions: Any) -> bool:
    """Whether a setting names a function: itself, or, of a method, for one object or for all."""
    if type(function) is not types.MethodType:
        return any(function is one for one in functions)
    owner, method = function.__self__, function.__func__
    return any(
        method is one or (type(one) is types.MethodType and one.__self__ is owner and one.__func__ is method)
        for one in functions
    )


def _disabled(function: Any) -> Break:
    reason = marks.reason_of(function)
    return Break("disabled_function", f"{describe(function)} ({reason})" if reason else describe(function))


def describe(function: Any) -> str:
    """How people call a callable."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module and module != "builtins" else str(name)
