"""Requests that arrive during a commit are decided as one batch at its end, or soon."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from service.analysis.rederive import check_decision
from service.decide.recorder import Recorded
from service.decide.scoring import decide
from service.decide.select import WAITING_ENOUGH, Answer
from service.definition.select_request import Envelope, SelectRequest
from service.errors import Invalid
from service.log.stores.base import CommitResult, Entry
from service.log.stores.memory import MemoryStore
from service.state.decisions import decode_decision
from tests.support.service import Wire, serving

QUESTION = SelectRequest({"persona": "cat"}, policy="linucb")


class Gated(MemoryStore):
    """A log that commits when it is let; knows how many entries each batch had."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.begun = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.batches: list[int] = []

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        self.batches.append(len(entries))
        self.begun.set()
        await self.gate.wait()
        return await super().commit(entries)


class Asking:
    """Asks a service whose log has stopped."""

    def __init__(self, wire: Wire, store: Gated) -> None:
        self.wire, self.store = wire, store
        store.batches.clear()
        store.gate.clear()
        store.begun.clear()

    def ask(self) -> asyncio.Future[Answer]:
        return asyncio.ensure_future(self.wire.services.selector.select(QUESTION))

    def decided(self) -> float:
        """How many questions have been, whether answered or not."""
        return self.wire.metrics()['forage_stage_seconds_count{stage="score"}']


@pytest.fixture
def store() -> Gated:
    return Gated()


@pytest.fixture
def asking(store: Gated) -> Iterator[Asking]:
    with serving(store) as wire:
        yield Asking(wire, store)
        store.gate.set()


