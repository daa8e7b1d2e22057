"""Off-policy estimators: arrays in, an estimate with its intervals out. Nothing here knows Forage.

One row is a decision: reward r, the chance b that the log showed this arm with, the chance p that
the target policy shows it with, and a guess q of the reward (of the shown arm; and what the target
would earn by that guess, sum_a p(a) q(a)). The weight is w = p / b.

    IPS         mean w r                                  Horvitz & Thompson 1952
    SNIPS       sum w r / sum w                           Swaminathan & Joachims 2015
    DM          mean sum_a p(a) q(a)                      the guess alone
    DR          mean [sum_a p(a) q(a) + w (r - q)]        Dudik, Langford & Li 2011
    Switch-DR   the same, without w (r - q) where w is above a threshold
                                                          Wang, Agarwal & Dudik 2017
Each is a ratio of two sums, so one piece of code gives each its interval.

IPS is unbiased where b > 0 wherever p > 0. So is DR, if q was fitted without the row's own reward
(cross-fitted, or fitted to what came before the row); q may be wrong: that costs width, no bias.
SNIPS has a bias that goes with 1 / effective sample size. DM is as wrong as q is, and Switch-DR is
where it switches. DM has no interval: how far its rows spread says nothing of how wrong q is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.analysis.evaluation_answer import EstimateAnswer
from service.analysis.intervals import Interval, adjusted, grouped, standard_error

Array = npt.NDArray[np.float64]

THRESHOLDS = 10
"""Candidates for the threshold of Switch-DR."""


@dataclass(frozen=True)
class Logged:
    """Columns of a log, (n,) each.

    group   rows of a number belong together (the decisions of one user whose policy was assigned
            once); None: each row is alone
    range   of rewards; `guess` and `target_guess` lie in it, too
    """

    reward: Array
    behaviour: Array
    target: Array
    guess: Array
    target_guess: Array
    group: npt.NDArray[np.int64] | None = None
    range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        """Raise ValueError where a shown arm had no chance of being shown, or columns differ."""
        if not (self.behaviour > 0).all():
            raise ValueError("an arm was shown that had no chance of it")
        columns = [self.behaviour, self.target, self.guess, self.target_guess]
        if any(column.shape != self.reward.shape for column in columns):
            raise ValueError("columns differ in length")

    @property
    def weight(self) -> Array:
        return self.target / self.behaviour


@dataclass(frozen=True)
class RatioTerms:
    """An estimate as sum(top) / sum(bottom)."""

    top: Array
    bottom: Array

    @property
    def value(self) -> float:
        total = float(self.bottom.sum())
        return float(self.top.sum()) / total if total else float("nan")


def ips(log: Logged) -> RatioTerms:
    return RatioTerms(log.weight * log.reward, np.ones_like(log.reward))


def snips(log: Logged) -> RatioTerms:
    return RatioTerms(log.weight * log.reward, log.weight)


def direct(log: Logged) -> RatioTerms:
    return RatioTerms(log.target_guess, np.ones_like(log.reward))


def doubly_robust(log: Logged) -> RatioTerms:
    return switch(log, np.inf)


def switch(log: Logged, threshold: float) -> RatioTerms:
    """Doubly robust where the weight is at most `threshold`, the guess alone elsewhere."""
    weight = np.where(log.weight <= threshold, log.weight, 0.0)
    top = log.target_guess + weight * (log.reward - log.guess)
    return RatioTerms(top, np.ones_like(log.reward))


def choose_threshold(log: Logged) -> float:
    """Choose the lowest threshold whose interval (two standard errors to each side) still meets
    those of all higher ones: what it adds in bias cannot be told from chance (Lepski's rule; Su,
    Srinath & Krishnamurthy 2020, "Adaptive estimator selection for off-policy evaluation")."""
    seen = log.weight[log.weight > 0]
    found, low, high = float("inf"), -float("inf"), float("inf")
    steps = np.quantile(seen, np.linspace(1.0, 0.5, THRESHOLDS)).tolist() if len(seen) else []
    for threshold in [np.inf, *steps]:
        terms = switch(log, threshold)
        half = 2 * standard_error(*grouped(log.group, terms.top, terms.bottom))
        low, high = max(low, terms.value - half), min(high, terms.value + half)
        if low > high:
            break
        found = float(threshold)
    return found


def effective_size(weight: Array) -> float:
    """Rows of equal weight that would tell as much: (sum w)^2 / sum w^2 (Kish 1965)."""
    largest = float(weight.max(initial=0.0))
    if not 0 < largest < np.inf:
        return 0.0
    share = weight / largest  # so that squares neither overflow nor vanish
    return float(share.sum()) ** 2 / float(np.square(share).sum())


@dataclass(frozen=True)
class Estimator:
    """An estimator with an interval.

    title    name, as people write it
    about    description in a sentence, for people
    terms    the sums whose ratio it is
    biased   it trades bias, which the rows do not show, for variance: its interval holds that of
             DR, too
    """

    title: str
    about: str
    terms: Callable[[Logged], RatioTerms]
    biased: bool = False


ESTIMATORS = {
    "dr": Estimator(
        "DR", "Doubly robust: a model of rewards, corrected by what was seen.", doubly_robust
    ),
    "switch_dr": Estimator(
        "Switch-DR",
        "As DR, but where weights are large the model alone.",
        lambda log: switch(log, choose_threshold(log)),
        biased=True,
    ),
    "snips": Estimator("SNIPS", "Weighted rewards over the sum of the weights.", snips),
    "ips": Estimator("IPS", "Weighted rewards: without bias, and wide.", ips),
}
"""Estimators by name, in the order in which answers list them. DM has no interval."""


def estimate(log: Logged, confidence: float = 0.95) -> dict[str, EstimateAnswer]:
    """Return the value of every estimator, with its interval."""
    [weight] = grouped(log.group, log.weight)
    rewards, estimates = _rewards_seen(log), dict[str, EstimateAnswer]()
    for name, estimator in ESTIMATORS.items():
        terms = estimator.terms(log)
        top, bottom = grouped(log.group, terms.top, terms.bottom)
        interval = adjusted(top, bottom, weight, rewards, confidence)
        estimates[name] = EstimateAnswer(
            title=estimator.title,
            about=estimator.about,
            value=terms.value,
            standard_error=standard_error(top, bottom),
            interval=interval.hull(estimates["dr"].interval) if estimator.biased else interval,
        )
    return estimates


def uplift(log: Logged, confidence: float) -> tuple[float, Interval]:
    """Estimate how much more the target would have earned a decision than the log did: doubly
    robust, with the adjusted interval of the difference in each decision."""
    # A decision that the target would not have made still weighs as one of the log.
    return _more(log, log.reward, np.ones_like(log.reward), confidence)


def difference(log: Logged, other: Logged, confidence: float) -> tuple[float, Interval]:
    """Estimate how much more the target would have earned a decision than another one, as `uplift`
    does. other: the same rows, with the other target."""
    return _more(log, doubly_robust(other).top, other.weight, confidence)


def _more(
    log: Logged, less: Array, weight_of_less: Array, confidence: float
) -> tuple[float, Interval]:
    """Estimate the target's mean less another one. less: its term in each row."""
    terms = doubly_robust(log)
    top, bottom, weight, other = grouped(
        log.group, terms.top - less, terms.bottom, log.weight, weight_of_less
    )
    low, high = _rewards_seen(log)
    span = high - low
    interval = adjusted(top, bottom, np.maximum(weight, other), (-span, span), confidence)
    return terms.value - float(less.mean()), interval


def _rewards_seen(log: Logged) -> tuple[float, float]:
    """Least and largest, of what the target would have shown; the range where they are one."""
    seen = log.reward[log.target > 0]
    if len(seen) and seen.min() < seen.max():
        return float(seen.min()), float(seen.max())
    return log.range
