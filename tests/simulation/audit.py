"""What has to hold after every step, and what has to hold once the faults are over."""

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest

from service.errors import Damaged
from service.log.log import Log
from service.state.artifacts import read_meta
from service.state.events import (
    AnyEvent,
    VersionStaged,
    decode_event,
    encode_event,
    settlements_of,
)
from service.state.fold import State, gates_due
from tests.simulation.disk import Disk
from tests.simulation.fences import Fences
from tests.simulation.ledger import Ledger
from tests.simulation.process import NAME, Process
from tests.unit.folding import bits, contents, replay, step

Records = list[tuple[AnyEvent, bytes | None]]


class Audit:
    """Folds the log by itself, event by event, and holds every process to it.

    records     the log as it was read
    state       the fold of the log so far
    _decoded    records up to the last calm, from their bytes again
    _replayed   the fold of these
    _restored   of each snapshot, by its payload: what it held, and these
    """

    def __init__(self, disk: Disk, ledger: Ledger) -> None:
        self._disk, self._ledger = disk, ledger
        self.records: Records = []
        self.state = State(NAME)
        self._fences = Fences()
        self._digests: dict[int, str] = {}
        self._decoded: Records = []
        self._replayed = State(NAME)
        self._restored: dict[bytes, State] = {}

    def check(self, processes: Iterable[Process]) -> None:
        self._read_up()
        for process in processes:
            if process.services and (live := process.services.log.replicas.by_name.get(NAME)):
                assert not live.losses, "a process says that the log has lost events"
                self._check_live(live.state)
        self._check_snapshots()
        self._check_taken_out()

    def _read_up(self) -> None:
        """Fold what the log took since the last step."""
        for position, event in enumerate(
            self._disk.events(NAME, len(self.records)), len(self.records) + 1
        ):
            staged = isinstance(event, VersionStaged)
            artifact = self._disk.kept_blob(NAME, event.artifact) if staged else None
            self.records.append((event, artifact))
            self._ledger.read(position, event)
            self._fences.read(event, read_meta(artifact) if artifact else None)
            step(self.state, self.records)
            self._fences.check(self.state)
            self._digests[position] = digest(self.state)

    def _check_taken_out(self) -> None:
        """Nothing is left of what was erased but tombstones; nothing went that was needed."""
        assert not self._disk.misdeeds, self._disk.misdeeds[0]
        erased = {key for key, visit in self._ledger.visits.items() if visit.erased}
        gone = erased - self._disk.trimmed
        for event in self._disk.present_events(NAME):
            settled = {one.decision for one in settlements_of(event)}
            assert settled.isdisjoint(gone), (
                f"events of {settled & gone}, which were erased, are still there"
            )

    def _check_live(self, state: State) -> None:
        """A process that has folded up to a position is, bit for bit, the fold up to there."""
        assert state.position <= len(self.records), "a process is ahead of the log"
        if state.position:
            expected = self._digests[state.position]
            assert digest(state) == expected, f"another fold of {state.position} events"

    def _check_snapshots(self) -> None:
        for snapshot in self._disk.kept_snapshots(NAME):
            if snapshot.payload in self._disk.damaged or snapshot.payload in self._restored:
                continue
            state = self._restored[snapshot.payload] = State.restore(snapshot)
            assert digest(state) == self._digests[snapshot.position], (
                f"the snapshot at {snapshot.position} holds another fold"
            )

    def caught_up(self, processes: Iterable[Process]) -> bool:
        """Whether everyone who serves has folded the log to its end, with nothing staged."""
        logs = [process.services.log for process in processes if process.services]
        states = [own.state for log in logs if (own := log.replicas.by_name.get(NAME))]
        written = self._disk.length(NAME)
        return all(state.position == written and not _waits(state) for state in states)

    def check_calm(self, processes: Iterable[Process], now: float) -> None:
        """Everyone has read the log, agrees with its bytes folded anew, and with callers."""
        rows = dict(self._disk.rows(NAME))
        self._ledger.check_kept(rows, self._disk.trimmed)
        closing = self._disk.closing(NAME)
        self._ledger.check_expired(now, {k: row for k, row in rows.items() if k not in closing})
        for event, artifact in self.records[len(self._decoded) :]:
            self._decoded.append((decode_event(encode_event(event)), artifact))
        whole = bits(replay(self._decoded, self._replayed))
        for process in processes:
            assert process.services is not None, "a process cannot start"
            log = process.services.log
            self._check_healed(log)
            state = log.replicas.by_name[NAME].state
            assert bits(state) == whole, "live is not replay"
            self._check_totals(state)
        self._check_recovery(whole)

    def _check_healed(self, log: Log) -> None:
        assert not log.committer.degraded, "the log is back, and a process does not write"
        state = log.replicas.by_name[NAME].state
        assert state.position == len(self.records), f"{state.position} of {len(self.records)} read"
        assert not _waits(state), "a staged version never came to serve"

    def _check_totals(self, state: State) -> None:
        totals = self._ledger.totals()
        for policy, tally in state.reward_sums.items():
            counted = totals.get(policy)
            expected = (counted.count, counted.total) if counted else (0, 0.0)
            assert (tally.count, tally.total) == expected, f"{policy} does not count each once"

    def _check_recovery(self, whole: tuple[Any, ...]) -> None:
        """Snapshot and tail give the whole fold; a damaged snapshot is not taken for one."""
        for snapshot in self._disk.kept_snapshots(NAME):
            if snapshot.payload in self._disk.damaged:
                with pytest.raises(Damaged):
                    State.restore(snapshot)
            else:
                recovered = replay(self._decoded, self._restored[snapshot.payload])
                assert bits(recovered) == whole, "snapshot and tail are not replay"


def _waits(state: State) -> bool:
    """Whether a gate is to end."""
    return bool(gates_due(state, 0.0))


def digest(state: State) -> str:
    return hashlib.sha256(contents(state)).hexdigest()
