import simulated

from stator import events
from stator.events import CompileId, Location
from stator.observe import explain


def explained(**options):
    with explain.recording() as seen:
        simulated.emit_gpt(**options)
    return seen.explanation()


def test_the_fields():
    seen = explained()
    assert len(seen.graphs) == 6 and all(graph.ops == 30 for graph in seen.graphs)
    assert [item.reason for item in seen.breaks] == ["data_dependent_branch", "builtin_print", "tensor_item"]
    assert [(item.old, item.new) for item in seen.recompiles] == [("1.0", "0.7"), ("16", "24")]
    assert [item.compile_id for item in seen.recompiles] == [CompileId(0, 1), CompileId(0, 2)]
    assert len(seen.guards) == 27 * 6
    assert "temperature == 1.0" in {guard.text for guard in seen.guards}
    assert set(seen.residual) == {CompileId(0, 0), CompileId(1, 0), CompileId(2, 0)}
    assert list(seen.times) == ["capture", "aot", "lower", "emit", "total"]
    assert abs(sum(list(seen.times.values())[:-1]) - seen.times["total"]) < 1e-9
    assert {said.kind for said in seen.suggestions} == {
        "break",
        "recompile",
        "hint",
        "fallback",
        "specialised",
        "fusion",
    }


def test_breaks_are_ranked_by_what_they_cost():
    seen = explained(breaks=5)
    costs = [item.seconds for item in seen.breaks]
    assert costs == sorted(costs, reverse=True) and all(item.compile_seconds > 0 for item in seen.breaks)
    assert sum(item.runs for item in seen.breaks) == 5


def test_the_first_line_is_the_answer():
    first, *rest = str(explained()).splitlines()
    where = simulated.line_of(simulated.Gpt.forward, "/ temperature")
    assert f":{where.line} in Gpt.forward: recompiled because temperature was 1.0 and is 0.7." in first
    assert "torch.tensor" in first and first.endswith("[recompile_number]")
    text = "\n".join(rest)
    assert "6 graphs, 180 operators, 3 breaks, 2 recompiles, 1 fallback" in text
    assert "breaks, by measured cost" in text and "162 guards, by the line that asked" in text


def test_nothing_to_say():
    assert str(explain.recording().explanation()).startswith("nothing was compiled")
    with explain.recording() as seen:
        with events.compiling(CompileId(0, 0)):
            events.emit("compile_start", name="f", file="f.py", line=1, cause="first_call")
            events.emit("graph", graph_module=simulated.block_graph(), sizes={})
            events.emit("compile_end", ok=True, seconds=0.1, stages={"capture": 0.1}, graphs=1, ops=30, guards=0)
    assert str(seen.explanation()).startswith("1 graph with 30 operators: nothing to change")


def test_html(tmp_path):
    seen = explained()
    assert seen.to_html(tmp_path / "x.html").read_text().startswith("<!doctype html>")
    html = seen._repr_html_()
    assert html.startswith("<iframe") and "<script>" not in html


def test_explaining_a_callable():
    def compile(fn, **options):
        assert options == {"dynamic": True}

        def compiled(*args):
            simulated.emit_entry(0, len(args), "f", Location(__file__, 1, "f"), "first_call")
            return fn(*args)

        return compiled

    explainer = explain.explain(lambda *args: sum(args), compile=compile, dynamic=True)
    first = explainer(1, 2)
    assert first.result == 3 and len(first.graphs) == 1
    second = explainer(1, 2, 3)
    assert second.result == 6 and len(second.graphs) == 2 and len(first.graphs) == 1
    assert not events.wanted("graph")


def test_a_stream_that_begins_in_the_middle():
    with explain.recording() as seen:
        with events.compiling(CompileId(7, 3)):
            events.emit("guards", tree=simulated.guard_tree())
            events.emit("graph_break", reason="tensor_item", detail=None, stack=[], line="")
            events.emit("break_run", reason="tensor_item", seconds=0.5)
    found = seen.explanation()
    assert found.breaks[0].seconds == 0.5 and found.session.regions[7].entries[0].state == "break"
    assert "tensor_item" in str(found)
