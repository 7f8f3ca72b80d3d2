"""Which results go past the cache: stores that do not read the line they fill.

Contract. `streamed(kernel, way)` gives the buffers of a kernel whose full vectors may be stored so. Such a store spares
the read of a line about to be overwritten whole, a quarter to a third of the traffic, but its result is not in the
cache afterwards. So it is for kernels that touch more memory than caches hold, and for buffers the kernel does not
read. The address must be a multiple of the vector: memory the program makes itself is, at indices that are multiples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stator.loops.integers import Atom, coefficient_of, terms_of
from stator.loops.ir import TYPES, Buffer, Kernel, Store, loads_of
from stator.loops.schedule import roots_of, stores_of

if TYPE_CHECKING:
    from stator.emit.cpu.kernel import Way

# A kernel over fewer bytes leaves its results where the next one finds them: a last-level cache of 32 MB and some more.
LEAST_BYTES = 40 << 20
WAYS = frozenset({"flat", "rows", "tiles"})


def streamed(kernel: Kernel, way: Way) -> frozenset[Buffer]:
    """Buffers stored past the cache."""
    if way.name not in WAYS or way.vector is None or sum(map(bytes_of, kernel.buffers)) < LEAST_BYTES:
        return frozenset()
    read = {buffer for buffer, _ in loads_of(roots_of(kernel.stages))}
    found = {buffer for buffer in kernel.buffers if buffer.role == "temporary" and buffer not in read}
    for store in stores_of(kernel.stages):
        if not is_aligned(store, way.vector, way.lanes):
            found.discard(store.buffer)
    return frozenset(found)


def candidates(kernel: Kernel) -> str:
    """What `streamed` depends on besides the kernel's text, as text."""
    if sum(map(bytes_of, kernel.buffers)) < LEAST_BYTES:
        return ""
    own = [str(place) for place, buffer in enumerate(kernel.buffers) if buffer.role == "temporary"]
    return f"\n  past the cache, of buffers: {', '.join(own)}"


def bytes_of(buffer: Buffer) -> int:
    """Bytes of a buffer of known size, else 0."""
    count = TYPES.get(buffer.type, 0)
    for size in buffer.sizes:
        count *= size if isinstance(size, int) else 0
    return count


def is_aligned(store: Store, vector: Atom, lanes: int) -> bool:
    """Whether the vectors of a store start at multiples of their length."""
    if coefficient_of(store.index, vector) != 1:
        return False
    return all(
        coefficient % lanes == 0 or monomial == (vector,) for monomial, coefficient in terms_of(store.index).items()
    )
