"""Rewards in the order of their decisions, where misses come by default.

A click comes at once, a miss at the `reward_by` of its decision. Whoever learns both as they come
knows of the latest decisions their clicks alone: whatever is shown looks good until its misses
come, and a head runs from arm to arm. So once defaults settle many decisions, a reward waits for
the defaults of its time.

Before the first default nobody can know. Rewards are learned as they come and kept; if defaults
follow, the head starts anew and learns them again, in order.
"""

from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import structs

from service.bandits.heads.base import Stored, pack_names, unpack_names
from service.bandits.outcome import Outcome
from service.features.row import PackedRows, RowLayout

WINDOW = 200
"""Settlements of which the share of defaults decides."""

LATE, PROMPT = 0.25, 0.125
"""The share from which on rewards wait, and below which they no longer do."""

LEAST_COUNT = 16
"""Settlements before that share says something."""

EARLY = 256
"""Settlements after the first `reward_by` in which a head may start anew."""

GRACE_SECONDS = 60.0
"""A reward waits so much longer than its `reward_by`, at most: there may be no default to come."""

MOST, MOST_NUMBERS = 10_000, 2**21
"""Settlements that are kept, and columns of their rows. Beyond, the oldest are learned, and a head
does not start anew."""

AT_ONCE = 64
"""Waiting rewards that one event releases: it holds up the event loop for some ten milliseconds."""

Batch = tuple[str, list[Outcome]]
"""A decision, and what is learned of it."""

Key = tuple[str, str]
"""Decision and arm of a settlement."""


class Settlement(Protocol):
    """An event that settles a decision.

    at          unix seconds
    reward_by   when the default reward of the decision is due; 0: none is waited for
    defaulted   it came
    corrects    the event changes an earlier settlement
    """

    @property
    def at(self) -> float: ...
    @property
    def decision(self) -> str: ...
    @property
    def reward_by(self) -> float: ...
    @property
    def defaulted(self) -> bool: ...
    @property
    def corrects(self) -> bool: ...


class Kept(NamedTuple):
    """A settlement. due: `reward_by` of its decision, unix seconds."""

    due: float
    number: int
    defaulted: bool
    outcome: Outcome


