"""Z itself, exactly, by the kernel of the distinct rows."""

import numpy as np
from scipy.linalg import lapack

from service.bandits.gradients import Layout
from service.bandits.heads.base import Array, Stored
from service.bandits.heads.gradient_rows import DistinctRows, cholesky, solve
from service.bandits.linalg import JITTERS, Spectrum, spectrum_of
from service.bandits.settings import FULL_ROWS
from service.errors import NotPositiveDefinite

PENDING = 64
"""Changed rows beside a kernel before it is factored again, at least."""
GROWTH = 8
"""A kernel of n rows is factored again after n / 8 changes: n^3 / 3 then come to 8/3 n^2 a change,
less than a read costs; one that grows from nothing costs 3.4 factorisations in all."""
EXACT_SPECTRUM = 1_024
"""Rows whose eigenvalues are computed for the health: 0.3 s. Beyond, bounds are reported."""
CHUNK = 256
"""Rows of a kernel that are computed at once."""


class _Posterior:
    """Products with (lambda I + J_b^T C J_b + J_s^T W J_s)^-1: n base rows b with counts C, and a
    few pending rows s with weights W.

    Base: J Z^-1 J'^T = (J J'^T - a a'^T) / lambda, a = J J_b^T C^1/2 L^-T,
    L L^T = lambda I + C^1/2 J_b J_b^T C^1/2, whose smallest eigenvalue is at least lambda.
    Pending rows by Woodbury 1950: J Z^-1 J'^T - H^T H', H = M^-1 W^1/2 J_s Z^-1 J^T,
    M M^T = I + W^1/2 (J_s Z^-1 J_s^T) W^1/2. They arrive one at a time, so that no bit depends on
    how many of them arrive between two reads.
    """

    def __init__(
        self,
        layout: Layout,
        ridge: float,
        rows: Array,  # (n, F)
        counts: Array,  # (n,)
        capacity: int,  # of pending rows
    ) -> None:
        self._layout, self._ridge = layout, ridge
        self._rows, self._root = rows, np.sqrt(counts)
        self._base = self._factored() if len(rows) else np.empty((0, 0))
        self._size = 0
        self._pending = np.empty((capacity, layout.width))
        self._projected = np.empty((capacity, len(rows)))
        self._gram = np.empty((capacity, capacity))
        self._weight_root, self._factor = np.empty(0), np.empty((0, 0))

    def _factored(self) -> Array:  # (n, n), whose lower triangle is L
        """Factorise the kernel. With lambda on the diagonal, only rows so large that lambda is lost
        to rounding need one of JITTERS, as a share of the diagonal. Raises NotPositiveDefinite."""
        for jitter in JITTERS:
            matrix = self._kernel()
            if jitter:
                matrix[np.diag_indices_from(matrix)] *= 1 + jitter
            factor, failed = lapack.dpotrf(matrix, lower=1, clean=0, overwrite_a=1)
            if not failed and np.isfinite(factor[-1, -1]):  # LAPACK lets a NaN pass to the end
                return np.asarray(factor)
        raise NotPositiveDefinite(len(matrix), JITTERS[-1])

    def _kernel(self) -> Array:  # (n, n), whose lower triangle is filled
        rows, root = self._rows, self._root
        matrix = np.empty((len(rows), len(rows)), order="F")
        for start in range(0, len(rows), CHUNK):
            stop = min(start + CHUNK, len(rows))
            part = self._layout.gram(rows[start:stop], rows[:stop])
            matrix[start:stop, :stop] = part * np.outer(root[start:stop], root[:stop])
        matrix[np.diag_indices_from(matrix)] += self._ridge
        return matrix

    def follow(self, rows: Array, weights: Array) -> None:  # (k, F), (k,)
        """Hold these pending rows: the known ones first and unchanged; weights >= 0."""
        count = len(rows)
        for index in range(self._size, count):
            new, size = slice(index, index + 1), index + 1
            self._pending[new] = rows[index]
            self._projected[new] = self._project(rows[new])
            own = self._product(self._pending[:size], self._projected[:size], new)[:, 0]
            self._gram[index, :size] = self._gram[:size, index] = own
        self._size = count
        if not count:
            return
        self._weight_root = root = np.sqrt(weights)
        scaled = self._gram[:count, :count] * np.outer(root, root)
        scaled[np.diag_indices_from(scaled)] += 1.0
        self._factor = cholesky(scaled, weights * self._layout.squares(rows) / self._ridge)

    def _project(self, rows: Array) -> Array:  # (k, F) -> (k, n), a
        if not len(self._rows):
            return np.empty((len(rows), 0))
        kernel = self._layout.gram(self._rows, rows)
        kernel *= self._root[:, None]
        return solve(self._base, kernel).T

    def _product(self, rows: Array, projected: Array, pending: slice) -> Array:  # -> (k, s)
        """J Z^-1 J_s^T under the base alone."""
        product = self._layout.gram(rows, self._pending[pending])
        product -= projected @ self._projected[pending].T
        product /= self._ridge
        return product

    def _half(self, rows: Array, projected: Array) -> Array:  # (k, F), (k, n) -> (s, k), H
        if not self._size:
            return np.empty((0, len(rows)))
        known = self._product(rows, projected, slice(self._size))
        return solve(self._factor, self._weight_root[:, None] * known.T)

    def covariance(self, rows: Array) -> Array:  # (k, F) -> (k, k)
        projected = self._project(rows)
        half = self._half(rows, projected)
        product = self._layout.gram(rows, rows)
        product -= projected @ projected.T
        product /= self._ridge
        return product - half.T @ half

    def variances(self, rows: Array) -> Array:  # (k, F) -> (k,)
        projected = self._project(rows)
        half = self._half(rows, projected)
        known = np.einsum("kn,kn->k", projected, projected)
        gained = np.einsum("sk,sk->k", half, half)
        variances = (self._layout.squares(rows) - known) / self._ridge - gained
        return np.asarray(np.maximum(variances, 0.0))


