import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import simulated

from stator import events
from stator.observe import trace
from stator.observe.records import render
from stator.observe.trace_format import read

HERE = Path(__file__).parent
TLPARSE = shutil.which("tlparse") or str(Path(sys.executable).parent / "tlparse")
needs_tlparse = pytest.mark.skipif(
    not os.access(TLPARSE, os.X_OK), reason="tlparse is not installed (pip install tlparse)"
)


def written(directory, action=simulated.emit_gpt, **options):
    """The one file a trace of `action` makes."""
    trace.set_trace(directory, **options)
    action()
    trace.set_trace(None)
    (path,) = Path(directory).glob("*.log")
    return path


def tlparse(path, out, *options):
    command = [TLPARSE, "--strict", "--no-browser", "--overwrite", "-o", str(out), str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_what_is_read_back_is_what_was_emitted(tmp_path):
    records = []
    end = events.subscribe(lambda event: records.append(render(event)), set(events.KINDS) - trace.UNTRACED)
    path = written(tmp_path, lambda: simulated.emit_gpt(error=True))
    end()
    found = read(path)
    assert [record.to_json() for record in found.records] == [record.to_json() for record in records]
    assert found.unread == 0 and found.process["pid"] == os.getpid()
    assert path.stat().st_mode & 0o777 == 0o600


@needs_tlparse
def test_the_released_tlparse_reads_it_strictly(tmp_path):
    path = written(tmp_path / "trace", lambda: simulated.emit_gpt(error=True))
    out = tmp_path / "out"
    summary = tlparse(path, out)
    assert "fail" not in summary and "unknown" not in summary.lower()
    index = (out / "index.html").read_text()
    assert "[0/0]" in index and "[0/2]" in index and "[4/0]" in index
    # the stack trie: the user's frames, in their colours
    trie = index[index.index("stack-trie") :]
    assert "simulated.py" in trie and "Gpt.forward" in trie and "status-break" in trie and "status-error" in trie

    def page(entry, name):
        (found,) = (out / entry).glob(f"{name}_[0-9]*")
        return found.read_text()

    assert "torch.relu(x)" in page("-_0_0_0", "dynamo_output_graph")
    assert "torch.relu(x)" in page("-_0_0_0", "aot_forward_graph")
    assert "torch.relu(x)" in page("-_0_0_0", "aot_backward_graph")
    guards = page("-_0_0_0", "dynamo_guards")
    line = simulated.line_of(simulated.Gpt.forward, "/ temperature").line
    assert "temperature == 1.0" in guards and f"simulated.py:{line}" in guards
    assert "fused_gelu_0" in page("-_0_0_0", "inductor_output_code_loops")
    metrics = page("-_0_0_0", "compilation_metrics")
    assert "Gpt.forward" in metrics and "0.05" in metrics and "tokens.size(1)" in metrics
    assert "temperature was 1.0 and is 0.7" in page("-_0_1_0", "recompile_reasons")
    failures = (out / "failures_and_restarts.html").read_text()
    assert "BackendCompilerFailed" in failures and "tensor_item" in failures
    stages = json.loads((out / "chromium_events.json").read_text())
    assert {"capture", "compile_end"} <= {event["name"].split()[-1] for event in stages}


@needs_tlparse
def test_several_ranks(tmp_path, monkeypatch):
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        trace.set_trace(tmp_path / "trace")
        simulated.emit_gpt(breaks=1, recompiles=rank)
        trace.set_trace(None)
    names = sorted(path.name for path in (tmp_path / "trace").iterdir())
    assert [name.split("_rank_")[1][0] for name in names] == ["0", "1"]
    tlparse(tmp_path / "trace", tmp_path / "out", "--all-ranks-html")
    assert (tmp_path / "out" / "rank_1" / "index.html").is_file()


def test_a_rank_that_is_known_late_renames_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    writer = trace.set_trace(tmp_path)
    events.emit("warning", text="before")
    assert writer.flush() and "rank" not in writer.path.name
    monkeypatch.setenv("RANK", "3")
    events.emit("warning", text="after")
    trace.set_trace(None)
    (path,) = tmp_path.iterdir()
    assert "_rank_3_" in path.name
    assert [record.fields["text"] for record in read(path).records] == ["before", "after"]


CHILD = """
    import os, signal, sys
    sys.path.insert(0, {here!r})
    import simulated
    from stator.observe import trace
    writer = trace.set_trace({directory!r})
    simulated.emit_gpt()
    assert writer.flush()
    print("flushed", flush=True)
    {ending}
"""


def child(directory, ending):
    code = textwrap.dedent(CHILD).format(here=str(HERE), directory=str(directory), ending=ending)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_it_survives_a_kill_up_to_the_last_line_handed_over(tmp_path):
    done = child(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL and "flushed" in done.stdout
    (path,) = tmp_path.iterdir()
    found = read(path)
    assert found.unread == 0 and found.records[-1].kind == "warning"


@needs_tlparse
def test_a_trace_cut_anywhere_is_read_up_to_there(tmp_path):
    path = written(tmp_path / "trace")
    data = path.read_bytes()
    whole = len(read(path).records)
    for cut in range(len(data) // 7, len(data), len(data) // 7):
        path.write_bytes(data[:cut])
        found = read(path)
        assert 0 < len(found.records) <= whole and found.unread <= 2
    done = subprocess.run(
        [TLPARSE, "--no-browser", "--overwrite", "-o", str(tmp_path / "out"), str(path)],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0


def test_an_exception_and_an_exit_leave_a_whole_trace(tmp_path):
    done = child(tmp_path, "raise SystemExit(3)")
    assert done.returncode == 3
    (path,) = tmp_path.iterdir()
    assert read(path).unread == 0


def test_a_forked_child_writes_its_own_file(tmp_path):
    code = """
        import os, sys
        from stator import events
        from stator.observe import trace
        writer = trace.set_trace({directory!r})
        events.emit("warning", text="parent")
        writer.flush()
        pid = os.fork()
        events.emit("warning", text="child" if pid == 0 else "parent again")
        trace.set_trace(None)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    """
    code = textwrap.dedent(code).format(directory=str(tmp_path))
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)
    texts = sorted([r.fields["text"] for r in read(path).records] for path in tmp_path.iterdir())
    assert texts == [["child"], ["parent", "parent again"]]


def test_the_size_is_bounded_and_short_records_go_on(tmp_path):
    def much():
        for _ in range(8):
            simulated.emit_gpt(depth=8)

    path = written(tmp_path, much, size_mb=1)
    assert path.stat().st_size < 1.2 * 2**20
    found = read(path)
    notes = [record.fields["text"] for record in found.records if record.kind == "warning"]
    assert any("nearly full" in text for text in notes) and found.unread == 0


def test_a_slow_disk_does_not_stop_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "_QUEUE_LENGTH", 50)
    real = os.write

    def slow(descriptor, data):
        time.sleep(0.02)
        return real(descriptor, data)

    writer = trace.set_trace(tmp_path)
    monkeypatch.setattr(trace.os, "write", slow)
    begin = time.perf_counter()
    for index in range(300):
        events.emit("warning", text=str(index))
    assert time.perf_counter() - begin < 0.5
    monkeypatch.setattr(trace.os, "write", real)
    writer.flush()
    events.emit("warning", text="last")
    trace.set_trace(None)
    (path,) = tmp_path.iterdir()
    texts = [record.fields["text"] for record in read(path).records]
    assert texts[-1] == "last" and any(re.search(r"\d+ records were lost", text) for text in texts)


def test_a_full_disk_ends_the_trace_and_not_the_program(tmp_path, monkeypatch, caplog):
    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    said = []
    end = events.subscribe(lambda event: said.append(event.fields["text"]), {"warning"})
    writer = trace.set_trace(tmp_path)
    monkeypatch.setattr(trace.os, "write", full)
    events.emit("cache", operation="hit", key="1", kind_of="object")
    for _ in range(100):
        if said:
            break
        time.sleep(0.02)
    events.emit("cache", operation="hit", key="2", kind_of="object")
    end()
    assert writer.closed and "No space left" in said[0]


def test_odd_text_does_not_disturb_the_lines(tmp_path):
    texts = ["a\nb\n\nc\n", "tab\tand\r\nreturn", "lone \ud800 surrogate", "", "\n", '] {"x": 1}', "ünïcödé 🔥"]

    def action():
        for text in texts:
            with events.compiling(events.CompileId(1, 2)):
                events.emit("residual", text=text)

    path = written(tmp_path / "trace", action)
    found = [record.fields["text"] for record in read(path).records]
    assert found[0] == texts[0] and found[3:] == texts[3:]
    assert "surrogate" in found[2]
    if os.access(TLPARSE, os.X_OK):
        tlparse(path, tmp_path / "out")


def test_rendering_a_graph_is_a_tenth_of_print_readable():
    from stator.observe.graphs import graph_text

    graph = simulated.block_graph(depth=4)

    def fastest(function):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            function()
            times.append(time.perf_counter() - begin)
        return min(times)

    ours = fastest(lambda: graph_text(graph))
    theirs = fastest(lambda: graph.print_readable(print_output=False))
    assert ours < theirs / 3, (ours, theirs)
