"""Nothing of the compiler stator stands in for is loaded by compiling and running; imports point one way."""

import ast
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import sys
import torch
import stator

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.attend = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(8)
        self.convolve = torch.nn.Conv1d(8, 8, 3, padding=1)
        self.drop = torch.nn.Dropout(0.1)
        self.out = torch.nn.Linear(8, 10)

    def forward(self, tokens):
        x = self.embed(tokens)
        y, _ = self.attend(x, x, x, need_weights=False)
        x = self.norm(self.drop(x) + y)
        x = torch.nn.functional.gelu(self.convolve(x.transpose(1, 2)).transpose(1, 2))
        return self.out(x)

def loss_of(model, tokens):
    logits = model(tokens)
    if logits.sum() > 1e9:
        logits = logits * 2
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

model, tokens = Model(), torch.randint(0, 10, (2, 5))
compiled = stator.compile(loss_of, backend=BACKEND)
if TRAIN:
    for _ in range(2):
        model.zero_grad()
        compiled(model, tokens).backward()
        with torch.no_grad():  # an optimizer of torch.optim would import torch's compiler by itself
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
else:
    model.eval()
    with torch.no_grad():
        compiled(model, tokens)
        compiled(model, tokens[:, :4])
        expected = loss_of(model, tokens)
        torch.testing.assert_close(compiled(model, tokens), expected)
banned = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch._functorch.partitioners")
found = sorted(name for name in sys.modules if name.startswith(banned))
assert not found, found[:5]
"""


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "stator"])
def test_compiling_and_running_loads_nothing_of_torchs_compiler(backend, train):
    program = f"BACKEND, TRAIN = {backend!r}, {train}\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def checker():
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools" / "check_imports.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def complaints(checker, tmp_path, monkeypatch, file, text):
    monkeypatch.setattr(checker, "PACKAGE", tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    ast.parse(text)
    return list(checker.check(path, set()))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("capture/calls.py", "from stator.resume.layout import Layout\n"),
        ("capture/calls.py", "from stator import runtime\n"),
        ("capture/calls.py", "import stator.aot.tape\n"),
        ("config.py", "from stator import capture\n"),
        ("values/source.py", "from stator.values2 import world\n"),
        ("values/source.py", "from stator.values.world import World\n"),
        ("loops/ir.py", "from stator._native import core\n"),
        ("observe/logs.py", "from stator.capture import trace\n"),
        ("capture/calls.py", "def f():\n    import math\n"),
        ("capture/calls.py", "from . import frame\n"),
        ("capture/calls.py", "import torch._dynamo\n"),
        ("capture/calls.py", "from torch import _dynamo\n"),
        ("capture/calls.py", "from torch._inductor import config\n"),
        ("capture/calls.py", "import torch\ntorch._dynamo.reset()\n"),
        ("capture/calls.py", "import importlib\nimportlib.import_module('torch._functorch.aot_autograd')\n"),
        ("loops/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stator.lower import table\n"),
    ],
)
def test_the_checker_refuses(checker, tmp_path, monkeypatch, file, text):
    assert complaints(checker, tmp_path, monkeypatch, file, text)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("capture/calls.py", "from stator import config, events\nfrom stator._native import core\n"),
        ("resume/leave.py", "from stator.capture.frame import Frame\n"),
        ("api/backends.py", "import importlib\nimportlib.import_module('torch._dynamo.backends.registry')\n"),
        ("__main__.py", "import stator\nfrom stator.api import install\n"),
        ("lower/table.py", "from stator.loops.ir import Kernel\n"),
    ],
)
def test_the_checker_accepts(checker, tmp_path, monkeypatch, file, text):
    assert complaints(checker, tmp_path, monkeypatch, file, text) == []
