"""An audit names what was settled twice, whatever became of the marks that should prevent it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.base import Append, Trim
from service.log.stores.memory import MemoryStore
from service.settle.marks import arm_mark
from service.state.events import (
    AnyEvent,
    Corrected,
    Expired,
    Learned,
    Rewarded,
    encode_event,
    settlements_of,
)
from tests.support.clock import run_virtual
from tests.unit.audited import audited, define, events_of, live
from tests.unit.folding import POLICIES, shop

RULES = {"range": [0, 1], "aggregation": "sum", "total": [0, 100], "default": 0.0}


def taught() -> MemoryStore:
    """Two decisions with a reward each, the second with a further one."""
    store = MemoryStore()

    async def play(services: Services) -> None:
        await define(services, {**shop(linucb=POLICIES["linucb"]), "reward": RULES})
        for contributions in (1, 2):
            answer = await services.selector.select(SelectRequest({"pet": "cat"}, "shop", "linucb"))
            for number in range(contributions):
                request = RewardRequest(answer.token, reward=1.0, reward_id=f"r{number}")
                await services.settlements.reward(request)

    run_virtual(live(store, play))
    return store


def settled(store: MemoryStore) -> list[Learned]:
    return [one for _, event in events_of(store) for one in settlements_of(event)]


def append(store: MemoryStore, event: AnyEvent, mark: str = "fresh") -> int:
    """Under a mark that nobody knows, as if those of before had been forgotten."""
    entry = Append("shop", encode_event(event), {mark: ""})
    [appended] = run_virtual(store.commit([entry]))
    return appended.position  # type: ignore[union-attr]


def forget_marks(store: MemoryStore) -> None:
    store._experiments["shop"].keep_until = dict.fromkeys(store._experiments["shop"].marks, 0.0)
    run_virtual(store.trim("shop", Trim(0, 0, marks_before=1.0), 1_000))


def kinds(store: MemoryStore) -> list[tuple[str, str]]:
    return [(found.kind, found.id) for found in audited(store).kept]


def test_a_log_that_settles_everything_once_is_clean() -> None:
    store = taught()
    assert audited(store).clean
    forget_marks(store)
    assert audited(store).clean


def half(first: Rewarded, **more: Any) -> Rewarded:
    settled = [msgspec.structs.replace(first.settled[0], reward=0.5, **more)]
    return msgspec.structs.replace(first, settled=settled)


AGAIN: dict[str, Callable[[Rewarded], AnyEvent]] = {
    "the same reward": lambda first: first,
    "another value": half,
    "a default": lambda first: Expired.of([first]),
    "a correction of a reward that it never had": lambda first: Corrected(
        **msgspec.structs.asdict(half(first, was=0.5, since=2))
    ),
}


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("forgotten", [True, False])
def test_a_reward_that_counts_again_is_named(again: Any, forgotten: bool) -> None:
    store = taught()
    first = settled(store)[0]
    assert isinstance(first, Rewarded)
    if forgotten:
        forget_marks(store)
    position = append(store, msgspec.structs.replace(again(first), at=first.at + 1.0))
    found = [one for one in audited(store).kept if one.kind == "double"]
    assert [one.id for one in found] == [first.decision]
    assert f"at position {position} does not go on from the one at position 2" in found[0].what


def test_a_mark_at_the_event_of_another_decision_is_named() -> None:
    store = taught()
    first, second, _ = settled(store)
    marks = store._experiments["shop"].marks
    own = arm_mark(first.decision, first.settled[0].arm)
    other = arm_mark(second.decision, second.settled[0].arm)
    marks[own] = marks[other]
    assert ("identity", first.decision) in kinds(store)


def test_an_event_out_of_time_order_is_named() -> None:
    """By more than clocks of replicas may differ."""
    for late_s, expected in ((299.0, False), (301.0, True)):
        store = taught()
        last = settled(store)[-1]
        stranger = msgspec.structs.replace(settled(store)[0], at=last.at - late_s, settled=[])
        position = append(store, stranger)
        assert (("time", f"position {position}") in kinds(store)) is expected


def test_a_reward_by_that_is_not_the_decision_s_is_named() -> None:
    """Heads learn in its order. 0 stands for none that is waited for."""
    for change, expected in ((5.0, True), (0.0, False)):
        store = taught()
        other = msgspec.structs.replace(settled(store)[0], reward_by=change, settled=[])
        append(store, other)
        found = [each for each in audited(store).kept if "reward_by of the event" in each.what]
        assert bool(found) is expected
