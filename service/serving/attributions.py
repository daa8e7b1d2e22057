"""Why a policy would choose as it does: each candidate's mean, what exploring adds to it, and the
features that moved the mean."""

from collections.abc import Collection
from typing import TypedDict

import numpy as np

from service.bandits import rules
from service.bandits.candidates import Candidates
from service.bandits.heads.averaged import AveragedHead
from service.bandits.version import Version
from service.features.declaration import INTERCEPT
from service.features.schema import Array
from service.state.learner import Learner

MOST_CANDIDATES = 20
"""The likeliest candidates, whose features are attributed beside those of the shown arms: that
takes a mean per feature."""

MOST_FEATURES = 6


class MovedFeature(TypedDict):
    feature: str
    contribution: float


class Opinion(TypedDict):
    member: str
    weight: float
    mean: float


class Attribution(TypedDict, total=False):
    """Of one candidate, under the active version.

    mean, width   of the posterior; width in units of the reward (of a logistic head: of the logit)
    bonus         what an optimistic rule adds to the mean
    draw_share    share of the posterior draws that it wins, before the floor of epsilon
                  (neither where the chance is a function of the means)
    moved         features by what the mean would lose without them, the largest first
    members       of an averaged head: what each regression says
    """

    mean: float
    width: float
    bonus: float
    draw_share: float
    moved: list[MovedFeature]
    members: list[Opinion]


def attributions(
    learner: Learner, context: Array, candidates: Candidates, shown: Collection[str] = ()
) -> list[Attribution]:
    """One for each candidate, empty where the policy has no means."""
    version, found = learner.active, [Attribution() for _ in candidates.ids]
    if version.head is None and not version.predicts:
        return found
    phi = version.encoder(learner.view.design(context[None], candidates.x))
    means = np.asarray(version.expected(phi, candidates.ids))  # (K,)
    if version.head is not None:
        for row, width in zip(found, version.head.width(phi, candidates.ids), strict=True):
            row["width"] = version.width_unit * float(width)
    if isinstance(version.head, AveragedHead):
        _add_opinions(found, version, version.head.opinions(phi, candidates.ids))
    scores = learner.score(context, candidates)
    shares = rules.probabilities(scores)
    for index, row in enumerate(found):
        row["mean"] = float(means[index])
        if len(scores.rows) > 1:
            row["draw_share"] = float(shares[index])
        elif scores.first is None:
            score = version.rewarded.restored(scores.rows[0, scores.of[index]])
            row["bonus"] = float(score - means[index])
    likeliest = np.lexsort((-means, -shares))[:MOST_CANDIDATES]
    for index in {*likeliest.tolist(), *(candidates.row_of[arm] for arm in shown)}:
        found[index]["moved"] = _moved(learner, context, candidates, index)
    return found


def _add_opinions(
    found: list[Attribution], version: Version, opinions: list[tuple[str, float, Array]]
) -> None:
    for row in found:
        row["members"] = []
    for name, weight, told in opinions:
        for row, mean in zip(found, version.rewarded.restored(told).tolist(), strict=True):
            row["members"].append({"member": name, "weight": weight, "mean": mean})


def _moved(
    learner: Learner, context: Array, candidates: Candidates, index: int
) -> list[MovedFeature]:
    """The mean less the mean with a feature's columns at 0 (a number: at its center). For a linear
    head that is the feature's sum of x_i w_i; for a net the change of its output."""
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
    means = version.expected(version.encoder(rows), [candidates.ids[index]] * len(rows))
    parts = means[-1] - means[:-1]
    order = np.argsort(-np.abs(parts), kind="stable")[:MOST_FEATURES].tolist()
    moved: list[MovedFeature] = []
    for place in order:
        name, columns = groups[place]
        label = _label(learner, name, columns, row)
        moved.append({"feature": label, "contribution": float(parts[place])})
    return moved


def _label(learner: Learner, name: str, columns: slice, row: Array) -> str:
    """`persona=cat_lover x category=toys` for a single column; of many columns the name."""
    present = columns.start + np.flatnonzero(row[columns])
    if name == INTERCEPT or len(present) != 1:
        return name
    return learner.view.column_name(int(present[0]))
