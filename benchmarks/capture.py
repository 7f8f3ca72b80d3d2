"""Which models are captured whole, whether they agree with eager, in what time and with how many guards.

`python benchmarks/capture.py` runs every architecture of `capture_models.py` in each of its variants (with and without
`use_cache`, `return_dict` both ways, eager and sdpa attention, eval and train), and every other architecture of the
installed transformers (`capture_zoo.py`) in eval and train, with `fullgraph=True` and the `eager` backend, under stator
and under torch.compile, each in processes of its own (`capture_worker.py` says what an answer means). Rows are added to
benchmarks/results/models.json as they come, so that a run goes on where an earlier one ended; docs/models.md is written
from that file. Of architectures that stator captures, torch.compile is asked only for the named ones.

    --names bert gpt2     only these          --time         measure capture again (minimum of repeats), named ones
    --named               no zoo              --page         only write docs/models.md
    --seconds 500         stop after          --again        forget earlier rows of what is run
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "models.json"
PAGE = HERE.parent / "docs" / "models.md"
CHUNK = 40
Job = tuple[str, str, str]

HEAD = """\
# Models that are captured whole

Written by `make table-models` from benchmarks/results/models.json. Small random models of transformers, called with
`fullgraph=True, backend="eager"`. *Captured* means: one graph, and outputs, gradients and buffers equal to eager's in
every bit, twice; where a model asks whether it is compiled and then takes another way, eager takes that way too. What
breaks the graph names its reason, [explained here](reasons.md).

| model | variants | capture time, stator / torch.compile | checks of a call | stator | torch.compile |
|---|---|---|---|---|---|"""
NOTE = """\
Times: processor time of a first call in a warm process, minimum of repeats. Checks: native guard instructions here,
leaf guards and accessors there."""


def ask(compiler: str, jobs: list[Job], repeats: int, deadline: float) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Answers of a worker, as they come."""
    for start in range(0, len(jobs), CHUNK):
        settings = json.dumps({"jobs": jobs[start : start + CHUNK], "backend": "eager", "repeats": repeats})
        command = [sys.executable, str(HERE / "capture_worker.py"), compiler, settings]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                table, name, variant, result = json.loads(line)
                yield (table, name, variant), result
                if time.time() > deadline:
                    process.kill()
                    return


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """What there is to run."""
    sys.path.insert(0, str(HERE))
    import capture_models  # transformers takes seconds to import, and --page needs none of it
    import capture_zoo

    jobs: list[Job] = []
    for row in capture_models.MODELS:
        jobs += [("named", row.name, label) for label, _ in capture_models.variants_of(row, not row.named)]
    if not options.named:
        jobs += [("zoo", row.name, variant) for variant in ("eval", "train") for row in capture_zoo.candidates()]
    return [job for job in jobs if not options.names or job[1] in options.names]


def load() -> dict[str, dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}  # type: ignore[no-any-return]


def key_of(job: Job) -> str:
    return "/".join(job)


def run(options: argparse.Namespace) -> None:
    deadline = time.time() + options.seconds
    rows = load()
    jobs = jobs_of(options)
    if options.time:
        jobs = [job for job in jobs if job[0] == "named" and job[2] == "eval"]
    for compiler in ("stator", "torch"):
        wanted = [job for job in jobs if options.again or options.time or compiler not in rows.get(key_of(job), {})]
        if compiler == "torch":
            wanted = [job for job in wanted if job[0] == "named" or _asks(rows.get(key_of(job), {}))]
        for job, result in ask(compiler, wanted, 3 if options.time else 0, deadline):
            rows.setdefault(key_of(job), {})[compiler] = result
            if options.time:
                rows[key_of(job)][compiler]["seconds"] = round(result.get("seconds", 0.0), 4)
            print(key_of(job), compiler, result["answer"][:100], flush=True)
            RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=0) + "\n")


def _asks(row: dict[str, Any]) -> bool:
    """Whether the other compiler's answer says something: stator did not capture it whole."""
    answer = row.get("stator", {}).get("answer", "not built")
    return answer != "captured" and not answer.startswith("not built")


# The page


def kind_of(answer: str) -> str:
    return answer.partition(":")[0]


def worst(results: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """What the variants of a model gave, in few words."""
    texts = []
    for label, result in results:
        answer = result["answer"]
        if answer == "captured" or answer.startswith("not built"):
            continue
        more = f", {result['graphs']} graphs, results {result['with breaks']}" if "graphs" in result else ""
        texts.append(f"{label}: {answer}{more}")
    if not texts:
        return "captured"
    return texts[0] if len({text.partition(": ")[2] for text in texts}) == 1 and len(texts) > 1 else "; ".join(texts)


def named_rows(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    names = dict.fromkeys(key.split("/")[1] for key in rows if key.startswith("named/"))
    for name in sorted(names):
        variants = {key.split("/", 2)[2]: row for key, row in rows.items() if key.startswith(f"named/{name}/")}
        ours = [(label, row["stator"]) for label, row in variants.items() if "stator" in row]
        theirs = [(label, row["torch"]) for label, row in variants.items() if "torch" in row]
        usable = [one for _, one in ours if not one["answer"].startswith("not built")]
        good = sum(one["answer"] == "captured" for one in usable)
        measured = variants.get("eval", {})
        mine, peer = measured.get("stator", {}), measured.get("torch", {})
        times = guards = "-"
        if "seconds" in mine and "seconds" in peer:
            share = mine["seconds"] / peer["seconds"]
            times = f"{mine['seconds'] * 1e3:.0f} / {peer['seconds'] * 1e3:.0f} ms ({share:.3f})"
            guards = f"{mine['guards']} / {peer['guards']}"
        yield f"| {name} | {good} of {len(usable)} | {times} | {guards} | {worst(ours)} | {worst(theirs)} |"


def zoo_rows(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    for key, row in rows.items():
        table, name, variant = key.split("/", 2)
        if table == "zoo" and _asks(row):
            peer = worst([("", row["torch"])]).removeprefix(": ") if "torch" in row else "not asked"
            yield f"| {name} | {variant} | {worst([('', row['stator'])]).removeprefix(': ')} | {peer} |"


def page() -> str:
    rows = load()
    lines = [
        HEAD,
        *named_rows(rows),
        "",
        NOTE,
        "",
        "## Every other architecture",
        "",
    ]
    for variant in ("eval", "train"):
        found = [row["stator"]["answer"] for key, row in rows.items() if key.startswith("zoo/") and "stator" in row
                 and key.endswith(f"/{variant}")]  # fmt: skip
        built = [answer for answer in found if not answer.startswith("not built")]
        counts = Counter(map(kind_of, built))
        text = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        lines.append(f"- {variant}: {len(built)} built by rule and run ({text}); {len(found) - len(built)} not built.")
    note = "Those not captured whole (not asked: torch.compile has not been run on it):"
    lines += ["", note, "", "| model | variant | stator | torch.compile |", "|---|---|---|---|", *zoo_rows(rows), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*")
    for flag in ("named", "time", "page", "again"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    if not options.page:
        run(options)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
