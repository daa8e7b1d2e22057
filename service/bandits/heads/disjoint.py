"""One ridge head an arm."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from service.bandits.heads.base import (
    Array,
    Bank,
    HeadHealth,
    Observation,
    Observations,
    added,
    added_squares,
    fewer,
    pack_names,
    removable,
    unpack_names,
)
from service.bandits.heads.head import Head
from service.bandits.heads.reward_sums import RewardSums
from service.bandits.heads.ridge import followed, learned_noise
from service.bandits.heads.win_probabilities import TABLE, independent
from service.bandits.linalg import Index, inverse_root, spectrum

COMMON_NOISE = 4.0
"""Settlements that the noise common to all arms weighs in each arm's own: an arm's own alone would
call it certain after two equal rewards. One noise for all would call an arm of dear mistakes
certain where the others never vary: on Mushroom, whose `pass` always pays 0, UCB then stopped
eating for ever (regret 53 of uniform's 100, and 4 with noises of their own)."""


class DisjointRidgeHead(Head):
    """One ridge head an arm, stacked; every arm starts from the prior.

    The noise of an arm is sigma_k^2 = (c sigma^2 + q_k) / (c + n_k), q_k = rr_k - b_k^T mu_k, with
    c = COMMON_NOISE and sigma^2 the larger of that of all settlements and the mean of q_k / n_k:
    arms that are shown most do not outvote the others.
    """

    def __init__(self, size: int, ridge: float, noise: float | None) -> None:
        self._size, self._ridge, self._fixed_noise = size, ridge, noise
        self._rows: dict[str, int] = {}
        self._reserve(4)
        self._noise, self._level = noise or 1.0, 0.0
        self._stale: set[int] = set()

    def _reserve(self, rows: int) -> None:
        size = self._size
        self.A = np.broadcast_to(self._ridge * np.eye(size), (rows, size, size)).copy()
        self.b, self.s = np.zeros((rows, size)), np.zeros((rows, size))
        self.n, self.total, self.rr = np.zeros((3, rows))
        self._root = np.broadcast_to(np.eye(size) / np.sqrt(self._ridge), self.A.shape).copy()
        self._by_reward, self._by_row = np.zeros((2, rows, size))  # A^-1 b and A^-1 s
        self._unexplained = np.zeros(rows)
        self._shares = np.zeros((3, rows))  # b^T A^-1 b, b^T A^-1 s and s^T A^-1 s

    def _arrays(self) -> tuple[Array, ...]:
        """All that has a row an arm."""
        sums = self.A, self.b, self.s, self.n, self.total, self.rr
        return *sums, self._root, self._by_reward, self._by_row, self._shares.T

    def _row(self, arm: str) -> int:
        row = self._rows.setdefault(arm, len(self._rows))
        if row == len(self.b) - 1:  # the last row stays the prior, for arms without a head
            old = self._arrays()
            self._reserve(2 * len(self.b))
            for wide, narrow in zip(self._arrays(), old, strict=True):
                wide[: len(narrow)] = narrow
        return row

    def observe(self, row: Observation) -> None:
        place = self._row(row.arm)
        weighed = row.weight * row.phi
        self.A[place] += np.multiply.outer(weighed, row.phi)
        self.s[place] += weighed
        self.n[place] += row.weight
        self._move(place, row.phi, 0.0, row.reward, row.weight)

    def observe_many(self, rows: Observations) -> None:
        places = np.array([self._row(arm) for arm in rows.arms])
        for place in dict.fromkeys(places.tolist()):
            of = np.flatnonzero(places == place)
            phi, reward, weight = rows.phi[of], rows.rewards[of], rows.weights[of]
            weighed = weight[:, None] * phi
            self.A[place] = added_squares(self.A[place], weighed, phi)
            self.s[place] = added(self.s[place], weighed)
            self.b[place] = added(self.b[place], (weight * reward)[:, None] * phi)
            sums = np.array([self.n[place], self.total[place], self.rr[place]])
            moved = np.stack((weight, weight * reward, weight * (reward * reward)), axis=1)
            self.n[place], self.total[place], self.rr[place] = added(sums, moved)
            self._stale.add(place)

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        self._move(self._row(row.arm), row.phi, was, row.reward, left * row.weight)

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        phi, place = row.phi, self._rows.get(row.arm)
        left *= row.weight
        if place is None or not removable(phi, self._ridge, left):
            return
        self.A[place] -= left * np.multiply.outer(phi, phi)
        self.s[place] -= left * phi
        self.n[place] = fewer(float(self.n[place]), left)
        self._move(place, phi, row.reward, 0.0, left)

    def _move(self, place: int, phi: Array, was: float, reward: float, left: float = 1.0) -> None:
        self.b[place] += left * (reward - was) * phi
        self.total[place] += left * (reward - was)
        self.rr[place] += left * (reward * reward - was * was)
        self._stale.add(place)

    def decay(self, share: float) -> None:
        """Forget as a shared head does, in all arms at once: were they to catch up when they are
        read, the bits of A would tell who was read."""
        rows = len(self._rows)
        self.A[:rows] *= share
        diagonal = np.arange(self._size)
        self.A[:rows, diagonal, diagonal] += (1 - share) * self._ridge
        for sums in (self.b, self.s, self.n, self.total, self.rr):
            sums[:rows] *= share
        self._stale.update(range(rows))

    def distrust(self, factor: float) -> None:
        self._refresh()
        self.rr += (factor - 1) * self._unexplained
        self._stale.update(self._rows.values())

    def _refresh(self) -> None:
        for row in list(self._stale):  # two threads may derive at once
            root = inverse_root(self.A[row])
            half = root @ np.array([self.b[row], self.s[row]]).T
            self._root[row] = root
            self._by_reward[row], self._by_row[row] = (root.T @ half).T
            gram = half.T @ half
            self._shares[:, row] = gram[0, 0], gram[0, 1], gram[1, 1]
        if self._stale:
            self._take_common()
        self._stale.clear()

    def _take_common(self) -> None:
        """Derive what arms have in common: the level of rewards, and the noise."""
        rows = len(self._rows)
        n, total, rr = self.n[:rows], self.total[:rows], self.rr[:rows]
        rewards = RewardSums(float(n.sum()), float(total.sum()), float(rr.sum()))
        self._level = level = rewards.level
        left = rr - 2 * level * total + level * level * n
        by_reward, mixed, by_row = self._shares[:, :rows]
        left -= by_reward - 2 * level * mixed + level * level * by_row
        self._unexplained[:rows] = left = np.maximum(left, 0.0)
        if self._fixed_noise is None:
            common = learned_noise(float(left.sum()), rewards.n, rewards.spread)
            met = n > 0
            by_arm = float((left[met] / n[met]).mean()) if met.any() else 0.0
            self._noise = max(common, float(np.sqrt(by_arm)))

    @property
    def count(self) -> int:
        return len(self._rows)

    def decision_numbers(self, arms: int, draws: int) -> float:
        return 2.0 * self._size**2

    @property
    def held(self) -> float:
        return float(self.n[: len(self._rows)].sum())

    @property
    def stale(self) -> int:
        return len(self._stale)

    @property
    def level(self) -> float:
        """The mean of all rewards, at which every arm starts."""
        self._refresh()
        return self._level

    @property
    def noise(self) -> float:
        """Noise of a reward, over all arms together."""
        self._refresh()
        return self._noise

    def _rows_of(self, arms: Sequence[str]) -> list[int]:
        """Rows of the stack; an arm that no reward has met reads the prior's, creating none."""
        self._refresh()
        return [self._rows.get(arm, -1) for arm in arms]

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        rows = self._rows_of(arms)
        n = self.n[rows]
        if self._fixed_noise is not None:
            return n, np.full(len(rows), self._fixed_noise)
        left = self._unexplained[rows]
        return n, np.sqrt((COMMON_NOISE * self._noise**2 + left) / (COMMON_NOISE + n))

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        rows = self._rows_of(arms)
        mean = self._by_reward[rows] - self._level * self._by_row[rows]
        return np.asarray(self._level + np.einsum("nm,nm->n", mean, phi))

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        half = np.einsum("nij,nj->ni", self._root[self._rows_of(arms)], phi)
        _, noise = self.evidence(arms)
        return np.asarray(noise * np.sqrt(np.einsum("ni,ni->n", half, half)))

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """Draw x^T mu + s z with one z a draw and arm: the arms' weights are independent."""
        return self.mean(phi, arms) + self.width(phi, arms) * bank.columns(arms)

    def win_shares(
        self, phi: Array, arms: Sequence[str], like: Index, bank: Bank, scale: float
    ) -> Array | None:
        if len(arms) * bank.draws <= TABLE:
            return None
        mean, width = self.mean(phi, arms)[:, None], scale * self.width(phi, arms)[:, None]

        def value(active: Index, start: int, stop: int) -> Array:
            return mean[active] + width[active] * bank.quantiles[start:stop]

        return independent(bank.places(arms), value)[None]

    def health(self) -> HeadHealth:
        spectra = [spectrum(self.A[row], self._ridge) for row in range(len(self._rows))]
        return HeadHealth.of_worst(spectra, self._ridge, self.held, self.noise)

    def follow(self, kept: Self, columns: Index) -> None:
        self.restore(followed(kept.arrays(), columns, self._ridge))

    def arrays(self) -> dict[str, Array]:
        rows = len(self._rows)
        return {
            "arms": pack_names(self._rows),
            "A": self.A[:rows],
            "b": self.b[:rows],
            "s": self.s[:rows],
            "rewards": np.array([self.n[:rows], self.total[:rows], self.rr[:rows]]),
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        self._rows = {arm: row for row, arm in enumerate(unpack_names(arrays["arms"]))}
        rows = len(self._rows)
        self._reserve(max(4, 2 * rows))
        self.A[:rows], self.b[:rows], self.s[:rows] = arrays["A"], arrays["b"], arrays["s"]
        self.n[:rows], self.total[:rows], self.rr[:rows] = arrays["rewards"]
        self._stale = set(range(rows))
