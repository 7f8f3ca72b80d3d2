"""What starts symbolic: marks, declarations, settings, history, profile."""

from __future__ import annotations

import json
import multiprocessing

import pytest
import torch

from stator import config, events
from stator.exc import InvalidOption
from stator.reasons import REASONS
from stator.reasons.dynamic import ROWS
from stator.sizes import marks, profile
from stator.sizes.policy import DynamicHistory, Specification, Treatment, named_sources, parse_specification

X = (("LOCAL", 0),)
SYMBOLIC, CONSTANT, UNBACKED = Treatment.SYMBOLIC, Treatment.CONSTANT, Treatment.UNBACKED


def sizes_of(history, values, dim=0, **more):
    return [history.size(X, "x", dim, value, **more).treatment for value in values]


def test_the_second_size_makes_exactly_that_source_symbolic():
    history = DynamicHistory()
    assert sizes_of(history, [8, 8, 5, 8]) == [CONSTANT, CONSTANT, SYMBOLIC, SYMBOLIC]
    assert sizes_of(history, [8, 8], dim=1) == [CONSTANT, CONSTANT]
    assert history.size((("LOCAL", 1),), "y", 0, 8).treatment is CONSTANT


def test_zero_and_one_are_values_like_others():
    assert sizes_of(DynamicHistory(), [8, 1]) == [CONSTANT, SYMBOLIC]
    assert sizes_of(DynamicHistory(), [1, 0, 8]) == [CONSTANT, SYMBOLIC, SYMBOLIC]


def test_dynamic_true_and_false():
    assert sizes_of(DynamicHistory(True), [8]) == [SYMBOLIC]
    assert sizes_of(DynamicHistory(True), [1, 1, 3, 1]) == [CONSTANT, CONSTANT, SYMBOLIC, SYMBOLIC]
    assert sizes_of(DynamicHistory(False), [8, 5, 3]) == [CONSTANT] * 3
    assert sizes_of(DynamicHistory(), [8, 5], constant=True) == [CONSTANT] * 2


def test_settings_are_obeyed():
    with config.patch(automatic_dynamic_shapes=False):
        assert sizes_of(DynamicHistory(), [8, 5]) == [CONSTANT] * 2
    with config.patch(assume_static_by_default=False):
        assert sizes_of(DynamicHistory(), [8]) == [SYMBOLIC]
    with config.patch(dynamic_sources="L['x'], L[\"y\"].width"):
        assert sizes_of(DynamicHistory(), [8]) == [SYMBOLIC]
        assert DynamicHistory().number((), "y.width", 3).treatment is SYMBOLIC
    with config.patch(specialize_int=True):
        history = DynamicHistory()
        assert [history.number((), "n", value).treatment for value in (1, 2)] == [CONSTANT] * 2
    assert named_sources("L['x'], self.n") == {"x", "self.n"}


def test_numbers_generalise_by_kind():
    history = DynamicHistory()
    assert [history.number((), "n", value).treatment for value in (1, 1, 2)] == [CONSTANT, CONSTANT, SYMBOLIC]
    history = DynamicHistory()
    assert [history.number((), "n", value).treatment for value in (1, 1.0, 2.0)] == [CONSTANT, CONSTANT, SYMBOLIC]
    assert history.number((), "flag", True).treatment is CONSTANT
    nan = float("nan")
    assert [DynamicHistory().number((), "n", value).treatment for value in (nan, nan)] == [CONSTANT] * 2
    history = DynamicHistory()
    assert [history.number((), "n", value).treatment for value in (1, 2**70)] == [CONSTANT] * 2


