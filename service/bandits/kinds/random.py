"""`random`: every arm with the same chance.

    p_a = 1 / K,   of K arms

Nothing is learned.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from service.bandits.heads import Array
from service.bandits.kinds.base import Kind
from service.bandits.linalg import Index
from service.bandits.policy import Policy, Rule
from service.bandits.rules import Formula
from service.bandits.version import Version


class Uniform(Rule):
    """All tie, and ties share equally."""

    explores = True

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        return np.zeros((1, len(phi)))

    def formula(self, version: Version) -> Formula:
        return lambda _, like: np.full(len(like), 1.0 / like.sum())

    def batches(self, version: Version) -> bool:
        return True

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:
        return np.full((len(rows) // len(like), len(like)), 1.0 / like.sum())


class Random(Kind):
    kind: Literal["random"]

    def policy(self) -> Policy:
        return Policy(head=None, rule=Uniform())
