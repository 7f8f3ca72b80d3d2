"""Compiled regions: what happens when no entry matches, from trace to published entry.

Contract. A `Region` is one use of `compile` on one code object with one set of options; a `Place` is a spot of it where
calls arrive (its entry, or a continuation behind a graph break), with a native table of entries. On a miss the place
traces the call, hands the graph to the backend, builds guards and residual program, publishes the entry, and runs it.
Equal functions (same code object, same options) share places, so equal modules compiled in a loop share entries.

What cannot be compiled runs eagerly, for a reason that is reported once: the recompile limit, a stance, an error
under `suppress_errors`, a frame that asked to be skipped.

Threads: a miss holds the table's lock while it compiles (re-entrant, for compiled code called while compiling); other
threads go on with published entries, and look again before they compile themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import linecache
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from stator import config, events
from stator._native import core
from stator.capture.ahead import Depth
from stator.capture.control import Break
from stator.capture.frame import Frame
from stator.capture.overrides import modes_set_aside
from stator.capture.plain_operators import as_plain
from stator.capture.trace import Ending, Trace, trace, trace_function
from stator.capture.tracer import Tracer
from stator.exc import (
    BackendCompilerFailed,
    ConstraintViolationError,
    FailOnRecompileLimitHit,
    InternalStatorError,
    RecompileError,
    StatorError,
    Unsupported,
)
from stator.guards import SizeProgram, compile_guards, drop_unwanted, weaken
from stator.guards.modes import read_modes
from stator.guards.reference import all_misses, explain_miss
from stator.reasons.wording import describe_break
from stator.resume.layout import FrameContext, Layout, frames_to_trace, states_to_run
from stator.resume.leave import Residual, residual_of
from stator.resume.state import prepare_chain
from stator.runtime import stance
from stator.runtime.uncompiled import CalleesCompiled
from stator.sizes import DynamicHistory, profile
from stator.sizes.lowering import lower_guards
from stator.tensors.abstract import AbstractTensor
from stator.tensors.engine import Uninitialised
from stator.values.source import ModesExpectation, SourceTree

_region_numbers = itertools.count()
# Traces that end so give no program: the original code runs, for this reason.
UNINITIALISED = object()  # in place of an entry: the call is what gives a lazy module its parameters
EAGER_ENDINGS = {Ending.SKIPPED: "skip_frame", Ending.RAISED: "program_raises"}


class Surroundings(NamedTuple):
    """What a program comes with beside its arguments."""

    modes: ModesExpectation
    functions: tuple[Any, ...]  # torch function modes


@contextlib.contextmanager
def surroundings() -> Iterator[Surroundings]:
    """The program's modes; those that would see torch functions are off meanwhile.

    What the default device is follows from the modes, which are guarded one by one.
    """
    with modes_set_aside() as functions:
        modes = dataclasses.replace(read_modes(), default_device=None, torch_function_modes=len(functions))
        yield Surroundings(modes, functions)


@dataclass(frozen=True, eq=False)
class Options:
    """What `compile` was asked for."""

    backend: Callable[..., Any]
    backend_name: str
    fullgraph: bool = False
    dynamic: Any = None
    recompile_limit: int | None = None
    guard_filter: Callable[..., Any] | None = None
    key: tuple[Any, ...] = ()


@dataclass
class EntryRecord:
    """What is remembered of an entry for explanations."""

    entry: Any
    tree: SourceTree
    text: str
    compile_id: events.CompileId
    break_reason: str = ""


class Place:
    """Where calls arrive: a function's entry, or a continuation."""

    def __init__(self, region: Region, name: str, number: int) -> None:
        self.region = region
        self.name = name
        self.number = number  # what events call it: a continuation is told apart from the function
        self.parent = events.current_compile_id()  # the entry that ends where this continuation begins
        self.table = core.EntryTable()
        self.records: list[EntryRecord] = []
        self.turned: list[str] = []  # sources that turned dynamic, not yet in the profile
        self.limit_reported = False
        self.looked = False  # the stance had the first call only looked at
        self.failed = False  # compiling failed under suppress_errors: it runs eagerly for good

    @functools.cached_property
    def history(self) -> DynamicHistory:
        """What was seen of sizes and numbers here; begins with what the profile knows of an earlier process."""
        return DynamicHistory(self.region.options.dynamic, profile.known_at_start(self.profile_key), self.turned.append)

    def forget_history(self) -> None:
        self.__dict__.pop("history", None)

    # A miss

    def on_miss(self, dispatcher: Any, function: Any, values: tuple[Any, ...]) -> Any:
        """No entry matches: compile one if that is allowed, and run the call."""
        if torch._C._len_torch_dispatch_stack():
            events.emit("fallback", reason="dispatch_mode", detail=self.name)
            return self.run_eagerly(function, values)
        allowed = stance.decide(bool(self.records) or self.looked)
        if allowed is stance.Answer.LOOK:
            self._look(function, values)
        if allowed is stance.Answer.EAGER or allowed is stance.Answer.LOOK or self.failed:
            return self.run_eagerly(function, values)
        if allowed is stance.Answer.FAIL:
            raise RecompileError(self._explain(function, values, "a recompile was needed, and the stance forbids it"))
        known = len(self.records)
        with self.table.lock:
            if len(self.records) != known:
                return dispatcher_call(dispatcher, function, values)
            if self._at_limit(function, values):
                return self.run_eagerly(function, values)
            number = len(self.records)
            with events.compiling(events.CompileId(self.number, number)):
                if self.records:
                    self._report_recompile(function, values)
                entry = self._compile_guarded(function, values)
        if entry is UNINITIALISED:
            return self.run_original(function, values)
        if entry is None:
            return self.run_eagerly(function, values)
        fetched = entry.program.check(function, values)
        if fetched is None:
            events.emit("fallback", reason="guards_fail_at_birth", detail=self.name)
            if config.strict:
                raise StatorError(self._explain(function, values, "a new entry's guards do not hold"))
            return self.run_eagerly(function, values)
        # Called on by the dispatcher, so that no frame of stator's stands in a traceback.
        if entry.passes_function:
            return core.TailCall(entry.residual, function, *values, *fetched)
        return core.TailCall(entry.residual, *values, *fetched)

    def _look(self, function: Any, values: tuple[Any, ...]) -> None:
        """Learn the sizes and numbers of a call that is not compiled, for the next one."""
        self.looked = True
        try:
            with surroundings() as around:
                self.trace(function, values, {}, around).tracer.release()
        except (StatorError, Uninitialised):
            pass  # it is reported when it is compiled

    def _at_limit(self, function: Any, values: tuple[Any, ...]) -> bool:
        limit = self.region.options.recompile_limit or config.recompile_limit
        if len(self.records) < limit and self.region.entries_in_all() < config.accumulated_recompile_limit:
            return False
        if config.fail_on_recompile_limit_hit or self.region.options.fullgraph:
            raise FailOnRecompileLimitHit(self._explain(function, values, f"recompile limit of {limit} reached"))
        if not self.limit_reported:
            self.limit_reported = True
            text = self._explain(
                function,
                values,
                f"recompile limit of {limit} reached: calls that match none of its entries run eagerly from now on, "
                f"what they call stays compiled. {self._unstable(function, values)}",
            )
            events.emit("fallback", reason="recompile_limit", detail=text)
            stance.warn(text)
        return True

    def misses(self, function: Any, values: tuple[Any, ...]) -> list[Any]:
        """Why each entry does not match, the nearest (latest) first."""
        found = [explain_miss(record.tree, function, values) for record in reversed(self.records)]
        return [miss for miss in found if miss is not None]

    def _unstable(self, function: Any, values: tuple[Any, ...]) -> str:
        """Which value was another one for most entries, and what it was each time."""
        by_source: dict[str, list[Any]] = {}
        for record in self.records:
            for miss in all_misses(record.tree, function, values):
                by_source.setdefault(miss.source, []).append(miss)
        if not by_source:
            return "No single value tells the entries apart"
        source, misses = max(by_source.items(), key=lambda row: len(row[1]))
        seen = ", ".join(dict.fromkeys(str(miss.expected) for miss in misses))
        where = next((f" ({miss.location})" for miss in misses if miss.location), "")
        return f"The value that keeps changing is {source}{where}: it was {seen}, and is {misses[-1].actual} now"

    def _explain(self, function: Any, values: tuple[Any, ...], text: str) -> str:
        misses = self.misses(function, values)
        reasons = "".join(f"\n  {miss}" for miss in misses[:8])
        return f"{self.name}: {text}.{reasons}"

    def _report_recompile(self, function: Any, values: tuple[Any, ...]) -> None:
        if not events.wanted("recompile"):
            return
        failing = [(record, all_misses(record.tree, function, values)) for record in reversed(self.records)]
        failing.sort(key=lambda row: len(row[1]))
        misses = [
            events.Miss(record.compile_id.entry, miss.source, miss.kind, miss.expected, miss.actual, miss.location)
            for record, (miss, *_) in (row for row in failing if row[1])
        ]
        nearest = misses[0] if misses else None
        events.emit(
            "recompile",
            location=(nearest and nearest.location) or self.location(),
            name=self.name,
            misses=misses,
            old="" if nearest is None else nearest.expected,
            new="" if nearest is None else nearest.actual,
            user_line=None if nearest is None else nearest.location,
        )

    # Compiling

    def _defect(self, error: Exception) -> InternalStatorError:
        """An error of stator's own, told with the user's line and what to do about it."""
        where = self.location()
        made = InternalStatorError(
            f"stator failed while compiling {self.name}{f' ({where})' if where else ''}:\n"
            f"{type(error).__name__}: {error}\n"
            "This is a defect of stator, not of the program. To go on, set stator.config.suppress_errors = True or put "
            "stator.disable on the function; `stator ablate script.py` makes a report of it.",
            reason="internal_error",
        )
        made.__cause__ = error
        return made

    def _compile_guarded(self, function: Any, values: tuple[Any, ...]) -> Any:
        """Compile; an error of stator's or the backend's is the program's business only if the settings say so."""
        start = time.perf_counter()
        try:
            return self._compile(function, values)
        except Uninitialised:
            events.emit("fallback", reason="lazy_module", detail=self.name)
            self._report_end(start, {}, None)
            return UNINITIALISED
        except Exception as error:
            self._report_end(start, {}, None, error)
            if not isinstance(error, StatorError):
                error = self._defect(error)
            if not config.suppress_errors or self.region.options.fullgraph or isinstance(error, Unsupported):
                raise error from error.__cause__
            self.failed = True
            events.emit("fallback", reason="error_suppressed", detail=f"{self.name}: {error}")
            return None

    def _compile(self, function: Any, values: tuple[Any, ...]) -> Any:
        with surroundings() as around:
            return self._compile_in(around, function, values)

    def _compile_in(self, around: Surroundings, function: Any, values: tuple[Any, ...]) -> Any:
        number = len(self.records)
        start = time.perf_counter()
        self._report_start("recompile" if number else "continuation" if self.parent else "first_call")
        known: dict[int, Break] = {}
        while True:
            result = self.trace(function, values, known, around)
            try:
                return self._compile_trace(result, function, values, known, start)
            except Break as broke:
                # Let plain Python make what cannot be rebuilt.
                assert broke.born is not None
                known[broke.born] = broke
            finally:
                result.tracer.release()

    def _compile_trace(
        self, result: Trace, function: Any, values: tuple[Any, ...], known: dict[int, Break], start: float
    ) -> Any:
        """The entry of a finished trace. A `Break` where another trace would do better; it says at which step."""
        stages = {"capture": time.perf_counter() - start}
        if result.ending in EAGER_ENDINGS:
            self._report_end(start, stages, result)
            return self._publish_eager(result, EAGER_ENDINGS[result.ending])
        try:
            residual = residual_of(result, len(values), self.region.continuation, self.region.callees_compiled)
        except Break as broke:
            if broke.born is not None and broke.born not in known:
                raise
            # What is live at the break (or returned) cannot be rebuilt: the whole frame runs eagerly.
            result.broke = broke
            if broke.reason != "program_raises":
                self._report_break(result)
            self._report_end(start, stages, result)
            return self._publish_eager(result, broke.reason)
        stages = {"capture": time.perf_counter() - start}
        events.emit("stage", name="capture", seconds=stages["capture"])
        if result.broke is not None:
            self._report_break(result)
        entry = self._finish(result, residual, stages, function, values)
        if self.turned:
            profile.remember(self.profile_key, self.turned)
            self.turned.clear()
        self._report_end(start, stages, result)
        return entry

    def _report_start(self, cause: str) -> None:
        if not events.wanted("compile_start"):
            return
        where = self.location()
        place = {"file": "" if where is None else where.file, "line": 0 if where is None else where.line}
        parent = {} if self.parent is None else {"parent": self.parent}
        events.emit("compile_start", location=where, name=self.name, cause=cause, **place, **parent)

    def _report_end(
        self, start: float, stages: dict[str, float], result: Trace | None, error: Exception | None = None
    ) -> None:
        if not events.wanted("compile_end"):
            return
        graph = None if result is None else result.tracer.graph
        guards = 0 if result is None else sum(1 for _ in result.tracer.tree.guards())
        failure = {}
        if error is not None:
            failure = {"error": f"{type(error).__name__}: {error}", "reason": getattr(error, "reason", "")}
        events.emit(
            "compile_end",
            location=self.location(),
            ok=error is None,
            seconds=time.perf_counter() - start,
            stages=stages,
            graphs=1 if graph is not None and graph.operations else 0,
            ops=0 if graph is None else graph.operations,
            guards=guards,
            **failure,
        )

    def _report_break(self, result: Trace) -> None:
        broke = result.broke
        assert broke is not None
        tracer = result.tracer
        text = describe_break(broke.reason, broke.detail, tracer.stack_trace())
        refused = self.region.options.fullgraph or tracer.error_on_break
        if refused and broke.reason not in ("operator_error", "program_raises"):
            raise Unsupported(text, reason=broke.reason)
        where = tracer.location()
        events.emit(
            "graph_break",
            location=where,
            reason=broke.reason,
            detail=broke.detail,
            stack=[
                events.Location(row.code.co_filename, row.line(), row.code.co_name)
                for row in tracer.frames
                if not events.is_own(row.code.co_filename)
            ],
            line="" if where is None else linecache.getline(where.file, where.line).strip(),
        )

    def _finish(
        self, result: Trace, residual: Residual, stages: dict[str, float], called: Any, values: tuple[Any, ...]
    ) -> Any:
        tracer = result.tracer
        graph = None
        if tracer.graph.operations:
            start = time.perf_counter()
            with torch._C.DisableTorchFunctionSubclass():  # what subclasses override is in the graph
                graph = self._call_backend(tracer, residual.outputs)
            stages["backend"] = time.perf_counter() - start
        start = time.perf_counter()
        self._guard_sizes(tracer)
        function, text = residual.finish(graph)
        events.emit("bytecode", title=f"the residual program of {self.name}", code=function.__code__)
        if self.region.options.guard_filter is not None:
            drop_unwanted(tracer.tree, self.region.options.guard_filter, called, values)
        program = compile_guards(tracer.tree, residual.builder.fetches)
        stages["guards"] = time.perf_counter() - start
        entry = core.Entry(program, function)
        reason = "" if result.broke is None else result.broke.reason
        self._publish(entry, tracer.tree, text, reason)
        return entry

    @staticmethod
    def _guard_sizes(tracer: Tracer) -> None:
        """What the trace decided about symbolic sizes becomes guards."""
        if tracer.generaliser is None or not tracer.generaliser.used:
            return
        context = tracer.generaliser.context
        lowered = lower_guards(context)
        for row in lowered.programs:
            tracer.tree.state().guard("SIZES", SizeProgram(row.operations), row.location)
        for pin in lowered.pinned:
            pin.source.guard("EQUALS", pin.value, pin.location)

    def _call_backend(self, tracer: Tracer, outputs: list[torch.fx.Node]) -> Any:
        builder = tracer.graph
        builder.graph.output(tuple(outputs))
        module = torch.fx.GraphModule(builder.attributes, builder.graph)
        examples = [getattr(value, "real", value) for _, value in builder.inputs]
        names = (node.name for node in builder.graph.nodes if node.op == "placeholder")
        sizes = {name: tuple(getattr(one, "shape", ())) for name, one in zip(names, examples, strict=False)}
        events.emit("graph", graph_module=module, sizes=sizes)
        backend = stance.forced_backend() or self.region.options.backend
        try:
            compiled = backend(module, examples)
        except Unsupported as refusal:
            # One of stator's own stages cannot take this graph: it runs as it was captured, operation by operation.
            if self.region.options.fullgraph or config.strict or isinstance(refusal, ConstraintViolationError):
                raise
            detail = refusal.detail or str(refusal)
            events.emit("fallback", reason=refusal.reason, detail=detail, location=self.location())
            return as_plain(module).forward
        except StatorError:
            raise
        except Exception as error:
            raise BackendCompilerFailed(backend, error) from error
        finally:
            for _, value in builder.inputs:
                if type(value) is AbstractTensor:
                    value.real = None  # the graph outlives the call, and must not keep its tensors
        if not callable(compiled):
            kind = type(compiled).__name__
            raise BackendCompilerFailed(backend, TypeError(f"it returned a {kind}, which is not callable"))
        return compiled

    def _publish(self, entry: Any, tree: SourceTree, text: str, reason: str) -> None:
        compile_id = events.current_compile_id() or events.CompileId(self.number, len(self.records))
        self.records.append(EntryRecord(entry, tree, text, compile_id, reason))
        self.table.insert(entry)
        events.emit("guards", tree=tree)
        events.emit("residual", text=text)
        weaken(tree)

    def _publish_eager(self, result: Trace, reason: str) -> Any:
        """An entry that runs the original code, for calls that would end the same way."""
        if reason != "program_raises":  # an exception on its way through real frames is nobody's failure
            events.emit("fallback", reason=reason, detail=self.name)
        tree = result.tracer.tree
        program = compile_guards(tree, ())
        entry = core.Entry(program, self.eager_residual(), True)
        self._publish(entry, tree, f"the original code runs ({reason})", reason)
        return entry

    def prepare(self, tracer: Tracer) -> None:
        """What was learnt at this place, for a trace."""
        tracer.generalise_by(self.history)

    # Provided by the kinds of place

    profile_key: Any

    def trace(self, function: Any, values: tuple[Any, ...], known: dict[int, Break], around: Surroundings) -> Trace:
        raise NotImplementedError

    def run_eagerly(self, function: Any, values: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def run_original(self, function: Any, values: tuple[Any, ...]) -> Any:
        """Run without compiling anything, what is called included, if that can be had."""
        return self.run_eagerly(function, values)

    def eager_residual(self) -> Callable[..., Any]:
        raise NotImplementedError

    def location(self) -> events.Location | None:
        raise NotImplementedError


def dispatcher_call(dispatcher: Any, function: Any, values: tuple[Any, ...]) -> Any:
    """Call again from the start, now that another thread may have compiled what is needed."""
    if function is None:
        return core.TailCall(dispatcher, *values)
    return call_bound(dispatcher, function.__code__, values)


def call_bound(target: Callable[..., Any], code: types.CodeType, values: Sequence[Any]) -> Any:
    """Have the dispatcher call with bound locals, as they stand in a frame of `code`."""
    count = code.co_argcount
    keyword_only = code.co_kwonlyargcount
    args = list(values[:count])
    names = code.co_varnames[count : count + keyword_only]
    kwargs = dict(zip(names, values[count : count + keyword_only], strict=True))
    position = count + keyword_only
    if code.co_flags & 4:
        args += values[position]
        position += 1
    if code.co_flags & 8:
        kwargs.update(values[position])
    return core.TailCall(functools.partial(target, *args, **kwargs))


class FunctionPlace(Place):
    """The entry of a function."""

    def __init__(self, region: Region, code: types.CodeType) -> None:
        super().__init__(region, code.co_qualname, region.number)
        self.code = weakref.ref(code)
        self.where = events.Location(code.co_filename, code.co_firstlineno, code.co_name)

    @functools.cached_property
    def profile_key(self) -> str:
        code = self.code()
        assert code is not None, "asked for while a function of it is compiled"
        return profile.key_of(code)

    def trace(self, function: Any, values: tuple[Any, ...], known: dict[int, Break], around: Surroundings) -> Trace:
        return trace_function(function, values, around.modes, around.functions, self.prepare, known)

    def run_eagerly(self, function: Any, values: tuple[Any, ...]) -> Any:
        if stance.current() == "default":
            return call_bound(self.region.callees_compiled(function), function.__code__, values)
        return call_bound(function, function.__code__, values)

    def run_original(self, function: Any, values: tuple[Any, ...]) -> Any:
        return call_bound(function, function.__code__, values)

    def eager_residual(self) -> Callable[..., Any]:
        def original(function: Any, *values: Any) -> Any:
            return call_bound(self.region.callees_compiled(function), function.__code__, values)

        return original

    def location(self) -> events.Location | None:
        return self.where


class ContinuationPlace(Place):
    """The rest of a program behind a graph break."""

    def __init__(self, region: Region, layout: Layout, contexts: tuple[FrameContext, ...]) -> None:
        super().__init__(region, str(layout), next(_region_numbers))
        self.layout = layout
        self.contexts = contexts
        self.depths: dict[int, Depth] = {}
        self.callable = core.Continuation(self.table, self.on_miss, layout.names())

    @functools.cached_property
    def profile_key(self) -> str:
        rows = self.layout.frames
        return profile.key_of(rows[0].code, ";".join(f"{row.code.co_qualname}:{row.pc}" for row in rows))

    def trace(self, function: Any, values: tuple[Any, ...], known: dict[int, Break], around: Surroundings) -> Trace:
        def start() -> Tracer:
            tree = SourceTree(self.layout.names())
            tree.state().guard("MODES", around.modes)
            return Tracer(tree)

        def make_frames(tracer: Tracer) -> list[Frame]:
            return frames_to_trace(self.layout, self.contexts, values, tracer, tracer.tree)

        return trace(start, make_frames, around.functions, self.prepare, known)

    def run_eagerly(self, function: Any, values: tuple[Any, ...]) -> Any:
        if self.layout.raised:
            states = states_to_run(self.layout, self.contexts, values, before=False)
            return core.TailCall(prepare_chain(states, exception=values[-1]))
        return core.TailCall(prepare_chain(states_to_run(self.layout, self.contexts, values, before=True)))

    def eager_residual(self) -> Callable[..., Any]:
        def original(_: Any, *values: Any) -> Any:
            return self.run_eagerly(None, values)

        return original

    def location(self) -> events.Location | None:
        row = self.layout.frames[-1]
        frame = Frame(row.code, {}, {}, ())
        frame.current = min(row.pc, len(frame.decoded.instructions) - 1)
        return events.Location(row.code.co_filename, frame.line(), row.code.co_name)


class Region:
    """A code object compiled with one set of options, and its continuations.

    It is kept for as long as the code object lives, so nothing it holds may keep the code object alive.
    """

    def __init__(self, code: types.CodeType, options: Options) -> None:
        self.options = options
        self.number = next(_region_numbers)
        self.continuations: dict[Any, ContinuationPlace] = {}
        self.code_identity = id(code)
        self.place = FunctionPlace(self, code)

    def continuation(self, layout: Layout, contexts: tuple[FrameContext, ...]) -> ContinuationPlace:
        """What goes on from a layout."""
        key = (layout, tuple(id(context.globals) for context in contexts))
        place = self.continuations.get(key)
        if place is None:
            place = self.continuations[key] = ContinuationPlace(self, layout, contexts)
        return place

    def places(self) -> list[Place]:
        return [self.place, *self.continuations.values()]

    def entries_in_all(self) -> int:
        """Entries of the code object, over all regions."""
        row = _regions.get(self.code_identity)
        return sum(len(region.place.records) for region in (row[1].values() if row is not None else (self,)))

    @functools.cached_property
    def callees_compiled(self) -> CalleesCompiled:
        """What turns a function into one that runs uncompiled, with what it calls compiled."""
        return CalleesCompiled(lambda function: dispatcher_for(function, self.options))


# Regions by code object (itself: code objects compare by content, but the names they see differ), then by options
# and globals: equal functions share them. They live as long as the code object.
_regions: dict[int, tuple[weakref.ref[types.CodeType], dict[Any, Region]]] = {}
_regions_lock = threading.RLock()


def region_of(function: types.FunctionType, options: Options) -> Region:
    """The region of a function under these options, made on first use."""
    code = function.__code__
    key = id(code)

    def forget(reference: weakref.ref[types.CodeType]) -> None:
        with _regions_lock:
            row = _regions.get(key)
            if row is not None and row[0] is reference:
                del _regions[key]

    with _regions_lock:
        row = _regions.get(key)
        if row is None or row[0]() is not code:
            row = _regions[key] = (weakref.ref(code, forget), {})
        handle = (options.key, id(function.__globals__))
        region = row[1].get(handle)
        if region is None:
            region = row[1][handle] = Region(code, options)
        return region


def all_regions() -> list[Region]:
    """Every region there is."""
    with _regions_lock:
        return [region for _, by_options in _regions.values() for region in by_options.values()]


def reset() -> None:
    """Forget every entry; compiled callables stay usable and compile anew."""
    for region in all_regions():
        for place in region.places():
            with place.table.lock:
                place.table.clear()
                place.records.clear()
                place.forget_history()
                place.limit_reported = place.looked = place.failed = False
        region.continuations.clear()


def dispatcher_for(function: Any, options: Options) -> Any:
    """The callable that stands for `function`, a Python function."""
    region = region_of(function, options)
    return core.Dispatcher(function, region.place.table, region.place.on_miss)
