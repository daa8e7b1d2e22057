"""`lints`: posterior draws of a ridge head.

    w_k = mu + scale sigma A^(-1/2) z_k,   p_a = share of k with a = argmax phi_a' w_k

    phi_a   row of context and arm
    A, mu   lambda I + sum phi phi', and A^-1 sum (r - level) phi, over settled rewards r
    sigma   noise of a reward
    z_k     M standard normal vectors, stratified (docs/decisions/2)

Agrawal, Goyal 2013 (arXiv 1209.3352), algorithm 1.
"""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from service.bandits.kinds import fields
from service.bandits.kinds.base import Featured, SettingWarning, expect_searchable, few_draws
from service.bandits.makers import ridge_heads
from service.bandits.policy import Policy
from service.bandits.thompson import ThompsonSampling


class LinTs(Featured):
    kind: Literal["lints"]
    min_tries: fields.MinTries = 3
    draws: fields.Draws = 512
    bank: fields.BankSeed = 0
    scale: fields.DrawScale = 1.0
    disjoint: fields.Disjoint = False
    ridge: fields.Ridge = 1.0
    noise: fields.Noise = None
    retrieve: fields.Retrieve = None

    def policy(self) -> Policy:
        return Policy(
            head=ridge_heads(self.ridge, self.noise, disjoint=self.disjoint),
            rule=ThompsonSampling(self.draws, self.scale),
            draws=self.draws,
            bank_seed=self.bank,
            retrieve=self.retrieve,
            min_tries=self.min_tries,
        )

    def warnings(self, arms: int, rows: float) -> Iterator[SettingWarning]:
        return few_draws(self.draws, arms)

    @model_validator(mode="after")
    def _one_head_to_search(self) -> Self:
        expect_searchable(self.retrieve, disjoint=self.disjoint)
        return self
