"""Every log of a real program: what each name of `STATOR_LOGS` prints while it compiles, breaks and compiles again."""

import io
import random
import re

import pytest
import torch

import stator
from stator import config
from stator.observe import logs


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 8)

    def forward(self, x, scale):
        y = torch.nn.functional.gelu(self.first(x)) * scale
        if y.sum().item() > 1e9:  # here: the break
            y = y * 2
        z = torch.softmax(self.second(y), -1)
        return (torch.sort(z).values * 2 + 1).sum(0)  # here: the sort


def line_of(mark):
    with open(__file__) as file:
        (number,) = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# here: {mark}")]
    return f"{logs.advice.short_path(__file__)}:{number}"


def program():
    stator.reset()
    compiled = stator.compile(Net())
    scale = random.random()  # a kernel this process does not have yet
    for rows in (3, 4):
        compiled(torch.randn(rows, 16), scale).sum().backward()


# name -> patterns its output must match; `{break}` and `{sort}` are lines of the program.
SAYS = {
    "graph_breaks": [r"\[\d+/0\] graph_breaks: {break} in forward: graph break: .* \[tensor_to_python\]\n    if y.sum"],
    "graph_code": [r"# File: \S+:\d+ in forward, code: y = torch", r'"f32\[3, 32\]" = torch.nn.functional.linear\('],
    "graph_sizes": [r"\(3, 16\)\n", r"\(s\d+, 16\), here \(4, 16\)\n"],
    "bytecode": [r"bytecode of Net.forward\n", r"LOAD_FAST +\d+ \(x\)", r"the residual program of"],
    "trace_source": [r"{break}: if y.sum\(\).item\(\) > 1e9:"],
    "trace_bytecode": [r"{break} trace_bytecode: LOAD_FAST y    stack \[\]\n"],
    "guards": [r"\d+ guards\n", r"is Parameter float32\[32, 16\] on cpu, requires_grad    # \S+:\d+ in forward\n"],
    "recompiles": [r"\[\d+/1\] recompiles: \S+:\d+ in forward: recompiled because .* was 3 and is 4\. .*mark_dynamic"],
    "recompiles_verbose": [r"entry 0: .* was float32\[3, 16\].*, is float32\[4, 16\]"],
    "dynamic": [r"symbolic: s\d+ = .*\.size\(0\)\n"],
    "aot_graphs": [r"forward graph \(\d+ operators\)", r"backward graph", r"torch.ops.aten.addmm.default\("],
    "aot_joint_graphs": [r"joint graph \(\d+ operators\)", r"tangent"],
    "output_code": [r"kernel kernel_\d+\(", r"aten.sort.default\(.*# \S+:\d+"],
    "kernel_code": [r"kernel kernel_\d+ for \S+:\d+", r"maximum of"],
    "schedule": [r"op\d+ = aten.addmm.default\("],
    "fusion": [r"fused buf\d+ and buf\d+", r"{sort}: not fused: aten.sort.default .* \[not_fused\]"],
    "perf_hints": [],  # whatever stays ATen's own for a reason that can be changed; `emit/` tests which
    "cache": [r"cache miss: objects [0-9a-f]+", r"cache store: objects"],
}


def test_every_name_is_here():
    assert list(SAYS) == list(logs.NAMES)


@pytest.mark.parametrize("name", SAYS)
def test_what_a_name_prints(name, tmp_path):
    out = io.StringIO()
    stator.set_logs(name, out=out)
    with config.patch(cache_dir=str(tmp_path)):
        program()
    stator.set_logs()
    text = out.getvalue()
    for pattern in SAYS[name]:
        for mark in ("break", "sort"):
            pattern = pattern.replace(f"{{{mark}}}", re.escape(line_of("the " + mark)))
        assert re.search(pattern, text), f"{pattern}\n{text[:3000]}"
    assert "stator/api" not in text and "stator/capture" not in text  # lines are the user's


def test_the_log_says_what_detail_adds():
    out = io.StringIO()
    stator.set_logs("+graph_breaks", out=out)
    program()
    stator.set_logs()
    assert "called from (innermost last):" in out.getvalue() and "call_module" not in out.getvalue()


def test_an_error_begins_with_the_users_frame():
    stator.reset()
    with pytest.raises(stator.exc.Unsupported) as caught:
        stator.compile(Net(), fullgraph=True)(torch.ones(3, 16), 0.5)
    assert re.match(rf'  File "{re.escape(__file__)}", line \d+, in forward\n    if y.sum', str(caught.value))
