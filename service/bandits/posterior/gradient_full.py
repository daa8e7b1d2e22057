"""Z itself, exactly: by the kernel of the distinct rows, or as a p x p inverse beyond p of them."""

from collections.abc import Callable

import numpy as np
from scipy.linalg import blas, lapack

from service.bandits.gradients import Layout
from service.bandits.linalg import JITTERS, Index
from service.bandits.posterior.base import Array, Stored
from service.bandits.posterior.gradient_rows import (
    Base,
    DistinctRows,
    PendingRows,
    Projected,
    Woodbury,
    cholesky,
    seen,
    solve,
)
from service.errors import ConfigurationError, NotPositiveDefinite

BLOCK = 64
"""Changed rows that are answered through Woodbury before a base takes them in, at least."""
GROWTH = 8
"""A kernel's factor of n rows is made anew after n / 8 changes: n^3 / 3 then come to 8/3 n^2 a
change, less than a read costs; one that grows from nothing costs 3.4 factorisations in all."""
EXACT_SPECTRUM = 1024
"""Rows whose eigenvalues are computed for the health: 0.3 s. Beyond, bounds are reported."""
CHUNK = 256
"""Rows whose dense gradients are held at once: 20 MB at p = 9,601."""


def _factored(make: Callable[[], Array]) -> Array:  # (n, n), of which the lower triangle is L
    """The factor of the matrix that `make` returns, in place. lambda is on the diagonal: only rows
    so large that lambda is lost to rounding need one of JITTERS, as a share of the diagonal. Raises
    NotPositiveDefinite."""
    for jitter in JITTERS:
        matrix = make()
        if jitter:
            matrix[np.diag_indices_from(matrix)] *= 1 + jitter
        factor, failed = lapack.dpotrf(matrix, lower=1, clean=0, overwrite_a=1)
        if not failed and np.isfinite(factor[-1, -1]):  # LAPACK lets a NaN pass, to the last entry
            return np.asarray(factor)
    raise NotPositiveDefinite(len(matrix), JITTERS[-1])


class _Dual(Projected):
    """lambda I + J^T C J over n distinct rows with counts C and kernel K = J J^T.

    a = L^-1 C^1/2 k(x) with L L^T = lambda I + C^1/2 K C^1/2: what (lambda C^-1 + K)^-1 says, with
    a smallest eigenvalue of lambda whatever the counts.
    """

    def __init__(self, layout: Layout, ridge: float, rows: Array, counts: Array) -> None:
        super().__init__(layout, ridge)
        self._rows, self._root = rows, np.sqrt(counts)
        self._factor = _factored(self._matrix)

    def _matrix(self) -> Array:  # (n, n), of which the lower triangle is filled
        rows, root = self._rows, self._root
        matrix = np.empty((len(rows), len(rows)), order="F")
        for start in range(0, len(rows), CHUNK):
            stop = min(start + CHUNK, len(rows))
            part = self.layout.gram(rows[start:stop], rows[:stop])
            matrix[start:stop, :stop] = part * np.outer(root[start:stop], root[:stop])
        matrix[np.diag_indices_from(matrix)] += self.floor
        return matrix

    def project(self, rows: Array) -> Array:  # (n, F) -> (n, n_rows)
        kernel = self.layout.gram(self._rows, rows)
        kernel *= self._root[:, None]
        return solve(self._factor, kernel).T


