"""erf for float lanes: an odd polynomial below one, and 1 - exp(polynomial) above, both computed and one selected."""

from __future__ import annotations

from stator.emit.cpu import math_exp
from stator.emit.cpu.math_ir import Lanes, Value

# erf(a) = a + a q(a*a) below 0.92; ln(1 - erf(a)) = a q(a) from there to 4, where erf is one
SMALL = (
    0.12837916612625122, -0.37612631916999817, 0.11283698678016663, -0.026860270649194717, 0.005203844513744116,
    -0.000817654887214303, 8.510830230079591e-05,
)  # fmt: skip
LARGE = (
    -1.1285414695739746, -0.6356729865074158, -0.1051698550581932, 0.022576043382287025, -0.0028694167267531157,
    2.755435707513243e-05, 4.991454989067279e-05, -5.294653874443611e-06,
)  # fmt: skip


def erf(build: Lanes, x: Value) -> Value:
    square = build.mul(x, x)
    small = build.fma(x, build.polynomial(square, SMALL), x)
    magnitude = build.clamp_above(build.abs(x), 4.0)
    logarithm = build.mul(magnitude, build.polynomial(magnitude, LARGE))
    _, shifted, r = math_exp.reduced(build, logarithm)
    scale = build.power_of_two(build.integer_of(shifted))
    rest = build.fma(math_exp.exp_of_reduced(build, r), build.neg(scale), build.constant(1.0))
    large = build.copysign(rest, x)
    return build.select(build.compare("<", magnitude, build.constant(0.925)), small, large)
