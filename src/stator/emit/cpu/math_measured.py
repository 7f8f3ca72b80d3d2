"""What `make sweep-maths` measured; do not edit. (name, precision, style) to the largest error and the cost."""

from __future__ import annotations

from typing import NamedTuple


class Measure(NamedTuple):
    """The largest error in units of the last place, and the time of one element as a multiple of an addition's."""

    ulp: float
    cost: float


MEASURED: dict[tuple[str, str, str], Measure] = {}
