"""A load test: send what a plan asks for, and count the answers.

At a rate, selects fall due at random (a Poisson process) whether or not earlier ones have an
answer, and a latency counts from the due time: if the service stalls, every select that fell due
meanwhile waited, and counts so. Without a rate, each connection sends its next request right after
an answer.
"""

import asyncio
import random
import select
import selectors
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from simulator_client.load_requests import Requests, is_unlogged, token_of
from simulator_client.wire import Answer, Lost, Origin, Pool

SELECT: Final = "select"
REWARD: Final = "reward"
ERROR: Final = "error"
KINDS: Final = (SELECT, REWARD)
LONGEST_US: Final = 3_600_000_000
DIGITS: Final = 3
TIMEOUTS: Final = ("timeout", "unreached")
REFUSED_PAUSE_S: Final = 0.1  # before a connection that was refused is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A load test.

    connections         kept busy; at a rate, the limit of requests under way
    rate                selects per second; None: as fast as the connections go
    rewards_per_select  share of the decisions that get a reward, right after their answer
    rewards_alone       decide during the warm-up, then only reward those decisions
    timeout_s           time after which a request counts as an error, from when it was due
    """

    origins: list[Origin]
    requests: Requests
    connections: int = 64
    rate: float | None = None
    warmup_s: float = 2.0
    seconds: float = 10.0
    rewards_per_select: float = 0.2
    rewards_alone: bool = False
    timeout_s: float = 10.0
    seed: int = 1


def histogram() -> HdrHistogram:
    """Make a histogram of microseconds, up to an hour, to three digits."""
    return HdrHistogram(1, LONGEST_US, DIGITS)


def record(latencies: HdrHistogram, seconds: float) -> None:
    latencies.record_value(min(max(1, int(seconds * 1e6)), LONGEST_US))


@dataclass(slots=True)
class Tally:
    """The counts of a test. "Counted" requests are those that were due after the warm-up.

    latencies  of counted requests with a 2xx answer, and of those that timed out, by kind
    errors     of counted requests, by kind and by status or reason (refused, timeout, ...)
    unlogged   counted decisions that were answered before they were in the log
    late       from the due time of a select until the client looked at it
    seconds    answers by kind, and errors, in each second since the start
    answered   2xx answers within the counted seconds, by kind
    core       share of a processor core that the client used in those seconds
    """

    latencies: dict[str, HdrHistogram] = field(
        default_factory=lambda: {kind: histogram() for kind in KINDS}
    )
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    unlogged: int = 0
    late: HdrHistogram = field(default_factory=histogram)
    seconds: dict[str, Counter[int]] = field(
        default_factory=lambda: {kind: Counter() for kind in (*KINDS, ERROR)}
    )
    answered: Counter[str] = field(default_factory=Counter)
    core: float = 0.0
    counted_s: float = 0.0

    def total(self, kind: str) -> int:
        """Return the number of 2xx answers, those of the warm-up included."""
        return self.seconds[kind].total()


def run(plan: Plan) -> Tally:
    """Carry out a plan on an event loop whose timers are finer than a millisecond."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(FineSelector())) as runner:
        return runner.run(LoadTest(plan).run())


