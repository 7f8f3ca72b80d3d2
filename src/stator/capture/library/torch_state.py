"""Functions of torch that read or set its modes, and predicates that compiled code answers in its own way.

Contract. Modes a program sets while traced are really set (abstract results hang on them) and recorded in the graph
so that the backend sets them too; the trace puts them back when it ends. Reading a mode is covered by the guard on
modes that every entry has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.overrides

from stator.capture import nonstrict
from stator.capture.control import Break, SkipFrame
from stator.tensors.abstract import AbstractTensor

if TYPE_CHECKING:
    from stator.capture.tracer import Tracer


def _read(function: Any) -> Any:
    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return tracer.native(function, *args, **kwargs)

    return handler


def _set_and_record(function: Any) -> Any:
    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        tracer.graph.call(function, tuple(args), kwargs, None)
        return tracer.native(function, *args, **kwargs)

    return handler


def _constant(value: Any) -> Any:
    return lambda tracer, args, kwargs: value


def _is_tensor(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return tracer.is_instance(args[0], torch.Tensor)


def _type(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`tensor.type()` names a type that is made of dtype and device; `tensor.type(what)` converts."""
    tensor = args[0]
    if type(tensor) is not AbstractTensor or kwargs or len(args) > 2 or tensor.layout is not torch.strided:
        return NotImplemented
    cuda = "cuda." if tensor.device.type == "cuda" else ""
    if len(args) == 1 or args[1] is None:
        tracer.graph.guard_tensor(tensor)
        names = {str(kind.dtype): kind.__name__ for kind in TENSOR_TYPES}
        return f"torch.{cuda}{names[str(tensor.dtype)]}" if str(tensor.dtype) in names else NotImplemented
    wanted = args[1]
    if isinstance(wanted, str) and wanted.startswith(f"torch.{cuda}") and wanted.count(".") == 1 + bool(cuda):
        wanted = getattr(torch, wanted.rpartition(".")[2], None)
    if type(wanted) is type(torch.FloatTensor) and wanted.is_cuda == bool(cuda):
        wanted = wanted.dtype
    return tracer.operate(torch.Tensor.to, (tensor, wanted), {}) if isinstance(wanted, torch.dtype) else NotImplemented


def _graph_break(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    detail = args[0] if args else kwargs.get("msg", "")
    raise Break("explicit_graph_break", str(detail))


def _skip_frame(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    raise SkipFrame(str(args[0]) if args else "")


def _assert(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    condition = args[0] if args else kwargs["condition"]
    if type(condition) is AbstractTensor:
        message = args[1] if len(args) > 1 else kwargs.get("message", "assertion failed")
        tracer.operate(torch._assert_async, (condition, str(message)), {})
        return None
    return NotImplemented


def _swap_error_on_break(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    before, tracer.error_on_break = tracer.error_on_break, args[0]
    return before


def _error_on_break(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return bool(tracer.error_on_break)


def _nest(step: int) -> Any:
    """Entering or leaving an autocast context; the thread's own count, which clears the cache at 0, is left alone."""

    def handler(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> int:
        tracer.nesting += step
        torch.autocast_increment_nesting()
        return torch.autocast_decrement_nesting() + tracer.nesting

    return handler


TENSOR_TYPES: tuple[Any, ...] = (
    torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor, torch.ByteTensor, torch.CharTensor,
    torch.ShortTensor, torch.IntTensor, torch.LongTensor, torch.BoolTensor,
)  # fmt: skip
READS = (
    torch.is_grad_enabled, torch.get_default_dtype, torch.is_autocast_enabled,
    torch.get_autocast_dtype, torch.is_autocast_cache_enabled, torch.are_deterministic_algorithms_enabled,
    torch._C._get_tracing_state, torch.get_num_threads, torch.cuda.is_available,
    torch.is_anomaly_enabled, torch.cuda.device_count, torch.get_autocast_gpu_dtype,
    torch.get_autocast_cpu_dtype, torch.is_autocast_cpu_enabled, torch.is_deterministic_algorithms_warn_only_enabled,
    torch.finfo, torch.iinfo, torch.promote_types, torch.can_cast, torch.get_float32_matmul_precision,
    torch._C._cuda_getDeviceCount if hasattr(torch._C, "_cuda_getDeviceCount") else torch.cuda.device_count,
    torch.distributed.is_available, torch._C._functorch.maybe_current_level, torch._C._autograd._profiler_enabled,
    torch._C._get_deterministic_algorithms, torch._C._get_cudnn_enabled, torch._C._get_cublas_allow_tf32,
    torch._C._len_torch_dispatch_stack, torch.is_warn_always_enabled,
    torch._C._is_any_autocast_enabled, torch._C._is_autocast_available, torch._C._get_privateuse1_backend_name,
    torch.overrides.is_tensor_method_or_property,
)  # fmt: skip
SETS = (torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled, torch.clear_autocast_cache)  # fmt: skip

FUNCTIONS: dict[Any, Any] = {
    **{function: _read(function) for function in READS},
    **{function: _set_and_record(function) for function in SETS},
    torch.autocast_increment_nesting: _nest(1),
    torch.autocast_decrement_nesting: _nest(-1),
    torch.is_tensor: _is_tensor,
    torch.Tensor.type: _type,
    torch.autograd._is_checkpoint_valid: _read(torch.autograd._is_checkpoint_valid),
    torch._C._are_functorch_transforms_active: _read(torch._C._are_functorch_transforms_active),
    torch._assert: _assert,
    torch.jit.is_scripting: _constant(False),
    torch.jit.is_tracing: _constant(False),
    torch.compiler.is_compiling: _constant(True),
    torch.compiler.is_dynamo_compiling: _constant(True),
    torch.compiler.is_exporting: _constant(False),
    torch._C._get_tracing_state: _constant(None),
}
LATE_FUNCTIONS: dict[tuple[Any, Any], Any] = {
    ("torch._dynamo.decorators", "nonstrict_trace"): nonstrict.mark_inline,
    ("stator.api.controls", "nonstrict_trace"): nonstrict.mark_inline,
    ("stator.capture.nonstrict", "call_whole"): nonstrict.call_marked_inline,
    ("torch._dynamo.mutation_guard", "GenerationTracker.tag"): _constant(None),
    ("torch._dynamo.decorators", "graph_break"): _graph_break,
    ("torch._dynamo.decorators", "skip_frame"): _skip_frame,
    ("torch._dynamo.external_utils", "is_compiling"): _constant(True),
    ("torch._dynamo.utils", "is_compile_supported"): _constant(True),
    ("torch._utils", "is_compiling"): _constant(True),
    ("torch._dynamo.utils", "_get_error_on_graph_break"): _error_on_break,
    ("torch._dynamo.utils", "_set_error_on_graph_break"): _swap_error_on_break,
    ("stator.api.controls", "graph_break"): _graph_break,
    ("stator.api.controls", "swap_error_on_graph_break"): _swap_error_on_break,
    ("stator.api.controls", "skip_frame"): _skip_frame,
    ("stator.api.controls", "is_compiling"): _constant(True),
    ("stator.api.controls", "is_dynamo_compiling"): _constant(True),
    ("stator.api.controls", "is_exporting"): _constant(False),
}
