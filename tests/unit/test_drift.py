"""Drift: three figures against references that move on by themselves."""

from collections.abc import Iterable
from dataclasses import astuple
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from service.decide.recorder import Recorded
from service.decide.scoring import decide
from service.decide.select import Decided
from service.definition.experiment import RewardRules
from service.definition.select_request import SelectRequest
from service.features.declaration import Features
from service.features.schema import Array, Schema
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.state.events import Corrected, Outcome, Rewarded
from service.state.fold import State
from service.telemetry import drift
from service.telemetry.drift import (
    Calibration,
    ContextDrift,
    Drift,
    PredictionDrift,
    RewardDrift,
    Stride,
    stability,
)
from tests.support.clock import run_virtual
from tests.unit.audited import CAT, define, live, state_of
from tests.unit.folding import Log, shop

RULES = RewardRules()
FEATURES = Features.model_validate(
    {
        "context": {
            "age": {"type": "numeric", "scale": 10.0},
            "member": {"type": "boolean"},
            "persona": {"type": "categorical", "values": ["cat", "dog"], "unknown": "other"},
            "taste": {"type": "vector", "size": 3},
        }
    }
)
SCHEMA = Schema(FEATURES)


def contexts(seed: int, count: int, **shifted: Any) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [
        SCHEMA.encode_context(
            {
                "age": float(rng.normal(40, 10)),
                "member": bool(rng.random() < 0.3),
                "persona": str(rng.choice(["cat", "dog"])),
                "taste": rng.normal(size=3).tolist(),
            }
            | {name: value(rng) for name, value in shifted.items()}
        )
        for _ in range(count)
    ]


def watched(*parts: list[Array], samples: int = 500, gap: float = 1.0) -> ContextDrift:
    watch = ContextDrift(SCHEMA, Random(1), samples)
    now = 0.0
    for part in parts:
        for x in part:
            now += gap
            watch.take(x, now)
    return watch


# -- context -----------------------------------------------------------------------------------


def test_the_index_is_its_formula() -> None:
    """Of (70, 30) and (30, 70) with half a sample more in each of three groups, one empty."""
    reference, recent = np.repeat([0.0, 1.0], [70, 30]), np.repeat([0.0, 1.0], [30, 70])
    p, q = np.array([70.5, 30.5, 0.5]) / 101.5, np.array([30.5, 70.5, 0.5]) / 101.5
    found = stability(reference, recent, by_value=True)
    assert found == pytest.approx(sum((q - p) * np.log(q / p)))
    assert found == pytest.approx(0.66, abs=0.01)


def test_a_value_that_the_reference_lacks_counts() -> None:
    assert stability(np.zeros(500), np.full(500, 3.0), by_value=False) > 5
    assert stability(np.zeros(500), np.zeros(500), by_value=False) == 0


def test_nothing_is_told_before_two_windows() -> None:
    watch = watched(contexts(1, 999))
    assert watch.figures() == {}
    watch.take(contexts(2, 1)[0], 1_000.0)
    assert watch.figures().keys() == {"age", "member", "persona", "taste"}


@pytest.mark.parametrize(
    ("feature", "value"),
    [
        ("age", lambda rng: float(rng.normal(55, 10))),
        ("member", lambda rng: bool(rng.random() < 0.8)),
        ("persona", lambda rng: "dog" if rng.random() < 0.9 else "fish"),
        ("taste", lambda rng: (rng.normal(size=3) + 2).tolist()),
    ],
)
def test_a_feature_that_shifts_stands_out_alone(feature: str, value: Any) -> None:
    figures = watched(contexts(1, 6_000), contexts(2, 500, **{feature: value})).figures()
    assert figures.pop(feature) > 0.25
    assert max(figures.values()) < 0.1


def test_a_lasting_shift_becomes_the_new_normal() -> None:
    """A sample a minute: the reference goes back by ten windows in the mean, 5,000 samples. After
    five times as many less than 1 percent of it is of before."""
    older = {"age": lambda rng: float(rng.normal(70, 5))}
    watch = watched(contexts(1, 5_000), contexts(2, 500, **older), gap=60.0)
    assert watch.figures()["age"] > 0.25
    for number, x in enumerate(contexts(3, 25_000, **older)):
        watch.take(x, 5_500 * 60.0 + number * 60.0)
    assert watch.figures()["age"] < 0.1


