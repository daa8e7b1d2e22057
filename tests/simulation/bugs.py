"""Bugs to plant: each breaks one promise, as code under time pressure might."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import count
from unittest import mock

from service.bandits.version import Version
from service.log.replica import Committed, Replica
from service.log.stores.base import (
    Append,
    Appended,
    CommitResult,
    Entry,
    Mark,
    MarkConflict,
    Snapshot,
    Trim,
)
from service.log.upkeep import Snapshots
from service.manage import retention
from service.manage.erasure import Eraser
from service.manage.retention import Retention
from service.settle.marks import MarkedSettlement
from service.state.events import AnyEvent
from service.state.fold import State
from service.state.learner import Learner
from tests.simulation.disk import Disk

A_WHILE_S = 0.05

Patch = AbstractContextManager[object]


def mark_before_append() -> Patch:
    """The store takes an event's identities first; a crash between leaves marks of nothing."""
    right = Disk.take

    async def take(self: Disk, entry: Entry) -> CommitResult:
        if not isinstance(entry, Append):
            return await right(self, entry)
        kept = self._experiments[entry.experiment]
        known = {i: kept.marks[i] for i in entry.marks if i in kept.marks}
        if {identity: mark.value for identity, mark in known.items()} != entry.replaces:
            kept._settle(entry.settles)
            return MarkConflict(known)
        position = kept.position + 1
        kept.marks |= {i: Mark(value, position) for i, value in entry.marks.items()}
        await asyncio.sleep(A_WHILE_S)
        kept.position, kept.events[position] = position, entry.payload
        kept._settle(entry.settles)
        return Appended(kept.position, "")

    return mock.patch.object(Disk, "take", take)


def snapshot_without_position_check() -> Patch:
    """A snapshot goes by the position at which it was asked for, whatever was folded since."""

    async def save(self: Snapshots, replica: Replica) -> None:
        position = replica.state.position
        await asyncio.sleep(A_WHILE_S)
        folded, replica.state.position = replica.state.position, position
        payload = replica.state.snapshot().payload
        replica.state.position = folded
        await self._store.put(replica.name, Snapshot(position, payload))
        replica.snapshot_position = position
        self._under_way.discard(replica.name)

    return mock.patch.object(Snapshots, "save", save)


def retry_without_identity() -> Patch:
    """Every attempt to settle has identities of its own."""
    right, attempts = MarkedSettlement.marks, count()

    def marks(self: MarkedSettlement) -> dict[str, str]:
        attempt = next(attempts)
        return {f"{identity}/{attempt}": value for identity, value in right(self).items()}

    return mock.patch.object(MarkedSettlement, "marks", marks)


def expiry_that_races_a_reward() -> Patch:
    """A default reward looks for its own mark alone, not for the reward's."""
    right = MarkedSettlement.marks

    def marks(self: MarkedSettlement) -> dict[str, str]:
        if self.reward_id is not None:
            return right(self)
        return {f"{self.decision}!expired": json.dumps([0.0, True, 0])}

    return mock.patch.object(MarkedSettlement, "marks", marks)


def fold_that_skips_a_gap() -> Patch:
    """A process folds what it wrote, though others wrote before it what it has not read."""
    right = State.apply

    def apply(self: State, position: int, event: AnyEvent, version: Version | None = None) -> None:
        self.position = position - 1
        right(self, position, event, version)

    async def fold_own(self: Replica, events: Sequence[Committed], began: float) -> None:
        for committed in events:
            if committed.position > self.state.position:
                await self.apply(committed.position, committed.event)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(State, "apply", apply))
    stack.enter_context(mock.patch.object(Replica, "apply_committed", fold_own))
    return stack


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


def stale_version_served() -> Patch:
    """Nobody looks at the fence: any artifact may be staged as the next version."""
    return mock.patch.object(Learner, "next_version", _Anything())


def erasure_that_leaves_marks() -> Patch:
    """Rows and events go, and whoever holds a token can settle the decision anew."""

    async def close(*_: object) -> None: ...

    return mock.patch.object(Eraser, "_close", close)


def marks_forgotten_by_the_wall_clock() -> Patch:
    """A clock that ran ahead takes marks, and their tokens are accepted once it is back."""
    right = Retention._cut

    async def cut(self: Retention, replica: Replica) -> Trim:
        before = self._telemetry.clock.time() - retention.MARGIN_S
        return replace(await right(self, replica), marks_before=before)

    return mock.patch.object(Retention, "_cut", cut)


BUGS: dict[str, Callable[[], Patch]] = {
    bug.__name__.replace("_", " "): bug
    for bug in (
        mark_before_append,
        snapshot_without_position_check,
        retry_without_identity,
        expiry_that_races_a_reward,
        fold_that_skips_a_gap,
        stale_version_served,
        erasure_that_leaves_marks,
        marks_forgotten_by_the_wall_clock,
    )
}
