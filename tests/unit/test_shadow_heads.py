"""Shadows in the fold: what they learn, and what becomes of it where they become live, and back."""

from typing import Any

import numpy as np
import pytest

from service.bandits.heads import digest
from service.definition.experiment import Definition
from service.state.events import Default, Erased, VersionStaged
from service.state.fold import State, changes_due, gates_due
from service.state.footprint import footprint
from service.state.learner import Learner
from service.training.settlements import collect
from tests.support.clock import run_virtual
from tests.unit.folding import NET, Log, bits, head_of, replay, shop, store_of

MAIN = {"kind": "random"}
AUTO = {"kind": "auto"}
LINUCB = {"kind": "linucb"}
LINTS = {"kind": "lints", "draws": 16}
POPULARITY = {"kind": "popularity", "draws": 16}
NEURAL = {"kind": "neural_linear_ts", "draws": 16, **NET}
KINDS = {"linucb": LINUCB, "lints": LINTS, "auto": AUTO, "popularity": POPULARITY, "net": NEURAL}


def of(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return shop(main=MAIN, p=settings | more)


def opened(settings: dict[str, Any], **more: Any) -> Log:
    log = Log()
    log.define(of(settings, **more))
    return log


def shadow_of(log: Log) -> Learner:
    return log.state.shadows["p"]


def teach(log: Log, count: int = 12) -> None:
    """Rewards, defaults, corrections and a withdrawal of the policy that decides."""
    for number in range(count):
        arm = sorted(log.state.arms)[number % len(log.state.arms)]
        shown = {arm: float(number % 3 == 0), "toy2": 0.5}
        told = log.settle("main", shown, {"pet": ["cat", "dog"][number % 2], "age": number})
        if number % 5 == 1:
            log.correct(log.settle("main", {arm: 0.0}, kind=Default), 1.0)
        if number % 5 == 3 and arm != "toy2":
            log.withdraw(told, "toy2")


def busy(log: Log, *, restart: bool = False, features: bool = True) -> Log:
    """All that may befall a head, twice: rewards, versions, arms that come and go, features. From
    the middle on the state is one that was restored from a snapshot, or, without `restart`, not."""
    teach(log)
    if log.state.folded["p"].policy.net is not None:
        log.stage("p", lag=3)
        log.activate("p")
        log.stage("p", gated=True)
        features = False
    log.upsert("food9", {"kind": "food"})
    log.remove("food1")
    if restart:
        log.state = State.restore(log.state.snapshot())
    teach(log)
    if features:
        definition = log.state.current_definition.model_dump(mode="json")
        definition["features"]["context"]["member"] = {"type": "boolean", "default": True}
        log.define(definition)
    teach(log)
    first = log.settled[2].event.decision
    log.write(Erased(at=0.0, decisions=[first], positions=[]))
    return log


def expect_same(found: Learner, said: Learner) -> None:
    """Versions, heads and counts, bit for bit."""
    (meta, arrays), (other, others) = found.dump(), said.dump()
    for told in (meta, other):
        del told["turns"]
    assert meta == other
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], name)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_shadow_that_becomes_live_has_the_head_of_one_that_always_was(
    kind: str, restart: bool
) -> None:
    settings = KINDS[kind]
    log = busy(opened(settings, shadow=True), restart=restart)
    always = busy(opened(settings, share=0.0, learns_from="all"))
    expect_same(shadow_of(log), always.state.learners["p"])
    dark = log.state.definition.model_dump(mode="json")
    for each in (log, always):
        live = {**settings, "share": 0.0, "learns_from": "all"}
        policies = {"main": MAIN, "p": live}
        each.define({**dark, "arms": each.state.arms, "policies": policies})
    assert not log.state.shadows
    for each in (log, always):
        teach(each)
        each.settle("p", {"toy1": 1.0})
    expect_same(log.state.learners["p"], always.state.learners["p"])
    assert digest(always.state.learners["p"].active.head) == head_of(log.state, "p")
    assert log.state.learners["p"].born_at == 1
    replayed = replay(log.records)
    assert bits(replayed) == bits(log.state)
    assert bits(State.restore(log.state.snapshot())) == bits(log.state)


def test_a_shadow_learns_from_every_reward_and_a_live_policy_from_its_own_again() -> None:
    log = opened(LINUCB, shadow=True)
    log.settle("main", {"toy1": 1.0})
    log.define(of(LINUCB, share=0.0))
    log.settle("main", {"toy1": 1.0})
    log.settle("p", {"toy1": 1.0})
    assert log.state.learners["p"].rewards == 2
    log.define(of(LINUCB, shadow=True))
    log.settle("main", {"toy1": 1.0})
    assert shadow_of(log).rewards == 3
    log.reset("p")
    log.settle("main", {"toy1": 1.0})
    assert shadow_of(log).rewards == 1
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_becomes_a_shadow_keeps_its_head(kind: str) -> None:
    log = busy(opened(KINDS[kind], share=0.5, learns_from="all"))
    live = log.state.learners["p"]
    before = live.dump()
    definition = log.state.current_definition.model_dump(mode="json")
    log.define({**definition, "policies": {"main": MAIN, "p": KINDS[kind] | {"shadow": True}}})
    kept, own = shadow_of(log).dump()
    assert kept == before[0]
    assert all(np.array_equal(own[name], array) for name, array in before[1].items())
    assert "p" not in log.state.learners


