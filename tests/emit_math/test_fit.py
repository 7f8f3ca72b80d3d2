"""The coefficients in the source are those that fit.py finds, and approximate what it says they do."""

from __future__ import annotations

import fit
import mpmath
import pytest

ROWS = pytest.mark.parametrize("row", fit.FITS, ids=lambda row: row.place)


@ROWS
def test_coefficients_approximate_to_the_working_precision(row):
    bits = -float(mpmath.log(row.error(fit.in_source(row.place)), 2))
    # The double logarithm serves a float result, through at most 2**8 times its own error.
    wanted = 24 if row.kind is fit.np.float32 else (37 if "LOG2" in row.place else 55)
    assert bits > wanted, bits


@pytest.mark.slow
@ROWS
def test_coefficients_are_reproducible(row):
    assert row.coefficients() == fit.in_source(row.place)
