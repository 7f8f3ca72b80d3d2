"""How a program reaches an operator, and its arguments as the native runtime takes them.

Contract. `route` decides, from the operator's schema and the arguments known when the program is built, between

    a direct shim      libtorch's C function of that very operator, for the hot ones
    the dispatcher     libtorch's stable dispatcher interface, where it can carry the arguments and results
    Python             the rest: what the interface cannot carry (a Scalar, a generator), or what is itself Python

and says why where it is Python. Whichever it is, the arguments a call from Python needs are there too: a native call
that fails is repeated from Python where that cannot be seen, to raise the exception eager raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stator.runtime.integers import INPUT, IntExpr
from stator.runtime.plan import HOLDS_INTEGER, HOLDS_TENSOR, Extern, Slot, declarations, leaves

# The order of CallWay in _native/program/program.h.
WAYS = (
    "python", "dispatcher", "mm", "mm.out", "bmm", "bmm.out", "addmm", "addmm.out", "baddbmm", "baddbmm.out",
    "convolution", "convolution_backward", "attention", "attention_backward", "cat",
)  # fmt: skip
PYTHON, DISPATCHER = 0, 1

# operator -> (way, the shim it needs)
DIRECT: dict[str, tuple[str, str]] = {
    "aten::mm": ("mm", "aoti_torch_cpu_mm_out"),
    "aten::mm.out": ("mm.out", "aoti_torch_cpu_mm_out"),
    "aten::bmm": ("bmm", "aoti_torch_cpu_bmm_out"),
    "aten::bmm.out": ("bmm.out", "aoti_torch_cpu_bmm_out"),
    "aten::addmm": ("addmm", "aoti_torch_cpu_addmm_out"),
    "aten::addmm.out": ("addmm.out", "aoti_torch_cpu_addmm_out"),
    "aten::baddbmm": ("baddbmm", "aoti_torch_cpu_baddbmm_out"),
    "aten::baddbmm.out": ("baddbmm.out", "aoti_torch_cpu_baddbmm_out"),
    "aten::convolution": ("convolution", "aoti_torch_cpu_convolution"),
    "aten::convolution_backward": ("convolution_backward", "aoti_torch_cpu_convolution_backward"),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (
        "attention",
        "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu",
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (
        "attention_backward",
        "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "aten::cat": ("cat", "aoti_torch_cpu_cat"),
}

# Kinds of arguments: the order of ValueKind in _native/program/program.h.
NONE, WORD, STRING, SLOT, INTEGER, LIST, OBJECT = range(7)
Value = tuple[int, int, Any, Any]  # kind, optional, word or index or entries, object for Python

# Schema types a result may have for the stable interface to carry it.
CARRIED_RESULTS = frozenset({"Tensor", "Optional[Tensor]", "List[Tensor]", "int", "bool"})

# Schema type -> the Python type of its values, the prefix of libtorch's functions that number them, and their names.
_CODED: dict[str, tuple[type, str, tuple[str, ...]]] = {
    "ScalarType": (
        torch.dtype,
        "aoti_torch_dtype_",
        (
        "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
        "complex128", "bool", "bfloat16", "uint16", "uint32", "uint64", "float8_e5m2", "float8_e4m3fn",
        "float8_e5m2fnuz", "float8_e4m3fnuz",
        ),
    ),
    "Layout": (torch.layout, "aoti_torch_layout_", ("strided",)),
    "MemoryFormat": (
        torch.memory_format,
        "aoti_torch_memory_format_",
        ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
    ),
}  # fmt: skip
DEVICE_TYPES = ("cpu", "cuda", "meta", "xpu", "mps")


@dataclass(frozen=True, slots=True)
class Route:
    """How one operator call runs. `python` orders the values for Python: positional first, then `names`."""

    way: int
    why: str
    values: tuple[Value, ...]
    python: tuple[int, ...]
    positional: int
    names: tuple[str, ...]
    rerun: bool


@dataclass(frozen=True)
class Codes:
    """libtorch's numbers for dtypes, layouts, memory formats and device types; it does not promise to keep them."""

    of: dict[Any, int]
    device_types: dict[str, int]

    @staticmethod
    def read(function: Callable[[str], int | None]) -> Codes:
        """Ask libtorch: `function` calls a C function without arguments, None where there is none."""
        numbers: dict[Any, int] = {}
        for _, prefix, names in _CODED.values():
            for name in names:
                number = function(prefix + name)
                if number is not None and hasattr(torch, name):
                    numbers[getattr(torch, name)] = number
        devices = {name: function("aoti_torch_device_type_" + name) for name in DEVICE_TYPES}
        return Codes(numbers, {name: number for name, number in devices.items() if number is not None})

    def device(self, device: torch.device) -> int | None:
        """A device as one word: its index below, its type above."""
        kind = self.device_types.get(device.type)
        if kind is None:
            return None
        index = -1 if device.index is None else device.index
        return (index & 0xFFFFFFFF) | (kind << 32)


class _NotCarried(Exception):
    """The stable interface has no form for an argument."""


def _float_bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


