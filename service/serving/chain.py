"""What has been learned of the arms of a decision, as chains of marks, and the next link of each.

A mark is an identity that the store takes once. The n-th change of what is learned of a shown arm
has the n-th link of its chain, so that of two writers one has to look at what the other wrote.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.definition.experiment import LARGEST_REWARD, RewardRules
from service.errors import Conflict, Exhausted, Gone
from service.log.stores.base import Mark
from service.state.events import Corrected, Expired, Rewarded, Settled, Shown, settle

OPEN_S = 30 * 86_400.0
"""How much longer marks are kept of a decision that has arms left to settle."""

MOST_LINKS, STRIDE = 1_024, 32
"""Changes of what is learned of one arm of one decision, and how many of them are looked up
together: two questions find the last of a chain, however long it is."""

ERASED = "null"
"""What the links of an erased decision hold: nothing can be settled of it any more."""

ANY_TOTAL = (-LARGEST_REWARD, LARGEST_REWARD)
"""Of an experiment that was defined before sums of rewards had bounds of their own."""


def activation_mark(decision: str) -> str:
    """The identity of a deferred decision's having been shown."""
    return f"{decision}/activated"


def link_mark(decision: str, link: int, arm: str) -> str:
    """The identity of the `link`-th change of what is learned of a shown arm."""
    return f"{decision}#{link}/{arm}"


class Link(NamedTuple):
    """What is learned of a shown arm from one link of its chain on.

    reward    None: nothing any more, since it was not seen
    default   it is the default reward
    weight    for how much of a settlement it counts
    since     position of the first word on it; 0: this link is that; None of the first link of a
              chain, and where an older Forage wrote it
    """

    reward: float | None
    default: bool
    weight: float = 1.0
    since: int | None = None


def link_value(link: Link) -> str:
    """As JSON, written by hand: a number is as `repr` writes it."""
    reward = "null" if link.reward is None else repr(link.reward)
    plain = f"{reward}, {'true' if link.default else 'false'}"
    if link.since is not None:
        return f"[{plain}, {link.weight!r}, {link.since}]"
    return f"[{plain}]" if link.weight == 1.0 else f"[{plain}, {link.weight!r}]"


def read_link(mark: Mark) -> Link:
    """Raises ValueError or TypeError where the mark holds no link."""
    return Link(*json.loads(mark.value))


@dataclass(slots=True)
class ArmLink:
    """One shown arm on its way to being settled. reward: None where it was not seen, and is closed.

    Each has a chain of marks, one a change of what is learned of it. Two writers cannot take the
    same link, so every event knows exactly what had been learned before it.
    """

    shown: Shown
    reward: float | None
    link: int = 0
    was: float | None = None
    since: int | None = None
    was_default: bool = False
    weight: float = 1.0

    def total(self, rules: RewardRules) -> float | None:
        """What is to be learned of it now. Raises Exhausted."""
        if self.reward is None:
            return None
        if self.link >= MOST_LINKS:
            raise Exhausted(f"arm {self.shown.arm!r} of this decision had {MOST_LINKS} rewards")
        if rules.aggregation != "sum" or self.was is None or self.was_default:
            return self.reward
        total, (low, high) = self.was + self.reward, rules.total or ANY_TOTAL
        if not low <= total <= high:
            raise Exhausted(
                f"the rewards of arm {self.shown.arm!r} of this decision come to {self.was:g}: "
                f"with {self.reward:g} they would leave reward.total, {low:g} to {high:g}"
            )
        return total

    def settled(self, rules: RewardRules) -> Settled | None:
        """What the event says of it: of one that was not seen, what had been learned; None where
        nothing had."""
        total = self.total(rules)
        reward = self.was if total is None else total
        if reward is None:
            return None
        shown = self.shown
        return settle(shown.arm, reward, shown.x, shown.inline, self.weight)

    def follow(self, link: Mark, skips: Collection[int]) -> None:
        """Take in the next link of its chain. Raises Gone where the decision was erased, or the
        link's event is one of `skips`, which changed nothing."""
        if link.value == ERASED:
            raise Gone("this decision was erased")
        if link.position in skips:
            raise Gone("a reward of this arm was taken out of the log")
        known = read_link(link)
        self.was, self.was_default, self.weight = known.reward, known.default, known.weight
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
        body: dict[str, Any] = {
            "at": at,
            "decision": self.decision,
            "policy": self.policy,
            "schema_version": self.schema_version,
            "settled": [one for arm in self.arms if (one := arm.settled(self.rules))],
        }
        if self.reward_id is None:
            return Expired(**body)
        if all(arm.was is None for arm in self.arms):
            return Rewarded(**body)
        told = [arm for arm in self.arms if arm.reward is not None or arm.was is not None]
        was, since = [arm.was for arm in told], [arm.since for arm in told]
        withdrawn = [arm.shown.arm for arm in told if arm.reward is None]
        return Corrected(**body, was=was, since=since, withdrawn=withdrawn)

    @property
    def contributed(self) -> list[ArmLink]:
        """Arms of which something was learned before, and to which this adds a contribution."""
        if self.reward_id is None or self.rules.aggregation == "first":
            return []
        return [arm for arm in self.arms if arm.link > 0 and arm.reward is not None]

    def keep_until_at(self, now: float) -> float:
        """How long its marks are needed: no reward comes after `accept_until`, but an outage may
        be over later, and the default for what is left of the decision come only then."""
        return max(self.keep_until, now) + (0.0 if self.closes else OPEN_S)

    def marks(self) -> dict[str, str]:
        """By identity. Of an arm that was not seen, a link that no first word comes after."""
        marks = {}
        for arm in self.arms:
            since = None if arm.link == 0 else arm.since or 0
            link = Link(arm.total(self.rules), self.reward_id is None, arm.weight, since)
            marks[link_mark(self.decision, arm.link, arm.shown.arm)] = link_value(link)
            if self.reward_id is not None and arm.reward is not None:
                own = arm.contribution_mark(self.decision, self.reward_id)
                marks[own] = repr(arm.reward)
        return marks

    def learn_of(self, known: Mapping[str, Mark], skips: Collection[int]) -> None:
        """Take in which marks were known: drop what is settled, move on along the chains.

        skips: positions of events that were passed over. Raises Conflict where the same
        contribution was given with another value, and Gone as `follow`.
        """
        left = []
        for arm in self.arms:
            if self.reward_id is not None and arm.reward is not None:
                own = known.get(arm.contribution_mark(self.decision, self.reward_id))
                if own is not None and json.loads(own.value) != arm.reward:
                    raise Conflict(
                        f"arm {arm.shown.arm!r} of this decision has another reward under the "
                        "same reward_id"
                    )
                if own is not None:
                    continue
            link = known.get(link_mark(self.decision, arm.link, arm.shown.arm))
            if link is not None:
                arm.follow(link, skips)
                further = self.rules.aggregation != "first" and arm.reward is not None
                if self.reward_id is None or not (arm.was_default or further):
                    continue  # the first word holds
            left.append(arm)
        self.arms = left
