"""Finds out, at import, how the core may read this torch, and proves it before relying on it.

Contract. Importing this module leaves the core at the best of three levels that proved itself:

    RAW     fields of tensors are read from memory; their places were found on sample tensors and checked on others
    SHIMS   they are read through libtorch's C functions
    PYTHON  they are asked of torch in Python

and gives it the addresses of those readers of global state whose answers agreed with Python's. Nothing here can crash
on another version of torch: memory is only looked at within the size a TensorImpl has had in every supported version,
and a reader that disagrees is dropped. `calibration()` is what `stator doctor` shows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from stator._native import core, symbols

PYTHON, SHIMS, RAW = 0, 1, 2
LEVEL_NAMES = ("python", "shims", "raw")

# The key set is the last field of a TensorImpl: word 21 since torch 2.13, 22 before. What is looked for upwards is
# found before the end.
IMPL_WORDS = range(1, 23)
INLINE_DIMS = 5

# c10::ScalarType and c10::DeviceType are part of torch's serialised formats and only ever grow.
SCALAR_TYPES: dict[torch.dtype, int] = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip
DEVICE_TYPES: dict[str, int] = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13}

# Keys a plain dense tensor may carry: nothing that makes its geometry symbolic, nested, sparse or somebody else's.
PLAIN_KEYS = (
    "Dense", "AutogradFunctionality", "ADInplaceOrView", "Conjugate", "Negative", "AutogradCPU", "AutogradCUDA",
    "AutogradXPU", "AutogradMPS", "AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS",
    "CPU", "CUDA", "XPU", "MPS",
)  # fmt: skip


@dataclass
class Calibration:
    """What was found."""

    level: int = PYTHON
    offsets: dict[str, int] = field(default_factory=dict)
    masks: dict[str, int] = field(default_factory=dict)
    tensor_functions: dict[str, int] = field(default_factory=dict)
    mode_functions: dict[str, int] = field(default_factory=dict)
    dtype_codes: dict[torch.dtype, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def plain_keys(self) -> int:
        return self.masks.get("plain", 0)


CALIBRATION = Calibration()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Whatever modes the importing thread is in, samples are real tensors."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield


def _samples() -> list[torch.Tensor]:
    """Tensors that differ in every field a guard looks at."""
    cpu = torch.device("cpu")
    base = torch.empty(6, 5, 7, dtype=torch.float32, device=cpu)
    samples = [
        base,
        base[2:, 1:],
        base.transpose(0, 2)[1:],
        torch.empty((), device=cpu),
        torch.empty(0, 3, device=cpu, dtype=torch.float64),
        torch.empty(2, 3, 4, 5, 2, 3, device=cpu, dtype=torch.int64),
        torch.empty(2, 3, 2, 2, 2, 3, 2, device=cpu, dtype=torch.bool).permute(6, 5, 4, 3, 2, 1, 0)[1:],
        torch.empty(3, 2, device=cpu, requires_grad=True),
        torch.empty(3, 2, device=cpu, requires_grad=True).detach(),
        torch.empty(3, 2, device=cpu, requires_grad=True)[1:],
        torch.nn.Parameter(torch.empty(4, device=cpu)),
        torch.empty(2, 2, dtype=torch.complex64, device=cpu).conj(),
        torch.empty(2, 2, dtype=torch.complex64, device=cpu).conj().imag,
        torch.empty(1, 9, device=cpu).expand(4, 9),
    ]
    samples += [torch.empty(3, dtype=dtype, device=cpu) for dtype in SCALAR_TYPES]
    with torch.inference_mode():
        samples.append(torch.empty(3, 4, device=cpu))
    return samples


def _word(address: int) -> int:
    return int(ctypes.c_int64.from_address(address).value)


def _keys(tensor: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _impl_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's TensorImpl, by torch's own account."""
    try:
        capsule = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([tensor])[0]
    except AttributeError:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    handle = pointer(capsule, None)
    impl = _word(handle) if handle else None
    torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)
    return impl


def _find_handle(samples: list[torch.Tensor]) -> int | None:
    """The offset within the Python object at which every sample keeps its TensorImpl."""
    impls = [_impl_of(tensor) for tensor in samples]
    if None in impls:
        return None
    for offset in range(object.__basicsize__, 48, 8):
        if all(_word(id(tensor) + offset) == impl for tensor, impl in zip(samples, impls, strict=True)):
            return offset
    return None


def _first(candidates: range, fits: Callable[[int], bool]) -> int | None:
    return next((offset for offset in candidates if fits(offset)), None)


