"""Fitting a net: it learns a toy world, by its seed, from the earlier rewards alone."""

import numpy as np
import pytest
import torch

from service.bandits.settings import Training
from service.training.fit import Fitted, NetPlan, fit

pytestmark = pytest.mark.process

X = np.eye(4)[np.random.default_rng(0).integers(0, 4, 400)]
XOR = np.array([0.0, 1.0, 1.0, 0.0])
"""Reward of each of the four (pet, kind) pairs, coded as pet, kind and constant below."""
ROWS = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]])[X.argmax(axis=1)].astype(float)
REWARDS = X @ XOR
ONE_COLUMN = np.zeros(400, dtype=np.int64)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As in the trainer's process; more would wait for each other on nets this small."""
    torch.set_num_threads(1)


def fitted(rewards: np.ndarray = REWARDS, column: np.ndarray = ONE_COLUMN, **more: float) -> Fitted:
    training = Training.model_validate({"learning_rate": 1e-2} | more)
    return fit(ROWS, column, rewards, NetPlan([3, 16, 4], training), seed=3)


def predicted(fitted_net: Fitted) -> np.ndarray:
    weight, bias = fitted_net.output
    return fitted_net.network(ROWS) @ weight + bias


def test_a_net_learns_an_exclusive_or_that_no_linear_model_can() -> None:
    """The validation loss, in units of the rewards' variance, falls from about 1 under 0.01."""
    first, last = fitted(epochs=1), fitted()
    assert 0.5 < first.validation_loss < 1.5
    assert last.validation_loss < 0.01
    assert last.passes > first.passes == 1
    assert np.abs(predicted(last)[:, 0] - REWARDS).max() < 0.2


def test_predictions_are_in_units_of_the_reward() -> None:
    """Rewards of 100 and 102: the net's output is not centred, nor scaled to 1."""
    found = predicted(fitted(100 + 2 * REWARDS))[:, 0]
    assert np.abs(found - 100 - 2 * REWARDS).max() < 0.4


def test_a_row_counts_by_its_weight() -> None:
    """Every row again with the opposite reward and a weight of 0.001: the first ones decide. The
    mean of two that weigh alike would be 0.5."""
    order = np.arange(400).repeat(2)
    rows, column = ROWS[order], ONE_COLUMN.repeat(2)
    rewards = np.where(np.arange(800) % 2, 1 - REWARDS[order], REWARDS[order])
    weight = np.where(np.arange(800) % 2, 0.001, 1.0)
    plan = NetPlan([3, 16, 4], Training(learning_rate=1e-2))
    assert (
        np.abs(predicted(fit(rows, column, rewards, plan, 3, weight))[:, 0] - REWARDS).max() < 0.2
    )


def test_the_embedding_has_mean_square_1() -> None:
    phi = fitted(epochs=3).network(ROWS)
    assert np.square(phi).sum(axis=1).mean() == pytest.approx(1.0, rel=1e-9)


def test_the_same_seed_fits_the_same_net_to_the_last_bit() -> None:
    first, second = fitted(epochs=2), fitted(epochs=2)
    for name, array in first.network.arrays().items():
        assert np.array_equal(array, second.network.arrays()[name])


def test_no_gradient_comes_from_the_latest_fifth_of_the_rewards() -> None:
    """Shuffled among themselves, the last 80 of 400 leave a net of one pass as it was."""
    shuffled = REWARDS.copy()
    np.random.default_rng(1).shuffle(shuffled[320:])
    assert not np.array_equal(shuffled, REWARDS)
    assert np.array_equal(predicted(fitted(shuffled, epochs=1)), predicted(fitted(epochs=1)))


def test_each_column_is_fitted_to_its_own_rewards() -> None:
    """Arm 0 pays the exclusive or, arm 1 its opposite, arm 2 always 0.5."""
    column = np.arange(400) % 3
    rewards = np.select([column == 0, column == 1], [REWARDS, 1 - REWARDS], 0.5)
    outputs = predicted(fitted(rewards, column))
    assert outputs.shape == (400, 3)
    expected = np.stack([REWARDS, 1 - REWARDS, np.full(400, 0.5)], axis=1)
    assert np.abs(outputs - expected).max() < 0.25


@pytest.mark.parametrize("rewards", [np.zeros(400), np.ones(400)])
def test_rewards_that_are_all_the_same_are_fitted_too(rewards: np.ndarray) -> None:
    assert predicted(fitted(rewards))[:, 0] == pytest.approx(rewards, abs=0.3)


def test_a_descent_that_diverges_leaves_finite_weights() -> None:
    found = fitted(learning_rate=1e8)
    assert all(np.isfinite(array).all() for array in found.network.arrays().values())
    assert np.isfinite(predicted(found)).all()
