"""The log against the ledger, and the heads of all replicas against a fold of the log."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Final

import httpx

from service.bandits.posterior import digest
from service.log.replay import PAGE
from service.log.stores import open_store
from service.state.events import (
    AnyEvent,
    Corrected,
    Expired,
    Learned,
    SettledReward,
    decode_event,
    outcomes,
)
from service.state.fold import State
from tests.chaos.ledger import Claim, Key
from tests.chaos.processes import NAME, Replica
from tests.recovery.serving import folded

QUIET_S: Final = 120.0
"""So long may it take until no decision is open and all replicas stand at the log's end."""
FOREVER: Final = 1e12

Log = list[tuple[int, AnyEvent]]
Digests = dict[str, str]
"""A policy's head by its name."""


@dataclass(frozen=True)
class Audit:
    """What is wrong with a log; a line each.

    lost      acknowledged, and not in the log with the value that was given
    doubled   settled, or told that it was, more than once
    strange   in the log, and never given so; positions that are missing
    """

    acknowledged: int
    corrected: int
    lost: list[str]
    doubled: list[str]
    strange: list[str]


@dataclass
class _Trail:
    """What the log says of one settlement, in order.

    firsts   first words: rewards, and defaults of those that did not come in time
    given    rewards that a client gave
    breaks   corrections of a value that it did not have
    """

    firsts: int = 0
    value: float | None = None
    given: list[float] = field(default_factory=list)
    breaks: int = 0

    def take(self, outcome: SettledReward, *, default: bool) -> None:
        self.firsts += outcome.was is None
        self.breaks += outcome.was is not None and outcome.was != self.value
        self.value = outcome.settled.reward
        if not default:
            self.given.append(self.value)

    def __str__(self) -> str:
        return f"{self.firsts} first words, {self.breaks} breaks, given {self.given}"

    @property
    def sound(self) -> bool:
        return self.firsts == 1 and not self.breaks and len(self.given) <= 1


def audit(claims: Mapping[Key, Claim], log: Log) -> Audit:
    """Each settlement has one first word and at most one reward: a correction of a default."""
    trails: defaultdict[Key, _Trail] = defaultdict(_Trail)
    for _, event in log:
        if isinstance(event, Learned):
            for outcome in outcomes(event):
                trail = trails[event.decision, outcome.settled.arm]
                trail.take(outcome, default=isinstance(event, Expired))
    lost = [
        f"{key}: {claim.reward} was acknowledged, the log has {trails[key].given}"
        for key, claim in claims.items()
        if claim.answers and claim.reward not in trails[key].given
    ]
    doubled = [
        f"{key}: {trail}" for key, trail in trails.items() if trail.firsts and not trail.sound
    ]
    doubled += [
        f"{key}: said to be counted {claim.counted} times"
        for key, claim in claims.items()
        if claim.counted > 1
    ]
    strange = [
        f"{key}: nobody gave {value}"
        for key, trail in trails.items()
        for value in trail.given
        if key not in claims or claims[key].reward != value
    ]
    strange += [
        f"position {position} stands where {expected} should"
        for expected, (position, _) in enumerate(log, start=1)
        if position != expected
    ]
    return Audit(
        acknowledged=sum(claim.answers > 0 for claim in claims.values()),
        corrected=sum(isinstance(event, Corrected) for _, event in log),
        lost=lost,
        doubled=doubled,
        strange=strange,
    )


def end(log: Log) -> int:
    return log[-1][0] if log else 0


async def read_log(url: str) -> tuple[Log, bool]:
    """The events of the log, and whether a decision is still open."""
    store = open_store(url, readonly=True)
    await store.open()
    try:
        log: Log = []
        while records := await store.read(NAME, end(log), PAGE):
            log += [(record.position, decode_event(record.payload)) for record in records]
        return log, bool(await store.due(NAME, FOREVER, 1))
    finally:
        await store.close()


async def saved(url: str) -> int:
    """The position of the newest snapshot, 0 where there is none."""
    store = open_store(url, readonly=True)
    await store.open()
    try:
        return max((snapshot.position for snapshot in await store.snapshots(NAME)), default=0)
    finally:
        await store.close()


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
        sums: defaultdict[str, list[float]] = defaultdict(list)
        for _, event in self.log:
            if isinstance(event, Learned):
                sums[event.policy] += [o.settled.reward - (o.was or 0.0) for o in outcomes(event)]
        for policy, rewards in sums.items():
            tally = self.state.reward_sums[policy]
            if not isclose(tally.total, sum(rewards), abs_tol=1e-6):
                wrong.append(f"{policy}: sum {tally.total} where the log adds up to {sum(rewards)}")
        return wrong

    @property
    def versions(self) -> int:
        return sum(learner.active.number for learner in self.state.learners.values())


async def settle_down(
    replicas: Sequence[Replica], store: str, http: httpx.AsyncClient, within_s: float = QUIET_S
) -> Standing:
    """Wait until nothing moves. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while True:
            await asyncio.sleep(0.5)
            before = await _positions(replicas, http)
            if before is None:
                continue
            log, still_open = await read_log(store)
            if still_open or before != {end(log)}:
                continue
            try:
                digests = {replica.name: await _digests(replica, http) for replica in replicas}
            except httpx.HTTPError:
                continue
            state = await asyncio.to_thread(folded, store, NAME)
            if state.staging or state.position != end(log):
                continue
            if await _positions(replicas, http) == before:
                return Standing(log, state, digests)


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
