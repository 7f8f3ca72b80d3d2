"""Capture of whole models into one graph: which are captured, whether they agree with eager, and in what time.

`python benchmarks/capture.py` runs every architecture of `capture_models.py` in each of its variants (with and
without `use_cache`, `return_dict` both ways, eager and sdpa attention, eval and train) with `fullgraph=True` and the
`eager` backend, compares outputs bit by bit, and prints captured / broke: reason / differs. Capture time (minimum of
repeats, warm process) stands next to torch.compile's for the same call with the same backend, measured in a process of
its own: a process that has loaded one compiler is never timed for the other. Results: benchmarks/results/capture.json.

    --names bert gpt2     only these          --quick      one variant a model
    --repeats 3           timing              --no-peer    do not time torch.compile
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from capture_models import MODELS, Model, prepared, variants_of

RESULTS = Path(__file__).parent / "results" / "capture.json"
PEER = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
sys.path.insert(0, {folder!r})
import torch
from capture_models import MODELS, prepared
torch._dynamo.config.recompile_limit = 64
for name in {names!r}:
    row = next(model for model in MODELS if model.name == name)
    try:
        model, inputs = prepared(row, {{}})
        model.eval()
        best, text = None, "captured"
        for _ in range({repeats}):
            torch._dynamo.reset()
            compiled = torch.compile(model, backend="eager", fullgraph=True)
            start = time.perf_counter()
            with torch.no_grad():
                compiled(**inputs)
            spent = time.perf_counter() - start
            best = spent if best is None else min(best, spent)
    except Exception as error:
        best, text = None, "broke: " + type(error).__name__
    print(json.dumps([name, best, text]), flush=True)
"""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of an output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if hasattr(value, "to_tuple"):
        return tensors_in(value.to_tuple())
    if isinstance(value, dict):
        return [one for part in value.values() for one in tensors_in(part)]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in tensors_in(part)]
    names = getattr(value, "__dict__", {})
    return (
        [one for part in names.values() for one in tensors_in(part)] if "cache" in type(value).__name__.lower() else []
    )


def called(model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[Any, float]:
    """One call with fixed random numbers, and its time."""
    torch.manual_seed(5)
    start = time.perf_counter()
    with torch.no_grad():
        value = model(**inputs)
    return value, time.perf_counter() - start


def captured(model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[str, float]:
    """What came of capturing one call, and the time of the first call."""
    import stator
    from stator import events

    stator.reset()
    expected = tensors_in(called(model, inputs)[0])
    fallbacks: list[str] = []
    stop = events.subscribe(lambda event: fallbacks.append(event.fields["reason"]), ["fallback"])
    stator.compile(model, backend="eager", fullgraph=True)
    try:
        value, spent = called(model, inputs)
        again, _ = called(model, inputs)
    except stator.exc.Unsupported as error:
        return f"broke: {error.reason}", 0.0
    except Exception as error:
        return f"failed: {type(error).__name__}: {str(error).splitlines()[0][:80]}", 0.0
    finally:
        stop()
        model._compiled_call_impl = None
    if fallbacks:
        return f"fell back: {fallbacks[0]}", 0.0
    for found in (tensors_in(value), tensors_in(again)):
        if len(found) != len(expected):
            return f"differs: {len(found)} tensors, not {len(expected)}", spent
        for one, two in zip(found, expected, strict=True):
            if one.shape != two.shape or not torch.equal(torch.nan_to_num(one), torch.nan_to_num(two)):
                return "differs", spent
    return "captured", spent


def best_time(model: torch.nn.Module, inputs: dict[str, Any], repeats: int) -> float:
    """The least time of a first call."""
    times = []
    for _ in range(repeats):
        gc.collect()
        times.append(captured(model, inputs)[1])
    return min(times)


def run_model(row: Model, quick: bool, repeats: int) -> dict[str, Any]:
    """All variants of one architecture."""
    results: dict[str, str] = {}
    seconds = 0.0
    for label, settings in variants_of(row, quick):
        try:
            model, inputs = prepared(row, settings)
            model.train(settings.get("train", False))
            called(model, inputs)
        except Exception as error:
            results[label] = f"not in this version: {type(error).__name__}"
            continue
        results[label] = captured(model, inputs)[0]
        if not seconds and results[label] == "captured":
            seconds = best_time(model, inputs, repeats)
    peers = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
    return {"results": results, "seconds": seconds, "imported": peers}


def peer_times(names: list[str], repeats: int) -> dict[str, tuple[float | None, str]]:
    """torch.compile's front end on the same models."""
    code = PEER.format(folder=str(Path(__file__).parent), names=names, repeats=repeats)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("[")]
    return {name: (seconds, text) for name, seconds, text in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows = [row for row in MODELS if not options.names or row.name in options.names]
    table: dict[str, Any] = {}
    for row in rows:
        table[row.name] = run_model(row, options.quick, options.repeats)
    peers = {} if options.no_peer else peer_times([row.name for row in rows], options.repeats)
    total = good = 0
    for name, entry in table.items():
        seconds, answer = peers.get(name, (None, "-"))
        entry["peer_seconds"], entry["peer"] = seconds, answer
        texts = entry["results"]
        usable = [text for text in texts.values() if not text.startswith("not in")]
        total += len(usable)
        good += sum(text == "captured" for text in usable)
        ratio = f"{entry['seconds'] / seconds:.2f}" if seconds and entry["seconds"] else "-"
        entry["ratio"] = ratio
        worst = "; ".join(f"{label}: {text}" for label, text in texts.items() if text != "captured") or "captured"
        print(f"{name:18} {entry['seconds'] * 1e3:7.1f} ms  {ratio:>5}  peer {answer:12} {worst}")
    print(f"{good} of {total} captured, equal to eager")
    if not options.names:
        RESULTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
