"""Several ridge regressions of one reward, averaged by how well they predict: the head of `auto`.

Every member sees every settlement. Their predictions are averaged by discounted predictive
likelihood (Raftery, Karny, Ettler 2010, "Online prediction under model uncertainty via dynamic
model averaging", Technometrics 52). Members differ in what they see, in what arms share, and in
what they forget:

| member        | what it sees             | shared by arms          | used                        |
|---------------|--------------------------|-------------------------|-----------------------------|
| own           | [1, x]                   | nothing                 | always                      |
| fading        | [1, x], forgets          | nothing                 | always                      |
| relu          | [1, x, random ReLUs]     | nothing                 | with context, without arms' |
| shared        | [1, x, w, x (x) w]       | everything              | with features of arms       |
| hybrid        | both                     | all but an arm's own    | with features of arms       |

x are the columns of the context, w those of the arm. The hybrid is that of Li et al. 2010
(arXiv 1003.0146, algorithm 2) by elimination: an arm's own block predicts the reward and the
shared row, and what it leaves of the row predicts the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import sqrt
from typing import Literal

import numpy as np

from service.bandits.heads.base import (
    OUTSIDE,
    Bank,
    HeadHealth,
    NameIndex,
    Observation,
    Stored,
    pack_names,
    part,
    unpack_names,
)
from service.bandits.heads.recursive import SINGULAR, RecursiveRidge
from service.bandits.heads.reward_sums import RewardSums
from service.bandits.linalg import Array, Index, spectrum
from service.features.view import View

DISCOUNT = 0.995
"""Of the evidence for a member, a settlement."""

UNITS, CROSSES = 64, 256
"""Random features of an arm's head; columns that crosses of context and arm are hashed to, where
there are more of them."""

FIRST_COUNT, CAP, CAP_FADING = 50.0, 2_000.0, 500.0
"""Settlements that the first noise weighs; windows of the noise and of the usual variance. The
first noise weighs much: standardised errors underestimate the noise while variances are large."""

QUIET = 1e-3
"""Least noise, as a share of the variance of rewards."""

COMMON, OWN_CAP = 5.0, 500.0
"""Settlements that the common noise weighs in an arm's; window of an arm's own. One noise for all
would call an arm of dear mistakes certain where the others never vary."""

NEGLIGIBLE = 1e-3
"""Members below this weight are left out of a decision."""

TINY = 1e-12
NONE = np.zeros(0, np.intp)

LEVELLED = 256
"""Settlements after which errors are tested for a level that moved."""

DRIFT, ALARM, SHOCK, SETTLED = 0.5, 10.0, 2.0, 100.0
"""Of the test: drift and threshold of the sums (Page 1954), the largest standardised error, which
keeps a few rare clicks from raising an alarm, and errors that the mean after an alarm is of."""


@dataclass(frozen=True, slots=True)
class Spec:
    """own: what an arm's own weights see; shared: whether arms share weights; gamma: forgetting, a
    settlement; weight: before any evidence; reach: prior standard deviation of own weights and of
    shared ones, but the shared intercept's, in units of the noise."""

    own: Literal["", "own", "relu"]
    shared: bool
    gamma: float
    weight: float
    reach: tuple[float, float] = (1.0, 1.0)

    @property
    def name(self) -> str:
        """For people."""
        name = ("hybrid" if self.own else "shared") if self.shared else self.own
        return name if self.gamma == 1.0 else f"{name}, fading by {self.gamma:g}"


PLAIN = (
    Spec("own", False, 1.0, 0.40),
    Spec("own", False, 0.998, 0.05),
    Spec("relu", False, 1.0, 0.50),
    Spec("own", False, 0.99, 0.05),
)
FEATURED = (
    Spec("own", True, 1.0, 0.33, (0.1, 0.1)),
    Spec("", True, 1.0, 0.53, (1.0, 0.3)),
    Spec("", True, 0.998, 0.07, (1.0, 0.3)),
    Spec("own", False, 0.99, 0.07),
)
ALONE = (
    Spec("own", False, 1.0, 0.90),
    Spec("own", False, 0.998, 0.05),
    Spec("own", False, 0.99, 0.05),
)
"""Members where arms have no features, where they have, and where there is no context either."""