def test_shadows_decide_nothing_and_are_in_no_sums() -> None:
    log = opened(LINUCB, shadow=True)
    log.settle("main", {"toy1": 1.0})
    log.settle("p", {"toy1": 1.0})
    state = log.state
    assert (
        list(state.learners) == list(state.reward_sums) == list(state.arm_reward_sums) == ["main"]
    )
    assert state.traffic.chances == {"main": 1.0}
    assert state.fallback is not state.shadows["p"]
    assert shadow_of(log).rewards == 2


def test_a_shadow_forgets_a_change_of_the_world_and_is_rid_of_rejected_versions() -> None:
    """As a live policy does: its events are due, and its own."""
    log = opened(LINUCB, shadow=True, change=True)
    for number in range(60):
        log.settle("main", {"toy1": float(number >= 30)})
    [due] = changes_due(log.state, 0.0)
    log.write(due)
    assert (due.policy, shadow_of(log).changes) == ("p", 1)
    assert changes_due(log.state, 0.0) == []
    net = opened(NEURAL, shadow=True)
    teach(net)
    net.stage("p")
    [gate] = gates_due(net.state, 0.0)
    net.write(gate)
    assert (gate.policy, shadow_of(net).active.number) == ("p", 1)
    net.stage("p", gated=True)
    net.reject("p")
    assert [each.state for each in net.state.versions.of("p")] == ["rejected", "serving"]
    net.define(of(NEURAL, share=0.0))
    assert net.state.learners["p"].active.number == 1
    assert [each.state for each in net.state.versions.of("p")] == ["rejected", "serving"]


def test_a_shadow_is_trained_by_every_reward_since_it_is_there() -> None:
    """And after it became live by its own alone: what its head holds."""
    log = opened(NEURAL, shadow=True)
    teach(log)
    assert shadow_of(log).training_due
    taught = shadow_of(log).rewards
    log.define(of(NEURAL, share=0.0))
    teach(log)
    log.settle("p", {"toy1": 1.0})
    learner = log.state.learners["p"]
    history = run_virtual(collect(store_of(log), log.state, learner))
    assert history.rewards == learner.rewards == taught + 1
    memory = learner.active.memory
    assert memory is not None
    np.testing.assert_array_equal(history.memory.rows[:], memory.rows[:])


def test_a_version_catches_up_with_what_the_shadow_learned_before_it_became_live() -> None:
    """The other policy's rewards after its watermark: two before the change, two after it."""
    log = opened(NEURAL, shadow=True)
    for _ in range(8):
        log.settle("main", {"toy1": 1.0})
    watermark = len(log.records) - 2
    log.define(of(NEURAL, share=0.0))
    for _ in range(2):
        log.settle("main", {"toy1": 1.0})
    log.stage("p", lag=len(log.records) - watermark)
    log.activate("p")
    head = log.state.learners["p"].active.head
    assert head is not None
    assert head.health().effective_count == log.state.learners["p"].rewards == 8


def test_without_its_fold_a_shadow_has_no_head_and_starts_from_nothing() -> None:
    log = opened(LINUCB, shadow=True, fold=False)
    log.settle("main", {"toy1": 1.0})
    assert not log.state.shadows
    log.reset("p")
    log.define(of(LINUCB, shadow=True))
    log.settle("main", {"toy1": 1.0})
    assert (shadow_of(log).rewards, shadow_of(log).born_at) == (1, 4)
    log.define(of(LINUCB, shadow=True, fold=False))
    log.define(of(LINUCB, share=0.0))
    assert log.state.learners["p"].rewards == 0
    assert bits(replay(log.records)) == bits(log.state)


def test_a_shadow_counts_in_the_estimate_of_memory_unless_it_is_not_folded() -> None:
    def estimated(**more: Any) -> dict[str, int]:
        return footprint(Definition.model_validate(of(LINUCB, **more)), 10)

    assert estimated(shadow=True) == estimated(share=0.0)
    assert "policies.p" not in estimated(shadow=True, fold=False)


def test_a_policy_that_can_decide_has_its_head() -> None:
    with pytest.raises(ValueError, match="needs its head: leave fold out"):
        Definition.model_validate(of(LINUCB, fold=False))


def test_a_late_word_on_a_shadows_version_is_passed_over_once_it_is_gone() -> None:
    """Its definition came between: another head waits for another version."""
    log = opened(NEURAL, shadow=True)
    teach(log)
    log.define(of(NEURAL, shadow=True, fold=False))
    event = VersionStaged(
        at=0.0, policy="p", born=1, version=1, artifact="", size=0, watermark=3, rewards=3
    )
    log.write(event)
    assert log.state.awaits(event) is None
    assert log.state.versions.of("p") == []
