"""A reward that is far beyond the usual ones is noticed, whatever the range allows."""

import pytest

from service.definition.experiment import Definition, RewardRules
from service.definition.lint import lint
from service.state.events import Corrected
from service.telemetry.drift import Drift
from service.telemetry.reward_sizes import (
    BLOCK,
    LEAST_SIZED_REWARDS,
    MEDIAN_REWARDS,
    RewardSizes,
)
from tests.support.service import Json
from tests.unit.folding import Log, shop

RULES = RewardRules(range=(0.0, 1000.0))


def taken(*rewards: float, rules: RewardRules = RULES) -> RewardSizes:
    sizes = RewardSizes()
    for reward in rewards:
        sizes.take(reward, rules)
    return sizes


def test_three_rewards_of_1000_beside_honest_ones_of_1_to_3_are_500_times_the_median() -> None:
    sizes = taken(*[1.0, 2.0, 3.0] * 10, *[0.0] * 500, *[1000.0] * 3)
    assert sizes.ratio == 500
    assert sizes.warning is not None
    assert "a reward of size 1000 counts as 500 of the usual size 2" in sizes.warning


@pytest.mark.parametrize(
    ("rewards", "ratio"),
    [
        ([1.0] * LEAST_SIZED_REWARDS, 1.0),
        ([1.0] * (LEAST_SIZED_REWARDS - 1), None),
        ([0.0] * 100, None),
        ([5.0] * 30 + [499.0], 99.8),
    ],
)
def test_usual_rewards_raise_no_warning(rewards: list[float], ratio: float | None) -> None:
    sizes = taken(*rewards)
    assert (sizes.ratio, sizes.warning) == (ratio, None)


def test_the_size_of_a_reward_is_its_distance_from_the_default() -> None:
    """Costs of 1 to 3 below a default of 0, ratings around 3, a range above 0 without a default."""
    assert taken(*[-2.0] * 20, -600.0, rules=RewardRules(range=(-1000, 0))).ratio == 300
    ratings = RewardRules(range=(1, 5), default=3.0)
    assert taken(*[2.0, 4.0] * 10, 5.0, rules=ratings).ratio == 2
    assert (
        taken(*[101.0] * 20, 150.0, rules=RewardRules(range=(100, 200), default=None)).ratio == 50
    )


def test_the_largest_reward_is_forgotten_after_two_blocks_and_the_median_follows() -> None:
    sizes = taken(1000.0, *[1.0] * (2 * BLOCK - 1))
    assert sizes.ratio == 1000
    sizes.take(1.0, RULES)
    assert sizes.ratio == 1
    for _ in range(MEDIAN_REWARDS):
        sizes.take(10.0, RULES)
    assert sizes.ratio == 1


def test_corrections_count_and_withdrawn_rewards_do_not() -> None:
    log, drift = Log(), Drift()
    log.define({**shop(p={"kind": "random"}), "reward": {"range": [0, 1000]}})
    shown = [log.settle("p", {"toy1": 1.0}) for _ in range(30)]
    for one in shown:
        drift.learned(log.state, one.event)
    sizes = drift.reward_sizes(log.state, "p")
    assert sizes is not None
    assert sizes.ratio == 1
    log.correct(shown[0], 700.0)
    corrected = log.records[-1][0]
    assert isinstance(corrected, Corrected)
    drift.learned(log.state, corrected)
    assert sizes.ratio == 700
    log.settle("p", {"toy1": 9.0, "toy2": 900.0})
    seen = log.settled[-1]
    log.withdraw(seen, "toy2")
    withdrawn = log.records[-1][0]
    assert isinstance(withdrawn, Corrected)
    drift.learned(log.state, withdrawn)
    assert sizes.ratio == 700


@pytest.mark.parametrize(
    ("reward", "path"),
    [
        ({"range": [0, 1000]}, ("reward", "range")),
        ({"range": [-150, 0]}, ("reward", "range")),
        ({"range": [0, 1], "aggregation": "sum", "total": [0, 400]}, ("reward", "total")),
        ({"range": [0, 99]}, None),
        ({"range": [1000, 1001], "default": 1000.0}, None),
    ],
)
def test_check_warns_of_a_range_in_which_one_report_can_be_worth_100(
    reward: Json, path: tuple[str, str] | None
) -> None:
    found = dict(lint(Definition.model_validate({**shop(), "reward": reward})))
    assert (path is None) == (not any(keys[0] == "reward" for keys in found))
    if path:
        assert "a single false one outweighs a hundred honest ones" in found[path]
