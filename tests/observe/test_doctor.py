import types

import pytest
import torch

from stator.observe import doctor


def named(findings):
    return {finding.name: finding for finding in findings}


def test_facts():
    found = named(doctor.examine(types.SimpleNamespace()))
    assert torch.__version__ in found["versions"].detail and found["versions"].state == doctor.OK
    assert found["processor"].state == found["features"].state == found["caches"].state == doctor.OK
    assert found["GPU"].state == doctor.OK


def test_what_is_missing_is_reported():
    found = named(doctor.examine(types.SimpleNamespace()))
    for test in doctor.SELF_TESTS:
        assert found[test.name].state == doctor.MISSING
    assert "not well: " in doctor.text(list(found.values())).splitlines()[-1]


@pytest.fixture
def built(monkeypatch):
    """All modules are there, as far as the doctor can see."""
    monkeypatch.setattr(doctor, "_exists", lambda module: True)


def test_a_stage_that_gives_eagers_result_is_well(built):
    public = types.SimpleNamespace(compile=lambda function, **options: function)
    found = named(doctor.examine(public))
    for test in doctor.SELF_TESTS:
        assert found[test.name].state == doctor.OK, found[test.name]


def test_wrong_results_and_errors_are_broken(built):
    def wrong(function, backend=None, **options):
        if backend == "aot_eager":
            raise RuntimeError("first line\nsecond line")
        return lambda *args: function(*args) + 1

    found = named(doctor.examine(types.SimpleNamespace(compile=wrong)))
    assert found["capture"].state == doctor.BROKEN and "AssertionError" in found["capture"].detail
    assert found["ahead of time"].detail == "RuntimeError: first line"


def test_a_slow_stage_is_a_warning(built, monkeypatch):
    monkeypatch.setattr(doctor, "_SHARE", 0.0)
    found = named(doctor.examine(types.SimpleNamespace(compile=lambda function, **options: function)))
    assert found["capture"].state == doctor.WARNING


def test_an_unwritable_cache_is_broken(monkeypatch, tmp_path):
    def refuse(**options):
        raise PermissionError("Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    found = named(doctor.examine(types.SimpleNamespace()))
    assert found["caches"].state == doctor.BROKEN


def test_the_self_tests_fit_in_ten_seconds():
    stator = pytest.importorskip("stator")
    if not hasattr(stator, "compile"):
        pytest.skip("stator.compile is not built yet")
    findings = doctor.examine(stator)
    assert sum(finding.seconds for finding in findings) < 10
    assert not [finding for finding in findings if finding.state == doctor.BROKEN]