class Rows:
    """What members see of rows of a view.

    Random features and hashes are drawn by the names of columns: other columns leave them as they
    are.

    square   of the context's length, usually: random features are scaled by it
    """

    def __init__(self, view: View, key: str) -> None:
        self.context, self.arm, square = view.sides
        d, f = len(self.context), len(self.arm)
        self.specs = FEATURED if f else PLAIN if d else ALONE
        self.square = max(square, 1.0)
        names = [view.column_name(column) for column in range(view.width)]
        draws = [_generator(key, names[column]) for column in self.context]
        if self.specs is PLAIN:
            self._omega = np.array([draw.standard_normal(UNITS) for draw in draws])
            self._beta = _generator(key, "").standard_normal(UNITS)
        self._hash = None
        if d * f > CROSSES:
            arms = [_generator(key, names[column]) for column in self.arm]
            self._hash = _signs(draws), _signs(arms)
        shared = 1 + d + f + min(d * f, CROSSES)
        self.width = {"own": 1 + d, "relu": 1 + d + UNITS, "": 0}
        self.shared_width = shared if f else 0

    def places(self, old: "Rows", columns: Index) -> dict[str, Index]:
        """Return where each column of what members see was in other rows; -1 for a new one.
        columns: (view.width,) where each column of the view was."""
        x, w = columns[self.context], columns[self.arm]
        x = np.array([_place(old.context, column) for column in x], np.intp)
        w = np.array([_place(old.arm, column) for column in w], np.intp)
        d, f = len(old.context), len(old.arm)
        own = np.concatenate(([0], np.where(x < 0, -1, 1 + x)))
        crosses = np.where((x[:, None] < 0) | (w < 0), -1, x[:, None] * f + w).ravel()
        if self._hash is not None:
            crosses = np.arange(CROSSES)
        shared = np.concatenate(
            (own, np.where(w < 0, -1, 1 + d + w), np.where(crosses < 0, -1, 1 + d + f + crosses))
        )
        relu = np.concatenate((own, 1 + d + np.arange(UNITS)))
        return {"own": own, "relu": relu, "shared": shared}

    def obstacle(self, old: "Rows", columns: Index) -> str:
        """Why what was learned of other rows does not hold for these; '' if it does."""
        if self.specs is not old.specs or (self._hash is None) != (old._hash is None):
            return "it sees another kind of features"
        if self._hash is not None and self._lost(old, columns):
            return "its crosses are hashed, and some are gone"
        return ""

    @staticmethod
    def _lost(old: "Rows", columns: Index) -> set[int]:
        return {*old.context.tolist(), *old.arm.tolist()} - set(columns.tolist())

    def own(self, rows: Array) -> Array:  # (n, view.width) -> (n, 1 + d)
        return np.concatenate((np.ones((len(rows), 1)), rows[:, self.context]), axis=1)

    def relu(self, own: Array) -> Array:  # (n, 1 + d) -> (n, 1 + d + UNITS)
        """Rahimi, Recht 2008, "Weighted sums of random kitchen sinks"; all random features together
        weigh as much as the linear ones."""
        length = sqrt(self.square)
        bent = np.maximum(own[:, 1:] @ self._omega / length + self._beta, 0.0)
        return np.concatenate((own, bent * (length / sqrt(UNITS))), axis=1)

    def shared(self, rows: Array, own: Array) -> Array:  # -> (n, shared_width)
        arms = rows[:, self.arm]
        return np.concatenate((own, arms, self._crosses(own[:, 1:], arms)), axis=1)

    def _crosses(self, x: Array, w: Array) -> Array:
        """Their outer products; hashed where these are many, by the convolution of two sketches
        (Pham, Pagh 2013, "Fast and scalable polynomial kernels via explicit feature maps")."""
        if self._hash is None:
            return (x[:, :, None] * w[:, None, :]).reshape(len(w), -1)
        contexts, arms = np.fft.rfft(x @ self._hash[0]), np.fft.rfft(w @ self._hash[1])
        return np.asarray(np.fft.irfft(contexts * arms, CROSSES))


def _gone(kept: RecursiveRidge | None, columns: Index) -> bool:
    """Whether some columns of a regression are not there any more."""
    return kept is not None and int(np.count_nonzero(columns >= 0)) < kept.columns


def _told(A: Array, theta: Array) -> Array:  # (n, m, m), (n, m, 2 + s) -> (1, s, 2 + s)
    """Return C' A theta over all arms, with C the forecasts of the shared row."""
    return np.asarray((theta[:, :, 2:].swapaxes(1, 2) @ A @ theta).sum(axis=0)[None])


def _name(arm: str) -> str:
    """All arms outside the catalogue have one row, which no decision reads: theirs is the prior."""
    return OUTSIDE if arm.startswith(OUTSIDE) else arm


