"""What a kind of policy is, and the mix-ins that kinds share: a kind is its mix-ins and their
defaults.

The defaults are meant for every world: rewards in any range, binary or not, few arms or many.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from service.bandits.best_mean import BestMean
from service.bandits.encoder import Encoder
from service.bandits.heads import (
    KEPT_DRAWS,
    BetaHead,
    DisjointRidgeHead,
    GradientHead,
    Head,
    RidgeHead,
)
from service.bandits.net import Net
from service.bandits.policy import Policy, Rule
from service.bandits.settings import FULL_ROWS, MOST_TRIES, PolicySettings, Training
from service.bandits.thompson import ThompsonSampling
from service.bandits.ucb import UpperBound
from service.features.declaration import INTERCEPT, Features
from service.features.model import Model
from service.features.view import View

SHARED, DISJOINT, FULL = 8, 6, 8
"""Peak number of m x m matrices of a head: A, its root, the root with the mean, a temporary and
those of a snapshot. Of a shared head, of each arm's own head in stacks that double, and of a full
Z, whose m is the number of its rows."""


def in_spans(noise: float | None, span: float) -> float | None:
    """Return a standard deviation of rewards in spans of their range."""
    return None if noise is None else noise / span


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the memory of a policy grows with.

    columns      of the head
    parameters   of the net
    rows         distinct rows of context and arm that may come
    arm_columns  columns of the view that are of the arm alone
    arms         in the catalogue
    heads        arms with a head of their own, where each has one
    """

    columns: int
    parameters: int
    rows: float
    arm_columns: int
    arms: int
    heads: int


