"""`mc_dropout`: dropout as a posterior, one mask is a draw (Gal & Ghahramani 2016)."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from service.bandits.encoder import Encoder
from service.bandits.heads import Array, RidgeHead
from service.bandits.kinds.base import Choice, Exploring, Network, Sizes, in_spans
from service.bandits.net import Net
from service.bandits.policy import Policy, Rule
from service.bandits.thompson import ThompsonSampling
from service.bandits.ucb import UpperBound
from service.bandits.version import Version
from service.features.view import View


class Masks(Rule):
    """One row a dropout mask, or the mean and the standard deviation over the masks. Rewards since
    the training move all masks alike; before the first training, `untrained` decides.

    bound   None: one mask is drawn
    """

    def __init__(self, untrained: Rule, bound: UpperBound | None) -> None:
        self._untrained, self._bound = untrained, bound
        self.explores, self.draws = untrained.explores, untrained.draws

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        if version.encoder.trained is None:
            return self._untrained.scores(version, rows, phi, arms)
        masked, mean = version.encoder.predict_masked(rows), version.mean(phi, arms)
        if self._bound is None:
            return np.asarray(masked + (mean - masked.mean(axis=0)))
        assert version.head is not None
        return self._bound.bound(version.head, phi, mean, masked.std(axis=0), arms)


class McDropout(Network, Choice):
    kind: Literal["mc_dropout"]
    dropout: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="Share of the hidden units that a mask leaves out."
    )
    masks: Annotated[int, Field(ge=2, le=4096)] = Field(64, description="Masks T.")
    bank: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="Seed of the masks.")
    ridge: PositiveFloat = Field(1.0, description="As for the linear policies.")
    noise: PositiveFloat | None = Field(None, description="As for the linear policies.")

    keeps_head = Exploring.keeps_head | {"alpha", "rule", "masks", "bank", "training"}

    def net(self) -> Net:
        return replace(super().net(), masks=self.masks, dropout=self.dropout)

    def policy(self) -> Policy:
        return replace(super().policy(), predicts=True, draws=self.masks, bank_seed=self.bank)

    def make_rule(self) -> Rule:
        if self.rule == "thompson":
            return Masks(ThompsonSampling(self.masks), None)
        return Masks(self.upper_bound(), self.upper_bound())

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> RidgeHead:
        return RidgeHead(encoder.features(view.width), self.ridge, in_spans(self.noise, span))

    def draw_numbers(self, sizes: Sizes) -> float:
        """Of the masks: of each weight of the first two layers."""
        return 2.0 * self.masks * prod([*self.hidden, 1][:2])
