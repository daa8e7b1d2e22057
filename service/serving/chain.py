"""Chains of marks: what policies have learned of the arms of a decision, link by link.

A mark is an identity that the store accepts once. The n-th change of what is learned of a shown arm
takes the n-th link of its chain, so that of two writers one has to read what the other wrote.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import asdict

from service.definition.experiment import RewardRules
from service.errors import Conflict, Exhausted, Gone
from service.log.stores.base import Mark
from service.state.events import Corrected, Expired, Rewarded, Settled, Shown

OPEN_S = 30 * 86_400.0
"""How much longer marks are kept of a decision that has arms left to settle."""

MOST_LINKS, STRIDE = 1_024, 32
"""Links of a chain, at most, and those between two that are looked up together: two queries find
the last link of any chain."""

ERASED = "null"
"""The value of an erased decision's links: nothing can settle it any more."""


def activation_mark(decision: str) -> str:
    """The identity of a deferred decision's activation."""
    return f"{decision}/activated"


def link_mark(decision: str, link: int, arm: str) -> str:
    """The identity of the `link`-th change of what is learned of a shown arm."""
    return f"{decision}#{link}/{arm}"


class Link(NamedTuple):
    """What is learned of a shown arm from one link of its chain on.

    reward    None: nothing any more, since it was not seen
    default   it is the default reward
    since     position of the first word on it; 0: this link is that; None: the first link of a
              chain
    weight    of the reward
    """

    reward: float | None
    default: bool
    since: int | None = None
    weight: float = 1.0


def link_value(link: Link) -> str:
    """JSON with numbers as `repr` writes them."""
    reward = "null" if link.reward is None else repr(link.reward)
    plain = f"{reward}, {'true' if link.default else 'false'}"
    if link.weight != 1:
        return f"[{plain}, {'null' if link.since is None else link.since}, {link.weight!r}]"
    return f"[{plain}]" if link.since is None else f"[{plain}, {link.since}]"


def read_link(mark: Mark) -> Link:
    """Raises ValueError or TypeError where the mark holds no link."""
    return Link(*json.loads(mark.value))


@dataclass(slots=True)
class ArmLink:
    """A shown arm on its way to being settled, at a link of its chain. Two writers cannot take the
    same link, so that every event knows exactly what had been learned before it.

    reward      None closes an arm that the user did not look at
    slot        where it was shown, from 1 on; 0: the reward says that it was seen
    weight      by which its reward is learned; weighed: that of `was`
    taught      the slot whose examination it teaches; 0: none
    predicted   its reward, scaled to [0, 1]
    """

    shown: Shown
    reward: float | None
    slot: int = 0
    link: int = 0
    was: float | None = None
    since: int | None = None
    was_default: bool = False
    weight: float = 1.0
    weighed: float = 1.0
    taught: int = 0
    predicted: float = 0.0

    def total(self, rules: RewardRules) -> float | None:
        """The reward to learn now. Raises Exhausted."""
        if self.reward is None:
            return None
        if self.link >= MOST_LINKS:
            raise Exhausted(f"arm {self.shown.arm!r} of this decision had {MOST_LINKS} rewards")
        if rules.aggregation != "sum" or self.was is None or self.was_default:
            return self.reward
        total, (low, high) = self.was + self.reward, rules.total or rules.range
        if not low <= total <= high:
            raise Exhausted(
                f"the rewards of arm {self.shown.arm!r} of this decision come to {self.was:g}: "
                f"with {self.reward:g} they would leave reward.total, {low:g} to {high:g}"
            )
        return total

    def settled(self, rules: RewardRules) -> Settled | None:
        """The arm in the event, where an unseen one has the reward learned before, if any."""
        total, shown = self.total(rules), self.shown
        reward = self.was if total is None else total
        if reward is None:
            return None
        more: dict[str, Any] = {}  # msgspec leaves a default out if it is the very object
        if self.weight != 1:
            more["weight"] = self.weight
        if self.taught:
            more |= {"slot": self.taught, "predicted": self.predicted}
        return Settled(shown.arm, reward, shown.x, shown.inline, **more)

    def follow(self, link: Mark, skips: Collection[int]) -> None:
        """Move past the next link of the chain. Raises Gone where the decision was erased, or the
        link's event is one of `skips`, which changed nothing."""
        if link.value == ERASED:
            raise Gone("this decision was erased")
        if link.position in skips:
            raise Gone("a reward of this arm was taken out of the log")
        known = read_link(link)
        self.was, self.was_default, self.weighed = known.reward, known.default, known.weight
        since = self.since if known.since is None else known.since
        self.since = None if known.reward is None else since or link.position
        self.link += 1

    def contribution_mark(self, decision: str, reward_id: str) -> str:
        return f"{decision}={len(reward_id)}/{reward_id}/{self.shown.arm}"


