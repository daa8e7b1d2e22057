"""What can be set about a policy. One model a kind; a kind is its mix-ins and their defaults.

The defaults are meant for every world: rewards in any range, binary or not, few arms or many.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PolicySettings(Model):
    """Common to every kind."""

    share: Share = Field(
        1.0, description="Share of the traffic that names no policy; 0: only by name."
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


class Featured(PolicySettings):
    features: Annotated[list[str], Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="Features, crosses ('a x b') and 'intercept' that this policy sees, in order. "
        "Left out: all that fit the kind.",
    )


class Ridge(Featured):
    """A Bayesian linear head: one for all arms, or one an arm."""

    disjoint: bool = Field(False, description="One head an arm over context features alone.")
    ridge: PositiveFloat = Field(
        1.0, description="Prior precision lambda, in units of 1 / noise^2."
    )
    noise: PositiveFloat | None = Field(
        None,
        description="Standard deviation of a reward; left out: learned (normal-inverse-gamma).",
    )


class Ucb(Model):
    alpha: Annotated[float, Field(ge=0)] = Field(
        2.0, description="Width of the upper confidence bound, in units of the noise."
    )


class Thompson(Model):
    draws: Annotated[int, Field(ge=16, le=16_384)] = Field(
        512, description="Posterior draws M that the probabilities are counted over."
    )
    bank: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="Seed of the bank of draws; another seed gives other draws."
    )


class Training(Model):
    """When and how the trainer fits the encoder. Due at counts of rewards, never at times."""

    first: PositiveInt = Field(256, description="Rewards before the first training.")
    growth: Annotated[float, Field(gt=1, le=100)] = Field(
        2.0,
        description="Each further training falls due at this many times the rewards of the last.",
    )
    window: PositiveInt | None = Field(
        None, description="Latest rewards kept for training and head; left out: all."
    )
    validation: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="Latest share of the rewards held out to stop early on."
    )
    epochs: PositiveInt = Field(60, description="At most so many passes.")
    patience: PositiveInt = Field(6, description="Passes without improvement before the stop.")
    batch: PositiveInt = Field(64, description="Rewards a gradient step.")
    learning_rate: PositiveFloat = Field(1e-3, description="Of Adam.")


class Network(Featured):
    """An MLP with ReLU layers that ends in a linear embedding."""

    hidden: Annotated[list[PositiveInt], Field(min_length=1, max_length=8)] = Field(
        [128, 64], description="Widths of the ReLU layers."
    )
    embedding: PositiveInt = Field(32, description="Width of the linear layer that the head sees.")
    training: Training = Training()


class LinUcb(Ridge, Ucb):
    kind: Literal["linucb"]


class LinTs(Ridge, Thompson):
    kind: Literal["lints"]


class EpsilonGreedy(Ridge):
    kind: Literal["epsilon_greedy"]
    epsilon: Probability = 0.1


class NeuralLinearTs(Ridge, Thompson, Network):
    kind: Literal["neural_linear_ts"]


class NeuralUcb(Network, Ucb):
    kind: Literal["neural_ucb"]
    form: Literal["last_layer"] = Field(
        "last_layer", description="Which parameters' gradients make up Z."
    )
    ridge: PositiveFloat = Field(
        1.0, description="Prior precision lambda, in units of 1 / noise^2."
    )
    noise: PositiveFloat | None = Field(None, description="As for the linear policies.")


class Popularity(PolicySettings, Thompson):
    kind: Literal["popularity"]


class Random(PolicySettings):
    kind: Literal["random"]


AnyPolicy = Annotated[
    LinUcb | LinTs | NeuralLinearTs | NeuralUcb | Popularity | EpsilonGreedy | Random,
    Field(discriminator="kind"),
]
