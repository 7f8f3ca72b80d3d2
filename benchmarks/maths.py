"""Accuracy and speed of every maths function of generated CPU code: `make sweep-maths` and `make bench-maths`.

`sweep` tries float functions on every `--step`-th bit pattern (1 is all of them) and double ones on random numbers,
times each form beside eager, and writes docs/maths-accuracy.md and src/stator/emit/cpu/math_measured.py. `bench` only
times, and writes benchmarks/results/maths.json. Both run on one thread and take the minimum of alternating repeats.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from llvmlite import ir

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "emit_math"))

import cases  # noqa: E402
import harness  # noqa: E402

from stator.emit.cpu import math  # noqa: E402
from stator.emit.cpu.math_calls import Implementation  # noqa: E402

CHUNK = 2**17
ELEMENTS = 2**14
KINDS = {"float": np.float32, "double": np.float64}


def forms() -> list[tuple[str, str, str]]:
    """(name, precision, style) of everything there is; styles that share a form are listed once, by the first."""
    found = []
    for name, row in (math.UNARY | math.BINARY).items():
        for precision in KINDS:
            double = precision == "double"
            if row.supports(double):
                styles = ("fast", "eager") if double else ("fast", "eager", "half")
                found += [(name, precision, style) for style in styles]
    return found


def form_key(name: str, precision: str, style: str) -> Implementation:
    row = (math.UNARY | math.BINARY)[name]
    return row.implementation(precision == "double", style)


def chunk_error(found: torch.Tensor, exact: torch.Tensor) -> tuple[float, int]:
    """The largest error in units of the last place of float, and where."""
    spacing = (exact.view(torch.int64) & 0x7FF0000000000000).view(torch.float64).clamp_(min=2.0**-126).mul_(2.0**-23)
    error = (found.double() - exact).abs_().div_(spacing)
    worst = error.max()
    if not torch.isfinite(worst):
        rounded = exact.float()
        right = (found == rounded) | (found.isnan() & rounded.isnan())
        error = torch.where(right & ~torch.isfinite(rounded), 0.0, error)
        error = torch.where(error.isnan(), torch.inf, error)
        worst = error.max()
    return float(worst), int(error.argmax())


def sweep_float(name: str, style: str, step: int) -> tuple[float, float]:
    """The largest error over bit patterns, and the argument it was found at."""
    run = harness.function(name, False, style)
    reference = cases.reference(name, np.float64)
    largest, where = 0.0, 0.0
    for start in range(0, 2**32, CHUNK * step):
        x = cases.whole(cases.trusted(name, cases.bit_patterns(step, start, min(start + CHUNK * step, 2**32))))
        if not x.size:
            continue
        exact = np.ascontiguousarray(reference(x.astype(np.float64)))
        found = run(x)
        if name in cases.AGAINST_ARGUMENT:
            unit = np.spacing(np.abs(x)).astype(np.float64)
            errors = np.where(np.isfinite(exact), np.abs(found - exact) / unit, 0)
            worst, place = float(errors.max()), int(errors.argmax())
        else:
            worst, place = chunk_error(torch.from_numpy(found), torch.from_numpy(exact))
        if worst > largest:
            largest, where = worst, float(x[place])
    return largest, where


def sweep_double(name: str, style: str) -> tuple[float, float]:
    slow = name in cases.SPECIAL_FUNCTIONS or name == "gelu"
    x = cases.doubles(name, 4000 if slow else 2**19)
    exact = cases.reference(name, np.longdouble)(x if slow else x.astype(np.longdouble))
    found = harness.function(name, True, style, 8)(x)
    if name in cases.AGAINST_ARGUMENT:
        errors = np.abs(found - exact) / np.spacing(np.abs(x))
        errors = np.where(np.isfinite(exact), errors, 0)
    else:
        errors = harness.ulp_error(found, exact)
    place = int(errors.argmax())
    return float(errors[place]), float(x[place])


def sweep_pair(name: str, precision: str, style: str) -> tuple[float, float]:
    """Binary functions over random and special pairs; the exact ones are compared with torch's instead."""
    x, y = cases.pairs(KINDS[precision], 2**20)
    wide = np.longdouble if precision == "double" else np.float64
    found = harness.function(name, precision == "double", style)(x, y)
    if name in ("pow", "atan2", "hypot"):
        errors = harness.ulp_error(found, cases.reference(name, wide)(x.astype(wide), y.astype(wide)))
    else:
        expected = cases.eager(name)(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        errors = harness.ulp_error(found, expected.astype(wide))
    place = int(errors.argmax())
    return float(errors[place]), float(x[place])


def inputs(name: str, precision: str) -> list[np.ndarray]:
    low, high = cases.DOMAIN.get(name, (-5, 5))
    first = np.linspace(low, high, ELEMENTS).astype(KINDS[precision])
    if name in math.UNARY:
        return [first]
    return [np.abs(first) if name == "pow" else first, np.ascontiguousarray(first[::-1])]


def fastest(calls: list[Callable[[], object]], repeats: int, inner: int = 8) -> list[float]:
    """Nanoseconds an element of each call: the minimum over alternating repeats."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for index, call in enumerate(calls):
            begin = time.perf_counter()
            for _ in range(inner):
                call()
            best[index] = min(best[index], (time.perf_counter() - begin) / inner / ELEMENTS * 1e9)
    return best


def time_row(name: str, precision: str, styles: list[str], repeats: int) -> tuple[dict[str, float], float]:
    """Nanoseconds an element of each style, and of eager."""
    arrays = inputs(name, precision)
    out = np.empty_like(arrays[0])
    tensors = [torch.from_numpy(array) for array in arrays]
    operator, width = cases.eager(name), 16 if precision == "float" else 8
    runs = [harness.function(name, precision == "double", style, width) for style in styles]
    calls: list[Callable[[], object]] = [run.bind(*arrays, out=out) for run in runs]
    result = operator(*tensors)
    eager_call: Callable[[], object] = lambda: operator(*tensors)  # noqa: E731
    if name not in cases.TORCH:
        eager_call = lambda: operator(*tensors, out=result)  # noqa: E731
    *times, eager = fastest([*calls, eager_call], repeats)
    return dict(zip(styles, times, strict=True)), eager


def floor_times(precision: str, repeats: int) -> tuple[float, float]:
    """Nanoseconds an element of a copy, and of one addition on top of it."""
    kind = ir.FloatType() if precision == "float" else ir.DoubleType()
    width = 16 if precision == "float" else 8
    x = np.linspace(-5, 5, ELEMENTS).astype(KINDS[precision])
    out = np.empty_like(x)

    def additions(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        parts = [value] * 8
        for _ in range(4):
            parts = [builder.fadd(part, value) for part in parts]
        total = parts[0]
        for part in parts[1:]:
            total = builder.fadd(total, part)
        return total

    copy = harness.loop(lambda builder, value: value, [kind], kind, width)
    added = harness.loop(additions, [kind], kind, width)
    base, loaded = fastest([copy.bind(x, out=out), added.bind(x, out=out)], repeats)
    return base, max((loaded - base) / 11, 1e-3)


def measure_times(repeats: int) -> dict[tuple[str, str, str], tuple[float, float, float]]:
    """(nanoseconds, eager's nanoseconds, additions) of every form."""
    result = {}
    floors = {precision: floor_times(precision, repeats) for precision in KINDS}
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, precision, style in forms():
        grouped.setdefault((name, precision), []).append(style)
    for (name, precision), styles in grouped.items():
        distinct = {form_key(name, precision, style): style for style in reversed(styles)}
        times, eager = time_row(name, precision, list(distinct.values()), repeats)
        base, addition = floors[precision]
        for style in styles:
            spent = times[distinct[form_key(name, precision, style)]]
            result[name, precision, style] = (spent, eager, max(1.0, round((spent - base) / addition, 1)))
    return result


def measure_errors(step: int) -> dict[tuple[str, str, str], tuple[float, float]]:
    result: dict[tuple[str, str, str], tuple[float, float]] = {}
    known: dict[tuple[str, str, Implementation], tuple[float, float]] = {}
    for name, precision, style in forms():
        key = (name, precision, form_key(name, precision, style))
        if key not in known:
            begin = time.perf_counter()
            if name in math.BINARY:
                known[key] = sweep_pair(name, precision, style)
            elif precision == "double":
                known[key] = sweep_double(name, style)
            else:
                # Our own polynomials are tried closely; a library's function or an instruction more thinly.
                ours = style == "fast" and form_key(name, precision, style).label == "polynomial"
                known[key] = sweep_float(name, style, step if ours else max(step, 257))
            error, where = known[key]
            spent = time.perf_counter() - begin
            print(f"{name:13} {precision:7} {style:6} {error:12.3f} ulp at {where:<14.8g} {spent:6.1f} s", flush=True)
        result[name, precision, style] = known[key]
    return result


PAGE = """# Accuracy and speed of the CPU maths

Written by `make sweep-maths`; do not edit. One row per function, precision and form.

- *form*: how it is computed; the style in bold is the default (see `stator.emit.cpu.math`).
- *largest error*: in units of the last place, against a reference of higher precision, and where it was found.
  float: {coverage}.
  double: random numbers of several kinds. Exact binary functions are compared with torch. For the GELUs an error counts
  in units of the argument's last place: they lose their negative tail to cancellation, in eager too.
- *eager's bits*: whether contiguous tensors give the very bits torch gives (numbers in whole vectors: for functions
  that eager takes from Sleef it computes the last `size % 32` elements with the C library, which may differ).
- *speed*: eager's time over this form's, one thread, {elements} elements in cache.

Measured on {machine}, torch {torch}.

| function | precision | style | form | largest error | at | eager's bits | ns/element | speed |
|---|---|---|---|---:|---:|---|---:|---:|
"""


def eager_bits(name: str, precision: str, style: str) -> str:
    if name in math.BINARY:
        arrays = cases.pairs(KINDS[precision], 2**16)
    else:
        arrays = (cases.whole(cases.singles(name, 65521).astype(KINDS[precision])),)
    expected = cases.eager(name)(*(torch.from_numpy(array) for array in arrays)).numpy()
    found = harness.function(name, precision == "double", style)(*arrays)
    same = ((found == expected) & (np.signbit(found) == np.signbit(expected))) | (np.isnan(found) & np.isnan(expected))
    return "yes" if same.all() else f"{same.mean() * 100:.1f} %"


def write_page(errors: dict, times: dict, step: int) -> None:
    coverage = "every bit pattern" if step == 1 else f"every {step}th bit pattern"
    page = PAGE.format(
        coverage=coverage + " (library forms and instructions every 257th at most)",
        elements=ELEMENTS,
        machine=f"{platform.machine()}, {math.host_target().bits}-bit vectors",
        torch=torch.__version__,
    )
    table = math.UNARY | math.BINARY
    for name, precision, style in forms():
        row, double = table[name], precision == "double"
        if style == "half":
            continue
        shared = form_key(name, precision, "fast") == form_key(name, precision, "eager")
        if shared and style == "eager":
            continue
        default = row.default_double if double else row.default
        label = "both" if shared else style
        label = f"**{label}**" if shared or default == style else label
        error, where = errors[name, precision, style]
        spent, eager, _ = times[name, precision, style]
        form = row.implementation(double, style).label
        shown = f"{error:.3f}" if error < 1e4 else "see notes"
        page += f"| {name} | {precision} | {label} | {form} | {shown} | {where:.7g} |"
        page += f" {eager_bits(name, precision, style)} | {spent:.3f} | {eager / spent:.2f} |\n"
    page += "\n## Notes\n\n" + "".join(f"- `{name}`: {row.note}\n" for name, row in table.items() if row.note)
    (ROOT / "docs" / "maths-accuracy.md").write_text(page)


def write_module(errors: dict, times: dict) -> None:
    path = ROOT / "src" / "stator" / "emit" / "cpu" / "math_measured.py"
    head = path.read_text().split("MEASURED:")[0]
    lines = [
        f'    ("{name}", "{precision}", "{style}"): Measure({errors[name, precision, style][0]:.3g}, '
        f"{times[name, precision, style][2]:g}),\n".replace("inf", 'float("inf")')
        for name, precision, style in forms()
    ]
    path.write_text(head + "MEASURED: dict[tuple[str, str, str], Measure] = {\n" + "".join(lines) + "}\n")


def print_times(times: dict) -> None:
    print(f"{'function':13} {'precision':9} {'style':6} {'ns':>7} {'eager':>7} {'speed':>6} {'additions':>9}")
    for (name, precision, style), (spent, eager, additions) in times.items():
        print(f"{name:13} {precision:9} {style:6} {spent:7.3f} {eager:7.3f} {eager / spent:6.2f} {additions:9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("sweep", "bench"))
    parser.add_argument("--step", type=int, default=17)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    times = measure_times(options.repeats)
    print_times(times)
    if options.action == "bench":
        rows = [{"name": n, "precision": p, "style": s, "ns": t[0], "eager_ns": t[1]} for (n, p, s), t in times.items()]
        results = ROOT / "benchmarks" / "results"
        results.mkdir(exist_ok=True)
        machine = {"machine": platform.machine(), "bits": math.host_target().bits, "torch": torch.__version__}
        (results / "maths.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
        return
    errors = measure_errors(options.step)
    write_page(errors, times, options.step)
    write_module(errors, times)


if __name__ == "__main__":
    main()
