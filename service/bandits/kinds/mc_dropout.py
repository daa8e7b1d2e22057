"""`mc_dropout`: dropout as a posterior, one mask is a draw.

    f_t(a) = g(x_a; theta * m_t) + phi_a' mu,   m_t ~ Bernoulli(1 - dropout)

    rule "thompson"   p_a = share of the T masks under which f_t(a) is the largest
    rule "ucb"        score_a = mean_t f_t(a) + alpha std_t f_t(a)
    g, theta          the net's output, and its weights
    mu                of a ridge head, which learns what g leaves of rewards

Gal, Ghahramani 2016 (arXiv 1506.02142), equations 6 and 7.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from service.bandits.heads import Array
from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured
from service.bandits.makers import SharedRidge
from service.bandits.net import Net
from service.bandits.policy import Policy, Rule
from service.bandits.settings import Training
from service.bandits.thompson import ThompsonSampling
from service.bandits.ucb import UpperBound
from service.bandits.version import Version


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


class McDropout(Featured):
    kind: Literal["mc_dropout"]
    min_tries: fields.MinTries = 3
    alpha: fields.Alpha = "anytime"
    rule: fields.SpreadRule = "thompson"
    hidden: fields.Hidden = [128, 64]
    embedding: fields.Embedding = 32
    training: fields.TrainingPlan = Training()
    dropout: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="Share of the hidden units that a mask leaves out."
    )
    masks: Annotated[int, Field(ge=2, le=4096), fields.KEEPS_HEAD] = Field(
        64, description="Masks T."
    )
    bank: Annotated[int, Field(ge=0, lt=2**32), fields.KEEPS_HEAD] = Field(
        0, description="Seed of the masks."
    )
    ridge: fields.SameRidge = 1.0
    noise: fields.SameNoise = None

    def policy(self) -> Policy:
        thompson, bound = ThompsonSampling(self.masks), UpperBound(self.alpha, net=True)
        return Policy(
            net=Net(
                tuple(self.hidden),
                self.embedding,
                self.training,
                masks=self.masks,
                dropout=self.dropout,
            ),
            head=SharedRidge(self.ridge, self.noise),
            rule=Masks(thompson, None) if self.rule == "thompson" else Masks(bound, bound),
            predicts=True,
            training=self.training,
            draws=self.masks,
            bank_seed=self.bank,
            min_tries=self.min_tries,
        )
