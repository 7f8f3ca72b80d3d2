from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from runtime_helpers import build_native, kernel

from stator import config, events
from stator.exc import StatorError
from stator.runtime import native
from stator.runtime.program import ProgramBuilder

aten = torch.ops.aten


@pytest.fixture
def unconnected(monkeypatch):
    """A process that has not used the native runtime yet, only loaded it."""
    importlib.import_module("stator._native.program")
    monkeypatch.setattr(native, "_runtime", None)
    monkeypatch.setattr(native, "_failure", "")
    heard = []
    stop = events.subscribe(heard.append, {"fallback"})
    yield heard
    stop()


def built():
    b = ProgramBuilder("small")
    x = b.input_tensor()
    out = b.empty([3], [1], torch.float32)
    b.kernel(*kernel("double"), [x, out], [], 3)
    b.outputs([out, *b.extern(aten.mm.default, [b.view(x, [3, 1], [1, 1]), b.view(x, [1, 3], [3, 1])])])
    return b.build()


def works(program):
    out, product = program(torch.arange(3.0))
    return out.tolist() == [0, 2, 4] and torch.equal(product, torch.outer(torch.arange(3.0), torch.arange(3.0)))


def break_version(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0")


def break_module(monkeypatch):
    def missing(name):
        raise ImportError(f"no {name}")

    monkeypatch.setattr(importlib, "import_module", missing)


def break_library(monkeypatch):
    monkeypatch.setattr(torch, "__file__", "/nowhere/torch/__init__.py")


def break_calibration(monkeypatch):
    real = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor
    monkeypatch.setattr(
        native.torch._C, "_aoti", SimpleNamespace(unsafe_alloc_void_ptr_from_tensor=lambda t: real(t.clone()))
    )


def break_results(monkeypatch):
    monkeypatch.setattr(torch, "equal", lambda one, other: False)


BREAKS = {
    break_version: "was not written for torch 2.99.0",
    break_module: "no stator._native.program",
    break_library: "/nowhere",
    break_calibration: "does not hold its tensor",
    break_results: "something else",
}


@pytest.mark.parametrize("damage", BREAKS)
def test_without_the_native_runtime_programs_run_by_reference(unconnected, monkeypatch, damage):
    damage(monkeypatch)
    programs = [built(), built()]
    monkeypatch.undo()
    assert all(map(works, programs)) and not any(type(program).__name__ == "Program" for program in programs)
    assert BREAKS[damage] in programs[0].why and BREAKS[damage] in programs[0].describe()
    assert [event.fields["reason"] for event in unconnected] == ["native_runtime_unavailable"]


def test_strict_refuses_the_reference_execution(unconnected, monkeypatch):
    break_version(monkeypatch)
    with config.patch(strict=True), pytest.raises(StatorError) as found:
        built()
    assert found.value.reason == "native_runtime_unavailable"


def test_the_check_compares_with_python(native_runtime):
    native.check(native_runtime)
    wrong = dict(native_runtime.codes.of)
    wrong[torch.float64] = wrong[torch.float32]
    with pytest.raises(RuntimeError, match="something else"):
        native.check(native.Runtime(native_runtime.module, native.Codes(wrong, native_runtime.codes.device_types)))


def test_a_program_made_before_connecting_is_an_error():
    script = "import torch\nfrom stator._native import program\nprogram.Program()"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 1 and "not connected" in run.stderr


def test_a_dtype_without_a_number_runs_by_reference(native_runtime):
    b = ProgramBuilder("t")
    b.outputs([b.empty([2], [1], torch.quint8)])
    heard = []
    stop = events.subscribe(heard.append, {"fallback"})
    try:
        program = b.build()
    finally:
        stop()
    assert "torch.quint8" in program.why and [event.fields["reason"] for event in heard] == [
        "native_runtime_unavailable"
    ]


def test_description_names_each_step():
    b = ProgramBuilder("described")
    x, n = b.input_tensor(), b.input_int()
    scratch = b.empty([b.size(x, 0), 2], [2, 1], torch.float32, arena=True)
    b.kernel(*kernel("double"), [x, scratch], [b.integer(n) + 1], b.size(x, 0) * 2, 64, "model.py:3")
    [y] = b.extern(aten.mm.default, [x, scratch], {}, "model.py:4")
    [z] = b.extern(aten.add.Tensor, [y, y], {"alpha": 2}, "model.py:5")
    [total] = b.extern(aten.sum.default, [z])
    b.outputs([total, None, 3])
    program = build_native(b)
    assert (
        program.describe()
        == """\
program described(t0, i1)
    t2 = arena float32[size(t0, 0), 2] strides (2, 1) on cpu
    double(t0, t2, (i1 + 1)) over (size(t0, 0) * 2) by 64  # model.py:3
    t3 = aten.mm.default(t0, t2)  # direct; model.py:4
    release t2
    t4 = aten.add.Tensor(t3, t3, alpha=2)  # from Python: the stable interface carries no int for number; model.py:5
    release t3
    t5 = aten.sum.default(t4, dtype=None)  # by the dispatcher
    release t4
    return t5, None, 3"""
    )
    assert repr(program) == f"<program described: {len(program.plan.steps)} steps>"


def test_nothing_of_the_peer_is_imported():
    script = (
        "import sys, torch\nfrom stator.runtime import cache\nfrom stator.runtime.program import ProgramBuilder\n"
        "b = ProgramBuilder('t')\nx = b.input_tensor()\n"
        "b.outputs(b.extern(torch.ops.aten.add.Tensor, [x, 1]))\nb.build()(torch.ones(2))\n"
        "print([m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor', 'torch._functorch.aot'))])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
