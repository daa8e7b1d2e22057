"""One ridge head an arm."""

from collections.abc import Sequence

import numpy as np

from service.linalg import inverse_root, spectrum
from service.posterior.base import Array, Bank, Health, pack_names, unpack_names
from service.posterior.ridge import learned_noise


class DisjointRidgeHead:
    """One ridge head an arm, stacked; every arm starts from the prior; the noise is common.

    A noise of its own would call an arm certain after two equal rewards.
    """

    def __init__(self, size: int, ridge: float, noise: float | None) -> None:
        self._size, self._ridge, self._fixed_noise = size, ridge, noise
        self._rows: dict[str, int] = {}
        self._reserve(4)
        self.rr, self.n, self._explained = 0.0, 0.0, 0.0
        self._stale: set[int] = set()

    def _reserve(self, rows: int) -> None:
        size = self._size
        self.A = np.broadcast_to(self._ridge * np.eye(size), (rows, size, size)).copy()
        self.b = np.zeros((rows, size))
        self._root = np.broadcast_to(np.eye(size) / np.sqrt(self._ridge), self.A.shape).copy()
        self._mean = np.zeros_like(self.b)
        self._share = np.zeros(rows)  # b^T mu, by arm

    def _row(self, arm: str) -> int:
        row = self._rows.setdefault(arm, len(self._rows))
        if row == len(self.b) - 1:  # the last row stays the prior, for arms without a head
            old = self.A, self.b, self._root, self._mean, self._share
            self._reserve(2 * len(self.b))
            new = self.A, self.b, self._root, self._mean, self._share
            for wide, narrow in zip(new, old, strict=True):
                wide[: len(narrow)] = narrow
        return row

    def observe(self, arm: str, phi: Array, reward: float, key: str = "") -> None:
        row = self._row(arm)
        self.A[row] += np.multiply.outer(phi, phi)
        self.n += 1
        self._move(row, phi, 0.0, reward, 1.0)

    def revise(
        self, arm: str, phi: Array, was: float, reward: float, key: str = "", weight: float = 1.0
    ) -> None:
        self._move(self._row(arm), phi, was, reward, weight)

    def _move(self, row: int, phi: Array, was: float, reward: float, weight: float) -> None:
        self.b[row] += weight * (reward - was) * phi
        self.rr += weight * (reward * reward - was * was)
        self._stale.add(row)

    def decay(self, share: float) -> None:
        """As a shared head's, all arms at once: were they to catch up when they are read, the bits
        of A would tell who was read."""
        rows = len(self._rows)
        self.A[:rows] *= share
        diagonal = np.arange(self._size)
        self.A[:rows, diagonal, diagonal] += (1 - share) * self._ridge
        self.b[:rows] *= share
        self.rr, self.n = share * self.rr, share * self.n
        self._stale.update(range(rows))

    def _refresh(self) -> None:
        for row in self._stale:
            root = inverse_root(self.A[row])
            half = root @ self.b[row]
            self._root[row], self._mean[row] = root, root.T @ half
            self._share[row] = half @ half
        if self._stale:
            self._explained = float(self._share[: len(self._rows)].sum())
            self._stale.clear()

    @property
    def noise(self) -> float:
        self._refresh()
        return self._fixed_noise or learned_noise(self.rr, self._explained, self.n)

    def _rows_of(self, arms: Sequence[str]) -> list[int]:
        """Rows of the stack; an arm that no reward has met reads the prior's, creating none."""
        self._refresh()
        return [self._rows.get(arm, -1) for arm in arms]

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        return np.asarray(np.einsum("nm,nm->n", self._mean[self._rows_of(arms)], phi))

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        half = np.einsum("nij,nj->ni", self._root[self._rows_of(arms)], phi)
        return np.asarray(self.noise * np.sqrt(np.einsum("ni,ni->n", half, half)))

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """x^T mu + s z with one z a draw and arm: the arms' weights are independent."""
        return self.mean(phi, arms) + self.width(phi, arms) * bank.columns(arms)

    def health(self) -> Health:
        ends = [spectrum(self.A[row]) for row in self._rows.values()] or [(self._ridge,) * 2]
        smallest = min(low for low, _ in ends)
        return Health(smallest, max(high for _, high in ends) / smallest, self.n, self.noise)

    def arrays(self) -> dict[str, Array]:
        rows = len(self._rows)
        return {
            "arms": pack_names(self._rows),
            "A": self.A[:rows],
            "b": self.b[:rows],
            "scalars": np.array([self.rr, self.n]),
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        self._rows = {arm: row for row, arm in enumerate(unpack_names(arrays["arms"]))}
        rows = len(self._rows)
        self._reserve(max(4, 2 * rows))
        self.A[:rows], self.b[:rows] = arrays["A"], arrays["b"]
        self.rr, self.n = arrays["scalars"].tolist()
        self._stale = set(range(rows))
