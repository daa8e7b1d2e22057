"""Ridge regressors that each saw another bootstrap of the rewards: their spread is the width."""

import hashlib
from collections.abc import Sequence
from math import e, factorial

import numpy as np

from service.bandits.heads.base import Array, Bank, HeadHealth, Observation, part, removable
from service.bandits.heads.head import Head
from service.bandits.heads.ridge import RidgeHead, solution

POISSON = np.cumsum([1 / (e * factorial(count)) for count in range(20)])
"""P(w <= 0), P(w <= 1), ... of a Poisson variable of mean 1; P(w > 19) is below 2^-53."""


def times(key: str, arm: str, members: int) -> Array:  # (N,)
    """How often each member sees the settlement of `arm` in decision `key`: Poisson(1), from 53
    bits of SHAKE-128 a member.

    A pure function of (key, arm, member): a correction finds the weight that the settlement had,
    and more members leave the first ones' as they are. 5 microseconds for 10 members.
    """
    raw = hashlib.shake_128(f"{key}\0{arm}".encode()).digest(8 * members)
    uniform = (np.frombuffer(raw, "<u8") >> np.uint64(11)) * 2.0**-53
    return np.searchsorted(POISSON, uniform, side="right").astype(np.float64)


class EnsembleHead(Head):
    """N ridge regressors over one phi; which of them saw a settlement, and how often, is chance.

        A_i = lambda I + sum w_i phi phi^T,   b_i = sum w_i r phi,   w_i = times(key, arm, N)[i]
        mu_i = A_i^-1 (b_i + sqrt(lambda) sigma_hat z_i)

    Bootstrap: Osband & Van Roy 2015 (arXiv 1507.00300). z_i, fixed standard normals, randomise the
    prior's mean (Osband, Aslanides, Cassirer 2018, arXiv 1806.03335): without them all members say
    0 where there is no data. With even noise the members' covariance is sigma^2 A^-1, the ridge
    posterior's. z_i are stratified over the members as a bank's columns are. sigma_hat is that of
    one ridge head over all settlements, each counted once. docs/mathematics.md compares Poisson(1)
    weights with "double or nothing".

    Attributes: A (N, m, m), b (N, m). After a reward the next read solves A_i x = [b_i | z_i] for
    each member that saw it: 20 microseconds at m = 74.
    """

    def __init__(
        self, size: int, ridge: float, noise: float | None, members: int, key: str
    ) -> None:
        self._ridge, self.matrices = ridge, members
        self._prior = Bank(members, key).matrix(size)  # (N, m), z
        self._once = RidgeHead(size, ridge, noise)
        self.A = np.broadcast_to(ridge * np.eye(size), (members, size, size)).copy()
        self.b, self.s = np.zeros((members, size)), np.zeros((members, size))
        self._solved = np.empty((members, size, 3))  # A_i^-1 [b_i | s_i | z_i]
        self._stale = np.ones(members, bool)  # of these
        self._derived: Array | None = None  # (N, m)

    def observe(self, row: Observation) -> None:
        self._derived = None
        weights = row.weight * times(row.key, row.arm, self.matrices)
        self._stale |= weights > 0
        outer = np.multiply.outer(row.phi, row.phi)
        for member in np.flatnonzero(weights):
            self.A[member] += weights[member] * outer
        self.b += np.multiply.outer(weights * row.reward, row.phi)
        self.s += np.multiply.outer(weights, row.phi)
        self._once.observe(row)

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        """Exact: with the key of the observation, b is what it were had the reward been right."""
        self._derived = None
        weights = times(row.key, row.arm, self.matrices)
        self._stale |= weights > 0
        moved = left * row.weight * (row.reward - was) * weights
        self.b += np.multiply.outer(moved, row.phi)
        self._once.revise(row, was, left)

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        weights = left * row.weight * times(row.key, row.arm, self.matrices)
        if not removable(row.phi, self._ridge, float(weights.max())):
            return
        self._derived = None
        self._stale |= weights > 0
        self.A -= weights[:, None, None] * np.multiply.outer(row.phi, row.phi)
        self.b -= np.multiply.outer(weights * row.reward, row.phi)
        self.s -= np.multiply.outer(weights, row.phi)
        self._once.withdraw(row, left)

    def decay(self, share: float) -> None:
        """A_i <- g A_i + (1 - g) lambda I, b_i by g: the prior, randomised, is not forgotten."""
        self._derived = None
        self._stale[:] = True
        self.A *= share
        diagonal = np.arange(self.b.shape[1])
        self.A[:, diagonal, diagonal] += (1 - share) * self._ridge
        self.b *= share
        self.s *= share
        self._once.decay(share)

    def distrust(self, factor: float) -> None:
        self._derived = None
        self._once.distrust(factor)

    @property
    def stale(self) -> int:
        return int(np.count_nonzero(self._stale))

    @property
    def members(self) -> Array:  # (N, m)
        """mu_i of every member."""
        if self._derived is None:
            for member in np.flatnonzero(self._stale):
                right = np.array([self.b[member], self.s[member], self._prior[member]]).T
                self._solved[member] = solution(self.A[member], right)
            self._stale[:] = False
            prior = np.sqrt(self._ridge) * self._once.noise
            by_reward, by_row, by_prior = np.moveaxis(self._solved, 2, 0)
            self._derived = by_reward - self._once.level * by_row + prior * by_prior
        return self._derived

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:  # (n, m) -> (N, n)
        """One row a member; the bank has no part in it."""
        return np.asarray(self._once.level + self.members @ phi.T)

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        return np.asarray(self._once.level + phi @ self.members.mean(axis=0))

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        """Return the standard deviation over the members."""
        return np.asarray((self.members @ phi.T).std(axis=0))

    @property
    def held(self) -> float:
        return self._once.held

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        return self._once.evidence(arms)

    def health(self) -> HeadHealth:
        """Describe the ridge head that counts every settlement once."""
        return self._once.health()

    def arrays(self) -> dict[str, Array]:
        once = {f"once.{name}": array for name, array in self._once.arrays().items()}
        return {"A": self.A, "b": self.b, "s": self.s, **once}

    def restore(self, arrays: dict[str, Array]) -> None:
        self.A, self.b, self.s = (arrays[name].copy() for name in ("A", "b", "s"))
        self._once.restore(part(arrays, "once."))
        self._stale[:] = True
        self._derived = None