class Encoder:
    """Arguments of one plan's operators. `row` numbers an integer expression."""

    def __init__(self, codes: Codes, row: Callable[[IntExpr], int]) -> None:
        self.codes = codes
        self.row = row

    def value(self, value: Any, kind: Any) -> Value:
        """One argument of schema type `kind`; raises `_NotCarried` where only Python can pass it."""
        text = str(kind)
        if text.startswith("Optional["):
            if value is None:
                return (NONE, 1, 0, None)
            code, _, payload, held = self.value(value, kind.getElementType())
            return (code, 1, payload, held)
        if isinstance(value, (list, tuple)):
            if not text.startswith("List["):
                raise _NotCarried(f"a list for {text}")
            entries = tuple(self.value(entry, kind.getElementType()) for entry in value)
            return (LIST, 0, entries, None if any(map(_varies, leaves(value))) else list(value))
        if isinstance(value, Slot):
            return self._slot(value, text)
        if isinstance(value, IntExpr):
            if text not in ("int", "SymInt", "bool"):
                raise _NotCarried(f"a computed integer for {text}")
            return (INTEGER, 0, self.row(value), None)
        return self._constant(value, text)

    def _slot(self, slot: Slot, text: str) -> Value:
        if slot.kind in HOLDS_INTEGER:
            return self.value(IntExpr(INPUT, slot.index), _Named(text))
        if (text == "Tensor" and slot.kind in HOLDS_TENSOR) or (text == "List[Tensor]" and slot.kind == "list"):
            return (SLOT, 0, slot.index, None)
        raise _NotCarried(f"a {slot.kind} for {text}")

    def _constant(self, value: Any, text: str) -> Value:
        word: int | None = None
        if value is None:
            raise _NotCarried(f"None for {text}")
        if text == "bool":
            word = int(bool(value))
        elif text in ("int", "SymInt"):
            word = int(value) & 0xFFFFFFFFFFFFFFFF
        elif text in _CODED:
            word = self.codes.of.get(value)
        elif text == "float":
            word = _float_bits(float(value))
        elif text in ("str", "string"):
            return (STRING, 0, 0, str(value))
        elif text == "Device":
            word = self.codes.device(torch.device(value))
        if word is None:
            raise _NotCarried(f"{type(value).__name__} for {text}")
        return (WORD, 0, word, value)

    def for_python(self, value: Any) -> Value:
        """One argument as only Python needs it."""
        if isinstance(value, Slot):
            if value.kind in HOLDS_INTEGER:
                return (INTEGER, 0, self.row(IntExpr(INPUT, value.index)), None)
            return (SLOT, 0, value.index, None)
        if isinstance(value, IntExpr):
            return (INTEGER, 0, self.row(value), None)
        if isinstance(value, (list, tuple)) and any(map(_varies, leaves(value))):
            return (LIST, 0, tuple(map(self.for_python, value)), None)
        return (OBJECT, 0, 0, value)

    def route(self, step: Extern, has_shim: Callable[[str], bool]) -> Route:
        """How the step's operator is reached."""
        op = step.op
        if not isinstance(op, torch._ops.OpOverload):
            plain = tuple(map(self.for_python, step.arguments))
            return Route(PYTHON, "it is a Python function", plain, tuple(range(len(plain))), len(plain), (), False)
        arguments = op._schema.arguments
        why = in_python(op)
        values: tuple[Value, ...] = ()
        direct = DIRECT.get(op._name)
        way = DISPATCHER
        if not why and direct is not None and has_shim(direct[1]):
            way = WAYS.index(direct[0])
        for declared in () if why else op._schema.returns:
            if str(declared.type) not in CARRIED_RESULTS:
                why = f"the stable interface carries no result of type {declared.type}"
        if not why:
            try:
                values = tuple(
                    self._direct_value(value, declared.real_type, way)
                    for value, declared in zip(step.arguments, arguments, strict=True)
                )
            except _NotCarried as reason:
                why = f"the stable interface carries no {reason}"
        if why:
            way = PYTHON
            values = tuple(map(self.for_python, step.arguments))
        positional, named = python_order(step)
        return Route(
            way,
            why,
            values,
            (*positional, *named),
            len(positional),
            tuple(arguments[index].name for index in named),
            rerun=op.namespace == "aten",
        )

    def _direct_value(self, value: Any, kind: Any, way: int) -> Value:
        if way != DISPATCHER and str(kind) == "number" and isinstance(value, (int, float)):
            return (WORD, 0, _float_bits(float(value)), value)
        return self.value(value, kind)


@dataclass(frozen=True, slots=True)
class _Named:
    """A schema type that is only its name."""

    name: str

    def __str__(self) -> str:
        return self.name


def _varies(value: Any) -> bool:
    return isinstance(value, (Slot, IntExpr))


def python_order(step: Extern) -> tuple[list[int], list[int]]:
    """Which arguments a call from Python passes, by position and by name: defaults stay out, they cost time."""
    schema = declarations(step.op)
    positional: list[int] = []
    named: list[int] = []
    for index, (declared, value) in enumerate(zip(schema, step.arguments, strict=True)):
        default = declared.has_default_value() and _same(value, declared.default_value)
        if declared.kwarg_only:
            if not default:
                named.append(index)
        else:
            positional.append(index)
    while positional:
        declared = schema[positional[-1]]
        if not declared.has_default_value() or not _same(step.arguments[positional[-1]], declared.default_value):
            break
        positional.pop()
    return positional, named


def _same(value: Any, default: Any) -> bool:
    if any(map(_varies, leaves(value))):
        return False
    return type(value) is type(default) and bool(value == default)


# Kernels under these keys do not decide how an operator runs below autograd on real tensors.
_NOT_RUN = ("Meta", "Autograd", "Functionalize", "ADInplaceOrView", "Python", "Autocast", "FuncTorch")
_python_kernels: tuple[int, frozenset[str]] = (-1, frozenset())


def in_python(op: torch._ops.OpOverload) -> str:
    """Why the operator is Python itself; empty if it is not."""
    global _python_kernels
    registered = torch.library._impls
    if _python_kernels[0] != len(registered):
        keys = (entry.rpartition("/") for entry in tuple(registered))
        _python_kernels = (len(registered), frozenset(name for name, _, key in keys if not key.startswith(_NOT_RUN)))
    return "its kernel is written in Python" if op._name.replace("::", "/") in _python_kernels[1] else ""