def test_marks_come_before_everything():
    x = torch.empty(8, 4, 2, 3)
    marks.mark_dynamic(x, 0, min=1, max=64)
    marks.mark_static(x, 1)
    marks.maybe_mark_dynamic(x, -2)
    marks.mark_unbacked(x, 3, min=2)
    found = marks.marks_of(x)
    history = DynamicHistory(False)
    decisions = [history.size(X, "x", dim, x.shape[dim], found, 4) for dim in range(4)]
    assert [decision.treatment for decision in decisions] == [SYMBOLIC, CONSTANT, SYMBOLIC, UNBACKED]
    assert (decisions[0].low, decisions[0].high, decisions[0].strict) == (1, 64, True)
    assert decisions[0].mark == "mark_dynamic(x, 0)" and not decisions[2].strict
    assert (decisions[3].low, decisions[3].high) == (2, None)
    assert not marks.marks_of(torch.empty(3))


def test_torchs_own_marks_are_read_and_ours_are_torchs():
    class Row:  # as torch keeps it
        dim, min, max = 1, 2, None

    x = torch.empty(4, 5)
    x._dynamo_dynamic_indices, x._dynamo_dynamic_range = {1}, {Row}
    assert marks.marks_of(x).dynamic == {1: (2, None)}
    y = torch.empty(4, 5)
    marks.mark_dynamic(y, [0, 1], max=9)
    assert y._dynamo_dynamic_indices == {0, 1}
    assert {(row.dim, row.min, row.max) for row in y._dynamo_dynamic_range} == {(0, None, 9), (1, None, 9)}
    marks.mark_dynamic(y, 0, max=7)
    assert marks.marks_of(y).dynamic[0] == (None, 7)


def _marks_in_torch(queue):
    import torch._dynamo

    x = torch.empty(4, 5, 6, 7)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    torch._dynamo.mark_static(x, 2)
    torch._dynamo.decorators.mark_unbacked(x, 3)
    found = marks.marks_of(x)
    queue.put((dict(found.dynamic), found.maybe_dynamic, found.static, dict(found.unbacked)))


@pytest.mark.slow
def test_marks_set_by_torch_itself():
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=_marks_in_torch, args=(queue,))
    process.start()
    assert queue.get(timeout=200) == ({0: (2, 8)}, {1}, {2}, {3: (None, None)})
    process.join()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: marks.mark_dynamic(x, 2), "dimension 2 does not exist: the tensor has 2"),
        (lambda x: marks.mark_dynamic(x, "0"), "a dimension is an int"),
        (lambda x: marks.mark_dynamic(x, 0, min=5, max=3), r"no size lies in \[5, 3\]"),
        (lambda x: marks.mark_unbacked(x, 0, min=-1), "not negative"),
        (lambda x: marks.mark_static(3), "takes a tensor or a class of modules"),
    ],
)
def test_marks_that_cannot_be_meant_are_refused(call, message):
    with pytest.raises(InvalidOption, match=message):
        call(torch.empty(2, 3))


def forward(self, x, cache, n=3):
    return x


