"""From a head to a distribution over arms, and from the distribution to a choice.

A rule gives a table of scores, one row a posterior draw (one row in all where nothing is drawn).
Everything after it is the same for every policy: the share of rows that an arm wins is its
propensity, the arm is drawn from those shares, and what is logged is what was drawn from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from service.bandits.posterior.rows import Rows
from service.bandits.posterior.win_probabilities import TIE as TIE

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
    return np.asarray(win_shares(rows, counts)[scores.of])


def win_shares(rows: Array, counts: npt.NDArray[np.intp]) -> Array:  # (M, U), (U,) -> (U,)
    """The same by distinct candidates; counts: arms that are like each."""
    if len(rows) == 1:
        return np.asarray(highest(rows, counts)[0])
    by_arm = rows.T
    best = by_arm.max(axis=0)
    tied = by_arm >= best - TIE * np.abs(best)
    winners = tied.ravel().nonzero()[0] // len(best)
    if len(by_arm) == 1 or len(winners) != len(best):
        return _shared(tied, counts)
    return _won(winners, counts)


def highest(rows: Array, counts: npt.NDArray[np.intp]) -> Array:  # (B, U), (U,) -> (B, U)
    """1 shared by the arms of the largest scores of each row; counts: arms that are like each."""
    if len(rows) == 1:  # in half the time
        row, shares = rows[0], np.zeros(rows.shape)
        index = row.argmax()
        close = row >= row[index] - TIE * abs(row[index])
        if np.count_nonzero(close) == 1:
            shares[0, index] = 1.0 / counts[index]
        else:
            shares[0, close] = 1.0 / counts[close].sum()
        return shares
    best = rows.max(axis=1, keepdims=True)
    tied = rows >= best - TIE * np.abs(best)
    return np.asarray(tied / tied.dot(counts)[:, None])


def highest_exactly(
    scores: npt.NDArray[np.floating],  # (U,)
    margin: float,
    rows: Rows,
    like: npt.NDArray[np.intp],
    exact: Callable[[Array], Array],
) -> Array | None:  # (U,)
    """`highest`, where few scores are within a margin of the largest; None: many are.
    exact: the scores of rows of phi."""
    open_ = (scores >= scores.max() - margin).nonzero()[0]
    if len(open_) > len(rows) // 4:
        return None
    shares = np.zeros(len(rows))
    shares[open_] = highest(exact(rows.exact(open_))[None], like[open_])[0]
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


def expect_whole(p: Array) -> Array:  # (..., K)
    """The same. Raises FloatingPointError where a row does not sum to 1: its scores were none."""
    if not abs(p.sum() - p.size // p.shape[-1]) < 0.5:
        raise FloatingPointError("the probabilities of a decision do not sum to 1")
    return p


def floor(p: Array, epsilon: float) -> Array:  # (..., K)
    """p <- (1 - epsilon) p + epsilon / K."""
    if epsilon == 0:
        return p
    return np.asarray((1 - epsilon) * p + epsilon / p.shape[-1])


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


def choose_each(p: Array, points: Sequence[float]) -> npt.NDArray[np.intp]:  # (B, K), (B,) -> (B,)
    """`choose` by row."""
    index: npt.NDArray[np.intp] = p.argmax(axis=1)
    open_ = (p[np.arange(len(p)), index] < 1).nonzero()[0]
    if len(open_):
        totals = p[open_].cumsum(axis=1)
        at = np.array(points)[open_] * totals[:, -1]
        drawn = (totals <= at[:, None]).sum(axis=1)
        for row in (drawn == p.shape[1]).nonzero()[0]:  # the product may round up to the end
            drawn[row] = np.flatnonzero(p[open_[row]])[-1]
        index[open_] = drawn
    return index


class Slate(Struct, frozen=True):
    """arms: indexes in order shown; propensities: of each arm in its slot; chance: of the slate."""

    arms: list[int]
    propensities: list[float]
    chance: float


def entropy(p: Sequence[float] | Array) -> float:
    """Of a choice, in nats."""
    chances = np.asarray(p)
    return -float(chances.dot(np.log(chances + TINY)))
