"""What the benchmarks of a decision compare does what it is said to do."""

import numpy as np
import pytest

from benchmarks.decision import fold, learner, reward
from benchmarks.scoring import DRAWS, FLOOR_OF, compared, decision, floors
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


def test_floors_choose() -> None:
    found = {name: work() for name, work in floors(8, 4).items()}
    assert np.sum(found["thompson"]) == pytest.approx(1.0)
    assert np.sum(found["net"]) == pytest.approx(1.0)
    assert np.all(found["thompson"] * DRAWS % 1 == 0)
    assert 0 <= int(found["ucb"]) < 8
    assert 0 <= int(found["mean"]) < 8


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
