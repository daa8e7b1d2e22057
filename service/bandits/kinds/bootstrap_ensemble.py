"""`bootstrap_ensemble`: ridge regressors, each of which resamples the settlements.

    f_i(a) = phi_a' mu_i,   mu_i = A_i^-1 (sum w_i r phi + sqrt(lambda) sigma z_i)

    rule "thompson"   p_a = share of the N regressors under which f_i(a) is the largest
    rule "ucb"        score_a = mean_i f_i(a) + alpha std_i f_i(a)
    phi_a             the net's last hidden layer, beside an untrained twin's and the row
    w_i, A_i          Poisson(1) of each settlement, and lambda I + sum w_i phi phi'
    sigma, z_i        noise of a reward, and standard normals that randomise the prior's mean

Osband, Van Roy 2015 (arXiv 1507.00300), algorithm 1; Osband, Aslanides, Cassirer 2018 (arXiv
1806.03335), lemma 3.
"""

from typing import Annotated, Literal

from pydantic import Field

from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured
from service.bandits.makers import Ensemble
from service.bandits.net import Net
from service.bandits.policy import Policy
from service.bandits.settings import Training
from service.bandits.thompson import ThompsonSampling
from service.bandits.ucb import UpperBound


class BootstrapEnsemble(Featured):
    kind: Literal["bootstrap_ensemble"]
    min_tries: fields.MinTries = 3
    alpha: fields.Alpha = "anytime"
    rule: fields.SpreadRule = "thompson"
    hidden: fields.Hidden = [128, 64]
    embedding: fields.Embedding = 32
    training: fields.TrainingPlan = Training()
    members: Annotated[int, Field(ge=2, le=256)] = Field(10, description="Regressors N.")
    ridge: fields.SameRidge = 1.0
    noise: fields.SameNoise = None

    def policy(self) -> Policy:
        thompson = self.rule == "thompson"
        return Policy(
            net=Net(tuple(self.hidden), self.embedding, self.training),
            head=Ensemble(self.ridge, self.noise, self.members),
            rule=ThompsonSampling(self.members) if thompson else UpperBound(self.alpha, net=True),
            training=self.training,
            min_tries=self.min_tries,
        )
