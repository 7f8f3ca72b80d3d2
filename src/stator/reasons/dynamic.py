"""Reasons that belong to: dynamic."""

from __future__ import annotations

from stator.reasons.row import Reason

ROWS: tuple[Reason, ...] = (
    Reason(
        "data_dependent_size",
        "A decision hangs on a size or number that only the run time knows: {detail}.",
        "The value comes out of a tensor (`.item()`, `nonzero`), so there is no example to decide by, and either "
        "answer would be wrong for some inputs.",
        "State what you know of the value with `torch._check` before this line",
        """
def example():
    from stator.sizes import SizeContext

    count = SizeContext().unbacked("counts.item()")
    if count > 3:
        pass
""",
    ),
    Reason(
        "unbacked_piece",
        "What follows a value that only the run time knows runs operator by operator: {detail}.",
        "Its kernels would need a decision on such a value, or a formula that compiled code does not have.",
        "Compute with the tensor, or state what you know of the value with `torch._check`",
        """
def example():
    import math
    import torch, stator

    with stator.config.patch(capture_scalar_outputs=True):
        compiled = stator.compile(lambda x: torch.ones(3) * math.sqrt(x.sum().item()) + x)
        compiled(torch.arange(3.0))
""",
    ),
    Reason(
        "dynamic_mark_specialised",
        "A size marked dynamic cannot stay so: {detail}.",
        "The program gives it one value, or a narrower range than the mark promises, so a graph for the promised range "
        "does not exist.",
        "Change the line so that it works for every size, or use maybe_mark_dynamic, or give the range it works for",
        """
def example():
    from stator.sizes import SizeContext
    from stator.values.source import SourceTree

    sizes = SizeContext()
    batch = sizes.symbol(SourceTree(("x",)).local(0).child("SIZE", 0), hint=8)
    sizes.constrain(batch, 1, 4096, strict=True, mark="mark_dynamic(x, 0, min=1, max=4096)")
    range(batch)
""",
    ),
    Reason(
        "dynamic_specification",
        "The `dynamic=` given to `stator.compile` cannot be meant: {detail}.",
        "It is checked where it is written, against the function's parameters, and not at some later call.",
        "Name a parameter, its dimensions as ints, and for each None or (min, max)",
        """
def example():
    from stator.sizes.policy import parse_specification

    parse_specification({"xs": {0: (1, 4096)}}, lambda x, y: x + y)
""",
    ),
)
