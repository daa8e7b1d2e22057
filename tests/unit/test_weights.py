"""Observations that count by a weight: as so many of them, and corrected as if known at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from service.bandits.heads import Head, Observation, RidgeHead
from service.state.events import Corrected, Outcome, Rewarded
from service.state.fold import State
from tests.unit.folding import Log, bits, replay, shop
from tests.unit.test_withdrawn import HEADS, rows

WEIGHTS = st.floats(0.05, 1.0)


def expect_like(one: Head, other: Head) -> None:
    """Two heads predict the same."""
    asked, names = rows(one, 6, seed=3), ["a", "b"] * 3
    for kept, expected in (
        (one.mean(asked, names), other.mean(asked, names)),
        (one.width(asked, names), other.width(asked, names)),
    ):
        np.testing.assert_allclose(kept, expected, rtol=1e-7, atol=1e-9)


def test_a_miss_of_weight_a_half_moves_the_head_by_half() -> None:
    """Ridge 1, phi [2], reward 1 of weight 0.5: A = 1 + 0.5 * 4 = 3, b = s = 1, n = 0.5."""
    head = RidgeHead(1, 1.0, None)
    head.observe(Observation("a", np.array([2.0]), 1.0, "d", 0.5))
    assert (head.A.item(), head.b.item(), head.s.item(), head.n) == (3.0, 1.0, 1.0, 0.5)


@pytest.mark.parametrize("kind", [kind for kind in HEADS if kind not in ("ensemble", "logistic")])
def test_weight_three_counts_as_three_observations(kind: str) -> None:
    """The ensemble resamples a decision once, and minibatches count decisions."""
    whole, thrice = HEADS[kind](), HEADS[kind]()
    for number, phi in enumerate(rows(whole, 8)):
        one = Observation("ab"[number % 2], phi, float(number % 3 == 0), str(number))
        whole.observe(one._replace(weight=3.0))
        for _ in range(3):
            thrice.observe(one)
    expect_like(whole, thrice)


@pytest.mark.parametrize("kind", HEADS)
@given(st.lists(st.tuples(WEIGHTS, st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_a_corrected_weight_leaves_the_head_as_if_it_had_come_at_once(
    kind: str, visits: list[tuple[float, bool, bool]]
) -> None:
    """Misses of some weight, of which some become clicks that count whole; of others no more is
    known. As `Version` corrects them: the reward at the old weight, then the rest of the weight."""
    late, once = HEADS[kind](), HEADS[kind]()
    phi = rows(late, len(visits))
    seen = [
        Observation("ab"[number % 2], phi[number], 0.0, str(number), weight)
        for number, (weight, _, _) in enumerate(visits)
    ]
    for one, (_, clicks, gone) in zip(seen, visits, strict=True):
        late.observe(one)
        if clicks:
            once.observe(one._replace(reward=1.0, weight=1.0))
        elif not gone:
            once.observe(one)
    for one, (weight, clicks, gone) in zip(seen, visits, strict=True):
        if clicks:
            late.revise(one._replace(reward=1.0), 0.0)
            if weight < 1:
                late.observe(one._replace(reward=1.0, weight=1 - weight))
        elif gone:
            late.withdraw(one)
    expect_like(late, once)


def test_equal_rewards_have_no_spread_whatever_rounding_leaves() -> None:
    """0.1 + 0.2 + 0.7 of a click is 0.9999999999999999 clicks: less than one by rounding. The noise
    is assumed, as after one click; it was 1e-9."""
    head, once = RidgeHead(1, 1.0, None), RidgeHead(1, 1.0, None)
    for weight in (0.1, 0.2, 0.7):
        head.observe(Observation("a", np.ones(1), 0.3, "d", weight))
    once.observe(Observation("a", np.ones(1), 0.3))
    assert head.noise == pytest.approx(once.noise, rel=1e-9)
    assert once.noise > 0.01


def settled(log: Log, arm: str, reward: float, weight: float) -> Outcome:
    state = log.state
    base = state.schema.encode_context({"pet": "cat"})
    row = state.schema.row(base, state.schema.encode_arm(state.arms[arm]))
    return Outcome(arm, reward, row, weight=weight)


def write(log: Log, policy: str, decision: str, one: Outcome) -> int:
    return log.write(
        Rewarded(at=0.0, decision=decision, policy=policy, schema_version=1, settled=[one])
    )


def correct(
    log: Log, policy: str, decision: str, one: Outcome, weighed: float, since: int, was: float = 0.0
) -> None:
    log.write(
        Corrected(
            at=0.0,
            decision=decision,
            policy=policy,
            schema_version=1,
            settled=[structs.replace(one, was=was, since=since, weighed=weighed)],
        )
    )


POLICY = {"kind": "linucb", "features": ["pet x kind"]}


@pytest.mark.parametrize("more", [{}, {"gamma": 0.9, "decay_every": 2}, {"window": 4}])
def test_a_miss_that_becomes_a_click_is_as_if_the_click_had_come_at_once(
    more: dict[str, object],
) -> None:
    """The miss weighs 0.25 and the click 1; with decays between them, and with a memory."""
    logs = []
    for reward, weight in ((0.0, 0.25), (1.0, 1.0)):
        log = Log()
        log.define(shop(p=POLICY | more))
        since = write(log, "p", "one", settled(log, "food1", reward, weight))
        for number in range(3):
            write(log, "p", f"next{number}", settled(log, "toy1", float(number % 2), 0.5))
        if reward == 0:
            correct(log, "p", "one", settled(log, "food1", 1.0, 1.0), 0.25, since)
        for number in range(4):
            write(log, "p", f"last{number}", settled(log, "toy2", float(number % 2), 0.5))
        logs.append(log)
    late, once = (log.state.learners["p"].active.head for log in logs)
    assert isinstance(late, RidgeHead)
    assert isinstance(once, RidgeHead)
    for name, array in late.arrays().items():
        np.testing.assert_allclose(array, once.arrays()[name], rtol=1e-12, atol=1e-12)


def test_a_click_that_becomes_a_miss_leaves_the_weight_of_the_miss() -> None:
    log, straight = Log(), Log()
    for each in (log, straight):
        each.define(shop(p=POLICY))
    since = write(log, "p", "one", settled(log, "food1", 1.0, 1.0))
    correct(log, "p", "one", settled(log, "food1", 0.0, 0.25), 1.0, since, was=1.0)
    write(straight, "p", "one", settled(log, "food1", 0.0, 0.25))
    late, once = (each.state.learners["p"].active.head for each in (log, straight))
    assert late is not None
    assert once is not None
    for name, array in late.arrays().items():
        np.testing.assert_allclose(array, once.arrays()[name], rtol=1e-12, atol=1e-12)


def test_weights_come_back_from_a_snapshot_and_in_a_rebuilt_head() -> None:
    """A window of 4 settlements that weigh 0.5: the head is built again from the memory."""
    log = Log()
    log.define(shop(p=POLICY | {"window": 4}))
    for number in range(12):
        write(log, "p", f"d{number}", settled(log, "food1", float(number % 2), 0.5))
    head = log.state.learners["p"].active.head
    assert isinstance(head, RidgeHead)
    memory = log.state.learners["p"].active.memory
    assert memory is not None
    assert head.n == 0.5 * len(memory)
    other = State.restore(log.state.snapshot())
    assert bits(other) == bits(log.state)
    write(log, "p", "next", settled(log, "food1", 1.0, 0.5))
    replay(log.records, other)
    assert bits(other) == bits(log.state)
