"""Evaluate policies on the log of one experiment: read, walk, estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np

from service.errors import ConfigurationError, Invalid, NotFound
from service.evaluation.columns import Columns
from service.evaluation.estimators import Estimate, Logged, effective_size, estimate
from service.evaluation.intervals import Interval, adjusted, grouped, standard_error
from service.evaluation.rows import Say, Selection, choose
from service.evaluation.targets import GUESS, Added, with_policies
from service.evaluation.walk import Walk
from service.follower import Follower
from service.stores import Store, open_store
from service.telemetry import Telemetry

LEAST_EFFECTIVE = 50.0
"""Decisions that an estimate has to rest on, in effect: below, 95 percent intervals of weighted
means were seen to cover 70 percent."""

MOST_UNSUPPORTED = 0.01
"""The share of what a policy would show that the log may be unable to show: it makes a bias of at
most as much of the range of rewards."""

MEAN_WEIGHT_ERRORS = 5.0
"""Weights have the mean 1 where the log supports the policy; so many standard errors below it do
not come by chance."""

SHOWN_ARMS = 5
"""Arms without support that are named."""


@dataclass(frozen=True)
class Request:
    """What to evaluate.

    policies      live ones; None: all, but only where nothing is defined
    definitions   of policies that never ran, by name
    freeze        as they stood before the first of the decisions; else each as it learned
    own           weights by the propensity of the assigned policy alone
    """

    experiment: str | None = None
    policies: Sequence[str] | None = None
    definitions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    freeze: bool = False
    own: bool = False
    confidence: float = 0.95
    least_effective: float = LEAST_EFFECTIVE
    most_unsupported: float = MOST_UNSUPPORTED


@dataclass(frozen=True)
class PolicyValue:
    """Of one policy.

    refused       why there is no estimate; None where there is one
    estimates     by estimator
    effective     effective sample size     largest   weight    mean   weight
    unsupported   share of what it would show that the log could not, and by arm
    """

    policy: str
    never_ran: bool
    refused: str | None
    estimates: Mapping[str, Estimate]
    effective: float
    largest: float
    mean: float
    unsupported: float
    unsupported_arms: Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """Of one experiment.

    logged     what the log itself earned a decision, and its interval
    erased     events that policies could not learn from any more
    left_out   decisions that were asked for and not evaluated, by reason
    """

    experiment: str
    decisions: int
    since: float | None
    until: float | None
    frozen: bool
    confidence: float
    logged: float | None
    logged_interval: Interval | None
    logged_by: Mapping[str, int]
    slates: int
    untold: int
    erased: int
    left_out: Mapping[str, int]
    policies: Sequence[PolicyValue]


async def evaluate_store(url: str, request: Request, say: Say | None = None) -> Evaluation:
    """Evaluate on a store, which is read and never written. Raises NotFound, Invalid,
    ConfigurationError, or StoreError where the log cannot be read."""
    if url.startswith("memory"):
        raise ConfigurationError("FORAGE_STORE: no other process can read a memory:// store")
    store = open_store(url, readonly=True)
    await store.open()
    try:
        return await evaluate(store, request, say)
    finally:
        await store.close()


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
    mean, interval = _earned(columns, policies[0], (low, high), request)
    return Evaluation(
        experiment=name,
        decisions=len(columns),
        since=first,
        until=last,
        frozen=request.freeze,
        confidence=request.confidence,
        logged=mean,
        logged_interval=interval,
        logged_by=dict(columns.logged_by.most_common()),
        slates=columns.slates,
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
) -> tuple[float | None, Interval | None]:
    if not len(columns):
        return None, None
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
    weight = log.weight
    [by_group] = grouped(log.group, weight)
    effective = min(effective_size(weight), effective_size(by_group))
    mean = float(weight.mean()) if len(weight) else 0.0
    refused = _refusal(log, mass, by_arm, effective, mean, request)
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
        effective=effective,
        largest=float(weight.max()) if len(weight) else 0.0,
        mean=mean,
        unsupported=mass,
        unsupported_arms=by_arm,
    )


def _refusal(
    log: Logged,
    mass: float,
    by_arm: Mapping[str, float],
    effective: float,
    mean: float,
    request: Request,
) -> str | None:
    """Why the log cannot tell, in words; None where it can."""
    if not len(log.reward):
        return "there is no decision to evaluate on"
    if mass > request.most_unsupported:
        arms = [f"{arm} ({share:.1%})" for arm, share in list(by_arm.items())[:SHOWN_ARMS]]
        more = f" and {len(by_arm) - SHOWN_ARMS} more" if len(by_arm) > SHOWN_ARMS else ""
        return (
            f"{mass:.1%} of what it would show had no chance of being shown in the log: "
            f"{', '.join(arms)}{more}"
        )
    if effective < request.least_effective:
        return (
            f"the log tells as much of it as {effective:.0f} decisions of its own would; at least "
            f"{request.least_effective:.0f} are needed (largest weight {log.weight.max():,.0f})"
        )
    top, bottom = grouped(log.group, log.weight, np.ones_like(log.weight))
    error = standard_error(top, bottom)
    if isfinite(error) and mean < 1 - request.most_unsupported - MEAN_WEIGHT_ERRORS * error:
        return (
            f"weights have the mean {mean:.3f}, which is 1 where the log holds all that a policy "
            "would show: it would show much that was never shown"
        )
    return None
