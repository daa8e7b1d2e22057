"""The few factorisations that the heads need. Arrays are float64; factors are lower triangular."""

import logging
from math import isfinite

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from service.errors import NotPositiveDefinite

logger = logging.getLogger(__name__)

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

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


ROUNDING = 10 * np.finfo(float).eps
"""Of an eigenvalue, for each row of the matrix, as a share of the largest."""


def spectrum(precision: Array, ridge: float) -> tuple[float, float]:
    """Return the smallest eigenvalue of A = lambda I + sum phi phi^T over the directions of the
    rewards (lambda without any), and the condition number over those.

    All other directions keep lambda: with 20 different rows in 70 dimensions, 50 of them. If lambda
    is lost to the rounding of the largest, all directions count, and no eigenvalue is below lambda.
    """
    values = np.linalg.eigvalsh(precision)
    largest = float(values[-1])
    doubt = ROUNDING * len(values) * largest
    seen = values[values > ridge + doubt] if doubt < ridge else np.maximum(values, ridge)
    smallest = float(seen[0]) if len(seen) else ridge
    return smallest, largest / smallest