def _find_offsets(samples: list[torch.Tensor]) -> dict[str, int] | None:
    """Places of the fields, each found by what every sample holds there; None if one cannot be found."""
    handle = _find_handle(samples)
    if handle is None:
        return None
    impls = {id(tensor): _word(id(tensor) + handle) for tensor in samples}
    words = range(IMPL_WORDS.start * 8, IMPL_WORDS.stop * 8, 8)

    def everywhere(read: Callable[[int], int], expected: Callable[[torch.Tensor], Any]) -> Callable[[int], bool]:
        return lambda offset: all(read(impls[id(tensor)] + offset) == expected(tensor) for tensor in samples)

    dimensions = _first(words, everywhere(_word, lambda tensor: tensor.dim()))
    if dimensions is None:
        return None
    sizes = dimensions + 8
    strides = sizes + 8 * INLINE_DIMS
    rest = range(strides + 8 * INLINE_DIMS, words.stop, 8)
    byte_range = range(rest.start, words.stop, 1)
    fresh, meta = torch.empty(2, device="cpu"), torch.empty(2, device="meta")
    before = {offset: _word(_word(id(fresh) + handle) + offset) for offset in range(8, dimensions, 8)}
    fresh.requires_grad_()
    fresh_impl, meta_impl = _word(id(fresh) + handle), _word(id(meta) + handle)

    def byte(address: int) -> int:
        return int(ctypes.c_int8.from_address(address).value)

    found = {
        "handle": handle,
        "inline_dims": INLINE_DIMS,
        "dimensions": dimensions,
        "sizes": sizes,
        "strides": strides,
        "storage_offset": _first(rest, everywhere(_word, lambda tensor: tensor.storage_offset())),
        "key_set": _first(rest, everywhere(_word, _keys)),
        "dtype": _first(
            byte_range,
            everywhere(
                lambda address: int(ctypes.c_uint16.from_address(address).value),
                lambda tensor: SCALAR_TYPES[tensor.dtype],
            ),
        ),
        "autograd_meta": _first(
            range(8, dimensions, 8), lambda offset: before[offset] == 0 and _word(fresh_impl + offset) != 0
        ),
    }
    if any(offset is None for offset in found.values()):
        return None
    offsets = {name: int(offset) for name, offset in found.items() if offset is not None}
    # c10::Device is two bytes, type and index, right behind the dtype.
    device = offsets["dtype"] + 2
    meta_type = byte(meta_impl + device)
    if meta_type in DEVICE_TYPES.values() or any(byte(impl + device) != 0 for impl in impls.values()):
        return None
    if any(byte(impl + device + 1) != -1 for impl in impls.values()):
        return None
    flag = _find_requires_grad_flag(handle, offsets["autograd_meta"])
    return offsets | {"device_type": device, "device_index": device + 1, "requires_grad_flag": flag}


def _find_requires_grad_flag(handle: int, autograd_meta: int) -> int:
    """The byte of an AutogradMeta that follows `requires_grad_`, 0 if none does.

    It is looked for upwards and found within the structure, so nothing beyond it is read.
    """
    leaf = torch.empty(2, device="cpu", requires_grad=True)
    meta = _word(_word(id(leaf) + handle) + autograd_meta)

    def follows(offset: int) -> bool:
        for wanted in (True, False, True, False):
            leaf.requires_grad_(wanted)
            if ctypes.c_uint8.from_address(meta + offset).value != int(wanted):
                return False
        return True

    return _first(range(8, 160), follows) or 0


def _mask(names: tuple[str, ...]) -> int:
    """The union of some dispatch keys, as raw bits."""
    mask = 0
    for name in names:
        key = getattr(torch._C.DispatchKey, name, None)
        if key is not None:
            mask |= int(torch._C.DispatchKeySet(key).raw_repr())
    return mask


def _agrees(tensor: torch.Tensor) -> bool:
    """Whether the core reads a tensor as torch does."""
    seen = core.read_tensor(tensor)
    return seen is not None and seen == {
        "sizes": tuple(tensor.size()),
        "strides": tuple(tensor.stride()),
        "storage_offset": tensor.storage_offset(),
        "dtype": SCALAR_TYPES[tensor.dtype],
        "device_type": 0,
        "device_index": seen["device_index"],
        "requires_grad": tensor.requires_grad,
        "dispatch_keys": _keys(tensor),
    }


def use_level(level: int) -> None:
    """Have the core read tensors at that level (tests try the lower ones)."""
    core.set_tensor_layout(
        level, CALIBRATION.offsets, CALIBRATION.masks, CALIBRATION.tensor_functions, torch._C._dispatch_keys
    )
    CALIBRATION.level = level


