"""Every logged decision derived again, in one pass over the log from its beginning.

The rows are listed first and the log is folded after, so the log holds every position that a listed
row names, also beside a service that goes on writing. Of a row three integers are held; it is read
again when the fold comes to the position that it was made at.

Where events were trimmed or erased the fold goes on at the origin; of decisions made before it what
they say by themselves is checked.
"""

from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from service.errors import (
    ConfigurationError,
    Damaged,
    LogGap,
    NotFound,
    StoreError,
    StoreUnavailable,
)
from service.log.follower import Follower, Live
from service.log.replay import Rows, Step, origin_of, row_pages, steps
from service.log.stores import Store, open_store
from service.log.stores.base import KeptRow, Mark
from service.observability.telemetry import Telemetry
from service.serving.chain import link_mark, read_link
from service.serving.findings import Finding, Findings
from service.serving.rederive import (
    check_choice,
    check_decision,
    check_event,
    is_imported,
    is_whole,
    made,
)
from service.state.events import (
    AnyEvent,
    Decision,
    Erased,
    Expired,
    Learned,
    Outcome,
    Tombstone,
    decode_decision,
    outcomes,
)
from service.state.fold import State

SAY_SECONDS = 0.2

Say = Callable[[str], None]
"""Takes one line of progress."""


async def audit_store(
    url: str, experiment: str | None = None, say: Say | None = None
) -> list[Findings]:
    """Audit one experiment, or all. Raises NotFound, or StoreError where the store cannot be read.

    The store is read and never written: a service may be at work on it.
    """
    if url.startswith("memory"):
        raise ConfigurationError("FORAGE_STORE: no other process can read a memory:// store")
    store = open_store(url, readonly=True)
    await store.open()
    try:
        names = await store.experiments()
        if experiment is not None and experiment not in names:
            raise NotFound(f"the store has no experiment {experiment}", path="experiment")
        return [await Audit(store, name, say).run() for name in names if experiment in (None, name)]
    finally:
        await store.close()


