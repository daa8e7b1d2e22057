"""A log with propensities tells what another policy would have earned, without running it.

The estimate is the mean of reward x (chance under the other policy / logged propensity) (Horvitz &
Thompson 1952); its interval is that of a mean. Heads are frozen: what is estimated does not move.
"""

from dataclasses import dataclass
from functools import cache
from math import sqrt

import numpy as np
import pytest
from scipy.stats import binom

from service.bandits.policies import rules
from service.serving.scoring import decide
from tests.statistics.posterior import softmax_of_scores
from tests.statistics.shop import CHANCES, FLOOR, Array, context_of, frozen

LOGGER = "lints"
TARGETS = ["linucb", "epsilon_greedy", "lints_disjoint", "neural_ucb", "random"]
Z = 1.96


@dataclass(frozen=True)
class Visits:
    """What came of visits, one a row."""

    persona: np.ndarray
    arm: np.ndarray
    reward: Array
    propensity: Array


def run(name: str, epsilon: float, visits: int, seed: int) -> Visits:
    """A policy at the shop, its head frozen: what `decide` answers is worked out once a persona,
    and each visit draws from it by a seed of its own."""
    state, p = frozen(epsilon), chances_of(name, epsilon)
    rng = np.random.default_rng(seed)
    personas, uniforms = rng.integers(0, 4, visits), rng.random(visits)
    seeds = rng.integers(0, 2**63, visits).tolist()
    arms = np.array(
        [rules.choose(p[n], rules.point_of(own)) for n, own in zip(personas, seeds, strict=True)]
    )
    for visit in range(50):
        context = context_of(personas[visit])
        _, slate = decide(state.learners[name], context, state.candidates, 1, seeds[visit])
        assert (slate.arms[0], slate.chance) == (arms[visit], p[personas[visit], arms[visit]])
    rewards = (uniforms < CHANCES[personas, arms]).astype(float)
    return Visits(personas, arms, rewards, p[personas, arms])


@cache
def chances_of(name: str, epsilon: float = 0.0) -> Array:  # (4, K)
    """Probabilities of a policy by persona."""
    state = frozen(epsilon)
    learner, candidates = state.learners[name], state.candidates
    return np.array([decide(learner, context_of(n), candidates, 1, 0)[0] for n in range(4)])


def value_of(name: str) -> float:
    """Expected reward a visit, from the world's own click chances."""
    return float((chances_of(name) * CHANCES).sum(axis=1).mean())


def mean_of(values: Array) -> tuple[float, float]:
    """Mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / sqrt(len(values)))


def estimate(log: Visits, target: str, propensity: Array | None = None) -> tuple[float, float]:
    """Of a target's value; propensity: what is divided by, as logged if left out."""
    chance = chances_of(target)[log.persona, log.arm]
    return mean_of(log.reward * chance / (log.propensity if propensity is None else propensity))


def softmax_propensity(log: Visits) -> Array:
    """What the log would hold if a softmax of the scores, with its floor, were the propensity."""
    state = frozen()
    learner, candidates = state.learners[LOGGER], state.candidates
    soft = np.array([softmax_of_scores(learner, context_of(n), candidates) for n in range(4)])
    return ((1 - FLOOR) * soft + FLOOR / len(candidates.ids))[log.persona, log.arm]


SEEDS, VISITS = range(4), 12_000


@cache
def log_of(seed: int, visits: int = VISITS) -> Visits:
    return run(LOGGER, FLOOR, visits, seed)


@pytest.mark.parametrize(
    "target", [TARGETS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in TARGETS[1:])]
)
def test_an_estimate_from_a_log_agrees_with_the_policy_run_live(target: str) -> None:
    """4 logs of 12,000 visits against 4 live runs: each difference within 3 of its standard errors,
    at least 3 of 4 within 1.96; and the mean of the estimates within 3 of its own."""
    within, estimates = 0, []
    for seed in SEEDS:
        found, error = estimate(log_of(seed), target)
        live, live_error = mean_of(run(target, 0.0, VISITS, 1_000 + seed).reward)
        off = abs(found - live) / sqrt(error**2 + live_error**2)
        assert off < 3
        within += off < Z
        estimates.append((found, error))
    assert within >= 3
    mean, errors = np.mean(estimates, axis=0)
    assert abs(mean - value_of(target)) < 3 * errors / sqrt(len(SEEDS))


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "neural_ucb"])
def test_with_a_softmax_for_a_propensity_the_estimate_is_wrong(target: str) -> None:
    """The same log, the same target: more than 5 standard errors off (they are 19 to 37). Of
    neural_ucb, which mostly shows one arm a persona, the errors cancel but for 2."""
    log = log_of(0)
    found, error = estimate(log, target, softmax_propensity(log))
    assert abs(found - value_of(target)) > 5 * error


def test_a_log_evaluates_its_own_policy_at_the_mean_of_its_rewards() -> None:
    log = log_of(0)
    assert log.propensity == pytest.approx(chances_of(LOGGER, FLOOR)[log.persona, log.arm])
    assert value_of("random") == pytest.approx(CHANCES.mean()) == pytest.approx(0.2105)
    assert log.propensity.min() >= FLOOR / 10


# -- the long form ------------------------------------------------------------------------------

REPLICATIONS = 200


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("target", [*TARGETS, "neural_linear_ts", "popularity"])
def test_intervals_of_200_logs_cover_the_true_value_at_their_nominal_rate(target: str) -> None:
    """95 percent intervals: at least 179 of 200, which chance misses less than once in 1,000."""
    truth, covered, offs = value_of(target), 0, []
    for seed in range(REPLICATIONS):
        found, error = estimate(log_of(seed), target)
        covered += abs(found - truth) < Z * error
        offs.append(found - truth)
    bias = np.mean(offs) / (np.std(offs) / sqrt(REPLICATIONS))
    print(f"{target}: {covered} of {REPLICATIONS}, bias {bias:.2f} standard errors")  # noqa: T201
    assert covered >= binom.ppf(0.001, REPLICATIONS, 0.95)
    assert abs(bias) < 4


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
def test_intervals_of_200_logs_and_200_live_runs_agree_at_their_nominal_rate() -> None:
    covered = 0
    for seed in range(REPLICATIONS):
        found, error = estimate(log_of(seed), "lints_disjoint")
        live, live_error = mean_of(run("lints_disjoint", 0.0, VISITS, 1_000 + seed).reward)
        covered += abs(found - live) < Z * sqrt(error**2 + live_error**2)
    print(f"live: {covered} of {REPLICATIONS}")  # noqa: T201
    assert covered >= binom.ppf(0.001, REPLICATIONS, 0.95)