def _calibrate_tensors() -> None:
    samples = _samples()
    CALIBRATION.masks = {
        "plain": _mask(PLAIN_KEYS),
        "conjugate": _mask(("Conjugate",)),
        "negative": _mask(("Negative",)),
        "inplace": _mask(("ADInplaceOrView",)),
    }
    CALIBRATION.tensor_functions = symbols.addresses(symbols.TENSOR_SYMBOLS)
    offsets = _find_offsets(samples)
    handle = offsets["handle"] if offsets is not None else _find_handle(samples)
    if handle is None:
        CALIBRATION.refused.append("tensors: no TensorImpl found in the Python object")
        return
    CALIBRATION.offsets = offsets or {"handle": handle}
    for level in (RAW, SHIMS):
        if level == RAW and offsets is None:
            CALIBRATION.refused.append("tensors: raw fields not found")
            continue
        try:
            use_level(level)
        except ValueError as error:
            CALIBRATION.refused.append(f"tensors by {LEVEL_NAMES[level]}: {error}")
            continue
        wrong = [tensor for tensor in samples if not _agrees(tensor)]
        if not wrong:
            CALIBRATION.dtype_codes = _dtype_codes()
            return
        CALIBRATION.refused.append(f"tensors by {LEVEL_NAMES[level]}: {len(wrong)} of {len(samples)} read wrongly")
    use_level(PYTHON)


def _dtype_codes() -> dict[torch.dtype, int]:
    """Every dtype that makes a plain tensor, with the code the core reads for it."""
    codes = SCALAR_TYPES | {torch.complex32: 8}  # making one warns
    known = {value for name, value in vars(torch).items() if isinstance(value, torch.dtype) and "qu" not in name}
    for dtype in {dtype for dtype in known - set(codes) if not str(dtype).startswith("torch.q")}:
        try:
            seen = core.read_tensor(torch.empty(0, dtype=dtype, device="cpu"))
        except (RuntimeError, NotImplementedError):
            continue
        if seen is not None:
            codes[dtype] = seen["dtype"]
    return codes


def _expected_modes() -> dict[str, int]:
    """What the native readers must say now, by Python's account."""
    return {
        "grad_enabled": int(torch.is_grad_enabled()),
        "inference_mode": int(torch.is_inference_mode_enabled()),
        "default_dtype": SCALAR_TYPES.get(torch.get_default_dtype(), -1),
        "function_modes": torch._C._len_torch_function_stack(),
        "dispatch_modes": torch._C._len_torch_dispatch_stack(),
        "disabled_state": 0 if torch._C._is_torch_function_enabled() else core.read_mode_codes(0)["disabled_state"],
        "autocast_enabled": int(torch.is_autocast_enabled("cpu")),
        "autocast_dtype": SCALAR_TYPES.get(torch.get_autocast_dtype("cpu"), -1),
        "autocast_cache": int(torch.is_autocast_cache_enabled()),
        "deterministic": int(torch.are_deterministic_algorithms_enabled()),
        "warn_only": int(torch.is_deterministic_algorithms_warn_only_enabled()),
    }


@contextmanager
def _cpu_autocast() -> Iterator[None]:
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    try:
        torch.set_autocast_enabled("cpu", not enabled)
        torch.set_autocast_dtype("cpu", torch.float16 if dtype is not torch.float16 else torch.bfloat16)
        yield
    finally:
        torch.set_autocast_enabled("cpu", enabled)
        torch.set_autocast_dtype("cpu", dtype)


def _calibrate_modes() -> None:
    functions = symbols.addresses(symbols.MODE_SYMBOLS)
    context = symbols.global_context()
    if context is not None:
        functions["context"] = context
    core.set_mode_readers(functions)
    wrong: set[str] = set()

    def compare() -> None:
        seen = core.read_mode_codes(0)
        wrong.update(name for name, value in _expected_modes().items() if name in seen and seen[name] != value)

    compare()
    with torch.no_grad():
        compare()
    with torch.inference_mode():
        compare()
    with torch.overrides.BaseTorchFunctionMode():
        compare()
    with torch._C.DisableTorchFunction():
        compare()
        if core.read_mode_codes(0).get("disabled_state") != 2:
            wrong.update(("disabled_state", "set_disabled_state"))
    with _cpu_autocast():
        compare()
    for name in wrong:
        functions.pop(name, None)
        CALIBRATION.refused.append(f"modes: {name} read wrongly")
    core.set_mode_readers(functions)
    CALIBRATION.mode_functions = functions


def calibration() -> dict[str, Any]:
    """How the core reads this torch: for `stator doctor` and tests."""
    missing = [name for name in symbols.MODE_SYMBOLS if name not in CALIBRATION.mode_functions]
    return {
        "torch": torch.__version__,
        "tensors": LEVEL_NAMES[CALIBRATION.level],
        "offsets": dict(CALIBRATION.offsets),
        "modes_by_python": missing,
        "refused": list(CALIBRATION.refused),
    }


core.set_device_type(torch.device)
with _undisturbed():
    _calibrate_tensors()
_calibrate_modes()
