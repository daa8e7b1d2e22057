"""Heads: Bayesian, and what else learns from every settlement at once."""

from service.bandits.posterior.base import (
    KEPT_DRAWS,
    KEPT_PLACES,
    NOISE_RATE,
    NOISE_SHAPE,
    Array,
    Bank,
    Head,
    Health,
    Observation,
    digest,
)
from service.bandits.posterior.beta import BetaHead
from service.bandits.posterior.disjoint import DisjointRidgeHead
from service.bandits.posterior.ensemble import EnsembleHead
from service.bandits.posterior.gradient import GradientHead
from service.bandits.posterior.logistic import LogisticHead
from service.bandits.posterior.ridge import RidgeHead

__all__ = [
    "KEPT_DRAWS",
    "KEPT_PLACES",
    "NOISE_RATE",
    "NOISE_SHAPE",
    "Array",
    "Bank",
    "BetaHead",
    "DisjointRidgeHead",
    "EnsembleHead",
    "GradientHead",
    "Head",
    "Health",
    "LogisticHead",
    "Observation",
    "RidgeHead",
    "digest",
]
