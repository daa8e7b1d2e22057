"""`squarecb`: inverse-gap weighting of the means, with a chance for every arm in closed form.

    p_a = 1 / (K + (K / U) c sqrt(n) (m_best - m_a)),   and the best arm has what is left

    m_a    mean of the arm, as of `greedy`, as a share of the range of rewards
    K, U   arms, and arms that the policy can tell apart
    n, c   settlements that the head holds, and `gap_scale`

Foster, Rakhlin 2020 (arXiv 2002.04926), algorithm 1, with gamma = (K / U) c sqrt(n); Abe, Long
1999.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from service.bandits.inverse_gap import InverseGap
from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured
from service.bandits.makers import regression
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training


class SquareCb(Featured):
    kind: Literal["squarecb"]
    regressor: fields.Regressor = "linear"
    disjoint: fields.Disjoint = False
    ridge: fields.Ridge = 1.0
    noise: fields.Noise = None
    hidden: fields.Hidden = [128, 64]
    embedding: fields.Embedding = 32
    training: fields.TrainingPlan = Training()
    gap_scale: Annotated[PositiveFloat, fields.KEEPS_HEAD] = Field(
        10.0,
        description="Factor c: of K arms of U kinds, one whose mean is a share g of the reward "
        "range below the best has the chance 1 / (K + (K / U) c sqrt(n) g) after n settlements. "
        "Larger explores less.",
    )

    def policy(self) -> Policy:
        neural = self.regressor == "neural"
        net = Net(tuple(self.hidden), self.embedding, self.training)
        return Policy(
            net=net if neural else None,
            head=regression(self.regressor, self.ridge, self.noise, disjoint=self.disjoint),
            rule=InverseGap(self.gap_scale, net=neural),
            training=self.training,
        )
