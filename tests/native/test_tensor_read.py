"""Reading tensors: every kind of tensor at every level of calibration, against torch's own answers."""

import pytest
import torch

from stator import _native
from stator._native import calibrate, core
from stator.guards import compile_guards, evaluate
from stator.guards.reference import Unreachable, tensor_facts
from stator.values.source import SourceTree, TensorExpectation

LEVELS = ["python", "shims", "raw", "raw elsewhere"]


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    """Each way of reading; "raw elsewhere" is a layout that is not the usual one, so nothing is a constant."""
    before = _native.CALIBRATION.level
    if request.param == "raw elsewhere":
        monkeypatch.setitem(_native.CALIBRATION.offsets, "requires_grad_flag", 0)
    name = request.param.split()[0]
    _native.use_level(calibrate.LEVEL_NAMES.index(name))
    yield name
    monkeypatch.undo()
    _native.use_level(before)


class Wrapper(torch.Tensor):
    """A wrapper subclass: no storage, operators go to Python."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("a guard dispatched an operator")


class Named(torch.Tensor):
    pass


def batched():
    """A functorch wrapper, kept beyond its level as a leaked one would be."""
    kept = []
    torch.vmap(lambda x: kept.append(x) or x)(torch.ones(3, 2))
    return kept[0]


def inference():
    with torch.inference_mode():
        return torch.ones(2, 3)


MAKERS = {
    "plain": lambda: torch.ones(2, 3),
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.ones(0, 4),
    "many dimensions": lambda: torch.ones(1, 2, 1, 2, 1, 2, 1, 2).transpose(0, 7),
    "view": lambda: torch.ones(6, 6)[1:, ::2],
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "not leaf": lambda: torch.ones(3, requires_grad=True) * 2,
    "bool": lambda: torch.ones(3, dtype=torch.bool),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "conj": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "neg": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "inference": inference,
    "meta": lambda: torch.ones(2, 3, device="meta"),
    "subclass": lambda: torch.ones(2, 3).as_subclass(Named),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse csr": lambda: torch.eye(3).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(2, 3).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "wrapper": lambda: Wrapper(torch.ones(2, 3)),
    "functorch": batched,
    "expanded": lambda: torch.ones(1, 3).expand(4, 3),
    "buffer": lambda: torch.nn.BatchNorm1d(2).running_mean,
}


def make(name):
    try:
        return MAKERS[name]()
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch cannot make it: {error}")


def guard_of(expected):
    tree = SourceTree(("t",))
    tree.local(0).guard("TENSOR", expected)
    return tree, compile_guards(tree)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MAKERS)
def test_read_is_exact_or_declined(name, level):
    value = make(name)
    seen = core.read_tensor(value)
    if seen is None:
        assert level == "python" or name in (
            "meta",
            "sparse",
            "sparse csr",
            "mkldnn",
            "nested",
            "wrapper",
            "functorch",
        )
        return
    assert seen["sizes"] == tuple(value.shape) and seen["strides"] == value.stride()
    assert seen["storage_offset"] == value.storage_offset() and seen["requires_grad"] == value.requires_grad
    assert seen["dtype"] == _native.CALIBRATION.dtype_codes[value.dtype] and seen["device_type"] == 0
    assert seen["dispatch_keys"] == torch._C._dispatch_keys(value).raw_repr()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_keys", [True, False], ids=["keys", "no keys"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_guard_of_each_kind_against_each_kind(name, with_keys, level):
    value = make(name)
    try:
        facts = tensor_facts(value)
    except Unreachable:
        facts = TensorExpectation(
            type(value), torch.float32, torch.device("cpu"), False, (2, 3), (3, 1), torch.strided, None
        )
    if not with_keys:
        facts = TensorExpectation(**{**{f: getattr(facts, f) for f in facts.__slots__}, "dispatch_keys": None})
    tree, program = guard_of(facts)
    for other in MAKERS:
        try:
            tensor = MAKERS[other]()
        except (RuntimeError, NotImplementedError):
            continue
        expected = evaluate(tree, [], None, (tensor,)) is not None
        assert (program.check(None, (tensor,)) is not None) == expected, (name, other)
        if other == name and name not in ("nested", "functorch", "wrapper"):
            assert expected, name


CHANGES = {
    "kind": (torch.nn.Parameter, 1), "dtype": (torch.float64, 1), "device": (torch.device("meta"), 1),
    "requires_grad": (True, 1), "sizes": ((2, 4), 1), "strides": ((3, 2), 1), "layout": (torch.sparse_coo, 1),
    "dispatch_keys": (5, 1), "is_inference": (True, 1), "is_conj": (True, 1), "is_neg": (True, 1),
    "storage_offset": (1, 1),
}  # fmt: skip


@pytest.mark.parametrize("field", TensorExpectation.__slots__)
def test_every_field_counts(field, level):
    value = torch.ones(2, 3)
    facts = tensor_facts(value)
    assert guard_of(facts)[1].check(None, (value,)) == ()
    from dataclasses import replace

    assert guard_of(replace(facts, **{field: CHANGES[field][0]}))[1].check(None, (value,)) is None


def test_wildcards(level):
    from dataclasses import replace

    facts = replace(tensor_facts(torch.ones(2, 3)), sizes=(None, 3), strides=(None, 1), storage_offset=None)
    _, program = guard_of(facts)
    assert program.check(None, (torch.ones(9, 3),)) == ()
    assert program.check(None, (torch.ones(9, 6)[:, 3:],)) == ()
    assert program.check(None, (torch.ones(9, 4),)) is None
    assert program.check(None, (torch.ones(9, 6)[:, ::2],)) is None
    assert program.check(None, (torch.ones(3),)) is None
    _, free = guard_of(replace(facts, strides=None))
    assert free.check(None, (torch.ones(9, 6)[:, ::2],)) == ()


def test_sizes_at_every_level(level):
    tree = SourceTree(("t",))
    root = tree.local(0)
    fetches = [root.child("SIZE", 1), root.child("STRIDE", 0), root.child("OFFSET"), root.child("GRAD")]
    program = compile_guards(tree, fetches)
    assert program.check(None, (torch.ones(4, 6)[1:, 2:5],)) == (3, 6, 8, None)
    assert program.check(None, (torch.ones(4, 6, device="meta")[1:, 2:5],)) == (3, 6, 8, None)
    assert program.check(None, (torch.ones(4),)) is None
    assert program.check(None, ("no tensor",)) is None


def test_calibration_is_reported():
    report = _native.calibration()
    assert report["torch"] == torch.__version__ and report["tensors"] in calibrate.LEVEL_NAMES
    assert report["refused"] == [] and report["modes_by_python"] == [] and report["tensors"] == "raw"


def test_a_layout_without_its_functions_is_refused():
    with pytest.raises(ValueError):
        core.set_tensor_layout(calibrate.SHIMS, {}, {}, {}, torch._C._dispatch_keys)
    assert core.read_tensor(torch.ones(2)) is not None


def test_wrong_offsets_are_found_out(monkeypatch):
    """A torch whose tensors are laid out otherwise: raw reads are refused, the shims take over."""
    fresh = calibrate.Calibration()
    before = _native.CALIBRATION
    monkeypatch.setattr(calibrate, "CALIBRATION", fresh)
    found = calibrate._find_offsets(calibrate._samples())
    monkeypatch.setattr(calibrate, "_find_offsets", lambda samples: {**found, "strides": found["strides"] + 8})
    try:
        calibrate._calibrate_tensors()
        assert fresh.level == calibrate.SHIMS and "raw" in fresh.refused[0]
        monkeypatch.setattr(calibrate.symbols, "addresses", lambda table: {})
        calibrate._calibrate_tensors()
        assert fresh.level == calibrate.PYTHON
    finally:
        monkeypatch.undo()
        assert calibrate.CALIBRATION is before
        _native.use_level(before.level)


def test_modes_by_python_alone():
    from stator.guards.modes import read_modes

    tree = SourceTree()
    tree.state().guard("MODES", read_modes())
    core.set_mode_readers({})
    try:
        program = compile_guards(tree)
        assert program.check(None, ()) == ()
        with torch.no_grad():
            assert program.check(None, ()) is None
    finally:
        core.set_mode_readers(_native.CALIBRATION.mode_functions)
