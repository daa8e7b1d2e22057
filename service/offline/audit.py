"""Every logged decision derived again, in one pass over the log from its beginning.

The rows are listed before the log is folded, so the log holds every position that a listed row
names, even while a service writes. Three integers are kept for each row, which is read again when
the fold reaches its position.

Where events were trimmed or erased the fold goes on at the origin; decisions made before it are
checked by what their rows alone say.
"""

from array import array
from contextlib import suppress
from math import inf

from service.analysis.rederive import (
    Discrepancy,
    DiscrepancyKind,
    check_choice,
    check_decision,
    check_settlement,
)
from service.errors import Damaged, LogGap, StoreError, StoreUnavailable
from service.log.reading import Progress, Say, experiments_of, reading
from service.log.replay import RowsByPosition, Step, origin_of, row_pages, steps
from service.log.replica import Replica
from service.log.stores import Store
from service.log.stores.base import KeptRow
from service.offline.audit_report import AuditReport
from service.offline.exactly_once import SettledArms
from service.settle.marks import ArmValue, arm_mark, read_arm
from service.state.decisions import Decision, decode_decision, is_imported, is_whole, model_version
from service.state.events import (
    AnyEvent,
    Erased,
    Learned,
    LogTruncated,
    Outcome,
    has_erased,
    settlements_of,
)
from service.state.fold import State


async def audit_store(
    url: str, experiment: str | None = None, say: Say | None = None
) -> list[AuditReport]:
    """Audit one experiment, or all. Raises NotFound, or StoreError where the store cannot be read.
    A service may be at work on the store, which is only read."""
    async with reading(url) as store:
        names = await experiments_of(store, experiment)
        return [await Audit(store, name, say).run() for name in names]


async def find_damage(url: str) -> list[str]:
    """Check the files of a store; the faults found. Raises StoreError where it cannot be read."""
    async with reading(url) as store:
        return await store.find_damage()