def _place(columns: Index, column: int) -> int:
    found = np.flatnonzero(columns == column)
    return int(found[0]) if column >= 0 and len(found) else -1


def _generator(key: str, name: str) -> np.random.Generator:
    digest = blake2b(f"{key}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))


def _signs(draws: Sequence[np.random.Generator]) -> Array:  # (n, CROSSES)
    """A sign at one place for each column."""
    found = np.zeros((len(draws), CROSSES))
    for row, draw in zip(found, draws, strict=True):
        row[draw.integers(CROSSES)] = draw.choice((-1.0, 1.0))
    return found


class Seen:
    """Rows of one decision or settlement, as members see them; each is made once."""

    def __init__(self, rows: Rows, raw: Array) -> None:
        self._rows, self._raw = rows, raw
        self.own = rows.own(raw)
        self._relu: Array | None = None
        self._shared: Array | None = None

    def of(self, kind: str) -> Array:
        if kind == "own":
            return self.own
        if self._relu is None:
            self._relu = self._rows.relu(self.own)
        return self._relu

    @property
    def shared(self) -> Array:
        if self._shared is None:
            self._shared = self._rows.shared(self._raw, self.own)
        return self._shared


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


class Member:
    """One of the regressions, with its noise.

    fresh, squares   share of the first noise that is left, and what errors made of the rest: means
                     of squared errors over 1 + v, and of plain ones
    played           usual variance of what was shown
    arms             (3, n) sums of both kinds of squared errors of an arm, and how many
    """

    def __init__(self, spec: Spec, rows: Rows) -> None:
        m, m0 = rows.width[spec.own], rows.shared_width if spec.shared else 0
        self.spec = spec
        self.own = RecursiveRidge(m, 2 + m0, spec.gamma) if m else None
        self.shared = RecursiveRidge(m0, 2, spec.gamma) if m0 else None
        reach, reach0 = spec.reach
        self._reach, self._reach0 = reach, np.full(m0, reach0)
        self._reach0[:1] = 1.0
        self.fresh, self.squares, self.count = 1.0, [0.0, 0.0], FIRST_COUNT
        self.played = 0.0
        self.arms = np.zeros((3, 2))

    def admit(self, arm: int, now: int) -> None:
        """Give a row to an arm that was not met before."""
        if self.own is not None:
            self.own.admit(arm, now)
        if arm + 1 == self.arms.shape[1]:  # the last one stays the prior's
            self.arms = np.pad(self.arms, ((0, 0), (0, arm + 1)))

    def noise(self, kind: int, variance: float) -> float:
        """Of all arms; 0: standardised, 1: of plain errors. variance: of rewards."""
        noise = self.squares[kind] + self.fresh * variance
        return max(noise, QUIET * variance) if kind == 0 else noise

    def noises(self, variance: float, arms: Index) -> Array:
        """Standardised, of arms: at least that of all, and at least what their own errors say."""
        common = self.noise(0, variance)
        own = (COMMON * common + self.arms[0, arms]) / (COMMON + self.arms[2, arms])
        return np.asarray(np.maximum(common, own))

    def noise_of(self, kind: int, variance: float, arm: int) -> float:
        """Of one arm."""
        common, own = self.noise(kind, variance), self.arms[:, arm]
        return max(common, float((COMMON * common + own[kind]) / (COMMON + own[2])))

    def predict(self, seen: Seen, arms: Index, level: float, now: int) -> tuple[Array, Array]:
        """Return means above the level and variances, in units of the noise, of rows of arms."""
        n, rest = len(seen.own), np.zeros(1)
        mean, one, v = np.zeros((3, n))
        if self.own is not None:
            x = seen.of(self.spec.own) * self._reach
            told, v = self._own(self.own, x, arms, now)
            mean, one, rest = told[:, 0], told[:, 1], told[:, 2:]
        if self.shared is not None:
            left = seen.shared * self._reach0 - rest
            mean = mean + left @ self.shared.theta[0, :, 0]
            one = one + left @ self.shared.theta[0, :, 1]
            v = v + self.shared.variances_of(left, now)
        return np.asarray(mean - level * one), np.maximum(v, TINY)

    @staticmethod
    def _own(block: RecursiveRidge, x: Array, arms: Index, now: int) -> tuple[Array, Array]:
        """Return forecasts of all targets, and variances. One context for all arms, as in a
        decision, is multiplied once, without a copy of P where most arms are asked for."""
        if (x == x[0]).all():
            if 2 * len(arms) > len(block.P):
                told, v = x[0] @ block.theta, block.variances(slice(None), x[0], now)
                return told[arms], v[arms]
            return x[0] @ block.theta[arms], block.variances(arms, x[0], now)
        told = np.array([row @ block.theta[arm] for row, arm in zip(x, arms, strict=True)])
        found = [
            block.variances(arms[[place]], row, now)[0]  # -1 is the last row, the prior's
            for place, row in enumerate(x)
        ]
        return told, np.array(found)

    def look(self, seen: Seen, arm: int, now: int) -> Forecast:
        """Predict one settlement, before it is learned."""
        mean = one = v = 0.0
        own = shared = None
        told = np.zeros(1)
        if self.own is not None:
            own = self.own.look(arm, seen.of(self.spec.own)[0] * self._reach, now)
            _, forecasts, v = own
            mean, one, told = float(forecasts[0]), float(forecasts[1]), forecasts[2:]
        if self.shared is not None:
            gain, rest, v0 = self.shared.look(0, seen.shared[0] * self._reach0 - told, now)
            shared = gain, v0
            mean, one, v = mean + float(rest[0]), one + float(rest[1]), v + v0
        return Forecast(mean, one, v, own, shared)

    def learn(self, seen: Seen, arm: int, looked: Forecast, reward: float, weight: float) -> None:
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
                targets[2:] = seen.shared[0] * self._reach0
            self.own.learn(arm, direction, gain, targets - forecasts)

    def revise(self, seen: Seen, arm: int, difference: float, now: int) -> None:
        """Change the reward of a settlement that was learned: P stays, theta moves."""
        looked = self.look(seen, arm, now)
        if self.own is not None and looked.own is not None:
            self.own.theta[arm, :, 0] += difference * looked.own[0]
        if self.shared is not None and looked.shared is not None:
            self.shared.theta[0, :, 0] += difference * looked.shared[0]

    def judge(self, arm: int, error: float, variance: float, now: int, weight: float) -> None:
        """Take in the error of a forecast, which counts as so many."""
        plain = error * error
        squares = plain / (1.0 + variance), plain
        self.count = min(self.count + weight, CAP)
        self.fresh *= 1.0 - weight / self.count
        self.squares = [
            mean + weight * (square - mean) / self.count
            for mean, square in zip(self.squares, squares, strict=True)
        ]
        window = min(self.count, CAP if self.spec.gamma == 1.0 else CAP_FADING)
        self.played += (variance - self.played) * (weight / window if now else 1.0)
        standardised, unscaled, count = self.arms[:, arm].tolist()
        kept = min(1.0, OWN_CAP / (count + weight))
        self.arms[:, arm] = (
            kept * (standardised + weight * squares[0]),
            kept * (unscaled + weight * squares[1]),
            kept * (count + weight),
        )

    def follow(self, kept: "Member", places: dict[str, Index]) -> None:
        """Take what was learned of other columns."""
        self.fresh, self.squares, self.count = kept.fresh, list(kept.squares), kept.count
        self.played, self.arms = kept.played, kept.arms.copy()
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
        """As `follow`, by the sums: without a column they are what they were had it never been
        there. An arm's own block has forecasts C of the shared row; with its A the sums of the
        shared columns are those of what it leaves, and C' A C."""
        whole = None if kept.shared is None else kept.shared.sums
        less = None
        if self.own is not None and kept.own is not None:
            A, B = kept.own.sums
            A_left = self.own.shrink((A, B), own, targets, kept.own)
            if whole is not None:
                told, less = _told(A, kept.own.theta), _told(A_left, self.own.theta)
                whole = whole[0] + told[:, :, 2:], whole[1] + told[:, :, :2]
        if self.shared is not None and kept.shared is not None and whole is not None:
            self.shared.shrink(whole, shared, np.arange(2), kept.shared, less)

    def arrays(self, rows: int) -> dict[str, Stored]:
        found: dict[str, Stored] = {
            "noise": np.array([self.fresh, self.count, self.played, *self.squares]),
            "arms": self.arms[:, :rows],
        }
        if self.own is not None:
            found |= {f"own.{name}": array for name, array in self.own.arrays(rows).items()}
        if self.shared is not None:
            found |= {f"shared.{name}": array for name, array in self.shared.arrays(1).items()}
        return found

    def restore(self, arrays: dict[str, Stored], rows: int) -> None:
        self.fresh, self.count, self.played = arrays["noise"][:3].tolist()
        self.squares = arrays["noise"][3:].tolist()
        self.arms = np.zeros((3, 2 * max(rows, 1)))
        self.arms[:, :rows] = arrays["arms"]
        if self.own is not None:
            self.own.restore(part(arrays, "own."), rows)
        if self.shared is not None:
            self.shared.restore(part(arrays, "shared."), 1)


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


class AveragedHead:
    """A `Head` of members. Rewards lie in [0, 1] or in any span of 1; rows are those of the view.

    settled   settlements that it learned, which count what is forgotten
    """

    standardises = True

    def __init__(self, view: View, key: str) -> None:
        self._rows = Rows(view, key)
        self.members = [Member(spec, self._rows) for spec in self._rows.specs]
        self._prior = np.array([spec.weight for spec in self._rows.specs])
        self._evidence = np.zeros(len(self.members))
        self._arms = NameIndex()
        self.rewards, self.moving = RewardSums(), MovingLevel()
        self.settled = 0

    @property
    def context_columns(self) -> int:
        return len(self._rows.context)

    # -- score ---------------------------------------------------------------------------------

    @property
    def weights(self) -> Array:  # (members,)
        weights = self._prior * np.exp(self._evidence)
        return np.asarray(weights / weights.sum())

    @property
    def base(self) -> float:
        """The mean of rewards, at which all arms start, and what it has moved by since."""
        return self.rewards.level + self.moving.moved

    def _places(self, arms: Sequence[str]) -> Index:
        """Rows of arms; those that no reward has met share the last one, the prior's."""
        return self._arms.of(arms) - 1

    def spread(self, phi: Array, arms: Sequence[str]) -> tuple[Array, Array, Array]:
        """Return means, widths, and how many times as uncertain each row is as what was shown."""
        seen, places = Seen(self._rows, phi), self._places(arms)
        variance = self.rewards.spread**2
        mean, width, grown = np.zeros((3, len(phi)))
        for member, share in self._kept():
            own, v = member.predict(seen, places, self.rewards.level, self.settled)
            mean += share * own
            width += share * np.sqrt(v * member.noises(variance, places))
            grown += share / max(member.played, TINY) * v
        return mean + self.base, width, grown

    def _kept(self) -> list[tuple[Member, float]]:
        """Return the members that count in a decision, and their weights."""
        weights = self.weights
        kept = np.flatnonzero(weights > NEGLIGIBLE)
        shares = (weights[kept] / weights[kept].sum()).tolist()
        return [(self.members[index], share) for index, share in zip(kept, shares, strict=True)]

    def opinions(self, phi: Array, arms: Sequence[str]) -> list[tuple[str, float, Array]]:
        """Return name, weight and means of each member that counts."""
        seen, places, level = Seen(self._rows, phi), self._places(arms), self.rewards.level
        return [
            (
                member.spec.name,
                share,
                self.base + member.predict(seen, places, level, self.settled)[0],
            )
            for member, share in self._kept()
        ]

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        return self.spread(phi, arms)[0]

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        return self.spread(phi, arms)[1]

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        places, variance = self._places(arms), self.rewards.spread**2
        noise = [member.noises(variance, places) for member in self.members]
        return self.members[0].arms[2, places], np.sqrt(self.weights @ np.array(noise))

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """One draw an arm: the members' average has no joint distribution of arms."""
        mean, width, _ = self.spread(phi, arms)
        return mean + width * bank.columns(arms)

    @property
    def held(self) -> float:
        return self.rewards.n

    @property
    def stale(self) -> int:
        return 0

    # -- learn ---------------------------------------------------------------------------------

    def observe(self, row: Observation) -> None:
        known, arm = self.count, self._arms.add(_name(row.arm)) - 1
        if arm == known:
            for member in self.members:
                member.admit(arm, self.settled)
        seen, reward = Seen(self._rows, row.phi[None]), row.reward - self.moving.moved
        variance = self.rewards.spread**2
        level = self.rewards.level if self.rewards.n else reward
        looks = [member.look(seen, arm, self.settled) for member in self.members]
        errors = [reward - level - (each.mean - level * each.one) for each in looks]
        variances = np.array([each.variance for each in looks])
        # One noise for all: with its own, a fading member would win by its variance alone.
        common = min(member.noise_of(1, variance, arm) for member in self.members)
        loss = 0.5 * (np.log1p(variances) + np.square(errors) / (1.0 + variances) / common)
        for member, looked, error in zip(self.members, looks, errors, strict=True):
            member.learn(seen, arm, looked, reward, row.weight)
            member.judge(arm, error, looked.variance, self.settled, row.weight)
        if self.settled >= LEVELLED:
            weights = self.weights
            noise = [member.noise_of(0, variance, arm) for member in self.members]
            deviation = sqrt(weights @ noise * (1.0 + weights @ variances))
            self.moving.see(row.weight * float(weights @ errors), deviation)
        self._evidence = DISCOUNT * self._evidence - row.weight * loss
        self._evidence -= self._evidence.max()
        self.rewards.add(reward, row.weight)
        self.settled += 1

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        """Means move exactly, but for what members have forgotten since; noises and weights of the
        members stay."""
        arm = self._arms.by_name.get(_name(row.arm))
        if arm is None:
            return
        seen, moved = Seen(self._rows, row.phi[None]), self.moving.moved
        left *= row.weight
        for member in self.members:
            member.revise(seen, arm - 1, left * (row.reward - was), self.settled)
        self.rewards.revise(row.reward - moved, was - moved, left)

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        """As `revise`."""
        arm = self._arms.by_name.get(_name(row.arm))
        if arm is None:
            return
        seen, reward = Seen(self._rows, row.phi[None]), row.reward - self.moving.moved
        left *= row.weight
        looks = [member.look(seen, arm - 1, self.settled) for member in self.members]
        if any(1.0 - left * each.variance < SINGULAR for each in looks):
            return
        for member, looked in zip(self.members, looks, strict=True):
            member.learn(seen, arm - 1, looked, reward, -left)
        self.rewards.withdraw(reward, left)

    def decay(self, share: float) -> None:
        """Members forget by themselves, and `gamma` is refused."""
        raise AssertionError("an averaged head does not decay")

    def distrust(self, factor: float) -> None:
        """There is no net whose errors could be too small."""

    def obstacle(self, kept: "AveragedHead", columns: Index) -> str:
        """Why it cannot go on from what another one learned; '' if it can. columns: where each
        column of its view was, -1 for a new one."""
        return self._rows.obstacle(kept._rows, columns)

    def follow(self, kept: "AveragedHead", columns: Index) -> None:
        """Go on from what another one learned, where there is no `obstacle`. A column that was not
        there was 0: it starts from the prior."""
        places = self._rows.places(kept._rows, columns)
        self._rows.square = kept._rows.square
        self._arms = NameIndex(kept._arms.by_name)
        self._evidence = kept._evidence.copy()
        self.rewards = replace(kept.rewards)
        self.moving.restore(kept.moving.array())
        self.settled = kept.settled
        for member, old in zip(self.members, kept.members, strict=True):
            member.follow(old, places)

    # -- state ---------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Of arms that have rewards."""
        return len(self._arms) - 1

    def health(self) -> HeadHealth:
        """Of the likeliest member: of what arms share, or else of the worst arm."""
        weights = self.weights
        member = self.members[int(weights.argmax())]
        block, rows = member.shared, 1
        if block is None:
            block, rows = member.own, self.count
        assert block is not None
        ends = [spectrum(np.linalg.inv(P), 1.0) for P in block.P[:rows]]
        noise = weights @ [each.noise(0, self.rewards.spread**2) for each in self.members]
        return HeadHealth(
            min((low for low, _ in ends), default=1.0),
            max((each for _, each in ends), default=1.0),
            self.rewards.n,
            sqrt(noise),
        )

    def arrays(self) -> dict[str, Stored]:
        found: dict[str, Stored] = {
            "arms": pack_names(self._arms.by_name),
            "evidence": self._evidence,
            "rewards": self.rewards.array(),
            "moving": self.moving.array(),
            "settled": np.array([self.settled]),
            "square": np.array([self._rows.square]),
        }
        for number, member in enumerate(self.members):
            own = member.arrays(self.count)
            found |= {f"{number}.{name}": array for name, array in own.items()}
        return found

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._arms = NameIndex(unpack_names(arrays["arms"]))
        self._evidence = arrays["evidence"].copy()
        self.rewards = RewardSums(*arrays["rewards"].tolist())
        self.moving.restore(arrays["moving"])
        [self.settled] = arrays["settled"].tolist()
        [self._rows.square] = arrays["square"].tolist()
        for number, member in enumerate(self.members):
            member.restore(part(arrays, f"{number}."), self.count)
