"""stator: an independent torch.compile. The public names; docs/layout.md walks through the rooms behind them."""

from stator import config, exc
from stator.aot import trace
from stator.api.backends import list_backends, register_backend
from stator.api.compile import compile
from stator.api.controls import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    forbid_in_graph,
    graph_break,
    is_compiling,
    is_dynamo_compiling,
    nonstrict_trace,
    skip_frame,
)
from stator.runtime.region import reset
from stator.runtime.stance import set_stance

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "config",
    "disable",
    "disallow_in_graph",
    "exc",
    "forbid_in_graph",
    "graph_break",
    "is_compiling",
    "is_dynamo_compiling",
    "list_backends",
    "nonstrict_trace",
    "register_backend",
    "reset",
    "set_stance",
    "skip_frame",
    "trace",
]
