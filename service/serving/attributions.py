"""Why a policy would choose as it does: each candidate's mean, what exploring adds to it, and the
features that moved the mean."""

from collections.abc import Collection, Iterable

import numpy as np
from pydantic import BaseModel, Field

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


class Moved(BaseModel):
    feature: str = Field(description="With its value, where it is a category.")
    contribution: float = Field(
        description="What the mean would lose without it; of a linear head x_i w_i, summed up."
    )


class MemberAnswer(BaseModel):
    member: str = Field(description="A regression of `auto`.")
    weight: float = Field(description="By how well it predicted the latest rewards.")
    mean: float


class CandidateAnswer(BaseModel):
    arm: str
    probability: float | None = Field(description="null: it was imported without.")
    mean: float | None = Field(description="Under the head as it is now.")
    width: float | None = Field(description="Posterior standard deviation, likewise.")
    bonus: float | None = Field(None, description="What an optimistic rule adds to the mean.")
    draw_share: float | None = Field(
        None, description="Share of the posterior draws that it wins, before the floor of epsilon."
    )
    moved: list[Moved] | None = Field(
        None,
        description="Features that moved its mean, the largest first; null: it is none of the "
        "likeliest candidates, or nothing is predicted.",
    )
    members: list[MemberAnswer] | None = Field(
        None, description="What each regression of `auto` says; null: another kind."
    )
    untried: bool = Field(False, description="It was tried for its own sake (min_tries).")


def unexplained(arms: Iterable[str]) -> list[CandidateAnswer]:
    return [CandidateAnswer(arm=arm, probability=None, mean=None, width=None) for arm in arms]


def attributions(
    learner: Learner, context: Array, candidates: Candidates, shown: Collection[str] = ()
) -> list[CandidateAnswer]:
    """One for each candidate, empty where the policy has no means."""
    version, found = learner.active, unexplained(candidates.ids)
    if version.head is None and not version.predicts:
        return found
    phi = version.encoder(learner.view.design(context[None], candidates.x))
    means = np.asarray(version.expected(phi, candidates.ids))  # (K,)
    if version.head is not None:
        for row, width in zip(found, version.head.width(phi, candidates.ids), strict=True):
            row.width = version.width_unit * float(width)
    if isinstance(version.head, AveragedHead):
        _add_opinions(found, version, version.head.opinions(phi, candidates.ids))
    scores = learner.score(context, candidates)
    shares = rules.probabilities(scores)
    for index, row in enumerate(found):
        row.mean = float(means[index])
        if len(scores.rows) > 1:
            row.draw_share = float(shares[index])
        elif scores.first is None:
            score = version.rewarded.restored(scores.rows[0, scores.of[index]])
            row.bonus = float(score - means[index])
    likeliest = np.lexsort((-means, -shares))[:MOST_CANDIDATES]
    for index in {*likeliest.tolist(), *(candidates.row_of[arm] for arm in shown)}:
        found[index].moved = _moved(learner, context, candidates, index)
    return found


def _add_opinions(
    found: list[CandidateAnswer], version: Version, opinions: list[tuple[str, float, Array]]
) -> None:
    for index, row in enumerate(found):
        row.members = [
            MemberAnswer(member=name, weight=weight, mean=version.rewarded.restored(means[index]))
            for name, weight, means in opinions
        ]


def _moved(learner: Learner, context: Array, candidates: Candidates, index: int) -> list[Moved]:
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
    order = np.argsort(-np.abs(parts), kind="stable")[:MOST_FEATURES]
    return [
        Moved(feature=_label(learner, groups[place], row), contribution=parts[place])
        for place in order
    ]


def _label(learner: Learner, group: tuple[str, slice], row: Array) -> str:
    """`persona=cat_lover x category=toys` for a single column; of many columns the name."""
    name, columns = group
    present = columns.start + np.flatnonzero(row[columns])
    if name == INTERCEPT or len(present) != 1:
        return name
    return learner.view.column_name(int(present[0]))
