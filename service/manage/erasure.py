"""Erasure: all that the log holds of one unit is deleted, and nothing else changes.

The steps, each safe to repeat; a caller without an answer asks again:

1. the unit's decisions are found by its keyed hash, in the rows;
2. the marks of their arms are overwritten, so that nothing can be settled of them any more;
3. an `Erased` event names them and the positions of their events: single settlements leave the
   memories of heads (windows, changes), on every replica at the same position;
4. a snapshot is taken after it: the origin, where every replay begins from now on;
5. what is left of their events replaces them, a tombstone where that is nothing; marks, older
   snapshots and artifacts of trained versions are deleted;
6. the rows are deleted last, since a repeated call finds by them what is left;
7. the store's files are cleaned of what was deleted.

What a head has learned is a sum over all units, and stays: an aggregate.
"""

import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.analysis.checkpoints import NOWHERE, Checkpoints
from service.decide.lookup import seed_of
from service.errors import Damaged, Quarantined, UnknownSecret
from service.log.log import Log
from service.log.replay import Pace, erasures, record_at, replay, row_pages
from service.log.replica import Replica
from service.log.stores import Store
from service.log.stores.base import Append, Erasure
from service.security.token import TokenSealer
from service.settle.marks import ERASED, OPEN_S, arm_mark
from service.state.decisions import Decision, decode_decision, unit_of
from service.state.events import (
    AnyEvent,
    Erased,
    Expired,
    Tombstone,
    VersionStaged,
    decode_event,
    encode_event,
    settlements_of,
)
from service.telemetry.logs import log_change
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

ERASE_BATCH = 1_000
"""Decisions erased in one round: a unit that visits daily has a few hundred."""


@dataclass(frozen=True, slots=True)
class ErasedCount:  # on the wire: a docstring would be in its description
    decisions: int
    events: int


