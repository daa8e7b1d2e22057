"""A member of an averaged head: one ridge regression of the reward, solved by elimination."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from service.bandits.heads.averaged_rows import BlockRows, MemberRows, Rows, Spec
from service.bandits.heads.base import Stored, part
from service.bandits.heads.recursive import BlockLook, FadingLook, RecursiveRidge, Sums
from service.bandits.linalg import Array, Index
from service.errors import NotPositiveDefinite

LEAST_VARIANCE = 1e-12
NONE = np.zeros(0, np.intp)


@dataclass(slots=True)
class Forecast:
    """A member's forecast of one settlement, and what learning it takes.

    mean       without the level
    one        of a constant target 1: mean - level one is the forecast around a level
    own, shared   P x, and the forecasts of the own block
    """

    mean: float
    one: float
    variance: float
    own: tuple[Array, Array, float] | None
    shared: tuple[Array, float] | None


class MemberForms(NamedTuple):
    """What a member says of arms above a level, as forms of [1, x].

    linear      (K, m) of the mean
    quadratic   (K, m, m) of the variance, in units of the noise
    most        of what the variance is at most, where the member forgets
    """

    linear: Array
    quadratic: Array
    most: Array | None


ArmLook = tuple[int, Index, BlockLook | FadingLook]
"""An arm, which rows of a block are its own, and what its regression made of them."""


class BlockForecast(NamedTuple):
    """A member's forecasts of a block of settlements, each once those before it are learned.

    errors   (k,) of the rewards, without the level
    ones     (k,) of a constant target 1
    grown    (k,) 1 + v
    own      of each arm
    """

    errors: Array
    ones: Array
    grown: Array
    own: list[ArmLook]
    shared: BlockLook | FadingLook | None


class Member:
    """Regressions of the rewards, one of those that an averaged head averages.

    own      of arms' own columns: of the reward, the constant 1, and each shared column
    shared   of what these leave of the shared row
    """

    def __init__(self, spec: Spec, rows: Rows) -> None:
        m, m0 = rows.width[spec.own], rows.shared_width if spec.shared else 0
        self.spec = spec
        self.own = RecursiveRidge(m, 2 + m0, spec.gamma) if m else None
        self.shared = RecursiveRidge(m0, 2, spec.gamma) if m0 else None
        self._own_deviation, self._shared_deviation = rows.scales(spec)

    def admit(self, arm: int, now: int) -> None:
        """Give a row to an arm that was not met before."""
        if self.own is not None:
            self.own.admit(arm, now)

    def predict(self, seen: MemberRows, arms: Index, level: float, now: int) -> tuple[Array, Array]:
        """Return means above the level and variances, in units of the noise: both (B, K)."""
        mean, v = np.zeros((2, 1, 1))
        if self.own is not None:
            predicted, v = self.own.predict(arms, seen.of(self.spec.own) * self._own_deviation, now)
            mean = predicted[:, :, 0] - level * predicted[:, :, 1]
        if self.shared is not None:
            residual = seen.shared * self._shared_deviation
            if self.own is not None:
                residual -= predicted[:, :, 2:]
            reward, one = self.shared.theta[0]
            mean = mean + residual @ (reward - level * one)
            v = v + self.shared.variances_of(residual, now)
        return mean, np.maximum(v, LEAST_VARIANCE)

    def forms(self, shared: Array, arms: Index, level: float, now: int) -> MemberForms:
        """Return what `predict` says of arms, for any context. A member that forgets has shared
        rows alone. shared: (K, m, m0), the shared rows of each column of [1, x] alone."""
        linear, quadratic, most = np.zeros((1, 1)), np.zeros((1, 1, 1)), None
        if self.own is not None:
            assert self.spec.gamma == 1.0
            scale = self._own_deviation
            theta = self.own.theta[arms] * scale
            linear = theta[:, 0] - level * theta[:, 1]
            quadratic = self.own.P[arms] * np.outer(scale, scale)
        if self.shared is not None:
            residual = shared * self._shared_deviation
            if self.own is not None:
                residual -= theta[:, 2:].swapaxes(1, 2)
            reward, one = self.shared.theta[0]
            linear = linear + residual @ (reward - level * one)
            quadratic = quadratic + self.shared.quadratics(residual, now)
            if self.spec.gamma < 1.0:
                most = residual @ residual.swapaxes(1, 2)
        return MemberForms(linear, quadratic, most)

    def weights(self, arm: int, level: float) -> tuple[Array | None, Array | None]:
        """Return the weights of the own and of the shared row: the mean of an arm above the level
        is the sum of their products. None: the member does not see the row."""
        own = shared = None
        if self.shared is not None:
            reward, one = self.shared.theta[0]
            shared = reward - level * one
        if self.own is not None:
            theta = self.own.theta[arm]
            own = theta[0] - level * theta[1]
            if shared is not None:
                own -= shared @ theta[2:]
            own *= self._own_deviation
        return own, None if shared is None else shared * self._shared_deviation

    def look(self, seen: MemberRows, arm: int, now: int) -> Forecast:
        """Predict one settlement, before it is learned."""
        mean = one = v = 0.0
        own = shared = None
        predicted = np.zeros(1)
        if self.own is not None:
            own = self.own.look(arm, seen.of(self.spec.own)[0] * self._own_deviation, now)
            _, forecasts, v = own
            mean, one, predicted = float(forecasts[0]), float(forecasts[1]), forecasts[2:]
        if self.shared is not None:
            gain, rest, v0 = self.shared.look(
                0, seen.shared[0, 0] * self._shared_deviation - predicted, now
            )
            shared = gain, v0
            mean, one, v = mean + float(rest[0]), one + float(rest[1]), v + v0
        return Forecast(mean, one, v, own, shared)

    def learn(
        self, seen: MemberRows, arm: int, looked: Forecast, reward: float, weight: float
    ) -> None:
        """Learn a settlement of some weight; a negative one takes it out again."""
        gain = weight
        if looked.own is not None:
            gain = weight / (1.0 + weight * looked.own[2])
        if self.shared is not None and looked.shared is not None:
            direction, v0 = looked.shared
            errors = np.array([reward - looked.mean, 1.0 - looked.one])
            self.shared.learn(0, direction, gain / (1.0 + gain * v0), errors)
        if self.own is not None and looked.own is not None:
            direction, forecasts, _ = looked.own
            targets = np.empty(len(forecasts))
            targets[:2] = reward, 1.0
            if self.shared is not None:
                targets[2:] = seen.shared[0, 0] * self._shared_deviation
            self.own.learn(arm, direction, gain, targets - forecasts)

    def look_block(
        self, seen: BlockRows, arms: Mapping[int, Index], rewards: Array, now: Index
    ) -> BlockForecast:
        """Predict settlements that follow each other. arms: the rows of each; now: (k,) settlements
        before each. Raises NotPositiveDefinite."""
        count, own = len(rewards), list[ArmLook]()
        targets = np.stack((rewards, np.ones(count)), axis=1)
        grown, rest, shared = np.ones(count), np.zeros((count, 0)), None
        if self.shared is not None:
            rest = seen.shared * self._shared_deviation
        if self.own is not None:
            x = seen.of(self.spec.own) * self._own_deviation
            whole = np.concatenate((targets, rest), axis=1)
            errors = np.empty_like(whole)
            try:
                for arm, at in arms.items():
                    looked = self.own.look_block(arm, x[at], whole[at], now[at])
                    errors[at], grown[at] = looked.errors, looked.grown
                    own.append((arm, at, looked))
            except NotPositiveDefinite:
                self._take_back(own)
                raise
            targets, rest = errors[:, :2], errors[:, 2:]
        if self.shared is not None:
            scale = np.sqrt(grown)[:, None]
            try:
                shared = self.shared.look_block(0, rest / scale, targets / scale, now)
            except NotPositiveDefinite:
                self._take_back(own)
                raise
            targets, grown = shared.errors * scale, grown * shared.grown
        return BlockForecast(targets[:, 0], targets[:, 1], grown, own, shared)

    def _take_back(self, looks: Sequence[ArmLook]) -> None:
        if self.own is not None:
            for arm, _, looked in looks:
                self.own.learn_block(arm, looked, 0)

    def learn_block(self, looked: BlockForecast, count: int) -> None:
        """Learn the first settlements of a block that was looked at."""
        if self.own is not None:
            for arm, at, own in looked.own:
                self.own.learn_block(arm, own, int(np.searchsorted(at, count)))
        if self.shared is not None and looked.shared is not None:
            self.shared.learn_block(0, looked.shared, count)

    def revise(self, seen: MemberRows, arm: int, difference: float, now: int) -> None:
        """Change the reward of a settlement that was learned: P stays, theta moves."""
        looked = self.look(seen, arm, now)
        if self.own is not None and looked.own is not None:
            self.own.theta[arm, 0] += difference * looked.own[0]
        if self.shared is not None and looked.shared is not None:
            self.shared.theta[0, 0] += difference * looked.shared[0]

    def shift(self, difference: float) -> None:
        """Have learned rewards that were smaller by so much."""
        for block in (self.own, self.shared):
            if block is not None:
                block.theta[:, 0] -= difference * block.theta[:, 1]

    def follow(self, kept: "Member", places: dict[str, Index]) -> None:
        """Take what was learned of other columns."""
        own, shared = places.get(self.spec.own, NONE), places["shared"]
        targets = np.arange(2)
        if self.shared is not None:
            targets = np.concatenate((targets, np.where(shared < 0, -1, 2 + shared)))
        if _gone(kept.own, own) or _gone(kept.shared, shared):
            self._shrink(kept, own, shared, targets)
            return
        if self.own is not None and kept.own is not None:
            self.own.follow(kept.own, own, targets)
        if self.shared is not None and kept.shared is not None:
            self.shared.follow(kept.shared, shared, np.arange(2))

    def _shrink(self, kept: "Member", own: Index, shared: Index, targets: Index) -> None:
        """Drop columns as `follow` does, by the sums: they are what they were had the columns
        never been there. An arm's own block has forecasts C of the shared row; with its A the sums
        of the shared columns are those of what it leaves, and C' A C. Columns that stay share out
        the deviation anew."""
        whole = None if kept.shared is None else kept.shared.sums
        less = None
        share, share0 = (
            _shares(self._own_deviation, kept._own_deviation, own),
            _shares(self._shared_deviation, kept._shared_deviation, shared),
        )
        if self.own is not None and kept.own is not None:
            A, B = kept.own.sums
            predicted = None if whole is None else _predicted(A, kept.own.theta)
            B[:, 2:] *= share0[:, None]
            A_left = self.own.shrink(_rescaled((A, B), share), own, targets, kept.own)
            if whole is not None and predicted is not None:
                less = _predicted(A_left, self.own.theta)
                whole = whole[0] + predicted[:, 2:], whole[1] + predicted[:, :2]
        if self.shared is not None and kept.shared is not None and whole is not None:
            whole = _rescaled(whole, share0)
            self.shared.shrink(whole, shared, np.arange(2), kept.shared, less)

    def arrays(self, rows: int) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        if self.own is not None:
            found |= {f"own.{name}": array for name, array in self.own.arrays(rows).items()}
        if self.shared is not None:
            found |= {f"shared.{name}": array for name, array in self.shared.arrays(1).items()}
        return found

    def restore(self, arrays: dict[str, Stored], rows: int) -> None:
        if self.own is not None:
            self.own.restore(part(arrays, "own."), rows)
        if self.shared is not None:
            self.shared.restore(part(arrays, "shared."), 1)


def _shares(now: Array, before: Array, columns: Index) -> Array:  # (before,)
    """Return how many times as large as before the scale of each column is that stays."""
    found = np.ones(len(before))
    if not len(now):
        return found
    found[columns[columns >= 0]] = (now / before[columns])[columns >= 0]
    return found


def _rescaled(sums: Sums, shares: Array) -> Sums:
    """Return the sums of columns that are so many times as large, with the same prior."""
    A, B = sums
    eye = np.eye(len(shares))
    return eye + (A - eye) * np.outer(shares, shares), B * shares


def _gone(kept: RecursiveRidge | None, columns: Index) -> bool:
    """Whether some columns of a regression are not there any more."""
    return kept is not None and int(np.count_nonzero(columns >= 0)) < kept.columns


def _predicted(A: Array, theta: Array) -> Array:  # (n, m, m), (n, 2 + s, m) -> (1, 2 + s, s)
    """Return theta A C' over all arms, with C the forecasts of the shared row."""
    return np.asarray((theta @ A @ theta[:, 2:].swapaxes(1, 2)).sum(axis=0)[None])
