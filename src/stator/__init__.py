"""stator: an independent torch.compile. The public names; docs/layout.md walks through the rooms behind them."""

from stator import config, exc
from stator.aot import trace
from stator.api.backends import (
    get_default_backend,
    list_backends,
    lookup_backend,
    register_backend,
    set_default_backend,
)
from stator.api.compile import compile
from stator.api.controls import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    error_on_graph_break,
    forbid_in_graph,
    graph_break,
    is_compiling,
    is_dynamo_compiling,
    is_exporting,
    nested_compile_region,
    nonstrict_trace,
    set_stance,
    skip_frame,
    substitute_in_graph,
)
from stator.api.install import install, uninstall
from stator.api.session import cudagraph_mark_step_begin, load_cache_artifacts, reset, save_cache_artifacts, start
from stator.api.views import explain
from stator.guards.filters import (
    keep_portable_guards_unsafe,
    keep_tensor_guards_unsafe,
    skip_all_guards_unsafe,
    skip_guard_on_all_nn_modules_unsafe,
    skip_guard_on_globals_unsafe,
    skip_guard_on_inbuilt_nn_modules_unsafe,
)
from stator.observe.logs import set_logs
from stator.observe.metrics import metrics
from stator.sizes.marks import mark_dynamic, mark_static, mark_static_address, mark_unbacked, maybe_mark_dynamic

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "config",
    "cudagraph_mark_step_begin",
    "disable",
    "disallow_in_graph",
    "error_on_graph_break",
    "exc",
    "explain",
    "forbid_in_graph",
    "get_default_backend",
    "graph_break",
    "install",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "keep_portable_guards_unsafe",
    "keep_tensor_guards_unsafe",
    "list_backends",
    "load_cache_artifacts",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "metrics",
    "nested_compile_region",
    "nonstrict_trace",
    "register_backend",
    "reset",
    "save_cache_artifacts",
    "set_default_backend",
    "set_logs",
    "set_stance",
    "skip_all_guards_unsafe",
    "skip_frame",
    "skip_guard_on_all_nn_modules_unsafe",
    "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe",
    "substitute_in_graph",
    "trace",
    "uninstall",
]

start()
