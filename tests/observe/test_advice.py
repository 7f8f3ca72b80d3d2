import pytest
import torch

from stator.events import Location, Miss
from stator.observe import advice
from stator.observe.records import Record, miss_row
from stator.reasons import REASONS
from stator.values.source import GUARD_KINDS, ModesExpectation, SourceTree, TensorExpectation


def recompiled(*misses, **fields):
    fields = {"old": None, "new": None, "name": "f", **fields}
    return advice.of_recompile(
        Record("recompile", None, 0.0, 0, None, {"misses": list(map(miss_row, misses)), **fields})
    )


FLOAT = "float32[2, 3] on cpu, strides (3, 1)"


@pytest.mark.parametrize(
    "source, kind, old, new, aspect, says",
    [
        ("x", "TENSOR", FLOAT, "float32[4, 3] on cpu, strides (3, 1)", "size", "x.size(0) was 2 and is 4"),
        ("x", "TENSOR", "float32[*, 3] on cpu", "float32[9, 5] on cpu", "size", "x.size(1) was 3 and is 5"),
        ("x", "TENSOR", FLOAT, "float64[2, 3] on cpu, strides (3, 1)", "dtype", "x.dtype was float32 and is float64"),
        ("x", "TENSOR", FLOAT, FLOAT + ", requires_grad", "requires_grad", "x.requires_grad was False and is True"),
        ("x", "TENSOR", FLOAT, "float32[2, 3] on cuda:0, strides (3, 1)", "device", "x.device was cpu and is cuda:0"),
        ("x", "TENSOR", FLOAT, "float32[2, 3] on cpu, strides (1, 2)", "stride", "(3, 1) and is (1, 2)"),
        ("x", "TENSOR", FLOAT, "float32[2] on cpu, strides (1)", "rank", "x.dim() was 2 and is 1"),
        ("x", "TENSOR", FLOAT, "Parameter " + FLOAT, "type", "type(x) was Tensor and is Parameter"),
        ("x", "TENSOR", FLOAT, "None", "value", "and is None"),
        ("x.size(1)", "EQUALS", "2", "4", "size", "x.size(1) was 2 and is 4"),
        ("x.size(1)", "RANGE", "within (2, None)", "1", "range", "x.size(1) had to be within (2, None) and is 1"),
        ("n", "EQUALS", "1.0", "0.5", "number", "n was 1.0 and is 0.5"),
        ("flag", "EQUALS", "True", "False", "constant", "flag was True and is False"),
        ("how", "EQUALS", "'relu'", "'gelu'", "constant", "how was 'relu' and is 'gelu'"),
        ("xs", "LENGTH", "length 2", "length 3", "container", "len(xs) was 2 and is 3"),
        ("m", "TYPE_IS", "type builtins.int", "type builtins.float", "type", "type(m) was int and is float"),
        ("global state", "MODES", "grad_enabled=True, x=1", "grad_enabled=False", "mode", "grad_enabled was True"),
        ("f", "CODE_IS", "code of f", "code of g", "object", "f was code of f and is code of g"),
    ],
)  # fmt: skip
def test_what_changed_and_what_to_do(source, kind, old, new, aspect, says):
    said = recompiled(Miss(0, source, kind, old, new, Location("m.py", 7, "f")))
    assert said.reason == f"recompile_{aspect}"
    assert said.headline.startswith("m.py:7 in f: recompiled because ") and says in said.headline
    assert "{" not in said.action and said.action.endswith(".")


def test_it_reads_what_guards_explain():
    """The words of the guards room and ours fit together."""
    guards = pytest.importorskip("stator.guards")
    x = torch.ones(2, 3)

    def misses(fill, value):
        tree = SourceTree(("x",))
        fill(tree.local(0), tree)
        return guards.explain_miss(tree, lambda x: x, (value,))

    def tensor(node, tree):
        expected = TensorExpectation(type(x), x.dtype, x.device, False, tuple(x.shape), x.stride(), x.layout)
        node.guard("TENSOR", expected, Location("m.py", 3, "f"))

    cases = [
        (tensor, torch.ones(5, 3), "recompile_size"),
        (tensor, x.double(), "recompile_dtype"),
        (tensor, torch.ones(3, 2).t(), "recompile_stride"),
        (tensor, x.clone().requires_grad_(), "recompile_requires_grad"),
        (lambda node, tree: node.guard("EQUALS", 2), 3, "recompile_number"),
        (lambda node, tree: node.guard("LENGTH", 2), [1], "recompile_container"),
        (lambda node, tree: node.guard("TYPE_IS", int), "1", "recompile_type"),
        (lambda node, tree: tree.state().guard("MODES", ModesExpectation(grad_enabled=False)), 1, "recompile_mode"),
    ]
    for fill, value, reason in cases:
        assert recompiled(misses(fill, value)).reason == reason


def test_every_kind_of_guard_has_an_aspect():
    assert set(advice._ASPECTS) | {"TENSOR"} == set(GUARD_KINDS)
    assert set(advice._ASPECTS.values()) <= set(advice.ACTIONS)


def test_without_explanations_it_still_says_something():
    assert "no misses" not in recompiled().headline
    assert "free words" in recompiled("free words").headline
    assert recompiled(old=1, new=2).headline.endswith("[recompile_value]")


def test_a_break_says_the_words_of_its_reason():
    row = next(row for row in REASONS.values() if "{detail" in row.summary)
    record = Record("graph_break", None, 0.0, 0, Location("m.py", 2, "f"), {"reason": row.id, "detail": "the detail"})
    said = advice.of_break(record)
    assert "the detail" in said.what and said.reason == row.id and said.action.startswith(row.hint[:20])
    unknown = Record(
        "graph_break", None, 0.0, 0, None, {"reason": "new_reason", "detail": None, "stack": [["a.py", 3, "g", ""]]}
    )
    assert advice.of_break(unknown).headline == "a.py:3 in g: graph break: new reason. [new_reason]"


def test_short_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert advice.short_path(str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert advice.short_path("/elsewhere/b.py") == "/elsewhere/b.py"
    assert advice.short_path("<string>") == "<string>"


def test_a_size_that_equals_a_number_is_a_specialisation():
    from stator import events
    from stator.observe.records import render

    seen = []
    end = events.subscribe(lambda event: seen.append(render(event)), {"dynamic"})
    where = Location("m.py", 4, "f")
    events.emit("dynamic", where, text="x.size(0) == 8", symbol="", source="", user_line=where)
    events.emit("dynamic", where, text="x.size(0) >= 1", symbol="", source="", user_line=where)
    events.emit("dynamic", where, text="s0 = x.size(0)", symbol="s0", source="x.size(0)", user_line=None)
    events.emit("dynamic", where, text="x.size(1) == x.stride(0)", symbol="", source="", user_line=where)
    end()
    assert [record.fields["action"] for record in seen] == ["specialised", "bounded", "made", "bounded"]
    said = advice.of_specialisation(seen[0])
    assert said.headline.startswith("m.py:4 in f: x.size(0) became the constant 8, because this line needs")


def test_the_same_advice_many_times_is_one_with_the_sum_of_the_costs():
    line = Location("model.py", 3, "forward")
    rows = [
        advice.Advice("recompile", line, f"was {n} and is {n + 1}.", "Do it.", "recompile_number", n) for n in (3, 2)
    ]
    other = advice.Advice("recompile", line, "was 1 and is 2.", "Do that.", "recompile_number", 1.0)
    first, second = advice.merged([*rows, other])
    assert first.what == "was 3 and is 4 (and 1 more like it)." and first.seconds == 5
    assert second is other
