"""Has the world moved away from what was learned? Three figures, each against a moving reference,
at a fraction of a microsecond a request.

rewards       Is the recent mean reward of a policy still its long-run mean?
context       Do the recent contexts look like those of the last day? By feature.
predictions   Does the predicted mean of what a policy shows come true?

Each process holds its own in memory, without raw values of a context.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from math import sqrt
from random import Random

import numpy as np

from service.clock import SYSTEM, Clock
from service.definition.experiment import RewardRules
from service.features.declaration import Boolean, Categorical, Hashed, Vector
from service.features.schema import Array, Schema
from service.state.events import Learned, Outcome
from service.state.fold import State
from service.state.learner import Learner
from service.telemetry.reward_sizes import RewardSizes

SAMPLES = 500
"""Samples of a window of contexts or predictions. What chance alone makes of a population stability
index of 10 groups is then 9 (1 / 500 + 1 / 500) = 0.036 in the mean: a seventh of a shift."""

PER_SECOND = 4.0
"""Samples a second that a fast stream gives: a window is two minutes or more, whatever the
traffic."""

WATCHED_FEATURES = 64
"""Most features of a context that are watched: each is a series in Prometheus."""

GROUPS = 10

DAY_SECONDS = 86_400.0

REFERENCE_WINDOWS = 10
"""Least windows by which a reference goes back, where a day has fewer."""

RECENT_WEIGHT, LONG_WEIGHT = 1 / 256, 1 / 8192
"""Weights of the newest reward in its running means: memories of about 500 and 16,000 rewards."""

LEAST_REWARDS = 1_000
"""Least rewards before a shift is reported."""


class Stride:
    """Takes all of a slow stream and about `PER_SECOND` of a fast one.

    By count, not by the clock: default rewards come in bursts, of which a clock would take the
    first. At random distances: what alternates in step with them would be seen by halves.
    """

    __slots__ = ("_block", "_every", "_last", "_rng", "_since")

    def __init__(self, rng: Random, now: float) -> None:
        self._rng, self._every, self._block = rng, 1, 0
        self._since = self._last = now

    def next(self, now: float) -> int:
        """Distance from this sample to the next."""
        self._adapt(now)
        return self._rng.randrange(1, 2 * self._every)

    def _adapt(self, now: float) -> None:
        """Halve the rate after a block of samples that was too fast; raise it at once after a long
        gap."""
        gap, self._last = now - self._last, now
        self._block += 1
        slow = 16 / PER_SECOND
        if gap > slow:
            self._every = max(1, int(self._every / (gap * PER_SECOND)))
        elif self._block < 16:
            return
        elif now - self._since < slow / 2:
            self._every *= 2
        self._block, self._since = 0, now


class ContextDrift:
    """The contexts of one experiment: the latest samples, and a reference of about the last day.

    The reference is a reservoir: uniform over all since the start, until that is a day (and at
    least `REFERENCE_WINDOWS` windows); from there on each sample takes a random place at such a
    rate that the mean age of the reference stays a day. So it covers day and night, and a lasting
    change is the new normal within a few days.
    """

    def __init__(
        self, schema: Schema, rng: Random, samples: int = SAMPLES, clock: Clock = SYSTEM
    ) -> None:
        self.schema, self._rng, self._samples = schema, rng, samples
        self.features = sorted(schema.features.context)[:WATCHED_FEATURES]
        self.recent, self.reference = np.empty((2, samples, len(self.features)))
        self.count = 0
        self._at = clock.monotonic()
        self.stride, self.left = Stride(rng, self._at), 1  # left: contexts until the next sample

    def take(self, context: Array, now: float) -> None:  # (schema.context.width,), seconds
        row = [self._value(name, context) for name in self.features]
        gap, self._at = now - self._at, now
        self.recent[self.count % self._samples] = row
        self.count += 1
        if self.count <= self._samples:
            self.reference[self.count - 1] = row
            return
        lasting = min(1 / REFERENCE_WINDOWS, self._samples * gap / DAY_SECONDS)
        if self._rng.random() < max(self._samples / self.count, lasting):
            self.reference[self._rng.randrange(self._samples)] = row

    def _value(self, name: str, context: Array) -> float:
        """Return a number for a feature's value; of a vector its part along one fixed random
        direction."""
        columns = context[self.schema.context.columns[name]]
        match self.schema.features.context[name]:
            case Categorical() | Hashed():
                return float(columns.argmax())
            case Vector(size=size):
                direction = np.random.Generator(np.random.Philox(key=size)).standard_normal(size)
                return float(columns @ direction)
            case _:
                return float(columns[0])

    def figures(self) -> dict[str, float]:
        """Return the population stability index by feature; none before two windows of samples."""
        if self.count < 2 * self._samples:
            return {}
        named = (Categorical, Hashed, Boolean)
        kinds = self.schema.features.context
        return {
            name: stability(
                self.reference[:, index],
                self.recent[:, index],
                by_value=isinstance(kinds[name], named),
            )
            for index, name in enumerate(self.features)
        }


def stability(reference: Array, recent: Array, *, by_value: bool) -> float:  # (n,), (m,)
    """Return the population stability index: sum of (q - p) ln(q / p) over groups of values, p and
    q their shares in reference and recent (Siddiqi 2006). Below 0.1 is stable, above 0.25 a shift.

    Groups are the deciles of the reference; by_value, or where it has few values, its most frequent
    values and the rest. Half a sample is added to each, so that an empty one is no infinity.
    """
    values, counts = np.unique(reference, return_counts=True)
    if by_value or len(values) <= GROUPS:
        bounds = values[np.argsort(-counts, kind="stable")[: GROUPS - 1]]
        equal = [x[:, None] == bounds for x in (reference, recent)]
        groups = [np.where(each.any(1), each.argmax(1), len(bounds)) for each in equal]
    else:
        bounds = np.unique(np.quantile(reference, np.arange(1, GROUPS) / GROUPS))
        groups = [np.searchsorted(bounds, x) for x in (reference, recent)]
    sizes = [np.bincount(group, minlength=len(bounds) + 1) + 0.5 for group in groups]
    p, q = (size / size.sum() for size in sizes)
    return float(np.sum((q - p) * np.log(q / p)))


class RewardDrift:
    """Running means of one policy's settled rewards. A correction moves them by what it changed."""

    __slots__ = ("count", "long", "recent", "squares")

    def __init__(self, count: int = 0, total: float = 0.0, squares: float = 0.0) -> None:
        """Begin with what was settled before: there the long run begins, and the recent mean with
        it."""
        self.count = count
        self.long = self.recent = total / count if count else 0.0
        self.squares = squares / count if count else 0.0

    def move(self, reward: float, was: float | None) -> None:
        if was is None:
            self.count = count = self.count + 1
            long = 1 / count if count * LONG_WEIGHT < 1 else LONG_WEIGHT
            self.recent += (1 / count if count * RECENT_WEIGHT < 1 else RECENT_WEIGHT) * (
                reward - self.recent
            )
            self.long += long * (reward - self.long)
            self.squares += long * (reward * reward - self.squares)
            return
        if not self.count:
            return  # corrects a reward from before the watch began
        recent, long = max(RECENT_WEIGHT, 1 / self.count), max(LONG_WEIGHT, 1 / self.count)
        self.recent += recent * (reward - was)
        self.long += long * (reward - was)
        self.squares += long * (reward * reward - was * was)

    def shift(self, rules: RewardRules) -> float | None:
        """Recent mean less long-run mean, in standard errors of the recent one; None: too early.

        The variance is at least what one reward at the end of the range would make of the recent
        mean, so that the first click of a policy that had none is no alarm.
        """
        if self.count < LEAST_REWARDS:
            return None
        low, high = rules.range
        share = RECENT_WEIGHT / (
            2 - RECENT_WEIGHT
        )  # of the variance of one reward, in such a running mean
        variance = max(self.squares - self.long * self.long, share * (high - low) ** 2)
        return (self.recent - self.long) / sqrt(share * variance)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibration of predictions. error: mean distance of predicted from observed mean, over tenths
    of the predictions, as a share of the reward's range; ratio: predicted over observed sum, None
    where that is not above 0; bias: predicted less observed sum, in standard errors."""

    error: float
    ratio: float | None
    bias: float


class PredictionDrift:
    """Predictions for shown arms, made just before their rewards were learned, and the rewards."""

    def __init__(self, rng: Random, samples: int = SAMPLES, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.predicted, self.observed = np.zeros((2, samples))
        self.count = 0
        self.stride, self.left = Stride(rng, clock.monotonic()), 1
        self._keys: list[tuple[str, str] | None] = [None] * samples
        self._slots: dict[tuple[str, str], int] = {}

    def take(
        self, decision: str, arm: str, predicted: float, reward: float, weight: float = 1.0
    ) -> None:
        """Take a reward. weight: the chance that the user saw the arm; else it is as predicted."""
        slot = self.count % len(self._keys)
        gone = self._keys[slot]
        if gone is not None:
            self._slots.pop(gone, None)
        self._keys[slot], self._slots[decision, arm] = (decision, arm), slot
        self.predicted[slot] = predicted
        self.observed[slot] = weight * reward + (1 - weight) * predicted
        self.count += 1

    def revise(self, decision: str, arm: str, reward: float | None, weight: float = 1.0) -> None:
        """Replace a reward; None: by the prediction."""
        slot = self._slots.get((decision, arm))
        if slot is not None:
            predicted = self.predicted[slot]
            told = predicted if reward is None else reward
            self.observed[slot] = weight * told + (1 - weight) * predicted

    def figures(self, rules: RewardRules) -> Calibration | None:
        """Return the calibration; None before the window is full."""
        if self.count < len(self._keys):
            return None
        low, high = rules.range
        tenths = np.array_split(np.argsort(self.predicted, kind="stable"), GROUPS)
        gaps = [len(t) * abs((self.predicted[t] - self.observed[t]).mean()) for t in tenths]
        predicted, observed = float(self.predicted.sum()), float(self.observed.sum())
        residuals = self.predicted - self.observed
        spread = sqrt(max(float(residuals @ residuals), (high - low) ** 2))
        return Calibration(
            float(sum(gaps)) / len(residuals) / (high - low),
            predicted / observed if observed > 0 else None,
            (predicted - observed) / spread,
        )


@dataclass(slots=True)
class _Policy:
    """Drift of a policy since its birth (`Learner.born`)."""

    born: int
    rewards: RewardDrift
    predictions: PredictionDrift
    sizes: RewardSizes

    def move(self, learner: Learner, rules: RewardRules, decision: str, outcome: Outcome) -> None:
        """Move a reward's row. A withdrawn reward counts as predicted, and as the long-run mean."""
        was, reward = outcome.was, outcome.learned
        if reward is not None:
            self.sizes.take(reward, rules)
        self.rewards.move(self.rewards.long if reward is None else reward, was)
        predictions = self.predictions
        if was is not None:
            predictions.revise(decision, outcome.arm, reward, outcome.weight)
            return
        predictions.left -= 1
        if predictions.left <= 0:
            predictions.left = predictions.stride.next(predictions.clock.monotonic())
            mean = learner.predicted([outcome.arm], [outcome.row], [outcome.inline])[0]
            if mean is not None:
                predictions.take(decision, outcome.arm, mean, outcome.reward, outcome.weight)


