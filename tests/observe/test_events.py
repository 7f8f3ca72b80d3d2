import re
import timeit

import pytest
import simulated

from stator import events
from stator.observe.records import Record, render


def fields_of(kind):
    """Required and optional fields, as the text of the kind names them."""
    text = re.sub(r"\([^()]*\)", "", events.KINDS[kind])
    names = [name.strip() for name in re.split(r"[,:;]", text.split(":")[-1])]
    required = {name for name in names if name.isidentifier()}
    return required, {name.removesuffix("?") for name in names if name.endswith("?")}


def collect(action):
    seen = []
    end = events.subscribe(seen.append)
    try:
        action()
    finally:
        end()
    return seen


def test_the_simulator_emits_what_the_table_of_kinds_promises():
    seen = collect(lambda: simulated.emit_gpt(error=True))
    for event in seen:
        required, optional = fields_of(event.kind)
        given = set(event.fields)
        assert given <= required | optional, (event.kind, given - required - optional)
        assert required <= given, (event.kind, required - given)
    missing = set(events.KINDS) - {event.kind for event in seen}
    assert missing == {"bytecode", "trace_source", "trace_bytecode"}


def test_records_survive_json_and_hold_nothing_alive():
    import gc
    import json
    import weakref

    records = []
    graph = simulated.block_graph()
    alive = weakref.ref(graph)
    end = events.subscribe(lambda event: records.append(render(event)))
    events.emit("graph", graph_module=graph, sizes={"x": (2, 3)})
    events.emit("bytecode", title="forward", code=collect.__code__)
    simulated.emit_gpt(breaks=1, recompiles=1)
    end()
    del graph
    gc.collect()
    assert alive() is None
    for record in records:
        assert Record.from_json(json.loads(json.dumps(record.to_json(), allow_nan=False))).to_json() == record.to_json()


def test_odd_values_become_text_and_never_an_error():
    class Odd:
        def __str__(self):
            return "odd " * 500

    end = events.subscribe(lambda event: records.append(render(event)))
    records = []
    try:
        events.emit("warning", text=Odd())
        events.emit("graph_break", reason="x", detail=float("nan"), stack=[("f.py", 3, "g"), 7], line=None)
        events.emit("recompile", name="f", misses=["free text"], old=1, new=2, user_line=None)
        events.emit("graph", graph_module=lambda: 0, sizes=None)
        events.emit("guards", tree="x is a tensor\ny == 1")
    finally:
        end()
    assert len(records[0].fields["text"]) < 400
    assert records[1].fields["stack"] == [["f.py", 3, "g", ""]] and records[1].fields["detail"] == "nan"
    assert records[2].fields["misses"][0]["text"] == "free text"
    assert "no FX graph" in records[3].fields["text"]
    assert [row["text"] for row in records[4].fields["guards"]] == ["x is a tensor", "y == 1"]


def test_a_silent_kind_costs_one_look_up_and_an_unknown_kind_is_an_error():
    end = events.subscribe(lambda event: None, {"schedule"})
    try:
        silent = min(timeit.repeat(lambda: events.emit("stage"), number=20_000, repeat=5)) / 20_000
        nothing = min(timeit.repeat(lambda: len("stage"), number=20_000, repeat=5)) / 20_000
        assert silent - nothing < 1e-6, f"{silent * 1e9:.0f} ns"
        assert not events.wanted("stage") and events.wanted("schedule")
    finally:
        end()
    assert not events.wanted("schedule")
    with pytest.raises(ValueError, match="nonsense"):
        events.emit("nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        events.subscribe(lambda event: None, {"nonsense"})


def test_events_during_unsubscribing_and_from_threads():
    import threading

    seen = []
    end = events.subscribe(seen.append, {"warning"})
    threads = [
        threading.Thread(target=lambda n=n: [events.emit("warning", text=f"{n}/{i}") for i in range(200)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end()
    events.emit("warning", text="late")
    assert len(seen) == 800
    for number in range(4):  # each thread's events in its order
        mine = [event.fields["text"] for event in seen if event.fields["text"].startswith(f"{number}/")]
        assert mine == [f"{number}/{i}" for i in range(200)]


def test_observing_imports_nothing_of_the_peer():
    import subprocess
    import sys

    code = (
        "import sys, stator.observe as o; from stator.observe import doctor, explain, report; o.start(); "
        "names = ('torch._dynamo', 'torch._inductor', 'rich'); "
        "bad = [m for m in sys.modules if m.startswith(names)]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
