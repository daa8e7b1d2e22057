"""`greedy`: the arm of the best mean.

    a = argmax phi_a' mu

    phi_a   row of context and arm, or of a net's features
    mu      A^-1 sum (r - level) phi, with A = lambda I + sum phi phi', over settled rewards r

With the regressor "popularity" the mean is an arm's share of clicks.
"""

from typing import Literal

from service.bandits.best_mean import BestMean
from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured
from service.bandits.makers import regression
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training


class Greedy(Featured):
    kind: Literal["greedy"]
    regressor: fields.Regressor = "linear"
    disjoint: fields.Disjoint = False
    ridge: fields.Ridge = 1.0
    noise: fields.Noise = None
    hidden: fields.Hidden = [128, 64]
    embedding: fields.Embedding = 32
    training: fields.TrainingPlan = Training()

    def policy(self) -> Policy:
        net = Net(tuple(self.hidden), self.embedding, self.training)
        return Policy(
            net=net if self.regressor == "neural" else None,
            head=regression(self.regressor, self.ridge, self.noise, disjoint=self.disjoint),
            rule=BestMean(),
            training=self.training,
        )
