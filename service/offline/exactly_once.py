"""Whether a log settles each arm of a decision once, and its marks stand at their own events.

An audit gives every event to `SettledArms`, which keeps 48 bytes of each settled arm, and compares
them at the end: marks that were forgotten too early cannot tell of what was settled twice. The
hashes are those of any process.
"""

import re
from array import array
from collections.abc import AsyncIterator, Iterator
from hashlib import blake2b

import numpy as np

from service.analysis.rederive import Discrepancy
from service.log.replay import record_at
from service.log.stores import Store
from service.log.stores.store import START
from service.state.events import (
    AnyEvent,
    Learned,
    Outcome,
    Skipped,
    Tombstone,
    decode_event,
    settlements_of,
)

APART_S = 300.0
"""Seconds by which an event may be older than the one before it: clocks of replicas differ, and
events wait for their commit."""

MARKS_PER_PAGE = 1_000
"""Marks that are listed at a time."""

MARK_IDENTITY = re.compile(r"([^#=/]+)(#|=\d+/)")
"""Pattern of the identity of an arm or a contribution (settle/marks.py), which begins with the
decision."""


LearnedArm = tuple[float | None, int | None, float]
"""Knowledge of an arm: the reward learned, the position since which it has one, its weight."""

NOTHING_LEARNED: LearnedArm = (None, None, 1.0)


class SettledArms:
    """What the events of one experiment settle."""

    def __init__(self) -> None:
        self._positions, self._decisions = array("q"), array("q")  # settled by readable events
        self._keys, self._places = array("q"), array("q")  # of settled arms: hash, position
        self._before, self._after = array("q"), array("q")  # hashes of what is learned of them
        self._at = 0.0

    def take(self, position: int, event: AnyEvent) -> Iterator[Discrepancy]:
        """Take an event, in log order, and yield what is wrong with its time."""
        if isinstance(event, Skipped | Tombstone):
            return
        if event.at < self._at - APART_S:
            what = "is older than the event before it, in unix seconds"
            yield Discrepancy("time", f"position {position}", what, event.at, self._at)
        self._at = event.at
        settlements = settlements_of(event)
        for decision in [_hash(one.decision) for one in settlements] or [0]:
            self._positions.append(position)
            self._decisions.append(decision)
        for settlement in settlements:
            for outcome in settlement.settled:
                self._keys.append(_key(settlement, outcome))
                self._places.append(position)
                self._before.append(_hash(_before(outcome)))
                self._after.append(_hash(_after(position, outcome)))

    def pass_over(self, event: AnyEvent) -> None:
        """Note the time of an event that another part of the log's audit takes."""
        if not isinstance(event, Skipped | Tombstone):
            self._at = event.at

    def extend(self, later: "SettledArms") -> None:
        """Add what the following part of the log settles."""
        self._positions += later._positions
        self._decisions += later._decisions
        self._keys += later._keys
        self._places += later._places
        self._before += later._before
        self._after += later._after

    async def twice(self, store: Store, experiment: str) -> AsyncIterator[Discrepancy]:
        """Arms that are learned of without regard to what had been learned of them before."""
        keys, places = np.asarray(self._keys), np.asarray(self._places)
        order = np.lexsort((places, keys))
        earlier, later = order[:-1], order[1:]
        same = np.asarray(self._before)[later] == np.asarray(self._after)[earlier]
        for wrong in np.flatnonzero((keys[earlier] == keys[later]) & ~same):
            key = int(keys[later[wrong]])
            first, second = int(places[earlier[wrong]]), int(places[later[wrong]])
            found, before = [
                await _find(store, experiment, position, key) for position in (second, first)
            ]
            if found is not None and before is not None:
                event, outcome = found
                kind = "default reward" if event.defaulted else "reward"
                what = (
                    f"a {kind} of {outcome.arm} at position {second} does not go on from "
                    f"the one at position {first}; reward before, since, weight"
                )
                yield Discrepancy(
                    "double", event.decision, what, _before(outcome), _after(first, before[1])
                )

    async def misplaced(self, store: Store, experiment: str) -> AsyncIterator[Discrepancy]:
        """Yield marks at whose position another decision is settled, or none."""
        positions, decisions = np.asarray(self._positions), np.asarray(self._decisions)
        cursor = START
        while positions.size:
            marks, cursor = await store.list_marks(experiment, cursor, MARKS_PER_PAGE)
            for mark in marks:
                own = MARK_IDENTITY.match(mark.identity)
                first, end = (
                    np.searchsorted(positions, mark.position, side) for side in ("left", "right")
                )
                if own is None or first == end:
                    continue
                if not (decisions[first:end] == _hash(own[1])).any():
                    what = f"its mark {mark.identity} stands at position {mark.position}, which "
                    what += "holds the event of another"
                    yield Discrepancy("identity", own[1], what)
            if cursor == START:
                return


async def _find(
    store: Store, experiment: str, position: int, key: int
) -> tuple[Learned, Outcome] | None:
    """Find the settlement of an arm; None: it was trimmed or erased meanwhile."""
    record = await record_at(store, experiment, position)
    for settlement in () if record is None else settlements_of(decode_event(record.payload)):
        for outcome in settlement.settled:
            if _key(settlement, outcome) == key:
                return settlement, outcome
    return None


def _hash(value: object) -> int:
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), signed=True)


def _key(settlement: Learned, outcome: Outcome) -> int:
    return _hash((settlement.decision, outcome.arm))


def _before(outcome: Outcome) -> LearnedArm:
    return NOTHING_LEARNED if outcome.was is None else (outcome.was, outcome.since, outcome.weighed)


def _after(position: int, outcome: Outcome) -> LearnedArm:
    if outcome.learned is None:
        return NOTHING_LEARNED
    since = position if outcome.was is None else outcome.since
    return outcome.learned, since, outcome.weight
