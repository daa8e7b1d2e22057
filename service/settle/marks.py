"""Marks of a decision: what policies have learned of each shown arm, and which contributions.

A mark is an identity with a value that the store compares and sets. A settlement expects of each
arm what it has read, or no mark at all; a writer that comes second is refused, reads what the first
one wrote, and tries again. So every event knows exactly what had been learned before it.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import asdict

from service.definition.experiment import RewardRules
from service.errors import Conflict, Exhausted, Gone
from service.log.stores.base import Mark
from service.state.decisions import Shown
from service.state.events import Corrected, Default, Outcome, Rewarded

OPEN_S = 30 * 86_400.0
"""Seconds for which marks are kept longer of a decision that has arms left to settle."""

ERASED = "null"
"""Value of the marks of an erased decision: nothing can settle it any more."""


def activation_mark(decision: str) -> str:
    """Return the identity of a deferred decision's activation."""
    return f"{decision}/activated"


def arm_mark(decision: str, arm: str) -> str:
    """Return the identity of what is learned of a shown arm."""
    return f"{decision}#{arm}"


def contribution_mark(decision: str, arm: str, reward_id: str) -> str:
    """Return the identity of one reward of a shown arm."""
    return f"{decision}={len(reward_id)}/{reward_id}/{arm}"


class ArmValue(NamedTuple):
    """What is learned of a shown arm.

    reward    None: nothing, since it was not seen
    default   it is the default reward
    since     position of the event that first gave it a reward; 0: the one that wrote the mark
    weight    of the reward
    """

    reward: float | None
    default: bool
    since: int = 0
    weight: float = 1.0

    def text(self) -> str:
        """Return the value of the mark: JSON with numbers as `repr` writes them."""
        reward = "null" if self.reward is None else repr(self.reward)
        more = f", {self.weight!r}" if self.weight != 1 else ""
        return f"[{reward}, {'true' if self.default else 'false'}, {self.since}{more}]"


def read_arm(mark: Mark) -> ArmValue:
    """Read the mark of an arm. Raises ValueError or TypeError where it holds no such value."""
    return ArmValue(*json.loads(mark.value))


@dataclass(slots=True)
class ShownReward:
    """A shown arm and the reward to settle it by.

    reward      None closes an arm that the user did not look at
    slot        where it was shown, from 1 on; 0: the reward says that it was seen
    expected    value of its mark, as it was read; None: it has none
    was         the reward that it expects, since that position
    weight      by which its reward is learned; weighed: that of `was`
    taught      the slot whose examination it teaches; 0: none
    predicted   its reward, scaled to [0, 1]
    """

    shown: Shown
    reward: float | None
    slot: int = 0
    expected: str | None = None
    was: float | None = None
    since: int | None = None
    was_default: bool = False
    weight: float = 1.0
    weighed: float = 1.0
    taught: int = 0
    predicted: float = 0.0

    def total(self, rules: RewardRules) -> float | None:
        """Return the reward to learn now. Raises Exhausted."""
        if self.reward is None:
            return None
        if rules.aggregation != "sum" or self.was is None or self.was_default:
            return self.reward
        total, (low, high) = self.was + self.reward, rules.total or rules.range
        if not low <= total <= high:
            raise Exhausted(
                f"the rewards of arm {self.shown.arm!r} of this decision come to {self.was:g}: "
                f"with {self.reward:g} they would leave reward.total, {low:g} to {high:g}"
            )
        return total

    def outcome(self, rules: RewardRules) -> Outcome | None:
        """Return the arm in the event, where an unseen one has the reward learned before, if
        any."""
        total, shown = self.total(rules), self.shown
        reward = self.was if total is None else total
        if reward is None:
            return None
        more: dict[str, Any] = {}  # msgspec leaves a default out if it is the very object
        if self.weight != 1:
            more["weight"] = self.weight
        if self.taught:
            more |= {"slot": self.taught, "predicted": self.predicted}
        if self.was is not None:
            more |= {"was": self.was, "since": self.since}
        if self.weighed != 1:
            more["weighed"] = self.weighed
        if self.reward is None:
            more["withdrawn"] = True
        return Outcome(shown.arm, reward, shown.row, shown.inline, **more)

    def read(self, mark: Mark, skips: Collection[int]) -> None:
        """Expect what the mark holds. Raises Gone where the decision was erased, or the mark's
        event is one of `skips`, which changed nothing."""
        if mark.value == ERASED:
            raise Gone("this decision was erased")
        if mark.position in skips:
            raise Gone("a reward of this arm was taken out of the log")
        known = read_arm(mark)
        self.expected = mark.value
        self.was, self.was_default, self.weighed = known.reward, known.default, known.weight
        self.since = None if known.reward is None else known.since or mark.position


