import re

import pytest
import simulated

from stator import events
from stator.observe import metrics


@pytest.fixture(autouse=True)
def _fresh():
    metrics.start()
    metrics.reset()
    yield
    metrics.time_breaks(False)
    metrics.reset()


def test_counts():
    simulated.emit_gpt(error=True)
    seen = metrics.metrics()
    assert seen.counters["compiles"] == {"first_call": 2, "continuation": 3, "recompile": 2}
    assert seen.counters["graph_breaks"] == {"tensor_item": 1, "builtin_print": 1, "data_dependent_branch": 1}
    assert seen.counters["fallbacks"] == {"lowering_failed": 1} and seen.total("compile_errors") == 1
    assert seen.counters["cache_operations"] == {"hit": 4, "miss": 2, "store": 1}
    assert seen.histograms["compile_seconds"]["continuation"].count == 3
    assert seen.histograms["stage_seconds"]["emit"].sum == pytest.approx(0.4 * 0.252)
    assert seen.histograms["break_seconds"] == {}


def test_a_reading_is_a_copy():
    simulated.emit_gpt()
    seen = metrics.metrics()
    simulated.emit_gpt()
    assert seen.total("compiles") == 6 and metrics.metrics().total("compiles") == 12


def test_hits_are_pulled_when_read_and_cost_nothing_before():
    calls = []

    def provider():
        calls.append(1)
        yield metrics.Count("hits", "mine", 41)
        yield metrics.Count("misses", "mine", 2)
        yield metrics.Count("guard_seconds", "mine", 3e-7)

    end = metrics.provide_counts(provider)
    assert not calls
    seen = metrics.metrics()
    assert seen.counters["hits"]["mine"] == 41 and seen.counters["misses"]["mine"] == 2
    assert seen.histograms["guard_seconds"]["mine"].buckets[0] == 1
    assert metrics.metrics().counters["hits"]["mine"] == 41  # pulled, not added up
    end()
    assert "mine" not in metrics.metrics().counters["hits"]


def test_hits_of_a_native_table():
    class Entry:
        hits = 5

    class Table:
        entries = (Entry(), Entry())

    assert metrics.entry_hits("[3]", Table()) == metrics.Count("hits", "[3]", 10)


def test_break_times_are_asked_for():
    assert not events.wanted("break_run")
    metrics.time_breaks()
    simulated.emit_gpt()
    assert metrics.metrics().histograms["break_seconds"]["tensor_item"].count == 3
    metrics.time_breaks(False)
    assert not events.wanted("break_run")


def test_prometheus_text():
    simulated.emit_gpt()
    end = metrics.provide_counts(lambda: [metrics.Count("hits", 'a"b\\c\nd', 1)])
    text = metrics.metrics().to_prometheus()
    end()
    sample = re.compile(r'^[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(,le="[^"]+")?\})? [0-9.e+-]+$')
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.match(line), line
    assert 'stator_compiles_total{cause="continuation"} 3' in text
    assert 'stator_compile_seconds_bucket{cause="recompile",le="+Inf"} 2' in text
    counts = [int(n) for n in re.findall(r'stage_seconds_bucket\{stage="emit",le="[^"]+"\} (\d+)', text)]
    assert counts == sorted(counts) and counts[-1] == 6
