"""What the errors of an averaged head's members say: their noises, and a level that moved."""

from collections.abc import Sequence
from math import exp, log1p, sqrt
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.bandits.heads.averaged_rows import Spec
from service.bandits.heads.base import Stored
from service.bandits.linalg import Array, Index

DISCOUNT = 0.995
"""Factor of the evidence for a member, a settlement."""

TAILS = 4.0
"""Degrees of freedom of the t distribution that errors are judged by. Under a normal one, a single
lucky reward of an arm that is usually certain gave all weight to whoever had doubted most."""

FIRST_COUNT, CAP, CAP_FADING = 50.0, 2_000.0, 500.0
"""Settlements that the first noise weighs; windows of the noise and of the usual variance. The
first noise weighs much: standardised errors underestimate the noise while variances are large."""

LEAST_NOISE_SHARE = 1e-3
"""Least noise, as a share of the variance of rewards."""

COMMON, OWN_CAP = 5.0, 500.0
"""Settlements that the common noise weighs in an arm's; window of an arm's own. One noise for all
would call an arm of dear mistakes certain where the others never vary."""

LEVELLED = 256
"""Settlements after which errors are tested for a level that moved."""

DRIFT, ALARM, SHOCK, SETTLED = 0.5, 10.0, 2.0, 100.0
"""Drift and threshold of the sums of the test (Page 1954), the largest standardised error, which
keeps a few rare clicks from raising an alarm, and number of errors that the mean after an alarm
is of."""


