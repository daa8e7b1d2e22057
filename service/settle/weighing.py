"""The weights by which heads learn the misses of a slate."""

from collections.abc import Sequence

from service.settle.marks import MarkedSettlement, ShownReward
from service.state.examination import seen_chance
from service.state.fold import State


def weigh(state: State, settlement: MarkedSettlement) -> None:
    """Weigh the misses of a settlement by the chances that the user saw the arms, as far as the
    state knows them now; the log holds the weights."""
    rules = settlement.rules
    if rules.examination is None:
        return
    learned = rules.examination == "position"
    arms = [
        arm for arm in settlement.arms if arm.slot and (learned or state.examined(arm.slot) < 1)
    ]
    for arm, predicted in zip(arms, _predicted(state, settlement, arms), strict=True):
        total = arm.total(rules)
        arm.weight = 1.0
        if predicted is not None and learned:
            arm.taught, arm.predicted = arm.slot, predicted
        if total is not None and rules.is_miss(total):
            known = arm.was is not None and rules.is_miss(arm.was)
            seen = seen_chance(state.examined(arm.slot), predicted or 0.0)
            arm.weight = arm.weighed if known else seen


def _predicted(
    state: State, settlement: MarkedSettlement, arms: list[ShownReward]
) -> Sequence[float | None]:
    """Predict the reward of each arm, scaled to [0, 1], by the policy that chose it; None where
    that is not possible."""
    unknown = [None] * len(arms)
    learner = state.learners.get(settlement.policy)
    if learner is None or not arms or settlement.schema_version != state.schema_version:
        return unknown
    shown = [arm.shown for arm in arms]
    means = learner.predicted(
        [one.arm for one in shown], [one.row for one in shown], [one.inline for one in shown]
    )
    scaled = settlement.rules.scaled
    return [None if mean is None else min(max(scaled(mean), 0.0), 1.0) for mean in means]
