"""An evaluation as data: what is computed, what HTTP answers, and what the command line prints as
JSON."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.analysis.intervals import Interval

IntervalEnds = Annotated[
    Interval, Field(description="Lower and upper end, of the confidence that was asked.")
]


class EstimateAnswer(BaseModel):
    title: str = Field(description="Name of the estimator, as people write it.")
    about: str = Field(description="The estimator in a sentence.")
    value: float = Field(description="Estimated `metric`.")
    standard_error: float
    interval: IntervalEnds = Field(description="Student's t on the effective sample.")

    def within(self, least: float, most: float) -> "EstimateAnswer":
        """Cut the interval to the range of rewards."""
        return self.model_copy(update={"interval": self.interval.within(least, most)})


class PolicyEvaluation(BaseModel):
    policy: str
    never_ran: bool = Field(description="True of a policy of `definition`, or a shadow.")
    learned_from: int | None = Field(
        description="Rewards that it had learned from at the last of the decisions: of none it is "
        "refused. Null: its kind does not learn."
    )
    refused: str | None = Field(description="Why the log cannot tell; null where it can.")
    effective_sample_size: float
    largest_weight: float
    mean_weight: float = Field(description="1 but for chance, where the log supports the policy.")
    mean_weight_error: float | None = Field(
        description="Its standard error; null of fewer than two decisions."
    )
    other_candidates: int = Field(
        description="Decisions of which it would have had other arms to choose from, since one of "
        "the two policies retrieves them: where there are any, it is refused."
    )
    unsupported: float = Field(
        description="Share of what it would show that had no chance in the log."
    )
    unsupported_arms: dict[str, float] = Field(description="The same by arm, largest first.")
    estimates: dict[str, EstimateAnswer] = Field(
        description="Estimates by estimator, dr first. Empty where refused."
    )
    direct_method: float | None = Field(
        description="The model of rewards alone, for reference: its bias is not known, so that it "
        "has no interval. Null where refused."
    )
    uplift: float | None = Field(
        description="What it would have earned more than the log, by dr. Null where refused."
    )
    uplift_interval: IntervalEnds | None
    difference: float | None = Field(
        description="What it would have earned more than its baseline, by dr. Null but for the "
        "forecast of a rollout."
    )
    difference_interval: IntervalEnds | None
    anytime_interval: IntervalEnds | None = Field(
        description="Interval of dr that holds at all times at once. Null but for shadows."
    )
    uplift_anytime: IntervalEnds | None = Field(
        description="Interval of uplift that holds at all times at once. Null but for shadows."
    )
    decisions: int = Field(description="Decisions that it was evaluated on.")
    logged: float | None = Field(description="Mean of `metric` over these, as they were made.")
    since: str | None = Field(description="Time of the first of them.")


class LoggedValue(BaseModel):
    value: float | None = Field(
        description="Mean of `metric` over the decisions as they were made; null where there are "
        "none, or slates are refused."
    )
    interval: IntervalEnds | None


class EvaluationAnswer(BaseModel):
    experiment: str
    sentence: str = Field(description="What to conclude.")
    decisions: int = Field(description="Decisions that were evaluated on.")
    since: str | None = Field(description="Time of the first of them.")
    until: str | None = Field(description="Time of the last.")
    frozen: bool
    shadows: bool = Field(description="Policies are the shadows of the experiment.")
    metric: Literal["reward_per_decision", "reward_of_first_slot"] = Field(
        description="What every value is of."
    )
    confidence: float
    logged: LoggedValue
    logged_by: dict[str, int] = Field(description="Decisions by the policy that made them.")
    earned_by: dict[str, float] = Field(
        description="Mean of `metric` over the decisions that each policy made."
    )
    slates: int = Field(description="Decisions of several arms.")
    shortlists: int = Field(
        description="Decisions whose candidates their policy retrieved from the catalogue."
    )
    without_probabilities: int = Field(
        description="Imported with the chance of the shown arm alone."
    )
    erased: int = Field(description="Events that were erased, and not learned from here.")
    left_out: dict[str, int] = Field(description="Decisions that were left out, by reason.")
    policies: list[PolicyEvaluation] = Field(description="The best first, by dr.")