@dataclass(slots=True)
class MarkedSettlement:
    """Arms of one decision that settle together.

    version     as `Learned` has it
    closes      these are all of its arms: the decision is no longer due
    unlogged    the decision was answered without the log
    reward_id   None for the default reward
    ignored     arms whose reward cannot count: another one was first
    repeated    the reward of some arm has counted already
    """

    decision: str
    policy: str
    schema_version: int
    reward_by: float
    keep_until: float
    arms: list[ShownReward]
    closes: bool
    reward_id: str | None
    rules: RewardRules
    version: int = 0
    unlogged: bool = False
    ignored: list[str] = field(default_factory=list)
    repeated: bool = False

    def settlement(self, at: float) -> Rewarded | Corrected | Default:
        """Return what settles the arms at this time, in unix seconds."""
        rewarded = Rewarded(
            at=at,
            decision=self.decision,
            policy=self.policy,
            version=self.version,
            schema_version=self.schema_version,
            settled=[one for arm in self.arms if (one := arm.outcome(self.rules))],
            reward_by=0.0 if self.rules.default is None else self.reward_by,
            unlogged=self.unlogged,
        )
        if self.reward_id is None:
            return Default(**asdict(rewarded))
        if all(arm.was is None for arm in self.arms):
            return rewarded
        return Corrected(**asdict(rewarded))

    def keep_until_at(self, now: float) -> float:
        """Return the time until which to keep the mark: no reward comes after `accept_until`, but
        the default for the other arms may come later, at the end of an outage."""
        return max(self.keep_until, now) + (0.0 if self.closes else OPEN_S)

    def marks(self) -> dict[str, str]:
        """Return values by identity."""
        marks = {}
        for arm in self.arms:
            value = ArmValue(
                arm.total(self.rules), self.reward_id is None, arm.since or 0, arm.weight
            )
            marks[arm_mark(self.decision, arm.shown.arm)] = value.text()
            if self.reward_id is not None and arm.reward is not None:
                own = contribution_mark(self.decision, arm.shown.arm, self.reward_id)
                marks[own] = repr(arm.reward)
        return marks

    @property
    def replaces(self) -> dict[str, str]:
        """Values that marks of the arms must have, by identity; the other marks must be new."""
        return {
            arm_mark(self.decision, arm.shown.arm): arm.expected
            for arm in self.arms
            if arm.expected is not None
        }

    def learn_of(self, known: Mapping[str, Mark], skips: Collection[int]) -> None:
        """Drop the arms that the known marks settle, and let the others expect what they hold. Note
        those with another reward than this one, which the first reward leaves no room for.

        skips: positions of events that were passed over. Raises Conflict where the same
        contribution has another value, and Gone as `read`, or where a mark is forgotten.
        """
        left = []
        for arm in self.arms:
            if self.reward_id is not None and arm.reward is not None:
                own = known.get(contribution_mark(self.decision, arm.shown.arm, self.reward_id))
                if own is not None:
                    if json.loads(own.value) != arm.reward:
                        raise Conflict(
                            f"arm {arm.shown.arm!r} of this decision has another reward under the "
                            "same reward_id"
                        )
                    self.repeated = True
                    continue
            mark = known.get(arm_mark(self.decision, arm.shown.arm))
            if mark is not None:
                arm.read(mark, skips)
                further = self.rules.aggregation != "first" and arm.reward is not None
                if self.reward_id is None or not (arm.was_default or further):
                    if self.reward_id is not None and arm.reward is not None:
                        self.ignored.append(arm.shown.arm)
                    continue  # the first reward holds
            elif arm.expected is not None:
                raise Gone("what this decision has taught is forgotten")
            left.append(arm)
        self.arms = left
