"""Runs models under one compiler and prints, for each, what came of it: the child process of benchmarks/capture.py.

Contract. `capture_worker.py stator|torch JSON` reads `{"jobs": [[table, model, variant], ...], "backend": ...,
"repeats": n}` and prints one JSON list a job. Both compilers run through the same code, each in a process of its own: a
process that has loaded one compiler is never measured for the other. Times are processor time of the first call in a
warm process, so that a busy machine changes them little.

An answer is `captured` (one graph, equal to eager in outputs, gradients and buffers), `broke: reason` (with the number
of graphs when breaks are allowed, and whether the results are equal then), `raises as eager: error`, `differs: where`,
or `failed: error`. Models ask `torch.compiler.is_compiling()` and then take other ways, some of which round otherwise
or fail: what differs from eager is compared again with eager that is told it is being compiled.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import itertools
import json
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import transformers

import capture_models
import capture_zoo

MOST_SECONDS = 100
LEAST_TIMED = 3


@dataclasses.dataclass
class Outcome:
    """What one call left behind."""

    value: Any
    gradients: list[torch.Tensor | None]
    buffers: list[torch.Tensor]


def leaves(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Everything in an output that can be compared, with the way to it."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor) or value is None or type(value) in (int, float, bool, str, complex):
        yield path, value
        return
    if isinstance(value, (torch.dtype, torch.device)):
        yield path, str(value)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    yield f"{path}:type", type(value).__name__
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}", seen)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from leaves(part, f"{path}[{index}]", seen)
    elif type(value).__module__.startswith("transformers") and not isinstance(
        value, (torch.nn.Module, transformers.PreTrainedConfig)
    ):
        for name, part in vars(value).items():
            yield from leaves(part, f"{path}.{name}", seen)


def same_tensor(one: torch.Tensor, two: torch.Tensor, exact: bool) -> bool:
    """Equal in every bit, NaN for NaN; or close, for a backend that computes in another order."""
    if one.shape != two.shape or one.dtype != two.dtype or (one.stride() != two.stride() and exact):
        return False
    if exact or not one.is_floating_point():
        return bool(torch.equal(one, two)) or (
            bool(torch.equal(torch.isnan(one), torch.isnan(two)))
            and bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(two)))
        )
    return bool(torch.allclose(one.float(), two.float(), rtol=1e-3, atol=2e-4, equal_nan=True))


def difference(expected: Any, found: Any, exact: bool) -> str | None:
    """Where two outputs differ first."""
    for one, two in itertools.zip_longest(leaves(expected), leaves(found)):
        if one is None or two is None or one[0] != two[0]:
            return f"{(one or two)[0]} is {'missing' if two is None else 'there'}"
        if isinstance(one[1], torch.Tensor) != isinstance(two[1], torch.Tensor):
            return one[0]
        if isinstance(one[1], torch.Tensor):
            if not same_tensor(one[1].detach(), two[1].detach(), exact) or one[1].requires_grad != two[1].requires_grad:
                return one[0]
        elif one[1] != two[1] and not (one[1] != one[1] and two[1] != two[1]):
            return f"{one[0]}: {one[1]} became {two[1]}"
    return None


def compare(expected: Outcome, found: Outcome, exact: bool) -> str | None:
    where = difference(expected.value, found.value, exact)
    if where is not None:
        return f"output{where}"
    for name, one, two in (
        ("gradient", expected.gradients, found.gradients),
        ("buffer", expected.buffers, found.buffers),
    ):
        where = difference(one, two, exact)
        if where is not None:
            return name + where
    return None


def loss_of(value: Any) -> torch.Tensor | None:
    """A number that depends on every floating point output."""
    parts = [
        part.float().nan_to_num().clamp(-1e3, 1e3).pow(2).mean()
        for _, part in leaves(value)
        if isinstance(part, torch.Tensor) and part.is_floating_point() and part.requires_grad
    ]
    return sum(parts) if parts else None  # type: ignore[return-value]  # a sum of tensors


class Subject:
    """One model in one variant, called again and again from the same state."""

    def __init__(self, table: str, name: str, variant: str) -> None:
        self.model, self.inputs = make(table, name, variant)
        self.train = variant == "train"
        self.model.train(self.train)
        self.state = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.extra = {
            id(module): {key: value for key, value in vars(module).items() if type(value) in (int, float, bool)}
            for module in self.model.modules()
        }

    def call(self, function: Callable[..., Any]) -> tuple[Outcome, float]:
        with torch.no_grad():
            for key, value in self.model.state_dict().items():
                value.copy_(self.state[key])
        self.model.zero_grad(set_to_none=True)
        inputs = copy.deepcopy(self.inputs)
        for seed in (torch.manual_seed, random.seed, numpy.random.seed):
            seed(5)
        start = time.process_time()
        with torch.set_grad_enabled(self.train):
            value = function(**inputs)
        seconds = time.process_time() - start
        if self.train:
            loss = loss_of(value)
            if loss is not None:
                loss.backward()
        gradients = [one.grad for one in self.model.parameters()]
        return Outcome(value, gradients, [one.clone() for one in self.model.buffers()]), seconds


def make(table: str, name: str, variant: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model of a row of a table, and its inputs."""
    if table == "zoo":
        row = next(capture_zoo.candidates(name), None)
        if row is None:
            raise LookupError("no model of this configuration")
        return capture_zoo.built(row)
    known = next(row for row in capture_models.MODELS if row.name == name)
    return capture_models.prepared(known, capture_models.VARIANTS[variant])