@dataclass(slots=True)
class Settlement:
    """Arms of one decision that settle together.

    closes      these are all of its arms: the decision is no longer due
    reward_id   None for the default reward
    """

    decision: str
    policy: str
    schema_version: int
    keep_until: float
    arms: list[ArmLink]
    closes: bool
    reward_id: str | None
    rules: RewardRules

    def event(self, at: float) -> Rewarded | Corrected | Expired:
        """at: unix seconds."""
        rewarded = Rewarded(
            at=at,
            decision=self.decision,
            policy=self.policy,
            schema_version=self.schema_version,
            settled=[one for arm in self.arms if (one := arm.settled(self.rules))],
        )
        if self.reward_id is None:
            return Expired(**asdict(rewarded))
        if all(arm.was is None for arm in self.arms):
            return rewarded
        arms = [arm for arm in self.arms if arm.reward is not None or arm.was is not None]
        weighed = [arm.weighed for arm in arms]
        return Corrected(
            **asdict(rewarded),
            was=[arm.was for arm in arms],
            since=[arm.since for arm in arms],
            withdrawn=[arm.shown.arm for arm in arms if arm.reward is None],
            weighed=weighed if any(weight != 1 for weight in weighed) else [],
        )

    @property
    def contributed(self) -> list[ArmLink]:
        """Arms of which something was learned before, and to which this adds a contribution."""
        if self.reward_id is None or self.rules.aggregation == "first":
            return []
        return [arm for arm in self.arms if arm.link > 0 and arm.reward is not None]

    def keep_until_at(self, now: float) -> float:
        """No reward comes after `accept_until`, but the default for the other arms may come later,
        at the end of an outage."""
        return max(self.keep_until, now) + (0.0 if self.closes else OPEN_S)

    def marks(self) -> dict[str, str]:
        """Values by identity. After the link of an unseen arm there is no first reward."""
        marks = {}
        for arm in self.arms:
            since = None if arm.link == 0 else arm.since or 0
            link = Link(arm.total(self.rules), self.reward_id is None, since, arm.weight)
            marks[link_mark(self.decision, arm.link, arm.shown.arm)] = link_value(link)
            if self.reward_id is not None and arm.reward is not None:
                own = arm.contribution_mark(self.decision, self.reward_id)
                marks[own] = repr(arm.reward)
        return marks

    def learn_of(self, known: Mapping[str, Mark], skips: Collection[int]) -> None:
        """Drop the arms that the known marks settle, and move the others along their chains.

        skips: positions of events that were passed over. Raises Conflict where the same
        contribution has another value, and Gone as `follow`.
        """
        left = []
        for arm in self.arms:
            if self.reward_id is not None and arm.reward is not None:
                own = known.get(arm.contribution_mark(self.decision, self.reward_id))
                if own is not None:
                    if json.loads(own.value) != arm.reward:
                        raise Conflict(
                            f"arm {arm.shown.arm!r} of this decision has another reward under the "
                            "same reward_id"
                        )
                    continue
            link = known.get(link_mark(self.decision, arm.link, arm.shown.arm))
            if link is not None:
                arm.follow(link, skips)
                further = self.rules.aggregation != "first" and arm.reward is not None
                if self.reward_id is None or not (arm.was_default or further):
                    continue  # the first reward holds
            left.append(arm)
        self.arms = left
