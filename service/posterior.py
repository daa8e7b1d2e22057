"""Heads: what the rewards say, as sums `(A, b, rr, n)`, and what follows from them.

| symbol    | attribute            | meaning                                             |
|-----------|----------------------|-----------------------------------------------------|
| A         | `A`                  | lambda I + sum phi phi^T; float64, the truth        |
| b         | `b`                  | sum r phi                                           |
| rr, n     | `rr`, `n`            | sum r^2, number of settlements                      |
| mu        | `mean`               | A^-1 b                                              |
| S = A^-1  | `root`               | R^T R = S, R lower triangular                       |
| sigma_hat | `noise`              | standard deviation of a reward                      |
| z         | `Bank.column`        | standard normal, stratified                         |

Sources: ridge posterior: Li et al. 2010 (arXiv 1003.0146, algorithm 1), Agrawal & Goyal 2013
(arXiv 1209.3352, section 2.2); learned noise: Riquelme, Tucker, Snoek 2018 (arXiv 1802.09127,
equations 1 and 2); Beta-Bernoulli: Chapelle & Li 2011 (algorithm 2).
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri

from service.linalg import inverse_root, spectrum, widths

Array = npt.NDArray[np.float64]

NOISE_SHAPE, NOISE_RATE = 1.0, 0.01
"""a0 and b0 of the noise. Weak, so that worlds of rare clicks (variance 0.01) are learned as fast
as those of even ones: the prior weighs as much as two rewards."""

KEPT_DRAWS = 2**22
"""Draws kept for arms, 32 MB: 8,192 arms at 512 draws. Ids of arms outside the catalogue are the
callers' to choose, without end."""


