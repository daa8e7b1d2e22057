"""What heads have in common, and the bank of draws.

A head is what the rewards say, as sums `(A, b, rr, n)`, and what follows from them.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from service.bandits.heads.win_probabilities import Weights
from service.bandits.linalg import Array as Array
from service.bandits.linalg import Index, Spectrum

Stored = npt.NDArray[Any]
"""An array of a snapshot."""
Meta = dict[str, Any]
"""What a snapshot says beside its arrays, as JSON."""
Places = npt.NDArray[np.uint16]
"""Draws, by arm and rank."""

NOISE_SHAPE, NOISE_RATE = 1.0, 0.01
"""a0 and b0 of the noise. Weak, so that worlds of rare clicks (variance 0.01) are learned as fast
as those of even ones: the prior weighs as much as two rewards."""

KEPT_DRAWS = 2**22
"""Numbers of draws that a head keeps, 32 MB."""

KEPT_PLACES = 2**24
"""Draws kept for arms, 32 MB: 32,768 arms at 512 draws. Ids of arms outside the catalogue are the
callers' to choose, without end."""

OUTSIDE = "\0" * 257
"""Prefix of the id of an arm outside the catalogue, which gets no row of its own; no id is as
long."""

SQUARES = 2**15
"""Numbers of squares that are added at once: more leave the cache of a processor."""

REMOVABLE = 1e10
"""Squared length of a row, in units of lambda, up to which it is taken out of A again: rounding
then leaves A off by 1e-6 lambda. The sum 1 + 1e17 has lost the 1."""

LEFT = 1e-9
"""Settlements that rounding leaves where none are."""


def removable(phi: Array, ridge: float, share: float) -> bool:
    """Whether this share of a row's square can be subtracted from A without loss of precision."""
    return bool(share * (phi @ phi) <= REMOVABLE * ridge)


def fewer(count: float, share: float) -> float:
    """Subtract this share of one settlement from a count."""
    left = count - share
    return left if left > LEFT else 0.0


def added(first: Array, rows: Array) -> Array:  # (...), (k, ...) -> (...)
    """Return first + rows[0] + rows[1] + ..., with the bits of adding one row after the other."""
    each = np.concatenate((first[None], rows))
    if first.size > 1:
        return np.asarray(np.add.reduce(each, axis=0))
    return np.asarray(np.add.accumulate(each, axis=0)[-1])  # `reduce` would add numbers in pairs


