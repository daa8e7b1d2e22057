"""`linucb`: the upper confidence bound of a ridge head.

    score_a = phi_a' mu + alpha sigma sqrt(phi_a' A^-1 phi_a)

    phi_a   row of context and arm
    A, mu   lambda I + sum phi phi', and A^-1 sum (r - level) phi, over settled rewards r
    sigma   noise of a reward
    alpha   given, or anytime: it grows for what is passed over (docs/decisions/6)

The arm of the largest score is chosen. Li, Chu, Langford, Schapire 2010 (arXiv 1003.0146),
algorithm 1, lines 8 to 11; Chu, Li, Reyzin, Schapire 2011.
"""

from typing import Literal, Self

from pydantic import model_validator

from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured, expect_searchable
from service.bandits.makers import ridge_heads
from service.bandits.policy import Policy
from service.bandits.ucb import UpperBound


class LinUcb(Featured):
    kind: Literal["linucb"]
    min_tries: fields.MinTries = 3
    alpha: fields.Alpha = "anytime"
    disjoint: fields.Disjoint = False
    ridge: fields.Ridge = 1.0
    noise: fields.Noise = None
    retrieve: fields.Retrieve = None

    def policy(self) -> Policy:
        return Policy(
            head=ridge_heads(self.ridge, self.noise, disjoint=self.disjoint),
            rule=UpperBound(self.alpha, per_arm=self.disjoint),
            retrieve=self.retrieve,
            min_tries=self.min_tries,
        )

    @model_validator(mode="after")
    def _one_head_to_search(self) -> Self:
        expect_searchable(self.retrieve, disjoint=self.disjoint)
        return self
