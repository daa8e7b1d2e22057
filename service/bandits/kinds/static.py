"""`static`: the best output of a net that is trained once.

    score_a = g(x_a; theta)

    g, theta   the output of an MLP on embeddings of the features, and its weights, fitted once

The arm of the largest score is chosen.
"""

from typing import Literal

from pydantic import Field

from service.bandits.best_mean import BestMean
from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training


class Static(Featured):
    """The batched recommender: an embedding of each feature, an MLP on all of them, trained once.

    Until then it shows what chance has it, and so collects its log itself; or it learns from every
    policy's decisions.
    """

    kind: Literal["static"]
    hidden: fields.Hidden = [64, 32]
    embedding: fields.Embedding = 32
    loss: Literal["log", "squared"] = Field(
        "log", description="log takes a reward, scaled to [0, 1] by its range, for a chance."
    )
    training: fields.TrainingPlan = Training(
        first=200_000, epochs=10, patience=10, batch=512, steps=4_096, validation=0.05
    )

    def policy(self) -> Policy:
        log_loss = self.loss == "log"
        return Policy(
            net=Net(
                tuple(self.hidden), self.embedding, self.training, alone=True, log_loss=log_loss
            ),
            head=None,
            rule=BestMean(),
            predicts=True,
            training=self.training,
        )
