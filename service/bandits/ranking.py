"""Slates: draw one of the M rankings, and compute its chance over all of them.

A ranking is of groups: arms of equal features have equal scores in every draw, and so one place.
Arms of a draw that neither fit the slate nor tie with an arm of it are left out: with 1,000 arms
and 10 slots that takes a tenth of the time of a whole table. With 10,000 arms, 512 draws and 100
slots that tie: 5 ms if all arms are alike, 0.1 s if they are alike in pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, frexp, ldexp, log, perm
from random import Random
from sys import float_info

import numpy as np
import numpy.typing as npt

from service.bandits.linalg import Array, Index
from service.bandits.rules import TIE, Scores, Slate, choose

Comparison = Callable[[Array, Array], npt.NDArray[np.bool_]]
"""Of scores of groups and other scores, in one shape."""

REACH = 4
"""Tolerances of a tie: a shown arm may be one below the last place, and tie with arms one below it;
rounding does not add up to the others."""

DIRECT_COMPARISONS = 2**16
"""Scores up to which comparing all at once is faster than a binary search: one draw of 50 arms in 5
groups, 10 slots: 0.6 ms instead of 0.9."""


RESCALED_SLOTS = 32
"""Slots after which chances are scaled by a power of two: by then those of ties among 2^30 arms
have not left the range of a float."""


def rank(scores: Scores, size: int, epsilon: float, rng: Random) -> Slate:
    """Draw one of the M rankings, or with chance epsilon a uniform permutation; its top `size`.

    Ties of a ranking are permuted uniformly, and the probabilities count every such permutation, so
    they are exact for the draw that was made: p(slate) = (1 - epsilon) mean_j P(slate | draw j)
    + epsilon (K - k)! / K!.
    """
    if scores.first is not None:
        return _rank_behind(scores, scores.first, size, epsilon, rng)
    rows, candidates = scores.rows, len(scores.of)
    drawn = rng.randrange(len(rows))
    key = rows[drawn, scores.of] if rng.random() >= epsilon else np.zeros(candidates)
    shown = _permute_ties(key, size, rng)
    groups = scores.of[shown]

    highest = HighestGroups.of(scores, size)
    if highest.sure:
        hits = highest.groups[:, :size] == groups  # (M, size)
        shares = (1 - epsilon) * hits.mean(axis=0) + epsilon / candidates
        whole = float(hits.all(axis=1).mean())
        return Slate(shown, shares.tolist(), log_chance(whole, 0, epsilon, perm(candidates, size)))

    own = rows[:, groups]
    in_slots = [float(share.mean()) for share in highest.in_slots(own).T.copy()]
    reached = highest.reached(groups, own)
    return Slate(
        shown,
        [(1 - epsilon) * share + epsilon / candidates for share in in_slots],
        log_chance(*reached, epsilon, perm(candidates, size)),
    )


def _rank_behind(scores: Scores, first: Array, size: int, epsilon: float, rng: Random) -> Slate:
    """Draw the first arm by the chances that its rule gives, and rank the others behind it by their
    scores; or with chance epsilon draw a uniform permutation.

    Of an arm that `above` arms precede and `count` tie with, itself included, the slots that it can
    have follow from where the first arm was ranked: above it, among those that tie, or below it.
    """
    p, levels = first[scores.of], _levels(scores.rows[0])[scores.of]
    candidates, key = len(p), np.zeros(len(p))
    if rng.random() >= epsilon:
        key = -levels.astype(float)
        key[choose(p, rng.random())] = 1.0
    shown = _permute_ties(key, size, rng)

    counts, chances = np.bincount(levels), np.bincount(levels, weights=p)
    ends, totals = counts.cumsum(), chances.cumsum()
    shares = [float(p[shown[0]])]
    for slot, arm in enumerate(shown[1:], start=1):
        level = levels[arm]
        count, above = counts[level], ends[level] - counts[level]
        share = 0.0
        if above <= slot < above + count:
            share += (totals[level] - chances[level]) / count
        if above < slot < above + count:
            share += (chances[level] - p[arm]) / (count - 1)
        if above < slot <= above + count:
            share += (totals[-1] - totals[level]) / count
        shares.append(max(float(share), 0.0))

    whole, exponent, top = shares[0], 0, 0
    left = counts.copy()
    left[levels[shown[0]]] -= 1
    for arm in shown[1:]:
        top += int((left[top:] > 0).argmax())
        whole = whole / int(left[top]) if levels[arm] == top else 0.0
        left[top] -= 1
        whole, shift = frexp(whole)
        exponent += shift
    return Slate(
        shown,
        [(1 - epsilon) * share + epsilon / candidates for share in shares],
        log_chance(whole, exponent, epsilon, perm(candidates, size)),
    )


def _levels(scores: Array) -> Index:  # (U,) -> (U,)
    """Return 0 for the highest scores, 1 for the next ones; those that tie have one level."""
    order = np.argsort(-scores, kind="stable")
    ordered, levels = scores[order], np.zeros(len(scores), np.intp)
    apart = ordered[1:] < ordered[:-1] - TIE * np.abs(ordered[:-1])
    levels[order[1:]] = apart.cumsum()
    return levels


def log_chance(whole: float, exponent: int, epsilon: float, orders: int) -> float:
    """Return ln((1 - epsilon) whole 2^exponent + epsilon / orders), also where the sum underflows.

    By `math` alone: numpy's logarithms differ between processors, and the audit compares bits.
    """
    ranked = (1 - epsilon) * whole
    chance = ldexp(ranked, exponent) + epsilon * (1 / orders)
    if chance >= float_info.min:
        return log(chance)
    parts = [log(ranked) + exponent * log(2)] if ranked else []
    parts += [log(epsilon) - log(orders)] if epsilon else []
    return max(parts) + log(sum(exp(part - max(parts)) for part in parts))


def _permute_ties(key: Array, size: int, rng: Random) -> list[int]:
    """Return the indexes of the `size` largest, equals in random order, one slot at a time."""
    left = key.copy()
    tied, best, as_good = np.empty(0, np.intp), 0.0, 0
    shown: list[int] = []
    for _ in range(size):
        if not as_good:
            best = left.max()
            tied = (left >= best - TIE * np.abs(best)).nonzero()[0]
            as_good = int(np.count_nonzero(left == best))
        place = rng.randrange(len(tied))
        arm = int(tied[place])
        shown.append(arm)
        as_good -= bool(left[arm] == best)
        left[arm] = -np.inf
        if as_good:
            tied = np.delete(tied, place)
    return shown


@dataclass(frozen=True, slots=True)
class HighestGroups:
    """The highest groups of every draw: those that a slate can show, and those that tie with them.

    groups   (M, R) from the highest down
    values   (M, R) their scores
    ends     (M, R + 1) arms of the groups before each place
    counts   (U,) arms of each group
    sure     nothing ties where the slate is: the first `size` groups are one arm each
    """

    groups: Index
    values: Array
    ends: Index
    counts: Index
    sure: bool

    @classmethod
    def of(cls, scores: Scores, size: int) -> "HighestGroups":
        rows, counts = np.ascontiguousarray(scores.rows), scores.counts
        groups, values = _highest(rows, min(size + 1, rows.shape[1]))
        alone = bool((counts[groups[:, :size]] == 1).all())
        apart = values[:, 1:] < values[:, :-1] - TIE * np.abs(values[:, :-1])
        sure = alone and bool(apart.all())
        if not sure and rows.shape[1] > size:
            last = values[:, size - 1]
            least = last - REACH * TIE * np.abs(last)
            most = int(np.count_nonzero(rows >= least[:, None], axis=1).max())
            groups, values = _highest(rows, most)
        ends = np.zeros((len(rows), groups.shape[1] + 1), np.intp)
        if not sure:
            counts[groups].cumsum(axis=1, out=ends[:, 1:])
        return cls(groups, values, ends, counts, sure)

    def in_slots(self, own: Array) -> Array:  # (M, size) -> (M, size)
        """Return the chance of each shown arm in its slot in each draw, over the permutations of
        ties. own: its scores."""

        def margin(values: Array, own: Array) -> Array:
            return TIE * np.maximum(np.abs(own), np.abs(values))

        above = self._before(lambda each, own: each > own + margin(each, own), own)
        higher = self._before(lambda each, own: each - own > margin(each, own), own)
        as_high = self._before(lambda each, own: own - each <= margin(each, own), own)
        level = np.maximum(as_high - higher, 1)  # 0: further down than the slate can reach
        slots = np.arange(own.shape[1])
        return np.where((above <= slots) & (slots < above + level), 1 / level, 0.0)

    def reached(self, groups: Index, own: Array) -> tuple[float, int]:  # (size,), (M, size)
        """Return the mean chance of the whole slate over the draws, over a power of two, and its
        exponent: at every slot its arm is one of those that tie for the highest score of the arms
        left."""
        size = len(groups)
        values = self.values[:, :size]
        tied = self._before(lambda each, own: each >= own - TIE * np.abs(own), values)
        found, left = np.ones(len(own)), self.counts.copy()
        exponents = np.zeros(len(own), np.intc)
        for slot, group in enumerate(groups.tolist()):
            draws = found.nonzero()[0]
            if not len(draws):
                break
            first = (left[self.groups[draws, :size]] > 0).argmax(axis=1)
            best = values[draws, first]
            least = best - TIE * np.abs(best)
            gone = (own[draws, :slot] >= least[:, None]).sum(axis=1)
            share = 1 / (tied[draws, first] - gone)
            found[draws] *= np.where(own[draws, slot] >= least, share, 0.0)
            left[group] -= 1
            if slot % RESCALED_SLOTS == RESCALED_SLOTS - 1:
                found, shifts = np.frexp(found)
                exponents += shifts
        if not found.any():
            return 0.0, 0
        exponent = int(exponents[found > 0].max())
        return float(np.ldexp(found, exponents - exponent).mean()), exponent

    def _before(self, holds: Comparison, own: Array) -> Index:  # (M, n) -> (M, n)
        """Count the arms of each draw for which a comparison holds: the highest ones, or none."""
        if own.size * self.values.shape[1] <= DIRECT_COMPARISONS:
            held = holds(self.values[:, None, :], own[:, :, None])
            return _taken(self.ends, held.sum(axis=2))
        low, high = np.zeros(own.shape, np.intp), np.full(own.shape, self.values.shape[1])
        for _ in range(self.values.shape[1].bit_length()):
            middle = (low + high) // 2
            each = _taken(self.values, np.minimum(middle, high - 1))
            true = (middle < high) & holds(each, own)
            low, high = np.where(true, middle + 1, low), np.where(true, high, middle)
        return _taken(self.ends, low)


def _highest(rows: Array, wanted: int) -> tuple[Index, Array]:  # (M, U) -> (M, wanted) twice
    """Return groups and scores, from the highest down."""
    if wanted < rows.shape[1]:
        found = np.argpartition(rows, -wanted, axis=1)[:, -wanted:]
        values = _taken(rows, found)
        order = np.argsort(-values, axis=1)
        return _taken(found, order), _taken(values, order)
    order = np.argsort(-rows, axis=1)
    return order, _taken(rows, order)


def _taken(table: np.ndarray, columns: Index) -> np.ndarray:  # (M, n), (M, k) -> (M, k)
    """As np.take_along_axis, in half the time where there are few rows."""
    taken: np.ndarray = table[np.arange(len(table))[:, None], columns]
    return taken
