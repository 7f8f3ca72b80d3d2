"""Decode and assemble CPython code objects; `versions.py` is the one table of version differences.

This is the base of everything that reads or writes bytecode: it knows code objects and nothing of tracing.
"""

from __future__ import annotations

from stator.bytecode.decode import CELL, FREE, LOCAL, DecodedCode, Handler, Instruction, decode

__all__ = ["CELL", "FREE", "LOCAL", "DecodedCode", "Handler", "Instruction", "decode"]
