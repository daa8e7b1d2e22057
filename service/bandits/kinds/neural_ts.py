"""`neural_ts`: draws of a net's output, by its gradients.

    draw ~ N(g(x) + phi' mu, scale^2 sigma^2 J Z^-1 J'),   Z = lambda I + sum J J'

    g       the net's output
    mu      of a ridge head, which learns what g leaves of rewards until the next training
    J       gradients of g, one row an arm, in the parameters that `form` says
    sigma   noise of a reward

One draw for all arms; an arm's probability is the share of draws that it wins. Zhang, Zhou, Li, Gu
2021 (arXiv 2010.00827), algorithm 1, who draw each arm by itself.
"""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from service.bandits.kinds import fields
from service.bandits.kinds.base import (
    Featured,
    SettingWarning,
    expect_no_decay,
    few_draws,
    many_rows,
)
from service.bandits.makers import gradient_heads
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training
from service.bandits.thompson import ThompsonSampling


class NeuralTs(Featured):
    kind: Literal["neural_ts"]
    min_tries: fields.MinTries = 3
    draws: fields.Draws = 512
    bank: fields.BankSeed = 0
    scale: fields.DrawScale = 1.0
    form: fields.ZForm = "last_layer"
    ridge: fields.Ridge = 1.0
    noise: fields.SameNoise = None
    hidden: fields.Hidden = [128, 64]
    embedding: fields.Embedding = 32
    training: fields.TrainingPlan = Training()

    def policy(self) -> Policy:
        gradients = self.form != "last_layer"
        return Policy(
            net=Net(tuple(self.hidden), self.embedding, self.training, gradients=gradients),
            head=gradient_heads(self.form, self.ridge, self.noise),
            rule=ThompsonSampling(self.draws, self.scale),
            predicts=True,
            training=self.training,
            draws=self.draws,
            bank_seed=self.bank,
            min_tries=self.min_tries,
        )

    def warnings(self, arms: int, rows: float) -> Iterator[SettingWarning]:
        yield from few_draws(self.draws, arms)
        yield from many_rows(self.form, rows)

    @model_validator(mode="after")
    def _full_does_not_decay(self) -> Self:
        expect_no_decay(self.form, self.gamma)
        return self
