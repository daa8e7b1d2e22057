"""A log of every policy to audit: as a service wrote it, and with payloads that were changed."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np

from service.bandits.networks import cold_network
from service.bandits.rules import Scores
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import InlineArm, SelectRequest
from service.http.services import Services
from service.log.stores.base import KeptRow, Record
from service.log.stores.memory import MemoryStore
from service.log.stores.store import Keyed, KeyedValues
from service.offline.audit import Audit
from service.offline.audit_report import AuditReport
from service.settings import Settings
from service.state.artifacts import pack_artifact
from service.state.decisions import Decision, decode_decision
from service.state.events import decode_event
from service.state.fold import State
from service.state.learner import Learner
from tests.support.clock import run_virtual
from tests.support.service import virtual_services
from tests.support.tables import table_of
from tests.unit.folding import POLICIES, shop

CAT, DOG = {"pet": "cat", "age": 3.0}, {"pet": "dog"}
ROPE = InlineArm("rope", {"kind": "toy"}, {"stock": 3.0, "sale": True})
BONE = InlineArm("bone", {"kind": "food"})


async def live(
    store: MemoryStore, play: Callable[[Services], Any], rng: Random | None = None
) -> None:
    """The life of one service process over the store."""
    settings = Settings(store="memory://")
    services = virtual_services(settings, store, rng=rng)
    await services.log.open()
    try:
        await play(services)
    finally:
        await services.log.close()


def state_of(services: Services) -> State:
    state = services.log.replicas.state("shop")
    assert state is not None
    return state


async def define(services: Services, definition: dict[str, Any]) -> None:
    await services.admin.define("shop", Definition.model_validate(definition), "")


async def visit(services: Services, number: int) -> None:
    """One decision of each policy and one of any, of one arm or of three, and what came of some."""
    arms = [None, ["food1", "toy2", "bed1", "food2"], [ROPE, "bed2", BONE, "toy1"]]
    for index, policy in enumerate([*state_of(services).learners, None]):
        question = SelectRequest(
            [CAT, DOG][number % 2],
            "shop",
            policy,
            arms=arms[(index + number) % 3],
            top_k=3 if (index + number) % 4 == 0 else 1,
        )
        answer = await services.selector.select(question)
        if index % 5 == 1:
            await services.expiry.expire(state_of(services), answer.decision)
        if index % 5 < 4:
            rewards = {arm.arm: float(arm.arm < "f") for arm in answer.decision.shown}
            await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))


def artifact(learner: Learner, position: int, *, trained: bool = False) -> bytes:
    """A version with a net of random weights and an empty head. trained: a gate compares it."""
    network = cold_network([learner.view.width, 4, 2], "another net")
    encoder = learner.trained(network, (np.full((2, 1), 0.5), np.zeros(1)))
    version = learner.version(learner.next_version[1], encoder)
    version.trained_to, version.rewards = position, learner.rewards
    meta, arrays = learner.describe(version)
    report = {
        "rewards": 1,
        "seconds": 0.0,
        "validation_loss": 1.0,
        "ridge_loss": 1.0,
        "explained": 9.0,
    }
    return pack_artifact(meta | ({"training": report} if trained else {}), arrays)


async def first_day(services: Services) -> None:
    """A version is handed over, an arm goes, another comes, and a bank changes."""
    await define(services, shop())
    for number in range(3):
        await visit(services, number)
    state = state_of(services)
    learner = state.learners["neural"]
    await services.admin.stage(state, "neural", artifact(learner, state.position), "")
    await visit(services, 3)
    while learner.challenger:
        await services.log.replicas.follow(0.01)
    await visit(services, 4)
    await services.admin.remove_arm(state, "bed2", "")
    await services.admin.upsert_arms(state, {"bed2": {"kind": "toy"}, "bed3": {"kind": "bed"}}, "")
    await define(services, shop(**{**POLICIES, "watcher": {**POLICIES["watcher"], "bank": 7}}))
    await visit(services, 5)


async def second_day(services: Services) -> None:
    """Other features; then the experiment is deleted, and defined anew."""
    await visit(services, 6)
    definition = shop(linucb=POLICIES["linucb"], watcher=POLICIES["watcher"])
    del definition["features"]["context"]["age"]
    definition["policies"]["linucb"]["share"] = 3.0
    await define(services, definition)
    state = state_of(services)
    for question in [SelectRequest({"pet": "cat"}, "shop")] * 5:
        answer = await services.selector.select(question)
        await services.settlements.reward(RewardRequest(answer.token, reward=1.0))
    await services.admin.delete(state, "")
    await define(services, shop())
    await visit(services, 7)


def a_log(days: int = 2) -> MemoryStore:
    """As many lives of a service over one store."""
    store = MemoryStore()
    for day in (first_day, second_day)[:days]:
        run_virtual(live(store, day))
    return store


class Changed(MemoryStore):
    """The same log with other payloads, of rows by id and of events by position; None: gone."""

    def __init__(
        self,
        store: MemoryStore,
        rows: dict[str, bytes | None] | None = None,
        events: dict[int, bytes | None] | None = None,
    ) -> None:
        self.__dict__ |= vars(store)
        self.rows, self.events = rows or {}, events or {}

    async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
        rows = await super().decisions(experiment, after, limit)
        changed = [(row, self.rows.get(row.id, row.payload)) for row in rows]
        return [KeptRow(row.number, row.id, payload) for row, payload in changed if payload]

    async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
        found = await super().get(experiment, table, keys)
        changed = {key: self.rows.get(key, value) for key, value in found.items()}
        return {key: value for key, value in changed.items() if value is not None}

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        records = await super().read(experiment, after, limit)
        changed = [(each, self.events.get(each.position, each.payload)) for each in records]
        return [Record(each.position, payload) for each, payload in changed if payload]


def audited(store: MemoryStore) -> AuditReport:
    """The report, which is the same however many parts the work is cut into."""
    found = run_virtual(Audit(store, "shop").run())
    for parts in (2, 3, 7):
        assert run_virtual(Audit(store, "shop", parts=parts).run()) == found
    return found


def decisions_of(store: MemoryStore) -> list[Decision]:
    rows = run_virtual(store.decisions("shop", 0, 10_000))
    return [decode_decision(row.payload) for row in rows]


def events_of(store: MemoryStore) -> list[tuple[int, Any]]:
    records = run_virtual(store.read("shop", 0, 10_000))
    return [(record.position, decode_event(record.payload)) for record in records]


Pick = Callable[[Decision], bool]


def single(policy: str) -> Pick:
    return lambda decision: decision.policy == policy and len(decision.shown) == 1


def slate(policy: str) -> Pick:
    return lambda decision: decision.policy == policy and len(decision.shown) == 3


def row(played: MemoryStore, pick: Pick) -> Decision:
    return next(decision for decision in decisions_of(played) if pick(decision))


def with_shown(decision: Decision, **changes: Any) -> Decision:
    first, *rest = decision.shown
    return msgspec.structs.replace(
        decision, shown=[msgspec.structs.replace(first, **changes), *rest]
    )


def other_probability(decision: Decision) -> Decision:
    """The next number of a row above that of an arm which was not shown."""
    other = next(n for n, arm in enumerate(decision.arms) if arm != decision.shown[0].arm)
    p = list(decision.probabilities)
    p[other] = float(np.nextafter(np.float32(p[other]), np.float32(1.0)))
    return msgspec.structs.replace(decision, probabilities=p)


def scores(*rows: list[float]) -> Scores:
    return table_of(np.array(rows), np.arange(len(rows[0])))
