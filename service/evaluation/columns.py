"""What estimates need of each decision, in columns: about 40 bytes, and 32 for each policy."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from service.evaluation.estimators import Logged
from service.evaluation.walk import Visit

ARMS = 10_000
"""Arms without support that are told apart; those of further ones are counted together."""
OTHERS = "(others)"


@dataclass
class _Policy:
    """chance: of the shown arm; bound: largest weight of an arm; earned: by the guess;
    unsupported: what it would show that the log could not have, by arm; otherwise: decisions of
    which it would have chosen other candidates."""

    chance: "array[float]" = field(default_factory=lambda: array("d"))
    bound: "array[float]" = field(default_factory=lambda: array("d"))
    earned: "array[float]" = field(default_factory=lambda: array("d"))
    missing: "array[float]" = field(default_factory=lambda: array("d"))
    unsupported: Counter[str] = field(default_factory=Counter)
    otherwise: int = 0


def _number(unit: str) -> int:
    """The same in every process, so that the same log gives the same intervals; at least 0."""
    return int.from_bytes(blake2b(unit.encode(), digest_size=8).digest()) >> 1


class Columns:
    """Of one evaluation.

    slates   decisions of more than one arm, of which the first is looked at
    untold   decisions of which the log knows the chance of the shown arm alone
    shortlists   decisions by the policy that chose their candidates itself
    """

    def __init__(self, policies: Sequence[str]) -> None:
        self._policies = {name: _Policy() for name in policies}
        self._reward, self._behaviour, self._guess = array("d"), array("d"), array("d")
        self._group, self._at = array("q"), array("d")
        self.slates = self.untold = 0
        self.logged_by: Counter[str] = Counter()
        self.shortlists: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._reward)

    def add(self, visit: Visit, reward: float) -> None:
        decision, shown = visit.decision, visit.shown
        self._reward.append(reward)
        self._behaviour.append(visit.propensity)
        self._guess.append(float(visit.guess[shown]))
        unit = decision.unit
        self._group.append(-1 - len(self._group) if unit is None else _number(unit))
        self._at.append(decision.at)
        self.slates += len(decision.shown) > 1
        self.untold += visit.behaviour is None
        self.logged_by[decision.policy] += 1
        self.shortlists[decision.policy] += visit.shortlist
        for name, own in self._policies.items():
            self._add(own, visit, visit.targets[name])
            own.otherwise += name in visit.others

    def _add(self, own: _Policy, visit: Visit, target: npt.NDArray[np.float64]) -> None:
        own.chance.append(float(target[visit.shown]))
        own.earned.append(float(target @ visit.guess))
        behaviour = visit.behaviour
        if behaviour is None:
            own.bound.append(float("inf"))
            own.missing.append(0.0)
            return
        possible = behaviour > 0
        own.bound.append(float((target[possible] / behaviour[possible]).max()))
        missing = np.flatnonzero(~possible & (target > 0))
        own.missing.append(float(target[missing].sum()))
        for index in missing.tolist():
            arm = visit.arms[index]
            arm = arm if arm in own.unsupported or len(own.unsupported) < ARMS else OTHERS
            own.unsupported[arm] += float(target[index])  # type: ignore[assignment]

    def logged(self, policy: str, range_: tuple[float, float]) -> Logged:
        own = self._policies[policy]
        return Logged(
            reward=np.array(self._reward),
            behaviour=np.array(self._behaviour),
            target=np.array(own.chance),
            bound=np.array(own.bound),
            guess=np.array(self._guess),
            target_guess=np.array(own.earned),
            group=np.array(self._group, np.int64),
            range=range_,
        )

    def unsupported(self, policy: str) -> tuple[float, dict[str, float]]:
        """The share of what a policy would show that the log could not have shown, in all and by
        arm, the largest first."""
        own, count = self._policies[policy], max(len(self), 1)
        by_arm = {arm: mass / count for arm, mass in own.unsupported.most_common()}
        return float(np.sum(own.missing)) / count, by_arm

    def otherwise(self, policy: str) -> int:
        """Decisions of which a policy would have chosen other candidates."""
        return self._policies[policy].otherwise

    @property
    def times(self) -> tuple[float, float]:
        """Of the first and the last, unix seconds."""
        return min(self._at), max(self._at)

    @property
    def earned(self) -> npt.NDArray[np.float64]:
        """What the log itself earned."""
        return np.array(self._reward)
