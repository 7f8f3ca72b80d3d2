"""Training of whole models: forward, gradients and optimizer steps beside eager, and what is kept for the backward.

`python benchmarks/training.py` trains every architecture of `capture_models.py` for five steps twice, eagerly and
compiled with `aot_eager`: in train mode, dropout drawn under one seed a step, AdamW. Compared bit by bit are the
outputs and every parameter's gradient in the first step, then parameters, buffers and the state of the random
generator after each. Bytes kept for the backward are those of the memory autograd holds that is no parameter's,
for `aot_eager` (which keeps what eager keeps) and `aot_eager_decomp_partition` (min-cut), by eager's.

Results: benchmarks/results/training.json.      --names bert gpt2     only these
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import stator
from capture import tensors_in
from capture_models import MODELS, Model, prepared
from stator import events

RESULTS = Path(__file__).parent / "results" / "training.json"
STEPS = 5


def kept_bytes(run: Callable[[], Any], own: set[int]) -> int:
    """Bytes of the memory kept for the backward of `run()`, without memory in `own`."""
    storages: dict[int, int] = {}
    alive: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        alive.append(storage)
        storages[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return sum(size for key, size in storages.items() if key not in own)


class Twin:
    """A model under training."""

    def __init__(self, model: torch.nn.Module, inputs: dict[str, Any], backend: str | None = None) -> None:
        self.model = model
        self.inputs = inputs
        self.compiled = backend is not None
        if backend is not None:
            stator.compile(model, backend=backend)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def forward(self, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        told = torch.compiler.is_compiling if self.compiled else lambda: True
        with patch.object(torch.compiler, "is_compiling", told):
            return tensors_in(self.model(**self.inputs))

    def step(self, seed: int) -> dict[str, Any]:
        """One training step; what came of it, by name."""
        self.optimizer.zero_grad()
        outputs = self.forward(seed)
        trained = [value for value in outputs if value.requires_grad]
        loss = sum((value.float().square().mean() for value in trained), torch.zeros(()))
        loss.backward()
        gradients = {f"gradient of {name}": one.grad for name, one in self.model.named_parameters()}
        self.optimizer.step()
        state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        made = {f"output {place}": value.detach() for place, value in enumerate(outputs)}
        return {**made, **gradients, **state, "random state": torch.get_rng_state()}


def difference(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is not two
    if one.shape != two.shape or one.dtype is not two.dtype:
        return True
    return not torch.equal(torch.nan_to_num(one), torch.nan_to_num(two))


def trained(row: Model, backend: str) -> tuple[str, list[str]]:
    """How training with a backend compares with eager, and why graphs ended."""
    stator.reset()
    model, inputs = prepared(row, {})
    model.train()
    eager, ours = Twin(copy.deepcopy(model), inputs), Twin(model, inputs, backend)
    breaks: list[str] = []

    def note(event: Any) -> None:
        breaks.append(("" if event.kind == "graph_break" else "fallback: ") + event.fields["reason"])

    stop = events.subscribe(note, ["graph_break", "fallback"])
    try:
        for number in range(STEPS):
            expected, found = eager.step(number), ours.step(number)
            if expected.keys() != found.keys():
                return f"step {number}: other outputs or parameters", breaks
            wrong = [name for name in expected if difference(expected[name], found[name])]
            if wrong:
                return f"step {number}: {len(wrong)} of {len(expected)} differ, first {wrong[0]}", breaks
    except Exception as error:
        return f"failed: {type(error).__name__}: {str(error).splitlines()[0][:100]}", breaks
    finally:
        stop()
    return "equal", breaks


def memory(row: Model, backend: str | None) -> int:
    """Bytes kept for the backward of one forward in train mode."""
    stator.reset()
    model, inputs = prepared(row, {})
    model.train()
    own = {value.untyped_storage()._cdata for value in model.parameters()}
    twin = Twin(model, inputs, backend)
    for number in range(2):  # the same dropout rows as measured: what follows from them is compiled by then
        twin.forward(number)
    return kept_bytes(lambda: twin.forward(0), own)


def run_model(row: Model) -> dict[str, Any]:
    text, breaks = trained(row, "aot_eager")
    eager = memory(row, None)
    kept = {name: memory(row, name) / eager for name in ("aot_eager", "aot_eager_decomp_partition")}
    return {"result": text, "breaks": sorted(set(breaks)), "kept_eager": eager, "kept_over_eager": kept}


def save(table: dict[str, Any]) -> None:
    """Put these rows into the table; those of other models stay."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    order = [row.name for row in MODELS]
    rows = dict(sorted({**known, **table}.items(), key=lambda item: order.index(item[0])))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    table: dict[str, Any] = {}
    for row in MODELS:
        if options.names and row.name not in options.names:
            continue
        try:
            entry = table[row.name] = run_model(row)
        except Exception as error:
            print(f"{row.name:14} failed: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
            table[row.name] = {"result": f"failed: {type(error).__name__}", "breaks": [], "kept_over_eager": {}}
            continue
        entry["torch"] = torch.__version__
        kept = "  ".join(f"{ratio:.3f}" for ratio in entry["kept_over_eager"].values())
        print(f"{row.name:14} kept {kept}  {entry['result']}  {', '.join(entry['breaks'])}", flush=True)
        save(table)
    equal = sum(entry["result"] == "equal" for entry in table.values())
    within = sum(all(ratio <= 1 for ratio in entry["kept_over_eager"].values()) for entry in table.values())
    print(f"{equal} of {len(table)} train equal to eager, {within} keep at most what eager keeps")


if __name__ == "__main__":
    main()
