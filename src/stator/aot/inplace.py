"""Write-backs inside the graph: `aten.copy_(argument, contents)` at its end, for compilers that fuse them.

Contract. `write_inside(joint)` ends an inference tape with one `copy_` for each argument it changes and takes the new
contents out of its results, so the runtime wrapper has nothing left to copy. A compiler may then store into the
argument where it computes the value: one pass over memory in place of three. Only the last steps of such a tape
write; everything before them stays functional. A compiler asks for such graphs by an attribute `writes_inputs`.
"""

from __future__ import annotations

import torch

from stator.aot.joint import Joint
from stator.aot.tape import CALL, like


def write_inside(joint: Joint) -> None:
    """Move the write-backs of a joint tape without gradients into the tape; see the module."""
    writes = [write for write in joint.writes if write.result is not None]
    if not writes or any(joint.differentiable) or any(write.tracked for write in writes):
        return
    tape = joint.tape
    for write in writes:
        assert write.result is not None
        target, contents = tape.inputs[write.index], tape.outputs[write.result]
        model = tape.steps[-1] if tape.steps else contents
        tape.steps.append(like(model, CALL, torch.ops.aten.copy_.default, (target, contents), None, target.value))
        write.inside = True
    count = len(writes)
    assert [write.result for write in writes] == list(range(count))  # as `joint` numbers them
    del tape.outputs[:count]
    del joint.differentiable[:count]
    joint.results -= count
    for output in joint.outputs:
        if output.kind in ("result", "derived"):
            output.index -= count
