"""Settings of policies. One model a kind; a kind is its mix-ins and their defaults.

The defaults are meant for every world: rewards in any range, binary or not, few arms or many.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from service.features.model import Model

FULL_ROWS = 2_048
"""Distinct rows in a full Z at most. At this limit the factor of their kernel has 34 MB; it takes
0.3 s to make and 15 ms to read for 50 arms."""

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]


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

    @model_validator(mode="after")
    def _one_way_to_forget(self) -> "PolicySettings":
        if self.gamma < 1 and (self.window is not None or self.change):
            raise ValueError("gamma: forget by gamma, or by window and change, not by both")
        return self

    @property
    def sees_features(self) -> bool:
        """Whether it looks at context and arm features at all."""
        return False

    @property
    def has_net(self) -> bool:
        """Whether the trainer fits a net for it."""
        return False

    @property
    def per_arm(self) -> bool:
        """Whether arms of equal features are told apart by their ids."""
        return not self.sees_features


class Featured(PolicySettings):
    features: Annotated[list[str], Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="Features, crosses ('a x b') and 'intercept' that this policy sees, in order. "
        "Left out: all that fit the kind.",
    )

    @property
    def sees_features(self) -> bool:
        return True


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

    @property
    def per_arm(self) -> bool:
        return self.disjoint or not self.sees_features


class Ucb(Model):
    alpha: Annotated[float, Field(ge=0)] | Literal["anytime"] = Field(
        "anytime",
        description="Width of the upper confidence bound, in units of the noise. anytime: it grows "
        "for what is passed over, sqrt(1/4 + k log(1 + n v / U)) for a row of variance v (in units "
        "of the noise) among U that share a head of n settlements (k = 2 with a net, else 1), "
        "sqrt(1 + log(1 + n v)) in a head of its own.",
    )


class Thompson(Model):
    draws: Annotated[int, Field(ge=16, le=16_384)] = Field(
        512, description="Posterior draws M that the probabilities are counted over."
    )
    bank: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="Seed of the bank of draws; another seed gives other draws."
    )
    scale: PositiveFloat = Field(
        1.0,
        description="Draws lie so many times as far from the mean as the posterior has them; below "
        "1 is a narrower, greedier Thompson sampling.",
    )


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


class Network(Featured):
    """An MLP with ReLU layers that ends in a linear embedding."""

    hidden: Annotated[list[PositiveInt], Field(min_length=1, max_length=8)] = Field(
        [128, 64], description="Widths of the ReLU layers."
    )
    embedding: PositiveInt = Field(32, description="Width of the linear layer that the head sees.")
    training: Training = Field(Training(), description="When and how the net is fitted.")

    @property
    def has_net(self) -> bool:
        return True


class Gradient(Network):
    """A head whose widths come from gradients of the net: Z = lambda I + sum J J^T."""

    form: Literal["last_layer", "diagonal", "full"] = Field(
        "last_layer",
        description="Which parameters' gradients make up Z, and how it is kept. diagonal and full "
        "look at every parameter of a net without an embedding; full is exact for the first "
        f"{FULL_ROWS:,} distinct rows of context and arm.",
    )
    ridge: PositiveFloat = Field(
        1.0, description="Prior precision lambda, in units of 1 / noise^2."
    )
    noise: PositiveFloat | None = Field(None, description="As for the linear policies.")

    @model_validator(mode="after")
    def _full_does_not_decay(self) -> "Gradient":
        if self.form == "full" and self.gamma < 1:
            raise ValueError(
                "gamma: the full form keeps its first rows for ever; use window or change"
            )
        return self


class Choice(Ucb):
    """How a spread of predictions is turned into scores."""

    rule: Literal["thompson", "ucb"] = Field(
        "thompson", description="One prediction is drawn, or mean + alpha standard deviations."
    )


class Point(Ridge, Network):
    """A point estimate, served greedily."""

    regressor: Literal["linear", "neural", "popularity"] = Field(
        "linear", description="What predicts: a ridge head, one on a net, or clicks by arm."
    )

    @property
    def sees_features(self) -> bool:
        return self.regressor != "popularity"

    @property
    def has_net(self) -> bool:
        return self.regressor == "neural"


class Retrieving(Ridge):
    """One linear head for all arms, whose best arms a search can find."""

    retrieve: Annotated[int, Field(ge=1, le=1_000)] | None = Field(
        None,
        description="Where a request names no arms, candidates are the best so many of the "
        "catalogue for the mean and for each of 8 posterior draws, and a quarter as many drawn "
        "uniformly: probabilities are over these. Left out: all arms. For catalogues beyond 10,000 "
        "arms.",
    )

    @model_validator(mode="after")
    def _one_head_to_search(self) -> "Retrieving":
        if self.retrieve is not None and self.disjoint:
            raise ValueError("retrieve: disjoint heads cannot be searched; name the arms instead")
        return self


class LinUcb(Retrieving, Ucb):
    kind: Literal["linucb"]


class LinTs(Retrieving, Thompson):
    kind: Literal["lints"]


class NeuralLinearTs(Ridge, Thompson, Network):
    kind: Literal["neural_linear_ts"]


class NeuralLinUcb(Ridge, Ucb, Network):
    kind: Literal["neural_linucb"]


class NeuralUcb(Gradient, Ucb):
    kind: Literal["neural_ucb"]


class NeuralTs(Gradient, Thompson):
    kind: Literal["neural_ts"]


class NeuralGlmTs(Network, Thompson):
    kind: Literal["neural_glm_ts"]
    ridge: PositiveFloat = Field(1.0, description="Prior precision epsilon, on the logit.")
    batch: Annotated[int, Field(ge=1, le=256)] = Field(
        16, description="Settlements a step of the head."
    )


class BootstrapEnsemble(Network, Choice):
    kind: Literal["bootstrap_ensemble"]
    members: Annotated[int, Field(ge=2, le=256)] = Field(10, description="Regressors N.")
    ridge: PositiveFloat = Field(1.0, description="As for the linear policies.")
    noise: PositiveFloat | None = Field(None, description="As for the linear policies.")


class McDropout(Network, Choice):
    kind: Literal["mc_dropout"]
    dropout: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="Share of the hidden units that a mask leaves out."
    )
    masks: Annotated[int, Field(ge=2, le=4096)] = Field(64, description="Masks T.")
    bank: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="Seed of the masks.")
    ridge: PositiveFloat = Field(1.0, description="As for the linear policies.")
    noise: PositiveFloat | None = Field(None, description="As for the linear policies.")


class Greedy(Point):
    kind: Literal["greedy"]


class EpsilonGreedy(Point):
    kind: Literal["epsilon_greedy"]
    epsilon: Probability = 0.1


class Static(Network):
    """The batched recommender: an embedding of each feature, an MLP on all of them, trained once.

    Until then it shows what chance has it, and so collects its log itself; or it learns from every
    policy's decisions.
    """

    kind: Literal["static"]
    hidden: Annotated[list[PositiveInt], Field(min_length=1, max_length=8)] = [64, 32]
    loss: Literal["log", "squared"] = Field("log", description="log is for rewards in [0, 1].")
    training: Training = Training(
        first=200_000, epochs=10, patience=10, batch=512, steps=4_096, validation=0.05
    )


class Popularity(PolicySettings, Thompson):
    kind: Literal["popularity"]


class Random(PolicySettings):
    kind: Literal["random"]


AnyPolicy = Annotated[
    LinUcb
    | LinTs
    | NeuralLinearTs
    | NeuralLinUcb
    | NeuralUcb
    | NeuralTs
    | NeuralGlmTs
    | BootstrapEnsemble
    | McDropout
    | Greedy
    | EpsilonGreedy
    | Static
    | Popularity
    | Random,
    Field(discriminator="kind"),
]
