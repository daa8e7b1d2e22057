"""`popularity`: draws of each arm's chance of a click.

    q_k(a) ~ Beta(1 + clicks_a, 1 + misses_a),   p_a = share of k with a = argmax q_k(a)

Chapelle, Li 2011, algorithm 2; M draws, stratified.
"""

from collections.abc import Iterator
from typing import Literal

from service.bandits.kinds import fields
from service.bandits.kinds.base import Kind, SettingWarning, few_draws
from service.bandits.makers import Clicks
from service.bandits.policy import Policy
from service.bandits.thompson import ThompsonSampling


class Popularity(Kind):
    kind: Literal["popularity"]
    min_tries: fields.MinTries = 3
    draws: fields.Draws = 512
    bank: fields.BankSeed = 0
    scale: fields.DrawScale = 1.0

    def policy(self) -> Policy:
        return Policy(
            head=Clicks(),
            rule=ThompsonSampling(self.draws, self.scale),
            draws=self.draws,
            bank_seed=self.bank,
            min_tries=self.min_tries,
        )

    def warnings(self, arms: int, rows: float) -> Iterator[SettingWarning]:
        return few_draws(self.draws, arms)
