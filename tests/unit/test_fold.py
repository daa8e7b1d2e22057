"""State = fold(state, events): by hand where one event is at stake."""

from typing import Any

import numpy as np
import pytest

from service.bandits.heads import BetaHead, RidgeHead
from service.bandits.rules import probabilities
from service.errors import LogGap, StoreUnavailable
from service.state.decider import Decider
from service.state.events import ArmUpserted, Default, VersionActivated
from service.state.fold import State
from tests.unit.folding import SHOP, TRAINED, Log, bits, collected, head_of, replay, shop

LINUCB = {"kind": "linucb", "features": ["pet x kind"]}


def opened(**policies: dict) -> Log:
    log = Log()
    log.define(shop(**policies))
    return log


def ridge(log: Log, policy: str = "linucb") -> RidgeHead:
    head = log.state.learners[policy].active.head
    assert isinstance(head, RidgeHead)
    return head


def beta(log: Log) -> dict[str, list[float]]:
    head = log.state.learners["popularity"].active.head
    assert isinstance(head, BetaHead)
    return dict(zip(head._rows.by_name, head._counts.tolist(), strict=True))


def test_two_rewards_of_a_cats_toy_are_counted_in_its_cell_of_the_head() -> None:
    """Cells are (food, toy, bed) x (cat, dog): the cat's toy is the third. A 1 + 2, b 1 + 0."""
    log = opened(linucb=LINUCB)
    log.settle("linucb", {"toy1": 1.0})
    log.settle("linucb", {"toy2": 0.0})
    assert np.diag(ridge(log).A).tolist() == [1, 1, 3, 1, 1, 1]
    assert ridge(log).b.tolist() == [0, 0, 1, 0, 0, 0]
    assert (ridge(log).rewards.rr, ridge(log).n) == (1.0, 2.0)
    tally = log.state.reward_sums["linucb"]
    assert (tally.count, tally.total, tally.squares) == (2, 1.0, 1.0)
    assert log.state.learners["linucb"].rewards == 2


def test_a_click_after_the_default_leaves_the_head_as_if_it_had_come_at_once() -> None:
    late, straight = opened(), opened()
    for policy in ("linucb", "popularity", "neural_ucb", "lints_disjoint"):
        late.correct(late.settle(policy, {"toy1": 0.0}, kind=Default), 1.0)
        straight.settle(policy, {"toy1": 1.0})
        assert head_of(late.state, policy) == head_of(straight.state, policy)
        assert vars(late.state.reward_sums[policy]) == vars(straight.state.reward_sums[policy])
        assert late.state.learners[policy].rewards == 1


@pytest.mark.parametrize("position", [0, 1, 3, 99])
def test_a_position_that_does_not_follow_is_a_gap_and_changes_nothing(position: int) -> None:
    log = opened()
    before = bits(log.state)
    with pytest.raises(LogGap, match=f"position {position} follows 1"):
        log.state.apply(position, ArmUpserted(at=0.0, arm="x", features={"kind": "toy"}))
    assert bits(log.state) == before


def test_a_policy_learns_from_its_own_decisions_and_a_watcher_from_all() -> None:
    watcher = LINUCB | {"learns_from": "all"}
    log = opened(linucb=LINUCB, other=LINUCB, watcher=watcher, random={"kind": "random"})
    for policy in ("linucb", "other", "random"):
        log.settle(policy, {"toy1": 1.0})
    assert [ridge(log, name).n for name in ("linucb", "other", "watcher")] == [1, 1, 3]
    assert log.state.reward_sums["watcher"].count == 0
    assert log.state.reward_sums["random"].count == 1


def test_a_removed_arms_late_reward_is_learned_and_the_arm_is_no_candidate() -> None:
    log = opened()
    log.remove("toy1")
    assert "toy1" not in log.state.candidates.ids
    log.state.arms["toy1"] = {"kind": "toy"}  # as the decision had seen it
    log.settle("lints_disjoint", {"toy1": 1.0})
    head = log.state.learners["lints_disjoint"].active.head
    assert head is not None
    assert head.health().effective_count == 1
    assert "toy1" in head._rows  # type: ignore[attr-defined]


