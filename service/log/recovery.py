"""Recovery: how far a start has folded the log, and snapshots on the way. What a service observes
of its log while it folds."""

import logging
from dataclasses import dataclass
from typing import Final

from service.clock import Clock
from service.log.replica import Replica, Watcher
from service.log.upkeep import Snapshots
from service.state.events import Learned
from service.state.fold import State
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

SNAPSHOT_SECONDS: Final = 10.0
"""Longest fold, in seconds, between two snapshots of a recovery: a process that is killed again and
again while it starts loses no more of its work."""


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """Position of an experiment that is being recovered, of the last one that its log had."""

    experiment: str
    position: int
    of: int


class Recovery:
    """Watches the recovery of each experiment.

    progress   None: no recovery has folded a page yet, or all have ended
    """

    def __init__(self, snapshots: Snapshots, clock: Clock) -> None:
        self._snapshots, self._clock = snapshots, clock
        self._saved_at = 0.0
        self.progress: RecoveryProgress | None = None

    def begin(self, experiment: str, end: int) -> None:
        """Expect an experiment whose log ends at this position."""
        self.progress = RecoveryProgress(experiment, 0, end)
        self._saved_at = self._clock.monotonic()

    def end(self) -> None:
        self.progress = None

    async def page_folded(self, replica: Replica) -> None:
        """Note the position, and save a snapshot if one is due; the caller holds the lock."""
        position = replica.state.position
        if self.progress is not None and self.progress.experiment == replica.name:
            self.progress = RecoveryProgress(
                replica.name, position, max(position, self.progress.of)
            )
        late = self._clock.monotonic() >= self._saved_at + SNAPSHOT_SECONDS
        if late or self._snapshots.is_due(replica):
            await self._snapshots.save_folded(replica)
            self._saved_at = self._clock.monotonic()
            if self.progress is not None:
                logger.info(
                    "recovering experiment %s: %d of %d events",
                    replica.name,
                    position,
                    self.progress.of,
                )


class LogWatcher(Watcher):
    """Observes the log of a service: drift, damaged snapshots, and how far a recovery is."""

    def __init__(self, recovery: Recovery, telemetry: Telemetry) -> None:
        self._recovery, self._telemetry = recovery, telemetry

    def folding(self, state: State, event: Learned) -> None:
        self._telemetry.drift.learned(state, event)

    def snapshot_damaged(self) -> None:
        self._telemetry.damaged.inc()

    async def page_folded(self, replica: Replica) -> None:
        await self._recovery.page_folded(replica)
