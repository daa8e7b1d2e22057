"""Evaluate policies on the log of one experiment: read, walk, estimate."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from service.analysis.checkpoints import NOWHERE, Checkpoints
from service.analysis.columns import Columns
from service.analysis.estimators import difference, direct, estimate, uplift
from service.analysis.evaluation_answer import EvaluationAnswer, LoggedValue, PolicyEvaluation
from service.analysis.evaluation_report import sentence
from service.analysis.history import REPEATED, read_history
from service.analysis.intervals import adjusted, grouped
from service.analysis.looks import Look
from service.analysis.policies import chosen_policies
from service.analysis.refusals import refusal, summarize
from service.analysis.request import EvaluationRequest
from service.analysis.selected import SelectedDecisions, selected
from service.analysis.targets import ExtraPolicies
from service.analysis.walk import Walk
from service.log.reading import SILENT, Progress, reading, single_experiment
from service.log.replicas import Replicas
from service.log.stores import Store

WITHOUT_PROBABILITIES = "imported with the chance of the shown arm alone"
END_OF_LOG = 1 << 62
"""Position beyond every one of a log."""

LISTED_ARMS = 100
"""Arms without support that an answer names."""

Range = tuple[float, float]


async def evaluate_store(
    url: str, request: EvaluationRequest, progress: Progress = SILENT
) -> EvaluationAnswer:
    """Evaluate on a store, which is only read. Raises NotFound, Invalid, ConfigurationError, or
    StoreError where the log cannot be read."""
    async with reading(url) as store:
        return await evaluate(store, request, progress)


async def evaluate(
    store: Store,
    request: EvaluationRequest,
    progress: Progress = SILENT,
    checkpoints: Checkpoints = NOWHERE,
) -> EvaluationAnswer:
    """Evaluate on an open store. Raises as `evaluate_store`."""
    name = await single_experiment(store, request.experiment)
    state = await Replicas(store).discover(name)
    policies, added = chosen_policies(state, request)
    if not policies:  # the experiment has no shadows
        return _answer(name, request, Columns([]))
    history, selection = await read_history(store, name, progress, checkpoints), request.selection
    if request.freeze and selection.since is None and selection.newest is None:
        # They learn from the first half, and are evaluated on the other.
        half = len(selected(history, selection)) // 2
        selection = replace(selection, newest=max(half, 1))
    chosen = selected(history, selection)
    if request.against is not None:
        chosen = chosen.since(history.definitions.unchanged_since(policies))
    by_start = _by_start(policies, chosen.starts, anytime=request.shadows)
    chosen = chosen.since(min(by_start))
    own = request.own or selection.logged_by is not None
    walk = Walk(
        store,
        name,
        policies,
        ExtraPolicies(added),
        rules=request.rules,
        freeze=request.freeze,
        own=own,
    )
    if request.shadows:
        look = Look(checkpoints, name, history, added, chosen)
        if (done := look.resume(walk, by_start)) < look.stop:
            part = chosen.since(done + 1).before(look.stop + 1)
            await _walk(walk, part, by_start, progress, look.stop)
            look.keep(walk, by_start)
            done = look.stop
        await _walk(walk, chosen.since(done + 1), by_start, progress)
    else:
        await _walk(walk, chosen, by_start, progress)
    for some in by_start.values():
        some.settle(chosen)
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
    if request.against is not None:
        values = _compared(values, columns, request.against, range_, request.confidence)
    repeats = Counter({REPEATED: max(some.repeats for some in by_start.values())})
    left_out = dict((chosen.left_out + walk.left_out + repeats).most_common())
    return _answer(name, request, columns, values, range_, len(chosen.erased), left_out)


async def _walk(
    walk: Walk,
    chosen: SelectedDecisions,
    by_start: Mapping[int, Columns],
    progress: Progress,
    upto: float = inf,
) -> None:
    """Add the decisions up to a position of the log to the columns of the policies that were there
    by then."""
    async for logged in walk.decisions(chosen, progress, upto):
        some = [columns for start, columns in by_start.items() if logged.position >= start]
        if logged.behaviour is None and any(columns.anytime for columns in some):
            walk.left_out[WITHOUT_PROBABILITIES] += 1
            continue
        for columns in some:
            columns.add(logged)


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
        logged_by=columns.logged_by,
        earned_by=columns.earned_by,
        slates=columns.slates,
        shortlists=columns.shortlists.total(),
        without_probabilities=columns.without_probabilities,
        erased=erased,
        left_out=left_out,
        policies=ranked(values),
    )
    found.sentence = sentence(found)
    return found


def _by_start(
    policies: Sequence[str], starts: Mapping[str, int], *, anytime: bool
) -> dict[int, Columns]:
    """Columns of the policies that are evaluated from each position on."""
    if not anytime:
        return {0: Columns(policies)}
    found = defaultdict[int, list[str]](list)
    for policy in policies:
        found[starts.get(policy, END_OF_LOG)].append(policy)  # it was removed just now
    return {start: Columns(names, anytime=True) for start, names in found.items()}


def _compared(
    values: Sequence[PolicyEvaluation],
    columns: Columns,
    against: str,
    range_: Range,
    confidence: float,
) -> list[PolicyEvaluation]:
    """Add how much more each would have earned than one of them, where the log can tell both."""
    told = {each.policy for each in values if each.estimates}
    if against not in told:
        return [*values]
    other, found = columns.logged(against, range_), list[PolicyEvaluation]()
    for each in values:
        if each.policy in told - {against}:
            log = columns.logged(each.policy, range_)
            more, interval = difference(log, other, confidence)
            each = each.model_copy(update={"difference": more, "difference_interval": interval})
        found.append(each)
    return found


def ranked(values: Iterable[PolicyEvaluation]) -> list[PolicyEvaluation]:
    """Rank policies, the best first: by the doubly robust estimate, or shadows, which may have
    other decisions, by what they surely earn over the log. Those without an estimate come last."""

    def worth(value: PolicyEvaluation) -> float:
        if value.uplift_anytime is not None:
            return value.uplift_anytime.low
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
    over, interval = (None, None) if refused else uplift(log, request.confidence)
    anytime_interval, uplift_anytime = (
        (None, None) if refused else columns.intervals(policy, request.confidence)
    )
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
        other_candidates=columns.other_candidates(policy),
        unsupported=mass,
        unsupported_arms=dict(list(by_arm.items())[:LISTED_ARMS]),
        estimates={name: each.within(*range_) for name, each in estimates.items()},
        direct_method=None if refused else direct(log).value,
        uplift=over,
        uplift_interval=interval,
        difference=None,
        difference_interval=None,
        anytime_interval=anytime_interval,
        uplift_anytime=uplift_anytime,
    )
