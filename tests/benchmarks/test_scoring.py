"""What the benchmarks of a decision compare does what it is said to do."""

from typing import Any

import numpy as np
import pytest

from benchmarks.decision import fold, learner, reward
from benchmarks.floors import DRAWS, FLOORS, MASKS, MEMBERS, SELECTS, Head, floor
from benchmarks.scoring import BARE, FLOOR_OF, compared, decision
from simulator_client.worlds.policies import KINDS


def test_every_kind_is_compared() -> None:
    assert set(FLOOR_OF) == set(KINDS)


@pytest.mark.parametrize("kind", FLOOR_OF)
def test_a_decision_of_every_kind_has_probabilities(kind: str) -> None:
    work = decision(kind, 8, 4)
    for _ in range(3):
        probabilities, _ = work()
        assert probabilities.shape == (8,)
        assert probabilities.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("name", FLOORS)
def test_floors_choose(name: str) -> None:
    """An arm, or the share of each: of draws, masks or members."""
    work = floor(name, 8, 4)
    for _ in range(2 * SELECTS):
        found: Any = work()
        if np.ndim(found):
            assert np.shape(found) == (8,)
            assert np.sum(found) == pytest.approx(1.0)
            counted = {"members": MEMBERS, "masks": MASKS}.get(name, DRAWS)
            assert np.allclose(np.asarray(found) * counted % 1, 0)
        else:
            assert 0 <= int(found) < 8


def test_every_floor_is_that_of_a_kind() -> None:
    assert {*FLOOR_OF.values(), *BARE.values()} == set(FLOORS)


@pytest.mark.parametrize("spreads", [True, False])
def test_a_floor_s_head_is_kept_as_one_that_is_worked_out_anew(spreads: bool) -> None:
    """S <- (S^-1 + x x^T)^-1, R^T R = S, mean S b."""
    rng = np.random.default_rng(0)
    head = Head(4, rng)
    precision, total = np.linalg.inv(head.inverse), head.total.copy()
    for x in rng.standard_normal((5, 4)).astype(np.float32):
        head.update(x, spreads=spreads)
        precision, total = precision + np.outer(x, x), total + x
    np.testing.assert_allclose(head.inverse, np.linalg.inv(precision), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(head.mean, np.linalg.solve(precision, total), rtol=1e-3, atol=1e-5)
    if spreads:
        np.testing.assert_allclose(head.factor.T @ head.factor, head.inverse, rtol=1e-3, atol=1e-5)


def test_a_reward_moves_the_head_that_is_measured() -> None:
    """Ridge 1 in units of the noise, phi [.5, 1, 0, 0], reward 1: mean 1.25 / 2.25."""
    policy = learner("lints", 4)
    x = [0.5, 1.0, 0.0, 0.0]
    policy.fold(1, reward("0", x, 1.0))
    phi = policy.active.phi(np.array([x]))
    assert policy.active.mean(phi, ["0"]).tolist() == pytest.approx([1.25 / 2.25])
    assert policy.rewards == 1


def test_figures_are_ratios_of_medians() -> None:
    found = compared(lambda: sum(range(2_000)), lambda: None, rounds=3)
    assert found["ratio"] == pytest.approx(found["forage_us"] / found["floor_us"])
    assert set(fold(4, 2)) == {"forage_us", "floor_us", "ratio"}
