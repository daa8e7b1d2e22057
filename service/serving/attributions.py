"""Why a policy would choose as it does: of each candidate its mean, what exploring adds to it, and
the features that moved the mean."""

from collections.abc import Collection
from typing import Any

import numpy as np

from service.bandits.policies import rules
from service.bandits.policies.candidates import Candidates
from service.definition.experiment import INTERCEPT
from service.definition.features import Array
from service.state.learner import Learner

MOST_CANDIDATES = 20
"""So many, the likeliest, and what was shown, are told which features moved them; that takes a mean
a feature."""

MOST_FEATURES = 6


def reasons(
    learner: Learner, context: Array, candidates: Candidates, shown: Collection[str] = ()
) -> list[dict[str, Any]]:
    """A row for each candidate, under the active version.

    mean, width   of the posterior; width in units of the reward (of a logistic head: of the logit)
    bonus         what an optimistic rule adds to the mean
    draw_share    share of the posterior draws that it wins, before the floor of epsilon
    moved         features by what the mean would lose without them, the largest first
    """
    found: list[dict[str, Any]] = [{**own} for own in learner.explain(context, candidates)]
    if learner.active.head is None and not learner.active.predicts:
        return found
    scores = learner.score(context, candidates)
    means = _means(learner, context, candidates)
    chances = rules.probabilities(scores)
    drawn = len(scores.rows) > 1
    for index, row in enumerate(found):
        row["mean"] = float(means[index])
        if drawn:
            row["draw_share"] = float(chances[index])
        else:
            row["bonus"] = float(scores.rows[0, scores.of[index]] - means[index])
    likeliest = np.lexsort((-means, -chances))[:MOST_CANDIDATES]
    for index in {*likeliest.tolist(), *(candidates.row_of[arm] for arm in shown)}:
        found[index]["moved"] = _moved(learner, context, candidates, index)
    return found


def _means(learner: Learner, context: Array, candidates: Candidates) -> Array:  # (K,)
    version = learner.active
    phi = version.encoder(learner.view.design(context[None], candidates.x))
    return np.asarray(version.mean(phi, candidates.ids))


def _moved(
    learner: Learner, context: Array, candidates: Candidates, index: int
) -> list[dict[str, Any]]:
    """The mean less what it is with a feature's columns at 0 (a number: at its center). For a
    linear head that is exactly the feature's sum of x_i w_i; for a net the change of its output.
    """
    version, view = learner.active, learner.view
    row = view.design(context[None], candidates.x[[index]])[0]
    groups = [
        (name, columns)
        for name, columns in zip(view.names, view.groups, strict=True)
        if row[columns].any()
    ]
    if not groups:
        return []
    rows = np.repeat(row[None], len(groups) + 1, axis=0)
    for place, (_, columns) in enumerate(groups):
        rows[place, columns] = 0.0
    means = version.mean(version.encoder(rows), [candidates.ids[index]] * len(rows))
    parts = means[-1] - means[:-1]
    order = np.argsort(-np.abs(parts), kind="stable")[:MOST_FEATURES].tolist()
    found = []
    for place in order:
        name, columns = groups[place]
        says = _says(learner, name, columns, row)
        found.append({"feature": says, "contribution": float(parts[place])})
    return found


def _says(learner: Learner, name: str, columns: slice, row: Array) -> str:
    """What the feature is here: `persona=cat_lover x category=toys`; of many columns the name."""
    there = columns.start + np.flatnonzero(row[columns])
    if name == INTERCEPT or len(there) != 1:
        return name
    return learner.view.column_name(int(there[0]))
