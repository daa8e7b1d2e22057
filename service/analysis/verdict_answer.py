"""A verdict as data, which HTTP answers as JSON."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.analysis.sequences import MOST_ROWS

VerdictState = Literal["better", "worse", "open", "refused"]
Ends = Annotated[tuple[float, float], Field(description="Lower and upper end, 95 percent.")]


class EarlierUplift(BaseModel):
    """An uplift as it was known earlier."""

    at: float = Field(description="Unix seconds, of the last decision in it.")
    decisions: int
    value: float
    low: float
    high: float


class PolicyMean(BaseModel):
    policy: str
    since: str = Field(
        description="Start of the policy's present settings; earlier decisions do not count."
    )
    decisions: int
    mean: float | None = Field(description="Reward per decision; null where there is none.")
    interval: Ends | None = Field(description="Holds at all times at once.")
    fixed_interval: Ends | None = Field(description="Holds for one look, planned in advance.")
    best: float | None = Field(
        description="Chance to earn most, by the decisions since all policies are as they are now."
    )


class Uplift(BaseModel):
    """Uplift of a policy over the control: reward per decision."""

    policy: str | None = Field(description="Policy; null: everything but the control.")
    state: VerdictState
    sentence: str
    since: str
    decisions: int = Field(description="Decisions of all policies, in which either could be drawn.")
    repeats: int = Field(
        description=f"Further ones that do not count: their visitors had made {MOST_ROWS} before."
    )
    units: float = Field(
        description="Visitors of the policy with the smaller share, in effect: its share of "
        "(sum of n)^2 / sum of n^2, of n decisions each that count."
    )
    mean: float
    control: float
    difference: float
    interval: Ends = Field(description="Interval of the difference; holds at all times at once.")
    fixed_interval: Ends = Field(description="Interval of the difference, for one look.")
    ratio: float | None = Field(
        description="null where rewards may be below 0, or the control may earn nothing."
    )
    ratio_interval: Ends | None = Field(
        description="Interval of the ratio; holds at all times at once."
    )
    safe_since: str | None = Field(
        description="Time since which the interval has left out 0 for good."
    )
    safe_decisions: int | None = Field(description="After how many decisions that was.")
    history: list[EarlierUplift] = Field(description="Difference as it was known earlier.")


class Verdict(BaseModel):
    """Verdict on an experiment, up to its oldest decision that still waits for a reward."""

    experiment: str
    state: VerdictState = Field(
        description="A policy is better than the control, none is and one is worse, neither can be "
        "told yet, or nothing can be told (`sentence` says why)."
    )
    sentence: str
    control: str | None
    until: str | None = Field(description="Time of the last decision that counts.")
    decisions: int = Field(description="Decisions that count, of all policies.")
    sample_ratio: str = Field(
        description="Whether shown arms fit their propensities, and visitors the shares."
    )
    fits: bool = Field(description="They do; else the verdict is refused.")
    policies: list[PolicyMean]
    uplifts: list[Uplift]
    left_out: dict[str, int] = Field(description="Decisions that do not count, by reason.")


class DatedAnswer(BaseModel):
    """An answer that a service remembers for a while."""

    as_of: str = Field(description="Time at which the log was read.")
    next_at: str | None = Field(
        description="Time from which a request reads it again; null: once the experiment changes."
    )


class DatedVerdict(DatedAnswer, Verdict):
    """A verdict that a service remembers for a while."""
