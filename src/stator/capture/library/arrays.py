"""NumPy inside of compiled functions, where its operations map onto torch.

Contract. Operations on arrays run in `torch._numpy` on abstract tensors: every torch function it comes to is recorded
in the graph, scalars and lists included. What it has no name for, refuses, or would need data for breaks the graph,
and NumPy itself runs. NumPy is asked what type and shape each result has, on ones of the operands' shapes: where
torch's would be another one, the graph breaks, too. Operations on constants alone are done by NumPy while tracing;
random numbers never are. Warnings about values (a division by zero) are not issued.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from stator.capture.control import Break, TraceControl
from stator.capture.recording import first_line
from stator.tensors.abstract import AbstractTensor
from stator.tensors.engine import map_leaves
from stator.values import arrays
from stator.values.constants import is_constant

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer

numpy: Any = arrays.numpy
# Attributes of arrays that torch's arrays have under the same meaning.
PLACES = ("", "linalg", "fft")
# What has another meaning without data, or keeps other promises about memory than torch's array does.
OF_DATA = ("data_dependent_branch", "tensor_to_python", "data_dependent_operator")
# Functions whose results share the operand's memory in NumPy, too.
VIEWS = frozenset(
    {
        "__getitem__", "__iter__", "reshape", "ravel", "transpose", "swapaxes", "moveaxis", "rollaxis", "squeeze",
        "expand_dims", "asarray", "diagonal", "broadcast_to", "broadcast_arrays", "atleast_1d", "atleast_2d",
        "atleast_3d", "split", "array_split", "hsplit", "vsplit", "dsplit", "T", "real", "imag",
    }
)  # fmt: skip
DIVISIONS = frozenset({"__truediv__", "__rtruediv__", "divide", "true_divide"})
LEFT_TO_NUMPY = frozenset(
    {
        "tobytes", "tofile", "dump", "dumps", "data", "ctypes", "base", "flags", "view", "resize", "__repr__",
        "__str__", "__format__", "__reduce__", "__hash__", "__array__", "__dlpack__", "tensor",
    }
)  # fmt: skip


class Recorded(TorchFunctionMode):
    """Has the torch functions that run meanwhile recorded."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.tracer.operate(function, self._abstract(args), self._abstract(kwargs or {}))

    def _abstract(self, value: Any) -> Any:
        """Tensors that torch's NumPy keeps or makes of constants are inputs of the graph."""
        world, tree = self.tracer.world, self.tracer.tree

        def known(leaf: Any) -> Any:
            real = isinstance(leaf, torch.Tensor) and type(leaf) is not AbstractTensor
            return world.element(leaf, tree.const(leaf)) if real else leaf

        return map_leaves(value, known)


def run(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any], real: Any = None) -> Any:
    """Call a function of torch's NumPy; `real` is NumPy's own of the same name."""
    name = getattr(function, "__name__", "")
    if name in LEFT_TO_NUMPY:
        raise Break("numpy_operation", name)
    tracer.indirect()
    tracer.world.read_deep(args)
    tracer.world.read_deep(kwargs)
    if name in ("__getitem__", "__setitem__") and any(map(_steps_back, args[1:2])):
        raise Break("numpy_operation", "a negative step: what torch makes of it is no view of the array")
    given = [_lowered(tracer, part) for part in args]
    named = {key: _lowered(tracer, part) for key, part in kwargs.items()}
    if real is None and args and type(args[0]) is arrays.array_kind():
        real = getattr(numpy.ndarray, name, None)
    wanted = None if real is None else _asked(real, args, kwargs)
    try:
        with Recorded(tracer):
            if name in DIVISIONS:
                given = _divisible(given)
            result = _lifted(function(*given, **named), name)
            if name not in VIEWS:
                result = _separate(tracer, result, [*given, *named.values()])
            if wanted is not None:
                _require_like(result, wanted, name)
            return result
    except TraceControl as control:
        if isinstance(control, Break) and control.reason not in OF_DATA:
            raise Break("numpy_operation", f"{name}: {control.detail or control.reason}") from None
        raise
    except Exception as error:
        raise Break("numpy_operation", f"{name}: {first_line(error)}") from None


