"""Rewards wait for the defaults of their time: what is learned, in which order, and when."""

from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec import structs

from service.bandits import order
from service.bandits.heads import digest
from service.bandits.heads.averaged_informed import InformedHead
from service.bandits.order import GRACE_SECONDS, DecisionOrder
from service.decide.scoring import decide
from service.offline.rebuild import rebuild
from service.state.decider import Decider
from service.state.events import (
    Corrected,
    Default,
    Erased,
    Learned,
    Outcome,
    PolicyReset,
    Rewarded,
)
from service.state.fold import State
from service.state.learner import Learner
from tests.support.clock import run_virtual
from tests.unit.folding import Log, bits, contents, opened, replay, shop, store_of

WAIT_S = 150.0
ARMS = ["bed1", "food1", "food2", "toy1", "toy2"]


class Visit(NamedTuple):
    at: float
    arm: str
    pet: str
    click: bool


def visits(count: int, rate: float = 0.5, seed: int = 0) -> list[Visit]:
    """One a second."""
    rng = Random(seed)
    return [
        Visit(1.0 + n, rng.choice(ARMS), rng.choice(["cat", "dog"]), rng.random() < rate)
        for n in range(count)
    ]


def settled(log: Log, visit: Visit, number: int, **more: Any) -> Learned:
    schema = log.state.schema
    base = schema.encode_context({"pet": visit.pet})
    row = schema.row(base, schema.encode_arm(log.state.arms[visit.arm]))
    event = Rewarded if visit.click else Default
    return event(
        at=visit.at,
        decision=f"d{number}",
        policy="p",
        schema_version=log.state.schema_version,
        settled=[Outcome(visit.arm, float(visit.click), row)],
        reward_by=visit.at + WAIT_S,
        **more,
    )


def by_default(log: Log, seen: list[Visit]) -> list[Learned]:
    """Events up to the last visit, as a page causes them that sends clicks alone."""
    events = [settled(log, visit, number) for number, visit in enumerate(seen)]
    late = [
        one if isinstance(one, Rewarded) else structs.replace(one, at=one.reward_by)
        for one in events
    ]
    return sorted((one for one in late if one.at <= seen[-1].at), key=lambda event: event.at)


def prompt(event: Learned) -> Rewarded:
    """The same reward, sent by the caller at once."""
    return Rewarded(**{name: getattr(event, name) for name in Rewarded.__struct_fields__})


def folded(events: Iterable[Learned], log: Log | None = None) -> Log:
    log = log or opened({"kind": "auto"})
    for event in events:
        log.write(event)
    return log


def learner_of(log: Log) -> Learner:
    return log.state.learners["p"]


def order_of(log: Log) -> DecisionOrder:
    found = learner_of(log).active.order
    assert found is not None
    return found


def head_of(log: Log) -> str:
    head = learner_of(log).active.head
    assert head is not None
    return digest(head)


def in_order(seen: list[Visit], upto: float) -> Log:
    """The log of clicks and misses of decisions in their order, as they come."""
    log = opened({"kind": "auto"})
    events = [settled(log, visit, number) for number, visit in enumerate(seen)]
    kinds = [structs.replace(one, at=one.reward_by) for one in events if one.reward_by <= upto]
    return folded((structs.replace(one, reward_by=0.0) for one in kinds), log)


def expect_same_head(log: Log, other: Log) -> None:
    """But for rounding: what is released together is learned as a block."""
    one, twin = (learner_of(each).active.head for each in (log, other))
    assert one is not None
    assert twin is not None
    arrays = twin.arrays()
    for name, array in one.arrays().items():
        np.testing.assert_allclose(array, arrays[name], rtol=1e-9, atol=1e-12, err_msg=name)


# -- the order -------------------------------------------------------------------------------------


def test_what_came_by_default_is_learned_in_the_order_of_decisions() -> None:
    """Also what was learned before the first default: the head starts anew."""
    seen = visits(500)
    log = opened({"kind": "auto"})
    folded(by_default(log, seen), log)
    past = order_of(log).past
    assert order_of(log).waiting == sum(each.click and each.at + WAIT_S > past for each in seen)
    expect_same_head(log, in_order(seen, past))


def test_rewards_that_are_sent_with_their_misses_are_learned_at_once() -> None:
    """Nine of ten; a tenth of the visitors leave without a word."""
    log = opened({"kind": "auto"})
    rng, events = Random(1), []
    for number, visit in enumerate(visits(400)):
        event = settled(log, visit, number)
        if isinstance(event, Default) and rng.random() < 1 / 5:
            events.append(structs.replace(event, at=event.reward_by))
        else:
            events.append(prompt(event))
    events.sort(key=lambda event: event.at)
    folded(events, log)
    assert learner_of(log).active.settled == 400
    assert (order_of(log).waiting, order_of(log).early) == (0, 0)


