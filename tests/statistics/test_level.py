"""Ridge heads start at the mean of all rewards, those of papers at 0 (docs/mathematics.md)."""

import numpy as np
import pytest

from service.bandits.heads import DisjointRidgeHead, Observation
from service.bandits.heads.reward_sums import RewardSums

pytestmark = pytest.mark.statistics

ARMS, ROWS = list("abcdefgh"), np.ones((8, 1))
STREAMS, VISITS = 12, 1_000


def regret(shift: float, seed: int) -> float:
    """Percent of uniform choice's, of upper bounds with alpha 1 over eight click rates of 0.3 to
    0.7. shift: rewards are so much above 0 and 1."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.3, 0.7, len(ARMS))
    head, lost = DisjointRidgeHead(1, 1.0, None), 0.0
    for _ in range(VISITS):
        bounds = head.mean(ROWS, ARMS) + head.width(ROWS, ARMS)
        shown = int(rng.choice(np.flatnonzero(bounds >= bounds.max() - 1e-12)))
        lost += rates.max() - rates[shown]
        reward = float(rng.random() < rates[shown]) + shift
        head.observe(Observation(ARMS[shown], ROWS[0], reward))
    return 100 * lost / float(VISITS * (rates.max() - rates.mean()))


@pytest.mark.parametrize(
    ("shift", "from_zero", "from_level"), [(0, 53, 8.5), (-1, 16, 8.5), (10, 68, 8.5)]
)
def test_the_level_of_rewards_changes_regret_only_from_a_start_at_0(
    shift: float, from_zero: float, from_level: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = np.mean([regret(shift, seed) for seed in range(STREAMS)])
    assert found == pytest.approx(from_level, abs=0.5)
    monkeypatch.setattr(RewardSums, "level", property(lambda self: 0.0))
    found = np.mean([regret(shift, seed) for seed in range(STREAMS)])
    assert found == pytest.approx(from_zero, abs=0.5)