def test_a_declaration_is_taken_as_written():
    given = {"x": {0: (1, 4096), -1: None}, "cache.key": [1], "n": (0, 9)}
    history = DynamicHistory(parse_specification(given, forward))
    first = history.size(X, "x", 0, 8, rank=3)
    assert (first.treatment, first.low, first.high, first.strict) == (SYMBOLIC, 1, 4096, True)
    assert history.size(X, "x", 2, 8, rank=3).treatment is SYMBOLIC
    assert history.size(X, "x", 1, 8, rank=3).treatment is CONSTANT
    assert history.size((), "cache.key", 1, 8, rank=2).treatment is SYMBOLIC
    assert history.number((), "n", 4).high == 9
    with pytest.raises(InvalidOption, match="'x' has 0 dimensions"):
        history.size(X, "x", 0, 8, rank=0)
    assert parse_specification(None, forward) is None and parse_specification(True, forward) is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"xs": {0: None}}, "no parameter 'xs'; did you mean 'x'"),
        ({"zzz": {0: None}}, "it takes cache, n, self, x"),
        ({"x": {"0": None}}, "a dimension of 'x' is an int, not '0'"),
        ({"x": {0: 5}}, r"the range of 'x', dimension 0 is \(min, max\) or None, not 5"),
        ({"x": {0: (5, 2)}}, "is empty"),
        ({"x": {0: (-5, 2)}}, "not negative"),
        ({"x": {}}, "lists no dimension"),
        ({0: {0: None}}, "named by a string"),
        ("x", "a mapping from parameters"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused_where_it_is_written(given, message):
    with pytest.raises(InvalidOption, match=message) as caught:
        parse_specification(given, forward)
    assert caught.value.reason == "dynamic_specification"


def test_every_reason_of_this_room_is_raised_by_its_example():
    for row in ROWS:
        if "stator.compile" in row.example:
            continue  # tests/reasons runs those
        namespace = {}
        exec(row.example, namespace)
        with pytest.raises(Exception) as caught:
            namespace["example"]()
        assert caught.value.reason == row.id and REASONS[row.id] is row
        assert f"[{row.id}]" in str(caught.value)


# the profile
@pytest.fixture
def kept(tmp_path):
    with config.patch(cache_dir=str(tmp_path), dynamic_profile=True, force_disable_caches=False):
        yield tmp_path / "dynamic"


def test_what_turned_dynamic_starts_dynamic_in_the_next_process(kept):
    key = profile.key_of(forward.__code__)
    turned = []
    history = DynamicHistory(None, profile.load(key), turned.append)
    assert sizes_of(history, [8, 5]) == [CONSTANT, SYMBOLIC]
    assert turned == ["x.size(0)"]
    profile.remember(key, turned)
    assert sizes_of(DynamicHistory(None, profile.load(key)), [8]) == [SYMBOLIC]
    with config.patch(dynamic_profile=False):
        assert profile.load(key) == frozenset()
        assert sizes_of(DynamicHistory(None, ["x.size(0)"]), [8]) == [CONSTANT]
    profile.forget()
    assert profile.load(key) == frozenset()


def test_keys_follow_the_text_and_the_position():
    first = compile("def f(x):\n    return x\n", "<text>", "exec").co_consts[0]
    other = compile("def f(x):\n    return x + 1\n", "<text>", "exec").co_consts[0]
    moved = compile("\n\n\ndef f(x):\n    return x\n", "<elsewhere>", "exec").co_consts[0]
    assert profile.key_of(first) == profile.key_of(moved) != profile.key_of(other)
    assert profile.key_of(first, "resume 12") != profile.key_of(first)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"format": 99, "sources": []}',
        b'{"format": 1, "sources": [1]}',
        b'{"format": 1, "sources": "x"}',
        b"\xff\xfe",
        json.dumps({"format": 1, "sources": ["x" * 5000]}).encode(),
        b" " * 1_000_000,
    ],
)
def test_a_damaged_file_is_dropped_reported_and_rebuilt(kept, damage):
    kept.mkdir()
    (kept / "k.json").write_bytes(damage)
    heard = []
    unsubscribe = events.subscribe(lambda event: heard.append(event.fields["operation"]), {"cache"})
    try:
        assert profile.load("k") == frozenset()
        assert heard == ["corrupt"]
        profile.remember("k", ["x.size(0)"])
        assert profile.load("k") == {"x.size(0)"}
    finally:
        unsubscribe()


def test_the_profile_is_bounded(kept, monkeypatch):
    profile.remember("k", [f"x.size({dim})" for dim in range(1000)])
    assert len(profile.load("k")) == profile.MOST_SOURCES
    monkeypatch.setattr(profile, "MOST_FILES", 8)
    for number in range(30):
        profile.remember(f"key{number}", ["n"])
    assert len(list(kept.iterdir())) <= 8


def test_nothing_is_written_where_nothing_can_be(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with config.patch(cache_dir=str(blocked)):
        profile.remember("k", ["n"])
        assert profile.load("k") == frozenset()


def test_a_specification_is_plain_data():
    given = parse_specification({"x": [0]}, forward)
    assert given == Specification({"x": {0: (None, None)}})
