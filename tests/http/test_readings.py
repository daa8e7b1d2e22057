"""Gauges that alerts wait for: each follows what it is of, over the wire."""

from itertools import pairwise

import pytest

from service.observe.metrics_collector import StateGauges, explores
from service.telemetry.drift import Drift
from tests.support.clock import FixedClock
from tests.support.service import Wire, serving

NET = {"kind": "neural_linear_ts", "hidden": [4], "embedding": 2, "training": {"first": 2}}
OF_NET = ("shop", "net")


def gauges(readings: StateGauges, name: str) -> dict[tuple[str, ...], float]:
    samples = (sample for family in readings.collect() for sample in family.samples)
    return {tuple(one.labels.values()): one.value for one in samples if one.name == name}


def with_policies(wire: Wire, **policies: object) -> None:
    wire.redefine(policies={**wire.definition()["policies"], **policies})


def test_a_training_is_overdue_from_when_it_fell_due_until_it_is_done() -> None:
    clock = FixedClock(100.0)
    with serving() as wire:
        with_policies(wire, net=NET)
        core = wire.services
        readings = StateGauges(core.log, core.telemetry, clock)

        def overdue() -> dict[tuple[str, ...], float]:
            clock.at += 10
            return gauges(readings, "forage_training_overdue_seconds")

        wire.reward(wire.select(policy="net"), 1.0)
        assert overdue() == {OF_NET: 0}  # one reward of two; policies without a net are not told of
        wire.reward(wire.select(policy="net"), 0.0)
        assert [overdue()[OF_NET], overdue()[OF_NET]] == [0, 10]
        core.log.replicas.states["shop"].learners["net"].trained_on = 2  # it was done...
        assert overdue() == {OF_NET: 0}
        for _ in range(2):  # ... and falls due again at twice the rewards
            wire.reward(wire.select(policy="net"), 0.0)
        assert [overdue()[OF_NET], overdue()[OF_NET]] == [0, 10]


def test_a_policy_explores_where_its_choice_is_drawn(wire: Wire) -> None:
    with_policies(
        wire,
        greedy={"kind": "greedy"},
        floored={"kind": "linucb", "epsilon": 0.1},
        sampled={"kind": "bootstrap_ensemble", "rule": "thompson"},
        bounded={"kind": "bootstrap_ensemble", "rule": "ucb"},
    )
    learners = wire.services.log.replicas.states["shop"].learners
    drawn = {name for name, learner in learners.items() if explores(learner)}
    assert drawn == {"lints", "named_only", "floored", "sampled"}


def test_shares_are_of_the_traffic_that_names_no_policy(wire: Wire) -> None:
    metrics = wire.metrics()
    share = 'forage_policy_share{{experiment="shop",policy="{}"}}'
    shares = [metrics[share.format(name)] for name in ("linucb", "lints", "named_only")]
    assert shares == [0.25, 0.75, 0.0]  # 1, 3 and 0


def test_snapshots_of_a_large_catalogue_are_as_far_apart_as_half_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.log.upkeep.LARGE", 20)
    with serving(snapshot_every_events=10) as wire:
        log, name = wire.services.log, 'forage_snapshot_lag_ratio{experiment="shop"}'
        assert wire.metrics()[name] == 0.1  # the definition
        wire.run(log.snapshots.save(log.replicas.by_name["shop"]))
        assert wire.metrics()[name] == 0
        saved = [log.replicas.by_name["shop"].snapshot_position]
        arms = {f"new-{number}": {"category": "food"} for number in range(100)}
        for arm, features in arms.items():
            wire.put(f"/arms/{arm}", {"features": features})
            if (position := log.replicas.by_name["shop"].snapshot_position) != saved[-1]:
                saved.append(position)
        lag = wire.metrics()[name]
    gaps = [later - earlier for earlier, later in pairwise(saved)]
    assert gaps[0] == 10
    assert gaps == sorted(gaps)
    assert 25 < gaps[-1] < 55
    assert 0 <= lag < 1


def test_false_rewards_show_as_a_shift_of_their_policy_alone() -> None:
    """Both policies had every other of 1,000 rewards; then lints has nothing two hundred times."""
    with serving() as wire:
        state = wire.services.log.replicas.states["shop"]
        for policy in ("linucb", "lints"):
            wire.teach(1, policy)
            known = wire.services.telemetry.drift.rewards(state, policy)
            assert known is not None
            known.count, known.long, known.recent, known.squares = 1_000, 0.5, 0.5, 0.5
        for _ in range(200):
            wire.reward(wire.select(policy="lints"), 0.0)
        metrics = wire.metrics()
    shift = 'forage_reward_shift_sigmas{{experiment="shop",policy="{}"}}'
    assert metrics[shift.format("lints")] < -6
    assert metrics[shift.format("linucb")] == 0


def test_contexts_that_turn_show_in_the_index_of_their_feature() -> None:
    with serving() as wire:
        drift = wire.services.telemetry.drift = Drift(samples=40)
        for _ in range(3):
            wire.select(context={"persona": "cat"})
        state = wire.services.log.replicas.states["shop"]
        watch = drift._contexts["shop"]
        assert watch.count == 3  # each decision is seen

        def see(*personas: str) -> float:
            for second in range(400):
                persona = personas[second % len(personas)]
                watch.take(state.schema.encode_context({"persona": persona}), float(second))
            metrics = wire.metrics()
            index = 'forage_context_stability_index{{experiment="shop",feature="{}"}}'
            assert metrics[index.format("age")] == pytest.approx(0)
            return metrics[index.format("persona")]

        assert see("cat", "dog") < 0.25 < see("cat")