class Bank:
    """M stratified standard normals a column: the draws that probabilities are counted over.

    A column is a random permutation of the M mid-quantiles of the normal (Latin hypercube:
    McKay, Beckman, Conover 1979), scaled to unit variance, and a pure function of (key, column
    name): columns can be added without moving the others.
    """

    def __init__(self, draws: int, key: str) -> None:
        self.draws = draws
        self.uniforms = (np.arange(draws) + 0.5) / draws
        self._key = key
        self._columns: dict[str, Array] = {}
        self._matrix: Array | None = None

    @cached_property
    def _quantiles(self) -> Array:
        normals = ndtri(self.uniforms)
        return np.asarray(normals / normals.std())

    def _order(self, name: str) -> npt.NDArray[np.intp]:
        digest = hashlib.blake2b(f"{self._key}\0{name}".encode(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
        return generator.permutation(self.draws)

    def column(self, name: str) -> Array:  # (M,)
        column = self._columns.get(name)
        if column is None:
            if (len(self._columns) + 1) * self.draws > KEPT_DRAWS:
                self._columns.clear()
            column = self._columns[name] = self._quantiles[self._order(name)]
        return column

    def columns(self, names: Sequence[str]) -> Array:  # (M, len(names))
        return np.stack([self.column(name) for name in names], axis=1)

    def matrix(self, width: int) -> Array:  # (M, width)
        """Columns "0", "1", ..., one a dimension of a shared head."""
        if self._matrix is None or self._matrix.shape[1] != width:
            self._matrix = self.columns([str(index) for index in range(width)])
        return self._matrix

    def uniform(self, name: str) -> Array:  # (M,) in (0, 1)
        return self.uniforms[self._order(name)]


@dataclass(frozen=True, slots=True)
class Health:
    """smallest_eigenvalue, condition_number: of A; effective_count: settlements held."""

    smallest_eigenvalue: float
    condition_number: float
    effective_count: float
    noise: float


def digest(head: "Head") -> str:
    """A fingerprint of all of a head's bits: replicas at one position have the same."""
    total = hashlib.sha256()
    for name, array in sorted(head.arrays().items()):
        total.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:32]


def _pack_names(names: Iterable[str]) -> npt.NDArray[Any]:
    """As JSON: numpy's own strings lose NUL characters at their end."""
    return np.frombuffer(json.dumps(list(names)).encode(), np.uint8)


def _unpack_names(packed: npt.NDArray[Any]) -> list[str]:
    names: list[str] = json.loads(packed.tobytes())
    return names


class Head(Protocol):
    """What a rule may ask, and what the fold may do. Rows `phi` belong to `arms`, one to one."""

    def mean(self, phi: Array, arms: Sequence[str]) -> Array: ...  # (n, m) -> (n,)
    def width(self, phi: Array, arms: Sequence[str]) -> Array:  # (n, m) -> (n,)
        """Posterior standard deviation of each mean, in units of the reward."""

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array: ...  # (M, n)
    def observe(self, arm: str, phi: Array, reward: float) -> None: ...
    def revise(self, arm: str, phi: Array, was: float, reward: float) -> None:
        """The reward of an observation changed; A does not."""

    def health(self) -> Health: ...
    def arrays(self) -> dict[str, Array]:
        """All of its state, exactly, for a snapshot; `restore` is the inverse."""

    def restore(self, arrays: dict[str, Array]) -> None: ...


def _learned_noise(rr: float, explained: float, n: float) -> float:
    """sigma_hat: b_n / (a_n - 1) with a_n = a0 + n/2, b_n = b0 + (rr - b^T mu)/2.

    Before the first reward, where a_n - 1 is 0, the noise is that of the first unit reward.
    """
    if n == 0:
        return 1.0
    rate = NOISE_RATE + max(rr - explained, 0.0) / 2
    return float(np.sqrt(rate / (NOISE_SHAPE + n / 2 - 1)))


@dataclass(frozen=True, slots=True)
class _Gaussian:
    """What follows from a ridge head's sums; replaced whole when they change."""

    mean: Array  # (m,)
    root: Array  # (m, m) lower
    noise: float


class RidgeHead:
    """One `(A, b, rr, n)` for all arms; arm features are inside phi."""

    def __init__(self, size: int, ridge: float, noise: float | None) -> None:
        self._fixed_noise = noise
        self.A = ridge * np.eye(size)
        self.b = np.zeros(size)
        self.rr, self.n = 0.0, 0.0
        self._derived: _Gaussian | None = None

    def observe(self, arm: str, phi: Array, reward: float) -> None:
        self._derived = None
        self.A += np.multiply.outer(phi, phi)
        self.b += reward * phi
        self.rr += reward * reward
        self.n += 1

    def revise(self, arm: str, phi: Array, was: float, reward: float) -> None:
        self._derived = None
        self.b += (reward - was) * phi
        self.rr += reward * reward - was * was

    @property
    def posterior(self) -> _Gaussian:
        if self._derived is None:
            root = inverse_root(self.A)
            half = root @ self.b
            noise = self._fixed_noise or _learned_noise(self.rr, float(half @ half), self.n)
            self._derived = _Gaussian(root.T @ half, root, noise)
        return self._derived

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        return phi @ self.posterior.mean

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        return self.posterior.noise * widths(self.posterior.root, phi)

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """phi^T w with w = mu + sigma R^T z, z a row of the bank; R phi first, since n is small."""
        half = phi @ self.posterior.root.T
        return self.mean(phi, arms) + self.posterior.noise * (bank.matrix(len(self.b)) @ half.T)

    def health(self) -> Health:
        smallest, largest = spectrum(self.A)
        return Health(smallest, largest / smallest, self.n, self.posterior.noise)

    def arrays(self) -> dict[str, Array]:
        return {"A": self.A, "b": self.b, "scalars": np.array([self.rr, self.n])}

    def restore(self, arrays: dict[str, Array]) -> None:
        self.A, self.b = arrays["A"].copy(), arrays["b"].copy()
        self.rr, self.n = arrays["scalars"].tolist()
        self._derived = None


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

    def observe(self, arm: str, phi: Array, reward: float) -> None:
        row = self._row(arm)
        self.A[row] += np.multiply.outer(phi, phi)
        self.n += 1
        self._move(row, phi, 0.0, reward)

    def revise(self, arm: str, phi: Array, was: float, reward: float) -> None:
        self._move(self._row(arm), phi, was, reward)

    def _move(self, row: int, phi: Array, was: float, reward: float) -> None:
        self.b[row] += (reward - was) * phi
        self.rr += reward * reward - was * was
        self._stale.add(row)

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
        return self._fixed_noise or _learned_noise(self.rr, self._explained, self.n)

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
            "arms": _pack_names(self._rows),
            "A": self.A[:rows],
            "b": self.b[:rows],
            "scalars": np.array([self.rr, self.n]),
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        self._rows = {arm: row for row, arm in enumerate(_unpack_names(arrays["arms"]))}
        rows = len(self._rows)
        self._reserve(max(4, 2 * rows))
        self.A[:rows], self.b[:rows] = arrays["A"], arrays["b"]
        self.rr, self.n = arrays["scalars"].tolist()
        self._stale = set(range(rows))


class BetaHead:
    """Clicks and misses of each arm, Beta(1, 1) before the first; the context is not looked at.

    A reward between 0 and 1 counts as that share of a click.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Array] = {}
        self._drawn: dict[str, tuple[Bank, Array]] = {}

    def _beta(self, arm: str) -> Array:  # (2,) alpha, beta
        return self._counts.get(arm, np.ones(2))

    def _add(self, arm: str, clicks: float, misses: float) -> None:
        self._counts[arm] = self._beta(arm) + np.array([clicks, misses])
        self._drawn.pop(arm, None)

    def observe(self, arm: str, phi: Array, reward: float) -> None:
        self._add(arm, reward, 1 - reward)

    def revise(self, arm: str, phi: Array, was: float, reward: float) -> None:
        self._add(arm, reward - was, was - reward)

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        counts = np.array([self._beta(arm) for arm in arms])
        return np.asarray(counts[:, 0] / counts.sum(axis=1))

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        mean = self.mean(phi, arms)
        total = np.array([self._beta(arm).sum() for arm in arms])
        return np.asarray(np.sqrt(mean * (1 - mean) / (total + 1)))

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        return np.stack([self._draw_arm(arm, bank) for arm in arms], axis=1)

    def _draw_arm(self, arm: str, bank: Bank) -> Array:  # (M,)
        """Kept until the arm's counts change: a quantile of the Beta costs a microsecond."""
        kept = self._drawn.get(arm)
        if kept is None or kept[0] is not bank:
            if (len(self._drawn) + 1) * bank.draws > KEPT_DRAWS:
                self._drawn.clear()
            alpha, beta = self._beta(arm)
            kept = self._drawn[arm] = bank, betaincinv(alpha, beta, bank.uniform(arm))
        return kept[1]

    def health(self) -> Health:
        totals = [float(counts.sum()) for counts in self._counts.values()] or [2.0]
        held = sum(totals) - 2 * len(totals)
        return Health(min(totals), max(totals) / min(totals), max(held, 0.0), 0.0)

    def arrays(self) -> dict[str, Array]:
        return {
            "arms": _pack_names(self._counts),
            "counts": np.array(list(self._counts.values())).reshape(-1, 2),
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        counts = zip(_unpack_names(arrays["arms"]), arrays["counts"], strict=True)
        self._counts = {arm: count.copy() for arm, count in counts}
        self._drawn.clear()
