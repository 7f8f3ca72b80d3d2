"""Decode, analyse and assemble CPython code objects; `versions.py` is the one table of version differences.

This is the base of everything that reads or writes bytecode: it knows code objects and nothing of tracing.
"""

from __future__ import annotations

from stator.bytecode.assemble import Assembled, Operation, assemble, insert, operation, operations_of, rebuild
from stator.bytecode.cache import CodeCache
from stator.bytecode.decode import CELL, FREE, LOCAL, DecodedCode, Handler, Instruction, decode
from stator.bytecode.liveness import liveness
from stator.bytecode.redirect import calls_redirected
from stator.bytecode.stack import stack_size, stack_slots
from stator.bytecode.tables import Location

__all__ = [
    "CELL", "FREE", "LOCAL", "Assembled", "CodeCache", "DecodedCode", "Handler", "Instruction", "Location", "Operation",
    "assemble", "calls_redirected", "decode", "insert", "liveness", "operation", "operations_of", "rebuild",
    "stack_size", "stack_slots",
]  # fmt: skip
