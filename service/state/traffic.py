"""Traffic: the share of each policy, rollouts that divide one, and what a unit draws for good."""

import hashlib
from collections.abc import Mapping
from math import inf, log
from typing import Any

import msgspec

from service.state.events import RolloutStarted, RolloutStepped, TrafficChanged
from service.state.rollout import Rollout, RolloutStep, applied, begun

TrafficEvent = TrafficChanged | RolloutStarted | RolloutStepped

ROLLOUT_DRAW = b"rollout"
"""What tells the draw of a challenger from that of a policy of its name."""


class Traffic:
    """Who decides the requests that name no policy.

    shares     of each policy, beside the others', at least 0
    chances    the same as probabilities, in the order of the names, of the policies that have one
    rollouts   that are under way, and the last one of each other challenger, by challenger
    rollbacks  of rollouts, since the experiment was defined first

    A rollout divides the share of its baseline by a draw of its own: no unit of another policy
    moves. As its challenger's part grows, units move to it alone, and the same challenger gets the
    same units again in another attempt. A rollout that is finished exchanges what the two draw by,
    so no unit moves then.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        rollouts: Mapping[str, Rollout] | None = None,
        drawn_by: Mapping[str, str] | None = None,
        rollbacks: int = 0,
    ) -> None:
        self.rollbacks = rollbacks
        self.rollouts = dict(rollouts or {})
        self._drawn_by = dict(drawn_by or {})  # names by which policies draw, where not their own
        self._whole = dict(shares)  # a baseline has the share of both
        self._challengers = {
            each.baseline: each for each in self.rollouts.values() if not each.ended
        }
        for each in self._challengers.values():
            both = self._whole[each.baseline] + self._whole[each.policy]
            self._whole |= {each.baseline: both, each.policy: 0.0}
        self.shares = dict(self._whole)
        for each in self._challengers.values():
            both = self._whole[each.baseline]
            self.shares[each.baseline] = both * (1 - each.share)
            self.shares[each.policy] = both * each.share
        self.chances = _chances(self.shares)
        self._draws = {
            self._drawn_by.get(name, name): (name, chance)
            for name, chance in _chances(self._whole).items()
        }
        self._draw_chances = {draw: chance for draw, (_, chance) in self._draws.items()}

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

    def rollout_of(self, policy: str) -> Rollout | None:
        """Return the rollout under way that a policy is the challenger or the baseline of."""
        found = self._challengers.get(policy) or self.rollouts.get(policy)
        return None if found is None or found.ended else found

    def is_challenger(self, policy: str) -> bool:
        """Whether a rollout of the policy is under way."""
        rollout = self.rollouts.get(policy)
        return rollout is not None and not rollout.ended

    # -- changes -------------------------------------------------------------------------------

    def defined(self, shares: Mapping[str, float]) -> "Traffic":
        """Return the traffic of another definition. The policies of a rollout have what both are
        given, and rollouts of policies that are gone end."""
        kept = {
            name: each
            for name, each in self.rollouts.items()
            if name in shares and each.baseline in shares
        }
        return self._with(shares=shares, rollouts=kept)

    def after(self, position: int, event: TrafficEvent) -> "Traffic":
        """Return the traffic after an event, at its position in the log."""
        match event:
            case TrafficChanged():
                return self._with(shares={**self.shares, **event.shares})
            case RolloutStarted():
                begins = begun(event.plan, position, event.at)
                return self._with(rollouts={**self.rollouts, begins.policy: begins})
            case RolloutStepped():
                return self._stepped(event.policy, event.step)

    def _stepped(self, policy: str, step: RolloutStep) -> "Traffic":
        rollout = applied(self.rollouts[policy], step)
        rollouts = {**self.rollouts, policy: rollout}
        if rollout.state == "rolled_back":
            return self._with(rollouts=rollouts, rollbacks=self.rollbacks + 1)
        if rollout.state != "finished":
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
        }

    # -- snapshots -----------------------------------------------------------------------------

    def members(self) -> dict[str, Any]:
        """Return it as members of a snapshot. `restore` is the inverse, bit for bit."""
        return {**self._fields, "rollouts": msgspec.to_builtins(self.rollouts)}

    @classmethod
    def restore(cls, members: Mapping[str, Any]) -> "Traffic":
        rollouts = msgspec.convert(members["rollouts"], dict[str, Rollout])
        return cls(**{**members, "rollouts": rollouts})


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
