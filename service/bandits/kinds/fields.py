"""Settings that several kinds have: types, limits and meanings, each once. Defaults stand in the
kinds."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from service.bandits.settings import FULL_ROWS, MOST_TRIES, Training


class KeepsHead:
    """Marks a setting that may change without a new head."""


KEEPS_HEAD = KeepsHead()

Share = Annotated[float, Field(ge=0, le=1e6)]

Epsilon = Annotated[
    float,
    Field(ge=0, le=1, description="Exploration floor: p <- (1 - epsilon) p + epsilon / K."),
    KEEPS_HEAD,
]

# -- what it sees ----------------------------------------------------------------------------------

FeatureNames = Annotated[
    Annotated[list[str], Field(min_length=1, max_length=256)] | None,
    Field(
        description="Features, crosses ('a x b') and 'intercept' that this policy sees, in order. "
        "Left out: all that fit the kind."
    ),
]

Hidden = Annotated[
    list[PositiveInt],
    Field(min_length=1, max_length=8, description="Widths of the ReLU layers."),
]
Embedding = Annotated[
    PositiveInt, Field(description="Width of the linear layer that the head sees.")
]
TrainingPlan = Annotated[Training, Field(description="When and how the net is fitted."), KEEPS_HEAD]

# -- heads -----------------------------------------------------------------------------------------

Disjoint = Annotated[bool, Field(description="One head an arm over context features alone.")]
Ridge = Annotated[
    PositiveFloat, Field(description="Prior precision lambda, in units of 1 / noise^2.")
]
Noise = Annotated[
    PositiveFloat | None,
    Field(description="Standard deviation of a reward; left out: learned (normal-inverse-gamma)."),
]
SameRidge = Annotated[
    PositiveFloat, Field(description="Prior precision lambda, as for the linear policies.")
]
SameNoise = Annotated[
    PositiveFloat | None,
    Field(description="Standard deviation of a reward, as for the linear policies."),
]
ZForm = Annotated[
    Literal["last_layer", "diagonal", "full"],
    Field(
        description="Which parameters' gradients make up Z, and how it is kept. diagonal and full "
        "look at every parameter of a net without an embedding; full is exact for the first "
        f"{FULL_ROWS:,} distinct rows of context and arm."
    ),
]
Regressor = Annotated[
    Literal["linear", "neural", "popularity"],
    Field(description="What predicts: a ridge head, one on a net, or clicks by arm."),
]

# -- rules -----------------------------------------------------------------------------------------

MinTries = Annotated[
    int,
    Field(
        ge=0,
        le=MOST_TRIES,
        description="Once an arm was shown so often, arms of the catalogue that were not share a "
        "tenth of a decision's chance until they were; 0: the policy alone decides, which is the "
        "default of `auto` where it sees a context and no features of arms.",
    ),
    KEEPS_HEAD,
]
Alpha = Annotated[
    Annotated[float, Field(ge=0)] | Literal["anytime"],
    Field(
        description="Width of the upper confidence bound, in units of the noise. anytime: it grows "
        "for what is passed over, sqrt(1/4 + k log(1 + n v / U)) for a row of variance v (in units "
        "of the noise) among U that share a head of n settlements (k = 2 with a net, else 1), "
        "sqrt(1 + log(1 + n v)) in a head of its own."
    ),
    KEEPS_HEAD,
]
Draws = Annotated[
    int,
    Field(
        ge=16,
        le=16_384,
        description="Posterior draws M that the probabilities are counted over.",
    ),
    KEEPS_HEAD,
]
BankSeed = Annotated[
    int,
    Field(
        ge=0,
        lt=2**32,
        description="Seed of the bank of draws; another seed gives other draws.",
    ),
    KEEPS_HEAD,
]
DrawScale = Annotated[
    PositiveFloat,
    Field(
        description="Draws lie so many times as far from the mean as the posterior has them; below "
        "1 is a narrower, greedier Thompson sampling."
    ),
    KEEPS_HEAD,
]
SpreadRule = Annotated[
    Literal["thompson", "ucb"],
    Field(description="One prediction is drawn, or mean + alpha standard deviations."),
    KEEPS_HEAD,
]
Retrieve = Annotated[
    Annotated[int, Field(ge=1, le=1_000)] | None,
    Field(
        description="Where a request names no arms, candidates are the best so many of the "
        "catalogue for the mean and for each of 8 posterior draws, and a quarter as many drawn "
        "uniformly: probabilities are over these. Left out: all arms. For catalogues beyond 10,000 "
        "arms."
    ),
    KEEPS_HEAD,
]
