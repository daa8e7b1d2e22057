"""Heads: Bayesian, and what else learns from every settlement at once."""

from service.bandits.heads.base import KEPT_DRAWS as KEPT_DRAWS
from service.bandits.heads.base import KEPT_PLACES as KEPT_PLACES
from service.bandits.heads.base import NOISE_RATE as NOISE_RATE
from service.bandits.heads.base import NOISE_SHAPE as NOISE_SHAPE
from service.bandits.heads.base import Array as Array
from service.bandits.heads.base import Bank as Bank
from service.bandits.heads.base import HeadHealth as HeadHealth
from service.bandits.heads.base import Observation as Observation
from service.bandits.heads.beta import BetaHead as BetaHead
from service.bandits.heads.disjoint import DisjointRidgeHead as DisjointRidgeHead
from service.bandits.heads.ensemble import EnsembleHead as EnsembleHead
from service.bandits.heads.gradient import GradientHead as GradientHead
from service.bandits.heads.head import Effects as Effects
from service.bandits.heads.head import Head as Head
from service.bandits.heads.head import digest as digest
from service.bandits.heads.logistic import LogisticHead as LogisticHead
from service.bandits.heads.ridge import RidgeHead as RidgeHead
