"""Evaluate policies on the log of one experiment: read, walk, estimate."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from service.errors import Invalid, NotFound
from service.evaluation.columns import Columns
from service.evaluation.estimators import Estimate, direct, estimate, over_logged
from service.evaluation.intervals import Interval, adjusted, grouped
from service.evaluation.refusals import WeightSummary, refusal, summarize
from service.evaluation.request import EvaluationRequest, PolicyFields, Selection
from service.evaluation.rows import choose
from service.evaluation.targets import GUESS, ExtraPolicies, with_policies
from service.evaluation.walk import Walk
from service.log.reading import SILENT, Progress, Say, reading, single_experiment
from service.log.replicas import Replicas
from service.log.stores import Store
from service.naming import quoted
from service.observability.telemetry import Telemetry
from service.serving.traffic import no_policy

UNTOLD = "imported with the chance of the shown arm alone"
END = 1 << 62
"""Beyond every position of a log."""

Range = tuple[float, float]


@dataclass(frozen=True)
class PolicyValue:
    """Of one policy.

    learned_from       rewards that it had learned from at the last decision; None: it never learns
    refused            why there is no estimate; None where there is one
    decisions, since   evaluated on, and unix seconds of the first
    logged             what the log itself earned on these; None where there are none
    other_candidates   decisions of which it would have had other candidates
    unsupported        share of what it would show that the log could not, and by arm
    estimates          by estimator
    direct_method      by the guess alone, without an interval: its bias is not known
    over_logged        by how much its doubly robust estimate exceeds what the log earned, and the
                       interval of that
    watched            of a shadow, the interval of the doubly robust estimate that holds at all
                       times at once, and that of over_logged
    """

    policy: str
    never_ran: bool
    learned_from: int | None
    refused: str | None
    decisions: int
    since: float | None
    logged: float | None
    weights: WeightSummary
    other_candidates: int
    unsupported: float
    unsupported_arms: Mapping[str, float]
    estimates: Mapping[str, Estimate]
    direct_method: float | None
    over_logged: float | None
    over_logged_interval: Interval | None
    watched: Interval | None
    over_logged_watched: Interval | None


@dataclass(frozen=True)
class Evaluation:
    """Of one experiment.

    first_slot  values are of the first slot of each decision, not of the decision
    logged      what the log itself earned a decision, and its interval; None where slates are
                refused
    earned_by   what each policy earned a decision, of those that it made
    shadows     policies are the shadows of the experiment
    slates      decisions of several arms
    shortlists  decisions of which the policy chose the candidates itself
    erased      events that policies could not learn from any more
    left_out    decisions that were selected and not evaluated, by reason
    """

    experiment: str
    frozen: bool
    shadows: bool
    first_slot: bool
    confidence: float
    decisions: int = 0
    since: float | None = None
    until: float | None = None
    logged: float | None = None
    logged_interval: Interval | None = None
    logged_by: Mapping[str, int] = field(default_factory=dict)
    earned_by: Mapping[str, float] = field(default_factory=dict)
    slates: int = 0
    shortlists: int = 0
    untold: int = 0
    erased: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    policies: Sequence[PolicyValue] = ()


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
    policies, added = await _policies(store, name, request)
    asked = Evaluation(
        experiment=name,
        frozen=request.freeze,
        shadows=request.shadows,
        first_slot=request.first_slot,
        confidence=request.confidence,
    )
    if not policies:  # the experiment has no shadows
        return asked
    selection = request.selection
    if request.freeze and selection.since is None and selection.newest is None:
        # They learn from the first half, and are evaluated on the other.
        chosen = await choose(store, name, selection, progress)
        selection = replace(selection, newest=max(len(chosen) // 2, 1))
    chosen = await choose(store, name, selection, progress)
    by_start = _by_start(policies, chosen.starts, watched=request.shadows)
    chosen = chosen.since(min(by_start))
    own = request.own or selection.logged_by is not None
    walk = Walk(store, name, policies, ExtraPolicies(added), freeze=request.freeze, own=own)
    async for logged in walk.decisions(chosen, progress):
        if request.shadows and logged.behaviour is None:
            walk.left_out[UNTOLD] += 1
            continue
        for start, some in by_start.items():
            if chosen.positions[logged.index] >= start:
                some.add(logged, float(chosen.rewards[logged.index]))
    columns = by_start[min(by_start)]
    reward, range_ = columns.reward, walk.range
    if len(columns):  # a sum of contributions, or what an older definition allowed
        low, high = range_
        range_ = min(low, float(reward.min())), max(high, float(reward.max()))
    first, last = columns.times if len(columns) else (None, None)
    mean, interval = None, None
    if len(columns) and (request.first_slot or not columns.slates):
        top, bottom = grouped(columns.group, reward, np.ones_like(reward))
        mean = float(reward.mean())
        interval = adjusted(top, bottom, bottom, range_, request.confidence).within(*range_)
    return replace(
        asked,
        decisions=len(columns),
        since=first,
        until=last,
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
            _value(some, policy, walk.learned_from.get(policy, 0), range_, request, policy in added)
            for some in by_start.values()
            for policy in some.policies
        ),
    )


def _by_start(
    policies: Sequence[str], starts: Mapping[str, int], *, watched: bool
) -> dict[int, Columns]:
    """Columns of the policies that are evaluated from each position on."""
    if not watched:
        return {0: Columns(policies)}
    found = defaultdict[int, list[str]](list)
    for policy in policies:
        found[starts.get(policy, END)].append(policy)  # it was removed just now
    return {start: Columns(names, watched=True) for start, names in found.items()}


async def _policies(
    store: Store, name: str, request: EvaluationRequest
) -> tuple[list[str], dict[str, PolicyFields]]:
    """Those to evaluate, and of them those that never ran, checked against the current experiment
    before the long work."""
    state = await Replicas(store, Telemetry()).discover(name)
    if state.deleted:
        raise NotFound(f"experiment {quoted(name)} was deleted", path="experiment")
    live, defined = state.learners, request.definitions
    shadows = state.definition.shadows
    choice = request.policies or defined or request.freeze or request.selection != Selection()
    if request.shadows and choice:
        raise Invalid(
            "shadows are evaluated as they learn, on all decisions since they were defined: leave "
            "out policies, definitions, frozen, and whatever chooses decisions",
            path="shadows",
        )
    asked = list(shadows) if request.shadows else request.policies
    if asked is None:
        asked = [] if defined else list(live)
    if unknown := [policy for policy in asked if policy not in live and policy not in shadows]:
        raise no_policy(state, unknown[0], "policies")
    if both := [policy for policy in defined if policy in state.definition.policies]:
        raise Invalid(
            f"the experiment has a policy {both[0]} already: give the definition another name",
            path="definition",
        )
    if GUESS in live or GUESS in defined:
        raise Invalid(f"a policy cannot be evaluated beside one named {GUESS}", path="policies")
    guess = {GUESS: {"kind": "greedy", "features": ["intercept"]}}
    with_policies(state.definition.model_dump(mode="json"), {**defined, **guess})
    found = list(dict.fromkeys([*asked, *defined]))
    if not found and not request.shadows:
        raise Invalid("name at least one policy, or a definition", path="policies")
    added = {each: shadows[each].model_dump(mode="json") for each in asked if each in shadows}
    return found, {**added, **defined}


def ranked(values: Iterable[PolicyValue]) -> list[PolicyValue]:
    """The best first, by the doubly robust estimate, or of shadows, which may have other decisions,
    by what they surely earn over the log; those without an estimate last."""

    def worth(value: PolicyValue) -> float:
        if value.over_logged_watched is not None:
            return value.over_logged_watched.low
        return value.estimates["dr"].value if value.estimates else -np.inf

    return sorted(values, key=worth, reverse=True)


def _value(
    columns: Columns,
    policy: str,
    learned_from: int | None,
    range_: Range,
    request: EvaluationRequest,
    never_ran: bool,
) -> PolicyValue:
    mass, by_arm = columns.unsupported(policy)
    log = columns.logged(policy, range_)
    weights = summarize(log)
    refused = refusal(columns, policy, weights, learned_from, request)
    estimates = {} if refused else estimate(log, request.confidence)
    over, interval = (None, None) if refused else over_logged(log, request.confidence)
    watched, over_watched = (None, None)
    if not refused and (both := columns.watched(policy, request.confidence)):
        watched, over_watched = both
    return PolicyValue(
        policy=policy,
        never_ran=never_ran,
        learned_from=learned_from,
        refused=refused,
        decisions=len(columns),
        since=columns.times[0] if len(columns) else None,
        logged=float(columns.reward.mean()) if len(columns) else None,
        weights=weights,
        other_candidates=columns.otherwise(policy),
        unsupported=mass,
        unsupported_arms=by_arm,
        estimates={name: each.within(*range_) for name, each in estimates.items()},
        direct_method=None if refused else direct(log).value,
        over_logged=over,
        over_logged_interval=interval,
        watched=watched,
        over_logged_watched=over_watched,
    )
