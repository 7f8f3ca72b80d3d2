"""The command line: `stator run`, `report`, `doctor`, `reasons`.

Contract. `stator run script.py args...` behaves as `python script.py args...` does (its argv, its directory on the
path, its exit code, its traceback), with `torch.compile` being stator. A report is written however the script ends. A
command that is given something it cannot use says so in one line and exits with 2; `doctor` exits with 1 if
something is not well.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import stator
from stator.api import install
from stator.observe import doctor, logs, report, trace
from stator.reasons import REASONS

USAGE_ERROR = 2
_OWN_FILES = frozenset({__file__, runpy.__file__, "<frozen runpy>"})


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: its help, its arguments, what it does; the result is the exit code."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


# -- run


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--logs", metavar="NAMES", help="as STATOR_LOGS, for example graph_breaks,+recompiles")
    parser.add_argument("--trace", metavar="DIR", help="write a trace there, as STATOR_TRACE")
    parser.add_argument("--report", metavar="FILE", help="write an HTML report when the script ends")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)


def _run(options: argparse.Namespace) -> int:
    if not options.module and not Path(options.script).is_file():
        return _refuse(f"no such script: {options.script}")
    if options.logs is not None:
        try:
            logs.set_logs(options.logs)
        except ValueError as error:
            return _refuse(str(error))
    with tempfile.TemporaryDirectory(prefix="stator-trace-") as scratch:
        directory = options.trace or (scratch if options.report else None)
        if directory is not None:
            trace.set_trace(directory)
        install.install()
        try:
            return _execute(options)
        finally:
            install.uninstall()
            if directory is not None:
                trace.set_trace(None)
            if options.report:
                _report_of_run(Path(directory or scratch), Path(options.report))


def _execute(options: argparse.Namespace) -> int:
    """Run the script as Python would; an exception in it is shown without our own frames."""
    saved_argv, saved_path = sys.argv, list(sys.path)
    sys.argv = [options.script, *options.args]
    try:
        if options.module:
            sys.path.insert(0, "")
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(options.script).resolve().parent))
            runpy.run_path(options.script, run_name="__main__")
    except Exception as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename in _OWN_FILES:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return 1
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    return 0


def _report_of_run(directory: Path, target: Path) -> None:
    try:
        report.write(target, report.load(directory))
    except FileNotFoundError:
        print(f"stator: nothing was compiled, so there is no report in {target}", file=sys.stderr)
    else:
        print(f"stator: report in {target}", file=sys.stderr)


# -- report


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", help="what STATOR_TRACE named, or one trace file in it")
    parser.add_argument("-o", "--output", default="report.html")


def _report(options: argparse.Namespace) -> int:
    try:
        target = report.write(options.output, report.load(options.directory))
    except FileNotFoundError as error:
        return _refuse(str(error))
    print(target)
    return 0


# -- doctor and reasons


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def _doctor(options: argparse.Namespace) -> int:
    findings = doctor.examine(stator)
    print(doctor.text(findings))
    return int(any(finding.state in (doctor.BROKEN, doctor.MISSING) for finding in findings))


def _reasons_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these, with explanation and example")


def _reasons(options: argparse.Namespace) -> int:
    for name in options.ids:
        row = REASONS.get(name)
        if row is None:
            return _refuse(f"no reason has the id {name!r}; `stator reasons` lists them")
        print(f"{row.id}\n  {row.summary}\n  Why: {row.explanation}\n  Do: {row.hint}")
        if row.example:
            print("  Example:\n    " + row.example.strip().replace("\n", "\n    "))
    if not options.ids:
        width = max(map(len, REASONS), default=0)
        for row in REASONS.values():
            print(f"{row.id:{width}}  {row.summary}")
    return 0


def _refuse(message: str) -> int:
    print(f"stator: {message}", file=sys.stderr)
    return USAGE_ERROR


COMMANDS: dict[str, Command] = {
    "run": Command("run a script unedited, with torch.compile being stator", _run_arguments, _run),
    "report": Command("make one HTML file from a trace", _report_arguments, _report),
    "doctor": Command("check this installation", _no_arguments, _doctor),
    "reasons": Command("the reasons to break a graph, refuse or fall back", _reasons_arguments, _reasons),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line's entry point."""
    parser = argparse.ArgumentParser(prog="stator", description="An independent torch.compile.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        sub = subparsers.add_parser(name, help=command.help, description=command.help)
        command.arguments(sub)
        sub.set_defaults(run=command.run)
    options = parser.parse_args(arguments)
    result: int = options.run(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
