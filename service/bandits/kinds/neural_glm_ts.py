"""`neural_glm_ts`: draws of a logistic head on a net's features (Su et al. 2023; Ding, Hsieh,
Sharpnack 2021)."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from service.bandits.encoder import Encoder
from service.bandits.heads import LogisticHead
from service.bandits.kinds.base import Exploring, Network, Sizes, Thompson
from service.bandits.net import Net
from service.features.view import View

LOGISTIC = 10
"""Peak number of m x m matrices of a logistic head."""


class NeuralGlmTs(Network, Thompson):
    kind: Literal["neural_glm_ts"]
    ridge: PositiveFloat = Field(1.0, description="Prior precision epsilon, on the logit.")
    batch: Annotated[int, Field(ge=1, le=256)] = Field(
        16, description="Settlements a step of the head."
    )

    keeps_head = Exploring.keeps_head | {"draws", "bank", "scale", "training"}

    def net(self) -> Net:
        return replace(super().net(), log_loss=True, unscaled=True)

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> LogisticHead:
        return LogisticHead(encoder.features(view.width), self.ridge, self.batch)

    def head_numbers(self, sizes: Sizes) -> float:
        return float(LOGISTIC * sizes.columns**2)