class Kind(Model):
    """What a kind of policy does with its settings; these are `PolicySettings` and its own.

    keeps_head   settings that may change without a new head
    in_order     it learns rewards in the order of their decisions (`service.bandits.order`)
    """

    keeps_head: ClassVar[Set[str]] = frozenset({"share", "epsilon", "learning"})
    in_order: ClassVar[bool] = False

    @abstractmethod
    def make_rule(self) -> Rule:
        """Return how scores and probabilities follow from the head."""

    @abstractmethod
    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> Head | None:
        """Return an empty head for an encoder over rows of a view; None: nothing is learned
        between trainings. key: what the members of an ensemble are drawn by; span: of the range
        of rewards, which the head learns as 1."""

    def policy(self) -> Policy:
        """Convert the settings, once: a missing attribute of a model costs 10 us."""
        return Policy(self.make_rule(), per_arm=self.per_arm, disjoint=self.own_heads)

    @property
    def sees_features(self) -> bool:
        """Whether it looks at context and arm features at all."""
        return False

    @property
    def has_net(self) -> bool:
        """Whether the trainer fits a net for it."""
        return False

    @property
    def own_heads(self) -> bool:
        """Whether each arm has a head of its own."""
        return False

    @property
    def per_arm(self) -> bool:
        """Whether arms of equal features are told apart by their ids."""
        return self.own_heads or not self.sees_features

    @property
    def shares_features(self) -> bool:
        """Whether arms outside the catalogue teach it, though it tells arms apart by their ids."""
        return False

    def seen(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> list[str]:
        """The features that it sees: those it names, or all that fit the kind. arms: of the
        definition."""
        return []

    def completed(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> Self:
        """Return a copy in which defaults that depend on the experiment are written out."""
        return self

    def unwise(self, arms: int, rows: float) -> Iterator[tuple[str, str]]:
        """Yield settings to be warned of for so many arms and distinct rows, and why."""
        yield from ()

    # -- memory, in numbers ----------------------------------------------------------------------

    def head_numbers(self, sizes: Sizes) -> float:
        """Of the head's matrices, at their peak."""
        return float(SHARED * sizes.columns**2)

    def remembered(self, sizes: Sizes) -> int:
        """Settlements that are kept for members of the head that join late."""
        return 0

    def draw_numbers(self, sizes: Sizes) -> float:
        """Of the draws: of each column of a shared head in four forms, or of each arm."""
        draws = self.policy().draws
        if self.per_arm:
            return float(min(sizes.arms * draws, KEPT_DRAWS))
        return 4.0 * sizes.columns * draws


class Featured(PolicySettings, Kind):
    features: Annotated[list[str], Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="Features, crosses ('a x b') and 'intercept' that this policy sees, in order. "
        "Left out: all that fit the kind.",
    )

    @property
    def sees_features(self) -> bool:
        return True

    def seen(self, features: Features, arms: Mapping[str, Mapping[str, object]]) -> list[str]:
        """A net sees the raw features and finds the crosses itself; a linear head needs them."""
        if not self.sees_features:
            return []
        if self.features is not None:
            return self.features
        context, arm = list(features.context), list(features.arm)
        if self.own_heads:
            return [INTERCEPT, *context]
        if self.has_net:
            return [*context, *arm]
        return [INTERCEPT, *context, *arm, *features.crosses]


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
    def own_heads(self) -> bool:
        return self.disjoint

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        make = DisjointRidgeHead if self.disjoint else RidgeHead
        return make(encoder.features(view.width), self.ridge, in_spans(self.noise, span))

    def head_numbers(self, sizes: Sizes) -> float:
        if self.disjoint:
            return float(DISJOINT * sizes.heads * sizes.columns**2)
        return super().head_numbers(sizes)


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

    def policy(self) -> Policy:
        return replace(super().policy(), retrieve=self.retrieve)


class Exploring(Kind):
    keeps_head = Kind.keeps_head | {"min_tries"}

    min_tries: Annotated[int, Field(ge=0, le=MOST_TRIES)] = Field(
        3,
        description="Once an arm was shown so often, arms of the catalogue that were not share a "
        "tenth of a decision's chance until they were; 0: the policy alone decides, which is the "
        "default of `auto` where it sees a context and no features of arms.",
    )

    def policy(self) -> Policy:
        return replace(super().policy(), min_tries=self.min_tries)


class Ucb(Exploring):
    alpha: Annotated[float, Field(ge=0)] | Literal["anytime"] = Field(
        "anytime",
        description="Width of the upper confidence bound, in units of the noise. anytime: it grows "
        "for what is passed over, sqrt(1/4 + k log(1 + n v / U)) for a row of variance v (in units "
        "of the noise) among U that share a head of n settlements (k = 2 with a net, else 1), "
        "sqrt(1 + log(1 + n v)) in a head of its own.",
    )

    def make_rule(self) -> Rule:
        return self.upper_bound()

    def upper_bound(self) -> UpperBound:
        alpha = None if self.alpha == "anytime" else self.alpha
        return UpperBound(alpha, net=self.has_net, per_arm=self.per_arm)


class Thompson(Exploring):
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

    def make_rule(self) -> Rule:
        return ThompsonSampling(self.draws, self.scale)

    def policy(self) -> Policy:
        return replace(super().policy(), draws=self.draws, bank_seed=self.bank)

    def unwise(self, arms: int, rows: float) -> Iterator[tuple[str, str]]:
        yield from super().unwise(arms, rows)
        if self.draws < arms:
            yield (
                "draws",
                f"{self.draws} draws over {arms:,} arms leave most of them with propensity 0",
            )


class Choice(Ucb):
    """How a spread of predictions is turned into scores."""

    rule: Literal["thompson", "ucb"] = Field(
        "thompson", description="One prediction is drawn, or mean + alpha standard deviations."
    )


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

    def net(self) -> Net:
        return Net(tuple(self.hidden), self.embedding, self.training)

    def policy(self) -> Policy:
        net = self.net() if self.has_net else None
        return replace(super().policy(), net=net, training=self.training)


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

    def net(self) -> Net:
        return replace(super().net(), gradients=self.form != "last_layer")

    def policy(self) -> Policy:
        return replace(super().policy(), predicts=True)

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        size = encoder.features(view.width)
        if self.form == "last_layer":
            return RidgeHead(size, self.ridge, in_spans(self.noise, span))
        noise = in_spans(self.noise, span)
        return GradientHead(size, encoder.layout, self.form, self.ridge, noise)

    def head_numbers(self, sizes: Sizes) -> float:
        numbers = super().head_numbers(sizes)
        if self.form == "full":
            numbers += FULL * min(FULL_ROWS, sizes.rows) ** 2
        elif self.form == "diagonal":
            numbers += 2.0 * sizes.parameters * (1 + sizes.arms)
        return numbers

    def unwise(self, arms: int, rows: float) -> Iterator[tuple[str, str]]:
        """A full Z may meet more distinct rows than it holds."""
        yield from super().unwise(arms, rows)
        if self.form == "full" and rows > FULL_ROWS:
            count = "any number" if rows == inf else f"{rows:,.0f}"
            yield (
                "form",
                f"full holds the first {FULL_ROWS:,} distinct rows, and {count} may come: the "
                "widths of later rows stay too large, so the policy explores for longer. "
                "last_layer and diagonal take in every row",
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

    def make_rule(self) -> Rule:
        return BestMean()

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> Head:
        return super().make_head(encoder, view, key, span) if self.sees_features else BetaHead()
