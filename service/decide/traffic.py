"""The policy that decides a request, and the rules that are off for its unit."""

from service.errors import NotFound
from service.naming import not_found, quoted
from service.state.decider import Decider
from service.state.fold import State
from service.state.traffic import uniform

RULE_DRAW = b"rule"
"""What tells the draw of a rule from that of a policy of its name."""


def assign(state: State, policy: str | None, sticky: str) -> tuple[Decider, float]:
    """Return what decides a request, and the probability of its policy. Raises NotFound.

    policy   that the request names, if it does
    sticky   as `winner` takes it
    """
    if policy is not None:
        if policy not in state.learners:
            raise no_policy(state, policy)
        return state.decider(policy, sticky), 1.0
    name = state.traffic.assign(state.name, sticky)
    return state.decider(name, sticky), state.traffic.chances[name]


def no_policy(state: State, name: str, path: str = "policy") -> NotFound:
    """Return the error for a policy that an experiment does not have, or that decides nothing."""
    if not state.deleted and name in state.definition.policies:
        return NotFound(f"policy {quoted(name)} is a shadow, which decides nothing", path=path)
    return not_found("policy", name, sorted(state.learners), path)


def rules_off(state: State, sticky: str) -> tuple[str, ...]:
    """Return the names of the rules that are off for a unit, in the order of the file: each that is
    measured for a share `measure` of the units, whatever others are. A larger share leaves rules
    off for the same units, and more. sticky: as `winner` takes it."""
    rules = state.rulebook
    if not rules.measured:
        return ()
    key, share = state.name.encode(), rules.measure
    return tuple([name for name in rules.measured if uniform(key, name, sticky, RULE_DRAW) < share])
