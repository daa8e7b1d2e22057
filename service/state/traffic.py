"""Traffic: the share of each policy, the loss budget that scales them, rollouts that divide one,
and what a unit draws for good."""

import hashlib
from collections.abc import Mapping
from math import inf, isclose, log
from typing import Any

import msgspec

from service.bandits.kinds import AnyPolicy
from service.definition.experiment import Definition
from service.state.events import BudgetMoved, RolloutStarted, RolloutStepped, TrafficChanged
from service.state.loss_budget import LossBudget
from service.state.rollout import Rollout, applied, begun

TrafficEvent = TrafficChanged | RolloutStarted | RolloutStepped | BudgetMoved

ROLLOUT_DRAW = b"rollout"
"""What tells the draw of a challenger from that of a policy of its name."""

VERSION_DRAW = b"version"
"""The same of the draw of a version."""


class Traffic:
    """Who decides the requests that name no policy.

    given      shares of each policy, beside the others', as people and rollouts set them
    shares     the same within the loss budget: what is drawn by
    chances    these as probabilities, in the order of the names, of the policies that have one
    rollouts   the last one of each challenger, or of its versions, by policy
    rollbacks  of rollouts, since the experiment was defined first
    budget     None: there is none

    A budget scales the shares of all policies but its own together, so units move only between its
    policy and the others.

    A rollout divides the share of its baseline by a draw of its own: no unit of another policy
    moves. As its challenger's part grows, units move to it alone, and the same challenger gets the
    same units again in another attempt. A rollout that is finished exchanges what the two draw by,
    so no unit moves then.

    A rollout of a version divides the units of its policy, however they came to it.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        rollouts: Mapping[str, Rollout] | None = None,
        drawn_by: Mapping[str, str] | None = None,
        rollbacks: int = 0,
        budget: LossBudget | None = None,
    ) -> None:
        self.rollbacks, self.budget = rollbacks, budget
        self.rollouts = dict(rollouts or {})
        self._drawn_by = dict(drawn_by or {})  # names by which policies draw, where not their own
        self._whole = dict(shares)  # a baseline has the share of both
        under_way = [each for each in self.rollouts.values() if not each.ended]
        self._challengers = {each.baseline: each for each in under_way if each.version is None}
        self._versions = {each.policy: each for each in under_way if each.version is not None}
        self._under_way = {
            name: each for each in under_way for name in (each.policy, each.baseline)
        }
        for each in self._challengers.values():
            both = self._whole[each.baseline] + self._whole[each.policy]
            self._whole |= {each.baseline: both, each.policy: 0.0}
        within = _within(self._whole, budget)
        self.given, self.shares = self._divided(self._whole), self._divided(within)
        self.chances = _chances(self.shares)
        self._draws = {
            self._drawn_by.get(name, name): (name, chance)
            for name, chance in _chances(within).items()
        }
        self._draw_chances = {draw: chance for draw, (_, chance) in self._draws.items()}

    def _divided(self, whole: Mapping[str, float]) -> dict[str, float]:
        """Return the shares of the policies, by those of which a baseline has the share of both."""
        shares = dict(whole)
        for each in self._challengers.values():
            both = whole[each.baseline]
            shares |= {each.baseline: both * (1 - each.share), each.policy: both * each.share}
        return shares

    def gathered(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Return shares where each baseline has what it and its challenger have, and these none:
        what a definition says of them, however it divides that. Rounding is no change."""
        found = dict(shares)
        for each in self._challengers.values():
            if each.policy in found and each.baseline in found:
                both, now = found[each.baseline] + found[each.policy], self._whole[each.baseline]
                found[each.baseline] = now if isclose(both, now) else both
                found[each.policy] = 0.0
        return found

    def chance(self, policy: str) -> float:
        """Return the chance of a policy."""
        return self.chances.get(policy, 0.0)

    def assign(self, experiment: str, sticky: str) -> str:
        """Return the policy of a unit. sticky: as `winner` takes it."""
        name, _ = self._draws[winner(experiment, sticky, self._draw_chances)]
        rollout = self._challengers.get(name)
        if rollout is None:
            return name
        drawn = uniform(experiment.encode(), rollout.policy, sticky, ROLLOUT_DRAW)
        return rollout.policy if drawn < rollout.share else name

    def version_share(self, policy: str) -> float:
        """Return the chance of the version that is rolled out, within its policy; 0: there is
        none."""
        rollout = self._versions.get(policy)
        return 0.0 if rollout is None else rollout.share

    def draws_challenger(self, experiment: str, policy: str, sticky: str) -> bool:
        """Whether a unit of a policy gets the version that is rolled out, if one is. sticky: as
        `winner` takes it."""
        rollout = self._versions.get(policy)
        if rollout is None:
            return False
        drawn = uniform(experiment.encode(), rollout.challenger, sticky, VERSION_DRAW)
        return drawn < rollout.share

    def rollout_of(self, policy: str) -> Rollout | None:
        """Return the rollout under way that a policy is the challenger or the baseline of."""
        return self._under_way.get(policy)

    def is_challenger(self, policy: str) -> bool:
        """Whether a rollout of the policy is under way, and not of one of its versions."""
        rollout = self.rollouts.get(policy)
        return rollout is not None and not rollout.ended and rollout.version is None

    # -- changes -------------------------------------------------------------------------------

    def defined(
        self, position: int, definition: Definition, before: Definition | None
    ) -> "Traffic":
        """Return the traffic of another definition, at its position in the log. The policies of a
        rollout have what both are given, and rollouts of policies that are gone end.

        before   the definition until then; None: there was none
        """
        shares = {name: each.share for name, each in definition.serving.items()}
        kept = {
            name: each
            for name, each in self.rollouts.items()
            if name in shares and each.baseline in shares
        }
        budget = self._budget_of(position, definition, before)
        return self._with(shares=shares, rollouts=kept, budget=budget)

    def _budget_of(
        self, position: int, definition: Definition, before: Definition | None
    ) -> LossBudget | None:
        """Return the loss budget of a definition: the one that there is, unless the definition
        changes it or its policy."""
        said, budget = definition.never_below, self.budget
        if said is None:
            return None
        if (
            budget is not None
            and before is not None
            and (budget.policy, budget.by) == (said.policy, said.by)
            and _same_but_share(before.policies[said.policy], definition.policies[said.policy])
        ):
            return budget
        return LossBudget(policy=said.policy, by=said.by, began=position, share=said.by)

    def after(self, position: int, event: TrafficEvent) -> "Traffic":
        """Return the traffic after an event, at its position in the log."""
        match event:
            case TrafficChanged():
                return self._with(shares={**self._whole, **event.shares})
            case RolloutStarted():
                begins = begun(event.plan, position, event.at)
                return self._with(rollouts={**self.rollouts, begins.policy: begins})
            case RolloutStepped():
                return self._stepped(event)
            case BudgetMoved():
                return self._moved(event)

    def _moved(self, event: BudgetMoved) -> "Traffic":
        """Return the traffic after a move of the loss budget. A move of a budget that another
        definition has ended meanwhile changes nothing."""
        budget = self.budget
        if budget is None or event.began != budget.began:
            return self
        moved = msgspec.structs.replace(budget, share=event.share, moves=event.number)
        return self._with(budget=moved)

    def _stepped(self, event: RolloutStepped) -> "Traffic":
        policy = event.policy
        rollout = applied(self.rollouts[policy], event.step, event.by, event.reason)
        rollouts = {**self.rollouts, policy: rollout}
        if rollout.state == "rolled_back":
            return self._with(rollouts=rollouts, rollbacks=self.rollbacks + 1)
        if rollout.state != "finished" or rollout.version is not None:
            return self._with(rollouts=rollouts)
        whole, drawn_by, old = self._whole, self._drawn_by, rollout.baseline
        draws = {policy: drawn_by.get(old, old), old: drawn_by.get(policy, policy)}
        shares = {**whole, policy: whole[old], old: whole[policy]}
        return self._with(shares=shares, rollouts=rollouts, drawn_by={**drawn_by, **draws})

    def _with(self, **changed: Any) -> "Traffic":
        return Traffic(**{**self._fields, **changed})

    @property
    def _fields(self) -> dict[str, Any]:
        return {
            "shares": self._whole,
            "rollouts": self.rollouts,
            "drawn_by": self._drawn_by,
            "rollbacks": self.rollbacks,
            "budget": self.budget,
        }

    # -- snapshots -----------------------------------------------------------------------------

    def members(self) -> dict[str, Any]:
        """Return it as members of a snapshot. `restore` is the inverse, bit for bit."""
        parts = {"rollouts": self.rollouts, "budget": self.budget}
        return {**self._fields, **msgspec.to_builtins(parts)}

    @classmethod
    def restore(cls, members: Mapping[str, Any]) -> "Traffic":
        rollouts = msgspec.convert(members["rollouts"], dict[str, Rollout])
        budget = msgspec.convert(members["budget"], LossBudget | None)
        return cls(**{**members, "rollouts": rollouts, "budget": budget})


