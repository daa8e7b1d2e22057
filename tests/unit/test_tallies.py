"""What came of each arm: counted in the fold, kept in snapshots, bounded."""

import pytest

from service.definition.experiment import RewardRules
from service.features.row import Row
from service.state import reward_statistics
from service.state.events import Outcome
from service.state.fold import State
from service.state.reward_statistics import ArmRewardSums, RewardTotals, interval
from tests.unit.folding import Log, shop


def opened() -> Log:
    log = Log()
    log.define(shop(linucb={"kind": "linucb"}, random={"kind": "random"}))
    return log


def sums(state: State, policy: str) -> dict[str, tuple[float, float, float]]:
    """Count, sum and sum of squares, by arm."""
    found = state.arm_reward_sums[policy]
    columns = found.columns()
    return {arm: tuple(columns[:, row].tolist()) for arm, row in found.rows.items()}


def settled(arm: str, reward: float = 1.0) -> Outcome:
    return Outcome(arm, reward, Row(b"", ()))


def test_arms_are_counted_for_the_policy_that_showed_them() -> None:
    """A correction changes the sum and not the count."""
    log = opened()
    log.settle("linucb", {"food1": 1.0, "toy1": 0.5})
    log.settle("linucb", {"food1": 0.0})
    log.correct(log.settle("random", {"food1": 0.0}), 0.5)
    assert sums(log.state, "linucb") == {"food1": (2, 1.0, 1.0), "toy1": (1, 0.5, 0.25)}
    assert sums(log.state, "random") == {"food1": (1, 0.5, 0.25)}


def test_a_retired_arm_and_a_reset_policy_keep_counts_and_arms_outside_have_none() -> None:
    log = opened()
    log.settle("linucb", {"guest": 1.0}, inline={"kind": "food"})
    assert sums(log.state, "linucb") == {}
    assert log.state.reward_sums["linucb"].count == 1
    log.settle("linucb", {"food1": 1.0})
    log.remove("food1")
    log.reset("linucb")
    assert sums(log.state, "linucb") == {"food1": (1, 1.0, 1.0)}


def test_arms_come_back_from_a_snapshot_and_count_on() -> None:
    log = opened()
    shown = log.settle("linucb", {"food1": 0.0, "toy1": 1.0})
    other = State.restore(log.state.snapshot())
    assert sums(other, "linucb") == sums(log.state, "linucb")
    log.correct(shown, 0.5)
    event, _ = log.records[-1]
    other.apply(len(log.records), event)
    assert sums(other, "linucb") == sums(log.state, "linucb")
    assert other.snapshot().payload == log.state.snapshot().payload


def test_of_a_full_table_the_arms_of_the_catalogue_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_statistics, "MOST_ARMS", 4)
    found = ArmRewardSums(0)
    for arm in "abcd":
        found.move(settled(arm), "bx")
    found.move(settled("b", 0.5), "bx")
    found.move(settled("x", 0.25), "bx")
    assert found.rows == {"b": 0, "x": 1}
    assert found.columns().tolist() == [[2, 1], [1.5, 0.25], [1.25, 0.0625]]


def test_of_a_catalogue_that_does_not_fit_the_first_arms_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_statistics, "MOST_ARMS", 2)
    found = ArmRewardSums(0)
    for arm in "abca":
        found.move(settled(arm), "abc")
    assert found.rows == {"a": 0, "b": 1}
    assert found.columns()[0].tolist() == [2, 1]


def test_an_interval_stays_within_the_range_unless_rewards_are_summed_up() -> None:
    """Four successes of four: (4 + 2) / 8 = 0.75, half 1.96 sqrt(0.75 * 0.25 / 8) = 0.30."""
    bounds = interval(RewardTotals(0, 4, 4, 4), RewardRules())
    assert bounds == pytest.approx([0.75 - 1.96 * (0.1875 / 8) ** 0.5, 1.0])
    assert interval(RewardTotals(0, 4, 8, 16), RewardRules(aggregation="sum")) == [2.0, 2.0]
    assert interval(RewardTotals(0), RewardRules()) is None
