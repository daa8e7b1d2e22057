"""Traffic: the share of each policy, and what a unit draws for good."""

import hashlib
from collections.abc import Mapping
from math import inf, log


class Traffic:
    """Shares of the requests that name no policy.

    shares    of each policy, beside the others', at least 0
    chances   the same as probabilities, in the order of the names, of the policies that have one
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.shares = dict(shares)
        total = sum(self.shares.values())
        chances = {name: share / total for name, share in sorted(self.shares.items())}
        self.chances = {name: chance for name, chance in chances.items() if chance}  # not a tiny 0

    def changed(self, shares: Mapping[str, float]) -> "Traffic":
        """Return the traffic in which some policies have other shares."""
        return Traffic({**self.shares, **shares})

    def chance(self, policy: str) -> float:
        """Return the chance of a policy."""
        return self.chances.get(policy, 0.0)


def winner(experiment: str, sticky: str, chances: Mapping[str, float]) -> str:
    """Return the policy of a unit, by weighted rendezvous hashing (Schindelhauer, Schomaker 2005):
    the least -ln(u) / share wins, u a hash of unit and policy. All that it needs is in the log.

    sticky   the unit's keyed hash, or the id of a decision without a unit

    Each policy wins its share of the units. If one share grows relative to the others, units move
    to its policy alone; a new policy takes its share, and no unit moves between the others. If
    several change at once, units move only to policies that grew more than their own, and in all
    more than the least possible number.
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