class DecisionOrder:
    """The order in which one head learns.

    late     share of the latest settlements that came by default
    count    of these settlements, up to WINDOW
    past     the defaults of decisions up to this `reward_by` have come
    waits    rewards wait for the defaults of their time
    early    settlements that are left in which the head may start anew
    layout   of the rows of settlements
    """

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self.late, self.past, self.count = 0.0, 0.0, 0
        self.waits, self.early, self._number = False, EARLY, 0
        self._first_due = 0.0  # 0: no decision with a default yet
        self._kept: dict[Key, Kept] = {}
        self._queue: list[tuple[float, int, Key]] = []

    @property
    def waiting(self) -> int:
        """Rewards that are not learned yet."""
        return len(self._kept) if self.waits else 0

    @property
    def _is_full(self) -> bool:
        return len(self._kept) > min(MOST, MOST_NUMBERS // max(self._layout.width, 1))

    def take(self, event: Settlement, found: list[Outcome]) -> tuple[bool, list[Batch]]:
        """Take in what an event teaches. Return whether the head starts anew before it learns, and
        what it learns now."""
        defaulted, due = event.defaulted, event.reward_by
        self.past = max(self.past, due if defaulted else 0.0, event.at - GRACE_SECONDS)
        if event.corrects:
            found = [one for one in found if not self._corrects(event.decision, one)]
            return False, [*self._released(), (event.decision, found)]
        if not found:
            return False, self._released()
        if self.early:
            self._count(defaulted)
            self._keep(event.decision, due, found, defaulted=defaulted)
            if self.late >= LATE and self.count >= LEAST_COUNT:
                self.waits, self.early = True, 0
                return True, self._released()
            self._pass(due)
            return False, [(event.decision, found)]
        if self.waits and not defaulted and due > self.past:
            self._keep(event.decision, due, found)
            return False, self._released()
        released = self._released()
        self._count(defaulted)
        return False, [*released, (event.decision, found)]

    def _count(self, defaulted: bool) -> None:
        self.count = min(self.count + 1, WINDOW)
        self.late += (defaulted - self.late) / self.count
        if not self.early:
            self.waits = self.late >= (PROMPT if self.waits else LATE)

    def _keep(
        self, decision: str, due: float, found: list[Outcome], *, defaulted: bool = False
    ) -> None:
        for one in found:
            self._number += 1
            key = decision, one.arm
            self._kept[key] = Kept(due, self._number, defaulted, one)
            heappush(self._queue, (due, self._number, key))

    def _pass(self, due: float) -> None:
        """Count settlements after the first `reward_by`, when defaults would have shown, and those
        that no default could come before."""
        if due:
            self._first_due = min(self._first_due or due, due)
        if not due or self.past >= self._first_due:
            self.early -= 1
        if self._is_full:
            self.early = 0
        if not self.early:
            self._kept, self._queue = {}, []

    def _released(self) -> list[Batch]:
        """Release what is in order now."""
        released = list[tuple[str, Outcome]]()
        while self._queue and len(released) < AT_ONCE:
            due, number, key = self._queue[0]
            kept = self._kept.get(key)
            if kept is not None and kept.number == number:
                if self.early or (self.waits and due > self.past and not self._is_full):
                    break
                del self._kept[key]
                released.append((key[0], kept.outcome))
                if not kept.defaulted:
                    self._count(defaulted=False)
            heappop(self._queue)
        return [
            (decision, [outcome for _, outcome in batch])
            for decision, batch in groupby(released, key=itemgetter(0))
        ]

    def _corrects(self, decision: str, one: Outcome) -> bool:
        """Correct a settlement that is kept; return whether the head does not hold it."""
        key = decision, one.arm
        kept = self._kept.get(key)
        if one.was is None and self.early:
            self._keep(decision, self.past, [one])
        if one.was is None or kept is None:
            return False
        if one.withdrawn:
            del self._kept[key]
        else:
            moved = structs.replace(kept.outcome, reward=one.reward, weight=one.weight)
            self._kept[key] = kept._replace(outcome=moved)
        return not self.early

    def forget(self, decisions: Collection[str]) -> None:
        """Drop what is kept of erased decisions."""
        gone = set(decisions)
        for key in [key for key in self._kept if key[0] in gone]:
            del self._kept[key]

    # -- snapshots -----------------------------------------------------------------------------

    def arrays(self) -> dict[str, Stored]:
        kept = self._kept.values()
        return {
            "state": np.array(
                [self.late, self.count, self.past, self.waits, self.early, self._first_due]
            ),
            "keys": pack_names(text for key in self._kept for text in key),
            "numbers": np.array(
                [(one.due, one.outcome.reward, one.outcome.weight) for one in kept]
            ).reshape(-1, 3),
            "flags": np.array(
                [(one.outcome.inline, one.defaulted, one.outcome.imported) for one in kept],
                dtype=np.uint8,
            ).reshape(-1, 3),
            **PackedRows(self._layout, [one.outcome.row for one in kept]).arrays(),
        }

    def restore(self, arrays: Mapping[str, Stored]) -> None:
        self.late, count, self.past, waits, early, self._first_due = arrays["state"].tolist()
        self.count, self.waits, self.early = int(count), bool(waits), int(early)
        self._kept = {}
        rows = PackedRows(self._layout)
        rows.restore(arrays, len(arrays["numbers"]))
        for key, (due, reward, weight), (inline, defaulted, imported), row in zip(
            _pairs(unpack_names(arrays["keys"])),
            arrays["numbers"].tolist(),
            arrays["flags"].astype(bool).tolist(),
            rows,
            strict=True,
        ):
            number = len(self._kept)
            outcome = Outcome(key[1], reward, row, inline, weight, imported=imported)
            self._kept[key] = Kept(due, number, defaulted, outcome)
        self._number = len(self._kept)
        self._queue = [(kept.due, kept.number, key) for key, kept in self._kept.items()]
        heapify(self._queue)


def _pairs(names: list[str]) -> Iterator[Key]:
    each = iter(names)
    return zip(each, each, strict=True)
