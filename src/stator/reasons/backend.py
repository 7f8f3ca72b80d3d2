"""Reasons that belong to: backend."""

from __future__ import annotations

from stator.reasons.row import Reason

ROWS: tuple[Reason, ...] = (
    Reason(
        id="cache_unusable",
        summary="the persistent cache was not used: {detail}",
        explanation="Generated code from the cache is executed, so stator reads it only from a directory that belongs "
        "to the user and that nobody else can write; and a disk may be full or read-only. Everything works without "
        "it, but compiles again in each process.",
        hint="Set `stator.config.cache_dir` to a directory of your own (mode 0700), or make room on its disk.",
        example="""from stator import config
from stator.runtime.cache import Cache


def example():
    with config.patch(cache_dir="/dev/null/cache"):
        Cache("kernel").put(b"key", b"value")
""",
    ),
    Reason(
        id="native_runtime_unavailable",
        summary="compiled graphs run step by step from Python: {detail}",
        explanation="The native runtime calls libtorch's C interface. It looks for each function, finds out how "
        "tensors are laid out and runs a small program before it is used; where one of these fails nothing of it is "
        "used.",
        hint="Install a torch version that stator supports, and build stator's extension modules for this Python.",
    ),
)
