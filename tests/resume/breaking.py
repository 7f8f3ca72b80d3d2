"""What the generated programs call: things that break a graph, each with the place where it does so in its name."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
import time
from typing import Any

import torch

import stator

lock = threading.Lock()
counter = [0]


class Broken(Exception):
    pass


@stator.disable
def opaque(value: Any) -> Any:
    counter[0] += 1
    return 3


@stator.disable
def refuse(value: Any) -> Any:
    counter[0] += 1
    raise Broken("refused")


@torch.compiler.disable
def torch_disabled(value: Any) -> Any:
    return 4


class Noted:
    """A context manager that writes down how it is used."""

    def __init__(self, log: list[Any], swallow: bool = False) -> None:
        self.log = log
        self.swallow = swallow

    def __enter__(self) -> int:
        self.log.append("enter")
        return 7

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.log.append(("exit", None if kind is None else kind.__name__))
        return self.swallow


@contextlib.contextmanager
def noted(log: list[Any]) -> Any:
    log.append("begin")
    try:
        yield 5
    finally:
        log.append("end")


def doubled(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 2

    return wrapper


def reset() -> None:
    counter[0] = 0


def state() -> Any:
    return list(counter)


__all__ = [
    "Broken", "Noted", "contextlib", "counter", "doubled", "functools", "lock", "noted", "opaque", "os", "random",
    "refuse", "stator", "time", "torch", "torch_disabled",
]  # fmt: skip
