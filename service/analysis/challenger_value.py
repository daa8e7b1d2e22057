"""What a policy would have earned on the log in place of its baseline, before its rollout.

Both are evaluated over the same decisions, since both are as they are: over the time when the
challenger was a shadow, too.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from service.analysis.evaluation_answer import EvaluationAnswer, PolicyEvaluation
from service.analysis.intervals import Interval
from service.analysis.request import EvaluationRequest, Selection
from service.naming import quoted
from service.state.rollout import RolloutPlan
from service.tables import figure

VALUED_DECISIONS = 10_000
"""Newest decisions that a challenger is valued on."""


class Estimated(NamedTuple):
    """A doubly robust estimate, and its interval of 95 percent."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class ChallengerValue:
    """Values of a challenger and its baseline on the log.

    sentence     the values and what they say of the margin, or why the log cannot tell
    decisions    that both are valued on
    own          of the challenger; None: the log cannot tell, here and below
    baseline     of its baseline
    difference   challenger less baseline
    support      share of what the challenger would show that the log could have shown
    effective    decisions of the challenger's own that would tell as much
    loses        the interval of the difference lies wholly below the margin
    """

    sentence: str
    decisions: int = 0
    own: Estimated | None = None
    baseline: Estimated | None = None
    difference: Estimated | None = None
    support: float | None = None
    effective: float | None = None
    loses: bool = False


def challenger_request(experiment: str, plan: RolloutPlan) -> EvaluationRequest:
    """Return the evaluation that tells the values of the two policies of a rollout."""
    return EvaluationRequest(
        experiment,
        policies=[plan.policy, plan.baseline],
        selection=Selection(newest=VALUED_DECISIONS),
        against=plan.baseline,
    )


def unvalued(plan: RolloutPlan, reason: str) -> ChallengerValue:
    """Return the value of a challenger that cannot be told."""
    return ChallengerValue(_untold(plan.policy, reason))


def challenger_value(plan: RolloutPlan, found: EvaluationAnswer, low: float) -> ChallengerValue:
    """Return the value of the challenger of a rollout, from the evaluation of its two policies.
    low: the low end of the range of rewards."""
    by_name = {each.policy: each for each in found.policies}
    own, baseline = by_name[plan.policy], by_name[plan.baseline]
    value, of_baseline = _estimated(own), _estimated(baseline)
    known = ChallengerValue(
        sentence="",
        decisions=found.decisions,
        own=value,
        baseline=of_baseline,
        support=1 - own.unsupported if found.decisions else None,
        effective=own.effective_sample_size if found.decisions else None,
    )
    if value is None or of_baseline is None:
        return replace(known, sentence=_why_untold(plan, own, baseline))
    assert own.difference is not None
    assert own.difference_interval is not None
    difference = Estimated(own.difference, own.difference_interval)
    allowed = -plan.margin * (of_baseline.value - low)
    return replace(
        known,
        sentence=_sentence(plan, value, of_baseline, difference.interval, allowed),
        difference=difference,
        loses=difference.interval.high < allowed,
    )


def _estimated(value: PolicyEvaluation) -> Estimated | None:
    dr = value.estimates.get("dr")
    return None if dr is None else Estimated(dr.value, dr.interval)


def _sentence(
    plan: RolloutPlan, own: Estimated, baseline: Estimated, difference: Interval, allowed: float
) -> str:
    """Say what the log tells. allowed: the least difference within the margin."""
    margin = f"the margin of {100 * plan.margin:.6g} percent"
    verdict = f"whether the loss is within {margin} cannot be told"
    if difference.high < allowed:
        verdict = f"the loss is beyond {margin}"
    elif difference.low > allowed:
        verdict = f"a loss beyond {margin} is ruled out"
    return (
        f"On the log, {quoted(plan.policy)} would have earned {_text(own)} a decision, and "
        f"{quoted(plan.baseline)} {_text(baseline)}: {verdict}."
    )


def _why_untold(plan: RolloutPlan, own: PolicyEvaluation, baseline: PolicyEvaluation) -> str:
    if not own.decisions:
        both = f"{quoted(plan.policy)} and {quoted(plan.baseline)}"
        return _untold(
            plan.policy, f"no decision was made and settled since {both} are as they are"
        )
    refused = baseline if own.refused is None else own
    return _untold(refused.policy, str(refused.refused))


def _untold(policy: str, reason: str) -> str:
    return f"The log cannot tell what {quoted(policy)} would have earned: {reason.rstrip('.')}."


def _text(estimated: Estimated) -> str:
    low, high = estimated.interval
    return f"{figure(estimated.value)} ({figure(low)} to {figure(high)})"
