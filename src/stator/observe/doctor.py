"""`stator doctor`: is this installation well? Versions, processor, caches, native core, GPU, a self-test of each stage.

Contract. `examine(public)` never raises: what is missing or broken is a row that says so, with the first line of its
error. The self-tests together take under ten seconds; one that takes longer than its share is a warning. The
public `stator` namespace is passed in, so that this room stays below `api`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stator import config

OK, WARNING, BROKEN, MISSING = "ok", "warning", "broken", "missing"
_SHARE = 5.0  # seconds a single self-test may take


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the doctor's answer."""

    name: str
    state: str
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SelfTest:
    """One stage: the modules without which it is not there, and a program that must give eager's result."""

    name: str
    modules: tuple[str, ...]
    run: Callable[[Any], str]


# -- facts


def _versions() -> str:
    rows = [f"stator {_version('stator')}", f"torch {torch.__version__}", f"python {platform.python_version()}"]
    rows += [f"{name} {_version(name)}" for name in ("llvmlite", "networkx", "numpy", "rich", "triton")]
    return ", ".join(rows)


def _version(package: str) -> str:
    metadata = importlib.import_module("importlib.metadata")
    try:
        return str(metadata.version(package))
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {os.cpu_count()} logical CPUs, torch uses {capability} and {threads} threads"


def _features() -> str:
    if importlib.util.find_spec("llvmlite") is None:
        raise ModuleNotFoundError("llvmlite is not installed: pip install llvmlite")
    binding = importlib.import_module("llvmlite.binding")
    features = binding.get_host_cpu_features()
    known = [
        name
        for name in ("sse4.2", "avx2", "fma", "avx512f", "avx512bf16", "amx-tile", "neon", "sve")
        if features.get(name)
    ]
    return f"{binding.get_host_cpu_name()}: {', '.join(known) or 'baseline only'}"


def cache_directory() -> Path:
    """Where the persistent caches are."""
    if config.cache_dir:
        return Path(config.cache_dir)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stator"


def _caches() -> str:
    if config.force_disable_caches:
        return "switched off (config.force_disable_caches)"
    place = cache_directory()
    files = [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else []
    mebibytes = sum(path.stat().st_size for path in files) / 2**20
    existing = next(path for path in (place, *place.parents) if path.exists())
    with tempfile.TemporaryFile(dir=existing):  # an unwritable place is an OSError here
        pass
    return f"{place}: {len(files)} files, {mebibytes:.1f} of at most {config.cache_size_mb} MiB"


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none (CPU only)"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    triton = _version("triton")
    return f"{', '.join(names)}; CUDA {torch.version.cuda}, triton {triton}"


def _native() -> str:
    if not _exists("stator._native.core"):
        raise ModuleNotFoundError("the C core is not built: pip install -e . (or make native)")
    native = importlib.import_module("stator._native")
    found = native.calibration() if hasattr(native, "calibration") else {}
    facts = "; ".join(f"{name} {_fact(value)}" for name, value in found.items())
    return f"{Path(importlib.import_module('stator._native.core').__file__ or '').name}; {facts}"


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return f"{len(value)} found"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


FACTS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("versions", _versions),
    ("processor", _processor),
    ("features", _features),
    ("native core", _native),
    ("caches", _caches),
    ("GPU", _gpu),
)


# -- self-tests


def _program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + y).sum(-1).softmax(0)


def _same(compiled: Callable[..., Any], function: Callable[..., Any], *args: Any) -> None:
    got, expected = compiled(*args), function(*args)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def _inputs(requires_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 16, generator=generator)
    return x.requires_grad_(requires_grad), torch.randn(16, generator=generator)


def _through(backend: str | None) -> Callable[[Any], str]:
    def run(public: Any) -> str:
        options = {} if backend is None else {"backend": backend}
        compiled = public.compile(_program, fullgraph=True, **options)
        _same(compiled, _program, *_inputs())
        _same(compiled, _program, *_inputs())
        return "one graph, equal to eager"

    return run


def _gradients(public: Any) -> str:
    compiled = public.compile(_program, fullgraph=True)
    results = []
    for function in (compiled, _program):
        x, y = _inputs(requires_grad=True)
        function(x, y).square().sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)
    return "gradients equal to eager"


def _broken_program(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    if x.sum().item() > 0:
        x = x * 2
    return x - 1


def _breaks(public: Any) -> str:
    compiled = public.compile(_broken_program, backend="eager")
    for sign in (1.0, -1.0):
        _same(compiled, _broken_program, torch.full((4,), sign * 8))
    return "resumed on both sides of a data-dependent branch"


def _sizes(public: Any) -> str:
    compiled = public.compile(_program, backend="eager", dynamic=True)
    for rows in (2, 3, 7):
        _same(compiled, _program, torch.ones(rows, 16), torch.ones(16))
    return "three sizes"


SELF_TESTS: tuple[SelfTest, ...] = (
    SelfTest("capture", ("stator.capture.tracer", "stator.bytecode.decode"), _through("eager")),
    SelfTest("graph breaks", ("stator.resume",), _breaks),
    SelfTest("dynamic sizes", ("stator.sizes",), _sizes),
    SelfTest("ahead of time", ("stator.aot",), _through("aot_eager")),
    SelfTest("CPU compiler", ("stator.lower", "stator.loops", "stator.emit.cpu"), _through(None)),
    SelfTest("training", ("stator.aot", "stator.emit.cpu"), _gradients),
)


def _finding(name: str, look: Callable[[], str]) -> Finding:
    begin = time.perf_counter()
    try:
        state, detail = OK, look()
    except ModuleNotFoundError as error:
        state, detail = MISSING, _first_line(error)
    except Exception as error:
        state, detail = BROKEN, f"{type(error).__name__}: {_first_line(error)}"
    seconds = time.perf_counter() - begin
    if state == OK and seconds > _SHARE:
        state, detail = WARNING, f"{detail}, but slow"
    return Finding(name, state, detail, seconds)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def _self_test(test: SelfTest, public: Any) -> Finding:
    for module in test.modules:
        if not _exists(module):
            return Finding(test.name, MISSING, f"this build has no {module}")
    if not hasattr(public, "compile"):
        return Finding(test.name, MISSING, "this build has no stator.compile")
    return _finding(test.name, lambda: test.run(public))


def examine(public: Any) -> list[Finding]:
    """All facts and all self-tests."""
    findings = [_finding(name, look) for name, look in FACTS]
    findings += [_self_test(test, public) for test in SELF_TESTS]
    leaked = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
    if leaked:
        findings.append(
            Finding("independence", WARNING, f"{', '.join(leaked)} was imported by something in this process")
        )
    return findings


def text(findings: list[Finding]) -> str:
    """The findings as a table, with the verdict last."""
    rows = []
    for finding in findings:
        time_taken = f" ({finding.seconds * 1e3:.0f} ms)" if finding.seconds >= 0.0005 else ""
        rows.append(f"{finding.state:8} {finding.name:14} {finding.detail}{time_taken}")
    bad = [finding.name for finding in findings if finding.state in (BROKEN, MISSING)]
    rows.append(f"not well: {', '.join(bad)}" if bad else "all is well")
    return "\n".join(rows)
