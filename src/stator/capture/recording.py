"""Torch operations: computing what they give in abstract, and recording them in the graph.

Contract. `operate` is every torch function and tensor operator of the traced program. Its result has the facts torch
would give it; if it holds tensors (or the operation changed one) a node is recorded, else it was a question about
metadata and its answer is a constant. What torch refuses breaks the graph, so that the real operation raises the real
exception; what needs the data breaks it too, unless the settings say to capture it.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from stator import config
from stator.capture import unbacked
from stator.capture.control import Break, Restart, UserException
from stator.capture.graph import GraphBuilder
from stator.capture.instance_dicts import InstanceDict
from stator.capture.operators import ABSENT, lookup_attribute, lookup_special
from stator.capture.overrides import PLAIN_KINDS, UNHANDLED, Overrides, has_dispatch, modes_set_aside
from stator.exc import DataDependentError, UserError
from stator.tensors import engine, twins
from stator.tensors.abstract import AbstractTensor
from stator.values import arrays
from stator.values.constants import guard_kind, is_constant

DATA_DEPENDENT = frozenset(
    {
        "item", "tolist", "nonzero", "numpy", "unique", "unique_consecutive", "masked_select", "is_nonzero", "equal",
        "allclose", "bincount", "argwhere", "data_ptr", "__bool__", "__int__", "__float__", "__index__", "_unique2",
        "nonzero_static_like", "histc_dynamic", "untyped_storage", "storage", "__contains__",
    }
)  # fmt: skip
# Attributes that are operations: each read is a node, as the ecosystem's graphs have it.
VIEW_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
# Attributes that no stand-in has: they belong to the tensor object and to autograd's graph.
OBJECT_STATE = frozenset(
    {
        "grad_fn", "_base", "_grad", "_cdata", "_backward_hooks", "_post_accumulate_grad_hooks", "retains_grad",
        "data_ptr", "_version", "output_nr",
    }
)  # fmt: skip
DEVICE_FACTS = {
    "is_cuda": "cuda", "is_cpu": "cpu", "is_mps": "mps", "is_meta": "meta", "is_xpu": "xpu", "is_xla": "xla",
    "is_mtia": "mtia", "is_hpu": "hpu", "is_ipu": "ipu", "is_maia": "maia", "is_vulkan": "vulkan",
}  # fmt: skip
# Operations that give no tensor but change one, or check something at run time.
RECORDED_WITHOUT_RESULT = frozenset({"setitem", "_assert_async", "_assert_tensor_metadata", "__setitem__"})


NUMBER_TYPES: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


TENSOR_TYPE: Any = type(torch.FloatTensor)


def holds_tensor(value: Any) -> bool:
    return any(type(leaf) is AbstractTensor for leaf in engine.leaves_of(value))


def _begins_gradients(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[AbstractTensor]
) -> bool:
    """Whether an operation makes a leaf that requires gradients: its gradient is asked for outside of the graph."""
    if function is torch.Tensor.requires_grad_:
        return not inputs[0].requires_grad and True in (*args[1:], kwargs.get("requires_grad", len(args) == 1))
    return kwargs.get("requires_grad") is True and torch.is_grad_enabled()


class Recording(Overrides):
    """The recording part of the tracer."""

    # Operations

    def operate(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch._C._len_torch_function_stack():  # called by code that runs natively, under a mode of its own
            with modes_set_aside():
                return self.operate(function, args, kwargs)
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, (list, tuple, dict)):
                self.world.read_deep(argument)
        leaves = engine.leaves_of((args, kwargs))
        if self.function_modes or any(map(self.has_torch_function, leaves)):
            result = self.override(function, args, kwargs, leaves)
            if result is not UNHANDLED:
                return result
        return self._record(function, args, kwargs, leaves)

    def record(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation that the interpreter adds of itself: nobody overrides it."""
        return self._record(function, args, kwargs, engine.leaves_of((args, kwargs)))

    def _record(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        inputs = [leaf for leaf in leaves if type(leaf) is AbstractTensor]
        for tensor in inputs:
            if tensor.kind is not torch.Tensor and has_dispatch(tensor.kind):
                raise Break("tensor_subclass", tensor.kind.__name__)
            if tensor.layout is not torch.strided:
                raise Break("operator_without_shape_rule", f"a tensor of layout {tensor.layout}")
            self.graph.guard_tensor(tensor)  # as it is now: the operation may change its sizes
        if type(self.graph) is GraphBuilder and _begins_gradients(function, args, kwargs, inputs):
            raise Break("new_leaf", getattr(function, "__name__", ""))
        if inputs and kwargs.get("out") is not None:
            return self._record_into(function, args, kwargs)
        if self.inference_over:
            raise Restart(self.inference_made, Break("inference_mode", "operations follow its end"))
        if self.numbers:
            args, kwargs = self._settle_numbers(function, args, kwargs, inputs)
        result = self._at_run_time(function, args, kwargs)
        if result is not NotImplemented:
            return result
        result = self._compute(function, args, kwargs)
        name = getattr(function, "__name__", "")
        if result is NotImplemented:
            return result
        outputs = [leaf for leaf in engine.leaves_of(result) if type(leaf) is AbstractTensor]
        if not outputs and result is not None and name not in RECORDED_WITHOUT_RESULT:
            for tensor in inputs:
                self.graph.guard_tensor(tensor)
            if is_constant(result) or isinstance(result, (tuple, list)) or type(result) in NUMBER_TYPES:
                return result
            raise Break("operator_result", f"{name} gives a {type(result).__name__}")
        node = self.graph.call(function, args, kwargs, result)
        self._attach(node, result, {id(tensor) for tensor in inputs})
        if self.numbers and inputs and all(id(tensor) in self.numbers for tensor in inputs):
            self.numbers.update((id(tensor), tensor) for tensor in outputs)
        return result

    def _record_into(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`out=`: the result is copied there. What would be resized or cast is left to torch."""
        target = kwargs["out"]
        rest = {name: value for name, value in kwargs.items() if name != "out"}
        expected = self._compute(function, args, rest)
        same = type(target) is AbstractTensor and type(expected) is AbstractTensor
        if not same or (target.shape, target.dtype, target.device) != (expected.shape, expected.dtype, expected.device):
            raise Break(
                "operator_without_shape_rule", f"{getattr(function, '__name__', '')} into a tensor of another kind"
            )
        self.record(torch.Tensor.copy_, (target, self.record(function, args, rest)), {})
        return target

    def _at_run_time(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What hangs on the data, where the settings say to capture it."""
        if not (config.capture_scalar_outputs or config.capture_dynamic_output_shape_ops):
            return NotImplemented
        if not args or type(args[0]) is not AbstractTensor:
            return NotImplemented
        tracer: Any = self
        name = getattr(function, "__name__", "")
        if name in ("item", "tolist") and len(args) == 1:
            return (unbacked.number_of if name == "item" else unbacked.list_of)(tracer, args[0])
        return unbacked.tensor_of(tracer, function, name, args, kwargs)

    def _settle_numbers(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[AbstractTensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Where numbers meet tensors without dimensions, which they would promote, they take those tensors' type."""
        if function is torch.Tensor.to or all(id(tensor) in self.numbers for tensor in inputs):
            return args, kwargs
        others = [tensor for tensor in inputs if id(tensor) not in self.numbers]
        if any(tensor.shape or not tensor.dtype.is_floating_point for tensor in others):
            return args, kwargs

        def settled(leaf: Any) -> Any:
            if type(leaf) is AbstractTensor and id(leaf) in self.numbers and leaf.dtype is not others[0].dtype:
                return self.operate(torch.Tensor.to, (leaf, others[0].dtype), {})
            return leaf

        return engine.map_leaves(args, settled), engine.map_leaves(kwargs, settled)

    def _compute(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", "")
        if name in DATA_DEPENDENT and any(type(leaf) is AbstractTensor for leaf in engine.leaves_of(args)):
            raise Break("tensor_to_python" if name in ("item", "tolist", "numpy") else "data_dependent_operator", name)
        try:
            return engine.compute(function, args, kwargs)
        except DataDependentError as error:
            raise Break("data_dependent_size", str(error)) from None
        except UserError:
            raise
        except twins.NeedsData as error:
            raise Break("data_dependent_operator", str(error) or name) from None
        except NotImplementedError as error:
            raise Break("operator_without_shape_rule", f"{name}: {first_line(error)}") from None
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError) as error:
            raise Break("operator_error", f"{name}: {first_line(error)}") from None

    def attach_results(self, node: torch.fx.Node, result: Any, inputs: set[int]) -> None:
        """Tell the tensors of a tuple of results how the graph computes them."""
        self._attach_parts(node, result, (), inputs)

    def _attach(self, node: torch.fx.Node, result: Any, inputs: set[int]) -> None:
        """Tell new tensors how the graph computes them."""
        if type(result) is AbstractTensor:
            if id(result) not in inputs and result.node is None and result.producer is None:
                result.node = node
            return
        self._attach_parts(node, result, (), inputs)

    def _attach_parts(self, node: torch.fx.Node, value: Any, path: tuple[Any, ...], inputs: set[int]) -> None:
        if type(value) is AbstractTensor:
            if id(value) not in inputs and value.node is None and value.producer is None:
                value.producer, value.index = node, path
        elif isinstance(value, (tuple, list)):
            for position, part in enumerate(value):
                self._attach_parts(node, part, (*path, position), inputs)
        elif isinstance(value, dict):
            for key, part in value.items():
                self._attach_parts(node, part, (*path, key), inputs)

    # Attributes

    def tensor_attr(self, tensor: AbstractTensor, name: str) -> Any:
        if self.function_modes or tensor.kind is not torch.Tensor:
            result = self.override_attribute(tensor, name, "__get__")
            if result is not UNHANDLED:
                return result
        if tensor.layout is torch.jagged:
            raise Break("tensor_attribute", f"{name} of a nested tensor")
        fact = FACTS.get(name)
        if fact is not None:
            self.graph.guard_tensor(tensor)
            return fact(tensor)
        if name in DEVICE_FACTS:
            self.graph.guard_tensor(tensor)
            return tensor.device.type == DEVICE_FACTS[name]
        if name == "grad":
            return self._grad(tensor)
        if name == "__class__":
            self.graph.guard_tensor(tensor)
            return tensor.kind
        own = self._own_attribute(tensor, name)
        if own is not NotImplemented:
            return own
        attribute = lookup_attribute(tensor.kind, name)
        if attribute is ABSENT:
            if name in ("__torch_function__", "_is_param"):
                return self.native(getattr, tensor.kind, name)
            text = f"'{tensor.kind.__name__}' object has no attribute '{name}'"
            raise UserException(AttributeError(text))
        holder = type(attribute)
        if tensor.kind not in PLAIN_KINDS:  # the program may give its class another one later
            self.tree.const(tensor.kind).child("LOOKUP", name).guard("IS", attribute, self.location())
        if holder is types.FunctionType or holder in (types.MethodDescriptorType, types.WrapperDescriptorType):
            return types.MethodType(attribute, tensor)
        if holder is property and attribute.fget is not None and attribute.fget.__module__ not in ("torch._tensor",):
            return self.call(attribute.fget, [tensor], {})
        if name in VIEW_ATTRIBUTES:
            return self._view_attribute(tensor, name)
        if holder is classmethod:
            return types.MethodType(attribute.__func__, tensor.kind)
        if holder is staticmethod:
            return attribute.__func__
        if holder in (types.GetSetDescriptorType, property):
            return self._other_fact(tensor, name)
        return self.world.load(attribute, self.tree.const(tensor.kind).child("LOOKUP", name))

    def _own_attribute(self, tensor: AbstractTensor, name: str) -> Any:
        """What the program put on the tensor object itself."""
        written = self.world.written(tensor, name)
        if written is not NotImplemented:
            return written
        if tensor.attributes is not None and name in tensor.attributes:
            return tensor.attributes[name]
        real = tensor.real
        if real is not None:
            names = object.__getattribute__(real, "__dict__") if hasattr(real, "__dict__") else {}
            if name in names and tensor.source is not None:
                return self.world.load(names[name], tensor.source.child("ATTR", name))
            if tensor.source is not None and lookup_attribute(tensor.kind, name) is ABSENT:
                tensor.source.guard("LACKS_ATTR", name, self.location())
        return NotImplemented

    def _view_attribute(self, tensor: AbstractTensor, name: str) -> Any:
        def read(value: Any) -> Any:
            return getattr(value, name)

        result = self._compute(read, (tensor,), {})
        node = self.graph.call(getattr, (tensor, name), {}, result)
        self._attach(node, result, {id(tensor)})
        return result

    def _grad(self, tensor: AbstractTensor) -> Any:
        written = self.world.written(tensor, "grad")
        if written is not NotImplemented:
            return written
        if tensor.real is None or tensor.source is None:
            return None
        if not tensor.is_leaf:
            raise Break("tensor_attribute", "grad of a tensor that is not a leaf")
        self.graph.guard_tensor(tensor)
        source = tensor.source.child("GRAD")
        with torch._C.DisableTorchFunctionSubclass():
            value = tensor.real.grad
        if value is None:
            source.guard("IS", None, self.location())
            return None
        return self.world.load(value, source)

    def _other_fact(self, tensor: AbstractTensor, name: str) -> Any:
        """A field torch computes from metadata, asked of the twin."""
        if name in OBJECT_STATE:
            if name == "grad_fn" and not tensor.requires_grad:
                return None
            if name == "grad_fn" and tensor.is_leaf:
                return None
            raise Break("tensor_attribute", name)
        self.graph.guard_tensor(tensor)
        twin = twins.twin_of(tensor)
        value = self.native(getattr, twin, name)
        if guard_kind(value) is None:
            raise Break("tensor_attribute", name)
        return value

    def store_tensor_attr(self, tensor: AbstractTensor, name: str, value: Any) -> None:
        if self.override_attribute(tensor, name, "__set__", value) is not UNHANDLED:
            return
        attribute = lookup_special(tensor.kind, name)
        if name == "requires_grad":
            self.call(torch.Tensor.requires_grad_, [tensor, value], {})
            return
        if name == "data":
            raise Break("tensor_attribute", "assignment to .data")
        if attribute is not None and name != "grad":
            raise Break("tensor_attribute", f"assignment to .{name}")
        if tensor.source is None:
            if name == "grad":
                raise Break("tensor_attribute", "assignment to .grad of an intermediate tensor")
            if tensor.attributes is None:
                tensor.attributes = {}
            tensor.attributes[name] = value
            return
        self.graph.guard_tensor(tensor)
        self.world.write_attribute(tensor, name, value)

    def scalar_of(self, tensor: AbstractTensor, cls: type) -> Any:
        """`int(tensor)` and the like."""
        tracer: Any = self
        value = unbacked.number_of(tracer, tensor, cls) if cls is not bool else NotImplemented
        if value is NotImplemented:
            raise Break("tensor_to_python", f"{cls.__name__}()")
        return value

    # What reaches abstract tensors from outside the interpreter

    def attribute(self, tensor: AbstractTensor, name: str) -> Any:
        with modes_set_aside():
            found = self._outward(self.tensor_attr, tensor, name)
        if type(found) is types.MethodType and found.__self__ is tensor:
            # C code of the method could not be called with what is no tensor.
            return lambda *args, **kwargs: self._call_outward(found, args, kwargs)
        return found

    def _call_outward(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with modes_set_aside():
            return self._outward(self.call, method, list(args), kwargs)

    def _outward(self, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except UserException as error:
            raised = error.value
        raise raised

    # Types

    def type_of(self, value: Any) -> type:
        if type(value) is AbstractTensor:
            self.graph.guard_tensor(value)
            return value.kind
        if type(value) in NUMBER_TYPES:
            return NUMBER_TYPES[type(value)]
        self.world.guard_type(value)
        if type(value) is arrays.array_kind():
            return type(self._example_array(value))
        return dict if type(value) is InstanceDict else type(value)

    def is_instance(self, value: Any, kinds: Any) -> bool:
        if type(value) is AbstractTensor:
            self.graph.guard_tensor(value)
            if isinstance(kinds, tuple):
                return any(self.is_instance(value, kind) for kind in kinds)
            if type(kinds) is TENSOR_TYPE:
                return kinds.dtype is value.dtype and kinds.is_cuda == (value.device.type == "cuda")
            return bool(self.native(isinstance, value, kinds))
        if type(value) is InstanceDict:
            return bool(self.native(isinstance, {}, kinds))
        if type(value) is arrays.array_kind():
            return bool(self.native(isinstance, self._example_array(value), kinds))
        if type(value) in NUMBER_TYPES:
            kind = NUMBER_TYPES[type(value)]
            return bool(self.native(isinstance, kind(), kinds) or self.native(isinstance, value, kinds))
        self.world.guard_type(value)
        if isinstance(kinds, tuple):
            self.world.read_deep(kinds)
            return any(self.is_instance(value, kind) for kind in kinds)
        check = lookup_special(type(kinds), "__instancecheck__") if isinstance(kinds, type) else None
        if isinstance(check, types.FunctionType) and not check.__module__.startswith(
            ("torch", "abc", "typing", "enum")
        ):
            return bool(self.truth(self.call(check, [kinds, value], {})))
        return bool(self.native(isinstance, value, kinds))

    @staticmethod
    def _example_array(value: Any) -> Any:
        """An array of the same class, without elements."""
        if not len(value.tensor.shape):
            raise Break("numpy_operation", "the class of an array without dimensions")
        return arrays.numpy.empty(0)

    # Sorting, with the program's own comparisons

    def sorted_values(self, values: list[Any], key: Any, reverse: Any) -> list[Any]:
        keys = values if key is None else [self.call(key, [value], {}) for value in values]
        if any(type(one) is AbstractTensor for one in keys):
            raise Break("data_dependent_branch", "sorting tensors")
        if all(is_constant(one) for one in keys):
            order = self.native(sorted, range(len(values)), key=keys.__getitem__, reverse=reverse)
        else:

            class Key:
                __slots__ = ("value",)

                def __init__(self, value: Any) -> None:
                    self.value = value

                def __lt__(inner, other: Any) -> bool:
                    return bool(self.from_c(lambda: self.truth(self.compare("<", inner.value, other.value))))

            order = self.native(sorted, range(len(values)), key=lambda index: Key(keys[index]), reverse=reverse)
        return [values[index] for index in order]

    def from_c(self, function: Any, *args: Any) -> Any:
        raise NotImplementedError

    def proxy_predicate(self, function: Any) -> Any:
        """A predicate for C code, its answer made a truth value by the interpreter."""

        def predicate(*args: Any) -> Any:
            return self.from_c(lambda: self.truth(self.call(function, list(args), {})))

        self.proxied[id(predicate)] = function
        self.world.kept.append(predicate)
        return predicate

    @property
    def proxy_truth(self) -> Any:
        return lambda value: self.from_c(self.truth, value)


def first_line(error: BaseException) -> str:
    """The first line of what an exception says."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


FACTS: dict[str, Any] = {
    "shape": lambda tensor: tensor.shape,
    "ndim": lambda tensor: len(tensor.shape),
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "requires_grad": lambda tensor: tensor.requires_grad,
    "layout": lambda tensor: tensor.layout,
    "is_leaf": lambda tensor: tensor.is_leaf or not tensor.requires_grad,
    "itemsize": lambda tensor: tensor.dtype.itemsize,
    "nbytes": lambda tensor: tensor.numel() * tensor.dtype.itemsize,
    "is_sparse": lambda tensor: tensor.layout is torch.sparse_coo,
    "is_nested": lambda tensor: False,
    "is_quantized": lambda tensor: False,
    "is_mkldnn": lambda tensor: False,
}
