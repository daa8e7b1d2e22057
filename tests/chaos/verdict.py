"""The log once all has come to rest, and the heads of all replicas against a fold of the log."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import isclose
from typing import Final

import httpx

from service.bandits.heads import digest
from service.log.replay import PAGE
from service.log.stores import open_store
from service.log.stores.store import Store
from service.state.decisions import decode_decision
from service.state.events import decode_event
from service.state.fold import State
from tests.chaos.judge import Log
from tests.chaos.processes import NAME, Replica
from tests.recovery.serving import folded

QUIET_S: Final = 180.0
"""So long may it take until no decision is open and all replicas stand at the log's end."""
CONNECTIONS: Final = 8
"""New connections to a service of workers: they reach each of two but for once in 128 times."""
FOREVER: Final = 1e12

Digests = dict[str, str]
"""A policy's head by its name."""


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Store]:
    store = open_store(url, readonly=True)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def read_log(url: str) -> Log:
    """Events and rows of a log, one page in memory at a time."""
    log, last = Log(), 0
    async with reading(url) as store:
        while records := await store.read(NAME, log.end, PAGE):
            for record in records:
                log.take(record.position, decode_event(record.payload), record.payload)
        while rows := await store.decisions(NAME, last, PAGE):
            for row in rows:
                log.take_row(decode_decision(row.payload))
            last = rows[-1].number
    return log


async def end_of(url: str) -> tuple[int, bool]:
    """The last position of the log, and whether a decision is still open."""
    async with reading(url) as store:
        still_open = bool(await store.due(NAME, FOREVER, 1))
        return (await store.describe(NAME)).position, still_open


async def saved(url: str) -> int:
    """The position of the newest snapshot, 0 where there is none."""
    async with reading(url) as store:
        return max((snapshot.position for snapshot in await store.snapshots(NAME)), default=0)


@dataclass(frozen=True)
class Standing:
    """Replicas that stand still at the log's end."""

    log: Log
    state: State
    digests: dict[str, Digests]

    def unequal(self) -> list[str]:
        """Replicas whose heads differ from a fold of the log, and policies whose sums do."""
        own = {
            name: digest(learner.active.head)
            for name, learner in self.state.learners.items()
            if learner.active.head is not None
        }
        wrong = [
            f"{replica}: the head of {policy} differs from a fold of the log"
            for replica, digests in self.digests.items()
            for policy in own
            if digests.get(policy) != own[policy]
        ]
        for policy, total in self.log.sums.items():
            tally = self.state.reward_sums[policy]
            if not isclose(tally.total, total, rel_tol=1e-9, abs_tol=1e-6):
                wrong.append(f"{policy}: sum {tally.total} where the log adds up to {total}")
        return wrong

    @property
    def versions(self) -> int:
        return sum(learner.active.number for learner in self.state.learners.values())


async def settle_down(
    replicas: Sequence[Replica], store: str, http: httpx.AsyncClient, within_s: float = QUIET_S
) -> Standing:
    """Wait until nothing moves, then fold. Raises TimeoutError."""
    while True:
        async with asyncio.timeout(within_s):
            end, digests = await _at_rest(replicas, store, http)
        state = await asyncio.to_thread(folded, store, NAME)
        if state.position != end:
            continue
        log = await read_log(store)
        if await _positions(replicas, http) == {end} == {log.end}:
            return Standing(log, state, digests)


async def _at_rest(
    replicas: Sequence[Replica], store: str, http: httpx.AsyncClient
) -> tuple[int, dict[str, Digests]]:
    """Once all stand at the log's end, and no decision is open: the end, and their heads."""
    while True:
        await asyncio.sleep(0.5)
        before = await _positions(replicas, http)
        if before is None or len(before) > 1:
            continue
        end, still_open = await end_of(store)
        if still_open or before != {end}:
            continue
        try:
            digests = {}
            for replica in replicas:
                for number in range(CONNECTIONS if replica.children else 1):
                    async with httpx.AsyncClient(timeout=http.timeout) as fresh:
                        digests[f"{replica.name}/{number}"] = await _digests(replica, fresh)
        except httpx.HTTPError:
            continue
        if await _positions(replicas, http) == before:
            return end, digests


async def _positions(replicas: Iterable[Replica], http: httpx.AsyncClient) -> set[int] | None:
    """Where they stand; None while one of them is not ready."""
    found = [await replica.positions(http) for replica in replicas]
    if any(positions is None for positions in found):
        return None
    return {positions.get(NAME, 0) for positions in found if positions is not None}


async def _digests(replica: Replica, http: httpx.AsyncClient) -> Digests:
    answer = await http.get(f"{replica.url}/experiments/{NAME}/policies")
    policies = answer.raise_for_status().json()["policies"]
    return {each["name"]: each["head"]["digest"] for each in policies if each["head"] is not None}