def added_squares(a: Array, weighed: Array, phi: Array) -> Array:  # (m, m), (k, m), (k, m)
    """Return A plus weighed phi^T of each row, with the bits of adding one row after the other."""
    step = max(1, SQUARES // a.size)
    for start in range(0, len(phi), step):
        rows = slice(start, start + step)
        a = added(a, weighed[rows, :, None] * phi[rows, None, :])
    return a


class NameIndex:
    """Rows of a table by name, from 1 on; row 0 stands for every name that has none."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.by_name = {name: row for row, name in enumerate(names, start=1)}
        self._latest: tuple[Sequence[str], int, Index] | None = None

    def __len__(self) -> int:
        """Rows in use, with row 0."""
        return len(self.by_name) + 1

    def add(self, name: str) -> int:
        return self.by_name.setdefault(name, len(self.by_name) + 1)

    def of(self, names: Sequence[str]) -> Index:  # (n,)
        """Return the row of each name. Those of the latest names are cached: 10,000 take a
        millisecond."""
        latest, size = self._latest, len(self)
        if latest is None or latest[0] is not names or latest[1] != size:
            get = self.by_name.get
            found = np.array([get(name, 0) for name in names], np.intp)
            latest = self._latest = names, size, found
        return latest[2]


class Bank:
    """M stratified standard normals a column: the draws that probabilities are counted over.

    A column is a random permutation of the M mid-quantiles of the normal (Latin hypercube:
    McKay, Beckman, Conover 1979), scaled to unit variance, and a pure function of (key, column
    name): columns can be added without moving the others. Threads may share a bank.
    """

    def __init__(self, draws: int, key: str) -> None:
        self.draws = draws
        self.uniforms = (np.arange(draws) + 0.5) / draws
        self._key = key
        self._table = NameIndex(), np.empty((1, draws), np.uint16)
        self._growth = Lock()
        self._limit = KEPT_PLACES // draws
        self._matrix: Array | None = None
        self._offset: Weights | None = None

    @cached_property
    def quantiles(self) -> Array:  # (M,) rising
        normals = ndtri(self.uniforms)
        return np.asarray(normals / normals.std())

    def _order(self, name: str) -> Index:  # (M,)
        digest = hashlib.blake2b(f"{self._key}\0{name}".encode(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
        return generator.permutation(self.draws)

    def columns(self, names: Sequence[str]) -> Array:  # (M, n)
        return self.spread(names, np.broadcast_to(self.quantiles, (len(names), self.draws)))

    def spread(self, names: Sequence[str], rising: Array) -> Array:  # (n, M) -> (M, n)
        """Put the values of each name, which rise by rank, at the draws that have these ranks."""
        places = self.places(names)
        table = np.empty(places.shape)
        np.put_along_axis(table, places.astype(np.intp), rising, axis=1)
        return table.T

    def places(self, names: Sequence[str]) -> Places:  # (n, M)
        """Return the draw in which each name has its r-th smallest value."""
        if len(names) >= self._limit:
            return np.array([self._place(name) for name in names])
        index, places = self._table
        rows = index.of(names)
        if not rows.all():
            with self._growth:
                index, places = self._add(names)
            rows = index.of(names)
        return places[rows]

    def _place(self, name: str) -> Places:  # (M,)
        return self._order(name).argsort().astype(np.uint16)

    def _add(self, names: Sequence[str]) -> tuple[NameIndex, Places]:
        """Add names, each once its places are there: others read meanwhile."""
        index, places = self._table
        new = [name for name in dict.fromkeys(names) if name not in index.by_name]
        if len(index) + len(new) > self._limit:
            index, new = NameIndex(), list(dict.fromkeys(names))
        first, size = len(index), len(index) + len(new)
        if size > len(places) or first == 1:
            wide = np.empty((max(size, min(2 * len(places), self._limit)), self.draws), np.uint16)
            wide[1:first] = places[1:first]
            index, places = NameIndex(index.by_name), wide
        for row, name in enumerate(new, start=first):
            places[row] = self._place(name)
        for name in new:
            index.add(name)
        self._table = index, places
        return self._table

    def matrix(self, width: int) -> Array:  # (M, width)
        """Columns "0", "1", ..., one for each dimension of a shared head."""
        matrix = self._matrix
        if matrix is None or matrix.shape[1] != width:
            names = [str(index) for index in range(width)]
            matrix = np.stack([self.quantiles[self._order(name)] for name in names], axis=1)
            self._matrix = matrix
        return matrix

    def offset_matrix(self, width: int) -> Weights:  # (M, width + 1)
        """Return the matrix with a column of ones after it, for rows with an offset."""
        normals, offset = self.matrix(width), self._offset
        if offset is None or offset.exact.shape[1] != width + 1:
            offset = Weights.of(np.hstack([normals, np.ones((self.draws, 1))]))
            self._offset = offset
        return offset


@dataclass(frozen=True, slots=True)
class HeadHealth:
    """smallest_eigenvalue, condition_number: of A, over all directions; effective_rank: of the
    rows of its rewards (`linalg.Spectrum`); effective_count: settlements held; noise: of a reward.
    """

    smallest_eigenvalue: float
    condition_number: float
    effective_rank: float
    effective_count: float
    noise: float

    @classmethod
    def of_worst(
        cls, spectra: Sequence[Spectrum], ridge: float, count: float, noise: float
    ) -> "HeadHealth":
        """Describe a head by the worst of its matrices; one without a matrix is its prior."""
        spectra = spectra or [Spectrum(ridge, ridge, 0.0)]
        return cls(
            min(each.smallest for each in spectra),
            max(each.condition for each in spectra),
            min(each.rank for each in spectra),
            count,
            noise,
        )


def pack_names(names: Iterable[str]) -> Stored:
    """Pack names as JSON: numpy's own strings lose NUL characters at their end."""
    return np.frombuffer(json.dumps(list(names)).encode(), np.uint8)


def unpack_names(packed: Stored) -> list[str]:
    names: list[str] = json.loads(packed.tobytes())
    return names


def part(arrays: Mapping[str, Stored], prefix: str) -> dict[str, Stored]:
    """Return the arrays whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


class Observation(NamedTuple):
    """One settled arm, as a head learns it.

    phi      (m,) its row
    key      of its decision, for heads that resample settlements
    weight   it counts as so many observations
    imported as in `Outcome`
    """

    arm: str
    phi: Array
    reward: float
    key: str = ""
    weight: float = 1.0
    imported: bool = False


class Observations(NamedTuple):
    """Many settled arms: the columns of `Observation`, (k,) each, and phi (k, m)."""

    arms: Sequence[str]
    phi: Array
    rewards: Array
    keys: Sequence[str]
    weights: Array
    imported: Sequence[bool]

    def each(self) -> Iterator[Observation]:
        """Yield one after the other."""
        rewards, weights = self.rewards.tolist(), self.weights.tolist()
        columns = zip(self.arms, self.phi, rewards, self.keys, weights, self.imported, strict=True)
        return map(Observation._make, columns)
