"""Rows of phi as rules ask for them: in single precision, and exactly where it matters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

ROUNDING = 2.0**-24
"""Of a float32, relatively."""

SAFE = (1e-9, 1e9)
"""Lengths whose products float32 neither overflows nor flushes to zero."""


class Rows(Protocol):
    """phi (n, m) = single * times.

    single   (n, m) float32, each number within ROUNDING of it
    times    (m,) what its columns are multiplied by, 1 where it is None: a product with phi is one
             of `single` with `times` times the weights, which are fewer
    length   the longest row of `single`
    exact    phi of an index
    """

    def __len__(self) -> int: ...
    @property
    def single(self) -> Single: ...
    @property
    def times(self) -> Array | None: ...
    @property
    def length(self) -> float: ...
    @property
    def exact(self) -> Callable[[Index], Array]: ...


class Whole:
    """Rows that are there in float64."""

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

    @property
    def exact(self) -> Callable[[Index], Array]:
        return self.phi.__getitem__


@dataclass(frozen=True, slots=True)
class Rough:
    """Rows that were never made in float64, but for those that are asked for."""

    single: Single
    length: float
    times: Array | None
    exact: Callable[[Index], Array]

    def __len__(self) -> int:
        return len(self.single)


def safe(least: float, most: float) -> bool:
    """Whether float32 holds products of lengths between these."""
    return bool(SAFE[0] < least and most < SAFE[1])


def slack(width: int, length: float, lengths: Array) -> Array:  # (M,) -> (M,)
    """Twice how far a product of float32 may be from the true one, where rows are no longer than
    `length` and columns as long as `lengths`: (m + 2) 2^-24 |phi| |w| (Higham 2002, section 3.1)
    bounds the product, and the rest what is made of it, or was taken off before."""
    return (2 * ROUNDING * (width + 16) * length) * lengths
