"""Runs CPython's own test suite with every test method compiled, and compares with plain Python.

    python tools/cpython_suite.py [module ...] [-k text] [--check] [--json out] [--jobs n]

Contract. The oracle is the interpreter itself: a test method that passes when called must pass when it is called as
`stator.compile(method, backend="eager")`, breaks allowed. Anything else is a difference: a wrong result, an error of
stator's own, a hang, a crash. The tests are those installed with this Python, taken as they are; each runs in a worker
process, so that a crash costs one test. `--check` compares with the table of known differences
(`tests/capture/cpython_known_failures.toml`): a difference that is not there fails, and so does a row that is none any
more.

Why: PyTorch's tests ask what a tensor program does; these ask whether the interpreter underneath is Python.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import tomllib
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODULES = """
test_abstract_numbers test_augassign test_baseexception test_binop test_bisect test_bool test_builtin test_call
test_class test_cmath test_collections test_colorsys test_compare test_complex test_contains test_contextlib test_copy
test_dataclasses test_decorators test_defaultdict test_deque test_descr test_dict test_dictcomps test_dictviews
test_dynamic test_dynamicclassattribute test_enum test_enumerate test_except_star test_exception_group
test_exception_hierarchy test_exception_variations test_exceptions test_extcall test_float test_fnmatch test_format
test_fractions test_fstring test_funcattrs test_functools test_future_stmt test_generator_stop test_generators
test_genericalias test_genericclass test_genexps test_getopt test_global test_grammar test_graphlib test_hash
test_heapq test_html test_index test_int test_int_literal test_isinstance test_iter test_iterlen test_itertools
test_json test_keyword test_keywordonlyarg test_list test_listcomps test_long test_math test_memoryview test_metaclass
test_named_expressions test_numeric_tower test_opcodes test_operator test_ordered_dict test_patma test_pep646_syntax
test_positional_only_arg test_pow test_pprint test_print test_property test_queue test_raise test_range test_re
test_reprlib test_richcmp test_scope test_set test_setcomps test_shlex test_slice test_sort test_string
test_string_literals test_struct test_structseq test_subclassinit test_super test_textwrap test_tuple
test_type_annotations test_typechecks test_types test_typing test_unary test_unpack test_unpack_ex test_urlparse
test_userdict test_userlist test_userstring test_weakset test_with test_yield_from
""".split()
TABLE = Path(__file__).parent.parent / "tests/capture/cpython_known_failures.toml"
SECONDS = 8  # of processor time, for one test
MEMORY = 6 << 30
MOST_CRASHES = 60


class TooLong(BaseException):
    """The test's time is up."""


class Outcome(unittest.TestResult):
    """Tells the parent of each test what became of it, as it goes."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.tell = tell
        self.row: dict[str, Any] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        self.row = {"test": name_of(test), "outcome": "passed", "why": "", "breaks": []}
        self.began = time.perf_counter()
        self.tell({"start": self.row["test"]})
        signal.setitimer(signal.ITIMER_PROF, SECONDS)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.row["seconds"] = round(time.perf_counter() - self.began, 3)
        self.tell(self.row)

    def _failed(self, error: Any) -> None:
        kind, value, trace = error
        if self.row.get("outcome") == "passed":
            self.row["outcome"] = "hang" if issubclass(kind, TooLong) else "failed"
            self.row["why"] = f"{kind.__name__}: {value}"[:700]
            self.row["trace"] = "".join(traceback.format_exception(kind, value, trace))[-6000:]

    def addError(self, test: Any, err: Any) -> None:
        self._failed(err)

    def addFailure(self, test: Any, err: Any) -> None:
        self._failed(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._failed(err)

    def addSkip(self, test: Any, reason: str) -> None:
        self.row["outcome"] = "skipped"

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.row["outcome"] = "skipped"


def name_of(test: unittest.TestCase) -> str:
    """`test_dict.DictTest.test_keys`."""
    return test.id().removeprefix("test.")


def tests_of(name: str) -> Iterator[unittest.TestSuite]:
    """The suites of a module, a class each."""
    module = importlib.import_module(f"test.{name}")
    loader = unittest.TestLoader()
    members = [module]
    if hasattr(module, "__path__"):  # a package of test modules
        files = sorted(Path(module.__path__[0]).glob("test_*.py"))
        members += [importlib.import_module(f"test.{name}.{file.stem}") for file in files]
    for member in members:
        for kind in list(vars(member).values()):
            if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind.__module__ == member.__name__:
                yield loader.loadTestsFromTestCase(kind)


def filtered(suite: unittest.TestSuite, wanted: Callable[[str], bool]) -> unittest.TestSuite:
    return unittest.TestSuite(test for test in suite if isinstance(test, unittest.TestCase) and wanted(name_of(test)))


def compile_methods(result: Outcome) -> None:
    """Have `unittest` call every test method compiled."""
    import stator  # noqa: PLC0415  # a worker that runs plain Python has no need of it

    reasons: list[str] = []
    stator.events.subscribe(
        lambda event: reasons.append(f"{event.fields['reason']}: {event.fields['detail']}"), ["graph_break"]
    )

    def call(test: unittest.TestCase, method: Callable[[], Any]) -> None:
        reasons.clear()
        try:
            stator.compile(method, backend="eager")()
        finally:
            result.row["breaks"] = reasons[:20]
            stator.reset()

    unittest.TestCase._callTestMethod = call  # type: ignore[attr-defined]


def work(modules: list[str], plain: bool, text: str, skipped: set[str]) -> None:
    """A worker: runs modules and writes a line of JSON for each test."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def expire(*_: Any) -> None:
        raise TooLong(f"{SECONDS} s of processor time")

    signal.signal(signal.SIGPROF, expire)
    support: Any = importlib.import_module("test.support")
    support.use_resources = []
    support.verbose = 0
    result = Outcome(lambda row: print(json.dumps(row), file=out))
    if not plain:
        compile_methods(result)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name in modules:
            try:
                for suite in tests_of(name):
                    with warnings.catch_warnings():
                        warnings.simplefilter("default")
                        filtered(suite, lambda test: text in test and test not in skipped).run(result)
            except (ImportError, unittest.SkipTest) as error:
                print(json.dumps({"absent": name, "why": str(error)}), file=out)
            print(json.dumps({"done": name}), file=out)


