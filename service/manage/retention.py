"""Trimming: deletes what is older than the retention, once nothing needs it any more.

Rows and events are walked in order, each once in the life of a process: what is old stays old.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf

from service.errors import Damaged, StoreError, StoreUnavailable
from service.log.log import Log
from service.log.replay import Pace, read_event, record_at, replay, row_pages
from service.log.replica import Replica
from service.log.stores import Store
from service.log.stores.base import Erasure, ReaderPosition, Snapshot, Trim
from service.settings import Settings
from service.state.decisions import decode_decision
from service.state.events import VersionStaged
from service.state.fold import State
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

DAY_S = 86_400.0
DELETIONS_PER_CALL = 500
"""Most things that one call to the store deletes: some milliseconds of its writer."""

PAUSE_SECONDS = 0.02
MARGIN_S = 600.0
"""Seconds for which marks are kept longer than they must be: a process may settle a decision a
moment before it folds the event that took log time past the decision's `accept_until`."""


@dataclass
class _Walked:
    """The position and the row up to which one experiment is old, and nobody needs it.

    artifacts   of versions staged up to there, and not deleted yet
    gone        artifacts that were deleted
    damaged     decisions up to there whose rows cannot be read
    watermarks  of the versions staged up to `searched`, by the position of their staging
    """

    position: int = 0
    row: int = 0
    damaged: list[str] = field(default_factory=list)
    artifacts: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    searched: int = 0
    watermarks: dict[int, int] = field(default_factory=dict)

    def replayed_from(self, snapshot: int) -> int:
        """Return the position up to which no replay from a snapshot needs events: it also catches
        up the versions that were staged after the snapshot, from their watermarks on. A snapshot
        holds those that were staged before it."""
        later = (mark for staged, mark in self.watermarks.items() if staged > snapshot)
        return min([snapshot, *later])


