"""Whether a log settles each arm of a decision once, and its marks stand at their own events.

An audit gives every event to `SettledArms`, which keeps 48 bytes of each settled arm, and compares
them at the end: marks that were forgotten too early cannot tell of what was settled twice.
"""

import re
from array import array
from collections.abc import AsyncIterator, Iterator

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

    def __init__(self, store: Store, experiment: str) -> None:
        self._store, self._name = store, experiment
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
        for decision in [hash(one.decision) for one in settlements] or [0]:
            self._positions.append(position)
            self._decisions.append(decision)
        for settlement in settlements:
            for outcome in settlement.settled:
                self._keys.append(_key(settlement, outcome))
                self._places.append(position)
                self._before.append(hash(_before(outcome)))
                self._after.append(hash(_after(position, outcome)))

    async def twice(self) -> AsyncIterator[Discrepancy]:
        """Arms that are learned of without regard to what had been learned of them before."""
        keys, places = np.asarray(self._keys), np.asarray(self._places)
        order = np.lexsort((places, keys))
        earlier, later = order[:-1], order[1:]
        same = np.asarray(self._before)[later] == np.asarray(self._after)[earlier]
        for wrong in np.flatnonzero((keys[earlier] == keys[later]) & ~same):
            key = int(keys[later[wrong]])
            first, second = int(places[earlier[wrong]]), int(places[later[wrong]])
            found, before = await self._find(second, key), await self._find(first, key)
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

    async def _find(self, position: int, key: int) -> tuple[Learned, Outcome] | None:
        """Find the settlement of an arm; None: it was trimmed or erased meanwhile."""
        record = await record_at(self._store, self._name, position)
        for settlement in () if record is None else settlements_of(decode_event(record.payload)):
            for outcome in settlement.settled:
                if _key(settlement, outcome) == key:
                    return settlement, outcome
        return None

    async def misplaced(self) -> AsyncIterator[Discrepancy]:
        """Yield marks at whose position another decision is settled, or none."""
        positions, decisions = np.asarray(self._positions), np.asarray(self._decisions)
        cursor = START
        while positions.size:
            marks, cursor = await self._store.list_marks(self._name, cursor, MARKS_PER_PAGE)
            for mark in marks:
                own = MARK_IDENTITY.match(mark.identity)
                first, end = (
                    np.searchsorted(positions, mark.position, side) for side in ("left", "right")
                )
                if own is None or first == end:
                    continue
                if not (decisions[first:end] == hash(own[1])).any():
                    what = f"its mark {mark.identity} stands at position {mark.position}, which "
                    what += "holds the event of another"
                    yield Discrepancy("identity", own[1], what)
            if cursor == START:
                return


def _key(settlement: Learned, outcome: Outcome) -> int:
    return hash((settlement.decision, outcome.arm))


def _before(outcome: Outcome) -> LearnedArm:
    return NOTHING_LEARNED if outcome.was is None else (outcome.was, outcome.since, outcome.weighed)


def _after(position: int, outcome: Outcome) -> LearnedArm:
    if outcome.learned is None:
        return NOTHING_LEARNED
    since = position if outcome.was is None else outcome.since
    return outcome.learned, since, outcome.weight
