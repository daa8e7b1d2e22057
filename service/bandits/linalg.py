"""The few factorisations that the heads need. Arrays are float64; factors are lower triangular."""

import logging
from math import isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from service.errors import NotPositiveDefinite

logger = logging.getLogger(__name__)

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

JITTERS = (0.0, 1e-12, 1e-9, 1e-6)
"""Shares of the mean diagonal added, in turn, to a matrix that rounding left indefinite."""


def inverse_root(precision: Array) -> Array:  # (m, m) -> (m, m) lower
    """R = L^-1 where A = L L^T, so that A^-1 = R^T R: variances are ||R phi||^2.

    An inverse of the triangular factor, not of A: every derived quantity (mean, widths, draws) is a
    product with R, and one `trtri` a change of the head costs less than a solve a request.
    Raises NotPositiveDefinite if even the largest of JITTERS does not help.
    """
    # LAPACK lets a NaN pass; the sum finds it in half the time, but may overflow by itself.
    if not isfinite(precision.sum()) and not np.isfinite(precision).all():
        raise NotPositiveDefinite(len(precision), JITTERS[-1])
    for jitter in JITTERS:
        shifted = precision
        if jitter:
            scale = float(np.trace(precision)) / len(precision)
            shifted = precision + jitter * scale * np.eye(len(precision))
        factor, failed = lapack.dpotrf(shifted, lower=1, clean=1)
        if not failed:
            root, singular = lapack.dtrtri(factor, lower=1)
            if not singular:
                if jitter:
                    logger.warning(
                        "a %d x %d precision matrix lost its definiteness to rounding: %.0e of "
                        "its mean diagonal was added",
                        *precision.shape,
                        jitter,
                    )
                return np.ascontiguousarray(root)
    raise NotPositiveDefinite(len(precision), JITTERS[-1])


def widths(root: Array, phi: Array) -> Array:  # (m, m) lower, (n, m) -> (n,)
    """sqrt(phi^T A^-1 phi) of every row."""
    half = phi @ root.T
    return np.asarray(np.sqrt(np.einsum("nm,nm->n", half, half)))


EIGENVALUE_ROUNDING = 10 * np.finfo(float).eps
"""Rounding of an eigenvalue, for each row of the matrix, as a share of the largest."""


class Spectrum(NamedTuple):
    """What is known of lambda I + G, G = sum phi phi^T, in all of its directions.

    smallest, largest   eigenvalues; directions that no reward came from have lambda
    rank                effective rank of G, exp(-sum p ln p) with p the eigenvalues of G as shares
                        of their sum (Roy & Vetterli 2007, The effective rank, EUSIPCO): k for k
                        directions that are known equally well, 0 without rewards
    """

    smallest: float
    largest: float
    rank: float

    @property
    def condition(self) -> float:
        return self.largest / self.smallest


def spectrum(precision: Array, ridge: float) -> Spectrum:
    """Return the spectrum of A = lambda I + sum phi phi^T."""
    return spectrum_of(np.asarray(np.linalg.eigvalsh(precision), np.float64), ridge)


def spectrum_of(values: Array, ridge: float) -> Spectrum:  # (m,)
    """Return the spectrum of lambda I + G by its eigenvalues.

    A smallest one that rounding cannot tell from lambda is lambda: beside one of 1e19, those below
    1e5 have lost their digits.
    """
    smallest, largest = float(values.min()), float(values.max())
    doubt = EIGENVALUE_ROUNDING * len(values) * largest
    if abs(smallest - ridge) <= doubt or smallest <= doubt:
        smallest = ridge
    known = values[values - ridge > doubt] - ridge
    shares = known / known.sum() if len(known) else known
    rank = float(np.exp(-(shares @ np.log(shares)))) if len(known) else 0.0
    return Spectrum(smallest, largest, rank)