def test_an_arm_outside_the_catalogue_gets_no_head_but_teaches_a_shared_one() -> None:
    log = opened()
    for policy in ("linucb", "lints_disjoint", "popularity", "neural_disjoint", "neural_ucb"):
        log.settle(policy, {"guest": 1.0}, inline={"kind": "toy"})
    counts = {
        name: learner.active.head.health().effective_count
        for name, learner in log.state.learners.items()
        if learner.active.head
    }
    assert (counts["linucb"], counts["neural_ucb"], counts["watcher"]) == (1, 1, 5)
    assert (counts["lints_disjoint"], counts["popularity"], counts["neural_disjoint"]) == (0, 0, 0)
    assert log.state.reward_sums["popularity"].count == 1


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.5},
        {"share": 3.0},
        {"epsilon": 0.2},
        {"learns_from": "all"},
        {"learning": False},
    ],
)
def test_settings_that_keep_the_head_keep_its_bits(change: dict) -> None:
    """A frozen head keeps them while rewards are counted."""
    log = opened(linucb=LINUCB)
    log.settle("linucb", {"toy1": 1.0})
    before = head_of(log.state, "linucb")
    log.define(shop(linucb=LINUCB | change))
    assert head_of(log.state, "linucb") == before
    assert log.state.learners["linucb"].born == 1
    log.settle("linucb", {"toy1": 1.0})
    assert (head_of(log.state, "linucb") == before) is ("learning" in change)
    assert log.state.learners["linucb"].rewards == 2


@pytest.mark.parametrize(
    "change",
    [
        {"ridge": 2.0},
        {"noise": 0.5},
        {"features": ["kind"]},
        {"disjoint": True, "features": ["pet"]},
        {"kind": "lints"},
    ],
)
def test_other_settings_start_that_head_from_the_prior_and_no_other(change: dict) -> None:
    log = opened(linucb=LINUCB, other=LINUCB)
    log.settle("linucb", {"toy1": 1.0})
    log.settle("other", {"toy1": 1.0})
    log.define(shop(linucb=LINUCB | change, other=LINUCB))
    head = log.state.learners["linucb"].active.head
    assert head is not None
    assert head.health().effective_count == 0
    assert log.state.learners["linucb"].born == 2
    assert ridge(log, "other").n == 1


def test_a_correction_of_what_a_new_head_does_not_hold_weighs_nothing() -> None:
    """Two defaults of 0, the head started anew, then the click after all: b stays 0, Beta(1, 1)."""
    log = opened(linucb=LINUCB, popularity=SHOP["policies"]["popularity"])
    early = [log.settle(policy, {"toy1": 0.0}, kind=Default) for policy in ("linucb", "popularity")]
    log.define(shop(linucb=LINUCB | {"ridge": 2.0}))
    log.define(shop(linucb=LINUCB | {"ridge": 2.0}, popularity=SHOP["policies"]["popularity"]))
    for shown in early:
        log.correct(shown, 1.0)
    assert ridge(log).b.tolist() == [0.0] * 6
    assert (ridge(log).rewards.rr, ridge(log).n) == (0.0, 0.0)
    assert beta(log) == {}
    tally = log.state.reward_sums["popularity"]
    assert (tally.count, tally.total) == (0, 0.0)
    learner = log.state.learners["popularity"]
    p = probabilities(Decider.serving(learner).score(np.zeros(3), log.state.candidates))
    assert p.sum() == pytest.approx(1.0)


def test_a_correction_of_what_came_while_the_head_was_frozen_weighs_nothing() -> None:
    frozen = shop(popularity=SHOP["policies"]["popularity"] | {"learning": False})
    log = opened(popularity=SHOP["policies"]["popularity"])
    log.define(frozen)
    missed = log.settle("popularity", {"toy1": 0.0}, kind=Default)
    log.define(shop(popularity=SHOP["policies"]["popularity"]))
    held = log.settle("popularity", {"toy1": 0.0}, kind=Default)
    log.correct(missed, 1.0)
    assert beta(log) == {"toy1": [1.0, 2.0]}
    log.correct(held, 1.0)
    assert beta(log) == {"toy1": [2.0, 1.0]}