class Compiler:
    """stator, or torch's own, behind the same few calls."""

    def __init__(self, name: str, backend: str) -> None:
        self.ours = name == "stator"
        self.backend = backend
        if self.ours:
            import stator

            self.package: Any = stator
        else:
            import torch._dynamo

            self.package = torch._dynamo
            torch._dynamo.config.recompile_limit = 64
        self.graphs = 0
        self.reasons: list[str] = []
        if self.ours:
            from stator import events

            events.subscribe(lambda event: self.reasons.append(event.fields["reason"]), {"fallback"})

    def _counting(self, graph: Any, examples: Any) -> Any:
        self.graphs += 1
        return graph

    def compiled(self, model: torch.nn.Module, fullgraph: bool) -> Callable[..., Any]:
        self.package.reset()
        self.graphs, self.reasons[:] = 0, []
        backend = self._counting if self.backend == "eager" else self.backend
        compile_model = self.package.compile if self.ours else torch.compile
        return compile_model(model, backend=backend, fullgraph=fullgraph)  # type: ignore[no-any-return]

    def guards(self, model: torch.nn.Module) -> int:
        """Checks a call makes when nothing is remembered: native instructions here, leaf guards and accessors there."""
        if self.ours:
            from stator.runtime.region import all_regions

            records = [row for region in all_regions() for place in region.places() for row in place.records]
            return sum(row.entry.program.instruction_count for row in records)
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        rows = _debug_get_cache_entry_list(type(model).forward)
        return sum(sum(counted(row.guard_manager.root)) for row in rows)

    def release(self, model: torch.nn.Module) -> None:
        if self.ours:
            model._compiled_call_impl = None


def counted(manager: Any) -> tuple[int, int]:
    """Leaf guards and accessors of torch's tree of guards."""
    leaf, steps = len(manager.get_leaf_guards()), 0
    if hasattr(manager, "get_key_value_managers"):
        children = [one for pair in manager.get_key_value_managers().values() for one in pair if one is not None]
    else:
        children = []
    children += manager.get_child_managers()
    for child in children:
        one, two = counted(child)
        leaf, steps = leaf + one, steps + two + 1
    return leaf, steps


def told_it_is_compiled(subject: Subject) -> Outcome | Exception:
    """Eager, of a program that is told it is being compiled: what it gives, or how it fails."""
    compiled, subject.model._compiled_call_impl = subject.model._compiled_call_impl, None
    torch.compiler._is_compiling_flag = True
    try:
        return subject.call(subject.model)[0]
    except Exception as error:
        return error
    finally:
        torch.compiler._is_compiling_flag = False
        subject.model._compiled_call_impl = compiled


