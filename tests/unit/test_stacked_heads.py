"""Heads that keep something an arm: disjoint ridge heads, and Beta counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.heads import (
    NOISE_RATE,
    NOISE_SHAPE,
    Bank,
    BetaHead,
    DisjointRidgeHead,
    Observation,
    RidgeHead,
    digest,
)
from service.bandits.heads.disjoint import COMMON_NOISE
from service.bandits.heads.reward_sums import REWARD_ROUNDING

NONE = np.zeros(0)
observations = st.lists(
    st.tuples(st.integers(0, 11), st.floats(-2, 2), st.floats(-2, 2), st.floats(-1, 1)),
    max_size=60,
)


def filled(arms: int, count: int, seed: int = 0) -> DisjointRidgeHead:
    rng = np.random.default_rng(seed)
    head = DisjointRidgeHead(3, 1.0, None)
    for number in range(count):
        head.observe(
            Observation(f"arm{number % arms}", rng.standard_normal(3), float(rng.random()))
        )
    return head


@given(observations)
def test_a_stack_equals_heads_apart_but_for_the_noise(
    seen: list[tuple[int, float, float, float]],
) -> None:
    """An arm's own head would start at its own level, the stack's at that of all arms."""
    stack = DisjointRidgeHead(2, 1.0, None)
    apart = {str(arm): RidgeHead(2, 1.0, 1.0) for arm in range(12)}
    for arm, first, second, reward in seen:
        stack.observe(Observation(str(arm), np.array([first, second]), reward))
        apart[str(arm)].observe(Observation(str(arm), np.array([first, second]), reward))
    phi, arms = np.array([[0.3, -1.2]] * 12), list(apart)
    rewards = np.array([reward for *_, reward in seen])
    level = rewards.mean() if seen else 0.0
    centred = {arm: apart[arm].b - level * apart[arm].s for arm in arms}
    solved = {arm: np.linalg.solve(apart[arm].A, centred[arm]) for arm in arms}
    mean = [level + phi[0] @ solved[arm] for arm in arms]
    width = [apart[arm].width(phi[:1], [arm])[0] for arm in arms]
    held, noise = stack.evidence(arms)
    assert held.tolist() == [apart[arm].n for arm in arms]
    np.testing.assert_allclose(stack.mean(phi, arms), mean, atol=1e-12)
    np.testing.assert_allclose(stack.width(phi, arms), noise * np.array(width), rtol=1e-9)
    squares = [
        sum((reward - level) ** 2 for own, _, _, reward in seen if str(own) == arm) for arm in arms
    ]
    left = np.array([s - centred[arm] @ solved[arm] for arm, s in zip(arms, squares, strict=True)])
    variance = sum(squares) / max(len(seen), 1)
    if sum(squares) <= REWARD_ROUNDING * np.square(rewards).sum():
        variance = 0.2 / (len(seen) + 2)
    expected = noises(held, np.maximum(left, 0), variance)
    np.testing.assert_allclose(noise**2, expected, rtol=1e-6, atol=1e-9)


def noises(n: np.ndarray, left: np.ndarray, variance: float) -> np.ndarray:
    """Squared noise of each arm: four settlements of the common one and what its own leave. The
    common one is that of all together, or the mean over arms, if that is larger."""
    if not n.any():
        return np.ones(len(n))
    together = (NOISE_RATE * variance + left.sum() / 2) / (NOISE_SHAPE + n.sum() / 2 - 1)
    by_arm = (left[n > 0] / n[n > 0]).mean()
    return np.asarray((COMMON_NOISE * max(together, by_arm) + left) / (COMMON_NOISE + n))


def test_an_arm_of_dear_mistakes_is_not_called_certain_for_the_others_that_never_vary() -> None:
    """100 rewards of 0 and, of another arm, 5 and -5: what is left of them is 50, 25 a settlement.
    Common: the larger of 0.01 + 25 over 51 = 0.49, and (0 + 25) / 2 = 12.5. Of the sure arm
    4 x 12.5 / 104 = 0.48, of the other (4 x 12.5 + 50) / 6 = 16.7."""
    head = DisjointRidgeHead(1, 1.0, None)
    for _ in range(100):
        head.observe(Observation("pass", np.ones(1), 0.0))
    for reward in (5.0, -5.0):
        head.observe(Observation("eat", np.ones(1), reward))
    _, noise = head.evidence(["pass", "eat"])
    assert (noise**2).tolist() == pytest.approx([50 / 104, 100 / 6], rel=1e-6)


def test_an_unseen_arm_is_scored_from_the_prior_and_gets_no_head() -> None:
    head = filled(arms=3, count=9)
    before = digest(head)
    phi = np.array([[0.0, 3.0, 4.0]])
    assert head.mean(phi, ["new"]) == [head.level]
    assert head.width(phi, ["new"]) == pytest.approx([5.0 * head.noise])
    assert digest(head) == before
    assert len(head.arrays()["b"]) == 3


def test_health_of_a_stack_is_that_of_its_worst_arm() -> None:
    """Arm a met [1, 0]; b met [3, 0] and [0, 3], so A is diag(2, 1) and diag(10, 10)."""
    head = DisjointRidgeHead(2, 1.0, None)
    assert head.health().effective_rank == 0
    for arm, phi in (("b", [3.0, 0.0]), ("b", [0.0, 3.0])):
        head.observe(Observation(arm, np.array(phi), 1.0))
    health = head.health()
    assert (health.smallest_eigenvalue, health.condition_number) == pytest.approx((10, 1))
    assert health.effective_rank == pytest.approx(2)
    head.observe(Observation("a", np.array([1.0, 0.0]), 1.0))
    health = head.health()
    assert (health.smallest_eigenvalue, health.condition_number) == pytest.approx((1, 2))
    assert (health.effective_rank, health.effective_count) == pytest.approx((1, 3))


def test_two_clicks_and_a_miss_make_beta_3_2() -> None:
    """Mean 3/5, variance 3*2 / (5^2 * 6) = 0.04; an arm without a reward is Beta(1, 1)."""
    head = BetaHead()
    for reward in (1.0, 0.0, 1.0):
        head.observe(Observation("a", NONE, reward))
    rows = np.zeros((2, 0))
    assert head.mean(rows, ["a", "new"]) == pytest.approx([0.6, 0.5])
    assert head.width(rows, ["a", "new"]) == pytest.approx([0.2, np.sqrt(1 / 12)])
    head.revise(Observation("a", NONE, 1.0), 0.0)
    assert head.mean(rows, ["a"]) == pytest.approx([0.8])
    assert head.arrays()["counts"].tolist() == [[4.0, 1.0]]


def test_half_a_reward_is_half_a_click_and_half_a_miss() -> None:
    head = BetaHead()
    assert head.health().effective_count == 0
    head.observe(Observation("a", NONE, 0.25))
    assert head.arrays()["counts"].tolist() == [[1.25, 1.75]]
    assert head.health().effective_count == 1
    head.observe(Observation("b", NONE, 1.0))
    health = head.health()  # one reward each beside Beta(1, 1)
    assert (health.smallest_eigenvalue, health.effective_rank) == pytest.approx((3, 2))


def test_beta_draws_have_the_moments_of_beta_3_2_and_follow_a_new_reward() -> None:
    head, bank = BetaHead(), Bank(16_384, "k")
    for reward in (1.0, 0.0, 1.0):
        head.observe(Observation("a", NONE, reward))
    drawn = head.draw(np.zeros((1, 0)), ["a"], bank)[:, 0]
    assert drawn.mean() == pytest.approx(0.6, abs=1e-4)
    assert drawn.std() == pytest.approx(0.2, abs=1e-4)
    head.observe(Observation("a", NONE, 1.0))
    assert head.draw(np.zeros((1, 0)), ["a"], bank).mean() == pytest.approx(4 / 6, abs=1e-4)
