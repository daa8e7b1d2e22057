"""The parts of an audit: a range of rows, and a range of the log with the decisions made in it."""

from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from service.analysis.rederive import (
    Discrepancy,
    DiscrepancyKind,
    check_choice,
    check_decision,
    check_settlement,
)
from service.errors import Damaged, LogGap, RunFailed, StoreError, StoreUnavailable
from service.log.reading import reading
from service.log.replay import (
    PAGE,
    ROWS_PER_PAGE,
    Pace,
    RowsByPosition,
    Step,
    origin_of,
    row_pages,
    steps,
)
from service.log.replica import ReadEvent, Replica
from service.log.stores import Store
from service.log.stores.base import KeptRow, Mark
from service.offline.audit_report import PartReport
from service.offline.exactly_once import SettledArms
from service.offline.processes import CountMore
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


async def audit_part(url: str, part: "RowsPart | LogPart", count: CountMore) -> Any:
    """Work on a part in a process of its own. url: of the store."""
    async with reading(url) as store:
        return await part.run(store, count)


# -- rows ------------------------------------------------------------------------------------------


@dataclass
class RowsFound:
    """What a range of rows says by itself.

    numbers, positions   of the rows that can be derived again
    oldest_closed        until when the first row accepts rewards
    """

    report: PartReport
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    oldest_closed: float = inf

    def take(self, row: KeptRow) -> None:
        """Check a row, and note the position it was made at."""
        found, name = self.report, row.id
        found.decisions += 1
        try:
            decision = decode_decision(row.payload)
        except StoreError as fault:
            found.add(Discrepancy("unreadable", name, str(fault)))
            return
        place = model_version(decision.model_version)
        if place is None or not is_whole(decision):
            found.add(Discrepancy("unreadable", name, "its parts do not fit together"))
            return
        if row.id != decision.id:
            found.add(Discrepancy("fields", name, "id", decision.id, row.id))
            return  # what follows from its id would differ, too
        if found.decisions == 1:
            self.oldest_closed = decision.accept_until
        if is_imported(decision):
            found.imported += 1
            return
        if reason := decision.facts.fallback:
            found.fallback[decision.policy, reason] += 1
        for finding in check_choice(decision):
            found.add(finding)
        self.numbers.append(row.number)
        self.positions.append(place.position)


@dataclass(frozen=True, slots=True)
class RowsPart:
    """The rows after one number, up to another one (None: to the end)."""

    experiment: str
    after: int
    upto: int | None

    async def run(self, store: Store, count: CountMore) -> RowsFound:
        found = RowsFound(PartReport(self.experiment))
        async for page in row_pages(store, self.experiment, self.after):
            for row in page:
                if self.upto is not None and row.number > self.upto:
                    return found
                found.take(row)
            count(len(page))
        return found


# -- the log ---------------------------------------------------------------------------------------


@dataclass
class LogFound:
    """What a range of the log says.

    missing            decisions whose rows are; findings name each once
    unlogged           decisions without a row, whose answers said so
    erased             positions that erasures name
    unexplained        positions of tombstones that no erasure after them names
    doubtful           position, time and findings of decisions that differ: their heads may have
                       folded events that the log has lost
    lost_to, lost_at   the last position known to have been lost, and when
    """

    report: PartReport
    settled: SettledArms
    missing: set[str] = field(default_factory=set)
    unlogged: set[str] = field(default_factory=set)
    erased: set[int] = field(default_factory=set)
    unexplained: set[int] = field(default_factory=set)
    doubtful: list[tuple[int, float, list[Discrepancy]]] = field(default_factory=list)
    lost_to: int = 0
    lost_at: float = 0.0


@dataclass(frozen=True, slots=True)
class LogPart:
    """The events after one position, up to another one (None: to the end), and rows.

    numbers, positions   of the rows, in the order of the positions, from `after` to `upto`
    oldest_closed        when the oldest row that is left could be rewarded last; none before it is
                         missed
    """

    experiment: str
    after: int
    upto: int | None
    numbers: "array[int]"
    positions: "array[int]"
    oldest_closed: float

    async def run(self, store: Store, count: CountMore) -> LogFound:
        try:
            return await _LogAudit(store, self, count).run()
        except RunFailed:  # one event at a time tells which one is at fault
            return await _LogAudit(store, self, count, in_runs=False).run()


