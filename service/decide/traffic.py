"""What a unit draws for good: the policy that decides, where its request names none, and the rules
that are off for it."""

import hashlib
from collections.abc import Mapping
from math import inf, log

from service.errors import NotFound
from service.naming import not_found, quoted
from service.state.fold import State
from service.state.learner import Learner

RULE_DRAW = b"rule"
"""What tells the draw of a rule from that of a policy of its name."""


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
        time = -log(_uniform(key, name, sticky)) / chance
        if time < least:
            best, least = name, time
    return best


def rules_off(state: State, sticky: str) -> tuple[str, ...]:
    """Return the names of the rules that are off for a unit, in the order of the file: each that is
    measured for a share `measure` of the units, whatever others are. A larger share leaves rules
    off for the same units, and more. sticky: as `winner` takes it."""
    rules = state.rulebook
    if not rules.measured:
        return ()
    key, share = state.name.encode(), rules.measure
    return tuple(
        [name for name in rules.measured if _uniform(key, name, sticky, RULE_DRAW) < share]
    )


def _uniform(key: bytes, name: str, sticky: str, draw: bytes = b"") -> float:
    """Return a number between 0 and 1, the same whenever it is asked for. draw: what tells draws of
    one name apart."""
    text = f"{name}\0{sticky}".encode()
    digest = hashlib.blake2b(text, digest_size=8, key=key, person=draw).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64
