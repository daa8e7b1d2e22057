"""Whether a head still responds: its true condition, and rows that outweigh all others."""

import numpy as np
import pytest

from service.bandits.linalg import dominance, spectrum
from service.bandits.policies.version import MEASURED
from service.bandits.posterior.base import HeadHealth
from service.state.fold import State
from tests.unit.test_influence import HEADS, Log, head, learn, log_of, row


def health(log: Log, policy: str) -> HeadHealth:
    version = log.state.learners[policy].active
    assert version.head is not None
    return version.head.health(version.usual)


def honest(log: Log, count: int) -> None:
    rng = np.random.default_rng(4)
    for number, x in enumerate(rng.standard_normal((count, 8)).tolist()):
        x[5:7] = [1.0, 0.0]
        learn(log, f"h{number}", float(rng.integers(2)), x, 1.0)


def test_a_direction_of_1e19_beside_3_000_is_seen_in_the_condition_number() -> None:
    """The first found nothing but the largest, and called its condition 1."""
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    smallest, condition, largest = spectrum(turn @ np.diag([3e3, 1e19, 2e3]) @ turn.T, 1.0)
    assert 1.0 <= smallest < 1e5  # rounding has left no more of the others
    assert (largest, condition) == pytest.approx((1e19, 1e19 / smallest))


def test_a_direction_of_1e10_beside_3_000_is_told_apart_from_the_prior() -> None:
    smallest, condition, _ = spectrum(np.diag([3_000.0, 1e10, 1.0]), 1.0)
    assert (smallest, condition) == pytest.approx((3_000.0, 1e10 / 3_000))


@pytest.mark.parametrize(
    ("largest", "n", "usual", "ratio"),
    [(31.0, 10.0, 3.0, 1.0), (3_001.0, 10.0, 3.0, 3_001 / 31), (2.0, 0.0, 1.0, 2.0)],
)
def test_dominance_is_the_largest_eigenvalue_over_what_n_usual_rows_could_make_it(
    largest: float, n: float, usual: float, ratio: float
) -> None:
    assert dominance(largest, 1.0, n, usual) == ratio
    assert dominance(largest, 1.0, n, None) is None


@pytest.mark.parametrize("policy", HEADS)
def test_honest_rows_dominate_nothing_and_one_huge_row_dominates_all(policy: str) -> None:
    log = log_of(policy)
    honest(log, MEASURED - 1)
    assert health(log, policy).dominance is None
    honest(log, 270)
    before = health(log, policy)
    assert before.dominance is not None
    assert 0.05 < before.dominance < 1.2
    learn(log, "hostile", 1.0, row(age=1e8), 1.0)
    after = health(log, policy)
    assert after.dominance is not None
    assert after.dominance > 1e9
    assert after.condition_number > 1e12


@pytest.mark.parametrize("policy", HEADS)
def test_the_same_row_by_its_weight_dominates_nothing(policy: str) -> None:
    log = log_of(policy)
    honest(log, 300)
    hostile = row(age=1e8)
    learn(log, "hostile", 1.0, hostile, log.state.influence.weight(hostile))
    found = health(log, policy)
    assert found.dominance is not None
    assert found.dominance < 1.2


def test_numbers_of_no_declared_scale_dominate_nothing() -> None:
    log, rng = log_of("linucb"), np.random.default_rng(5)
    for number in range(300):
        x = row(age=float(1e4 * rng.standard_normal()), price=float(rng.standard_normal()))
        learn(log, f"d{number}", 1.0, x, log.state.influence.weight(x))
        share = health(log, "linucb").dominance
        assert share is None or share < 10


def test_a_snapshot_holds_the_usual_size() -> None:
    log = log_of("linucb")
    honest(log, 40)
    again = State.restore(log.state.snapshot())
    usual = log.state.learners["linucb"].active.usual
    assert again.learners["linucb"].active.usual == usual
    assert usual is not None


def test_clicks_by_arm_have_no_rows_that_could_dominate() -> None:
    log = Log()
    definition = {"features": {}, "arms": {"a": {}}, "policies": {"p": {"kind": "popularity"}}}
    log.define(definition)
    learn(log, "d", 1.0, [], 1.0)
    assert head(log, "p").health(None).dominance is None
    assert health(log, "p").dominance is None
