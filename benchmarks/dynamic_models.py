"""Models under sizes that vary: recompiles and results. `make table-dynamic`.

Every architecture of `capture_models.py` is called with batch and sequence length (or image batch) in {1, 2, 3, 7, 16,
33}, once under automatic dynamic shapes and once under `dynamic=True`; graphs that reach the backend after the first
call are counted, and results compared with eager's. The table goes to benchmarks/results/dynamic.json: a row is
{"automatic": [recompiles, text], "dynamic": [...]}, text "" where results are equal.

    --names bert gpt2     only these (merged into the table)          --limit 60   seconds a model may take
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import stator
from capture import tensors_in
from capture_models import MODELS, Model

RESULTS = Path(__file__).parent / "results" / "dynamic.json"
SIZES = ((2, 7), (3, 16), (1, 7), (7, 33), (16, 1), (33, 2), (1, 1), (2, 3))


def inputs_of(row: Model, batch: int, length: int) -> dict[str, Any]:
    """The model's inputs at a batch size, and a sequence length where it takes token ids."""
    made = {}
    for name, value in row.inputs().items():
        if not isinstance(value, torch.Tensor):
            made[name] = value
        elif value.dtype.is_floating_point:
            made[name] = torch.randn(batch, *value.shape[1:], generator=torch.Generator().manual_seed(1))
        elif name == "attention_mask":
            made[name] = torch.ones(batch, length, dtype=value.dtype)
        else:
            made[name] = torch.randint(3, 90, (batch, length), generator=torch.Generator().manual_seed(2))
    return made


def measured(row: Model, dynamic: bool | None) -> tuple[int | None, str]:
    """Graphs after the first call's, and what is wrong."""
    stator.reset()
    torch.manual_seed(0)
    model = row.make().eval()
    graphs: list[Any] = []

    def counting(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module)
        return module.forward

    first = None
    for batch, length in SIZES:
        if row.name == "whisper":
            length = min(length, 16)  # it has 20 positions
        inputs = inputs_of(row, batch, length)
        model._compiled_call_impl = None
        with torch.no_grad():
            expected = tensors_in(model(**inputs))
            stator.compile(model, backend=counting, dynamic=dynamic)
            found = tensors_in(model(**inputs))
        first = len(graphs) if first is None else first
        if len(found) != len(expected):
            return len(graphs) - first, f"{batch}x{length}: {len(found)} tensors, not {len(expected)}"
        for one, two in zip(expected, found, strict=True):
            if one.shape != two.shape or not torch.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True):
                return len(graphs) - first, f"{batch}x{length}: other results than eager"
    return len(graphs) - (first or 0), ""


def guarded(row: Model, dynamic: bool | None, limit: int) -> tuple[int | None, str]:
    def too_long(*_: Any) -> None:
        raise TimeoutError(f"more than {limit} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(limit)
    try:
        return measured(row, dynamic)
    except Exception as error:
        text = str(error).strip().splitlines()
        return None, f"{type(error).__name__}: {text[0][:120] if text else ''}"
    finally:
        signal.alarm(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--limit", type=int, default=120)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    stator.config.dynamic_profile = False
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    bad = 0
    for row in MODELS:
        if arguments.names and row.name not in arguments.names:
            continue
        start = time.perf_counter()
        answers = {"automatic": guarded(row, None, arguments.limit), "dynamic": guarded(row, True, arguments.limit)}
        table[row.name] = answers
        wrong = any(count is None or count > 1 or text for count, text in answers.values())
        bad += wrong
        print(f"{row.name:14} {answers} {time.perf_counter() - start:.0f} s{'  <--' if wrong else ''}", flush=True)
        RESULTS.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{bad} models need more than one recompile, or differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