def test_a_reset_starts_the_head_anew_and_nothing_else() -> None:
    """Neither corrections of what it forgot nor a version of the head before it come back."""
    policies = {"p": TRAINED, "other": LINUCB}
    log, fresh = opened(**policies), opened(**policies)
    for number in range(20):
        log.settle(["p", "other"][number % 2], {"toy1": float(number % 3 == 0)})
    log.stage("p")
    staged, artifact = log.records[-1]
    log.activate("p")
    other, tally = head_of(log.state, "other"), vars(log.state.reward_sums["p"]).copy()
    log.reset("p")
    learner = log.state.learners["p"]
    assert (learner.rewards, learner.active.number, learner.born) == (0, 0, 2)
    assert (learner.training_due_at, log.state.revision) == (4, 2)
    assert head_of(log.state, "other") == other
    assert vars(log.state.reward_sums["p"]) == tally
    log.write(staged, artifact)
    assert learner.challenger is None
    log.correct(log.settled[0], 0.5)
    assert head_of(log.state, "p") == head_of(fresh.state, "p")
    with pytest.raises(StoreUnavailable):
        collected(log, 4)
    for _ in range(4):
        log.settle("p", {"food1": 1.0})
    history = collected(log, 4)
    assert (history.memory.rewards, history.begins) == ([1.0] * 4, 24)


def test_an_arm_that_no_longer_fits_the_features_is_passed_over() -> None:
    """It was checked before the features changed, and logged after: the log must still fold."""
    log = opened(linucb=LINUCB)
    definition = shop(linucb=LINUCB)
    definition["features"]["arm"]["kind"]["values"] = ["rock", "food", "toy", "bed"]
    definition["features"]["arm"]["size"] = {"type": "numeric", "default": 1.0}
    definition["arms"] = {"a": {"kind": "rock"}}
    log.define(definition)
    log.upsert("late", {"kind": "toy", "color": "red"})
    log.upsert("fits", {"kind": "toy"})
    assert list(log.state.arms) == list(log.state.candidates.ids) == ["a", "fits"]
    assert bits(replay(log.records)) == bits(log.state)


def test_a_deleted_experiment_passes_over_all_but_a_new_definition() -> None:
    log = opened()
    late = log.settle("linucb", {"toy1": 0.0})
    log.delete()
    restored = State.restore(log.state.snapshot())
    log.upsert("late", {"kind": "toy"})
    log.remove("toy1")
    log.correct(late, 1.0)
    log.write(VersionActivated(at=0.0, policy="neural", born=1, version=1))
    assert log.state.deleted
    assert not log.state.arms
    assert bits(replay(log.records, restored)) == bits(log.state)
    log.define(shop())
    assert (log.state.revision, log.state.schema_version) == (3, 2)
    assert list(log.state.arms) == list(SHOP["arms"])
    assert bits(replay(log.records, restored)) == bits(log.state)


def test_features_written_in_another_order_are_the_same_after_a_restart() -> None:
    """A definition's JSON may come back sorted: the head and its columns stay what they were."""
    policy = {"kind": "linucb", "features": ["age", "pet"]}
    log = opened(linucb=policy)
    log.settle("linucb", {"toy1": 1.0}, {"pet": "dog", "age": 50})
    definition = shop(linucb=policy)
    context = definition["features"]["context"]
    definition["features"]["context"] = dict(reversed(context.items()))
    log.define(definition)
    assert (log.state.schema_version, ridge(log).n) == (1, 1)
    restored = State.restore(log.state.snapshot())
    for state in (log.state, restored):
        x = state.schema.encode_context({"pet": "dog", "age": 50})
        assert state.learners["linucb"].view.rows(np.append(x, [0, 1, 0])[None]).tolist() == [
            [5, 0, 1]
        ]
    assert bits(restored) == bits(log.state)


@pytest.mark.parametrize("policy", [LINUCB, {"kind": "lints"}, {"kind": "popularity"}])
def test_a_snapshot_is_of_the_state_when_it_was_captured(policy: dict[str, Any]) -> None:
    """However long it takes to be written, and whatever is folded meanwhile."""
    log = opened(one=policy)
    log.settle("one", {"toy1": 1.0})
    before, make = log.state.snapshot(), log.state.capture()
    shown = log.settle("one", {"toy1": 0.0, "food1": 1.0})
    log.correct(shown, 0.5)
    log.upsert("new", {"kind": "toy"})
    log.remove("toy1")
    log.define(shop(one=policy, two=LINUCB))
    assert make() == before
    assert log.state.snapshot() != before
