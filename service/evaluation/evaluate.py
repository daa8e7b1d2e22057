"""Evaluate policies on the log of one experiment: read, walk, estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from service.errors import Invalid, NotFound
from service.evaluation.columns import Columns
from service.evaluation.estimators import Estimate, direct, estimate
from service.evaluation.intervals import Interval, adjusted, grouped
from service.evaluation.refusals import LEAST_EFFECTIVE, MOST_UNSUPPORTED, Weights, refusal
from service.evaluation.rows import Say, Selection, choose
from service.evaluation.targets import GUESS, Added, with_policies
from service.evaluation.walk import Walk
from service.log.follower import Follower
from service.log.reading import reading
from service.log.stores import Store
from service.observability.telemetry import Telemetry

NOTHING = None, None
"""What a log earned that tells nothing of it."""


@dataclass(frozen=True)
class Request:
    """What to evaluate.

    policies      live ones; None: all, but only where nothing is defined
    definitions   of policies that never ran, by name
    freeze        as they stood before the first of the decisions; else each as it learned
    own           weights by the propensity of the assigned policy alone
    first_slot    of a slate, what its first slot earns; else slates are refused
    """

    experiment: str | None = None
    policies: Sequence[str] | None = None
    definitions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    freeze: bool = False
    own: bool = False
    first_slot: bool = False
    confidence: float = 0.95
    least_effective: float = LEAST_EFFECTIVE
    most_unsupported: float = MOST_UNSUPPORTED


@dataclass(frozen=True)
class PolicyValue:
    """Of one policy.

    refused       why there is no estimate; None where there is one
    estimates     by estimator
    direct        by the guess alone (DM), without an interval: its bias is not known
    otherwise     decisions of which it would have had other candidates
    unsupported   share of what it would show that the log could not, and by arm
    """

    policy: str
    never_ran: bool
    refused: str | None
    estimates: Mapping[str, Estimate]
    direct: float | None
    weights: Weights
    otherwise: int
    unsupported: float
    unsupported_arms: Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """Of one experiment.

    first_slot  values are of the first slot of each decision, not of the decision
    logged      what the log itself earned a decision, and its interval; None where slates are
                refused
    slates      decisions of several arms
    shortlists  decisions of which the policy chose the candidates itself
    erased      events that policies could not learn from any more
    left_out    decisions that were asked for and not evaluated, by reason
    """

    experiment: str
    decisions: int
    since: float | None
    until: float | None
    frozen: bool
    first_slot: bool
    confidence: float
    logged: float | None
    logged_interval: Interval | None
    logged_by: Mapping[str, int]
    slates: int
    shortlists: int
    untold: int
    erased: int
    left_out: Mapping[str, int]
    policies: Sequence[PolicyValue]


async def evaluate_store(url: str, request: Request, say: Say | None = None) -> Evaluation:
    """Evaluate on a store, which is read and never written. Raises NotFound, Invalid,
    ConfigurationError, or StoreError where the log cannot be read."""
    async with reading(url) as store:
        return await evaluate(store, request, say)


async def evaluate(store: Store, request: Request, say: Say | None = None) -> Evaluation:
    name = await _experiment(store, request.experiment)
    policies = await _policies(store, name, request)
    selection = request.selection
    if request.freeze and selection.since is None and selection.newest is None:
        # They learn from the first half, and are evaluated on the other.
        chosen = await choose(store, name, selection, say)
        selection = replace(selection, newest=max(len(chosen) // 2, 1))
    chosen = await choose(store, name, selection, say)
    own = request.own or selection.logged_by is not None
    added = Added(request.definitions)
    walk = Walk(store, name, policies, added, freeze=request.freeze, own=own)
    columns = Columns(policies)
    async for visit in walk.visits(chosen, say):
        columns.add(visit, float(chosen.rewards[visit.index]))
    left = chosen.left_out + walk.left_out
    low, high = walk.range
    rewards = columns.earned
    if len(rewards):  # a sum of contributions, or what an older definition allowed
        low, high = min(low, float(rewards.min())), max(high, float(rewards.max()))
    values = [_value(columns, policy, (low, high), request) for policy in policies]
    first, last = columns.times if len(columns) else (None, None)
    refused = columns.slates > 0 and not request.first_slot
    counted = len(columns) > 0 and not refused
    mean, interval = _earned(columns, policies[0], (low, high), request) if counted else NOTHING
    return Evaluation(
        experiment=name,
        decisions=len(columns),
        since=first,
        until=last,
        frozen=request.freeze,
        first_slot=request.first_slot,
        confidence=request.confidence,
        logged=mean,
        logged_interval=interval,
        logged_by=dict(columns.logged_by.most_common()),
        slates=columns.slates,
        shortlists=columns.shortlists.total(),
        untold=columns.untold,
        erased=len(chosen.erased),
        left_out=dict(left.most_common()),
        policies=values,
    )


async def _experiment(store: Store, name: str | None) -> str:
    names = await store.experiments()
    if name is None:
        if len(names) != 1:
            raise Invalid(
                f"name the experiment, one of: {', '.join(names)}" if names else "there is none",
                path="experiment",
            )
        return names[0]
    if name not in names:
        raise NotFound(f"the store has no experiment {name}", path="experiment")
    return name


async def _policies(store: Store, name: str, request: Request) -> list[str]:
    """Those to evaluate, checked against the experiment as it stands before the long work."""
    state = await Follower(store, Telemetry()).discover(name)
    if state.deleted:
        raise NotFound("the experiment was deleted", path="experiment")
    asked = request.policies
    if asked is None:
        asked = [] if request.definitions else list(state.learners)
    if unknown := [policy for policy in asked if policy not in state.learners]:
        raise NotFound(f"the experiment has no policy {unknown[0]}", path="policies")
    if both := [policy for policy in request.definitions if policy in state.learners]:
        raise Invalid(
            f"the experiment has a policy {both[0]} already: give the definition another name",
            path="definition",
        )
    if GUESS in {*state.learners, *request.definitions}:
        raise Invalid(f"a policy cannot be evaluated beside one named {GUESS}", path="policies")
    check_definitions(state.definition.model_dump(mode="json"), request.definitions)
    found = list(dict.fromkeys([*asked, *request.definitions]))
    if not found:
        raise Invalid("name at least one policy, or a definition", path="policies")
    return found


def check_definitions(
    definition: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raises ConfigurationError where policies are wrong, or do not fit the experiment."""
    with_policies(definition, {**extra, GUESS: {"kind": "greedy", "features": ["intercept"]}})


