"""Settings of a training, and limits that settings name."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from service.features.model import Model

FULL_ROWS = 2_048
"""Distinct rows in a full Z at most. At this limit the factor of their kernel has 34 MB; it takes
0.3 s to make and 15 ms to read for 50 arms."""

MOST_TRIES = 100
"""Settlements up to which those of an arm are counted."""


class Training(Model):
    """When and how the trainer fits the encoder. Due at counts of rewards, never at times."""

    first: PositiveInt = Field(256, description="Rewards before the first training.")
    growth: Annotated[float, Field(gt=1, le=100)] = Field(
        2.0,
        description="Each further training falls due at this many times the rewards of the last.",
    )
    gate: Literal["progressive", "rollout", "off"] = Field(
        "progressive",
        description="What lets a trained version serve. `progressive`: it predicts rewards better "
        "than the version that serves; until then it learns beside it, without traffic. `rollout`: "
        "that, and then a rollout over the version that serves. `off`: nothing, it serves at "
        "once.",
    )
    validation: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="Latest share of the rewards held out to stop early on."
    )
    epochs: PositiveInt = Field(60, description="Most passes.")
    patience: PositiveInt = Field(6, description="Passes without improvement before the stop.")
    batch: PositiveInt = Field(64, description="Rewards a gradient step, at least.")
    steps: PositiveInt = Field(
        64, description="Gradient steps a pass, at most; batches grow with the log."
    )
    learning_rate: PositiveFloat = Field(1e-3, description="Learning rate of Adam.")
