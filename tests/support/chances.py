"""Counts of what was drawn, against the chances that were logged."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

LEAST_EXPECTED = 5
"""Draws that a cell of a chi-square test expects at least."""


def cells_of(counts: Array, p: Array) -> tuple[Array, Array]:  # (n,), (n,) -> (k,), (k,)
    """Return the observed and the expected counts of the cells of a chi-square test: those that
    expect under 5 are lumped into one."""
    expected = p * counts.sum()
    small = expected < LEAST_EXPECTED
    observed, wanted = counts[~small], expected[~small]
    if small.any() and expected[small].sum() > 0:
        observed = np.append(observed, counts[small].sum())
        wanted = np.append(wanted, expected[small].sum())
    return observed, wanted
