"""From a module of kernels to addresses: assembled once per machine code, linked into this process.

Contract. `Linker.kernels(kernels)` returns an address for each kernel. A kernel whose text was compiled before in this
process is reused whatever graph it came from; the others are emitted into one module, compiled to one object and
linked. An `ObjectStore` given to it is asked for the object first: its key holds the kernels' text, the target and the
versions of LLVM and stator, so equal text means equal code.

No pass pipeline runs: the emitter writes final loops, and instruction selection does the rest in a third of the time.
llvmlite has one lock for everything, and so has this module. Code lives as long as the process: programs come and go,
but the same kernels return.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from stator import events
from stator.emit.cpu import kernel as kernel_emitter
from stator.emit.cpu import math
from stator.emit.cpu.kernel import Shape, Way
from stator.emit.cpu.math_ir import Target, host_target
from stator.emit.cpu.streams import candidates
from stator.loops.ir import Kernel
from stator.loops.show import show_kernel

FORMAT = 2  # raised whenever the same kernel text would give other code


class ObjectStore(Protocol):
    """Where compiled objects outlive the process."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel in memory. `owner` keeps its code mapped."""

    name: str
    address: int
    owner: object
    shape: Shape


@functools.cache
def target_machine() -> Any:
    """The host as LLVM sees it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        reloc="pic",
        codemodel="small",
        jit=True,
    )


@functools.cache
def _machine_identity() -> str:
    return " ".join(
        (
            f"format {FORMAT}",
            f"llvm {llvm.llvm_version_info} llvmlite {llvmlite.__version__}",
            llvm.get_host_cpu_name(),
            llvm.get_host_cpu_features().flatten(),
        )
    )


class Linker:
    """All kernels of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Compiled] = {}
        self._jit: Any = None
        self._modules = 0

    def kernels(self, wanted: Sequence[Kernel], store: ObjectStore | None = None) -> list[Compiled]:
        """Addresses of kernels, compiling those not known yet."""
        texts = [kernel_text(kernel) for kernel in wanted]
        with self._lock:
            fresh: dict[str, Kernel] = {}
            for text, kernel in zip(texts, wanted, strict=True):
                if text not in self._known:
                    fresh.setdefault(text, kernel)
            if fresh:
                self._compile(fresh, store)
            return [self._known[text] for text in texts]

    def _compile(self, fresh: dict[str, Kernel], store: ObjectStore | None) -> None:
        target = host_target()
        key = hashlib.sha256("\n".join([_machine_identity(), *fresh]).encode()).hexdigest()
        prefix = f"k{key[:16]}"
        ways = {text: kernel_emitter.choose(kernel, target) for text, kernel in fresh.items()}
        shapes = {text: kernel_emitter.shape(kernel, ways[text]) for text, kernel in fresh.items()}
        code = store.get(key) if store is not None else None
        if code is None:
            module = emit_module(list(fresh.values()), [ways[text] for text in fresh], prefix, target)
            code, names = assemble(module), math.external_names(module)
            data = "\n".join(names).encode() + b"\0" + code
            if store is not None:
                store.put(key, data)
        else:
            listed, code = code.split(b"\0", 1)
            names = [name for name in listed.decode().split("\n") if name]
        addresses, owner = self._link(prefix, code, names, [f"{prefix}_{k}" for k in range(len(fresh))])
        for k, (text, kernel) in enumerate(fresh.items()):
            self._known[text] = Compiled(kernel.name, addresses[k], owner, shapes[text])

    def _link(self, name: str, code: bytes, imports: Sequence[str], exports: Sequence[str]) -> tuple[list[int], object]:
        if self._jit is None:
            # JITLink keeps the sections of an object side by side. The older linker lets the system place each where
            # it likes, and ends the process when code and constants come to lie over 2 GB apart.
            self._jit = llvm.create_lljit_compiler(target_machine(), use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_object_img(code)
        for symbol, address in math.addresses(imports).items():
            builder.import_symbol(symbol, address)
        for symbol in exports:
            builder.export_symbol(symbol)
        self._modules += 1
        tracker = builder.link(self._jit, f"{name}_{self._modules}")
        return [tracker[symbol] for symbol in exports], tracker


LINKER = Linker()


def kernel_text(kernel: Kernel) -> str:
    """The kernel as text, its name and its buffers' names left out: equal text is equal code."""
    return show_kernel(kernel, canonical=True) + candidates(kernel)


def emit_module(kernels: Sequence[Kernel], ways: Sequence[Way], prefix: str, target: Target) -> ir.Module:
    """One module with the functions `prefix_0`, `prefix_1`, ..."""
    module = ir.Module(prefix)
    module.triple = llvm.get_process_triple()
    for number, (kernel, way) in enumerate(zip(kernels, ways, strict=True)):
        events.emit("progress", stage="emit", done=number, total=len(kernels))
        kernel_emitter.emit(kernel, module, target, way, f"{prefix}_{number}")
    return module


def assemble(module: ir.Module) -> bytes:
    """Machine code of a module as an object file."""
    parsed = llvm.parse_assembly(str(module))
    if events.wanted("kernel_code"):
        parsed.verify()
    code: bytes = target_machine().emit_object(parsed)
    return code