class _LogAudit:
    """Audit of a part of the log. Events before it are folded alone, many at once."""

    def __init__(
        self, store: Store, part: LogPart, count: CountMore, *, in_runs: bool = True
    ) -> None:
        self._store, self._part, self._name = store, part, part.experiment
        self._count, self._in_runs = count, in_runs
        self._found = LogFound(PartReport(self._name), SettledArms())
        # None: the log broke, or has yet to come to its origin
        self._replica: Replica | None = self._fold_of(State(self._name))
        self._broken, self._begins = False, 0
        self._rows: Mapping[str, bytes] = {}
        self._marks: Mapping[str, Mark] = {}

    def _fold_of(self, state: State) -> Replica:
        replica = Replica(self._store, state)
        replica.in_runs = self._in_runs
        return replica

    async def run(self) -> LogFound:
        part, upto = self._part, inf if self._part.upto is None else self._part.upto
        origin = await self._find_origin()
        rows = RowsByPosition(self._store, self._name, part.numbers, part.positions)
        await self._derive(rows, 0)
        async for page in self._pages(origin):
            for step in page:
                own = part.after < step.position <= upto
                await self._take(step, origin, own=own)
                if step.position >= part.after and not isinstance(step.fault, LogGap):
                    await self._derive(rows, step.position)
                    if step.position >= upto:
                        return self._found
        await self._derive(rows, None)
        return self._found

    async def _find_origin(self) -> State | None:
        snapshot = await origin_of(self._store, self._name)
        with suppress(Damaged):  # `Audit` says so
            return None if snapshot is None else State.restore(snapshot)
        return None

    async def _pages(self, origin: State | None) -> AsyncIterator[list[Step]]:
        """Yield the steps of the log from the part on, with the rows and marks that its events name
        at hand. The steps before it are folded here."""
        before, own, size = list[Step](), list[Step](), 0
        async for step in steps(self._store, self._name, origin):
            if step.position < self._part.after:
                before.append(step)
                if len(before) == PAGE:
                    await self._pass(before, origin)
                    before = []
                continue
            if before:
                await self._pass(before, origin)
                before = []
            own.append(step)
            size += max(1, len(_settlements(step)))
            if size >= ROWS_PER_PAGE:
                await self._look_up(own)
                yield own
                own, size = [], 0
        await self._pass(before, origin)
        await self._look_up(own)
        yield own

    async def _look_up(self, page: Sequence[Step]) -> None:
        """Read the rows and the marks that the events of a page name."""
        settlements = [one for step in page for one in _settlements(step)]
        ids = list(dict.fromkeys(one.decision for one in settlements))
        self._rows = await self._store.get(self._name, "decisions", ids) if ids else {}
        marks = [arm_mark(one.decision, arm.arm) for one in settlements for arm in one.settled]
        self._marks = await self._store.marks(self._name, list(dict.fromkeys(marks)))

    # -- rows ----------------------------------------------------------------------------------

    async def _derive(self, rows: RowsByPosition, position: int | None) -> None:
        """Derive the decisions made up to a position, the state's own; None: all that are left."""
        async for _, made_at, payload in rows.up_to(inf if position is None else position):
            decision = decode_decision(payload)
            self._count(1)
            findings: list[Discrepancy] = []
            if made_at < self._begins:
                self._found.report.earlier += 1
            elif made_at != position or made_at == 0:
                what = f"was made at position {made_at}, which the log does not have"
                findings = [Discrepancy("fields", decision.id, what)]
            elif self._replica is None:
                self._found.report.underived += 1
            else:
                findings = _differences(self._replica.state, decision)
            if findings:  # its head may have folded events that the log has lost
                self._found.doubtful.append((made_at, decision.at, findings))

    # -- events --------------------------------------------------------------------------------

    async def _pass(self, page: Sequence[Step], origin: State | None) -> None:
        """Fold steps before the part, in runs."""
        run = list[ReadEvent]()
        for step in page:
            whole = step.event is not None and step.origin is None and step.fault is None
            if whole and step.event is not None and self._replica is not None and not step.waits:
                self._found.settled.pass_over(step.event)
                run.append(ReadEvent(step.position, step.event, b""))
                continue
            await self._fold_run(run)
            run = []
            await self._take(step, origin, own=False)
        await self._fold_run(run)

    async def _fold_run(self, run: Sequence[ReadEvent]) -> None:
        if self._replica is None or not run:
            return
        try:
            await self._replica.apply_all(run, Pace())
        except (StoreUnavailable, RunFailed):
            raise
        except Exception:  # a changed byte may raise anything; the part of that event says so
            self._replica, self._broken = None, True

    async def _take(self, step: Step, origin: State | None, *, own: bool) -> None:
        position, event, found = step.position, step.event, self._found
        if origin is not None and (step.waits or step.origin is not None):
            self._replica, self._begins = None, origin.position
        if step.origin is not None and not self._broken:
            self._replica = self._fold_of(step.origin)
            found.lost_to, found.lost_at = step.origin.lost_to, step.origin.lost_at
        if step.fault is not None:
            self._break(position, str(step.fault), own=own)
        gap = isinstance(step.fault, LogGap)
        if own and (event is not None or (step.fault is not None and not gap)):
            found.report.events += 1
        if event is not None:
            if own:
                self._check(position, event)
            else:
                found.settled.pass_over(event)
            if step.origin is None:
                await self._fold(position, event, own=own)

    def _add(self, kind: DiscrepancyKind, id: str, what: str) -> None:
        self._found.report.add(Discrepancy(kind, id, what))

    def _check(self, position: int, event: AnyEvent) -> None:
        found = self._found
        for fault in found.settled.take(position, event):
            found.report.add(fault)
        for settlement in settlements_of(event):
            self._check_settlement(position, settlement)
        if isinstance(event, LogTruncated):
            found.report.losses += 1
            found.lost_to = max(found.lost_to, event.last)
            found.lost_at = max(found.lost_at, event.at)
        elif has_erased(event):
            found.report.tombstones += 1
            found.unexplained.add(position)
        elif isinstance(event, Erased):
            found.unexplained -= set(event.positions)
            found.erased.update(event.positions)

    async def _fold(self, position: int, event: AnyEvent, *, own: bool) -> None:
        if self._replica is None:
            return
        try:
            await self._replica.apply(position, event)
        except StoreUnavailable:
            raise
        except Exception as fault:  # a changed byte may raise anything
            self._break(position, f"cannot be folded: {fault}", own=own)

    def _break(self, position: int, what: str, *, own: bool) -> None:
        self._replica, self._broken = None, True
        if own:
            self._add("log", f"position {position}", what)

    def _check_settlement(self, position: int, event: Learned) -> None:
        """Against the row of its decision and the marks that it was appended under."""
        payload, found = self._rows.get(event.decision), self._found
        if payload is None:
            if event.unlogged:
                found.unlogged.add(event.decision)
                return
            if event.at <= self._part.oldest_closed:
                return  # its row was trimmed with the first
            if event.decision not in found.missing:
                what = f"its row is missing; the event at position {position} settles it"
                self._add("missing", event.decision, what)
            found.missing.add(event.decision)
            return
        with suppress(StoreError):  # the row has its finding already
            if fault := check_settlement(position, event, decode_decision(payload)):
                found.report.add(fault)
        for outcome in event.settled:
            if fault := self._check_marks(position, event, outcome):
                found.report.add(fault)

    def _check_marks(self, position: int, event: Learned, outcome: Outcome) -> Discrepancy | None:
        """Compare what an arm has learned with its mark, where this event was the last that gave
        it. None, too, where the store has forgotten the mark."""
        mark = self._marks.get(arm_mark(event.decision, outcome.arm))
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


def _settlements(step: Step) -> Sequence[Learned]:
    return () if step.event is None else settlements_of(step.event)


def _differences(state: State, decision: Decision) -> list[Discrepancy]:
    try:
        return list(check_decision(state, decision))
    except Exception as fault:  # a changed byte may raise anything
        return [Discrepancy("unreadable", decision.id, f"cannot be derived again: {fault!r}")]