def _within(shares: Mapping[str, float], budget: LossBudget | None) -> dict[str, float]:
    """Return the shares where all policies but that of a loss budget have together at most what it
    allows."""
    if budget is None:
        return {**shares}
    total = sum(shares.values())
    others = total - shares[budget.policy]
    if others <= budget.share * total:
        return {**shares}
    factor = budget.share * total / others
    within = {name: factor * share for name, share in shares.items()}
    return within | {budget.policy: (1 - budget.share) * total}


def _same_but_share(one: AnyPolicy, other: AnyPolicy) -> bool:
    """Say whether the settings of two policies are the same but for their shares."""
    return one.model_copy(update={"share": other.share}) == other


def _chances(shares: Mapping[str, float]) -> dict[str, float]:
    total = sum(shares.values())
    chances = {name: share / total for name, share in sorted(shares.items())}
    return {name: chance for name, chance in chances.items() if chance}  # not a tiny 0


def winner(experiment: str, sticky: str, chances: Mapping[str, float]) -> str:
    """Return the winner of a unit, by weighted rendezvous hashing (Schindelhauer, Schomaker 2005):
    the least -ln(u) / share wins, u a hash of unit and name. All that it needs is in the log.

    sticky   the unit's keyed hash, or the id of a decision without a unit

    Each name wins its share of the units. If one share grows relative to the others, units move to
    its name alone; a new name takes its share, and no unit moves between the others. If several
    change at once, units move only to names that grew more than their own, and in all more than the
    least possible number.
    """
    if len(chances) == 1:
        return next(iter(chances))
    key, best, least = experiment.encode(), "", inf
    for name, chance in chances.items():
        time = -log(uniform(key, name, sticky)) / chance
        if time < least:
            best, least = name, time
    return best


def uniform(key: bytes, name: str, sticky: str, draw: bytes = b"") -> float:
    """Return a number between 0 and 1, the same whenever it is asked for. key: of the experiment;
    draw: what tells draws of one name apart."""
    text = f"{name}\0{sticky}".encode()
    digest = hashlib.blake2b(text, digest_size=8, key=key, person=draw).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64