class Full:
    """Z = lambda I + sum J J^T over the first `limit` distinct rows, exactly (Zhou, Li, Gu 2020,
    algorithm 1).

    The state is these rows and their counts; products with Z^-1 are derived on demand. A new row
    beyond the limit leaves Z as it is. Z is then too small, so every variance is too large, never
    too small: the policy explores for longer. Such rows are ignored until the head is rebuilt.

    A kernel's factor holds the counts `held`; rows that changed later are pending. Observations
    alone decide when the kernel is factored again, and `held` is part of the state, so a restore,
    or a replay that reads at other times, has the same bits.

    Memory for n distinct rows: 8 n F + 8 n^2 bytes, of which `arrays` holds only the rows. A read
    of one row: n^2 multiplications. Variances are differences from |J|^2 / lambda: off by a share
    of 1e-16 n |J|^2 / lambda.
    """

    def __init__(self, layout: Layout, ridge: float, limit: int = FULL_ROWS) -> None:
        self._layout, self._ridge = layout, ridge
        self._seen = DistinctRows(layout.width, limit)
        self._held = np.empty(0)
        self._pending: dict[int, None] = {}  # in the order of their first change
        self._posterior: _Posterior | None = None
        self._stale = True

    @property
    def _capacity(self) -> int:
        """Rows that may be pending."""
        return max(PENDING, len(self._held) // GROWTH)

    def observe(self, row: Array, times: float = 1.0) -> None:
        place = self._seen.add(row, times)
        if place is None:
            return
        self._pending.setdefault(place)
        self._stale = True
        if len(self._pending) > self._capacity:
            self._held, self._pending = self._seen.counts.copy(), {}
            self._posterior = None

    def withdraw(self, row: Array, times: float) -> None:
        """Take a row out. A factor that holds it does so until it is next made."""
        self._seen.take_away(row, times)
        self._stale = True

    def decay(self, share: float) -> None:
        self._seen.scale(share)
        self._held = share * self._held
        self._posterior = None

    def covariance(self, rows: Array) -> Array:
        return self._current().covariance(rows)

    def variances(self, rows: Array) -> Array:
        return self._current().variances(rows)

    def _current(self) -> _Posterior:
        posterior = self._posterior
        if posterior is None:
            rows = self._seen.rows[: len(self._held)]
            posterior = _Posterior(self._layout, self._ridge, rows, self._held, self._capacity)
        if self._stale or posterior is not self._posterior:
            pending = np.array(list(self._pending), np.int64)
            posterior.follow(self._seen.rows[pending], self._weights()[pending])
            self._posterior, self._stale = posterior, False
        return posterior

    def _weights(self) -> Array:  # (n,)
        """Return the counts of the rows beyond those that the factor holds; 0 where some were
        withdrawn."""
        held = np.zeros(len(self._seen))
        held[: len(self._held)] = self._held
        return np.maximum(self._seen.counts - held, 0.0)

    def spectrum(self) -> Spectrum:
        """Exact up to 1,024 distinct rows, by their Gram matrix K, whose eigenvalues other than 0
        are those of sum J J^T. Beyond, bounds: lambda, lambda + tr K, and (tr K)^2 / |K|^2, the
        rank by entropy of order 2 in place of Shannon's."""
        root, rows = np.sqrt(self._seen.counts), self._seen.rows
        if len(rows) > EXACT_SPECTRUM:
            trace = float(self._seen.counts @ self._layout.squares(rows))
            rank = trace**2 / self._squared(root) if trace else 0.0
            return Spectrum(self._ridge, self._ridge + trace, rank)
        dimensions = self._layout.parameters
        values = np.full(min(len(rows) + 1, dimensions), self._ridge)
        if len(rows):
            gram = self._layout.gram(rows, rows) * np.outer(root, root)
            known = np.linalg.eigvalsh(gram)[-dimensions:]
            values[: len(known)] += np.maximum(known, 0.0)
        return spectrum_of(values, self._ridge)

    def _squared(self, root: Array) -> float:
        """|K|^2, by chunks of rows."""
        total, rows = 0.0, self._seen.rows
        for start in range(0, len(rows), CHUNK):
            part = self._layout.gram(rows[start : start + CHUNK], rows)
            part *= np.outer(root[start : start + CHUNK], root)
            total += float(np.vdot(part, part))
        return total

    def arrays(self) -> dict[str, Stored]:
        return {
            "rows": self._seen.rows,
            "counts": self._seen.counts,
            "held": self._held,
            "pending": np.array(list(self._pending), np.int64),
        }

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._seen.replace(arrays["rows"], arrays["counts"])
        self._held = arrays["held"].copy()
        self._pending = dict.fromkeys(arrays["pending"].tolist())
        self._posterior = None
