"""Rollouts: how challengers take over traffic unless a start says otherwise, and a loss budget. The
`[rollout]` and the `never_below` of a definition."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from service.features.declaration import Name
from service.features.model import Model

MOST_STAGES = 20


def _expect_stages(stages: list[float]) -> list[float]:
    ascending = all(before < after for before, after in pairwise(stages))
    if not ascending or stages[0] <= 0 or stages[-1] != 1:
        raise ValueError("must ascend from above 0 to 1, as [0.05, 0.2, 0.5, 1]")
    return stages


Stages = Annotated[
    list[float], Field(min_length=2, max_length=MOST_STAGES), AfterValidator(_expect_stages)
]
Margin = Annotated[float, Field(gt=0, lt=1)]
StageHours = Annotated[float, Field(ge=0, le=24 * 365)]
UndecidedDays = Annotated[float, Field(gt=0, le=365)]
OnUndecided = Literal["ask", "ship", "back"]


class RolloutDefaults(Model):
    """How a challenger takes over the traffic of its baseline."""

    stages: Stages = Field(
        [0.05, 0.2, 0.5, 1.0],
        description="Shares of the traffic of both that the challenger has, one after the other.",
    )
    margin: Margin = Field(
        0.1, description="Share of the baseline's reward that the challenger may lose."
    )
    stage_hours: StageHours = Field(24.0, description="Least hours of a stage.")
    undecided_after_days: UndecidedDays = Field(
        14.0, description="Days after which a rollout without an outcome does what follows."
    )
    on_undecided: OnUndecided = Field(
        "ask", description="What it does then: ask a person, ship the challenger, or go back."
    )
    ask: bool = Field(False, description="Whether a person confirms each stage.")


class NeverBelow(Model):
    """A loss budget: the others get what keeps the service near one policy."""

    policy: Name = Field(description="The policy that the service is compared with.")
    by: Annotated[float, Field(gt=0, le=0.5)] = Field(
        description="Share of its reward, from the low end of the range, that the service may lose."
    )