class Drift:
    """All drift of one process, fed by `decided` and `learned`."""

    def __init__(
        self, rng: Random | None = None, samples: int = SAMPLES, clock: Clock = SYSTEM
    ) -> None:
        self._rng, self._samples, self._clock = rng or Random(), samples, clock
        self._contexts: dict[str, ContextDrift] = {}
        self._policies: dict[tuple[str, str], _Policy] = {}

    def decided(self, state: State, context: Array) -> None:
        """Take in the context of a decision that was made, (schema.context.width,)."""
        watch = self._contexts.get(state.name)
        if watch is None or watch.schema is not state.schema:
            watch = ContextDrift(state.schema, self._rng, self._samples, self._clock)
            self._contexts[state.name] = watch
        watch.left -= 1
        if watch.left <= 0:
            now = self._clock.monotonic()
            watch.left = watch.stride.next(now)
            watch.take(context, now)

    def learned(self, state: State, event: Learned) -> None:
        """Take in an event that is about to be folded: heads have not learned it yet."""
        learner = state.learners.get(event.policy)
        if learner is None or event.schema_version != state.schema_version:
            return
        key = state.name, event.policy
        watch = self._policies.get(key)
        if watch is None or watch.born != learner.born:
            tally = state.reward_sums[event.policy]
            rewards = RewardDrift(tally.count, tally.total, tally.squares)
            predictions = PredictionDrift(self._rng, self._samples, self._clock)
            watch = _Policy(learner.born, rewards, predictions, RewardSizes())
            self._policies[key] = watch
        for outcome in event.settled:
            watch.move(learner, state.definition.reward, event.decision, outcome)

    def context(self, state: State) -> dict[str, float]:
        """Return the population stability index of each feature, where enough was seen."""
        watch = self._contexts.get(state.name)
        return watch.figures() if watch and watch.schema is state.schema else {}

    def rewards(self, state: State, policy: str) -> RewardDrift | None:
        watch = self._policies.get((state.name, policy))
        return watch.rewards if watch else None

    def reward_sizes(self, state: State, policy: str) -> RewardSizes | None:
        watch = self._policies.get((state.name, policy))
        return watch.sizes if watch else None

    def predictions(self, state: State, policy: str) -> Calibration | None:
        watch = self._policies.get((state.name, policy))
        return watch.predictions.figures(state.definition.reward) if watch else None

    def forget_others(self, served: Mapping[str, Container[str]]) -> None:
        """Forget all other experiments and policies."""
        self._contexts = {name: one for name, one in self._contexts.items() if name in served}
        self._policies = {
            (name, policy): one
            for (name, policy), one in self._policies.items()
            if policy in served.get(name, ())
        }
