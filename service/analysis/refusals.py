"""Why a log cannot tell what a policy would have earned, each reason as a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from service.analysis.columns import Columns
from service.analysis.estimators import Logged, effective_size
from service.analysis.intervals import grouped, standard_error
from service.analysis.request import EvaluationRequest

MEAN_WEIGHT_ERRORS = 5.0
"""Standard errors by which the mean weight may differ from 1, its value where the log supports the
policy and propensities are those that arms were drawn by: more do not come by chance."""

SHOWN_ARMS = 5
"""Arms without support that are named."""


@dataclass(frozen=True)
class WeightSummary:
    """Weights of one policy. mean_weight_error: the standard error, infinite of fewer than two."""

    effective_sample_size: float
    largest_weight: float
    mean_weight: float
    mean_weight_error: float


def summarize(log: Logged) -> WeightSummary:
    weight = log.weight
    if not len(weight):
        return WeightSummary(0.0, 0.0, 0.0, float("inf"))
    by_group, sizes = grouped(log.group, weight, np.ones_like(weight))
    effective = min(effective_size(weight), effective_size(by_group))
    error = standard_error(by_group, sizes)
    return WeightSummary(effective, float(weight.max()), float(weight.mean()), error)


def refusal(
    columns: Columns,
    policy: str,
    weights: WeightSummary,
    learned_from: int | None,
    request: EvaluationRequest,
) -> str | None:
    """Say why the log cannot tell the value of a policy; None where it can."""
    if not len(columns):
        return "there is no decision to evaluate on"
    if columns.slates and not request.first_slot:
        return (
            f"{_share(columns.slates, columns)} show several arms, and the estimates take in the "
            "reward of the first slot alone: ask for its value (`forage evaluate --first-slot`, or "
            "`slates` over HTTP), or choose decisions of one arm"
        )
    if others := columns.other_candidates(policy):
        return _of_shortlists(columns, others)
    if learned_from == 0:
        return _of_learning(policy, request)
    mass, by_arm = columns.unsupported(policy)
    # Comparisons that NaN fails: a number that is none never makes an estimate.
    if not mass <= request.most_unsupported:
        return _of_support(mass, by_arm)
    if not weights.effective_sample_size >= request.least_effective:
        return (
            f"the log tells as much of it as {weights.effective_sample_size:.0f} decisions of its "
            f"own would; at least {request.least_effective:.0f} are needed (largest weight "
            f"{weights.largest_weight:,.0f})"
        )
    bound = request.most_unsupported + MEAN_WEIGHT_ERRORS * weights.mean_weight_error
    if not abs(weights.mean_weight - 1) <= bound:
        return _of_mean(weights)
    return None


def _share(count: int, columns: Columns) -> str:
    return f"{count:,} of {len(columns):,} decisions ({count / len(columns):.1%})"


def _of_shortlists(columns: Columns, others: int) -> str:
    makers = [policy for policy, count in columns.shortlists.most_common() if count]
    those = f"shortlists that {', '.join(makers)} made" if makers else "the whole catalogue"
    return (
        f"{_share(others, columns)} chose from other candidates than it would have had: from "
        f"{those}, and propensities hold among these alone. What a policy with `retrieve` earned "
        "by its own decisions can be estimated: choose those logged by it, without freezing it"
    )


def _of_learning(policy: str, request: EvaluationRequest) -> str:
    nothing = "it had learned from 0 rewards, so it would choose as if it knew nothing"
    if request.freeze:
        return f"{nothing}: choose later decisions, or do not freeze it"
    if policy in request.definitions:
        return f"{nothing}: no reward came before the last of these decisions"
    if request.against is not None:
        return f"{nothing}: let it learn as a shadow first (`shadow = true`)"
    if request.shadows:
        return f"{nothing}: no reward has come yet, or its `learning` is false"
    return (
        f"{nothing}. A definition learns from every reward of the log: write the settings of "
        f"{policy} into a file under another name and evaluate that with --definition FILE (in a "
        "request: `definition`)"
    )


def _of_support(mass: float, by_arm: Mapping[str, float]) -> str:
    arms = [f"{arm} ({share:.1%})" for arm, share in list(by_arm.items())[:SHOWN_ARMS]]
    more = f" and {len(by_arm) - SHOWN_ARMS} more" if len(by_arm) > SHOWN_ARMS else ""
    return (
        f"{mass:.1%} of what it would show had no chance of being shown in the log: "
        f"{', '.join(arms)}{more}"
    )


def _of_mean(weights: WeightSummary) -> str:
    seen = (
        f"weights have the mean {weights.mean_weight:.3f} (standard error "
        f"{weights.mean_weight_error:.3f}), which is 1 where the logged propensities "
        "are those that arms were drawn by"
    )
    if weights.mean_weight < 1:
        return f"{seen} and can show all that it would: it would show much that was never shown"
    return (
        f"{seen}: what it would show was shown more often than they say, and estimates would come "
        "out too large"
    )
