"""`neural_linucb`: the upper confidence bound of a ridge head on a net's features.

    score_a = phi_a' mu + alpha sigma sqrt(phi_a' A^-1 phi_a)

    phi_a   the net's last hidden layer, beside an untrained twin's and the row (docs/decisions/1)

The other symbols as of `linucb`. Xu, Wen, Zhao, Gu 2020 (arXiv 2012.01780), algorithm 1.
"""

from typing import Literal

from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured
from service.bandits.makers import ridge_heads
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training
from service.bandits.ucb import UpperBound


class NeuralLinUcb(Featured):
    kind: Literal["neural_linucb"]
    min_tries: fields.MinTries = 3
    alpha: fields.Alpha = "anytime"
    disjoint: fields.Disjoint = False
    ridge: fields.Ridge = 1.0
    noise: fields.Noise = None
    hidden: fields.Hidden = [128, 64]
    embedding: fields.Embedding = 32
    training: fields.TrainingPlan = Training()

    def policy(self) -> Policy:
        return Policy(
            net=Net(tuple(self.hidden), self.embedding, self.training),
            head=ridge_heads(self.ridge, self.noise, disjoint=self.disjoint),
            rule=UpperBound(self.alpha, net=True, per_arm=self.disjoint),
            training=self.training,
            min_tries=self.min_tries,
        )