class Noises:
    """Noises of the members, learned from the errors of their forecasts.

    Those of kind 0 are means of squared errors over 1 + v, those of kind 1 of plain ones.

    fresh     share of the first noise that is left
    squares   (2, members) what errors made of the rest
    usual_variance    (members,) usual variance of what was shown
    counts    (n,) settlements of an arm; the last one stays the prior's
    arms      (2, members, n) sums of an arm's squared errors
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._caps = np.array([CAP if spec.gamma == 1.0 else CAP_FADING for spec in specs])
        self.fresh, self.count = 1.0, FIRST_COUNT
        self.squares, self.usual_variance = np.zeros((2, len(specs))), np.zeros(len(specs))
        self.counts, self.arms = np.zeros(2), np.zeros((2, len(specs), 2))

    def admit(self, arm: int) -> None:
        """Give a row to an arm that was not met before."""
        if arm + 1 == len(self.counts):
            self.counts = np.pad(self.counts, (0, arm + 1))
            self.arms = np.pad(self.arms, ((0, 0), (0, 0), (0, arm + 1)))

    def of_all(self, kind: int, variance: float) -> Array:  # (members,)
        """Return the noise over all arms. variance: of rewards."""
        noise = self.squares[kind] + self.fresh * variance
        return np.asarray(np.maximum(noise, LEAST_NOISE_SHARE * variance)) if kind == 0 else noise

    def of_arm(self, kind: int, variance: float, arm: int) -> Array:  # (members,)
        """Return the noise of an arm: at least that of all arms, and what its own errors say."""
        common = self.of_all(kind, variance)
        own = (COMMON * common + self.arms[kind, :, arm]) / (COMMON + self.counts[arm])
        return np.asarray(np.maximum(common, own))

    def of_arms(self, variance: float, arms: Index) -> Array:  # (K,) -> (members, K)
        """Return what `of_arm` does of kind 0, for several arms."""
        common = self.of_all(0, variance)[:, None]
        own = (COMMON * common + self.arms[0][:, arms]) / (COMMON + self.counts[arms])
        return np.asarray(np.maximum(common, own))

    def learn(self, arm: int, errors: Array, variances: Array, weight: float, now: int) -> None:
        """Take in the errors (members,) of one settlement, which counts as so many."""
        squares = np.square(errors)
        both = np.array((squares / (1.0 + variances), squares))
        self.count = min(self.count + weight, CAP)
        self.fresh *= 1.0 - weight / self.count
        self.squares += (both - self.squares) * (weight / self.count)
        windows = np.minimum(self._caps, self.count)
        self.usual_variance += (variances - self.usual_variance) * (
            weight / windows if now else 1.0
        )
        kept = min(1.0, OWN_CAP / float(self.counts[arm] + weight))
        self.counts[arm] = kept * (self.counts[arm] + weight)
        self.arms[:, :, arm] = kept * (self.arms[:, :, arm] + weight * both)

    def join(self, others: "Noises", rows: int) -> None:
        """Take further members, with noises of theirs from the same settlements."""
        found, theirs = self.arrays(rows), others.arrays(rows)
        for name, axis in (("squares", 1), ("usual_variance", 0), ("arms", 1)):
            found[name] = np.concatenate((found[name], theirs[name]), axis)
        self._caps = np.concatenate((self._caps, others._caps))
        self.restore(found, rows)

    def keep(self, members: npt.NDArray[np.bool_]) -> None:
        """Go on with some of the members."""
        self._caps, self.usual_variance = self._caps[members], self.usual_variance[members]
        self.squares, self.arms = self.squares[:, members], self.arms[:, members]

    def arrays(self, rows: int) -> dict[str, Stored]:
        return {
            "common": np.array([[self.fresh, self.count]]),
            "squares": self.squares,
            "usual_variance": self.usual_variance,
            "counts": self.counts[:rows],
            "arms": self.arms[:, :, :rows],
        }

    def restore(self, arrays: dict[str, Stored], rows: int) -> None:
        [[self.fresh, self.count]] = arrays["common"].tolist()
        self.squares, self.usual_variance = (
            arrays["squares"].copy(),
            arrays["usual_variance"].copy(),
        )
        self.counts = np.pad(arrays["counts"], (0, 2 * max(rows, 1) - rows))
        self.arms = np.pad(arrays["arms"], ((0, 0), (0, 0), (0, 2 * max(rows, 1) - rows)))


class MovingLevel:
    """How far the level of all rewards has moved: a two-sided CUSUM (Page 1954) of the averaged
    forecast's errors. Nothing moves without an alarm. At an alarm the level moves by the mean error
    since the sum last stood at zero, which is too far, and then by a running mean of the errors
    that remain. A level that all arms share is learned from all of them at once.

    sides   upwards and downwards: the sum, the errors in it, and how many
    """

    def __init__(self) -> None:
        self.moved, self.count, self.sides = 0.0, SETTLED, np.zeros((2, 3))

    def see(self, error: float, deviation: float) -> None:
        if self.count < SETTLED:
            self.count += 1.0
            self.moved += error / self.count
        z = min(max(error / deviation, -SHOCK), SHOCK)
        for side, sign in zip(self.sides, (1.0, -1.0), strict=True):
            total = max(0.0, float(side[0]) + sign * z - DRIFT)
            side[:] = (total, side[1] + error, side[2] + 1.0) if total else 0.0
            if total > ALARM:
                self.moved += float(side[1] / side[2])
                self.count = 0.5 * float(side[2])
                self.sides[:] = 0.0
                return

    def array(self) -> Array:
        return np.array([self.moved, self.count, *self.sides.ravel()])

    def restore(self, array: Array) -> None:
        self.moved, self.count, *sides = array.tolist()
        self.sides = np.array(sides).reshape(2, 3)


class JudgedBlock(NamedTuple):
    """What the errors of a block said of its members.

    learned  settlements up to the one at which the level moved, or all
    errors   of the averaged forecast of each
    noises   that errors were judged by
    """

    learned: int
    errors: list[float]
    noises: list[float]
    evidence: Array
    speaks: npt.NDArray[np.bool_]


class BlockErrors(NamedTuple):
    """Errors of forecasts, (k, members) each, and the variance of rewards before each, (k,).

    places      rows of the arms
    errors      of the forecasts
    variances   of the forecasts
    loss        half the logarithm of 1 + v, where members are judged by densities
    spread      what squared errors are divided by to judge a member
    """

    places: Sequence[int]
    errors: Array
    variances: Array
    loss: Array
    spread: Array
    reward_variance: Array


def judge(
    noises: Noises,
    moving: MovingLevel,
    evidence: Array,
    speaks: npt.NDArray[np.bool_],
    weights: Sequence[float],
    block: BlockErrors,
) -> JudgedBlock:
    """Do for settlements that follow each other what `AveragedHead.learn` does of each, up to one
    at which the level moves: later ones are to be measured from there.

    In plain numbers, because arrays of six members take ten times as long. weights: of the members,
    before any evidence.
    """
    said, commons = list[float](), list[float]()
    fresh, count, caps = noises.fresh, noises.count, noises._caps.tolist()
    over, plain = noises.squares.tolist()
    usual, speak = noises.usual_variance.tolist(), speaks.tolist()
    arms = {
        place: (float(noises.counts[place]), *noises.arms[:, :, place].tolist())
        for place in set(block.places)
    }
    known = evidence.tolist()
    squares = np.square(block.errors)
    columns = (block.errors, block.variances, squares, squares / (1.0 + block.variances))
    each = zip(
        block.places,
        *(column.tolist() for column in columns),
        block.loss.tolist(),
        block.spread.tolist(),
        block.reward_variance.tolist(),
        strict=True,
    )
    for place, errors, variances, square, scaled, loss, spread, variance in each:
        held, own_over, own_plain = arms[place]
        first, share = fresh * variance, 1.0 / (COMMON + held)
        common = min(
            max(one + first, (COMMON * (one + first) + own) * share)
            for one, own, so in zip(plain, own_plain, speak, strict=True)
            if so
        )
        shares = [w * exp(e) if so else 0.0 for w, e, so in zip(weights, known, speak, strict=True)]
        whole = sum(shares)
        error = sum(map(mul, shares, errors)) / whole
        said.append(error)
        commons.append(common)

        count = min(count + 1.0, CAP)
        step = 1.0 / count
        fresh *= 1.0 - step
        over = [one + (new - one) * step for one, new in zip(over, scaled, strict=True)]
        plain = [one + (new - one) * step for one, new in zip(plain, square, strict=True)]
        usual = [
            one + (new - one) / min(cap, count)
            for one, new, cap in zip(usual, variances, caps, strict=True)
        ]
        kept = min(1.0, OWN_CAP / (held + 1.0))
        held = kept * (held + 1.0)
        own_over = [kept * (one + new) for one, new in zip(own_over, scaled, strict=True)]
        own_plain = [kept * (one + new) for one, new in zip(own_plain, square, strict=True)]
        arms[place] = held, own_over, own_plain

        first, share, least = fresh * variance, 1.0 / (COMMON + held), LEAST_NOISE_SHARE * variance
        noise = doubt = 0.0
        for part, one, own, v in zip(shares, over, own_over, variances, strict=True):
            if part:
                base = max(one + first, least)
                noise += part * max(base, (COMMON * base + own) * share)
                doubt += part * v
        moving.see(error, sqrt(noise / whole * (1.0 + doubt / whole)))

        known = [
            DISCOUNT * e - half - 0.5 * (TAILS + 1.0) * log1p(q / d / common / TAILS)
            for e, half, q, d in zip(known, loss, square, spread, strict=True)
        ]
        top = max(e for e, so in zip(known, speak, strict=True) if so)
        known = [e - top if so else 0.0 for e, so in zip(known, speak, strict=True)]
        if not all(speak):
            best = min(one for one, so in zip(plain, speak, strict=True) if so)
            speak = [so or one < best for one, so in zip(plain, speak, strict=True)]
        if moving.count < SETTLED:
            break

    noises.fresh, noises.count = fresh, count
    noises.squares, noises.usual_variance = np.array((over, plain)), np.array(usual)
    for place, (held, *own) in arms.items():
        noises.counts[place], noises.arms[:, :, place] = held, own
    return JudgedBlock(len(said), said, commons, np.array(known), np.array(speak))
