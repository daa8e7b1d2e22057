"""From a head to a distribution over arms, and from the distribution to a choice.

A rule gives a table of scores, one row a posterior draw (one row in all where nothing is drawn).
Everything after it is the same for every policy: the share of rows that an arm wins is its
propensity, the arm is drawn from those shares, and what is logged is what was drawn from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import perm
from random import Random

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from service.posterior.wins import TIE as TIE

Array = npt.NDArray[np.float64]

TINY = 1e-300
"""Added to a chance, it changes none but 0, whose log it makes finite."""


@dataclass(frozen=True, slots=True)
class Scores:
    """rows: (M, U) scores of the distinct candidates; of: (K,) the distinct row of each arm;
    counts: (U,) arms that are like each, where that is known."""

    rows: Array
    of: npt.NDArray[np.intp]
    counts: npt.NDArray[np.intp] | None = None

    @property
    def arms(self) -> Array:  # (M, K)
        return np.ascontiguousarray(self.rows[:, self.of])


def probabilities(scores: Scores) -> Array:  # (K,)
    """The share of draws that each arm wins; tied arms share a win equally."""
    rows, counts = scores.rows, scores.counts
    if counts is None:
        counts = np.bincount(scores.of, minlength=rows.shape[1])
    if len(rows) == 1:
        return highest(rows[0], counts)[scores.of]
    by_arm = rows.T
    best = by_arm.max(axis=0)
    tied = by_arm >= best - TIE * np.abs(best)
    winners = tied.ravel().nonzero()[0] // len(best)
    if len(by_arm) == 1 or len(winners) != len(best):
        return np.asarray(_shared(tied, counts)[scores.of])
    return np.asarray(_won(winners, counts)[scores.of])


def highest(row: Array, counts: npt.NDArray[np.intp]) -> Array:  # (U,) -> (U,)
    """1 shared by the arms of the largest scores; counts: arms that are like each."""
    shares = np.zeros(len(row))
    index = row.argmax()
    most = row[index]
    tied = row >= most - TIE * abs(most)
    if np.count_nonzero(tied) == 1:
        shares[index] = 1.0 / counts[index]
    else:
        shares[tied] = 1.0 / counts[tied].sum()
    return shares


def _shared(tied: npt.NDArray[np.bool_], counts: npt.NDArray[np.intp]) -> Array:  # (U, M) -> (U,)
    """The share of each, where some tie."""
    rows = np.ascontiguousarray(tied.T)
    return np.asarray((rows / (rows @ counts)[:, None]).mean(axis=0))


def _won(winners: npt.NDArray[np.intp], counts: npt.NDArray[np.intp]) -> Array:  # (M,) -> (U,)
    """The same where each draw has one winner: its wins are counted, an eighth of the work. What a
    mean over the draws would have summed up is looked up, so that the bits are its bits."""
    arms, draws = len(counts), len(winners)
    wins = np.bincount(winners, minlength=arms)
    if counts.max() == 1:
        return np.asarray(wins / draws)
    shares = np.empty(arms)
    for count in set(counts.tolist()):
        like = counts == count
        shares[like] = _sums(draws, count)[wins[like]]
    return np.asarray(shares / draws)


@lru_cache(maxsize=256)
def _sums(draws: int, count: int) -> Array:  # (draws + 1,)
    """1 / count added up so many times."""
    return np.concatenate(([0.0], np.cumsum(np.full(draws, 1.0 / count))))


def _tied(scores: Array, best: Array) -> npt.NDArray[np.bool_]:
    return np.asarray(scores >= best - TIE * np.abs(best))


def floor(p: Array, epsilon: float) -> Array:
    """p <- (1 - epsilon) p + epsilon / K."""
    if epsilon == 0:
        return p
    return (1 - epsilon) * p + epsilon / len(p)


def point_of(seed: int, *, twister: bool = False) -> float:
    """Where in [0, 1) a seed of 63 random bits points to: its first 53 bits. twister: as the log's
    schemas up to `events.TWISTER` had it, from a generator that took longer to seed than all
    else."""
    return Random(seed).random() if twister else (seed >> 10) * 2.0**-53


def choose(weights: Array, point: float) -> int:
    """The index that a point of [0, 1) falls to, each taking its share of the weights."""
    total = weights.cumsum()
    index = int(total.searchsorted(point * total[-1], side="right"))
    if index == len(total):  # the product may round up to the end
        index = int(np.flatnonzero(weights)[-1])
    return index


class Slate(Struct, frozen=True):
    """arms: indexes in order shown; propensities: of each arm in its slot; chance: of the slate."""

    arms: list[int]
    propensities: list[float]
    chance: float


def rank(scores: Scores, size: int, epsilon: float, rng: Random) -> Slate:
    """Draw one of the M rankings, or with chance epsilon a uniform permutation; its top `size`.

    Ties of a ranking are permuted uniformly, and the probabilities count every such permutation, so
    they are exact for the draw that was made: p(slate) = (1 - epsilon) mean_j P(slate | draw j)
    + epsilon (K - k)! / K!.
    """
    table = scores.arms
    candidates = table.shape[1]
    drawn = rng.randrange(len(table))
    key = table[drawn] if rng.random() >= epsilon else np.zeros(candidates)
    shown = _permute_ties(key, size, rng)

    tops = _tops(table, size)
    if tops is not None:
        hits = tops == shown  # (M, size)
        shares = (1 - epsilon) * hits.mean(axis=0) + epsilon / candidates
        whole = float(hits.all(axis=1).mean())
        permuted = 1 / perm(candidates, size)
        return Slate(shown, shares.tolist(), (1 - epsilon) * whole + epsilon * permuted)

    reached = np.ones(len(table))
    left = table.copy()
    uniform = 1.0
    for slot, arm in enumerate(shown):
        tied = _tied(left, left.max(axis=1, keepdims=True))
        reached *= np.where(tied[:, arm], 1 / tied.sum(axis=1), 0.0)
        left[:, arm] = -np.inf
        uniform /= candidates - slot
    return Slate(
        shown,
        [_in_slot(table, arm, slot, epsilon) for slot, arm in enumerate(shown)],
        float((1 - epsilon) * reached.mean() + epsilon * uniform),
    )


def _tops(table: Array, size: int) -> npt.NDArray[np.intp] | None:  # (M, K) -> (M, size)
    """The first `size` arms of every ranking; None where a tie leaves them open."""
    wanted = min(size + 1, table.shape[1])
    found = np.argpartition(table, -wanted, axis=1)[:, -wanted:]
    values = np.take_along_axis(table, found, axis=1)
    order = np.argsort(-values, axis=1)
    values = np.take_along_axis(values, order, axis=1)
    if _tied(values[:, 1:], values[:, :-1]).any():
        return None
    return np.asarray(np.take_along_axis(found, order, axis=1)[:, :size])


def _permute_ties(key: Array, size: int, rng: Random) -> list[int]:
    """Indexes of the `size` largest, equals in random order, one slot at a time."""
    left = key.copy()
    shown: list[int] = []
    for _ in range(size):
        tied = np.flatnonzero(_tied(left, left.max()))
        arm = int(tied[rng.randrange(len(tied))])
        shown.append(arm)
        left[arm] = -np.inf
    return shown


def _in_slot(table: Array, arm: int, slot: int, epsilon: float) -> float:
    """The marginal chance of an arm in a slot over the rankings and the permutations of ties."""
    own = table[:, [arm]]
    margin = TIE * np.maximum(np.abs(own), np.abs(table))
    above = (table > own + margin).sum(axis=1)
    level = (np.abs(table - own) <= margin).sum(axis=1)
    share = np.where((above <= slot) & (slot < above + level), 1 / level, 0.0)
    return float((1 - epsilon) * share.mean() + epsilon / table.shape[1])


def entropy(p: Sequence[float] | Array) -> float:
    """Of a choice, in nats."""
    chances = np.asarray(p)
    return -float(chances.dot(np.log(chances + TINY)))
