"""A look at the rollouts and the loss budget of an experiment, by its log."""

from collections.abc import Mapping

import msgspec
import numpy as np

from service.analysis.checkpoints import NOWHERE, Checkpoints
from service.analysis.definitions import Definitions
from service.analysis.history import DecisionHistory, read_history
from service.analysis.loss_budget import BudgetRows, budget_reading
from service.analysis.outcomes import Outcomes, outcomes_of
from service.analysis.rollout_evidence import CHANCE_ROUNDING, RolloutEvidence, RolloutRows
from service.analysis.rollout_guardrails import drawn_visitors, segment_readings
from service.analysis.rollout_sides import sides_of
from service.analysis.sequences import Array
from service.log.reading import SILENT, Progress
from service.log.stores import Store
from service.state.guardrails import NO_VISITORS, DrawnVisitors, SegmentReading
from service.state.loss_budget import BudgetReading, LossBudget
from service.state.rollout import DAY_S, Rollout, RolloutReading

RECENT_S = 7 * DAY_S
"""Seconds of the log from which the traffic of a forecast is taken."""


class PolicyTraffic(msgspec.Struct, frozen=True):
    """Recent decisions of a policy that chance assigned, and what they earned.

    decisions    settled ones
    per_second   of them; 0: there are too few to tell
    reward       of a decision, its mean and its variance
    """

    decisions: int
    per_second: float
    reward: float
    variance: float


class RolloutLook(msgspec.Struct, frozen=True):
    """A rollout under way, as the log has it.

    position     where it was started
    difference   of the rewards, challenger less baseline
    low, high    its interval, which holds at all times at once
    visitors     of both policies, settled or not
    segments     those that the definition declares, by name
    """

    position: int
    reading: RolloutReading
    difference: float
    low: float
    high: float
    visitors: DrawnVisitors = NO_VISITORS
    segments: dict[str, SegmentReading] = {}


class RolloutLooks(msgspec.Struct, frozen=True):
    """A look at an experiment.

    rollouts   those under way, by challenger
    traffic    of each policy
    limits     least and largest reward of a decision
    budget     None: there is none
    """

    rollouts: dict[str, RolloutLook]
    traffic: dict[str, PolicyTraffic]
    limits: tuple[float, float]
    budget: BudgetReading | None


async def look_at_rollouts(
    store: Store,
    experiment: str,
    progress: Progress = SILENT,
    checkpoints: Checkpoints = NOWHERE,
) -> RolloutLooks:
    """Read the log of an experiment. Raises StoreError where it cannot be read."""
    history = await read_history(store, experiment, progress, checkpoints)
    definitions = history.definitions
    if definitions.traffic is None:
        return RolloutLooks({}, {}, (0.0, 1.0), None)
    outcomes = outcomes_of(history, named=True)
    limits = outcomes.limits(definitions.latest.reward)
    looks = {
        name: _look(rollout, outcomes, history, limits)
        for name, rollout in definitions.traffic.rollouts.items()
        if not rollout.ended
    }
    traffic = {name: _traffic(name, outcomes, definitions) for name in definitions.latest.serving}
    budget = definitions.traffic.budget
    reading = (
        None
        if budget is None
        else _budget(budget, outcomes, definitions, limits, history.told_until)
    )
    return RolloutLooks(looks, traffic, limits, reading)


def _look(
    rollout: Rollout,
    outcomes: Outcomes,
    history: DecisionHistory,
    limits: tuple[float, float],
) -> RolloutLook:
    definitions = history.definitions
    rules = definitions.latest.reward
    places = {name: place for place, name in enumerate(outcomes.names)}
    sides = sides_of(rollout, outcomes, places, definitions)
    rows = sides.rows
    evidence = RolloutEvidence(rollout.margin, rollout.least_share, limits, rules.default or 0.0)
    compared = RolloutRows(
        own=sides.own,
        baseline=sides.baseline,
        own_chance=sides.own_chance,
        baseline_chance=sides.baseline_chance,
        reward=outcomes.reward[rows],
        unit=outcomes.unit[rows],
    )
    figures = evidence.add(compared)
    at = outcomes.at[rows][sides.own | sides.baseline]
    newest = _newest(at[at >= rollout.stage_since], definitions, history.told_until)
    low, high = figures.interval
    return RolloutLook(
        rollout.position,
        figures.reading(newest),
        _last(figures.difference),
        _last(low),
        _last(high),
        drawn_visitors(history, rollout),
        segment_readings(rollout, history, compared, outcomes.segments[rows], limits),
    )


def _budget(
    budget: LossBudget,
    outcomes: Outcomes,
    definitions: Definitions,
    limits: tuple[float, float],
    told_until: float,  # unix seconds
) -> BudgetReading:
    """Look at decisions since the policies with shares, and these beside each other, are as they
    are: of a learner that was another one, nothing is known."""
    starts, serving = definitions.starts(), definitions.latest.serving
    begins = max(
        budget.began,
        definitions.mixed_since(budget.policy),
        *(starts[name].position for name, policy in serving.items() if policy.share),
    )
    rows = np.flatnonzero((outcomes.position >= begins) & (outcomes.chance < 1))
    found = BudgetRows(
        own=~outcomes.of({budget.policy})[rows],
        chance=1 - definitions.shares({budget.policy}, outcomes.position[rows]),
        reward=outcomes.reward[rows],
        unit=outcomes.unit[rows],
    )
    newest = _newest(outcomes.at[rows], definitions, told_until)
    default = definitions.latest.reward.default or 0.0
    return budget_reading(budget, found, limits, default, newest)


def _newest(at: Array, definitions: Definitions, told_until: float) -> float | None:
    """Return when the last of settled decisions was settled, in unix seconds; None: there is none.

    at           (n,) unix seconds of the decisions
    told_until   unix seconds
    """
    wait = definitions.latest.reward.wait_seconds
    return min(float(at[-1]) + wait, told_until) if len(at) else None


def _last(values: Array) -> float:
    return float(values[-1])


def _traffic(name: str, outcomes: Outcomes, definitions: Definitions) -> PolicyTraffic:
    """Return the traffic of a policy over the last RECENT_S. A request that names it has the chance
    1, as all requests have where it has the whole traffic."""
    share = definitions.shares({name}, outcomes.position)
    mine = outcomes.of({name}) & np.isclose(outcomes.chance, share, rtol=CHANCE_ROUNDING, atol=0.0)
    at, reward = outcomes.at[mine], outcomes.reward[mine]
    recent = at > at.max(initial=0.0) - RECENT_S
    at, reward = at[recent], reward[recent]
    seconds = float(at[-1] - at[0]) if len(at) > 1 else 0.0
    return PolicyTraffic(
        decisions=len(at),
        per_second=(len(at) - 1) / seconds if seconds else 0.0,
        reward=float(reward.mean()) if len(at) else 0.0,
        variance=float(reward.var()) if len(at) else 0.0,
    )


# -- over the wire of the worker -----------------------------------------------------------------


def encode_looks(looks: RolloutLooks) -> bytes:
    """Return looks as JSON, which has no NaN and no infinity: they are texts. `decode_looks` is the
    inverse."""
    return msgspec.json.encode(_with_texts(msgspec.to_builtins(looks)))


def decode_looks(content: bytes) -> RolloutLooks:
    return msgspec.json.decode(content, type=RolloutLooks, strict=False)


def _with_texts(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _with_texts(each) for name, each in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
