"""Level and unit of rewards change no choice, whatever the kind of policy."""

from random import Random
from typing import Any

import numpy as np
import pytest

from service.bandits.reward_scale import RewardScale
from service.decide.scoring import decide
from service.state.decider import Decider
from service.state.fold import State
from tests.support.tables import by_arm
from tests.unit.folding import Log, bits, replay, shop

ARMS = {"a": 0.3, "b": 0.5, "c": 0.7}
NET = {"hidden": [4], "embedding": 2}
POLICIES: dict[str, dict[str, Any]] = {
    "auto": {"kind": "auto"},
    "linucb": {"kind": "linucb", "disjoint": True},
    "lints": {"kind": "lints", "disjoint": True, "draws": 64},
    "shared": {"kind": "lints", "draws": 64},
    "neural_linear_ts": {"kind": "neural_linear_ts", "draws": 64, **NET},
    "neural_linucb": {"kind": "neural_linucb", **NET},
    "neural_ucb": {"kind": "neural_ucb", **NET},
    "diagonal": {"kind": "neural_ts", "form": "diagonal", "draws": 64, **NET},
    "full": {"kind": "neural_ucb", "form": "full", **NET},
    "neural_glm_ts": {"kind": "neural_glm_ts", "draws": 64, **NET},
    "bootstrap_ensemble": {"kind": "bootstrap_ensemble", **NET},
    "mc_dropout": {"kind": "mc_dropout", **NET},
    "greedy": {"kind": "greedy", "disjoint": True},
    "epsilon_greedy": {"kind": "epsilon_greedy"},
    "popularity": {"kind": "popularity", "draws": 64},
    "noise": {"kind": "linucb", "noise": 0.5},
}
RANGES = [(1.0, 5.0), (0.0, 0.001), (-1.0, 0.0), (100.0, 101.0)]


def choices(
    policy: dict[str, Any], low: float, high: float, ends: tuple[float, float] | None = None
) -> list[str]:
    """The arms that a policy shows in 120 visits, where a click pays `high` and a miss `low`; ends:
    of the range, where it is wider. The first two visits show two arms, a click and a miss."""
    ends = ends or (low, high)
    if "noise" in policy:
        policy = {**policy, "noise": policy["noise"] * (high - low)}
    log, rng, found = Log(), Random(7), list[str]()
    log.define(
        {
            "features": {
                "context": {"pet": {"type": "categorical", "values": ["cat"]}},
                "arm": {"name": {"type": "categorical", "values": list(ARMS)}},
            },
            "arms": {arm: {"name": arm} for arm in ARMS},
            "policies": {"p": policy},
            "reward": {"range": list(ends), "default": low},
        }
    )
    learner = log.state.learners["p"]
    for number in range(120):
        _, slate = decide(
            Decider.serving(learner), np.ones(1), log.state.candidates, 1, rng.getrandbits(63)
        )
        arm = log.state.candidates.ids[slate.arms[0]] if number > 1 else "ab"[number]
        click = rng.random() < ARMS[arm] if number > 1 else number == 0
        log.settle("p", {arm: high if click else low})
        found.append(arm)
    return found


@pytest.mark.parametrize("name", list(POLICIES))
def test_the_same_clicks_lead_to_the_same_choices_at_any_level_and_unit(name: str) -> None:
    plain = choices(POLICIES[name], 0.0, 1.0)
    for low, high in RANGES:
        assert choices(POLICIES[name], low, high) == plain, (low, high)


def test_rewards_that_are_small_in_their_range_lose_no_digits() -> None:
    scale = RewardScale.to_unit((-1e9, 1e9))
    assert scale(1.0) - scale(0.0) == 0.5e-9
    assert RewardScale.to_unit((100.0, 101.0))(100.5) == 0.5
    assert RewardScale.to_shares((1.0, 5.0))(5.0) == 1.0


@pytest.mark.parametrize("name", ["linucb", "lints", "bootstrap_ensemble"])
def test_a_range_far_wider_than_its_rewards_changes_no_choice(name: str) -> None:
    plain = choices(POLICIES[name], 0.0, 1.0)
    assert choices(POLICIES[name], 0.0, 1.0, ends=(-1e9, 1e9)) == plain


@pytest.mark.parametrize("name", ["auto", "noise", "linucb", "popularity", "bootstrap_ensemble"])
def test_a_range_that_is_widened_holds_after_a_restart_as_before(name: str) -> None:
    """The head goes on under its scale, or starts anew; a snapshot decides as the live state."""
    policy = {**POLICIES[name], "window": 20} if name == "noise" else POLICIES[name]
    log = Log()
    log.define(shop(p=policy))
    for number in range(30):
        log.settle("p", {sorted(log.state.arms)[number % 6]: float(number % 2)})
    log.define({**shop(p=policy), "reward": {"range": [0, 10]}})
    for number in range(30):
        log.settle("p", {sorted(log.state.arms)[number % 6]: float(number % 6)})
    restored = State.restore(log.state.snapshot())
    assert bits(restored) == bits(log.state)
    log.settle("p", {"food1": 7.0})
    assert bits(replay(log.records, restored)) == bits(log.state)


def test_the_means_of_auto_keep_to_the_range_as_it_is_now() -> None:
    """Arms of 3 and 8 in a range that was 0 to 1 do not tie at its old end."""
    log = Log()
    log.define(shop(p={"kind": "auto"}))
    log.settle("p", {"food1": 1.0})
    log.define({**shop(p={"kind": "auto"}), "reward": {"range": [0, 10]}})
    for _ in range(200):
        log.settle("p", {"food1": 3.0, "toy1": 8.0})
    learner, candidates = log.state.learners["p"], log.state.candidates
    context = log.state.schema.encode_context({"pet": "cat"})
    scores = dict(
        zip(
            candidates.ids,
            by_arm(Decider.serving(learner).score(context, candidates))[0],
            strict=True,
        )
    )
    assert scores["toy1"] > scores["food1"] + 3.0
