"""Rows of phi as rules read them: in single precision, and exactly where it matters."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.bandits.linalg import Array as Array
from service.bandits.linalg import Index as Index
from service.bandits.linalg import Single as Single

ROUNDING = 2.0**-24
"""Of a float32, relatively."""

SAFE = (1e-9, 1e9)
"""Lengths whose products float32 neither overflows nor flushes to zero."""


@dataclass(frozen=True, slots=True)
class SingleRows:
    """phi (n, m) = single * times, in float64 only on demand.

    single   (n, m) float32, each number within ROUNDING of it
    length   the longest row of `single`
    times    (m,) factors of its columns, None for 1: multiply the weights by them, which are fewer
    exact    phi of an index, in float64
    """

    single: Single
    length: float
    times: Array | None
    exact: Callable[[Index], Array]

    def __len__(self) -> int:
        return len(self.single)


class ExactRows:
    """Rows in float64, with the attributes of `SingleRows`."""

    __slots__ = ("phi",)
    times = None

    def __init__(self, phi: Array) -> None:
        self.phi = phi

    def __len__(self) -> int:
        return len(self.phi)

    @property
    def single(self) -> Single:
        return self.phi.astype(np.float32)

    @property
    def length(self) -> float:
        return float(np.sqrt(np.vecdot(self.phi, self.phi).max()))

    def exact(self, index: Index) -> Array:
        return self.phi[index]


Rows = ExactRows | SingleRows


def safe(least: float, most: float) -> bool:
    """Whether float32 holds products of lengths between these."""
    return bool(SAFE[0] < least and most < SAFE[1])


def slack(width: int, length: float, lengths: Array) -> Array:  # (M,) -> (M,)
    """Twice how far a product of float32 may be from the true one, where rows are no longer than
    `length` and columns as long as `lengths`: (m + 2) 2^-24 |phi| |w| (Higham 2002, section 3.1)
    bounds the product, and the rest what is made of it, or was taken off before."""
    return (2 * ROUNDING * (width + 16) * length) * lengths