def test_at_most_so_many_features_are_watched() -> None:
    many = {f"f{number:03d}": {"type": "boolean"} for number in range(100)}
    watch = ContextDrift(Schema(Features.model_validate({"context": many})), Random(1))
    assert len(watch.features) == drift.WATCHED_FEATURES == 64


# -- sampling ----------------------------------------------------------------------------------


def taken(gaps: list[float]) -> list[int]:
    """Which of a stream are samples."""
    stride, now, left, found = Stride(Random(1), 0.0), 0.0, 1, []
    for index, gap in enumerate(gaps):
        now += gap
        left -= 1
        if left <= 0:
            left = stride.next(now)
            found.append(index)
    return found


def test_of_a_fast_stream_a_few_a_second_are_samples() -> None:
    found = taken([0.001] * 300_000)
    late = [index for index in found if index >= 200_000]  # of the last 100 seconds
    assert 150 < len(late) < 1_000
    assert abs(np.mean([index % 2 for index in late]) - 0.5) < 0.15  # in step with nothing


def test_of_a_stream_that_slows_down_all_are_samples_again() -> None:
    found = taken([0.001] * 100_000 + [1.0] * 3_000)
    assert sum(index > 102_000 for index in found) == 1_000 - 1


# -- rewards -----------------------------------------------------------------------------------


def moved(watch: RewardDrift, rewards: Iterable[float]) -> float | None:
    for reward in rewards:
        watch.move(float(reward), None)
    return watch.shift(RULES)


def test_rewards_that_stay_as_they_are_do_not_shift() -> None:
    """Of 20 policies over 20,000 rewards each, none is ever 6 standard errors off."""
    worst = 0.0
    for seed in range(20):
        rng, watch = np.random.default_rng(seed), RewardDrift()
        for some in (rng.random(20_000) < 0.3).reshape(-1, 50):
            worst = max(worst, abs(moved(watch, some) or 0.0))
    assert 3 < worst < 6


@pytest.mark.parametrize(("poison", "sign"), [(0.0, -1), (1.0, 1)])
def test_two_hundred_false_rewards_are_a_shift(poison: float, sign: int) -> None:
    watch = RewardDrift()
    moved(watch, np.random.default_rng(1).random(5_000) < 0.3)
    assert sign * (moved(watch, [poison] * 200) or 0.0) > 6


def test_a_shift_is_reported_from_a_thousand_rewards_on_and_the_first_click_is_none() -> None:
    watch = RewardDrift()
    assert moved(watch, [1.0] * 999) is None
    assert moved(watch, [1.0]) == 0.0
    assert 0 < (moved(RewardDrift(count=50_000), [1.0]) or 0.0) < 3


def test_a_correction_moves_the_means_by_what_it_changed() -> None:
    told, corrected = RewardDrift(), RewardDrift()  # 1 four times; 0 that 1 corrects, four times
    for _ in range(4):
        told.move(1.0, None)
        corrected.move(0.0, None)
        corrected.move(1.0, 0.0)
    for watch in (told, corrected):
        assert (watch.long, watch.recent, watch.squares) == (1, 1, 1)
    RewardDrift().move(1.0, 0.0)  # of a reward before all that is watched: nothing to move


# -- predictions -------------------------------------------------------------------------------


def predicted(mean: float, reward: float, count: int = 500) -> PredictionDrift:
    watch = PredictionDrift(Random(1))
    for index in range(count):
        watch.take(str(index), "arm", mean, reward)
    return watch


def test_the_error_is_the_distance_of_the_means_as_a_share_of_the_range() -> None:
    """0.5 is predicted and 0.2 comes: 0.3 off, of a range from -1 to 1 a share of 0.15."""
    found = predicted(0.5, 0.2).figures(RewardRules(range=(-1.0, 1.0)))
    expected = Calibration(0.15, 2.5, 150 / np.sqrt(500 * 0.3**2))
    assert found is not None
    assert astuple(found) == pytest.approx(astuple(expected))


