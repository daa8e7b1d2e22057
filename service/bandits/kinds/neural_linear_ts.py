"""`neural_linear_ts`: posterior draws of a ridge head on a net's features.

    w_k = mu + scale sigma A^(-1/2) z_k,   p_a = share of k with a = argmax phi_a' w_k

    phi_a   the net's last hidden layer, beside an untrained twin's and the row (docs/decisions/1)

The other symbols as of `lints`. Riquelme, Tucker, Snoek 2018 (arXiv 1802.09127), section 4,
equations 1 and 2.
"""

from collections.abc import Iterator
from typing import Literal

from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured, SettingWarning, few_draws
from service.bandits.makers import ridge_heads
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training
from service.bandits.thompson import ThompsonSampling


class NeuralLinearTs(Featured):
    kind: Literal["neural_linear_ts"]
    min_tries: fields.MinTries = 3
    draws: fields.Draws = 512
    bank: fields.BankSeed = 0
    scale: fields.DrawScale = 1.0
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
            rule=ThompsonSampling(self.draws, self.scale),
            training=self.training,
            draws=self.draws,
            bank_seed=self.bank,
            min_tries=self.min_tries,
        )

    def warnings(self, arms: int, rows: float) -> Iterator[SettingWarning]:
        return few_draws(self.draws, arms)