class _Primal:
    """P = Z^-1, p x p; blocks of rows are folded in by Woodbury, in place.

    The one inverse that is formed: it is read by a product with every gradient, and a factor of Z
    would have to be updated row by row.
    """

    def __init__(self, layout: Layout, ridge: float, rows: Array, counts: Array) -> None:
        self._layout, self._ridge = layout, ridge
        size = layout.parameters

        def make() -> Array:
            Z = np.zeros((size, size), order="F")
            for start in range(0, len(rows), CHUNK):
                root = np.sqrt(counts[start : start + CHUNK])
                dense = layout.dense(rows[start : start + CHUNK]) * root[:, None]
                Z = blas.dsyrk(1.0, dense.T, beta=1.0, c=Z, lower=1, overwrite_c=1)
            Z[np.diag_indices_from(Z)] += ridge
            return Z

        self._inverse, _ = lapack.dpotri(_factored(make), lower=1, overwrite_c=1)
        for start in range(0, size, CHUNK):  # both triangles, without another p x p
            stop = min(start + CHUNK, size)
            self._inverse[:start, start:stop] = self._inverse[start:stop, :start].T
            corner = np.tril(self._inverse[start:stop, start:stop])
            self._inverse[start:stop, start:stop] = corner + np.tril(corner, -1).T

    def fold(self, rows: Array, weights: Array) -> None:  # (k, F), (k,)
        """P <- P - P J^T (I + J P J^T)^-1 J P, J times the root of its weights."""
        dense = self._layout.dense(rows) * np.sqrt(weights)[:, None]
        known = dense @ self._inverse
        inner = known @ dense.T
        inner[np.diag_indices_from(inner)] += 1.0
        half = solve(cholesky(inner, weights * self.prior(rows)), known)
        self._inverse = blas.dgemm(
            -1.0, half, half, beta=1.0, c=self._inverse, trans_a=1, overwrite_c=1
        )

    def prior(self, rows: Array) -> Array:
        return np.asarray(self._layout.squares(rows) / self._ridge)

    def lift(self, rows: Array) -> Array:  # (n, F) -> (n, 2 p): J and J P
        dense = self._layout.dense(rows)
        return np.hstack([dense, dense @ self._inverse])

    def product(self, left: Array, right: Array) -> Array:
        size = self._layout.parameters
        return np.asarray(left[:, :size] @ right[:, size:].T)

    def squares(self, lifted: Array) -> Array:
        size = self._layout.parameters
        return np.asarray(np.einsum("np,np->n", lifted[:, :size], lifted[:, size:]))


