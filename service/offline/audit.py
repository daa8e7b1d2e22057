"""Every logged decision derived again, in one pass over the log from its beginning.

The rows are listed before the log is folded, so the log holds every position that a listed row
names, even while a service writes. Two integers are kept for each row, which is read again when the
fold reaches its position.

Several processes share the work by ranges (`audit_parts.py`): each folds the log up to its own
range at once, and checks and derives what lies in that. The report is the one of a single process,
in the same order.

Where events were trimmed or erased the fold goes on at the origin; decisions made before it are
checked by what their rows alone say.
"""

from array import array
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from service.analysis.rederive import Discrepancy
from service.errors import Damaged
from service.log.reading import Progress, Say, experiments_of, reading
from service.log.replay import origin_of
from service.log.stores import Store
from service.offline.audit_parts import LogFound, LogPart, RowsFound, RowsPart, audit_part
from service.offline.audit_report import AuditReport
from service.offline.exactly_once import SettledArms
from service.offline.processes import CountMore, sharing
from service.state.fold import State

AuditParts = Sequence[RowsPart] | Sequence[LogPart]
RunParts = Callable[[AuditParts, CountMore], Awaitable[list[Any]]]
"""Function that works on parts, and returns what they found in their order."""


async def audit_store(
    url: str, experiment: str | None = None, say: Say | None = None, parallel: int = 1
) -> list[AuditReport]:
    """Audit one experiment, or all. Raises NotFound, or StoreError where the store cannot be read.
    A service may be at work on the store, which is only read.

    parallel   processes that share the work
    """
    run: RunParts | None = None
    async with reading(url) as store, sharing(parallel) as processes:
        if processes is not None:

            async def run(parts: AuditParts, count: CountMore) -> list[Any]:
                return await processes.map(audit_part, [(url, part) for part in parts], count)

        names = await experiments_of(store, experiment)
        return [await Audit(store, name, say, parallel, run).run() for name in names]


async def find_damage(url: str) -> list[str]:
    """Check the files of a store; the faults found. Raises StoreError where it cannot be read."""
    async with reading(url) as store:
        return await store.find_damage()


class Audit:
    """Audit of one experiment.

    parts   that the work is cut into
    run     runs them; None: here, one after the other
    """

    def __init__(
        self,
        store: Store,
        experiment: str,
        say: Say | None = None,
        parts: int = 1,
        run: RunParts | None = None,
    ) -> None:
        self._store, self._name, self._progress = store, experiment, Progress(say)
        self._parts, self._run = parts, run or self._run_here
        self._found = AuditReport(experiment)
        self._missing = set[str]()
        self._counted = 0

    async def run(self) -> AuditReport:
        found, store, name = self._found, self._store, self._name
        # Counts before rows: a service beside us only adds to the rows that are listed.
        kept = await store.describe(name)
        counted, removed = sum(kept.counts.values()), kept.removed
        found.trimmed, found.erased = removed.trimmed, removed.erased
        await self._read_origin()
        rows = await self._take_rows(kept.row)
        log = await self._take_log(rows)
        self._judge_doubtful(log)
        for position in sorted(_unexplained(log)):
            what = "a tombstone that no erasure tells of"
            found.add(Discrepancy("log", f"position {position}", what))
        settled = SettledArms()
        for part in log:
            settled.extend(part.settled)
        async for fault in settled.twice(store, name):
            found.add(fault)
        async for fault in settled.misplaced(store, name):
            found.add(fault)
        found.unlogged = len(set().union(*(part.unlogged for part in log)))
        known = found.decisions + len(self._missing) + found.trimmed + found.erased
        if (lost := counted - known) > 0:
            what = f"{lost} more rows were kept once than are there now"
            found.add(Discrepancy("missing", "?", what), lost)
        return found

    async def _run_here(self, parts: AuditParts, count: CountMore) -> list[Any]:
        return [await part.run(self._store, count) for part in parts]

    def _count(self, doing: str, of: int) -> CountMore:
        """Return a function that shows progress of all parts together."""
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            self._progress.share(f"{self._name}: {doing}", done, max(of, 1))

        return count

    async def _read_origin(self) -> None:
        if (snapshot := await origin_of(self._store, self._name)) is None:
            return
        try:
            State.restore(snapshot)
        except Damaged as fault:
            what = f"the origin cannot be read: {fault}"
            self._found.add(Discrepancy("log", f"position {snapshot.position}", what))

    async def _take_rows(self, last: int) -> list[RowsFound]:
        """Check the rows by themselves, in parts of as many numbers."""
        first = await self._store.decisions(self._name, 0, 1)
        begin = first[0].number - 1 if first else 0
        cuts = [begin + (last - begin) * part // self._parts for part in range(self._parts)]
        ends = [*cuts[1:], None]  # others may come meanwhile
        parts = [RowsPart(self._name, *each) for each in zip(cuts, ends, strict=True)]
        found = await self._run(parts, self._count("rows read", last - begin))
        for part in found:
            self._found.take(part.report)
        return found

    async def _take_log(self, rows: Sequence[RowsFound]) -> list[LogFound]:
        """Check the events, and derive the decisions, in parts of as many decisions."""
        numbers = np.concatenate([np.asarray(part.numbers) for part in rows])
        positions = np.concatenate([np.asarray(part.positions) for part in rows])
        order = np.argsort(positions, kind="stable")
        numbers, positions = numbers[order], positions[order]
        places = [len(order) * part // self._parts for part in range(self._parts)]
        begins = [0, *(int(positions[place]) for place in places[1:] if place < len(order))]
        ends = [*begins[1:], None]
        own = zip(places, [*places[1:], len(order)], begins, ends, strict=False)
        closed = next((part.oldest_closed for part in rows if part.report.decisions), inf)
        parts = [
            LogPart(
                self._name,
                begin,
                end,
                array("q", numbers[first:last].tobytes()),
                array("q", positions[first:last].tobytes()),
                closed if self._found.trimmed else -inf,
            )
            for first, last, begin, end in own
        ]
        found = await self._run(parts, self._count("decisions derived again", len(order)))
        for part in found:
            again = part.missing & self._missing
            self._found.take(part.report, without=again)
            self._missing |= part.missing
        return found

    def _judge_doubtful(self, log: Sequence[LogFound]) -> None:
        lost_to = max(part.lost_to for part in log)
        lost_at = max(part.lost_at for part in log)
        for made_at, at, findings in (one for part in log for one in part.doubtful):
            if made_at <= lost_to and at <= lost_at:
                self._found.orphaned += 1
            else:
                for finding in findings:
                    self._found.add(finding)


def _unexplained(log: Sequence[LogFound]) -> set[int]:
    """Return the positions of tombstones that no later erasure names."""
    found = set[int]()
    for part in log:
        found = (found - part.erased) | part.unexplained
    return found