def test_predictions_are_judged_once_the_window_is_full() -> None:
    assert predicted(1.0, 1.0, 499).figures(RULES) is None
    assert predicted(1.0, 0.0).figures(RULES).ratio is None  # type: ignore[union-attr]


def test_a_reward_that_has_left_the_window_is_not_revised() -> None:
    watch = predicted(1.0, 1.0, 501)
    watch.revise("0", "arm", 0.0)  # its place was taken by the last one
    assert watch.figures(RULES) == Calibration(0.0, 1.0, 0.0)


# -- of a state --------------------------------------------------------------------------------


@pytest.fixture
def state() -> State:
    log = Log()
    log.define(
        {
            "features": FEATURES.model_dump(mode="json"),
            "arms": {"a": {}},
            "policies": {"linucb": {"kind": "linucb"}, "random": {"kind": "random"}},
        }
    )
    return log.state


def rewarded(policy: str, reward: float, decision: str = "d") -> Rewarded:
    settled = [Outcome("a", reward, SCHEMA.layout.pack(np.full(SCHEMA.width, 0.1)))]
    return Rewarded(at=0.0, decision=decision, policy=policy, schema_version=1, settled=settled)


def watching(state: State, policy: str = "linucb", reward: float = 1.0) -> Drift:
    watch = Drift(Random(1), samples=10)
    for number in range(10):
        watch.learned(state, rewarded(policy, reward, str(number)))
    return watch


def test_a_prediction_is_of_before_the_reward_was_learned(state: State) -> None:
    """The prior's mean is 0, whatever comes."""
    found = watching(state).predictions(state, "linucb")
    assert found is not None
    assert (found.error, found.ratio) == (1.0, 0.0)


def test_a_policy_without_a_head_predicts_nothing(state: State) -> None:
    watch = watching(state, "random")
    assert watch.predictions(state, "random") is None
    assert watch.rewards(state, "random") is not None


def test_corrections_reach_rewards_and_predictions(state: State) -> None:
    watch = watching(state, reward=0.0)
    for number in range(10):
        event = rewarded("linucb", 1.0, str(number))
        watch.learned(
            state,
            Corrected(
                at=0.0, decision=event.decision, policy="linucb", schema_version=1,
                settled=[structs.replace(event.settled[0], was=0.0, since=1)],
            ),
        )  # fmt: skip
    found, rewards = watch.predictions(state, "linucb"), watch.rewards(state, "linucb")
    assert found is not None
    assert rewards is not None
    assert (found.error, rewards.count) == (1.0, 10)


def test_new_features_and_a_new_head_begin_a_new_reference(state: State) -> None:
    watch = watching(state)
    for x in contexts(1, 100):
        watch.decided(state, x)
    assert watch.context(state)
    state.schema = Schema(FEATURES)
    state.learners["linucb"].births.append(2)
    assert watch.context(state) == {}
    watch.decided(state, contexts(2, 1)[0])
    watch.learned(state, rewarded("linucb", 1.0))
    assert watch.context(state) == {}
    assert watch.predictions(state, "linucb") is None


def test_a_deleted_experiment_is_forgotten(state: State) -> None:
    watch = watching(state)
    for x in contexts(1, 100):
        watch.decided(state, x)
    watch.forget_others({})
    assert watch.context(state) == {}
    assert watch.rewards(state, "linucb") is None


def test_a_decision_under_features_that_changed_since_is_answered() -> None:
    """The features changed while the log committed it. Before, the answer was a 500."""

    async def play(services: Services) -> None:
        await define(services, shop(p={"kind": "linucb"}))
        selector, state = services.selector, state_of(services)
        lookup = selector._lookups.look_up(state, SelectRequest(CAT))
        [recorded] = selector._recorder.record([(lookup, *decide(*lookup.choice))], [None])
        assert isinstance(recorded, Recorded)
        wider = shop(p={"kind": "linucb"})
        wider["features"]["context"]["visits"] = {"type": "numeric", "default": 0.0}
        await define(services, wider)
        stored = await services.log.committer.record(recorded.row, required=True)
        answer = selector._answer(Decided(lookup, recorded, 0.0, stored))
        assert answer.decision.id == recorded.decision.id

    run_virtual(live(MemoryStore(), play))
