"""What estimates need of each decision, in columns: about 40 bytes, and 32 for each policy, or 96
for a shadow."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from service.analysis.estimators import Logged
from service.analysis.intervals import Interval
from service.analysis.sequences import Index
from service.analysis.walk import LoggedDecision
from service.analysis.watched import WatchedValue, doubles
from service.clock import iso
from service.features.schema import Array

ARMS = 10_000
"""Arms without support that are counted one by one; further ones are counted together."""
OTHERS = "(others)"


@dataclass
class _PolicyColumns:
    """
    chance        of the shown arm
    earned        by the guess
    missing       chance of what the log could not have shown; unsupported: the same by arm
    otherwise     decisions of which it would have chosen other candidates
    watched       None: its estimate is looked at once
    """

    chance: "array[float]" = field(default_factory=doubles)
    earned: "array[float]" = field(default_factory=doubles)
    missing: "array[float]" = field(default_factory=doubles)
    unsupported: dict[str, float] = field(default_factory=dict)
    otherwise: int = 0
    watched: WatchedValue | None = None

    def add(self, logged: LoggedDecision, target: Array, reward: float) -> None:
        self.chance.append(float(target[logged.shown]))
        self.earned.append(float(target @ logged.guess))
        behaviour = logged.behaviour
        if behaviour is None:
            self.missing.append(0.0)
            return
        if self.watched is not None:
            self.watched.add(target, behaviour, logged.guess, logged.shown, reward, logged.limits)
        possible = behaviour > 0
        missing = np.flatnonzero(~possible & (target > 0))
        self.missing.append(float(target[missing].sum()))
        for index in missing.tolist():
            arm, by_arm = logged.arms[index], self.unsupported
            arm = arm if arm in by_arm or len(by_arm) < ARMS else OTHERS
            by_arm[arm] = by_arm.get(arm, 0.0) + float(target[index])


def _number(unit: str) -> int:
    """The same in every process, so that the same log gives the same intervals; at least 0."""
    return int.from_bytes(blake2b(unit.encode(), digest_size=8).digest()) >> 1


class Columns:
    """Of one evaluation.

    slates       decisions of more than one arm, of which only the first counts
    untold       decisions of which the log knows the chance of the shown arm alone
    shortlists   decisions by the policy that chose their candidates itself
    """

    def __init__(self, policies: Sequence[str], *, watched: bool = False) -> None:
        self.policies = policies
        self._own = {
            name: _PolicyColumns(watched=WatchedValue() if watched else None) for name in policies
        }
        self._reward, self._behaviour, self._guess = doubles(), doubles(), doubles()
        self._group, self._at = array("q"), doubles()
        self.slates = self.untold = 0
        self.logged_by: Counter[str] = Counter()
        self._earned = defaultdict[str, float](float)
        self.shortlists: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._reward)

    def add(self, logged: LoggedDecision, reward: float) -> None:
        decision = logged.decision
        self._reward.append(reward)
        self._behaviour.append(logged.propensity)
        self._guess.append(float(logged.guess[logged.shown]))
        unit = decision.unit
        self._group.append(-1 - len(self._group) if unit is None else _number(unit))
        self._at.append(decision.at)
        self.slates += len(decision.shown) > 1
        self.untold += logged.behaviour is None
        self.logged_by[decision.policy] += 1
        self._earned[decision.policy] += reward
        self.shortlists[decision.policy] += logged.shortlist
        for name, own in self._own.items():
            own.add(logged, logged.targets[name], reward)
            own.otherwise += name in logged.others

    @property
    def earned_by(self) -> dict[str, float]:
        """The mean reward of the decisions that each policy made."""
        return {name: self._earned[name] / count for name, count in self.logged_by.most_common()}

    @property
    def reward(self) -> Array:
        return np.array(self._reward)

    @property
    def group(self) -> Index:
        """A number for each unit; decisions without one have a number each."""
        return np.array(self._group, np.int64)

    def logged(self, policy: str, range_: tuple[float, float]) -> Logged:
        own = self._own[policy]
        return Logged(
            reward=self.reward,
            behaviour=np.array(self._behaviour),
            target=np.array(own.chance),
            guess=np.array(self._guess),
            target_guess=np.array(own.earned),
            group=self.group,
            range=range_,
        )

    def watched(
        self, policy: str, confidence: float
    ) -> tuple[Interval, Interval] | tuple[None, None]:
        """The intervals of its value, and of its difference to the log, that hold at all times;
        None where it is not watched."""
        watched = self._own[policy].watched
        return (None, None) if watched is None else watched.intervals(self.group, confidence)

    def unsupported(self, policy: str) -> tuple[float, dict[str, float]]:
        """The share of what a policy would show that the log could not have shown, in all and by
        arm, the largest first."""
        own, count = self._own[policy], max(len(self), 1)
        by_arm = sorted(own.unsupported.items(), key=lambda each: -each[1])
        return float(np.sum(own.missing)) / count, {arm: mass / count for arm, mass in by_arm}

    def otherwise(self, policy: str) -> int:
        """Decisions of which a policy would have chosen other candidates."""
        return self._own[policy].otherwise

    @property
    def times(self) -> tuple[str, str] | tuple[None, None]:
        """Of the first and the last; None where there is no decision."""
        return (iso(min(self._at)), iso(max(self._at))) if self._at else (None, None)
