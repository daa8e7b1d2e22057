"""Which policy decides: the one that a request names, or one by its share of the traffic."""

import hashlib
from collections.abc import Mapping
from math import inf, log

from service.errors import NotFound
from service.naming import not_found, quoted
from service.state.fold import State
from service.state.learner import Learner


def assign(state: State, policy: str | None, sticky: str) -> tuple[Learner, float]:
    """Return the learner of a request and the probability of its assignment. Raises NotFound.

    policy   that the request names, if it does
    sticky   as `winner` takes it
    """
    if policy is not None:
        learner = state.learners.get(policy)
        if learner is None:
            raise no_policy(state, policy)
        return learner, 1.0
    chances = chances_of(state.learners)
    name = winner(state.name, sticky, chances)
    return state.learners[name], chances[name]


def chances_of(learners: Mapping[str, Learner]) -> dict[str, float]:
    """Normalised shares, in the order of the names, of the policies that have one."""
    shares = {name: learner.settings.share for name, learner in sorted(learners.items())}
    total = sum(shares.values())
    chances = {name: share / total for name, share in shares.items()}
    return {name: chance for name, chance in chances.items() if chance}  # a tiny one comes to 0


def no_policy(state: State, name: str, path: str = "policy") -> NotFound:
    """Return the error for a policy that an experiment does not have, or that decides nothing."""
    if not state.deleted and name in state.definition.policies:
        return NotFound(f"policy {quoted(name)} is a shadow, which decides nothing", path=path)
    return not_found("policy", name, sorted(state.learners), path)


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
        digest = hashlib.blake2b(f"{name}\0{sticky}".encode(), digest_size=8, key=key).digest()
        time = -log((int.from_bytes(digest, "big") + 0.5) / 2**64) / chance
        if time < least:
            best, least = name, time
    return best
