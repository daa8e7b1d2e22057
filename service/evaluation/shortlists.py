"""Decisions whose candidates depend on who chose them: whom they can tell of.

A policy with `retrieve` scores a shortlist that its own head finds in the catalogue. Propensities
hold among its arms alone, and another policy would have shown others: no weight corrects for that.
"""

from collections.abc import Mapping

from service.serving.rederive import is_imported
from service.state.events import Decision
from service.state.fold import State
from service.state.learner import Learner


def has_shortlist(state: State, decision: Decision) -> bool:
    """Whether the policy chose the candidates itself. A row of an older schema does not say whether
    the request named them: where the policy had `retrieve`, they count as a shortlist."""
    if not decision.untold:
        return decision.shortlist is not None
    learner = state.learners.get(decision.policy)
    return (
        learner is not None
        and learner.policy.retrieve is not None
        and not decision.inline
        and not is_imported(decision)
        and len(decision.arms) < len(state.rows)
    )


def is_catalogue(state: State, decision: Decision) -> bool:
    """Whether the candidates are the whole catalogue, as where the request names none."""
    return not decision.inline and len(decision.arms) == len(state.rows)


def would_choose(state: State, decision: Decision, learner: Learner) -> bool:
    """Whether a policy would have made a shortlist where the logged one looked at all arms."""
    retrieves = learner.policy.retrieve
    return retrieves is not None and len(state.rows) > retrieves and is_catalogue(state, decision)


def chosen_otherwise(
    state: State, decision: Decision, learners: Mapping[str, Learner]
) -> frozenset[str]:
    """Names of those that would have had other candidates: the decision tells nothing of them.

    The learner that made it, as it stood then, had these.
    """
    shortlist, own = has_shortlist(state, decision), state.learners.get(decision.policy)
    return frozenset(
        name
        for name, learner in learners.items()
        if learner is not own and (shortlist or would_choose(state, decision, learner))
    )
