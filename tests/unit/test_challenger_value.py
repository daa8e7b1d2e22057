"""What an evaluation of two policies says of a rollout of the one in place of the other."""

import pytest

from service.analysis.challenger_value import ChallengerValue, challenger_value
from service.analysis.evaluation_answer import EstimateAnswer, EvaluationAnswer, PolicyEvaluation
from service.analysis.intervals import Interval
from service.state.rollout import RolloutPlan

PLAN = RolloutPlan(policy="new", baseline="main", margin=0.1)


def evaluated(policy: str, value: float, interval: tuple[float, float]) -> PolicyEvaluation:
    dr = EstimateAnswer.model_construct(value=value, interval=Interval(*interval))
    return PolicyEvaluation.model_construct(
        policy=policy,
        refused=None,
        decisions=400,
        unsupported=0.25,
        effective_sample_size=80.0,
        estimates={"dr": dr},
        difference=None,
        difference_interval=None,
    )


def valued(difference: tuple[float, float], low: float = 0.0) -> ChallengerValue:
    """`new` earns 0.12 and `main` 0.2."""
    new, main = evaluated("new", 0.12, (0.1, 0.14)), evaluated("main", 0.2, (0.19, 0.21))
    more = {"difference": -0.08, "difference_interval": Interval(*difference)}
    policies = [main, new.model_copy(update=more)]
    answer = EvaluationAnswer.model_construct(decisions=400, policies=policies)
    return challenger_value(PLAN, answer, low)


@pytest.mark.parametrize(
    ("difference", "low", "loses", "says"),
    [
        ((-0.1, -0.03), 0.0, True, "the loss is beyond the margin of 10 percent."),
        ((-0.1, -0.01), 0.0, False, "whether the loss is within the margin of 10 percent cannot"),
        ((-0.01, 0.03), 0.0, False, "a loss beyond the margin of 10 percent is ruled out."),
        ((-0.15, -0.13), -1.0, True, "the loss is beyond the margin of 10 percent."),
        ((-0.15, -0.11), -1.0, False, "whether the loss is within the margin of 10 percent cannot"),
        ((-0.11, -0.03), -1.0, False, "a loss beyond the margin of 10 percent is ruled out."),
    ],
)
def test_a_loss_is_compared_with_a_share_of_what_the_baseline_earns(
    difference: tuple[float, float], low: float, loses: bool, says: str
) -> None:
    """The margin allows 0.02 of rewards from 0 on, and 0.12 of those from -1 on."""
    found = valued(difference, low)
    earned = "On the log, 'new' would have earned 0.12 (0.1 to 0.14) a decision, and 'main' 0.2"
    assert found.sentence.startswith(f"{earned} (0.19 to 0.21): {says}")
    assert found.loses is loses
    assert (found.decisions, found.support, found.effective) == (400, 0.75, 80.0)


def test_a_baseline_of_which_the_log_cannot_tell_is_named() -> None:
    main = evaluated("main", 0.2, (0.19, 0.21)).model_copy(
        update={"estimates": {}, "refused": "it is too rare"}
    )
    policies = [evaluated("new", 0.12, (0.1, 0.14)), main]
    answer = EvaluationAnswer.model_construct(decisions=400, policies=policies)
    found = challenger_value(PLAN, answer, 0.0)
    assert found.sentence == ("The log cannot tell what 'main' would have earned: it is too rare.")
    assert found.own is not None
    assert (found.baseline, found.difference, found.loses) == (None, None, False)
