"""Settings that every kind of policy has, and those of a training."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from service.features.model import Model

FULL_ROWS = 2_048
"""Distinct rows in a full Z at most. At this limit the factor of their kernel has 34 MB; it takes
0.3 s to make and 15 ms to read for 50 arms."""

MOST_TRIES = 100
"""Settlements up to which those of an arm are counted."""

Share = Annotated[float, Field(ge=0, le=1e6)]
Probability = Annotated[float, Field(ge=0, le=1)]


class PolicySettings(Model):
    """Common to every kind."""

    share: Share = Field(
        1.0, description="Share of the traffic that names no policy; 0: only by name."
    )
    shadow: bool = Field(
        False,
        description="true: decides nothing, even for a request that names it, and learns from "
        "every reward. `GET /experiments/{name}/shadows` tells what it would have earned. Its "
        "share is 0.",
    )
    epsilon: Probability = Field(
        0.0, description="Exploration floor: p <- (1 - epsilon) p + epsilon / K."
    )
    learning: bool = Field(
        True, description="false freezes the head: rewards are logged, not learned."
    )
    learns_from: Literal["own", "all"] = Field(
        "own",
        description="Decisions whose rewards the head learns from: its own, or every policy's.",
    )
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="Forgetting: each settlement leaves this share of what was learned before it.",
    )
    decay_every: PositiveInt = Field(
        20, description="Settlements after which gamma is applied, to their power at once."
    )
    window: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None,
        description="Latest settlements that head and training hold, up to an eighth more; left "
        "out: all.",
    )
    change: bool = Field(
        False,
        description="Watch the residuals for a change of the world, and forget what it made stale.",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_shadow_has_no_share_unless_it_is_given_one(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and settings.get("shadow") is True:
            return {"share": 0.0, **settings}
        return settings

    @model_validator(mode="after")
    def _a_shadow_has_no_traffic(self) -> "PolicySettings":
        if self.shadow and self.share:
            raise ValueError("share: a shadow decides nothing: leave share out, or give it 0")
        return self

    @model_validator(mode="after")
    def _one_way_to_forget(self) -> "PolicySettings":
        if self.gamma < 1 and (self.window is not None or self.change):
            raise ValueError("gamma: forget by gamma, or by window and change, not by both")
        return self


class Training(Model):
    """When and how the trainer fits the encoder. Due at counts of rewards, never at times."""

    first: PositiveInt = Field(256, description="Rewards before the first training.")
    growth: Annotated[float, Field(gt=1, le=100)] = Field(
        2.0,
        description="Each further training falls due at this many times the rewards of the last.",
    )
    validation: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="Latest share of the rewards held out to stop early on."
    )
    epochs: PositiveInt = Field(60, description="At most so many passes.")
    patience: PositiveInt = Field(6, description="Passes without improvement before the stop.")
    batch: PositiveInt = Field(64, description="Rewards a gradient step, at least.")
    steps: PositiveInt = Field(
        64, description="Gradient steps a pass, at most; batches grow with the log."
    )
    learning_rate: PositiveFloat = Field(1e-3, description="Of Adam.")
