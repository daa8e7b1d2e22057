"""What the log says of a rollout's guardrails: its visitors against the shares that were drawn, and
the rewards in segments of visitors."""

import numpy as np

from service.analysis.history import IS_IMPORTED, DecisionHistory
from service.analysis.rollout_evidence import STOP_ALPHA, RolloutEvidence, RolloutRows
from service.analysis.rollout_sides import sides_of
from service.analysis.sequences import IntegerArray
from service.bandits.boundary import radius
from service.state.guardrails import NO_VISITORS, DrawnVisitors, SegmentReading
from service.state.rollout import Rollout

SAMPLE_RATIO_ALPHA = 0.001
"""Chance that the visitors of a rollout of which no row is missing ever seem not to fit."""


def drawn_visitors(history: DecisionHistory, rollout: Rollout) -> DrawnVisitors:
    """Count visitors by the policy of their first decision since a rollout began, whatever came of
    it, of those that one of its two policies decided.

    Given one of the two, a visitor is the challenger's with the chance c of the stage. So 1 - c, or
    -c, has the expectation 0, and the sum of the variances c (1 - c) bounds how far off their sum
    is (`service.bandits.boundary`).
    """
    rows = history.decisions
    sides = sides_of(rollout, rows, history.names, history.definitions)
    known = (rows.position >= history.begins) & ~rows.has(IS_IMPORTED)
    found = np.flatnonzero((sides.own | sides.baseline) & known[sides.rows])
    first = found[np.unique(rows.unit[sides.rows[found]], return_index=True)[1]]
    if not len(first):
        return NO_VISITORS
    own, baseline = sides.own_chance[first], sides.baseline_chance[first]
    chance = own / (own + baseline)
    bound = radius((chance * (1 - chance)).sum(), 1.0, SAMPLE_RATIO_ALPHA)
    return DrawnVisitors(
        count=len(first),
        own=int(sides.own[first].sum()),
        expected=float(chance.sum()),
        bound=float(bound),
    )


def segment_readings(
    rollout: Rollout,
    history: DecisionHistory,
    rows: RolloutRows,
    segments: IntegerArray,  # (n,) those of each row, a bit each, as the history has them
    limits: tuple[float, float],  # least and largest reward of a decision
) -> dict[str, SegmentReading]:
    """Return what settled decisions say of a challenger in each segment. The level of a stop is
    divided among the segments."""
    definition = history.definitions.latest
    declared = definition.rollout.guardrails.segments
    if declared is None or not declared.where:
        return {}
    margin = rollout.margin if declared.margin is None else declared.margin
    alpha, first = STOP_ALPHA / len(declared.where), definition.reward.default or 0.0
    found = dict[str, SegmentReading]()
    for name in declared.where:
        bit = 1 << history.segments[name] if name in history.segments else 0
        inside = (segments & bit) != 0
        evidence = RolloutEvidence(margin, rollout.least_share, limits, first, alpha)
        figures = evidence.add(RolloutRows(*(column[inside] for column in rows)))
        reading = figures.reading(None)
        found[name] = SegmentReading(
            own=reading.own,
            baseline=reading.baseline,
            value=reading.value,
            baseline_value=reading.baseline_value,
            upper=reading.upper,
            evidence=reading.evidence,
            fails=bool(figures.fails[-1]),
        )
    return found
