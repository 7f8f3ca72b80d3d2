"""What being watched costs: calls with logs and traces off and on, capture under a trace, a report of a real model.

Run by `make bench-observe`; writes benchmarks/results/observe.json. Contenders alternate in one process and the minimum
counts. Three questions, each with the bound it must keep:

- calls: a compiled call with nothing switched on, and with logs and a trace on. Hits report nothing, so both are equal.
- capture: a whole model captured with a trace on, over the same without (at most 1.10).
- report: a transformers model with 30 breaks and 10 recompiles; its page is under 3 MB and, where there is a
  Chromium, ready in under a second.
"""

from __future__ import annotations

import datetime
import gc
import io
import json
import linecache
import platform
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import stator
from stator.observe import logs, report, trace

RESULTS = Path(__file__).parent / "results" / "observe.json"
LAYERS = 30
RECOMPILES = 10


def minimum(contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The least each contender took, in turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            best[name] = min(best[name], run())
    return best


def watched(folder: Path, run: Callable[[], float]) -> Callable[[], float]:
    """The same with logs of breaks and recompiles and a trace on."""

    def watched_run() -> float:
        logs.set_logs("graph_breaks,recompiles", out=io.StringIO())
        trace.set_trace(folder)
        run()  # the file and its thread are made once for a process
        try:
            return run()
        finally:
            trace.set_trace(None)
            logs.set_logs()

    return watched_run


def calls(folder: Path) -> dict[str, float]:
    compiled = stator.compile(lambda x: x + 1, backend=lambda module, examples: lambda x: (x,))
    x = torch.ones(4)
    compiled(x)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(2000):
            compiled(x)
        return (time.perf_counter() - start) / 2000

    return minimum({"off": run, "on": watched(folder, run)}, 100)


def bert(layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}
    config = transformers.BertConfig(num_hidden_layers=layers, max_position_embeddings=64, **sizes)
    return transformers.BertModel(config).eval()


def capture(folder: Path) -> dict[str, float]:
    model = bert(4)
    ids = torch.randint(0, 99, (2, 16))

    def run() -> float:
        stator.reset()
        compiled = stator.compile(bert_forward, backend="eager", fullgraph=True)
        start = time.perf_counter()
        with torch.no_grad():
            compiled(model, ids)
        return time.perf_counter() - start

    def again() -> float:
        run()  # as the watched one: the second of two in a row
        return run()

    return minimum({"off": again, "on": watched(folder, run)}, 25)


def bert_forward(model: Any, ids: torch.Tensor) -> Any:
    return model(ids).last_hidden_state


def broken_model() -> Callable[..., Any]:
    """A BERT whose layers are called one by one, with a value read behind each; the end depends on a word."""
    lines = ["def forward(model, ids, ending):", "    h = model.embeddings(ids)"]
    for layer in range(LAYERS):
        lines += [f"    h = model.encoder.layer[{layer}](h)", "    if h.abs().max().item() > 1e6:", "        h = h / 2"]
    lines += ["    return h.mean() if ending == 'mean' else h.sum() * len(ending)", ""]
    name = str(Path(tempfile.gettempdir()) / "broken_model.py")
    Path(name).write_text("\n".join(lines))
    linecache.checkcache(name)
    names: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join(lines), name, "exec"), names)
    return names["forward"]  # type: ignore[no-any-return]


def page(folder: Path) -> dict[str, Any]:
    stator.reset()
    model, ids = bert(LAYERS), torch.randint(0, 99, (2, 16))
    compiled = stator.compile(broken_model())
    trace.set_trace(folder)
    with torch.no_grad(), stator.config.patch(recompile_limit=64):
        for number in range(RECOMPILES + 1):
            compiled(model, ids, "mean" + "x" * number)
    trace.set_trace(None)
    sessions = report.load(folder)
    written = report.write(folder / "report.html", sessions)
    row: dict[str, Any] = {
        "breaks": sum(len(session.breaks) for session in sessions),
        "recompiles": sum(len(session.recompiles) for session in sessions),
        "bytes": written.stat().st_size,
    }
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is not None:
        row["milliseconds to ready"] = min(ready(chromium, written) for _ in range(3))
    return row


def ready(chromium: str, written: Path) -> int:
    """What the page's own clock said when it was ready."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={profile}", "--dump-dom", f"file://{written}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-ready="(\d+)"', done.stdout)
    assert found is not None, "the page never said it was ready"
    return int(found[1])


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "machine": {
            "machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__,
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
    }  # fmt: skip
    for name, measure in (("calls", calls), ("capture", capture), ("report", page)):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(Path(folder))
        gc.collect()
    off, on = found["calls"]["off"], found["calls"]["on"]
    print(f"a call: {off * 1e9:.0f} ns with nothing on, {on * 1e9:.0f} ns with logs and a trace on")
    off, on = found["capture"]["off"], found["capture"]["on"]
    print(
        f"capture of a 4-layer BERT: {off * 1e3:.1f} ms, with a trace {on * 1e3:.1f} ms ({on / off:.2f} x, limit 1.10)"
    )
    print("report of a 30-layer BERT:", found["report"], "(at most 3,000,000 bytes, under 1000 ms)")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
