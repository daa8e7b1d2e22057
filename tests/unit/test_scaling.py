"""Numbers are measured on the first settlements: standardised, or bounded in their own unit."""

from typing import Any

import numpy as np
import pytest

from service.bandits.version import WARM_UP, Version
from service.definition.experiment import Definition
from service.features.scaling import ENOUGH, LIMIT, NORMAL, Scaling
from service.features.schema import Array, Schema
from service.state.fold import State
from tests.unit.folding import NET, Log, bits, replay
from tests.unit.test_forgetting import expect_batch, weighted

HEADS: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb"},
    "disjoint": {"kind": "lints", "disjoint": True, "draws": 16},
    "ensemble": {"kind": "bootstrap_ensemble", "members": 4, **NET},
    "diagonal": {"kind": "neural_ucb", "form": "diagonal", **NET},
    "net": {"kind": "neural_linear_ts", "draws": 16, **NET},
    "decaying": {"kind": "linucb", "gamma": 0.99, "decay_every": 3},
}
BARE = {"type": "numeric"}
DECLARED = {"type": "numeric", "scale": 10.0}


def shop(age: dict[str, Any], *policies: str, **more: Any) -> dict[str, Any]:
    return {
        "features": {
            "context": {
                "age": age,
                "pet": {"type": "categorical", "values": ["cat", "dog"]},
            },
            "arm": {"price": {"type": "numeric"}},
            "crosses": ["age x price"],
        },
        "arms": {"cheap": {"price": 10.0}, "dear": {"price": 500.0}},
        "policies": {"p" if len(policies) == 1 else name: HEADS[name] | more for name in policies},
        "reward": {"range": [0, 1]},
    }


def visited(log: Log, count: int, seed: int = 0, unit: float = 1.0) -> None:
    """Visitors of 40 +- 10 years; the old like what is dear."""
    rng = np.random.default_rng(seed)
    for age in (40 + 10 * rng.standard_normal(count)).tolist():
        arm = ["cheap", "dear"][int(rng.integers(2))]
        reward = float(rng.random() < (0.8 if (age > 40) == (arm == "dear") else 0.2))
        log.settle(next(iter(log.state.learners)), {arm: reward}, {"pet": "cat", "age": unit * age})


def scaling_of(feature: dict[str, Any], side: str = "context") -> Scaling:
    content = {"features": {side: {"f": feature}}, "policies": {"p": {"kind": "linucb"}}}
    found = Scaling.of(Schema(Definition.model_validate(content).features))
    assert found is not None
    return found


def column(values: list[float]) -> Array:
    return np.array(values)[:, None]


# -- one column ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "center", "spread"),
    [
        ([1.0, 2.0, 3.0, 4.0, 1e12], 3.0, 1.5 * NORMAL),  # distances 2, 1, 1 and 1e12
        ([0.0, 0.0, 0.0, 0.0, 4.0, 6.0, 5.0], 0.0, 5.0 * NORMAL),  # mostly 0: of the others
        ([7.0, 7.0], 7.0, 1.0),
        ([7.0], 7.0, 1.0),
    ],
)
def test_a_center_is_a_median_and_a_spread_the_median_distance(
    values: list[float], center: float, spread: float
) -> None:
    found = scaling_of(BARE).measured(column(values))
    assert found(np.array([center])) == 0.0
    assert found(np.array([center + spread])) == pytest.approx(1.0)
    assert found(np.array([1e15])) == LIMIT
    assert found(np.array([-1e15])) == -LIMIT


def test_a_tenth_of_hostile_values_hardly_moves_the_scaling_of_normal_ones() -> None:
    values = np.random.default_rng(0).normal(60.0, 20.0, 256)
    honest = scaling_of(BARE).measured(values[:, None])
    values[::10] = 1e12
    poisoned = scaling_of(BARE).measured(values[:, None])
    assert honest.spread[0] == pytest.approx(20.0, rel=0.15)
    assert poisoned.spread[0] == pytest.approx(honest.spread[0], rel=0.35)
    assert abs(poisoned.center[0] - 60.0) < 5.0


def test_a_value_whose_scaled_one_no_float_holds_is_clipped_as_any_far_value() -> None:
    tiny = np.resize([-1e-300, 0.0, 1e-300], ENOUGH)
    found = scaling_of(BARE).measured(tiny[:, None])
    assert found(np.array([1e15])) == LIMIT
    assert found.context(np.array([1e15])) == LIMIT


def test_a_declared_number_keeps_its_unit_and_is_bounded_once_enough_rows_are_known() -> None:
    values = 4.0 + np.random.default_rng(0).standard_normal(ENOUGH)
    early = scaling_of(DECLARED).measured(values[:-1, None])
    assert early(np.array([10.0])) == 10.0
    found = scaling_of(DECLARED).measured(values[:, None])
    assert found(np.array([4.5])) == 4.5
    assert found(np.array([10.0])) == pytest.approx(4.0 + LIMIT, rel=0.1)


@pytest.mark.parametrize(
    ("feature", "side", "limit"),
    [
        (BARE, "context", LIMIT),
        (BARE, "arm", 10.0),  # the catalogue is no caller's to choose
        (BARE | {"clip": 5.0}, "context", 5.0),
        (BARE | {"min": 0.0, "max": 1e6}, "context", LIMIT),
    ],
)
def test_deviations_beyond_the_limit_are_clipped(
    feature: dict[str, Any], side: str, limit: float
) -> None:
    found = scaling_of(feature, side).measured(column([1.0, 2.0, 3.0]))
    assert found(np.array([1e6])) == limit


