"""`bootstrap_ensemble`: ridge regressors, each of which resamples the settlements (Osband & Van Roy
2015)."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from service.bandits.encoder import Encoder
from service.bandits.heads import EnsembleHead
from service.bandits.kinds.base import SHARED, Choice, Exploring, Network, Sizes, in_spans
from service.bandits.policy import Rule
from service.bandits.thompson import ThompsonSampling
from service.features.view import View

MEMBERS = 5
"""Peak number of m x m matrices of each member."""


class BootstrapEnsemble(Network, Choice):
    kind: Literal["bootstrap_ensemble"]
    members: Annotated[int, Field(ge=2, le=256)] = Field(10, description="Regressors N.")
    ridge: PositiveFloat = Field(1.0, description="As for the linear policies.")
    noise: PositiveFloat | None = Field(None, description="As for the linear policies.")

    keeps_head = Exploring.keeps_head | {"alpha", "rule", "training"}

    def make_rule(self) -> Rule:
        return ThompsonSampling(self.members) if self.rule == "thompson" else self.upper_bound()

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> EnsembleHead:
        noise = in_spans(self.noise, span)
        return EnsembleHead(encoder.features(view.width), self.ridge, noise, self.members, key)

    def head_numbers(self, sizes: Sizes) -> float:
        return float((SHARED + MEMBERS * self.members) * sizes.columns**2)