def _earned(
    columns: Columns, policy: str, range_: tuple[float, float], request: Request
) -> tuple[float, Interval]:
    log = columns.logged(policy, range_)
    ones = np.ones_like(log.reward)
    top, bottom = grouped(log.group, log.reward, ones)
    interval = adjusted(top, bottom, bottom, range_, request.confidence)
    return float(log.reward.mean()), interval.within(*range_)


def _value(
    columns: Columns, policy: str, range_: tuple[float, float], request: Request
) -> PolicyValue:
    mass, by_arm = columns.unsupported(policy)
    log = columns.logged(policy, range_)
    weights = Weights.of(log)
    refused = refusal(
        columns,
        policy,
        weights,
        first_slot=request.first_slot,
        least_effective=request.least_effective,
        most_unsupported=request.most_unsupported,
    )
    estimates = {} if refused else estimate(log, request.confidence)
    return PolicyValue(
        policy=policy,
        never_ran=policy in request.definitions,
        refused=refused,
        estimates={
            name: replace(
                each,
                interval=each.interval.within(*range_),
                bootstrap=each.bootstrap.within(*range_),
            )
            for name, each in estimates.items()
        },
        direct=None if refused else direct(log).value,
        weights=weights,
        otherwise=columns.otherwise(policy),
        unsupported=mass,
        unsupported_arms=by_arm,
    )
