"""Heads: Bayesian, and what else learns from every settlement at once."""

from service.bandits.posterior.base import KEPT_DRAWS as KEPT_DRAWS
from service.bandits.posterior.base import KEPT_PLACES as KEPT_PLACES
from service.bandits.posterior.base import NOISE_RATE as NOISE_RATE
from service.bandits.posterior.base import NOISE_SHAPE as NOISE_SHAPE
from service.bandits.posterior.base import Array as Array
from service.bandits.posterior.base import Bank as Bank
from service.bandits.posterior.base import Head as Head
from service.bandits.posterior.base import HeadHealth as HeadHealth
from service.bandits.posterior.base import Observation as Observation
from service.bandits.posterior.base import digest as digest
from service.bandits.posterior.beta import BetaHead as BetaHead
from service.bandits.posterior.disjoint import DisjointRidgeHead as DisjointRidgeHead
from service.bandits.posterior.ensemble import EnsembleHead as EnsembleHead
from service.bandits.posterior.gradient import GradientHead as GradientHead
from service.bandits.posterior.logistic import LogisticHead as LogisticHead
from service.bandits.posterior.ridge import RidgeHead as RidgeHead