class Audit:
    """Of one experiment."""

    def __init__(self, store: Store, experiment: str, say: Say | None = None) -> None:
        self._store, self._name, self._say = store, experiment, say
        self._found = Findings(experiment)
        self._rows = _RowsByPosition(store, experiment)
        self._follower = Follower(store, Telemetry())
        # None: the log broke, or has yet to come to its origin
        self._live: Live | None = Live(State(experiment))
        self._gone: set[str] = set()
        self._oldest_closed = inf
        self._stones: set[int] = set()
        self._broken, self._begins = False, 0
        self._derived, self._said = 0, -inf

    async def run(self) -> Findings:
        # Counts before rows: a service at work beside us only adds to the rows that are listed.
        counted = sum((await self._store.decision_counts(self._name)).values())
        removed = await self._store.removed(self._name)
        self._found.trimmed, self._found.erased = removed.trimmed, removed.erased
        origin = await self._find_origin()
        async for page in row_pages(self._store, self._name):
            for row in page:
                self._take_row(row)
        self._rows.sort()
        await self._derive(0)
        async for step in steps(self._store, self._name, origin):
            await self._take(step, origin)
        await self._derive(None)
        for position in sorted(self._stones):
            what = "a tombstone that no erasure tells of"
            self._found.add(Finding("log", f"position {position}", what))
        found = self._found
        known = found.decisions + len(self._gone) + found.trimmed + found.erased
        if (lost := counted - known) > 0:
            what = f"{lost} more rows were kept once than are there now"
            self._found.add(Finding("missing", "?", what), lost)
        return self._found

    async def _find_origin(self) -> State | None:
        snapshot = await origin_of(self._store, self._name)
        if snapshot is None:
            return None
        try:
            return State.restore(snapshot)
        except Damaged as fault:
            what = f"the origin cannot be read: {fault}"
            self._found.add(Finding("log", f"position {snapshot.position}", what))
            return None

    def _tell(self, doing: str, done: int) -> None:
        if self._say and monotonic() > self._said + SAY_SECONDS:
            self._say(f"{self._name}: {doing} {done:,}")
            self._said = monotonic()

    # -- rows ----------------------------------------------------------------------------------

    def _take_row(self, row: KeptRow) -> None:
        """What a row says by itself, and where it was made."""
        found, name = self._found, row.id or f"row {row.number}"
        found.decisions += 1
        self._tell("rows read", found.decisions)
        try:
            decision = decode_decision(row.payload)
        except StoreError as fault:
            found.add(Finding("unreadable", name, str(fault)))
            return
        place = made(decision)
        if place is None or not is_whole(decision):
            found.add(Finding("unreadable", name, "its parts do not fit together"))
            return
        if row.id and row.id != decision.id:
            found.add(Finding("fields", name, "id", decision.id, row.id))
        if found.decisions == 1:
            self._oldest_closed = decision.accept_until
        if is_imported(decision):
            found.imported += 1
            return
        for finding in check_choice(decision):
            found.add(finding)
        self._rows.add(row.number, place.position)

    async def _derive(self, position: int | None) -> None:
        """Derive again what was made at a position, the state's own; None: past the log's end."""
        async for made_at, payload in self._rows.made_up_to(position):
            decision = decode_decision(payload)
            self._derived += 1
            self._tell("decisions derived again:", self._derived)
            if made_at < self._begins:
                self._found.earlier += 1
            elif made_at != position or made_at == 0:
                what = f"was made at position {made_at}, which the log does not have"
                self._found.add(Finding("fields", decision.id, what))
            elif self._live is None:
                self._found.underived += 1
            else:
                for finding in _differences(self._live.state, decision):
                    self._found.add(finding)

    # -- events --------------------------------------------------------------------------------

    async def _take(self, step: Step, origin: State | None) -> None:
        position, event = step.position, step.event
        if origin is not None and (step.waits or step.origin is not None):
            self._live, self._begins = None, origin.position
        if step.origin is not None and not self._broken:
            self._live = Live(step.origin)
        if step.fault is not None:
            self._break(position, str(step.fault))
        if isinstance(step.fault, LogGap):
            return
        self._found.events += event is not None or step.fault is not None
        if isinstance(event, Learned):
            await self._check_event(position, event)
        elif isinstance(event, Tombstone):
            self._found.tombstones += 1
            self._stones.add(position)
        elif isinstance(event, Erased):
            self._stones -= set(event.positions)
        if event is not None and step.origin is None:
            await self._fold(position, event)
        await self._derive(position)

    async def _fold(self, position: int, event: AnyEvent) -> None:
        if self._live is None:
            return
        try:
            await self._follower.fold(self._live, position, event)
        except StoreUnavailable:
            raise
        except Exception as fault:  # whatever a changed byte has made of it
            self._break(position, f"cannot be folded: {fault}")

    def _break(self, position: int, what: str) -> None:
        self._live, self._broken = None, True
        self._found.add(Finding("log", f"position {position}", what))

    async def _check_event(self, position: int, event: Learned) -> None:
        """Against the row of its decision, and against the marks that it was appended under."""
        payload = await self._store.decision(self._name, event.decision)
        if payload is None:
            if self._found.trimmed and event.at <= self._oldest_closed:
                return  # with the first rows, which were trimmed
            if event.decision not in self._gone:
                what = f"its row is missing; the event at position {position} settles it"
                self._found.add(Finding("missing", event.decision, what))
            self._gone.add(event.decision)
            return
        with suppress(StoreError):  # said of the row already
            for finding in check_event(position, event, decode_decision(payload)):
                self._found.add(finding)
        for outcome in outcomes(event):
            if fault := await self._check_marks(position, event, outcome):
                self._found.add(fault)

    async def _check_marks(self, position: int, event: Learned, outcome: Outcome) -> Finding | None:
        """What was learned, and before that, against the chain of marks of a settled arm. None,
        too, where the store has forgotten them."""
        arm, chain = outcome.settled.arm, list[Mark]()
        while not chain or chain[-1].position < position:
            identity = link_mark(event.decision, len(chain), arm)
            found = await self._store.marks(self._name, [identity])
            if identity not in found:
                return None
            chain.append(found[identity])
        if chain[-1].position > position:
            return None
        settled = outcome.settled
        own: list[Any] = [outcome.learned, isinstance(event, Expired), settled.weight]
        before: list[Any] = [outcome.was, outcome.since]
        what = f"reward of {arm}, by default, weight, reward before, since; at position {position}"
        derived: list[Any] = []
        with suppress(ValueError, LookupError, TypeError):  # a mark can be changed, too
            known = read_link(chain[-1])
            derived += [known.reward, known.default, known.weight]
            derived += _before(chain) if chain[1:] else before
        if [*own, *before] == derived:
            return None
        return Finding("fields", event.decision, what, [*own, *before], derived)


def _before(chain: list[Mark]) -> list[Any]:
    """What had been learned of an arm before the last of its links, and since when: since the first
    word after it was closed last."""
    was, since = None, None
    for link in chain[:-1]:
        was = read_link(link).reward
        since = None if was is None else since or link.position
    return [was, since]


def _differences(state: State, decision: Decision) -> list[Finding]:
    try:
        return list(check_decision(state, decision))
    except Exception as fault:  # whatever a changed byte has made of it
        return [Finding("unreadable", decision.id, f"cannot be derived again: {fault!r}")]


class _RowsByPosition:
    """Decision rows in the order of the positions that they were made at. Their numbers are held,
    not the rows; they came nearly in that order, so that a page of them serves for many."""

    def __init__(self, store: Store, experiment: str) -> None:
        self._rows = Rows(store, experiment)
        self._numbers, self._positions = array("q"), array("q")
        self._order = np.empty(0, np.intp)
        self._next = 0

    def add(self, number: int, position: int) -> None:
        self._numbers.append(number)
        self._positions.append(position)

    def sort(self) -> None:
        self._order = np.argsort(self._positions, kind="stable")

    async def made_up_to(self, position: int | None) -> AsyncIterator[tuple[int, bytes]]:
        """Position and payload of the rows that were not given yet; None: of all of them."""
        while self._next < len(self._order):
            index = self._order[self._next]
            made_at = self._positions[index]
            if position is not None and made_at > position:
                return
            self._next += 1
            yield made_at, await self._rows.payload(self._numbers[index])
