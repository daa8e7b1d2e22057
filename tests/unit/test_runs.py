"""Events that are folded at once leave the state that they leave one by one, to the last bit."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from service.bandits.encoder import Encoder
from service.bandits.heads import digest
from service.bandits.heads.base import Observation, Observations, added
from service.bandits.heads.disjoint import DisjointRidgeHead
from service.bandits.heads.head import Head
from service.bandits.heads.ridge import RidgeHead
from service.bandits.networks import Network, cold_network
from service.log.replica import Replica
from service.state.events import (
    Default,
    Expired,
    Rewarded,
)
from service.state.fold import LONGEST_RUN, State
from tests.support.clock import run_virtual
from tests.unit.folding import KINDS, POLICIES, Log, contents, replay, shop, store_of

SOME = ("linucb", "lints_disjoint", "popularity", "watcher", "neural", "random")


def folded(log: Log, cut: Random, state: State | None = None) -> State:
    """Fold the events of a log in runs of any length. state: of the first ones."""
    state = state or State("shop")
    events, place = [event for event, _ in log.records], state.position
    while place < len(events):
        end, longest = place, place + cut.randint(1, 40)
        while end < min(longest, len(events)) and state.runs_with(events[end]):
            end += 1
        run = [event for event in events[place:end] if isinstance(event, Rewarded | Expired)]
        if run:
            state.apply_run(place + 1, run)
        else:
            state.apply(place + 1, events[place])
        place = max(end, place + 1)
    return state


def played(rng: Random, policies: dict[str, Any], count: int, log: Log | None = None) -> Log:
    """A log of rewards and defaults, with corrections, slates, arms outside the catalogue, other
    arms and other settings in between. log: to go on with."""
    if log is None:
        log = Log()
        log.define(shop(**policies))
    for number in range(count):
        policy = rng.choice([*policies])
        context = {"pet": rng.choice(["cat", "dog"]), "age": rng.random()}
        kind = rng.choice([Rewarded, Default])
        arms = rng.sample(sorted(log.state.arms), rng.choice([1, 1, 1, 2]))
        rewards = {arm: rng.choice([0.0, 1.0, 0.3]) for arm in arms}
        chance = rng.random()
        if chance < 0.05:
            log.settle(policy, {"rope": 1.0}, context, inline={"kind": "toy"})
        elif chance < 0.1 and log.settled:
            log.correct(rng.choice(log.settled), rng.random())
        elif chance < 0.13:
            log.upsert(f"arm {number}", {"kind": rng.choice(KINDS)})
        elif chance < 0.15:
            log.share(**{policy: rng.random()})
        elif chance < 0.25:
            log.expire(policy, [arms] * rng.choice([1, 2, 3, 9]), context)
        else:
            log.settle(policy, rewards, context, kind)
    return log


@given(st.integers(0, 2**32))
def test_any_cut_of_a_log_into_runs_folds_to_one_state(seed: int) -> None:
    rng = Random(seed)
    policies = {name: POLICIES[name] for name in rng.sample(SOME, 3)}
    log = played(rng, policies, 60)
    found = folded(log, rng)
    assert contents(found) == contents(log.state)
    assert found.log_time == log.state.log_time


def test_long_logs_of_linear_policies_are_folded_in_long_runs() -> None:
    rng = Random(4)
    own = {"disjoint": True, "features": ["pet"]}
    policies = {"linucb": {"kind": "linucb"}, "lints": {"kind": "lints", "draws": 16, **own}}
    log = played(rng, policies, 700)
    assert contents(folded(log, rng)) == contents(log.state)
    assert all(learner.learns_runs for learner in log.state.learners.values())
    assert log.state.longest_run == LONGEST_RUN


def test_trained_nets_are_folded_in_runs() -> None:
    """Their memory is gone once their scaling is measured."""
    rng = Random(5)
    policies = {"neural": POLICIES["neural"], "neural_ucb": POLICIES["neural_ucb"]}
    log = played(rng, policies, 200)
    for policy in policies:
        log.stage(policy)
        log.activate(policy)
    played(rng, policies, 500, log)
    assert all(learner.learns_runs for learner in log.state.learners.values())
    assert all(learner.active.number for learner in log.state.learners.values())
    state = State("shop")
    replay(log.records[:300], state)
    assert contents(folded(log, rng, state)) == contents(log.state)


@pytest.mark.parametrize(("width", "hidden"), [(9, 64), (63, 64), (400, 64), (700, 100)])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_row_has_the_same_features_whatever_its_neighbours(
    width: int, hidden: int, kind: str
) -> None:
    """A product of matrices rounds by its size, and by where it passes a million products."""
    rng = np.random.default_rng(width)
    cold, trained = (cold_network([width, hidden, hidden], key) for key in ("cold", "net"))
    typed = Network([(w.astype(kind), b.astype(kind)) for w, b in trained.layers])
    output = rng.standard_normal((hidden, 3)), rng.standard_normal(3)
    encoder = Encoder(cold, 0.7, 0.7, typed, output)
    rows = rng.standard_normal((130, width))
    whole = encoder.each(rows)
    told = encoder.predict(whole)
    for count in (1, 2, 3, 4, 7, 8, 9, 16, 31, 64, 100):
        some = rng.permutation(len(rows))[:count]
        found = encoder.each(rows[some])
        np.testing.assert_array_equal(found, whole[some])
        np.testing.assert_array_equal(encoder.predict(found), told[some])


def test_of_a_run_that_cannot_be_folded_the_event_at_fault_is_told() -> None:
    """The state held a part of the run, so it is folded anew."""
    log = Log()
    log.define(shop(linucb=POLICIES["linucb"]))
    for age in range(12):
        log.settle("linucb", {"toy1": 1.0}, {"pet": "dog", "age": age})
    good = log.records[-1][0]
    assert isinstance(good, Rewarded)
    [one] = good.settled
    huge = structs.replace(good, settled=[structs.replace(one, reward=1e200)])
    log.records[6:6] = [(huge, None)]

    replica = Replica(store_of(log), State("shop"))
    run_virtual(replica.recover())
    assert replica.quarantine is not None
    assert replica.quarantine.position == 7
    assert replica.state.position == 6


@pytest.mark.parametrize("size", [1, 2, 3, 9, 40])
@pytest.mark.parametrize("kind", [RidgeHead, DisjointRidgeHead])
def test_heads_learn_many_as_one_by_one(kind: type[Head], size: int) -> None:
    rng = np.random.default_rng(size)
    one, many = (kind(size, 0.7, None) for _ in range(2))
    for count in (1, 2, 9, 130):
        arms = [f"arm {number}" for number in rng.integers(0, 12, count)]
        phi, rewards = rng.standard_normal((count, size)), rng.random(count)
        rows = Observations(arms, phi, rewards, arms, rng.random(count), [False] * count)
        for each in rows.each():
            one.observe(each)
        many.observe_many(rows)
        assert digest(one) == digest(many)
    assert isinstance(next(rows.each()), Observation)


@given(st.integers(1, 5), st.integers(0, 60), st.integers(0, 2**32))
def test_rows_are_added_one_after_the_other(width: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, rows = rng.random((width, width)), rng.random((count, width, width))
    expected = first.copy()
    for row in rows:
        expected += row
    np.testing.assert_array_equal(added(first, rows), expected)
    np.testing.assert_array_equal(added(first[0], rows[:, 0]), added(first, rows)[0])


def test_what_changes_more_than_sums_is_in_no_run() -> None:
    log = Log()
    log.define(shop(linucb=POLICIES["linucb"]))
    shown = log.settle("linucb", {"toy1": 1.0})
    log.correct(shown, 0.5)
    rewarded, corrected = log.records[-2][0], log.records[-1][0]
    assert log.state.runs_with(rewarded)
    assert not log.state.runs_with(corrected)
    assert not log.state.runs_with(log.records[0][0])
    log.delete()
    assert not log.state.runs_with(rewarded)
