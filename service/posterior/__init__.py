"""Heads: Bayesian, and what else learns from every settlement at once."""

from service.posterior.base import (
    KEPT_DRAWS,
    KEPT_PLACES,
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
from service.posterior.ensemble import EnsembleHead
from service.posterior.gradient import GradientHead
from service.posterior.logistic import LogisticHead
from service.posterior.ridge import RidgeHead

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
    "RidgeHead",
    "digest",
]