class Audit:
    """Audit of one experiment."""

    def __init__(self, store: Store, experiment: str, say: Say | None = None) -> None:
        self._store, self._name, self._progress = store, experiment, Progress(say)
        self._found = AuditReport(experiment)
        self._numbers, self._positions = array("q"), array("q")  # of rows that can be derived
        # None: the log broke, or has yet to come to its origin
        self._replica: Replica | None = Replica(store, State(experiment))
        self._missing: set[str] = set()
        self._unlogged: set[str] = set()
        self._oldest_closed = inf
        self._unexplained: set[int] = set()  # tombstones that no erasure has named yet
        self._settled = SettledArms(store, experiment)
        self._broken, self._begins = False, 0
        self._derived = 0
        self._lost_to, self._lost_at = 0, 0.0
        self._doubtful: list[tuple[int, float, list[Discrepancy]]] = []  # position, time

    async def run(self) -> AuditReport:
        found, store, name = self._found, self._store, self._name
        # Counts before rows: a service beside us only adds to the rows that are listed.
        kept = await store.describe(name)
        counted, removed = sum(kept.counts.values()), kept.removed
        found.trimmed, found.erased = removed.trimmed, removed.erased
        origin = await self._find_origin()
        async for page in row_pages(store, name):
            for row in page:
                self._take_row(row)
        rows = RowsByPosition(store, name, self._numbers, self._positions)
        await self._derive(rows, 0)
        async for step in steps(store, name, origin):
            await self._take(step, origin)
            if not isinstance(step.fault, LogGap):
                await self._derive(rows, step.position)
        await self._derive(rows, None)
        self._judge_doubtful()
        for position in sorted(self._unexplained):
            self._add("log", f"position {position}", "a tombstone that no erasure tells of")
        async for fault in self._settled.twice():
            found.add(fault)
        async for fault in self._settled.misplaced():
            found.add(fault)
        found.unlogged = len(self._unlogged)
        known = found.decisions + len(self._missing) + found.trimmed + found.erased
        if (lost := counted - known) > 0:
            what = f"{lost} more rows were kept once than are there now"
            found.add(Discrepancy("missing", "?", what), lost)
        return found

    def _add(self, kind: DiscrepancyKind, id: str, what: str) -> None:
        self._found.add(Discrepancy(kind, id, what))

    async def _find_origin(self) -> State | None:
        snapshot = await origin_of(self._store, self._name)
        if snapshot is None:
            return None
        try:
            return State.restore(snapshot)
        except Damaged as fault:
            what = f"the origin cannot be read: {fault}"
            self._add("log", f"position {snapshot.position}", what)
            return None

    # -- rows ----------------------------------------------------------------------------------

    def _take_row(self, row: KeptRow) -> None:
        """Check a row by itself, and note the position it was made at."""
        found, name = self._found, row.id
        found.decisions += 1
        self._progress.tell(f"{self._name}: rows read {found.decisions:,}")
        try:
            decision = decode_decision(row.payload)
        except StoreError as fault:
            self._add("unreadable", name, str(fault))
            return
        place = model_version(decision.model_version)
        if place is None or not is_whole(decision):
            self._add("unreadable", name, "its parts do not fit together")
            return
        if row.id != decision.id:
            found.add(Discrepancy("fields", name, "id", decision.id, row.id))
            return  # what follows from its id would differ, too
        if found.decisions == 1:
            self._oldest_closed = decision.accept_until
        if is_imported(decision):
            found.imported += 1
            return
        if reason := decision.facts.fallback:
            found.fallback[decision.policy, reason] += 1
        for finding in check_choice(decision):
            found.add(finding)
        self._numbers.append(row.number)
        self._positions.append(place.position)

    async def _derive(self, rows: RowsByPosition, position: int | None) -> None:
        """Derive the decisions made up to a position, the state's own; None: all that are left."""
        async for _, made_at, payload in rows.up_to(inf if position is None else position):
            decision = decode_decision(payload)
            self._derived += 1
            self._progress.tell(f"{self._name}: decisions derived again: {self._derived:,}")
            findings: list[Discrepancy] = []
            if made_at < self._begins:
                self._found.earlier += 1
            elif made_at != position or made_at == 0:
                what = f"was made at position {made_at}, which the log does not have"
                findings = [Discrepancy("fields", decision.id, what)]
            elif self._replica is None:
                self._found.underived += 1
            else:
                findings = _differences(self._replica.state, decision)
            if findings:  # its head may have folded events that the log has lost
                self._doubtful.append((made_at, decision.at, findings))

    def _judge_doubtful(self) -> None:
        for made_at, at, findings in self._doubtful:
            if made_at <= self._lost_to and at <= self._lost_at:
                self._found.orphaned += 1
            else:
                for finding in findings:
                    self._found.add(finding)

    # -- events --------------------------------------------------------------------------------

    async def _take(self, step: Step, origin: State | None) -> None:
        position, event = step.position, step.event
        if origin is not None and (step.waits or step.origin is not None):
            self._replica, self._begins = None, origin.position
        if step.origin is not None and not self._broken:
            self._replica = Replica(self._store, step.origin)
            self._lost_to, self._lost_at = step.origin.lost_to, step.origin.lost_at
        if step.fault is not None:
            self._break(position, str(step.fault))
        if event is not None or (step.fault is not None and not isinstance(step.fault, LogGap)):
            self._found.events += 1
        if event is not None:
            await self._check(position, event)
            if step.origin is None:
                await self._fold(position, event)

    async def _check(self, position: int, event: AnyEvent) -> None:
        for fault in self._settled.take(position, event):
            self._found.add(fault)
        for settlement in settlements_of(event):
            await self._check_settlement(position, settlement)
        if isinstance(event, LogTruncated):
            self._found.losses += 1
            self._lost_to = max(self._lost_to, event.last)
            self._lost_at = max(self._lost_at, event.at)
        elif has_erased(event):
            self._found.tombstones += 1
            self._unexplained.add(position)
        elif isinstance(event, Erased):
            self._unexplained -= set(event.positions)

    async def _fold(self, position: int, event: AnyEvent) -> None:
        if self._replica is None:
            return
        try:
            await self._replica.apply(position, event)
        except StoreUnavailable:
            raise
        except Exception as fault:  # a changed byte may raise anything
            self._break(position, f"cannot be folded: {fault}")

    def _break(self, position: int, what: str) -> None:
        self._replica, self._broken = None, True
        self._add("log", f"position {position}", what)

    async def _check_settlement(self, position: int, event: Learned) -> None:
        """Against the row of its decision and the marks that it was appended under."""
        payload = await self._store.decision(self._name, event.decision)
        if payload is None:
            if event.unlogged:
                self._unlogged.add(event.decision)
                return
            if self._found.trimmed and event.at <= self._oldest_closed:
                return  # its row was trimmed with the first
            if event.decision not in self._missing:
                what = f"its row is missing; the event at position {position} settles it"
                self._add("missing", event.decision, what)
            self._missing.add(event.decision)
            return
        with suppress(StoreError):  # the row has its finding already
            if fault := check_settlement(position, event, decode_decision(payload)):
                self._found.add(fault)
        for outcome in event.settled:
            if fault := await self._check_marks(position, event, outcome):
                self._found.add(fault)

    async def _check_marks(
        self, position: int, event: Learned, outcome: Outcome
    ) -> Discrepancy | None:
        """Compare what an arm has learned with its mark, where this event was the last that gave
        it. None, too, where the store has forgotten the mark."""
        identity = arm_mark(event.decision, outcome.arm)
        mark = (await self._store.marks(self._name, [identity])).get(identity)
        if mark is None or mark.position != position:
            return None
        weight = 1.0 if outcome.learned is None else outcome.weight
        own = ArmValue(outcome.learned, event.defaulted, outcome.since or 0, weight)
        derived: object = mark.value
        with suppress(ValueError, TypeError):  # a mark can be changed, too
            derived = read_arm(mark)
        if own == derived:
            return None
        what = f"reward of {outcome.arm}, by default, since, weight; at position {position}"
        return Discrepancy("fields", event.decision, what, own, derived)


def _differences(state: State, decision: Decision) -> list[Discrepancy]:
    try:
        return list(check_decision(state, decision))
    except Exception as fault:  # a changed byte may raise anything
        return [Discrepancy("unreadable", decision.id, f"cannot be derived again: {fault!r}")]