@pytest.mark.parametrize(
    ("feature", "side"),
    [
        (DECLARED | {"clip": 10.0}, "context"),
        (DECLARED | {"min": 0.0, "max": 100.0}, "context"),
        (DECLARED, "arm"),
        ({"type": "boolean"}, "context"),
    ],
)
def test_nothing_is_measured_of_what_the_definition_bounds(
    feature: dict[str, Any], side: str
) -> None:
    content = {"features": {side: {"f": feature}}, "policies": {"p": {"kind": "linucb"}}}
    assert Scaling.of(Schema(Definition.model_validate(content).features)) is None


@pytest.mark.parametrize(
    "values", [np.ones((2, 2)), np.array([[0.0], [np.nan]]), np.array([[0.0], [0.0]])]
)
def test_values_of_another_scaling_are_refused(values: Array) -> None:
    with pytest.raises(ValueError, match="scaling"):
        scaling_of(BARE).with_values(values)


# -- heads -----------------------------------------------------------------------------------------


def active(log: Log) -> Version:
    return log.state.learners["p"].active


@pytest.mark.parametrize("policy", HEADS)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, WARM_UP - 1, WARM_UP, WARM_UP + 40])
def test_a_head_is_the_batch_of_all_settlements_under_the_scaling_of_the_first(
    policy: str, count: int
) -> None:
    """The scaling of the first 2^k settlements, up to WARM_UP; the head holds all of them."""
    log = Log()
    log.define(shop(BARE, policy))
    visited(log, count)
    version = active(log)
    first = min(1 << (count.bit_length() - 1), WARM_UP)
    rows = [one.row for shown in log.settled[:first] for one in shown.event.settled]
    x = log.state.schema.layout.unpack(rows)
    assert version.view.scaling is not None
    expected = Scaling.of(log.state.schema)
    assert expected is not None
    assert np.array_equal(version.view.scaling.values, expected.measured(x).values)
    if policy == "decaying":
        expect_batch(log, weighted(log, 3, 0.99**3))
    else:
        expect_batch(log, weighted(log))
    assert (version.memory is None) == (count >= WARM_UP)


@pytest.mark.parametrize("policy", ["linucb", "disjoint", "decaying"])
@pytest.mark.parametrize("count", [3, 5, WARM_UP - 1, WARM_UP + 3])
def test_corrections_and_withdrawals_hold_before_and_after_the_scaling_moves(
    policy: str, count: int
) -> None:
    log = Log()
    log.define(shop(BARE, policy))
    visited(log, 3)
    early = log.settled[1]
    log.correct(log.settled[0], 1.0)
    visited(log, count - 3, seed=1)
    log.correct(early, 0.25)
    if policy != "decaying":  # a head that is learned again counts its decays without what is gone
        log.withdraw(log.settled[2], log.settled[2].event.settled[0].arm)
    visited(log, 2, seed=2)
    expect_batch(log, weighted(log, 3, 0.99**3) if policy == "decaying" else weighted(log))


@pytest.mark.parametrize("age", [BARE, DECLARED], ids=["bare", "declared"])
def test_a_snapshot_anywhere_goes_on_to_the_same_bits(age: dict[str, Any]) -> None:
    log = Log()
    log.define(shop(age, *HEADS))
    visited(log, WARM_UP + 4)
    log.correct(log.settled[1], 1.0)
    whole = bits(log.state)
    assert bits(replay(log.records)) == whole
    for position in (1, 2, 4, 129, 130, 256, 257, 258):
        part = replay(log.records[:position])
        again = State.restore(part.snapshot())
        assert bits(again) == bits(part)
        assert bits(replay(log.records, again)) == whole


def test_the_unit_and_the_origin_of_a_number_change_nothing() -> None:
    """Years, or months since a date: the same means to 1e-9."""
    years, months = Log(), Log()
    for log in (years, months):
        log.define(shop(BARE, "linucb"))
    visited(years, 300)
    visited(months, 300, unit=-12.0)
    means = []
    for log, context in ((years, 47.0), (months, -12 * 47.0)):
        learner = log.state.learners["p"]
        x = np.array([[context, 1.0, 0.0, price] for price in (10.0, 500.0)])
        means.append(learner.active.mean(learner.active.phi(x), ["cheap", "dear"]))
    np.testing.assert_allclose(means[0], means[1], atol=1e-9)
    assert means[0][1] > means[0][0] + 0.1  # and it was learned


def test_a_window_keeps_its_memory_and_a_policy_without_numbers_measures_nothing() -> None:
    log = Log()
    log.define(shop(BARE, "linucb", window=20))
    visited(log, WARM_UP + 20)
    memory = active(log).memory
    assert memory is not None
    assert len(memory) <= 22
    expect_batch(log, weighted(log)[-len(memory) :])
    log.define(shop(BARE, "linucb", features=["intercept", "pet"]))
    assert active(log).view.scaling is None
    assert active(log).memory is None


def test_a_wide_head_measures_on_fewer_settlements_since_it_learns_them_again_at_once() -> None:
    """2,048 columns: 256 settlements took 3.7 s, in which nobody was answered."""
    log = Log()
    image = {"type": "vector", "size": 2_047}
    log.define({"features": {"context": {"image": image}}, "arms": {"a": {}},
                "policies": {"p": {"kind": "linucb"}}})  # fmt: skip
    rng = np.random.default_rng(0)
    for number in range(17):
        assert (active(log).memory is None) == (number >= 16)
        log.settle("p", {"a": 1.0}, {"image": (5 + rng.standard_normal(2_047)).tolist()})
    assert active(log).scaled_on == active(log).warm_up == 16
