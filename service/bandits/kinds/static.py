"""`static`: the best output of a net that is trained once."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from service.bandits.best_mean import BestMean
from service.bandits.encoder import Encoder
from service.bandits.kinds.base import Kind, Network, Sizes
from service.bandits.net import Net
from service.bandits.policy import Policy, Rule
from service.bandits.settings import Training
from service.features.view import View


class Static(Network):
    """The batched recommender: an embedding of each feature, an MLP on all of them, trained once.

    Until then it shows what chance has it, and so collects its log itself; or it learns from every
    policy's decisions.
    """

    kind: Literal["static"]
    hidden: Annotated[list[PositiveInt], Field(min_length=1, max_length=8)] = [64, 32]
    loss: Literal["log", "squared"] = Field(
        "log", description="log takes a reward, scaled to [0, 1] by its range, for a chance."
    )
    training: Training = Training(
        first=200_000, epochs=10, patience=10, batch=512, steps=4_096, validation=0.05
    )

    keeps_head = Kind.keeps_head | {"training"}

    def net(self) -> Net:
        return replace(super().net(), alone=True, log_loss=self.loss == "log")

    def policy(self) -> Policy:
        return replace(super().policy(), has_head=False, predicts=True)

    def make_rule(self) -> Rule:
        return BestMean()

    def make_head(self, encoder: Encoder, view: View, key: str, span: float) -> None:
        return None

    def head_numbers(self, sizes: Sizes) -> float:
        return 0.0