class Retention:
    def __init__(self, log: Log, store: Store, settings: Settings, telemetry: Telemetry) -> None:
        self._log, self._store = log, store
        self._settings, self._telemetry = settings, telemetry
        self._walked: dict[str, _Walked] = {}

    async def run(self) -> None:
        """Trim every `trim_seconds`, for ever."""
        while True:
            await asyncio.sleep(self._settings.trim_seconds)
            try:
                if self._log.presence.leads:
                    await self.trim_all()
            except StoreUnavailable:
                logger.warning("trimming waits for the log")
            except StoreError as fault:
                logger.error("nothing can be trimmed: %s", fault)

    async def trim_all(self) -> int:
        """Trim every experiment; returns how many rows, events and marks. Raises StoreError.

        Marks go without a retention, too. They go by log time, which is durable: a clock that ran
        ahead and then back would let go of marks whose tokens it accepts again.
        """
        await self._store.commit([])  # whose clock the store refuses must not trim by it
        served = [
            replica for replica in self._log.replicas.by_name.values() if replica.quarantine is None
        ]
        return sum([await self._delete(replica, await self._cut(replica)) for replica in served])

    async def _cut(self, replica: Replica) -> Trim:
        marks_before = replica.state.log_time - MARGIN_S
        if self._settings.retention_days is None:
            return Trim(0, 0, marks_before)
        horizon = self._log.clock.now(replica.state) - self._settings.retention_days * DAY_S
        store, name = self._store, replica.name
        walked = self._walked.setdefault(name, _Walked())
        taken = list((await store.describe(name)).readers.values())
        await self._walk_rows(replica, walked, horizon, taken)
        await self._walk_events(replica, walked, horizon, taken)
        walked.row = min([walked.row, *(one.row for one in taken)])  # one may have come since
        walked.position = min([walked.position, *(one.position for one in taken)])
        settles = not replica.state.deleted and replica.state.definition.reward.default is not None
        position = await self._reach_origin(name, walked)
        if position == walked.position:
            await self._let_artifacts_go(replica.state, walked)
        if walked.damaged:  # they would be due for ever
            await store.erase(name, Erasure(walked.damaged))
            walked.damaged = []
        return Trim(position, walked.row, marks_before, settles)

    async def _let_artifacts_go(self, state: State, walked: _Walked) -> None:
        """Delete the artifacts of versions that no replay stages any more, but for the latest of
        each policy, which may serve again."""
        begins = await self._store.read(state.name, 0, 1)
        for own in state.versions.by_policy.values():  # an earlier process may have trimmed these
            for each in own:
                if begins and each.staged.position < begins[0].position:
                    walked.artifacts.add(each.artifact)
        kept = state.versions.kept_artifacts
        if blobs := sorted(walked.artifacts - kept - walked.gone):
            await self._store.erase(state.name, Erasure(blobs=blobs))
            walked.gone.update(blobs)
        walked.artifacts &= kept

    async def _delete(self, replica: Replica, cut: Trim) -> int:
        name, total = replica.name, 0
        while count := await self._store.trim(name, cut, DELETIONS_PER_CALL):
            total += count
            await asyncio.sleep(PAUSE_SECONDS)
        if total:
            self._telemetry.trimmed.labels(name).inc(total)
            logger.info(
                "experiment %s: %d rows, events and marks trimmed, events up to position %d",
                name,
                total,
                cut.position,
            )
        return total

    # -- how far -------------------------------------------------------------------------------

    async def _walk_rows(
        self, replica: Replica, walked: _Walked, horizon: float, taken: list[ReaderPosition]
    ) -> None:
        """Past closed decisions from before the horizon, as far as every reader has their rows."""
        now, pace = self._log.clock.now(replica.state), Pace()
        async for page in row_pages(self._store, replica.name, walked.row):
            for row in page:
                if any(row.number > one.row for one in taken):
                    return
                try:
                    decision = decode_decision(row.payload)
                    if decision.at >= horizon or decision.accept_until >= now:
                        return
                except Damaged:  # as old as those around it
                    walked.damaged.append(row.id)
                walked.row = row.number
                await pace.keep()

    async def _walk_events(
        self, replica: Replica, walked: _Walked, horizon: float, taken: list[ReaderPosition]
    ) -> None:
        """Past events before the horizon that nothing needs and that a snapshot replaces."""
        store, name = self._store, replica.name
        candidates = await self._candidates(name)
        await self._find_staged(name, walked)
        reach = max([walked.replayed_from(one.position) for one in candidates], default=0)
        needed = min([*(one.position for one in taken), *_needed(replica.state)], default=inf)
        upto = min(reach, needed)
        if walked.position < upto:
            async for position, event in replay(store, name, walked.position, upto=upto):
                if event.at >= horizon:
                    break
                if isinstance(event, VersionStaged):
                    walked.artifacts.add(event.artifact)
                walked.position = position
        if walked.position == reach < needed:
            await self._make_room(replica, reach, horizon)

    async def _find_staged(self, name: str, walked: _Walked) -> None:
        async for position, event in replay(self._store, name, walked.searched):
            if isinstance(event, VersionStaged):
                walked.watermarks[position] = event.watermark
            walked.searched = position

    async def _candidates(self, name: str) -> list[Snapshot]:
        """Return the snapshots where replays may begin in future: the origin, and the one before
        the newest."""
        kept = await self._store.snapshots(name)
        latest = [snapshot for snapshot in kept if not snapshot.origin]
        return [*latest[1:2], *(snapshot for snapshot in kept if snapshot.origin)]

    async def _reach_origin(self, name: str, walked: _Walked) -> int:
        """Return the position up to which events may be deleted. Where that is beyond the origin,
        the other candidate becomes the origin, once it has been read back."""
        reached = 0
        for snapshot in sorted(await self._candidates(name), key=lambda one: not one.origin):
            if reached >= walked.position:
                break
            if not snapshot.origin:
                try:
                    await asyncio.to_thread(State.restore, snapshot)
                except Damaged as fault:
                    logger.error("experiment %s: events are not trimmed: %s", name, fault)
                    continue
                await self._store.put(name, replace(snapshot, origin=True))
            reached = walked.replayed_from(snapshot.position)
        return min(reached, walked.position)

    async def _make_room(self, replica: Replica, reach: int, horizon: float) -> None:
        """Take a snapshot where old events wait for nothing else: with little traffic the next one
        would be days away."""
        following = await record_at(self._store, replica.name, reach + 1)
        if following and read_event(following, frozenset(replica.state.skips)).at < horizon:
            await self._log.snapshots.save(replica)


def _needed(state: State) -> Iterator[int]:
    """Positions beyond which events must not be trimmed for trainings, which read all that was
    settled since a head was born."""
    for learner in state.folded.values():
        net = learner.policy.net
        if net is not None and not (net.alone and learner.active.number):
            yield max(learner.born_at - 1, 0)
