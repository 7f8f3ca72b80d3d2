import io
import threading
import time

from stator import config, events
from stator.events import CompileId
from stator.observe import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def compile_for(seconds, delay=0.05, **fields):
    stream = Terminal()
    shown = progress.Progress(stream, delay=delay).start()
    with events.compiling(CompileId(2, 1)):
        events.emit("compile_start", name="Gpt.forward", file="m.py", line=1, cause="first_call")
        events.emit("stage", name="capture", seconds=0.01)
        events.emit("progress", stage="emit", done=3, total=12)
        time.sleep(seconds)
        events.emit("compile_end", ok=True, seconds=seconds, stages={}, graphs=1, ops=1, guards=1)
    time.sleep(0.3)
    shown.stop()
    return stream.getvalue()


def test_long_work_is_shown_and_wiped_away():
    text = compile_for(0.6)
    assert "[2/1] Gpt.forward: emit" in text and "3/12" in text
    assert text.rstrip().endswith("\x1b[2K") or "\x1b[2K" in text


def test_short_work_is_silent():
    assert compile_for(0.05, delay=0.5) == ""


def test_it_can_be_switched_off():
    with config.patch(progress=False):
        assert compile_for(0.3) == ""


def test_no_terminal_no_subscription(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    progress.start()
    assert not progress._progress


def test_nested_and_parallel_compiles():
    stream = Terminal()
    shown = progress.Progress(stream, delay=0.05).start()

    def work(region):
        with events.compiling(CompileId(region, 0)):
            events.emit("compile_start", name=f"f{region}", file="m.py", line=1, cause="first_call")
            with events.compiling(CompileId(region + 10, 0)):
                events.emit("compile_start", name=f"inner{region}", file="m.py", line=1, cause="first_call")
                time.sleep(0.4)
                events.emit("compile_end", ok=True, seconds=0.4, stages={}, graphs=1, ops=1, guards=1)
            time.sleep(0.3)
            events.emit("compile_end", ok=True, seconds=0.7, stages={}, graphs=1, ops=1, guards=1)

    threads = [threading.Thread(target=work, args=(region,)) for region in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.3)
    shown.stop()
    text = stream.getvalue()
    assert all(name in text for name in ("inner1", "inner2", "f1", "f2"))