def attempt(compiler: Compiler, subject: Subject, expected: Outcome, fullgraph: bool) -> tuple[str, float]:
    """What comes of compiling a subject and calling it twice, and the time of the first call."""
    exact = compiler.backend in ("eager", "aot_eager")
    seconds = 0.0
    try:
        function = compiler.compiled(subject.model, fullgraph)
        for turn in range(2):
            found, spent = subject.call(function)
            seconds = seconds or spent
            where = compare(expected, found, exact)
            if where is not None:
                other = told_it_is_compiled(subject)
                if isinstance(other, Exception) or compare(other, found, exact) is not None:
                    return f"differs: {where}"[:160] + (", when called again" if turn else ""), seconds
    except TimeoutError:
        raise
    except Exception as error:
        reason = getattr(error, "reason", None) if compiler.ours else type(error).__name__
        if type(error).__name__ == "Unsupported" and compiler.ours:
            return f"broke: {reason}", seconds
        if not compiler.ours and type(error).__module__.startswith("torch._dynamo"):
            return f"broke: {reason}", seconds
        other = told_it_is_compiled(subject)
        if type(other) is type(error) and str(other) == str(error):
            return f"raises as eager: {type(error).__name__}", 0.0
        return f"failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error) else ''}", 0.0
    finally:
        compiler.release(subject.model)
    if compiler.reasons and fullgraph:
        return f"fell back: {compiler.reasons[0]}", seconds
    return "captured", seconds


def measured(compiler: Compiler, subject: Subject, expected: Outcome, first: float, repeats: int) -> float:
    """The least time of a first call, in a warm process."""
    best = first
    for _ in range(repeats):
        gc.collect()
        answer, seconds = attempt(compiler, subject, expected, True)
        best = min(best, seconds) if answer == "captured" else best
    return best


def run(compiler: Compiler, table: str, name: str, variant: str, repeats: int) -> dict[str, Any]:
    """One job."""
    try:
        subject = Subject(table, name, variant)
        expected, _ = subject.call(subject.model)
        again, _ = subject.call(subject.model)
    except TimeoutError:
        raise
    except Exception as error:
        return {"answer": f"not built: {type(error).__name__}: {str(error).strip()[:100]}"}
    if compare(expected, again, True) is not None:
        return {"answer": "not built: eager differs from itself: " + str(compare(expected, again, True))}
    if variant == "train" and all(one is None for one in expected.gradients):
        expected.gradients = again.gradients
    answer, seconds = attempt(compiler, subject, expected, True)
    result: dict[str, Any] = {"answer": answer}
    if answer == "captured":
        if compiler.backend == "eager":
            result["guards"] = compiler.guards(subject.model)
            result["seconds"] = measured(compiler, subject, expected, seconds, repeats) if repeats else seconds
    elif answer.startswith("broke"):
        with_breaks, _ = attempt(compiler, subject, expected, False)
        result["with breaks"] = "equal" if with_breaks == "captured" else with_breaks
        result["graphs"] = compiler.graphs
        result["fallbacks"] = sorted(set(compiler.reasons))
    return result


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"over {MOST_SECONDS} s")


def main() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    settings = json.loads(sys.argv[2])
    compiler = Compiler(sys.argv[1], settings["backend"])
    signal.signal(signal.SIGALRM, _too_long)
    for table, name, variant in settings["jobs"]:
        signal.alarm(settings.get("most_seconds", MOST_SECONDS))
        result: dict[str, Any]
        try:
            with contextlib.redirect_stdout(sys.stderr):
                result = run(compiler, table, name, variant, settings["repeats"])
        except TimeoutError as error:
            result = {"answer": f"failed: {error}"}
        finally:
            signal.alarm(0)
        if compiler.ours and "torch._dynamo" in sys.modules:
            result["imported"] = True
        print(json.dumps([table, name, variant, result]), flush=True)


if __name__ == "__main__":
    main()
