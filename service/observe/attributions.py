"""Why a policy would choose as it does: each candidate's mean, what exploring adds to it, and the
features that moved the mean."""

from collections.abc import Collection, Iterable

import numpy as np
from pydantic import BaseModel, Field

from service.bandits import rules
from service.bandits.candidates import Candidates
from service.bandits.heads import Effects
from service.bandits.version import Version
from service.features.declaration import CROSS, INTERCEPT
from service.features.schema import Array
from service.state.decider import Decider

MOST_CANDIDATES = 20
"""Likeliest candidates whose features are attributed beside those of the shown arms: that takes a
mean per feature."""

MOST_FEATURES = 6


class Moved(BaseModel):
    feature: str | None = Field(
        description="Name, with the value of a category; null: all smaller ones together."
    )
    contribution: float = Field(
        description="What the mean would lose without it. Of a linear head and of `auto` these add "
        "up to the mean less what it starts at, which is the same for all arms."
    )


class MemberAnswer(BaseModel):
    member: str = Field(description="A regression of `auto`.")
    weight: float = Field(description="Weight by how well it predicted the latest rewards.")
    mean: float


class CandidateAnswer(BaseModel):
    arm: str
    probability: float | None = Field(description="Probability; null: it was imported without.")
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
    decider: Decider, context: Array, candidates: Candidates, shown: Collection[str] = ()
) -> list[CandidateAnswer]:
    """Explain each candidate; empty where the policy has no means. Raises NotPositiveDefinite or
    FloatingPointError where it has no finite scores."""
    version, found = decider.version, unexplained(candidates.ids)
    if version.head is None and not version.predicts:
        return found
    phi = version.encoder(decider.view.design(context[None], candidates.x))
    means = np.asarray(version.expected(phi, candidates.ids))  # (K,)
    scores = rules.expect_finite(decider.score(context, candidates))
    if version.head is not None:
        for row, width in zip(found, version.head.width(phi, candidates.ids), strict=True):
            row.width = version.width_unit * float(width)
        if opinions := version.head.opinions(phi, candidates.ids):
            _add_opinions(found, version, opinions)
    shares = rules.probabilities(scores)
    for index, row in enumerate(found):
        row.mean = float(means[index])
        if len(scores.rows) > 1:
            row.draw_share = float(shares[index])
        elif scores.formula is None:
            score = version.rewarded.restored(scores.rows[0, scores.of[index]])
            row.bonus = float(score - means[index])
    likeliest = np.lexsort((-means, -shares))[:MOST_CANDIDATES]
    for index in {*likeliest.tolist(), *(candidates.row_of[arm] for arm in shown)}:
        found[index].moved = _moved(decider, context, candidates, index)
    return found


def _add_opinions(
    found: list[CandidateAnswer], version: Version, opinions: list[tuple[str, float, Array]]
) -> None:
    for index, row in enumerate(found):
        row.members = [
            MemberAnswer(member=name, weight=weight, mean=version.rewarded.restored(means[index]))
            for name, weight, means in opinions
        ]


def _moved(decider: Decider, context: Array, candidates: Candidates, index: int) -> list[Moved]:
    """Return what moved the mean, the largest first. Of a linear head the parts add up to the mean
    less the level that all arms start at, with the smallest ones as one; of a net they do not."""
    row = decider.view.design(context[None], candidates.x[[index]])[0]
    head, arm = decider.version.head, candidates.ids[index]
    effects = None if head is None else head.effects(row, arm)
    parts = _losses(decider, row, arm) if effects is None else _named(decider, effects, row)
    parts.sort(key=lambda part: -abs(part.contribution))
    found, others = parts[:MOST_FEATURES], parts[MOST_FEATURES:]
    if others and decider.policy.net is None:
        total = sum(part.contribution for part in others)
        found.append(Moved(feature=None, contribution=total))
    return found


def _groups(decider: Decider, row: Array) -> list[tuple[str, slice]]:
    """Name and columns of each feature that is not 0 in a row."""
    view = decider.view
    return [
        (_label(decider, (name, columns), row), columns)
        for name, columns in zip(view.names, view.groups, strict=True)
        if row[columns].any()
    ]


def _losses(decider: Decider, row: Array, arm: str) -> list[Moved]:
    """Return the mean less the mean with a feature's columns at 0 (a number: at its center). For a
    linear head that is the feature's sum of x_i w_i; for a net the change of its output."""
    version, groups = decider.version, _groups(decider, row)
    if not groups:
        return []
    rows = np.repeat(row[None], len(groups) + 1, axis=0)
    for place, (_, columns) in enumerate(groups):
        rows[place, columns] = 0.0
    means = version.expected(version.encoder(rows), [arm] * len(rows))
    return [
        Moved(feature=name, contribution=means[-1] - mean)
        for (name, _), mean in zip(groups, means[:-1], strict=True)
    ]


def _named(decider: Decider, found: Effects, row: Array) -> list[Moved]:
    """Return the parts of an averaged mean: what is the arm's whatever the features, each feature,
    and each cross of a feature of the context with one of the arm, under its own name."""
    groups = [each for each in _groups(decider, row) if each[0] != INTERCEPT]
    sums = {INTERCEPT: found.constant}
    sums |= {name: float(found.columns[columns].sum()) for name, columns in groups}
    of_context, of_arm = (
        [(name, (columns.start <= side) & (side < columns.stop)) for name, columns in groups]
        for side in found.sides
    )
    for name, rows in of_context:
        for other, columns in of_arm:
            if rows.any() and columns.any():
                sums[name + CROSS + other] = float(found.crosses[rows][:, columns].sum())
    span = decider.version.rewarded.span
    return [Moved(feature=name, contribution=span * part) for name, part in sums.items()]


def _label(decider: Decider, group: tuple[str, slice], row: Array) -> str:
    """`persona=cat_lover x category=toys` for a single column; of many columns the name."""
    name, columns = group
    present = columns.start + np.flatnonzero(row[columns])
    if name == INTERCEPT or len(present) != 1:
        return name
    return decider.view.column_name(int(present[0]))
