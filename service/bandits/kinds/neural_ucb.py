"""`neural_ucb`: the upper confidence bound of a net's output, by its gradients.

    score_a = g(x_a) + phi_a' mu + alpha sigma sqrt(J_a' Z^-1 J_a),   Z = lambda I + sum J J'

    g       the net's output
    mu      of a ridge head, which learns what g leaves of rewards until the next training
    J_a     gradient of g in the parameters that `form` says
    sigma   noise of a reward

Zhou, Li, Gu 2020 (arXiv 1911.04462), algorithm 1, line 6; docs/decisions/5 and 9.
"""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured, SettingWarning, expect_no_decay, many_rows
from service.bandits.makers import gradient_heads
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training
from service.bandits.ucb import UpperBound


class NeuralUcb(Featured):
    kind: Literal["neural_ucb"]
    min_tries: fields.MinTries = 3
    alpha: fields.Alpha = "anytime"
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
            rule=UpperBound(self.alpha, net=True),
            predicts=True,
            training=self.training,
            min_tries=self.min_tries,
        )

    def warnings(self, arms: int, rows: float) -> Iterator[SettingWarning]:
        return many_rows(self.form, rows)

    @model_validator(mode="after")
    def _full_does_not_decay(self) -> Self:
        expect_no_decay(self.form, self.gamma)
        return self
