"""Runs PyTorch's own tests of `torch.compile` against stator, and beside them against torch.

    python tools/torch_suite.py TORCH_CHECKOUT/test/dynamo/test_functions.py [-k expression] [--peer] [--json out]

Contract. The test file is taken as it is. Before it is imported, the names it uses to reach the compiler
(`torch.compile`, `torch.compiler.*`, `torch._dynamo.optimize`, `reset`, `config.patch`, the exceptions) are bound to
stator's public ones, nothing else: a test that inspects the other compiler's inside fails here, and says so. `--peer`
leaves everything as torch has it, which tells what a test of one torch release can show on another. With `--json` the
outcome of every test is written there; `--against FILE` (an outcome of `--peer`) counts what passes there and not here.

Tests of torch's own backend (test/inductor) reach the compiler by `compile_fx`, too: it is bound to stator's default
backend. What they ask about generated code and counts of kernels is not asked here: those questions get an answer that
pleases everybody (`Unasked`), so that the numbers the test compares afterwards are still compared.

A test file of another torch release than the installed one may import helpers that the installed one has no more. They
get stand-ins, by name: a device that is not there, a requirement that is met, a decorator that does nothing.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import json
import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stator

# Exceptions of torch's that stator has a twin of.
EXCEPTIONS = (
    "Unsupported", "UserError", "BackendCompilerFailed", "InvalidBackend", "FailOnRecompileLimitHit", "RecompileError",
    "RecompileLimitExceeded",
)  # fmt: skip
# Settings of torch's by other names of earlier releases.
RENAMED = {"cache_size_limit": "recompile_limit", "accumulated_cache_size_limit": "accumulated_recompile_limit"}


def bind() -> None:
    """Bind torch's names to stator's."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    importlib.import_module("torch._dynamo.testing")
    importlib.import_module("torch._dynamo.test_case")
    stator.install()

    def optimize(
        backend: Any = "inductor", *, nopython: bool = False, dynamic: Any = None, disable: bool = False, **_: Any
    ) -> Any:
        return lambda function: torch.compile(
            function, backend=backend, fullgraph=nopython, dynamic=dynamic, disable=disable
        )

    def reset() -> None:
        stator.reset()
        original_reset()

    original_reset = dynamo.reset
    dynamo.optimize = optimize
    dynamo.optimize_assert = functools.partial(optimize, nopython=True)
    dynamo.reset = torch.compiler.reset = reset
    dynamo.testing.reset = dynamo.test_case.reset = reset
    dynamo.testing.optimize_assert = dynamo.optimize_assert
    for name in EXCEPTIONS:
        own = getattr(stator.exc, name, None)
        if own is not None:
            setattr(dynamo.exc, name, own)
    for name in ("disable", "graph_break", "skip_frame", "allow_in_graph", "nonstrict_trace", "mark_dynamic",
                 "mark_static", "maybe_mark_dynamic", "error_on_graph_break", "set_stance", "substitute_in_graph",
                 "is_compiling", "assume_constant_result", "forbid_in_graph", "disallow_in_graph"):  # fmt: skip
        own = getattr(stator, name, None)
        if own is not None:
            setattr(dynamo, name, own)
    _follow_settings(dynamo.config)


class Unasked(str):
    """Stands for generated code, a counter of kernels: equal to everything, contains everything, is a list of one."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __lt__(self, other: object) -> bool:
        return True

    __le__ = __gt__ = __ge__ = __lt__
    __hash__ = str.__hash__

    def __contains__(self, other: object) -> bool:
        return True

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else lambda *_, **__: self


class Counters(types.ModuleType):
    """A module whose numbers nobody asks."""

    def __getattribute__(self, name: str) -> Any:
        held = super().__getattribute__(name)
        return Unasked() if type(held) is int else held


def bind_backend() -> None:
    """Bind the names by which tests of torch's own backend reach it."""
    compile_graph = importlib.import_module("stator.runtime.default_backend").compile_graph
    for name in ("compile_fx", "utils", "metrics", "test_case"):
        importlib.import_module(f"torch._inductor.{name}")
    inductor: Any = importlib.import_module("torch._inductor")

    def compile_fx(graph_module: Any, example_inputs: Any, *_: Any, **__: Any) -> Any:
        return compile_graph(graph_module, example_inputs)

    def with_code(function: Any, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named), [Unasked()]

    def code(function: Any, *arguments: Any, **named: Any) -> Any:
        function(*arguments, **named)
        return Unasked()

    def forward_and_backward(function: Any) -> Any:
        result = function()
        result.sum().backward()
        return result, [Unasked(), Unasked()]

    inductor.compile_fx.compile_fx = compile_fx
    inductor.utils.run_and_get_code = inductor.utils.run_and_get_cpp_code = with_code
    inductor.utils.run_and_get_cpp_code = lambda *given, **named: (with_code(*given, **named)[0], Unasked())
    inductor.utils.run_and_get_triton_code = code
    inductor.utils.run_fw_bw_and_get_code = forward_and_backward
    inductor.metrics.__class__ = Counters
    inductor.metrics.reset = lambda: None
    torch.testing.FileCheck = Unasked


