from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from runtime_helpers import build_native, build_reference

from stator.runtime import native
from stator.runtime.program import ProgramBuilder


@pytest.fixture(params=["native", "reference"])
def build(request: pytest.FixtureRequest) -> Callable[[ProgramBuilder], Any]:
    """Each test of behaviour runs by both executions."""
    return build_native if request.param == "native" else build_reference


@pytest.fixture
def native_runtime() -> native.Runtime:
    runtime = native.runtime()
    assert runtime is not None, native.why_not()
    return runtime