def test_what_is_asked_during_a_commit_is_decided_together_when_it_ends(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.decide.select.PATIENCE_SECONDS", 60.0)

    async def ask() -> list[Answer]:
        asked = [asking.ask()]
        await asking.store.begun.wait()
        for _ in range(3):  # in as many turns of the loop
            asked.append(asking.ask())
            await asyncio.sleep(0)
        asking.store.gate.set()
        return await asyncio.gather(*asked)

    answers = asking.wire.run(ask())
    assert all(isinstance(answer, Answer) for answer in answers)
    assert asking.store.batches == [1, 3]


def test_a_slow_commit_does_not_keep_questions_from_being_decided(asking: Asking) -> None:
    before = asking.decided()

    async def ask() -> list[asyncio.Future[Answer]]:
        first = asking.ask()
        await asking.store.begun.wait()
        return [first, asking.ask(), asking.ask()]

    asked = asking.wire.run(ask())
    asking.wire.until(lambda: asking.decided() == before + 3)
    assert not any(one.done() for one in asked)  # the first one's commit is still under way
    asking.store.gate.set()
    for one in asked:
        assert isinstance(asking.wire.run(one), Answer)
    assert asking.store.batches == [1, 2]


def test_when_enough_wait_they_are_decided_though_the_commit_goes_on(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.decide.select.PATIENCE_SECONDS", 60.0)
    before = asking.decided()

    async def ask() -> list[asyncio.Future[Answer]]:
        first = asking.ask()
        await asking.store.begun.wait()
        return [first, *(asking.ask() for _ in range(WAITING_ENOUGH - 1))]

    asked = asking.wire.run(ask())
    asking.wire.sleep(0.01)
    assert asking.decided() == before + 1

    async def one_more() -> asyncio.Future[Answer]:
        return asking.ask()

    asked.append(asking.wire.run(one_more()))
    asking.wire.until(lambda: asking.decided() == before + 1 + WAITING_ENOUGH)
    assert not any(one.done() for one in asked)
    asking.store.gate.set()
    for one in asked:
        assert isinstance(asking.wire.run(one), Answer)
    assert asking.store.batches == [1, WAITING_ENOUGH]


def test_a_question_to_an_idle_service_is_decided_at_once(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.decide.select.PATIENCE_SECONDS", 60.0)
    asking.store.gate.set()

    async def ask() -> Answer:
        return await asking.ask()

    for _ in range(3):
        assert isinstance(asking.wire.run(ask()), Answer)
    assert asking.store.batches == [1, 1, 1]


def test_what_would_take_too_long_together_is_decided_in_several_turns(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time for a turn, each question has its own, in their order."""
    asking.store.gate.set()
    for _ in range(2):  # measured with a stale head, and with one that is not
        asking.wire.run(asking.wire.services.selector.select(QUESTION))
    monkeypatch.setattr("service.decide.select.TURN_S", 0.0)

    selector, sizes = asking.wire.services.selector, []
    whole = selector._decide_batch

    def decide_batch(batch: list[Any]) -> None:
        sizes.append(len(batch))
        whole(batch)

    monkeypatch.setattr(selector, "_decide_batch", decide_batch)

    async def ask() -> list[Answer]:
        return await asyncio.gather(*(asking.ask() for _ in range(WAITING_ENOUGH)))

    assert all(isinstance(answer, Answer) for answer in asking.wire.run(ask()))
    assert sizes == [1] * WAITING_ENOUGH


def test_a_request_with_a_key_has_a_batch_of_its_own_where_it_tries_other_arms(
    asking: Asking, store: Gated
) -> None:
    """Open showings of this process do not count for a key: two processes decide it alike."""
    store.gate.set()
    wire = asking.wire
    wire.redefine(policies={"linucb": {"kind": "linucb", "disjoint": True, "alpha": 0.0}})
    for arm, rewards in (("kibble", [1.0] * 3), ("mouse", [0.0]), ("ball", [0.0])):
        shown = [wire.select(arms=[arm]) for _ in range(3)]
        for decision, reward in zip(shown, rewards, strict=False):
            wire.reward(decision, reward)
    for _ in range(2):  # the first of its size, and with heads to derive, is decided by itself
        wire.select()

    async def both() -> list[Answer]:
        select = wire.services.selector.select
        return list(await asyncio.gather(select(QUESTION), select(QUESTION, Envelope(key="once"))))

    rows = [wire.run(store.decision("shop", one.decision.id)) for one in wire.run(both())]
    decisions = [decode_decision(row) for row in rows if row is not None]
    assert [len(decision.facts.untried) for decision in decisions] == [0, 2]
    state = wire.services.log.replicas.state("shop")
    assert state is not None
    assert [list(check_decision(state, decision)) for decision in decisions] == [[], []]


def test_a_row_that_is_too_long_fails_its_own_request_alone(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of a request with a unit is longer by the unit's hash. One of both failed all."""
    asking.store.gate.set()
    services = asking.wire.services
    selector, [name] = services.selector, services.log.replicas.by_name
    state = services.log.replicas.state(name)
    assert state is not None
    plain = msgspec.structs.replace(QUESTION, arms=[*state.candidates.ids][:3])
    [only] = selector._recorder.record(
        [(lookup := selector._lookups.look_up(state, plain), *decide(*lookup.choice))], [None]
    )
    assert isinstance(only, Recorded)
    for _ in range(2):  # measured with a stale head, and with one that is not
        asking.wire.run(selector.select(plain))
    selector._recorder._most_bytes = len(only.row.payload) + 8

    sizes, whole = list[int](), selector._decide_batch

    def decide_batch(batch: list[Any]) -> None:
        sizes.append(len(batch))
        whole(batch)

    monkeypatch.setattr(selector, "_decide_batch", decide_batch)

    async def ask() -> list[Answer | BaseException]:
        asked = [plain, msgspec.structs.replace(plain, unit="visitor"), plain]
        return await asyncio.gather(*map(selector.select, asked), return_exceptions=True)

    first, refused, last = asking.wire.run(ask())
    assert isinstance(refused, Invalid)
    assert [fault.path for fault in refused.faults] == ["arms"]
    assert isinstance(first, Answer)
    assert isinstance(last, Answer)
    assert sizes == [3]
