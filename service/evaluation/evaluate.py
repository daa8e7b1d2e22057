"""Evaluate policies on the log of one experiment: read, walk, estimate."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from service.errors import Invalid, NotFound
from service.evaluation.answer import EvaluationAnswer, LoggedValue, PolicyEvaluation
from service.evaluation.columns import Columns
from service.evaluation.estimators import direct, estimate, over_logged
from service.evaluation.intervals import adjusted, grouped
from service.evaluation.refusals import refusal, summarize
from service.evaluation.report import sentence
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

TOLD_ARMS = 100
"""Arms without support that an answer names."""

Range = tuple[float, float]


async def evaluate_store(
    url: str, request: EvaluationRequest, say: Say | None = None
) -> EvaluationAnswer:
    """Evaluate on a store, which is only read. Raises NotFound, Invalid, ConfigurationError, or
    StoreError where the log cannot be read."""
    async with reading(url) as store:
        return await evaluate(store, request, Progress(say))


async def evaluate(
    store: Store, request: EvaluationRequest, progress: Progress = SILENT
) -> EvaluationAnswer:
    name = await single_experiment(store, request.experiment)
    policies, added = await _policies(store, name, request)
    if not policies:  # the experiment has no shadows
        return _answer(name, request, Columns([]))
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
    range_ = walk.range
    if len(columns):  # a sum of contributions, or what an older definition allowed
        reward = columns.reward
        range_ = min(range_[0], float(reward.min())), max(range_[1], float(reward.max()))
    values = [
        _value(some, policy, walk.learned_from.get(policy, 0), range_, request, policy in added)
        for some in by_start.values()
        for policy in some.policies
    ]
    left_out = dict((chosen.left_out + walk.left_out).most_common())
    return _answer(name, request, columns, values, range_, len(chosen.erased), left_out)


def _answer(
    name: str,
    request: EvaluationRequest,
    columns: Columns,
    values: Sequence[PolicyEvaluation] = (),
    range_: Range = (0.0, 1.0),
    erased: int = 0,
    left_out: Mapping[str, int] = {},
) -> EvaluationAnswer:
    reward, logged = columns.reward, LoggedValue(value=None, interval=None)
    if len(columns) and (request.first_slot or not columns.slates):
        top, bottom = grouped(columns.group, reward, np.ones_like(reward))
        interval = adjusted(top, bottom, bottom, range_, request.confidence).within(*range_)
        logged = LoggedValue(value=float(reward.mean()), interval=interval)
    since, until = columns.times
    found = EvaluationAnswer(
        experiment=name,
        sentence="",
        decisions=len(columns),
        since=since,
        until=until,
        frozen=request.freeze,
        shadows=request.shadows,
        metric="reward_of_first_slot" if request.first_slot else "reward_per_decision",
        confidence=request.confidence,
        logged=logged,
        logged_by=dict(columns.logged_by.most_common()),
        earned_by=columns.earned_by,
        slates=columns.slates,
        shortlists=columns.shortlists.total(),
        untold=columns.untold,
        erased=erased,
        left_out=left_out,
        policies=ranked(values),
    )
    found.sentence = sentence(found)
    return found


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


def ranked(values: Iterable[PolicyEvaluation]) -> list[PolicyEvaluation]:
    """The best first, by the doubly robust estimate, or of shadows, which may have other decisions,
    by what they surely earn over the log; those without an estimate last."""

    def worth(value: PolicyEvaluation) -> float:
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
) -> PolicyEvaluation:
    mass, by_arm = columns.unsupported(policy)
    log = columns.logged(policy, range_)
    weights = summarize(log)
    refused = refusal(columns, policy, weights, learned_from, request)
    estimates = {} if refused else estimate(log, request.confidence)
    over, interval = (None, None) if refused else over_logged(log, request.confidence)
    watched, over_watched = (None, None) if refused else columns.watched(policy, request.confidence)
    return PolicyEvaluation(
        policy=policy,
        never_ran=never_ran,
        learned_from=learned_from,
        refused=refused,
        effective_sample_size=weights.effective_sample_size,
        largest_weight=weights.largest_weight,
        mean_weight=weights.mean_weight,
        mean_weight_error=error if isfinite(error := weights.mean_weight_error) else None,
        decisions=len(columns),
        since=columns.times[0],
        logged=float(columns.reward.mean()) if len(columns) else None,
        other_candidates=columns.otherwise(policy),
        unsupported=mass,
        unsupported_arms=dict(list(by_arm.items())[:TOLD_ARMS]),
        estimates={name: each.within(*range_) for name, each in estimates.items()},
        direct_method=None if refused else direct(log).value,
        over_logged=over,
        over_logged_interval=interval,
        watched=watched,
        over_logged_watched=over_watched,
    )