class Eraser:
    """Erases units, and removes the checkpoints of looks at the log, which hold traces of them."""

    def __init__(
        self,
        log: Log,
        store: Store,
        sealer: TokenSealer,
        telemetry: Telemetry,
        checkpoints: Checkpoints = NOWHERE,
    ) -> None:
        self._log, self._store = log, store
        self._sealer, self._telemetry = sealer, telemetry
        self._checkpoints = checkpoints

    async def erase(
        self, unit: str, by: str, experiment: str | None = None
    ) -> dict[str, ErasedCount]:
        """Erase a unit from one experiment, or from all, deleted ones too; the counts of each.
        by: as in `events.Change`.

        Raises StoreUnavailable: then the same call again is safe, and needed; and UnknownSecret
        where rows are left that may be the unit's, after it has erased what it could find.
        """
        store = self._store
        hashes = self._sealer.unit_hashes(unit)
        names = [experiment] if experiment is not None else await store.experiments()
        gone, stopped = dict[str, ErasedCount](), None
        for name in names:
            try:
                gone[name] = await self._erase_from(name, hashes, by)
            except (Quarantined, UnknownSecret) as fault:  # others need not wait for its repair
                stopped = fault
        if stopped is not None:
            raise stopped
        return gone

    async def _erase_from(self, name: str, hashes: list[str], by: str) -> ErasedCount:
        await self._log.replicas.discover(name)
        replica, total = self._log.replicas.by_name.get(name), ErasedCount(0, 0)
        if replica is None:
            return total
        if unlogged := await self._unlogged(replica, hashes):
            await self._close(replica, unlogged)
            await self._log_erasure(replica, {row.id: row for row in unlogged}, [], by)
        found, foreign = await self._rows(name, hashes)
        while found:
            gone = await self._erase_decisions(replica, found, by)
            total = ErasedCount(total.decisions + gone.decisions, total.events + gone.events)
            found, foreign = await self._rows(name, hashes)
        self._checkpoints.forget(name)
        await self._store.scrub()  # also after an earlier call that broke off
        if foreign:
            raise UnknownSecret(
                f"experiment {name}: {foreign} decisions have units that were hashed under a "
                "secret that this service does not know, and may be this unit's; "
                f"{total.decisions} others were erased. Append the older secret to "
                "FORAGE_TOKEN_KEYS and erase again"
            )
        return total

    async def _unlogged(self, replica: Replica, hashes: list[str]) -> list[Decision]:
        """Return the unit's decisions in memory, which will not be logged any more."""
        await self._log.committer.drain()
        unlogged = self._log.committer.forget_unlogged(replica.name, hashes)
        rows = map(decode_decision, unlogged)
        return [row for row in rows if row.unit in hashes]

    async def _rows(self, name: str, hashes: list[str]) -> tuple[dict[str, Decision | None], int]:
        """Return the unit's decisions by id, only some of them where they are many; and how many
        rows have a unit under an unknown secret. None: a damaged row that holds the unit's hash."""
        wanted, pace, foreign = [one.encode() for one in hashes], Pace(), 0
        found = dict[str, Decision | None]()
        async for page in row_pages(self._store, name):
            for row in page:
                unit = unit_of(row.payload)
                if unit is not None and not self._sealer.knows_secret_of(unit):
                    foreign += 1
                if not any(one in row.payload for one in wanted):
                    continue
                try:
                    decision = decode_decision(row.payload)
                except Damaged:
                    found[row.id] = None
                else:
                    if decision.unit in hashes:
                        found[row.id] = decision
                await pace.keep()
            if len(found) >= ERASE_BATCH:
                break
        return found, foreign

    async def _erase_decisions(
        self, replica: Replica, rows: Mapping[str, Decision | None], by: str
    ) -> ErasedCount:
        name, store = replica.name, self._store
        await self._close(replica, [row for row in rows.values() if row is not None])
        events, artifacts = await self._events_of(name, rows)
        artifacts |= replica.state.versions.artifacts
        await self._log_erasure(replica, rows, list(events), by)
        origin = await self._log.snapshots.save_origin(replica)
        prefixes = [f"{decision}{sign}" for decision in rows for sign in "=/"]
        left = {position: encode_event(event) for position, event in events.items()}
        rest = Erasure(events=left, forget=prefixes, origin=origin, blobs=sorted(artifacts))
        await store.erase(name, rest)
        blocks = [position for position, event in events.items() if isinstance(event, Expired)]
        await self._clear_blocks(name, blocks, origin)
        await store.erase(name, Erasure(list(rows), origin=origin))
        self._telemetry.erased.labels(name).inc(len(rows))
        what = f"{len(rows)} decisions and {len(events)} events erased; replays begin at"
        log_change(name, f"{what} position {origin}", by)
        return ErasedCount(len(rows), len(events))

    async def _clear_blocks(self, name: str, positions: Sequence[int], origin: int) -> None:
        """Take out of blocks at these positions what other erasures have named meanwhile. Each
        replaces a block by what is left of the one that it has read: of two at a time the last
        would bring back what the other took out. So each is logged before it writes, and looks
        again after that."""
        while positions:
            decisions = set[str]()
            async for erased in erasures(self._store, name, positions[0]):
                decisions.update(erased.decisions)
            changed = dict[int, bytes]()
            for position in positions:
                record = await record_at(self._store, name, position)
                event = None if record is None else decode_event(record.payload)
                if isinstance(event, Expired) and (left := _left(event, decisions)) is not event:
                    changed[position] = encode_event(left)
            if changed:
                await self._store.erase(name, Erasure(events=changed, origin=origin))
            positions = list(changed)

    async def _log_erasure(
        self, replica: Replica, rows: Mapping[str, Decision | None], positions: list[int], by: str
    ) -> None:
        """Append the event. A damaged row may be one of a key."""
        keyed = [one for one, row in rows.items() if row is None or row.seed == seed_of(one)]
        at = self._log.clock.now(replica.state)
        event = Erased(at=at, by=by, decisions=list(rows), positions=positions, keyed=keyed)
        mark = f"erased/{secrets.token_hex(16)}"
        entry = Append(replica.name, encode_event(event), {mark: ""})
        await self._log.committer.append(entry, event)

    async def _close(self, replica: Replica, rows: Iterable[Decision]) -> None:
        """Overwrite the marks of all shown arms: whatever expects another value is refused."""
        name, marks = replica.name, dict[str, str]()
        keep_until = self._log.clock.now(replica.state)
        for row in rows:
            keep_until = max(keep_until, row.accept_until)
            marks |= dict.fromkeys((arm_mark(row.id, shown.arm) for shown in row.shown), ERASED)
        if marks:
            await self._store.overwrite_marks(name, marks, keep_until + OPEN_S)

    async def _events_of(
        self, name: str, decisions: Collection[str]
    ) -> tuple[dict[int, AnyEvent], set[str]]:
        """Return what is left of the events that settle them, by position; and all artifacts, which
        may hold what they taught: nobody needs them once there is an origin after them."""
        events, artifacts = dict[int, AnyEvent](), set[str]()
        async for position, event in replay(self._store, name):
            if isinstance(event, VersionStaged):
                artifacts.add(event.artifact)
            elif (left := _left(event, decisions)) is not event:
                events[position] = left
        return events, artifacts


def _left(event: AnyEvent, decisions: Collection[str]) -> AnyEvent:
    """Return what is left of an event without these decisions: itself, if it settles none."""
    gone = [one for one in settlements_of(event) if one.decision in decisions]
    if not gone:
        return event
    if isinstance(event, Expired):
        return event.without(decisions)
    firsts = [outcome for one in gone for outcome in one.settled if outcome.was is None]
    return Tombstone(
        at=event.at,
        policy=gone[0].policy,
        schema_version=gone[0].schema_version,
        rewards=len(firsts),
        inline=sum(outcome.inline for outcome in firsts),
    )
