"""A replay at a rate: visits begin on a schedule, whether or not earlier ones have an answer.

So the service learns late from a late report, as on a site: `rate` times the delay visits later. A
slow answer does not delay the schedule, until MOST_IN_FLIGHT decisions of a policy wait for one;
then the rate falls, and the report says so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from forage_client import ClientError

from simulator_client.errors import Unsettled
from simulator_client.health import HealthLog
from simulator_client.journal import Lines, Record, records
from simulator_client.player import Player
from simulator_client.progress import Tally, count
from simulator_client.reporting import ALL, CLICKS_ONLY, MISSES_LATE, owed

MOST_IN_FLIGHT: Final = 64
POLL_S: Final = 0.25
Kept = asyncio.Queue[asyncio.Task[Record] | None]


@dataclass(frozen=True, slots=True)
class PacedChain:
    """One policy's visits, written in order, each after its last report."""

    player: Player
    rate: float  # visits a second
    folder: Path
    journal: Lines
    tally: Tally
    health: HealthLog | None  # None: nobody asks
    patience_s: float
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def play(self) -> None:
        """Make all visits, and wait until the service has learned from each."""
        begun: Kept = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(begun))
                await self._begin(group, begun)
        except* ClientError as faults:
            raise faults.exceptions[0] from None
        await self._settle()

    async def _begin(self, group: asyncio.TaskGroup, begun: Kept) -> None:
        clock, free = asyncio.get_running_loop().time, asyncio.Semaphore(MOST_IN_FLIGHT)
        start = clock()
        for number in range(self.player.run.visits):
            await self.sleep(max(0.0, start + number / self.rate - clock()))
            await free.acquire()
            visit = self._visit(number, clock() - start, free)
            begun.put_nowait(group.create_task(visit))
        begun.put_nowait(None)

    async def _visit(self, number: int, begun_s: float, free: asyncio.Semaphore) -> Record:
        try:
            pending = await self.player.select(number)
        finally:
            free.release()
        run, outcome = self.player.run, self.player.outcome(pending)
        tell = bool(outcome.clicks) or run.reporting == ALL
        if not tell and run.reporting == MISSES_LATE:
            await self.sleep(run.wait_seconds or 0.0)
            tell = True
        record = await self.player.finish(pending, outcome, tell=tell)
        return replace(record, begun_s=round(begun_s, 4))

    async def _keep(self, begun: Kept) -> None:
        while task := await begun.get():
            record = await task
            self.journal.add(asdict(record))
            count(self.tally, record)
            if self.health:
                await self.health.look(self.tally.done)

    async def _settle(self) -> None:
        """Wait until every replica has counted the rewards of all visits.

        Raises Unsettled where that takes longer than the wait window and then `patience_s`.
        """
        self.tally.note = "waits for the last rewards"
        run, client = self.player.run, self.player.client
        clock = asyncio.get_running_loop().time
        deadline = clock() + (run.wait_seconds or 0.0) + self.patience_s
        visits = list(records(self.folder, self.player.policy))
        told, slots = owed(run, visits), max(len(visit.shown) for visit in visits)
        for replica in range(len(client.urls)):
            while True:
                status = await client.policy(run.experiment, self.player.policy, at=replica)
                due = told
                if run.reporting == CLICKS_ONLY:
                    # Decisions whose answers were lost: nobody saw them, the default holds.
                    due += slots * max(0, status["decisions"] - len(visits))
                if status["rewards"] >= due:
                    break
                if clock() >= deadline:
                    raise Unsettled(
                        f"{self.player.policy}: {status['rewards']:,} of {due:,} rewards are "
                        f"learned {self.patience_s:g} s after the last wait window; default "
                        "rewards do not keep up with this --rate, or the service's log is gone"
                    )
                await self.sleep(POLL_S)
        self.tally.note = ""
