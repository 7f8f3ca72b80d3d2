"""Non-strict tracing and ahead-of-time autograd: from torch-level graphs to functional ATen graphs.

trace                        record the operators a function runs
backend                      make a backend out of compilers of functional graphs
aot_eager                    backend: runs those graphs as they are
aot_eager_decomp_partition   backend: the same after decomposition and min-cut partitioning
decompositions               named sets of decompositions
"""

from __future__ import annotations

from stator.aot import decompositions
from stator.aot.backends import aot_eager, aot_eager_decomp_partition, backend
from stator.aot.tracing import trace

__all__ = ["aot_eager", "aot_eager_decomp_partition", "backend", "decompositions", "trace"]
