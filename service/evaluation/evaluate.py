"""Evaluate policies on the log of one experiment: read, walk, estimate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.errors import Invalid, NotFound
from service.evaluation.columns import Columns
from service.evaluation.estimators import Estimate, direct, estimate, over_logged
from service.evaluation.intervals import Interval, adjusted, grouped
from service.evaluation.refusals import WeightSummary, refusal, summarize
from service.evaluation.request import EvaluationRequest
from service.evaluation.rows import choose
from service.evaluation.targets import GUESS, ExtraPolicies, with_policies
from service.evaluation.walk import Walk
from service.log.reading import SILENT, Progress, Say, reading, single_experiment
from service.log.replicas import Replicas
from service.log.stores import Store
from service.naming import quoted
from service.observability.telemetry import Telemetry
from service.serving.traffic import no_policy

Range = tuple[float, float]


@dataclass(frozen=True)
class PolicyValue:
    """Of one policy.

    learned_from       rewards that it had learned from at the last decision; None: it never learns
    refused            why there is no estimate; None where there is one
    other_candidates   decisions of which it would have had other candidates
    unsupported        share of what it would show that the log could not, and by arm
    estimates          by estimator
    direct_method      by the guess alone, without an interval: its bias is not known
    over_logged        by how much its doubly robust estimate exceeds what the log earned, and the
                       interval of that
    """

    policy: str
    never_ran: bool
    learned_from: int | None
    refused: str | None
    weights: WeightSummary
    other_candidates: int
    unsupported: float
    unsupported_arms: Mapping[str, float]
    estimates: Mapping[str, Estimate]
    direct_method: float | None
    over_logged: float | None
    over_logged_interval: Interval | None


@dataclass(frozen=True)
class Evaluation:
    """Of one experiment.

    first_slot  values are of the first slot of each decision, not of the decision
    logged      what the log itself earned a decision, and its interval; None where slates are
                refused
    earned_by   what each policy earned a decision, of those that it made
    slates      decisions of several arms
    shortlists  decisions of which the policy chose the candidates itself
    erased      events that policies could not learn from any more
    left_out    decisions that were selected and not evaluated, by reason
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
    earned_by: Mapping[str, float]
    slates: int
    shortlists: int
    untold: int
    erased: int
    left_out: Mapping[str, int]
    policies: Sequence[PolicyValue]


async def evaluate_store(
    url: str, request: EvaluationRequest, say: Say | None = None
) -> Evaluation:
    """Evaluate on a store, which is only read. Raises NotFound, Invalid, ConfigurationError, or
    StoreError where the log cannot be read."""
    async with reading(url) as store:
        return await evaluate(store, request, Progress(say))


async def evaluate(
    store: Store, request: EvaluationRequest, progress: Progress = SILENT
) -> Evaluation:
    name = await single_experiment(store, request.experiment)
    policies = await _policies(store, name, request)
    selection = request.selection
    if request.freeze and selection.since is None and selection.newest is None:
        # They learn from the first half, and are evaluated on the other.
        chosen = await choose(store, name, selection, progress)
        selection = replace(selection, newest=max(len(chosen) // 2, 1))
    chosen = await choose(store, name, selection, progress)
    own = request.own or selection.logged_by is not None
    walk = Walk(
        store, name, policies, ExtraPolicies(request.definitions), freeze=request.freeze, own=own
    )
    columns = Columns(policies)
    async for logged in walk.decisions(chosen, progress):
        columns.add(logged, float(chosen.rewards[logged.index]))
    log = columns.logged(policies[0], walk.range)
    range_ = walk.range
    if len(columns):  # a sum of contributions, or what an older definition allowed
        low, high = range_
        range_ = min(low, float(log.reward.min())), max(high, float(log.reward.max()))
    first, last = columns.times if len(columns) else (None, None)
    mean, interval = None, None
    if len(columns) and (request.first_slot or not columns.slates):
        top, bottom = grouped(log.group, log.reward, np.ones_like(log.reward))
        mean = float(log.reward.mean())
        interval = adjusted(top, bottom, bottom, range_, request.confidence).within(*range_)
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
        earned_by=columns.earned_by,
        slates=columns.slates,
        shortlists=columns.shortlists.total(),
        untold=columns.untold,
        erased=len(chosen.erased),
        left_out=dict((chosen.left_out + walk.left_out).most_common()),
        policies=ranked(
            _value(columns, policy, walk.learned_from.get(policy, 0), range_, request)
            for policy in policies
        ),
    )


async def _policies(store: Store, name: str, request: EvaluationRequest) -> list[str]:
    """Those to evaluate, checked against the current experiment before the long work."""
    state = await Replicas(store, Telemetry()).discover(name)
    if state.deleted:
        raise NotFound(f"experiment {quoted(name)} was deleted", path="experiment")
    live, defined = state.learners, request.definitions
    asked = request.policies
    if asked is None:
        asked = [] if defined else list(live)
    if unknown := [policy for policy in asked if policy not in live]:
        raise no_policy(state, unknown[0], "policies")
    if both := [policy for policy in defined if policy in live]:
        raise Invalid(
            f"the experiment has a policy {both[0]} already: give the definition another name",
            path="definition",
        )
    if GUESS in live or GUESS in defined:
        raise Invalid(f"a policy cannot be evaluated beside one named {GUESS}", path="policies")
    guess = {GUESS: {"kind": "greedy", "features": ["intercept"]}}
    with_policies(state.definition.model_dump(mode="json"), {**defined, **guess})
    found = list(dict.fromkeys([*asked, *defined]))
    if not found:
        raise Invalid("name at least one policy, or a definition", path="policies")
    return found


def ranked(values: Iterable[PolicyValue]) -> list[PolicyValue]:
    """The best first, by the doubly robust estimate; those without an estimate last."""
    return sorted(
        values, key=lambda each: -each.estimates["dr"].value if each.estimates else np.inf
    )


def _value(
    columns: Columns,
    policy: str,
    learned_from: int | None,
    range_: Range,
    request: EvaluationRequest,
) -> PolicyValue:
    mass, by_arm = columns.unsupported(policy)
    log = columns.logged(policy, range_)
    weights = summarize(log)
    refused = refusal(columns, policy, weights, learned_from, request)
    estimates = {} if refused else estimate(log, request.confidence)
    over, interval = (None, None) if refused else over_logged(log, request.confidence)
    return PolicyValue(
        policy=policy,
        never_ran=policy in request.definitions,
        learned_from=learned_from,
        refused=refused,
        weights=weights,
        other_candidates=columns.otherwise(policy),
        unsupported=mass,
        unsupported_arms=by_arm,
        estimates={name: each.within(*range_) for name, each in estimates.items()},
        direct_method=None if refused else direct(log).value,
        over_logged=over,
        over_logged_interval=interval,
    )
