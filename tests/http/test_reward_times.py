"""reward_by and accept_until: the default reward, its correction, and the end."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from service.log.stores.base import CommitResult, Entry
from service.log.stores.memory import MemoryStore
from tests.support.clock import VirtualClock
from tests.support.service import Json, Wire, serving

WAIT_S = 600.0


class Counted(MemoryStore):
    searches = commits = 0

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        self.searches += 1
        return await super().due(experiment, now, limit)

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        self.commits += 1
        return await super().commit(entries)


@pytest.fixture
def store() -> Counted:
    return Counted()


@pytest.fixture
def wire(clock: VirtualClock, store: Counted) -> Iterator[Wire]:
    with serving(store, clock=clock) as wire:
        rules(wire)
        yield wire


def rules(wire: Wire, **rules: Any) -> None:
    reward = {"wait_seconds": WAIT_S, **rules}
    wire.redefine(policies={"linucb": {"kind": "linucb"}}, reward=reward)


def expire(wire: Wire, top_k: int = 1) -> Json:
    """Make a decision that nobody rewards in time."""
    decision = wire.select(top_k=top_k)
    wire.pass_by(WAIT_S)
    assert wire.rewards() == top_k
    return decision


def told(wire: Wire, decision: Json) -> dict[str, tuple[float, bool]]:
    """Return the learned reward of each arm, and whether it is the default."""
    learned = wire.explain(decision)["learned"]
    return {arm["arm"]: (arm["reward"], arm["default"]) for arm in learned}


def test_a_late_reward_corrects_the_default_once(wire: Wire) -> None:
    decision = expire(wire)
    assert told(wire, decision) == {decision["arm"]: (0.0, True)}
    status = wire.policy("linucb")
    assert (status["rewards"], status["mean_reward"]) == (1, 0.0)
    assert [wire.reward(decision, 1.0) for _ in range(2)] == ["corrected", "duplicate"]
    wire.refuse(409, decision, 0.5)
    assert told(wire, decision) == {decision["arm"]: (1.0, False)}
    status = wire.policy("linucb")
    assert (status["rewards"], status["mean_reward"]) == (1, 1.0)
    assert status["head"]["effective_count"] == 1


def test_a_late_reward_that_equals_the_default_confirms_it(wire: Wire) -> None:
    decision = expire(wire)
    assert wire.reward(decision, 0.0) == "corrected"
    assert told(wire, decision) == {decision["arm"]: (0.0, False)}


@pytest.mark.parametrize("aggregation", ["sum", "last"])
def test_a_late_contribution_replaces_the_default(wire: Wire, aggregation: str) -> None:
    rules(wire, default=0.5, aggregation=aggregation)
    decision = expire(wire)
    assert told(wire, decision) == {decision["arm"]: (0.5, True)}
    assert wire.reward(decision, 0.25, reward_id="a") == "corrected"
    assert told(wire, decision) == {decision["arm"]: (0.25, False)}


def test_a_reward_in_time_leaves_no_default_to_learn(wire: Wire) -> None:
    decision = wire.select()
    assert wire.reward(decision, 1.0) == "accepted"
    wire.pass_by(WAIT_S)
    assert told(wire, decision) == {decision["arm"]: (1.0, False)}
    assert wire.rewards() == 1


def test_the_default_holds_for_the_arms_of_a_slate_that_nobody_settled(wire: Wire) -> None:
    slate, cascade = wire.select(top_k=3), wire.select(top_k=3)
    first, *others = (slot["arm"] for slot in slate["ranking"])
    wire.reward(slate, rewards={first: 1.0})
    wire.reward(cascade, feedback="cascade", clicked=cascade["arm"])
    wire.pass_by(WAIT_S)
    assert told(wire, slate) == {first: (1.0, False), **dict.fromkeys(others, (0.0, True))}
    assert list(told(wire, cascade)) == [cascade["arm"]]  # nobody saw the arms below the click


def test_a_late_click_takes_the_default_of_the_arms_below_it_back(wire: Wire) -> None:
    decision = expire(wire, top_k=3)
    first, second, third = (slot["arm"] for slot in decision["ranking"])
    assert told(wire, decision).keys() == {first, second, third}
    assert wire.reward(decision, feedback="cascade", clicked=second) == "corrected"
    assert told(wire, decision) == {first: (0.0, False), second: (1.0, False)}
    status = wire.policy("linucb")
    assert (status["mean_reward"], status["head"]["effective_count"]) == (0.5, 2)


def test_accept_until_is_exact_to_half_a_second(wire: Wire, clock: VirtualClock) -> None:
    """600 s to wait and 60 to accept: a reward after 659.5 s counts, one after 660.5 s does not."""
    rules(wire, accept_seconds=60, default=None)
    first, second = wire.select(), wire.select()
    clock.skip(659.5)
    assert wire.reward(first, 1.0) == "accepted"
    clock.skip(1)
    assert wire.refuse(410, second)["type"].endswith("/too-late")
    assert wire.rewards() == 1


def test_the_default_is_not_learned_half_a_second_before_reward_by(wire: Wire) -> None:
    """600 s to wait: nothing is learned after 599.5 s, and the default after 600.5 s."""
    decision = wire.select()
    wire.pass_by(599.5)
    assert told(wire, decision) == {}
    wire.pass_by(1)
    assert told(wire, decision) == {decision["arm"]: (0.0, True)}


def test_an_open_decision_keeps_the_times_it_was_given(wire: Wire) -> None:
    decision = wire.select()
    rules(wire, wait_seconds=1, accept_seconds=1)
    wire.pass_by(60)
    assert told(wire, decision) == {}
    assert wire.reward(decision, 1.0) == "accepted"


# -- the search for due decisions ------------------------------------------------------------------


def test_open_decisions_have_the_default_of_the_present_definition(
    wire: Wire, store: Counted
) -> None:
    """Without one they are not searched for, and a reward is accepted at any time."""
    decisions = [wire.select() for _ in range(2)]
    rules(wire, default=None)
    wire.pass_by(2 * WAIT_S)
    assert store.searches == 0
    assert wire.rewards() == 0
    assert wire.reward(decisions[0], 1.0) == "accepted"
    rules(wire, default=0.5)
    wire.pass_by(0)
    assert told(wire, decisions[1]) == {decisions[1]["arm"]: (0.5, True)}


def test_defaults_that_fall_due_together_share_commits(wire: Wire, store: Counted) -> None:
    wire.post("/select/batch", {"requests": [{"context": {"persona": "cat"}}] * 200})
    store.commits = 0
    wire.pass_by(WAIT_S)
    assert wire.rewards() == 200
    assert store.commits <= 5


def test_the_service_searches_again_and_again(clock: VirtualClock) -> None:
    with serving(expiry_seconds=0.01, clock=clock) as wire:
        rules(wire)
        for count in (1, 2):
            wire.select()
            clock.skip(WAIT_S)
            wire.until(lambda: wire.rewards() == count)  # noqa: B023


def test_a_damaged_row_does_not_hold_up_the_others(
    wire: Wire, store: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays open, and the log says so once."""
    first, _ = wire.select(), wire.select()
    rows = store._experiments["shop"].decisions
    rows[first["id"]] = rows[first["id"]].replace(b"cat", b"cow")
    for _ in range(2):
        wire.pass_by(WAIT_S)
        assert wire.rewards() == 1
    wire.select()
    wire.pass_by(WAIT_S)
    assert wire.rewards() == 2
    said = [record.message for record in caplog.records if "default reward" in record.message]
    assert len(said) == 1