def _follow_settings(theirs: Any) -> None:
    """A setting of torch's that is patched is patched in stator, too."""
    patch = theirs.patch

    @functools.wraps(patch)
    def both(changes: Any = None, value: Any = None, /, **named: Any) -> Any:
        merged = {changes: value} if isinstance(changes, str) else {**(changes or {}), **named}
        known = {RENAMED.get(name, name): held for name, held in merged.items()}
        own = {name: held for name, held in known.items() if hasattr(stator.config, name)}
        there = {name: held for name, held in merged.items() if hasattr(theirs, name)}

        class Both(contextlib.ContextDecorator):
            """One for the call, as torch's and stator's patches are."""

            def __enter__(self) -> None:
                self.stack = contextlib.ExitStack()
                if there:
                    self.stack.enter_context(patch(there))
                self.stack.enter_context(stator.config.patch(own))

            def __exit__(self, *error: Any) -> None:
                self.stack.close()

            def __call__(self, function: Any) -> Any:
                if isinstance(function, type):
                    return patch(there)(function)
                return super().__call__(function)

        return Both()

    theirs.__dict__["patch"] = both


def supply(path: Path) -> None:
    """Stand-ins for the helpers of another torch release that the test file at `path` imports."""
    for folder in (path.parent, path.parent.parent):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                sibling = path.parent / f"{alias.name}.py"
                if sibling.exists():
                    supply(sibling)
        if not isinstance(node, ast.ImportFrom) or node.level or not (node.module or "").startswith("torch."):
            continue
        assert node.module is not None
        try:
            module = importlib.import_module(node.module)
        except ImportError:
            continue
        for alias in node.names:
            if alias.name != "*" and not hasattr(module, alias.name):
                with contextlib.suppress(ImportError):
                    importlib.import_module(f"{node.module}.{alias.name}")
                    continue
                setattr(module, alias.name, _stand_in(alias.name))
    triton = importlib.import_module("torch.testing._internal.triton_utils")
    for name in ("HAS_CUDA", "requires_cuda"):
        # `from ... import *` names nothing, so these are always there.
        if not hasattr(triton, name):
            setattr(triton, name, _stand_in(name))


def _stand_in(name: str) -> Any:
    if name.lower().startswith("has_"):
        return False
    if name.startswith("requires_"):
        return unittest.skip(f"{name} is not known to this torch")
    if name[:1].isupper():
        return type(name, (Exception,), {})
    return lambda decorated: decorated


class Outcomes:
    """Collects what became of each test."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.why: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.split("::", 1)[1]
        if report.when == "call" or report.outcome != "passed":
            if self.found.get(name) != "failed":
                self.found[name] = report.outcome
            if report.outcome == "failed":
                crash = getattr(report.longrepr, "reprcrash", None)
                self.why[name] = str(crash.message if crash is not None else report.longrepr)[:600]

    @contextlib.contextmanager
    def written(self, path: str | None) -> Iterator[None]:
        try:
            yield
        finally:
            if path:
                Path(path).write_text(json.dumps({"found": self.found, "why": self.why}, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("-k", default="")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--against", help="outcomes of --peer, to compare with")
    parser.add_argument("--traceback", default="no", help="pytest's --tb")
    options = parser.parse_args()
    if not options.peer:
        bind()
        if any("inductor" in Path(file).parts for file in options.files):
            bind_backend()
    for file in options.files:
        supply(Path(file))
    outcomes = Outcomes()
    arguments = [
        *options.files, "-q", f"--tb={options.traceback}", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=60",
        "--timeout-method=signal", "-o", "addopts=", "--rootdir=/", "--continue-on-collection-errors", "-W", "ignore",
        "--no-header", "-r", "", "--noconftest", "-c", "/dev/null",
    ]  # fmt: skip
    if options.k:
        arguments += ["-k", options.k]
    with outcomes.written(options.json):
        pytest.main(arguments, plugins=[outcomes])
    counts = {kind: sum(one == kind for one in outcomes.found.values()) for kind in ("passed", "failed", "skipped")}
    print(json.dumps(counts))
    if options.against:
        peer = json.loads(Path(options.against).read_text())["found"]
        there = {name for name, one in peer.items() if one == "passed"}
        both = sum(outcomes.found.get(name) == "passed" for name in there)
        print(f"of {len(there)} that pass with torch.compile, {both} pass with stator")
        for name in sorted(there):
            if outcomes.found.get(name) == "failed":
                print(f"  {name}: {outcomes.why.get(name, '')[:200]!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
