"""What a tensor is while a graph is lowered: memory under strides, or an expression nobody has stored yet.

Contract. Both kinds answer `at(indices)`, the element as a loop expression. `Stored` is a buffer seen through sizes,
strides and an offset (views of it cost nothing). `Lazy` is an expression over the canonical variables of its shape;
using it at other indices substitutes them, so a view of an unstored value is free too.

Complex, quantised and other types the loop language lacks are `Stored` with the type "opaque": only operators of
ATen take them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.loops import ir
from stator.loops.integers import Atom, Polynomial, Size, atoms
from stator.loops.ir import Buffer, Definition, Expression, loop_variables

TYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b1",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in TYPE_NAMES.items()}
OPAQUE = "opaque"


def type_name(dtype: torch.dtype) -> str:
    return TYPE_NAMES.get(dtype, OPAQUE)


class NotLowered(Exception):
    """This call has no loop form: the operator itself runs. The text says why, for the report."""


@dataclass(eq=False, slots=True)
class Stored:
    """A buffer under sizes, strides and an offset in elements."""

    buffer: Buffer
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    dtype: torch.dtype

    @property
    def type(self) -> str:
        return type_name(self.dtype)

    def at(self, indices: Sequence[Size]) -> Expression:
        if self.buffer.type == OPAQUE:
            raise NotLowered(f"elements of type {self.dtype}")
        position = self.offset
        for index, stride, size in zip(indices, self.strides, self.sizes, strict=True):
            if size != 1:
                position = position + index * stride
        return ir.load(self.buffer, position)


@dataclass(eq=False, slots=True)
class Lazy:
    """An expression over `loop_variables(sizes)`."""

    sizes: tuple[Size, ...]
    dtype: torch.dtype
    expression: Expression
    layout: tuple[Size, ...] | None = None  # strides eager would give it
    stored: Stored | None = None  # its memory, once somebody needed that

    @property
    def type(self) -> str:
        return type_name(self.dtype)

    def at(self, indices: Sequence[Size]) -> Expression:
        canonical = loop_variables(self.sizes)
        mapping: dict[Atom, Size] = {}
        for own, index in zip(canonical, indices, strict=True):
            if isinstance(own, Polynomial) and own != index:
                (atom,) = atoms(own)
                mapping[atom] = index
        if not mapping:
            return self.expression
        return ir.rewrite(self.expression, mapping.get)


Value = Stored | Lazy


@dataclass(eq=False, slots=True)
class Number:
    """A float (or a truth) known only when the program runs: an input, or `function` of numbers and sizes.

    `memory` is the number as a tensor of no dimension, once a kernel reads it.
    """

    type: type
    function: Any = None
    parts: tuple[Any, ...] = ()
    memory: Stored | None = None


@dataclass(eq=False, slots=True)
class OperatorCall:
    """One call of an ATen operator. Arguments hold `Stored` values, sizes and constants; `results` are new buffers
    (None for a result that is no tensor, a list for a list of tensors). Where the call fails, `instead` is called with
    the same arguments, to raise what the user should see."""

    operator: torch._ops.OpOverload | torch._ops.HigherOrderOperator  # of the latter, a tuple of results
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: list[Any]
    line: str = ""
    reason: str = ""
    instead: Callable[..., Any] | None = None

    def reads(self) -> list[Buffer]:
        return [value.buffer for value in flatten((self.arguments, self.keywords)) if isinstance(value, Stored)]

    def writes(self) -> list[Buffer]:
        """Buffers of arguments that the schema marks as written."""
        found: list[Buffer] = []
        if isinstance(self.operator, torch._ops.HigherOrderOperator):
            return found
        for position, declared in enumerate(self.operator._schema.arguments):
            if declared.alias_info is None or not declared.alias_info.is_write:
                continue
            value = self.arguments[position] if position < len(self.arguments) else self.keywords.get(declared.name)
            found.extend(entry.buffer for entry in flatten(value) if isinstance(entry, Stored))
        return found

    def made(self) -> list[Buffer]:
        return [entry for entry in flatten(self.results) if isinstance(entry, Buffer)]

    def needed(self) -> bool:
        if isinstance(self.operator, torch._ops.HigherOrderOperator):
            return True  # what its bodies do (a check, random numbers) is not looked into
        return (
            self.operator._schema.is_mutable
            or not self.made()
            or torch.Tag.nondeterministic_seeded in self.operator.tags
        )


Step = Definition | OperatorCall


def flatten(value: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        return [leaf for entry in value for leaf in flatten(entry)]
    if isinstance(value, dict):
        return [leaf for entry in value.values() for leaf in flatten(entry)]
    return [value]