def watch(modules: list[str], plain: bool, text: str, tell: Callable[[dict[str, Any]], None]) -> None:
    """Run workers until all modules are done; what a worker dies of is the outcome of the test it was at."""
    found: dict[str, dict[str, Any]] = {}
    left = list(modules)
    crashes = 0
    while left:
        command = [sys.executable, __file__, "--work", json.dumps({"modules": left, "plain": plain, "text": text,
                   "skipped": [name for name in found if name.split(".")[0] == left[0]]})]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert process.stdout is not None
        at = ""
        timer = threading.Timer(0, lambda: None)
        for line in process.stdout:
            timer.cancel()
            try:
                row = json.loads(line)
            except ValueError:
                continue  # what a test wrote past the redirection
            if not isinstance(row, dict):
                continue
            if "start" in row:
                at = row["start"]
                timer = threading.Timer(40 * SECONDS, process.kill)
                timer.start()
            elif "done" in row:
                left.remove(row["done"])
                at = ""
            elif "test" in row:
                found[row["test"]] = row
                tell(row)
                at = ""
        timer.cancel()
        code = process.wait()
        crashes += code != 0
        if crashes > MOST_CRASHES:
            raise SystemExit(f"workers crash again and again, last at {at or left}")
        if left and at:
            outcome = "hang" if code == -signal.SIGKILL else "crash"
            found[at] = {"test": at, "outcome": outcome, "why": f"the process ended with {code}", "breaks": []}
            tell(found[at])
        elif left and code:
            tell({"test": left[0], "outcome": "crash", "why": f"outside of tests: {code}", "breaks": []})
            del left[0]


def run(
    modules: list[str], text: str = "", jobs: int = 2, report: Callable[[dict[str, Any]], None] = lambda row: None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outcomes in plain Python, and compiled; `report` is told of each difference as it is found."""
    plain: dict[str, Any] = {}
    compiled: dict[str, Any] = {}

    def tell_plain(row: dict[str, Any]) -> None:
        plain[row["test"]] = row

    def tell_compiled(row: dict[str, Any]) -> None:
        compiled[row["test"]] = row
        if row["outcome"] != "passed" and plain.get(row["test"], {}).get("outcome") == "passed":
            report(row)

    for kind, tell in ((True, tell_plain), (False, tell_compiled)):
        parts = [part for start in range(jobs) if (part := modules[start::jobs])]
        threads = [threading.Thread(target=watch, args=(part, kind, text, tell)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return plain, compiled


def differences(plain: dict[str, Any], compiled: dict[str, Any]) -> dict[str, Any]:
    """What passes in plain Python and not compiled."""
    passing = [name for name, row in plain.items() if row["outcome"] == "passed"]
    missing = {"outcome": "missing", "why": "the test did not run", "breaks": []}
    return {name: row for name in passing if (row := compiled.get(name, missing))["outcome"] != "passed"}


def known() -> dict[str, str]:
    """The known differences, and why each is one."""
    groups = tomllib.loads(TABLE.read_text())["group"] if TABLE.exists() else []
    return {name: group["reason"] for group in groups for name in group["tests"]}


def summary(plain: dict[str, Any], compiled: dict[str, Any]) -> str:
    passing = [name for name, row in plain.items() if row["outcome"] == "passed"]
    found = differences(plain, compiled)
    kinds = collections.Counter(row["outcome"] for row in found.values())
    whole = sum(not compiled[name]["breaks"] for name in passing if name in compiled)
    return (
        f"{len(passing)} tests pass in plain Python; {len(passing) - len(found)} pass compiled"
        f" ({whole} without a break); differences: {dict(kinds)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*")
    parser.add_argument("-k", default="", help="text in the test's name")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", help="where to write all outcomes")
    parser.add_argument("--check", action="store_true", help="compare with the table of known differences")
    parser.add_argument("--trace", action="store_true", help="show tracebacks")
    parser.add_argument("--breaks", action="store_true", help="count reasons of breaks")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        given = json.loads(options.work)
        work(given["modules"], given["plain"], given["text"], set(given["skipped"]))
        return 0
    modules = options.modules or MODULES
    rows = known()

    def report(row: dict[str, Any]) -> None:
        if not options.check or row["test"] not in rows:
            print(f"{row['outcome']:7} {row['test']}: {row['why'][:300]!r}", flush=True)
            if options.trace:
                print(row.get("trace", ""), flush=True)

    plain, compiled = run(modules, options.k, options.jobs, report)
    found = differences(plain, compiled)
    if options.json:
        Path(options.json).write_text(json.dumps({"plain": plain, "compiled": compiled}, indent=1))
    if options.breaks:
        reasons = collections.Counter(reason for row in compiled.values() for reason in row["breaks"])
        for reason, count in reasons.most_common(80):
            print(f"{count:5} {reason}")
    print(summary(plain, compiled))
    if not options.check:
        return 0
    gone = [
        name
        for name in rows
        if name.split(".")[0] in modules and options.k in name and name in plain and name not in found
    ]
    for name in gone:
        print(f"no difference any more: {name} (take it out of {TABLE.name})")
    return int(bool(gone) or any(name not in rows for name in found))


if __name__ == "__main__":
    sys.exit(main())
