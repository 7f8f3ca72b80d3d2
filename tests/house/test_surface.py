"""`stator.X` has the name and the arguments of `torch.compile` and `torch.compiler.X`: moving over is one import."""

import inspect
import subprocess
import sys

import pytest
import torch

import stator

# What torch.compiler has and stator has not, and why. A name that stator gains must leave this table.
ABSENT = {
    "get_default_backend": "stator's default is its own compiler; `backend=` names another",
    "is_exporting": "there is no export in stator",
    "keep_portable_guards_unsafe": "filters of torch's own guard lists",
    "keep_tensor_guards_unsafe": "filters of torch's own guard lists",
    "load_compiled_function": "compiled code is on disk already, in the persistent caches",
    "nested_compile_region": "not yet",
    "set_default_backend": "stator's default is its own compiler; `backend=` names another",
    "set_enable_guard_collectives": "not yet: distributed",
    "skip_all_guards_unsafe": "filters of torch's own guard lists",
    "skip_guard_on_all_nn_modules_unsafe": "filters of torch's own guard lists",
    "skip_guard_on_globals_unsafe": "filters of torch's own guard lists",
    "skip_guard_on_inbuilt_nn_modules_unsafe": "filters of torch's own guard lists",
    "wrap_numpy": "not yet",
}
# Arguments of torch's functions that stator's do not take, and why.
ABSENT_ARGUMENTS = {
    "compile": {
        "name": "regions have numbers, and the name of the function",
        "isolate_recompiles": "entries belong to code and options, and so do their limits",
        "shapes_spec": "`dynamic=` takes a mapping of arguments to sizes",
    },
}
# Defaults of earlier releases, which said there what None says now.
EARLIER_DEFAULTS = {"backend": "inductor"}
BOTH = sorted(name for name in torch.compiler.__all__ if hasattr(stator, name) and name not in ("compile", "config"))


def names_of(function):
    return [row.name for row in inspect.signature(function).parameters.values() if not row.name.startswith("_")]


def test_every_name_is_there_or_absent_for_a_reason():
    absent = {name for name in torch.compiler.__all__ if not hasattr(stator, name)}
    newer = absent - set(ABSENT)  # torch 2.11 and 2.12 have fewer names than 2.13
    assert not newer, "torch.compiler has names that stator has not"
    assert not {name for name in ABSENT if hasattr(stator, name)}, "stator has gained a name: take it out of ABSENT"


@pytest.mark.parametrize("name", BOTH)
def test_arguments_have_torchs_names_in_torchs_order(name):
    theirs, ours = names_of(getattr(torch.compiler, name)), names_of(getattr(stator, name))
    assert ours[: len(theirs)] == theirs


def test_compile_takes_what_torch_compile_takes():
    theirs, ours = inspect.signature(torch.compile).parameters, inspect.signature(stator.compile).parameters
    missing = [name for name in theirs if name not in ours]
    assert set(missing) <= set(ABSENT_ARGUMENTS["compile"])
    for name, row in ours.items():
        if name not in theirs:  # newer than this torch
            continue
        assert row.kind == theirs[name].kind, name
        assert row.default == theirs[name].default or theirs[name].default == EARLIER_DEFAULTS.get(name), name


def test_all_names_what_is_public():
    assert sorted(stator.__all__) == list(stator.__all__)
    assert all(hasattr(stator, name) for name in stator.__all__)


def test_the_public_names_are_documented():
    undocumented = [name for name in stator.__all__ if not inspect.getdoc(getattr(stator, name))]
    assert not undocumented


def test_reading_signatures_needs_nothing_of_torchs_compiler():
    program = "import sys, stator; stator.list_backends(); assert 'torch._dynamo' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], timeout=100).returncode == 0
