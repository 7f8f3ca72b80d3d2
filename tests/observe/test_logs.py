import io
import logging
import re

import pytest
import simulated

from stator import events
from stator.observe import logs

E1 = (
    "graph_breaks graph_code graph_sizes bytecode trace_source trace_bytecode guards recompiles recompiles_verbose "
    "dynamic aot_graphs aot_joint_graphs output_code kernel_code schedule fusion perf_hints cache"
).split()


def logged(spec="", action=simulated.emit_gpt, **names):
    out = io.StringIO()
    logs.set_logs(spec, out=out, **names)
    action()
    logs.set_logs()
    return out.getvalue()


def emit_everything():
    simulated.emit_gpt()
    events.emit("bytecode", title="forward", code=emit_everything.__code__)
    events.emit("trace_source", file=simulated.FILE, line=3, text="x = 1")
    events.emit("trace_bytecode", opname="LOAD_FAST", argument="x", stack=2)


def test_the_names_are_those_of_the_specification():
    assert list(logs.NAMES) == E1


@pytest.mark.parametrize("name", E1)
def test_each_name_shows_its_kind_and_no_other(name):
    text = logged(name, emit_everything)
    heads = set(re.findall(r"^stator .*? (\w+): ", text, re.MULTILINE)) - {"warning"}
    assert heads == {name}


def test_a_record_names_the_entry_the_line_the_cause_and_the_action():
    text = logged("recompiles")
    line = next(line for line in text.splitlines() if "temperature" in line)
    where = simulated.line_of(simulated.Gpt.forward, "/ temperature")
    assert line.startswith(
        f"stator [0/1] recompiles: {logs.advice.short_path(where.file)}:{where.line} in Gpt.forward: "
    )
    assert "temperature was 1.0 and is 0.7" in line and "torch.tensor" in line and line.endswith("[recompile_number]")


def test_attributes_for_handlers_of_ones_own():
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record)

    handler = Handler()
    logging.getLogger("stator.recompiles").addHandler(handler)
    try:
        logged("recompiles")
    finally:
        logging.getLogger("stator.recompiles").removeHandler(handler)
    assert [str(record.compile_id) for record in seen] == ["[0/1]", "[0/2]"]
    assert seen[0].reason == "recompile_number" and seen[0].location.file == simulated.FILE


def test_one_break_is_logged_once_and_with_detail_each_time():
    def twice():
        simulated.emit_gpt()
        simulated.emit_gpt()

    once = logged("graph_breaks", twice)
    assert once.count("[tensor_item]") == 1 and "called from" not in once
    each = logged("+graph_breaks", twice)
    assert each.count("[tensor_item]") == 2 and "called from" in each


def test_verbose_recompiles_explain_every_entry():
    assert "entry 0: tokens.size(0)" not in logged("recompiles")
    assert "entry 0: tokens.size(0) was 2, is 5" in logged("recompiles_verbose")


def test_plus_minus_all_and_keywords():
    assert logs.parse("all,-guards,+cache").keys() == set(E1) - {"guards"}
    assert logs.parse("all,+cache")["cache"] == logging.DEBUG
    assert logs.parse(" graph_breaks , ,+dynamic ") == {"graph_breaks": logging.INFO, "dynamic": logging.DEBUG}
    logs.set_logs("guards", dynamic=True, cache=logging.DEBUG, guards=False)
    assert logs.enabled() == {"dynamic": logging.INFO, "cache": logging.DEBUG}
    logs.set_logs()
    assert logs.enabled() == {} and not events.wanted("guards")


def test_a_wrong_name_is_an_error_that_guesses():
    with pytest.raises(ValueError, match="did you mean 'graph_breaks'"):
        logs.set_logs("graph_brakes")
    with pytest.raises(ValueError, match="STATOR_LOGS"):
        logs.start({"STATOR_LOGS": "nonsense"})


def test_the_environment(tmp_path, capsys):
    out = tmp_path / "logs.txt"
    logs.start({"STATOR_LOGS": "graph_breaks", "TORCH_LOGS": "guards", "STATOR_LOGS_OUT": str(out)})
    assert set(logs.enabled()) == {"graph_breaks"}
    simulated.emit_gpt()
    assert "[tensor_item]" in out.read_text()
    logs.set_logs()
    logs.start({"TORCH_LOGS": "+dynamo,graph_code,distributed,aot_joint_graph"})
    assert set(logs.enabled()) == {"graph_breaks", "recompiles", "guards", "graph_code", "aot_joint_graphs"}
    logs.set_logs()
    logs.start({"STATOR_LOGS": "help"})
    text = capsys.readouterr().err
    assert all(name in text for name in E1)


def test_colours_only_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    for stream, coloured in ((io.StringIO(), False), (Terminal(), True)):
        logs.set_logs("recompiles", out=stream)
        simulated.emit_gpt()
        logs.set_logs()
        assert ("\033[" in stream.getvalue()) == coloured


def test_fallbacks_and_warnings_are_said_once_without_any_switch(caplog):
    logs.start({})
    logs.forget_said()
    with caplog.at_level(logging.WARNING, logger="stator"):
        simulated.emit_gpt()
        simulated.emit_gpt()
    texts = [record.message for record in caplog.records]
    assert sum("lowering_failed" in text for text in texts) == 1
    assert sum("reduce-overhead" in text for text in texts) == 1


def test_a_log_that_fails_does_not_break_the_program(monkeypatch, caplog):
    from stator import config

    def fail(record, detail):
        raise RuntimeError("no")

    row = logs.NAMES["cache"]
    monkeypatch.setitem(logs.NAMES, "cache", logs.LogName(row.kind, row.meaning, fail))
    logs.set_logs("cache", out=io.StringIO())
    with config.patch(strict=False), caplog.at_level(logging.WARNING):
        logging.getLogger("stator").propagate = True
        events.emit("cache", operation="hit", key="1", kind_of="object")
        events.emit("cache", operation="hit", key="2", kind_of="object")
    assert sum("the program goes on" in record.message for record in caplog.records) == 1
    with pytest.raises(RuntimeError, match="no"):
        events.emit("cache", operation="hit", key="3", kind_of="object")


def test_a_lone_subscriber_pays_for_its_kind_only():
    logs.set_logs("cache", out=io.StringIO())
    assert events.wanted("cache") and not events.wanted("guards") and not events.wanted("graph")
