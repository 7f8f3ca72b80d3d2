"""Keeps torch's Python shape functions from importing sympy: see `stator.tensors.lazy_symbolic`."""

from stator.tensors.lazy_symbolic import install

__all__ = ["install"]
