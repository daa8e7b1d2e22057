"""Kills and faults under load, and what is left when they are over."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

import httpx

from service.errors import ForageError
from tests.chaos.judge import Cut, audit
from tests.chaos.ledger import Ledger
from tests.chaos.load import Load
from tests.chaos.processes import LOOK_S, READY_S, NotReady, Process, Replica
from tests.chaos.verdict import Standing, read_log, saved, settle_down

PROGRESS: Final = 200
"""Rewards that are acknowledged between two kills, at least: a service that never serves proves
nothing."""
PROGRESS_S: Final = 90.0
"""Above two starts, where a machine that has other work took 30 s for one under faults."""
FINISH_S: Final = 60.0
UNTIMELY: Final = 0.15
"""Chance of a kill at any moment of a start, instead of under load."""
TRAINED: Final = " trained on "
TRAINED_S: Final = 60.0
"""A trainer that has not said this for so long is killed all the same."""
STOPS_S: Final = (3.0, 15.0)
"""Pause between two stops."""
GRACE_S: Final = 30.0
"""From SIGTERM to the end: 10 s for requests under way, and each call of a store that is gone."""
FAILED_S: Final = 15.0
CANCEL_S: Final = 20.0
"""Until one that was cancelled is cancelled again: longer than what is undone then takes."""

Work = Callable[[], Coroutine[Any, Any, None]]
"""One episode of a fault, or of whatever else is to go on under load, with the pause before it."""


@dataclass
class Result:
    """What one campaign did and found. `violations` holds a line for each thing that is wrong.

    shim_because       why no power is lost; empty where it is
    stops              ends after a SIGTERM, with status 0 and in time
    losses             of the log's end, by what took it
    cut_off            requests that failed, as their worker was killed
    gone               acknowledged rewards and decisions that went with it, as the log tells
    recoveries         seconds from the end of a loss until all were ready again, without kills
    """

    name: str
    seconds: float = 0.0
    shim_because: str = ""
    kills: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    gone: int = 0
    cut_off: int = 0
    recoveries: list[float] = field(default_factory=list)
    stops: int = 0
    slowest_stop_seconds: float = 0.0
    server_faults: Counter[str] = field(default_factory=Counter)
    selects: int = 0
    rows: int = 0
    acknowledged: int = 0
    corrected: int = 0
    events: int = 0
    versions: int = 0
    lost: int = 0
    doubled: int = 0
    heads_equal: bool = False
    answers: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


class Campaign:
    """Replicas and a trainer over a store, under load.

    alone     held while the store is changed: one that is frozen is not restarted meanwhile
    may_kill  cleared while services recover without kills
    store     where the log is read from at the end, past any proxy
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        store: str,
        replicas: Sequence[Replica],
        trainer: Process,
        rng: Random,
    ) -> None:
        self.result = Result(name)
        self.replicas, self.rng, self._store, self._trainer = replicas, rng, store, trainer
        self._ledger = Ledger()
        self.cuts: list[Cut] = []
        self.alone, self.may_kill = asyncio.Lock(), asyncio.Event()
        self.may_kill.set()
        self.load = Load([replica.url for replica in replicas], self._ledger, rng)
        self.http = httpx.AsyncClient(timeout=10)

    async def run(
        self, seconds: float, *works: Work, enough: Callable[[], bool] = lambda: True
    ) -> Result:
        """Do each of `works` again and again, all at once, for so long; then let all come to rest,
        and judge.

        enough  it goes on for longer until this holds: a busy machine is slow
        works   may count in `result`, and add to its violations; cancelled at the end, wherever
                they are then, but for what they do while they hold `alone`
        """
        began, result = monotonic(), self.result
        async with self._kept():
            try:
                await self.all_ready()
                self.load.start()
                await self._under(works, monotonic() + seconds, enough)
                await self._judge()
            except (NotReady, ForageError) as fault:
                result.violations.append(str(fault))
        result.seconds = monotonic() - began
        return result

    async def _under(self, works: Sequence[Work], until: float, enough: Callable[[], bool]) -> None:
        tasks = [asyncio.create_task(self._again(work)) for work in works]
        try:
            while monotonic() < until or not enough():
                await asyncio.sleep(0.1)
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            left = set(tasks)
            async with self.alone:  # a store that was changed is brought back first
                while left:  # redis-py may swallow a cancellation, as asyncio.wait_for of 3.11 does
                    for task in left:
                        task.cancel()
                    _, left = await asyncio.wait(left, timeout=CANCEL_S)
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for fault in ends:  # one that could not be undone goes on
            if isinstance(fault, Exception):
                raise fault

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[None]:
        """All processes run, again and again, inside; none does after it."""
        everything: list[Process] = [*self.replicas, self._trainer]
        self._keepers = {each: asyncio.create_task(each.keep()) for each in everything}
        try:
            yield
        finally:
            for keeper in self._keepers.values():
                keeper.cancel()
            await asyncio.gather(*self._keepers.values(), return_exceptions=True)
            await self.load.close()
            await self.http.aclose()
            for each in everything:
                each.kill()

    @staticmethod
    async def _again(work: Work) -> None:
        while True:
            await work()

    async def kill(self) -> None:
        """One kill -9 of a service."""
        if self.rng.random() < UNTIMELY:
            await asyncio.sleep(self.rng.uniform(0.1, 1.5))
            victim = self.rng.choice(self.replicas)
        else:
            if not await self.load.progress(PROGRESS, PROGRESS_S):
                self._ledger.surprise(f"fewer than {PROGRESS} rewards in {PROGRESS_S:.0f} s")
            await asyncio.sleep(self.rng.expovariate(1 / 0.3))
            victim = await self._ready()
        await self.may_kill.wait()
        if victim.kill():
            self.result.kills["service"] += 1

    async def stop(self) -> None:
        """One SIGTERM of a service that is ready; a kill may come before it has ended."""
        await asyncio.sleep(self.rng.uniform(*STOPS_S))
        # Without this it is always one that just came up.
        await self.load.progress(PROGRESS, PROGRESS_S)
        await self.may_kill.wait()
        await self.stopped([await self._ready()])

    async def stopped(self, victims: Sequence[Replica]) -> None:
        """Tell them to end, and wait until none is at it any more."""
        deadline = monotonic() + GRACE_S
        for victim in victims:
            victim.terminate()
        while late := [victim for victim in victims if victim.stopping]:
            if monotonic() > deadline:
                for victim in late:
                    victim.kill()
                    line = f"{victim.name} had not ended {GRACE_S:.0f} s after its SIGTERM"
                    self.result.violations.append(line)
            await asyncio.sleep(LOOK_S)

    async def _ready(self) -> Replica:
        """Return any ready replica, once there is one. Raises NotReady."""
        deadline = monotonic() + READY_S
        while monotonic() < deadline:
            for replica in self.rng.sample(self.replicas, len(self.replicas)):
                if await replica.positions(self.http) is not None:
                    return replica
            await asyncio.sleep(LOOK_S)
        raise NotReady(f"no service was ready within {READY_S:.0f} s")

    async def all_ready(self) -> None:
        """Wait until each has been ready. Raises NotReady."""
        await asyncio.gather(*(replica.ready(self.http) for replica in self.replicas))

    async def are_ready(self) -> bool:
        """Return whether all are ready now."""
        return None not in [await replica.positions(self.http) for replica in self.replicas]

    async def rest(self) -> None:
        """A pause between two losses of the log's end, with rewards that may go."""
        await asyncio.sleep(self.rng.uniform(6.0, 18.0))
        await self.load.progress(PROGRESS, PROGRESS_S)

    @contextmanager
    def losing(self, kind: str) -> Iterator[None]:
        """Around what takes the log's end: acknowledged rewards may be asked for again."""
        self.load.forgiving = True
        yield
        self.result.losses[kind] += 1

    async def recovered(self, cut: Cut) -> None:
        """After a loss: wait until all are ready again, in half of the cases without kills, and
        then note the time. Raises NotReady."""
        self.cuts.append(cut)
        if self.rng.random() < 0.5:
            await self.all_ready()
            return
        self.may_kill.clear()
        try:
            began = monotonic()
            await self.all_ready()
            self.result.recoveries.append(monotonic() - began)
        finally:
            self.may_kill.set()

    async def expect_failed(self, what: str, probe: Callable[[httpx.AsyncClient], Any]) -> None:
        """Expect that a probe of a service fails soon."""
        deadline = monotonic() + FAILED_S
        while await probe(self.http):
            if monotonic() > deadline:
                line = f"a service is not failed {FAILED_S:.0f} s after its {what}"
                self.result.violations.append(line)
                return
            await asyncio.sleep(0.1)

    async def kill_trainer(self) -> None:
        """One kill -9 of the trainer, about when it hands over what it has just trained: at any
        other moment it has little to lose, and a busy machine would never see a version."""
        before, deadline = self._trainer.said(TRAINED), monotonic() + TRAINED_S
        while True:
            await asyncio.sleep(0.1)
            if self._trainer.said(TRAINED) > before or monotonic() > deadline:
                break
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        await self.may_kill.wait()
        if self._trainer.kill():
            self.result.kills["trainer"] += 1

    async def _judge(self) -> None:
        result, ledger = self.result, self._ledger
        try:
            await self.all_ready()
            await self.load.finish(FINISH_S)
            self._keepers[self._trainer].cancel()
            self._trainer.kill()  # as part of the end, so it is not counted
            standing = await self._started_twice()
        except (NotReady, TimeoutError) as fault:
            result.violations.append(str(fault) or "the replicas did not come to rest")
            log = await read_log(self._store)
        else:
            log, unequal = standing.log, standing.unequal()
            result.versions, result.heads_equal = standing.versions, not unequal
            result.violations += unequal
        result.answers = dict(sorted(self.load.counts.items()))
        found = audit(ledger, log, self.cuts)
        result.acknowledged, result.corrected = found.acknowledged, found.corrected
        result.gone = found.gone
        result.lost, result.doubled = len(found.lost), len(found.doubled)
        result.events = log.end
        result.selects, result.rows = ledger.counts["selects"], len(log.rankings)
        result.violations += found.lost + found.doubled + found.strange + ledger.surprises
        self._judge_ends()

    async def _started_twice(self) -> Standing:
        """Where all stand after one more stop and start of each, now that nothing else moves.
        Raises TimeoutError, NotReady."""
        first = await settle_down(self.replicas, self._store, self.http)
        await self.stopped(self.replicas)
        wrong, position = first.unequal(), await saved(self._store)
        if position != first.log.end:
            line = f"after a stop the snapshot is of {position}, the log's end is {first.log.end}"
            wrong.append(line)
        await self.all_ready()
        again = await settle_down(self.replicas, self._store, self.http)
        if first.log.checksums != again.log.checksums[: first.log.end + 1]:
            wrong.append("after a stop the log is another")
        self.result.violations += wrong
        return again

    def _judge_ends(self) -> None:
        """Services end when they are told, and then in order; the trainer never."""
        result = self.result
        for replica in self.replicas:
            for status, seconds in replica.stops:
                result.slowest_stop_seconds = max(result.slowest_stop_seconds, seconds)
                if status == 0:
                    result.stops += 1
                else:
                    line = f"{replica.name} ended with status {status} after its SIGTERM"
                    result.violations.append(line)
            if replica.deserted:
                result.violations.append(f"{replica.name} ended by itself while it served")
        if self._trainer.ended:
            result.violations.append(f"the trainer ended by itself: {self._trainer.ended}")
