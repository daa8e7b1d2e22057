"""Heads: Bayesian, and what else learns from every settlement at once."""

from service.posterior.base import (
    KEPT_DRAWS,
    NOISE_RATE,
    NOISE_SHAPE,
    Array,
    Bank,
    Head,
    Health,
    digest,
)
from service.posterior.beta import BetaHead
from service.posterior.disjoint import DisjointRidgeHead
from service.posterior.ridge import RidgeHead

__all__ = [
    "KEPT_DRAWS",
    "NOISE_RATE",
    "NOISE_SHAPE",
    "Array",
    "Bank",
    "BetaHead",
    "DisjointRidgeHead",
    "Head",
    "Health",
    "RidgeHead",
    "digest",
]
