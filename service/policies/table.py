"""Every kind of policy in one table: a head and a rule. A net before the head is in the settings of
the kinds that have one (`settings.Network`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.policies.settings import PolicySettings
from service.posterior import Array, Bank, BetaHead, DisjointRidgeHead, Head, RidgeHead

Rule = Callable[[Head, Array, Sequence[str], Any, Bank], Array]
"""(head, phi (n, m), arms, settings, bank) -> scores (M, n)."""


def ucb(head: Head, phi: Array, arms: Sequence[str], settings: Any, bank: Bank) -> Array:
    """x^T mu + alpha sigma_hat sqrt(x^T S x) (Li et al. 2010; Chu et al. 2011)."""
    return np.atleast_2d(head.mean(phi, arms) + settings.alpha * head.width(phi, arms))


def thompson(head: Head, phi: Array, arms: Sequence[str], settings: Any, bank: Bank) -> Array:
    """One row a posterior draw (Agrawal & Goyal 2013)."""
    return head.draw(phi, arms, bank)


def greedy(head: Head, phi: Array, arms: Sequence[str], settings: Any, bank: Bank) -> Array:
    return np.atleast_2d(head.mean(phi, arms))


def uniform(head: Head, phi: Array, arms: Sequence[str], settings: Any, bank: Bank) -> Array:
    """All tie, and ties share equally."""
    return np.zeros((1, len(phi)))


def ridge(settings: Any, size: int) -> Head:
    kind = DisjointRidgeHead if getattr(settings, "disjoint", False) else RidgeHead
    return kind(size, settings.ridge, settings.noise)


def beta(settings: PolicySettings, size: int) -> Head:
    return BetaHead()


@dataclass(frozen=True, slots=True)
class Family:
    """head: makes an empty one of a width, None where nothing is learned.

    predicts   the net's own output is the mean, the head holds what is left of the reward
    """

    head: Callable[[Any, int], Head] | None
    rule: Rule
    predicts: bool = False


FAMILIES = {
    "linucb": Family(ridge, ucb),
    "lints": Family(ridge, thompson),
    "neural_linear_ts": Family(ridge, thompson),
    "neural_ucb": Family(ridge, ucb, predicts=True),
    "popularity": Family(beta, thompson),
    "epsilon_greedy": Family(ridge, greedy),
    "random": Family(None, uniform),
}
