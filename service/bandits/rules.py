"""Rules: scores become a distribution over arms, and this a choice.

A rule gives a table of scores, one row a posterior draw (one row in all without draws). The share
of rows that an arm wins is its propensity, unless the rule gives that in closed form; the arm is
drawn from those shares, and they are logged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from msgspec import Struct

from service.bandits.heads import win_probabilities
from service.bandits.heads.win_probabilities import TIE as TIE
from service.bandits.linalg import Array, Index

TINY = 1e-300
"""Added to a chance, it changes none but 0, whose log it makes finite."""


Formula = Callable[[Array, Index], Array]
"""Chances in closed form: of an arm of each of some distinct candidates, (n,), by their scores
(n,) and the numbers of arms that are like each (n,)."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of candidates.

    rows      (M, U) of the distinct candidates, a row for each posterior draw
    of        (K,) the distinct candidate of each arm
    counts    (U,) arms that are like each
    formula   None where chances are shares of rows
    """

    rows: Array
    of: Index
    counts: Index
    formula: Formula | None = None

    def among(self, arms: Index) -> "Scores":
        """Return the scores of some arms, by their places."""
        if len(arms) == len(self.of):
            return self
        kept, of, counts = np.unique(self.of[arms], return_inverse=True, return_counts=True)
        return Scores(self.rows[:, kept], of, counts, self.formula)


def probabilities(scores: Scores) -> Array:  # (K,)
    """Return the share of draws that each arm wins, equals sharing a win, or what a formula
    gives."""
    if scores.formula is not None:
        shares = scores.formula(scores.rows[0], scores.counts)
    else:
        shares = win_shares(scores.rows, scores.counts)
    return np.asarray(shares[scores.of])


def win_shares(rows: Array, counts: Index) -> Array:  # (M, U), (U,) -> (U,)
    """Return the share of draws that an arm of each distinct candidate wins; counts: arms that are
    like each."""
    draws, arms = rows.shape
    if draws == 1:
        return np.asarray(highest(rows, counts)[0])
    if arms == 1:
        return np.asarray(np.full((draws, 1), 1.0 / counts[0]).mean(axis=0))
    return win_probabilities.shares(win_probabilities.winners(rows), counts, draws)


def highest(rows: Array, counts: Index) -> Array:  # (B, U), (U,) -> (B, U)
    """Share 1 among the arms of the largest scores of each row; counts: arms that are like each."""
    best = rows.max(axis=1, keepdims=True)
    tied = rows >= best - TIE * np.abs(best)
    return np.asarray(tied / tied.dot(counts)[:, None])


def expect_whole(p: Array) -> Array:  # (..., K)
    """Return p. Raises FloatingPointError where a row does not sum to 1: scores are no numbers."""
    if not abs(p.sum() - p.size // p.shape[-1]) < 1e-6:
        raise FloatingPointError("the probabilities of a decision do not sum to 1")
    return p


def expect_finite(scores: Scores) -> Scores:
    """Return scores. Raises FloatingPointError where one of them is no number."""
    if not isfinite(scores.rows.sum()) and not np.isfinite(scores.rows).all():
        raise FloatingPointError("a score of a decision is no number")
    return scores


def floor(p: Array, epsilon: float) -> Array:  # (..., K)
    """Return (1 - epsilon) p + epsilon / K."""
    if epsilon == 0:
        return p
    return np.asarray((1 - epsilon) * p + epsilon / p.shape[-1])


TRY_SHARE = 0.1
"""Chance of an untried arm, where there are any."""


def with_tries(p: Array, untried: Sequence[int] | Index) -> Array:  # (..., K)
    """Return 0.9 p, and 0.1 for the untried arms, evenly; p where all or none are untried."""
    if not len(untried) or len(untried) == p.shape[-1]:
        return p
    mixed = (1 - TRY_SHARE) * p
    mixed[..., untried] += TRY_SHARE / len(untried)
    return np.asarray(mixed)


def point_of(seed: int) -> float:
    """Return the point in [0, 1) that a seed of 63 random bits stands for: its first 53 bits."""
    return (seed >> 10) * 2.0**-53


def choose(weights: Array, point: float) -> int:
    """Return the index that a point of [0, 1) falls to, each taking its share of the weights."""
    likeliest = int(weights.argmax())
    if weights[likeliest] >= 1.0:  # a sure choice, in a tenth of the time
        return likeliest
    total = weights.cumsum()
    index = int(total.searchsorted(point * total[-1], side="right"))
    if index == len(total):  # the product may round up to the end
        index = int(np.flatnonzero(weights)[-1])
    return index


class Slate(Struct, frozen=True):
    """A choice of one or several arms.

    arms           indexes among the candidates, in the order shown
    propensities   of each arm in its slot, after those before it
    log_chance     natural logarithm of the chance of the slate, their product
    held           numbers of the rules that held a chance where it was
    relaxed        numbers of the rules that yielded to others
    """

    arms: list[int]
    propensities: list[float]
    log_chance: float
    held: tuple[int, ...] = ()
    relaxed: tuple[int, ...] = ()


def entropy(p: Sequence[float] | Array) -> float:
    """Return the entropy of a choice, in nats."""
    chances = np.asarray(p)
    return -float(chances.dot(np.log(chances + TINY)))
