import types

import pytest
import torch

from stator import events
from stator.api import install


@pytest.fixture
def public(monkeypatch):
    """A `stator` namespace that records what reaches it."""
    calls = []

    def compile(model=None, *, fullgraph=False, dynamic=None, backend="stator", mode=None, recompile_limit=None):
        calls.append((model, dict(fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode)))
        return model

    def disable(fn=None, recursive=True):
        return fn

    fake = types.SimpleNamespace(compile=compile, disable=disable, calls=calls, is_compiling=lambda: "ours")
    monkeypatch.setattr(install, "_public", lambda: fake)
    yield fake
    install.uninstall()


def surface():
    names = [name for name in dir(torch.compiler) if not name.startswith("__")]
    return [torch.compile, torch.nn.Module.compile, *[torch.compiler.__dict__.get(name) for name in names]]


def test_everything_is_replaced_and_put_back(public):
    before = surface()
    install.install()
    install.install()
    assert install.installed()
    assert torch.compiler.is_compiling() == "ours" and torch.compiler.disable is public.disable
    assert torch.compiler.compile is torch.compile is not before[0]
    install.uninstall()
    assert [a is b for a, b in zip(before, surface(), strict=True)].count(False) == 0
    install.uninstall()
    assert not install.installed()


def test_torch_compile_reaches_stator(public):
    install.install()

    def f(x):
        return x

    assert torch.compile(f, fullgraph=True) is f
    assert torch.compile(dynamic=True)(f) is f

    @torch.compile
    def g(x):
        return x

    @torch.compile(backend="inductor", mode="max-autotune-no-cudagraphs")
    def h(x):
        return x

    options = [call[1] for call in public.calls]
    assert options[0]["fullgraph"] and options[1]["dynamic"] and public.calls[2][0] is g
    assert options[3]["backend"] == "stator" and options[3]["mode"] == "max-autotune"
    torch.compile(f, backend="eager")
    assert public.calls[-1][1]["backend"] == "eager"


def test_module_compile(public):
    install.install()
    module = torch.nn.Linear(2, 2)
    assert module.compile(fullgraph=True) is None
    assert public.calls[-1][0] is module and public.calls[-1][1]["fullgraph"]


def test_what_has_no_counterpart_is_said(public):
    install.install()
    seen = []
    end = events.subscribe(lambda event: seen.append(event.fields["text"]), {"warning"})
    torch.compile(
        lambda x: x, options={"triton.cudagraphs": True}, name="region", backend=None, isolate_recompiles=False
    )
    end()
    assert any("options" in text for text in seen) and any("name" in text for text in seen) and len(seen) == 2


def test_nothing_to_install_is_an_error(monkeypatch):
    monkeypatch.setattr(install, "_public", lambda: types.SimpleNamespace())
    before = surface()
    with pytest.raises(RuntimeError, match="no compile"):
        install.install()
    assert all(a is b for a, b in zip(before, surface(), strict=True))


def test_predicates_that_are_lent_do_not_ask_themselves():
    install.install()
    try:
        assert torch.compiler.is_exporting() is False
    finally:
        install.uninstall()