class FineSelector(selectors.DefaultSelector):
    """Waits by microseconds: epoll rounds a timeout up to the next millisecond."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            select.select([self.fileno()], (), (), timeout)
        return super().select(0)


class LoadTest:
    """One run of a plan. Times are seconds of the monotonic clock."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.tally = plan, Tally()
        self._pool = Pool()
        self._origins = cycle(plan.origins)
        self._free = plan.connections  # at a rate: how many more requests may be sent at once
        self._waiting: deque[float] = deque()  # due times of selects without a connection
        self._tokens: deque[bytes] = deque()  # to reward alone
        self._owed = 0.0  # rewards
        self._used: list[tuple[float, float]] = []  # time, and processor time, at both ends

    async def run(self) -> Tally:
        """Send until the time is over, and wait for the answers."""
        loop, plan = asyncio.get_running_loop(), self.plan
        self._start = loop.time()
        self._begin = self._start + plan.warmup_s
        self._end = self._begin + plan.seconds
        timers = [loop.call_at(at, self._note_use) for at in (self._begin, self._end)]
        try:
            async with asyncio.TaskGroup() as group:
                if plan.rate:
                    await self._arrive(group, plan.rate)
                else:
                    for _ in range(plan.connections):
                        group.create_task(self._repeat(next(self._origins)))
        finally:
            for timer in timers:
                timer.cancel()
            self._pool.close()
        if len(self._used) < 2:
            self._note_use()
        (begun, cpu_begun), (ended, cpu_ended) = self._used[0], self._used[-1]
        self.tally.core = (cpu_ended - cpu_begun) / max(1e-9, ended - begun)
        self.tally.counted_s = self._end - self._begin
        return self.tally

    def _note_use(self) -> None:
        self._used.append((time.monotonic(), time.process_time()))

    async def _arrive(self, group: asyncio.TaskGroup, rate: float) -> None:
        """Start a visit for each select that falls due."""
        rng, clock = random.Random(self.plan.seed), time.monotonic
        due = self._start + rng.expovariate(rate)
        while due < self._end:
            await asyncio.sleep(max(0.0, due - clock()))
            now = clock()
            while due <= now and due < self._end:
                if due >= self._begin:
                    record(self.tally.late, now - due)
                if self._free:
                    self._free -= 1
                    group.create_task(self._serve(due))
                else:
                    self._waiting.append(due)
                due += rng.expovariate(rate)

    async def _serve(self, due: float) -> None:
        """Make a visit, then those that waited for a connection."""
        await self._visit(next(self._origins), due)
        while self._waiting:
            await self._visit(next(self._origins), self._waiting.popleft())
        self._free += 1

    async def _repeat(self, origin: Origin) -> None:
        clock = time.monotonic
        while (now := clock()) < self._end:
            if not self.plan.rewards_alone or now < self._begin:
                await self._visit(origin, now)
            elif self._tokens:
                await self._reward(origin, self._tokens.popleft())
            else:
                self._end = now

    async def _visit(self, origin: Origin, due: float) -> None:
        """Ask for a decision, and reward it if its turn comes."""
        body = await self._ask(origin, SELECT, due, self.plan.requests.select())
        if body is None:
            return
        if self._begin <= due and is_unlogged(body):
            self.tally.unlogged += 1
        if self.plan.rewards_alone:
            self._tokens.append(token_of(body))
            return
        self._owed += self.plan.rewards_per_select
        if self._owed >= 1.0:
            self._owed -= 1.0
            await self._reward(origin, token_of(body))

    async def _reward(self, origin: Origin, token: bytes) -> None:
        await self._ask(origin, REWARD, time.monotonic(), self.plan.requests.reward(token))

    async def _ask(self, origin: Origin, kind: str, due: float, request: bytes) -> bytes | None:
        """Send a request and count what comes of it; return the body of a 2xx answer."""
        answer: Answer | None = None
        left_s = due + self.plan.timeout_s - time.monotonic()
        reason = "timeout"
        if left_s > 0:
            try:
                answer = await self._pool.ask(origin, request, connect_s=left_s, answer_s=left_s)
                reason = str(answer.status)
            except Lost as lost:
                reason = str(lost)
        now, tally = time.monotonic(), self.tally
        counts = self._begin <= due < self._end
        if answer and 200 <= answer.status < 300:
            tally.seconds[kind][int(now - self._start)] += 1
            if counts:
                record(tally.latencies[kind], now - due)
            if self._begin <= now < self._end:
                tally.answered[kind] += 1
            return answer.body
        tally.seconds[ERROR][int(now - self._start)] += 1
        if counts:
            tally.errors[kind, reason] += 1
            if reason in TIMEOUTS:  # without these, a stall would not show in the latencies
                record(tally.latencies[kind], now - due)
        if reason == "refused" and not self.plan.rate:
            await asyncio.sleep(REFUSED_PAUSE_S)
        return None