class Full(PendingRows):
    """Z = lambda I + sum J J^T, exactly (Zhou, Li, Gu 2020, algorithm 1).

    The state is the distinct rows and their counts; Z is derived on demand. A *base* holds the
    counts `held`: a kernel's factor while there are at most `dual_limit` distinct rows (p by
    default), a p x p inverse beyond. Later rows are pending and answered through Woodbury.
    Observations alone decide when a base takes pending rows in, and what it holds is part of the
    state, so a restore, or a replay that reads at other times, has the same bits:
    - the kernel's factor is a function of the rows and of `held`;
    - the inverse is a function of the rows, of the counts at its last making (`made`), and of the
      blocks folded in since, which are kept and folded in again in their order. It is made anew
      when these are as many rows as there are.

    Memory for n distinct rows: 8 n F bytes, and a kernel's 8 n^2 or an inverse's 8 p^2 (737 MB at p
    = 9,601), of which `arrays` holds only the rows. A read of one row: n^2, or p^2,
    multiplications. Variances are differences from |J|^2 / lambda: off by a share of 1e-16 n |J|^2
    / lambda.
    """

    def __init__(self, layout: Layout, ridge: float, dual_limit: int | None = None) -> None:
        self._layout, self._ridge = layout, ridge
        self._limit = layout.parameters if dual_limit is None else dual_limit
        self._seen = DistinctRows(layout.width)
        self._held, self._made = np.empty(0), np.empty(0)
        self._blocks: list[tuple[Index, Array]] = []
        self._pending: dict[int, None] = {}  # in the order of their first change
        self._base: Base | None = None
        self._folded = 0  # blocks that the base holds
        self._posterior: Woodbury | None = None
        self._stale = True

    @property
    def primal(self) -> bool:
        return len(self._seen) > self._limit

    @property
    def _capacity(self) -> int:
        """Rows that may be pending."""
        return BLOCK if self.primal else max(BLOCK, len(self._held) // GROWTH)

    # -- learn ---------------------------------------------------------------------------------

    def observe(self, row: Array, times: float = 1.0) -> None:
        was_primal = self.primal
        self._pending.setdefault(self._seen.add(row, times))
        self._stale = True
        if self.primal != was_primal or len(self._pending) > self._capacity:
            self._fold(rebuild=not was_primal)

    def withdraw(self, row: Array, times: float) -> None:
        """A base that holds the row holds it until it is next made."""
        self._seen.take_away(row, times)
        self._stale = True

    def _fold(self, rebuild: bool) -> None:
        """Pending rows become the base's: of a new one, or as a block of the inverse's."""
        counts = self._seen.counts
        if rebuild or sum(len(rows) for rows, _ in self._blocks) >= len(counts):
            self._made, self._blocks, self._base = counts.copy(), [], None
        else:
            rows = np.array(list(self._pending), np.int64)
            self._blocks.append((rows, self._weights(rows)))
        self._held, self._pending, self._posterior = counts.copy(), {}, None

    def _weights(self, rows: Index) -> Array:
        """What each of these rows counts beyond what the base holds of it; 0 where that is more
        than it counts, since some of it was withdrawn."""
        held = np.zeros(len(self._seen))
        held[: len(self._held)] = self._held
        return np.maximum(self._seen.counts[rows] - held[rows], 0.0)

    def decay(self, share: float) -> None:
        """Raises ConfigurationError beyond `dual_limit` rows: all of the inverse would change."""
        if self.primal:
            raise ConfigurationError(
                f"a full Z over more than {self._limit} distinct gradients does not forget: use "
                "gamma 1, or the form low_rank or diagonal"
            )
        self._seen.scale(share)
        self._held, self._made = share * self._held, share * self._made
        self._base = self._posterior = None

    # -- read ----------------------------------------------------------------------------------

    def _current(self) -> Woodbury:
        if self._posterior is None:
            self._base = self._refreshed()
            self._posterior, self._stale = Woodbury(self._base, self._capacity), True
        if self._stale:
            rows = np.array(list(self._pending), np.int64)
            self._posterior.follow(self._seen.rows[rows], self._weights(rows))
            self._stale = False
        return self._posterior

    def _refreshed(self) -> Base:
        base, self._base = self._base, None  # none is kept that an exception left half folded
        if base is None:
            rows = self._seen.rows[: len(self._made)]
            base = self._made_base(rows)
            self._folded = 0
        if isinstance(base, _Primal):
            for block, weights in self._blocks[self._folded :]:
                base.fold(self._seen.rows[block], weights)
            self._folded = len(self._blocks)
        return base

    def _made_base(self, rows: Array) -> Base:
        if not len(rows):
            return Projected(self._layout, self._ridge)
        form = _Primal if self.primal else _Dual
        return form(self._layout, self._ridge, rows, self._made)

    def spectrum(self) -> tuple[float, float]:
        """Exact up to 1,024 distinct rows (or p of them). Beyond, bounds: lambda, which the
        smallest comes down to where so many directions were seen, and lambda + trace."""
        root, rows = np.sqrt(self._seen.counts), self._seen.rows
        if len(rows) <= EXACT_SPECTRUM:
            return seen(self._layout.gram(rows, rows) * np.outer(root, root), self._ridge)
        if self._layout.parameters <= EXACT_SPECTRUM:
            dense = self._layout.dense(rows) * root[:, None]
            return seen(dense.T @ dense, self._ridge)
        trace = float(self._seen.counts @ self._layout.squares(rows))
        return self._ridge, self._ridge + trace

    # -- snapshots -----------------------------------------------------------------------------

    def arrays(self) -> dict[str, Stored]:
        blocks, weights = zip(*self._blocks, strict=True) if self._blocks else ((), ())
        return {
            "rows": self._seen.rows,
            "counts": self._seen.counts,
            "held": self._held,
            "made": self._made,
            "pending": np.array(list(self._pending), np.int64),
            "block_sizes": np.array([len(block) for block in blocks], np.int64),
            "block_rows": np.concatenate([np.empty(0, np.int64), *blocks]),
            "block_weights": np.concatenate([np.empty(0), *weights]),
        }

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._seen.replace(arrays["rows"], arrays["counts"])
        self._held, self._made = arrays["held"].copy(), arrays["made"].copy()
        self._pending = dict.fromkeys(arrays["pending"].tolist())
        ends = np.cumsum(arrays["block_sizes"])[:-1]
        rows, weights = arrays["block_rows"].copy(), arrays["block_weights"].copy()
        parts = zip(np.split(rows, ends), np.split(weights, ends), strict=True)
        self._blocks = list(parts) if len(arrays["block_sizes"]) else []
        self._base = self._posterior = None
