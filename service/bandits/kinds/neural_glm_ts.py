"""`neural_glm_ts`: draws of a logistic head on a net's features.

    eta_k = c + phi_a' beta + scale sigma phi_a' Sigma^(-1/2) z_k,   p_a = share of k that a wins

    phi_a      the net's last hidden layer, beside an untrained twin's and the row
    c, beta    logit of the rate of clicks, and coefficients relative to it
    Sigma      epsilon I + sum phi phi'
    sigma^2    observations per unit of information
    z_k        M standard normal vectors, stratified

Su et al. 2023 (arXiv 2305.07764), algorithm 1; Ding, Hsieh, Sharpnack 2021 (arXiv 2006.04012);
docs/decisions/14 has the departures.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured, SettingWarning, few_draws
from service.bandits.makers import Logistic
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training
from service.bandits.thompson import ThompsonSampling


class NeuralGlmTs(Featured):
    kind: Literal["neural_glm_ts"]
    min_tries: fields.MinTries = 3
    draws: fields.Draws = 512
    bank: fields.BankSeed = 0
    scale: fields.DrawScale = 1.0
    hidden: fields.Hidden = [128, 64]
    embedding: fields.Embedding = 32
    training: fields.TrainingPlan = Training()
    ridge: PositiveFloat = Field(1.0, description="Prior precision epsilon, on the logit.")
    batch: Annotated[int, Field(ge=1, le=256)] = Field(
        16, description="Settlements a step of the head."
    )

    def policy(self) -> Policy:
        net = Net(tuple(self.hidden), self.embedding, self.training, log_loss=True, unscaled=True)
        return Policy(
            net=net,
            head=Logistic(self.ridge, self.batch),
            rule=ThompsonSampling(self.draws, self.scale),
            training=self.training,
            draws=self.draws,
            bank_seed=self.bank,
            min_tries=self.min_tries,
        )

    def warnings(self, arms: int, rows: float) -> Iterator[SettingWarning]:
        return few_draws(self.draws, arms)
