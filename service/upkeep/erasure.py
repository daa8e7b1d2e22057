"""Erasure: all that the log holds of one unit goes, and nothing else changes.

The steps, each safe to repeat; a caller who was not answered asks again:

1. the unit's decisions are found by its keyed hash, in the rows;
2. their links are overwritten, so that nothing can be settled of them any more;
3. an `Erased` event names them and the positions of their events: single settlements leave the
   memories of heads (windows, changes), on every replica at the same position;
4. a snapshot is taken after it: the origin, where every replay begins from now on;
5. rows go, tombstones replace events, older snapshots and artifacts of trained versions go.

What a head has learned is a sum over all units, and stays: an aggregate.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from random import SystemRandom
from time import time

from service.errors import Damaged, StoreUnavailable
from service.events import (
    Decision,
    Erased,
    Learned,
    Tombstone,
    VersionStaged,
    decode_decision,
    decode_event,
    encode_event,
    outcomes,
)
from service.follower import PAGE, Live
from service.journal import Journal
from service.settlement import ERASED, OPEN_S, link_mark
from service.stores.base import Append
from service.stores.keeping import Erasure
from service.telemetry import Telemetry
from service.token import TokenSealer

logger = logging.getLogger(__name__)

_entropy = SystemRandom()

ROWS = 200
AT_ONCE = 1_000
"""Decisions erased in one round: a unit that visits daily has a few hundred."""

STAGING_SECONDS = 20.0
"""So long a version that is on its way is waited for: no snapshot can be taken meanwhile."""


@dataclass(frozen=True, slots=True)
class Gone:
    """What was erased of one experiment."""

    decisions: int = 0
    events: int = 0


@dataclass
class _Found:
    """What the log holds of some decisions. events: tombstones by position."""

    events: dict[int, bytes] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)


class Eraser:
    def __init__(self, journal: Journal, sealer: TokenSealer, telemetry: Telemetry) -> None:
        self._journal, self._sealer, self._telemetry = journal, sealer, telemetry

    async def erase(self, unit: str, experiment: str | None = None) -> dict[str, Gone]:
        """Erase a unit from one experiment, or from all, deleted ones too. What went, of each.

        Raises StoreUnavailable: then the same call again is safe, and needed.
        """
        store = self._journal.store
        hashes = self._sealer.unit_hashes(unit)
        names = [experiment] if experiment is not None else await store.experiments()
        return {name: await self._erase_from(name, hashes) for name in names}

    async def _erase_from(self, name: str, hashes: list[str]) -> Gone:
        await self._journal.discover(name)
        live, total = self._journal.live.get(name), Gone()
        if live is None:
            return total
        self._journal.forget_unlogged(name, hashes)
        while found := [row async for row in self._rows(name, hashes)]:
            gone = await self._erase_decisions(live, {row.id: row for row in found})
            total = Gone(total.decisions + gone.decisions, total.events + gone.events)
        return total

    async def _rows(self, name: str, hashes: list[str]) -> AsyncIterator[Decision]:
        """The unit's decisions, some of them where they are many."""
        wanted, number, count = [one.encode() for one in hashes], 0, 0
        while count < AT_ONCE and (page := await self._journal.store.decisions(name, number, ROWS)):
            number = page[-1].number
            for row in page:
                if not any(one in row.payload for one in wanted):
                    continue
                try:
                    decision = decode_decision(row.payload)
                except Damaged:
                    continue
                if decision.unit in hashes:
                    count += 1
                    yield decision
            await asyncio.sleep(0)

    async def _erase_decisions(self, live: Live, rows: Mapping[str, Decision]) -> Gone:
        name, store = live.state.name, self._journal.store
        await self._close(name, rows.values())
        found = await self._events_of(name, rows)
        event = Erased(at=time(), decisions=list(rows), positions=list(found.events))
        mark = f"erased/{_entropy.getrandbits(128):032x}"
        await self._journal.append(Append(name, encode_event(event), {mark: ""}), event)
        origin = await self._origin(live)
        prefixes = [f"{decision}{sign}" for decision in rows for sign in "=/"]
        await store.erase(
            Erasure(name, list(rows), found.events, prefixes, found.artifacts, origin)
        )
        self._telemetry.erased.labels(name).inc(len(rows))
        logger.info(
            "experiment %s: %d decisions and %d events erased; replays begin at position %d",
            name,
            len(rows),
            len(found.events),
            origin,
        )
        return Gone(len(rows), len(found.events))

    async def _close(self, name: str, rows: Iterable[Decision]) -> None:
        """Take every link of the shown arms, and the next one after them."""
        store = self._journal.store
        for row in rows:
            links, arms = dict[str, str](), [shown.arm for shown in row.shown]
            depth = 0
            while arms:
                identities = {link_mark(row.id, depth, arm): arm for arm in arms}
                links |= dict.fromkeys(identities, ERASED)
                known = await store.marks(name, list(identities))
                arms = [identities[one] for one, mark in known.items() if mark.value != ERASED]
                depth += 1
            await store.overwrite_marks(name, links, max(row.accept_until, time()) + OPEN_S)

    async def _events_of(self, name: str, decisions: Mapping[str, Decision]) -> _Found:
        """Tombstones for what they settled; and the artifacts, which may hold it: they are not
        needed once there is an origin after them."""
        found, position = _Found(), 0
        while records := await self._journal.store.read(name, position, PAGE):
            position = records[-1].position
            for record in records:
                event = decode_event(record.payload)
                if isinstance(event, VersionStaged):
                    found.artifacts.append(event.artifact)
                elif isinstance(event, Learned) and event.decision in decisions:
                    found.events[record.position] = _tombstone(event)
            await asyncio.sleep(0)
        return found

    async def _origin(self, live: Live) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STAGING_SECONDS
        while (position := await self._journal.save_origin(live)) is None:
            if loop.time() > deadline:
                raise StoreUnavailable("a version is being staged: erase again when it serves")
            await asyncio.sleep(0.05)
        return position


def _tombstone(event: Learned) -> bytes:
    firsts = sum(outcome.was is None for outcome in outcomes(event))
    stone = Tombstone(
        at=event.at, policy=event.policy, schema_version=event.schema_version, rewards=firsts
    )
    return encode_event(stone)
