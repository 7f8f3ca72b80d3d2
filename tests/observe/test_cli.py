import subprocess
import sys
import textwrap

import pytest
import simulated

import stator
from stator.__main__ import main
from stator.observe import trace
from stator.reasons import REASONS


@pytest.fixture
def public(monkeypatch):
    """`stator.compile` stands in where it is not built yet; each call of its result emits the simulated stream."""
    if not hasattr(stator, "compile"):

        def compile(model=None, **options):
            def compiled(*args):
                simulated.emit_gpt()
                return model(*args)

            return compiled

        monkeypatch.setattr(stator, "compile", compile, raising=False)
    return stator


SCRIPT = """
    import sys, os
    import torch
    print(sys.argv[1:], __name__, os.path.basename(__file__), sys.path[0] == os.path.dirname(os.path.abspath(__file__)))

    @torch.compile
    def f(x, n):
        y = x * n
        if y.sum().item() > 0:
            return y + 1
        return y - 1

    print(f(torch.ones(3), 2).tolist())
"""


def script(tmp_path, text=SCRIPT):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_run(public, tmp_path, capsys):
    import torch

    before = torch.compile
    path = script(tmp_path)
    report = tmp_path / "out.html"
    arguments = ["run", "--logs", "graph_breaks", "--trace", str(tmp_path / "t"), "--report", str(report)]
    assert main([*arguments, str(path), "--epochs", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "['--epochs', '3'] __main__ script.py True"
    assert out.splitlines()[1] == "[3.0, 3.0, 3.0]"
    assert "graph_breaks: " in err and str(report) in err
    assert report.read_text().startswith("<!doctype html>") and list((tmp_path / "t").glob("*.log"))
    assert torch.compile is before


def test_run_keeps_exit_codes_and_tracebacks(public, tmp_path, capsys):
    assert main(["run", "--report", str(tmp_path / "r.html"), str(script(tmp_path, "def f():\n    1 / 0\nf()"))]) == 1
    err = capsys.readouterr().err
    frames = [line for line in err.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2 and all("script.py" in line for line in frames) and "ZeroDivisionError" in err
    with pytest.raises(SystemExit) as exit:
        main(["run", str(script(tmp_path, "raise SystemExit(7)"))])
    assert exit.value.code == 7


def test_run_a_module(public, tmp_path, capsys, monkeypatch):
    (tmp_path / "some_module_of_mine.py").write_text("import sys\nprint(__name__, sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "-m", "some_module_of_mine", "a"]) == 0
    assert capsys.readouterr().out == "__main__ ['a']\n"


def test_report(tmp_path, capsys):
    trace.set_trace(tmp_path / "t")
    simulated.emit_gpt()
    trace.set_trace(None)
    assert main(["report", str(tmp_path / "t"), "-o", str(tmp_path / "r.html")]) == 0
    assert "Graph breaks" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["run", "/no/such/script.py"], "no such script"),
        (["run", "--logs", "nonsense", __file__], "no log is named"),
        (["report", "/no/such/trace"], "no trace there"),
        (["reasons", "no_such_reason"], "no reason has the id"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(arguments, says, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("stator: ") and says in err and err.count("\n") == 1


def test_reasons(capsys):
    assert main(["reasons"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in REASONS)
    for row in list(REASONS.values())[:3]:
        assert main(["reasons", row.id]) == 0
        assert row.hint in capsys.readouterr().out


def test_doctor_and_the_installed_command(capsys):
    code = main(["doctor"])
    out = capsys.readouterr().out
    assert "versions" in out and code == int("not well" in out)
    done = subprocess.run([sys.executable, "-m", "stator", "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and all(name in done.stdout for name in ("run", "report", "doctor", "reasons"))
