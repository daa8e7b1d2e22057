"""Forecast of a rollout: how long each stage takes to advance an equal challenger, and to stop one
that loses twice the margin."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from service.analysis.rollout_evidence import ADVANCE_ALPHA, STOP_ALPHA
from service.bandits.boundary import radius
from service.state.rollout import DAY_S, HOUR_S

MEDIAN_SHARE, LATE_SHARE = 0.5, 0.9
"""Shares of rollouts that are over by a forecast."""


@dataclass(frozen=True)
class OwnDecisions:
    """Settled decisions of the challenger that an outcome needs: in the median, and in 90 percent.
    inf: it never comes."""

    median: float
    late: float


@dataclass(frozen=True)
class StageForecast:
    """Forecast of one stage, by its own decisions alone.

    advance             for an equal challenger
    stop                for one that loses twice the margin
    advance_s, stop_s   the same in seconds at today's traffic, in the median; an advance waits for
                        the stage's hours, a stop does not
    """

    share: float
    advance: OwnDecisions
    stop: OwnDecisions
    advance_s: float
    stop_s: float


@dataclass(frozen=True)
class RolloutForecast:
    """Forecast of a rollout.

    seconds      to the last stage, of an equal challenger in the median: later stages keep the
                 evidence of the first, so that they take their hours alone
    cannot_end   the evidence takes longer than the rollout may stay undecided
    """

    stages: list[StageForecast]
    seconds: float
    cannot_end: bool


@dataclass(frozen=True)
class RolloutTraffic:
    """Traffic of both policies and what it earns.

    per_second   decisions of both
    variance     of a reward of the challenger, and of the baseline
    baseline     reward of a decision of the baseline, from the least reward
    span         largest less smallest reward
    """

    per_second: float
    variance: tuple[float, float]
    baseline: float
    span: float


def rollout_forecast(
    traffic: RolloutTraffic,
    shares: Sequence[float],  # of the challenger in each stage that has both policies
    margin: float,
    stage_hours: float = 24.0,
    undecided_after_days: float = 14.0,
) -> RolloutForecast:
    """Forecast a rollout.

    Sums of terms are taken as Brownian motion, and the bound as if it had always been as wide as it
    is: simulated rollouts end a seventh earlier in the median.
    """
    least = min(min(share, 1 - share) for share in shares)
    stages = [_stage(traffic, share, least, margin, stage_hours * HOUR_S) for share in shares]
    evidence_s = stages[0].advance.median / shares[0] / max(traffic.per_second, 1e-300)
    return RolloutForecast(
        stages=stages,
        seconds=stages[0].advance_s + (len(stages) - 1) * stage_hours * HOUR_S,
        cannot_end=evidence_s > undecided_after_days * DAY_S,
    )


def _stage(
    traffic: RolloutTraffic, share: float, least: float, margin: float, hours_s: float
) -> StageForecast:
    own, baseline = traffic.variance
    each = max(own / share + (1 - margin) ** 2 * baseline / (1 - share), 1e-12 * traffic.span**2)
    distance, scale = margin * traffic.baseline, traffic.span / least
    advance, stop = (
        OwnDecisions(
            *(
                share * _needed(distance, each, scale, alpha, part)
                for part in (MEDIAN_SHARE, LATE_SHARE)
            ),
        )
        for alpha in (2 * ADVANCE_ALPHA, STOP_ALPHA)
    )
    own_per_second = max(share * traffic.per_second, 1e-300)
    return StageForecast(
        share=share,
        advance=advance,
        stop=stop,
        advance_s=max(advance.median / own_per_second, hours_s),
        stop_s=stop.median / own_per_second,
    )


def _needed(distance: float, variance: float, scale: float, alpha: float, share: float) -> float:
    """Return the decisions of both after which a share of all sums of terms with this mean and
    variance has ever been outside the bound; inf: never."""
    counts = np.geomspace(1.0, 1e12, 4_000)
    u, mean, deviation = (
        radius(counts * variance, scale, alpha),
        counts * distance,
        np.sqrt(counts * variance),
    )
    # Brownian motion with a drift passes a level (Schroedinger 1915). The second part, in logs: the
    # paths that were above it and came back.
    back = 2 * distance * u / max(variance, 1e-300) + log_ndtr(-(u + mean) / deviation)
    passed = ndtr((mean - u) / deviation) + np.exp(np.minimum(back, 0.0))
    enough = np.flatnonzero(passed >= share)
    return float(counts[enough[0]]) if len(enough) else np.inf
