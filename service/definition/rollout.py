"""Rollouts and loss budgets, the `[rollout]` and the `never_below` of a definition: how challengers
take over traffic unless a start says otherwise, and what they are watched for."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from service.definition.rules import ConditionText, Location, impossible_texts
from service.features.declaration import Features, Name
from service.features.expression import Expression, ValueType, parse
from service.features.model import Model, at_most

MOST_STAGES = 20
SEGMENTS = 16
"""Most segments of visitors that a guardrail looks at."""


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
OnBreach = Literal["back", "hold", "warn"]
GuardedShare = Annotated[float, Field(gt=0, lt=1)]
ON_BREACH = "What follows a breach: roll back, hold until a person decides, or only warn."


class ShareGuardrail(Model):
    """A largest share of the challenger's decisions."""

    most: GuardedShare = Field(
        0.01, description="Share of the challenger's decisions up to which it is not breached."
    )
    on_breach: OnBreach = Field("back", description=ON_BREACH)


class LatencyGuardrail(Model):
    """How long the challenger's decisions may take."""

    times: Annotated[float, Field(ge=1, le=1_000)] = Field(
        2.0,
        description="Multiple of the time that 99 percent of the baseline's decisions keep to: at "
        "most 1 percent of the challenger's may take longer.",
    )
    on_breach: OnBreach = Field("hold", description=ON_BREACH)


class EntropyGuardrail(Model):
    """How much chance has to be left in the challenger's choices."""

    least: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Least mean entropy of its choices, as a share of that of uniform chance; 0: "
        "off.",
    )
    on_breach: OnBreach = Field("warn", description=ON_BREACH)


class SampleRatioGuardrail(Model):
    """Whether both policies have the visitors that were drawn for them."""

    on_breach: OnBreach = Field("hold", description=ON_BREACH)


class SegmentsGuardrail(Model):
    """Segments of visitors in which the challenger may not lose either."""

    where: Annotated[dict[Name, ConditionText], Field(max_length=SEGMENTS), at_most(SEGMENTS)] = (
        Field(
            {},
            description="Conditions on features of the context, by the names of the segments that "
            "they describe.",
        )
    )
    margin: Margin | None = Field(
        None,
        description="Share of the baseline's reward that the challenger may lose in a segment; "
        "left out: the rollout's.",
    )
    on_breach: OnBreach = Field("hold", description=ON_BREACH)


def _toml_has_no_null(value: object) -> object:
    return None if value == "none" else value


OrNone = BeforeValidator(_toml_has_no_null)
"""Validator of a setting that can be switched off: TOML has no null."""


class Guardrails(Model):
    """What a challenger is watched for beside its reward. Null (in TOML: "none"): it is not."""

    fallbacks: Annotated[ShareGuardrail | None, OrNone] = Field(
        ShareGuardrail(), description="Decisions that the fallback made in the challenger's place."
    )
    errors: Annotated[ShareGuardrail | None, OrNone] = Field(
        ShareGuardrail(), description="Decisions of the challenger that failed."
    )
    latency: Annotated[LatencyGuardrail | None, OrNone] = Field(
        LatencyGuardrail(), description="Decisions that took much longer than the baseline's."
    )
    entropy: Annotated[EntropyGuardrail | None, OrNone] = Field(
        EntropyGuardrail(), description="How much chance is left in the challenger's choices."
    )
    sample_ratio: Annotated[SampleRatioGuardrail | None, OrNone] = Field(
        SampleRatioGuardrail(), description="Visitors of both policies against their shares."
    )
    segments: Annotated[SegmentsGuardrail | None, OrNone] = Field(
        SegmentsGuardrail(),
        description="Segments of visitors in which the challenger may not lose.",
    )

    @property
    def where(self) -> Mapping[str, str]:
        """The conditions of segments, by name."""
        return {} if self.segments is None else self.segments.where

    def conditions(self, types: Mapping[str, ValueType]) -> dict[str, Expression]:
        """Return the parsed conditions of segments, by name. types: of features of the context.
        Raises ValueError."""
        return {name: parse(text, types) for name, text in self.where.items()}

    def faults(self, types: Mapping[str, ValueType]) -> Iterator[tuple[Location, str]]:
        """Yield what is wrong with segments, and where. types: as in `conditions`."""
        for name, text in self.where.items():
            try:
                parse(text, types)
            except ValueError as fault:
                yield ("segments", "where", name), str(fault)

    def impossible_values(
        self, features: Features, types: Mapping[str, ValueType]
    ) -> Iterator[tuple[Location, str]]:
        """Yield where segments name a value that their categorical feature never has, and which."""
        for name, condition in self.conditions(types).items():
            for message in impossible_texts(condition.texts, features):
                yield ("segments", "where", name), message


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
    guardrails: Guardrails = Field(
        Guardrails(), description="What a challenger is watched for beside its reward."
    )


class NeverBelow(Model):
    """A loss budget: the others get what keeps the service near one policy."""

    policy: Name = Field(description="The policy that the service is compared with.")
    by: Annotated[float, Field(gt=0, le=0.5)] = Field(
        description="Share of its reward, from the low end of the range, that the service may lose."
    )