def _steps_back(index: Any) -> bool:
    if type(index) is tuple:
        return any(map(_steps_back, index))
    return type(index) is slice and type(index.step) is int and index.step < 0


def _separate(tracer: Tracer, result: Any, operands: list[Any]) -> Any:
    """Results in memory of their own: torch leaves out copies that NumPy makes (`astype`, `flatten`)."""
    kind = arrays.array_kind()
    held = [value for value in operands if type(value) is kind]
    roots = {id(_root(value.tensor)) for value in held}

    def separate(value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(separate, value))
        if type(value) is not kind or any(value is one for one in held) or id(_root(value.tensor)) not in roots:
            return value
        return arrays.wrapped(tracer.operate(torch.Tensor.clone, (value.tensor,), {}))

    return separate(result)


def _root(tensor: Any) -> Any:
    while tensor.base is not None:
        tensor = tensor.base
    return tensor


def _divisible(given: list[Any]) -> list[Any]:
    """Integers are divided as doubles, whatever torch's default is."""
    kind = arrays.array_kind()
    held = [value for value in given if type(value) is kind]
    if any(value.tensor.dtype.is_floating_point or value.tensor.dtype.is_complex for value in held):
        return given
    return [value.astype("float64") if type(value) is kind else value for value in given]


def _asked(real: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What NumPy makes of operands of these shapes; None where only the values say it."""

    def example(value: Any) -> Any:
        kind = type(value)
        tensor = value.tensor if kind is arrays.array_kind() else value
        if type(tensor) is AbstractTensor:
            one = numpy.ones((), dtype=str(tensor.dtype).removeprefix("torch."))[()]
            sizes = [size.node.hint if type(size) is torch.SymInt else size for size in tensor.shape]
            return numpy.broadcast_to(one, sizes) if sizes else one
        if kind is list or kind is tuple:
            return kind([example(part) for part in value])
        return value

    try:
        with numpy.errstate(all="ignore"):
            return real(*map(example, args), **{name: example(value) for name, value in kwargs.items()})
    except Exception:
        return None


def _require_like(result: Any, wanted: Any, name: str) -> None:
    """Break unless a result is of the type and shape NumPy gives."""
    if type(result) in (list, tuple) and isinstance(wanted, (list, tuple)) and len(result) == len(wanted):
        for part, other in zip(result, wanted, strict=True):
            _require_like(part, other, name)
        return
    if type(result) is not arrays.array_kind():
        return
    sizes = tuple(size.node.hint if type(size) is torch.SymInt else size for size in result.tensor.shape)
    same = isinstance(wanted, numpy.ndarray if sizes else numpy.generic) and wanted.shape == sizes
    if not same or str(result.tensor.dtype) != f"torch.{wanted.dtype.name}":
        raise Break("numpy_operation", f"torch gives a result of another type or shape than numpy.{name}")


def _lowered(tracer: Tracer, value: Any) -> Any:
    kind = type(value)
    if kind is AbstractTensor:
        return _array(tracer, [value], {})
    if kind is list or kind is tuple:
        return kind([_lowered(tracer, part) for part in value])
    if arrays.is_scalar(value):
        raise Break("numpy_operation", "a NumPy number among arrays")
    if arrays.is_dtype(value):
        return value.name
    if isinstance(value, type) and issubclass(value, numpy.generic):
        return numpy.dtype(value).name
    return value


def _lifted(value: Any, name: str) -> Any:
    kind = type(value)
    if kind is arrays.array_kind():
        if type(value.tensor) is not AbstractTensor:
            raise Break("numpy_operation", f"{name} of constants")
        return value
    if kind is tuple or kind is list:
        return kind([_lifted(part, name) for part in value])
    if kind is types.GeneratorType:  # what iterating over an array gives
        return iter([_lifted(part, name) for part in value])
    if value is NotImplemented or is_constant(value):
        return value
    if kind.__name__ == "DType":
        return numpy.dtype(value.name)
    raise Break("numpy_operation", f"{name} gives a {kind.__name__}")


def _all_constant(values: Any) -> bool:
    return all(
        is_constant(value) or arrays.is_scalar(value) or (type(value) in (list, tuple) and _all_constant(value))
        for value in values
    )


def call(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function of NumPy's."""
    paths = PATHS.get(function)
    if paths is None:
        return NotImplemented
    tracer.world.read_deep(args)
    if _all_constant([*args, *kwargs.values()]):
        result = tracer.native(function, *args, **kwargs)
        if is_constant(result) or arrays.is_scalar(result):
            return result
    for place, name in paths:
        module = getattr(arrays.torch_numpy(), place) if place else arrays.torch_numpy()
        if hasattr(module, name):
            return run(tracer, getattr(module, name), args, kwargs, function)
    raise Break("numpy_operation", ".".join(filter(None, ("numpy", *paths[0]))))


def _call_instance(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    result = call(tracer, function, args, kwargs)
    if result is NotImplemented:
        raise Break("numpy_operation", getattr(function, "__name__", "a ufunc"))
    return result


def _function(function: Any) -> Any:
    return lambda tracer, args, kwargs: call(tracer, function, args, kwargs)


def _array(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`tensor.numpy()`: an array over the tensor's memory."""
    tensor = args[0]
    plain = type(tensor) is AbstractTensor and tensor.kind is torch.Tensor and tensor.layout is torch.strided
    if len(args) > 1 or kwargs or not plain or tensor.requires_grad or tensor.device.type != "cpu":
        raise Break("tensor_to_python", "numpy")
    tracer.graph.guard_tensor(tensor)
    arrays.torch_numpy()
    return arrays.wrapped(tensor)


def _tensor(copies: bool) -> Any:
    """`torch.from_numpy` and its like, given an array of the trace."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not args or type(args[0]) is not arrays.array_kind():
            return NotImplemented
        tensor = args[0].tensor
        if len(args) > 1 or set(kwargs) - {"dtype", "device"}:
            raise Break("numpy_operation", "a tensor made of an array")
        if copies:
            tensor = tracer.operate(torch.Tensor.clone, (tensor,), {})
        return tracer.operate(torch.Tensor.to, (tensor,), kwargs) if kwargs else tensor

    return handler


def attribute(tracer: Tracer, array: Any, name: str) -> Any:
    """An attribute of an array of the trace."""
    kind = type(array)
    found = None if name in LEFT_TO_NUMPY else vars(kind).get(name)
    if type(found) is property:
        return run(tracer, found.fget, [array], {})
    if type(found) is types.FunctionType:
        return types.MethodType(found, array)
    raise Break("numpy_operation", f"the attribute {name!r} of an array")


def _paths() -> dict[Any, list[tuple[str, str]]]:
    """The functions of NumPy, with the module and the names each has."""
    found: dict[Any, list[tuple[str, str]]] = {}
    for place in PLACES:
        module = getattr(numpy, place) if place else numpy
        for name in dir(module):
            value = getattr(module, name, None)
            if callable(value) and not isinstance(value, type) and not name.startswith("_"):
                found.setdefault(value, []).append((place, name))
    return found


def _number(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`numpy.float32(2)`."""
    if not _all_constant([*args, *kwargs.values()]):
        raise Break("numpy_operation", cls.__name__)
    return tracer.native(cls, *args, **kwargs)


PATHS: dict[Any, list[tuple[str, str]]] = {} if numpy is None else _paths()
KINDS = () if numpy is None else (numpy.ufunc, type(numpy.sum))
FUNCTIONS: dict[Any, Any] = {
    torch.Tensor.numpy: _array,
    torch.from_numpy: _tensor(copies=False),
    torch.as_tensor: _tensor(copies=False),
    torch.asarray: _tensor(copies=False),
    torch.tensor: _tensor(copies=True),
    **{function: _function(function) for function in PATHS if type(function) not in KINDS},
}
INSTANCES: dict[type, Any] = {kind: _call_instance for kind in KINDS if kind is not types.FunctionType}
NUMBERS = () if numpy is None else {numpy.dtype(character).type for character in arrays.DTYPES}
CLASSES: dict[type, Any] = dict.fromkeys(NUMBERS, _number)