def test_a_few_first_visitors_who_leave_do_not_make_rewards_wait() -> None:
    """As somebody who tries the service out, and sends rewards only later."""
    log = opened({"kind": "auto"})
    for number in range(3):
        log.write(settled(log, Visit(1.0 + number, "toy1", "cat", False), number))
    for number, visit in enumerate(visits(100), 20):
        log.write(prompt(settled(log, visit._replace(at=visit.at + WAIT_S), number)))
        assert order_of(log).waiting == 0
    assert learner_of(log).active.settled == 103


def test_where_no_default_comes_a_reward_waits_a_minute_longer() -> None:
    seen = visits(400)
    log = opened({"kind": "auto"})
    folded(by_default(log, seen), log)
    waiting, held = order_of(log).waiting, learner_of(log).active.settled
    assert waiting
    later = Visit(seen[-1].at + WAIT_S + GRACE_SECONDS, "toy1", "cat", True)
    for number in range(waiting // order.AT_ONCE + 1):
        log.write(settled(log, later, 8_000 + number))
    assert learner_of(log).active.settled >= held + waiting


def test_without_a_default_nothing_waits() -> None:
    log = opened({"kind": "auto"})
    for number, visit in enumerate(visits(300)):
        if visit.click:
            log.write(structs.replace(settled(log, visit, number), reward_by=0.0))
    assert learner_of(log).active.settled == learner_of(log).rewards
    assert order_of(log).early == 256 - learner_of(log).rewards


def test_once_defaults_are_few_rewards_do_not_wait_any_more() -> None:
    seen = visits(400)
    log = opened({"kind": "auto"})
    folded(by_default(log, seen), log)
    start = seen[-1].at + WAIT_S
    for number, visit in enumerate(visits(500, seed=2), 5_000):
        log.write(prompt(settled(log, visit._replace(at=visit.at + start), number)))
    assert order_of(log).waiting == 0
    assert learner_of(log).active.settled == learner_of(log).rewards


@pytest.mark.parametrize(("bound", "value"), [("MOST", 50), ("MOST_NUMBERS", 50 * 6)])
def test_more_than_fit_are_learned_before_their_time(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(order, bound, value)
    log = opened({"kind": "auto"})
    folded(by_default(log, visits(600)), log)
    assert 0 < order_of(log).waiting <= 51


def test_a_head_that_starts_anew_knows_what_was_imported() -> None:
    """Also from a snapshot that holds it."""
    log = folded(
        structs.replace(
            prompt(event),
            decision=f"i{number}",
            reward_by=0.0,
            settled=[structs.replace(event.settled[0], imported=True)],
        )
        for number, event in enumerate(by_default(opened({"kind": "auto"}), visits(30, seed=5)))
    )
    imported = len(log.records) - 1
    assert imported > 0
    state = State.restore(log.state.snapshot())
    folded(by_default(log, visits(250)), log)
    assert order_of(log).waits
    head = learner_of(log).active.head
    assert isinstance(head, InformedHead)
    assert head.plain is not None
    assert head.settled - head.plain.settled == imported
    assert bits(replay(log.records, state)) == bits(log.state)


# -- corrections, erasures, other definitions ------------------------------------------------------


def corrected(log: Log, event: Learned, reward: float | None, at: float) -> Corrected:
    """reward None: withdrawn."""
    [one] = event.settled
    after = structs.replace(one, was=one.reward, since=2)
    if reward is None:
        after = structs.replace(after, withdrawn=True)
    else:
        after = structs.replace(after, reward=reward)
    return Corrected(
        at=at,
        decision=event.decision,
        policy="p",
        schema_version=event.schema_version,
        settled=[after],
    )


@pytest.mark.parametrize("reward", [0.25, None])
@pytest.mark.parametrize("early", [True, False], ids=["before the first default", "later"])
def test_a_correction_of_a_reward_that_waits_changes_what_will_be_learned(
    reward: float | None, early: bool
) -> None:
    """As if it had come so in the first place, or not at all."""
    seen = visits(500)
    log = opened({"kind": "auto"})
    events = by_default(log, seen)
    chosen = [one for one in events if isinstance(one, Rewarded)][50 if early else -25]
    place = events.index(chosen) + 1
    now = events[place - 1].at
    other = [one for one in events if one is not chosen]
    if reward is not None:
        [one] = chosen.settled
        other.insert(
            place - 1, structs.replace(chosen, settled=[structs.replace(one, reward=reward)])
        )
    folded([*events[:place], corrected(log, chosen, reward, now), *events[place:]], log)
    same = folded(other)
    assert head_of(log) == head_of(same)
    assert order_of(log).waiting == order_of(same).waiting


def test_what_waits_is_erased() -> None:
    log = opened({"kind": "auto"})
    seen = visits(500)
    folded(by_default(log, seen), log)
    waiting = order_of(log).waiting
    last = max(number for number, visit in enumerate(seen) if visit.click)
    assert f'"d{last}"'.encode() in contents(log.state)
    log.write(Erased(at=500.0, decisions=[f"d{last}"], positions=[]))
    assert order_of(log).waiting == waiting - 1
    assert f'"d{last}"'.encode() not in contents(log.state)


def test_what_waits_is_learned_in_the_columns_of_a_later_definition() -> None:
    log = opened({"kind": "auto"})
    folded(by_default(log, visits(500)), log)
    waiting, held = order_of(log).waiting, learner_of(log).active.settled
    definition = shop(p={"kind": "auto"})
    definition["features"]["context"]["member"] = {"type": "boolean", "default": False}
    log.define(definition)
    assert order_of(log).waiting == waiting
    far = Visit(1e6, "toy1", "cat", True)
    for number in range(waiting // order.AT_ONCE + 1):
        log.write(settled(log, far, 8_000 + number))
    assert learner_of(log).active.settled >= held + waiting
    log.write(PolicyReset(at=1e6, policy="p", revision=log.state.revision + 1))
    assert order_of(log).waiting == 0


def test_a_frozen_policy_keeps_nothing() -> None:
    log = opened({"kind": "auto", "learning": False})
    folded(by_default(log, visits(300)), log)
    assert (order_of(log).waiting, learner_of(log).active.settled) == (0, 0)


@pytest.mark.parametrize("count", [100, 250, 350], ids=["early", "anew", "waiting"])
def test_a_rebuilt_head_goes_on_where_the_live_one_is(count: int) -> None:
    """Rewards that wait when it is rebuilt are learned once, after it serves."""
    seen = visits(420)
    events, log = by_default(folded([]), seen), folded([])
    place = sum(event.at <= count for event in events)
    folded(events[:place], log)
    found = run_virtual(rebuild(store_of(log), log.state, learner_of(log), frozenset(["none"])))
    log.hand_over("p", found.artifact)
    folded(events[place : place + 10], log)
    log.activate("p")
    folded(events[place + 10 :], log)
    same = folded(events)
    assert learner_of(log).active.number == 1
    assert order_of(log).waiting == order_of(same).waiting
    rebuilt, live = (learner_of(each).active for each in (log, same))
    assert rebuilt.settled == live.settled
    phi = rebuilt.phi(np.eye(log.state.schema.width))
    arms = [ARMS[0]] * len(phi)
    np.testing.assert_allclose(rebuilt.mean(phi, arms), live.mean(phi, arms), rtol=1e-6)


# -- snapshots -------------------------------------------------------------------------------------


def test_a_snapshot_at_any_place_and_its_tail_equal_the_whole_fold() -> None:
    """The head starts anew with record 119."""
    log, state = opened({"kind": "auto"}), State("shop")
    folded(by_default(log, visits(350, seed=3)), log)
    whole = bits(log.state)
    for place in (20, 70, 100, 118, 119, 200, len(log.records) - 1):
        replay(log.records[:place], state)
        assert bits(replay(log.records, State.restore(state.snapshot()))) == whole


# -- learning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [150, 600])
def test_auto_finds_the_best_where_misses_come_by_default(wait: int) -> None:
    """A click of .45 for food to cats and toys to dogs, else .08: chance earns .2. This holds what
    all parts of `auto` bring together; that rewards wait is held by the tests above."""
    log, rng, clicks = opened({"kind": "auto"}), Random(5), list[bool]()
    missed = list[Learned]()
    for number in range(2 * wait + 400):
        pet = rng.choice(["cat", "dog"])
        x = log.state.schema.encode_context({"pet": pet})
        candidates = log.state.candidates
        _, slate = decide(Decider.serving(learner_of(log)), x, candidates, 1, rng.getrandbits(63))
        arm = candidates.ids[slate.arms[0]]
        good = arm.startswith("food" if pet == "cat" else "toy")
        visit = Visit(float(number + 1), arm, pet, rng.random() < (0.45 if good else 0.08))
        event = structs.replace(settled(log, visit, number), reward_by=visit.at + wait)
        clicks.append(visit.click)
        if visit.click:
            log.write(event)
        else:
            missed.append(structs.replace(event, at=event.reward_by))
        while missed and missed[0].at <= visit.at:
            log.write(missed.pop(0))
    assert np.mean(clicks[-400:]) > 0.38
