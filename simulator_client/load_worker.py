"""One process of a load test: `python -m simulator_client.load_worker`, spoken to over its pipes.

It is given a plan, says that it is ready, is given the time to start at, tells now and then how it
stands, and in the end what it counted: a line of JSON each. It imports little, and does nothing on
the way of a request that could be done before or after it.

At a rate a request is due at its time whether or not earlier ones were answered, and its latency
counts from then: where the service stalls, all that fell due meanwhile has waited, and says so.
"""

import gc
import json
import random
import select
import selectors
import sys
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final

from simulator_client.load_plan import Plan, Requests, is_unlogged, token_of
from simulator_client.load_tally import ERROR, Tally
from simulator_client.load_wire import Address, Answer, Connection, Lost

TICK_S: Final = 0.1
TOLD_EVERY_S: Final = 0.5
# uvicorn closes a connection after 5 s without a request; one that is nearly that old would be
# closed under the next request.
IDLE_S: Final = 3.0
SELECT: Final = "select"
REWARD: Final = "reward"


class Arrivals:
    """When requests fall due."""

    def __init__(self, rate: float, spacing: str, start: float, end: float, seed: str) -> None:
        self._rng = random.Random(seed)
        self._rate, self._even, self._end = rate, spacing == "even", end
        self.at = inf
        if rate > 0:
            self.at = start + self._rng.random() / rate
            if self.at >= end:
                self.at = inf

    def advance(self) -> None:
        """To the next; inf after the last."""
        self.at += 1.0 / self._rate if self._even else self._rng.expovariate(self._rate)
        if self.at >= self._end:
            self.at = inf


class Slot(Connection):
    """A connection and what it waits for an answer to."""

    __slots__ = ("busy", "due", "idle_since", "kind", "sent_at")

    def __init__(self, selector: selectors.BaseSelector, address: Address) -> None:
        super().__init__(selector, address)
        self.busy = False
        self.kind, self.due, self.sent_at, self.idle_since = SELECT, 0.0, 0.0, 0.0


class Worker:
    """Sends what a plan asks of one of its processes.

    tell: takes how it stands, every TOLD_EVERY_S.
    """

    def __init__(self, plan: Plan, index: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self.plan, self.tally = plan, Tally()
        self._tell = tell
        self._index = index
        self._requests = Requests(plan, index)
        self._selector = selectors.DefaultSelector()
        addresses = [Address(*each) for each in plan.addresses]
        self._slots = [
            Slot(self._selector, addresses[number % len(addresses)])
            for number in range(plan.share(index))
        ]
        self._idle = self._slots[::-1]
        self._resting: list[Slot] = []
        self._tokens: deque[bytes] = deque()
        self._owed = 0.0  # rewards that are due but for a token
        self._kept = 0.0  # tokens that are to be kept
        self._wanted = 1.0 if plan.rewards_alone else plan.rewards_per_select  # of each select
        self._selects_waiting: deque[float] = deque()
        self._rewards_waiting: deque[tuple[float, bytes]] = deque()
        self._open = plan.rate is not None

    def run(self, start: float) -> Tally:
        """Work from `start` (monotonic seconds) on, to the end."""
        plan = self.plan
        self._begin, self._from = start, start + plan.warmup_s
        self._end = self._from + plan.seconds
        rate = (plan.rate or 0.0) / plan.processes
        times = plan.spacing, start, self._end
        self._due_selects = Arrivals(rate, *times, f"{plan.seed} {self._index} select")
        self._due_rewards = Arrivals(
            rate * plan.rewards_per_select, *times, f"{plan.seed} {self._index} reward"
        )
        time.sleep(max(0.0, start - time.monotonic()))
        if not self._open:
            self._resume(self._idle, time.monotonic())
            self._idle.clear()
        self._loop()
        for slot in self._slots:
            slot.close()
        self._selector.close()
        return self.tally

    def _loop(self) -> None:
        clock, selector, waits = time.monotonic, self._selector, select.select
        tick_at = told_at = -inf
        used: list[tuple[float, float]] = []  # seconds, and of the processor, where they count
        while True:
            now = clock()
            if now >= tick_at:
                tick_at = now + TICK_S
                self._tick(now)
                if now >= told_at:
                    told_at = now + TOLD_EVERY_S
                    self._tell(self._standing(now))
                if now >= (self._end if used else self._from) and len(used) < 2:
                    used.append((now, time.process_time()))
                if len(used) == 2 and self._is_over():
                    break
            next_at = tick_at
            if self._open:
                self._fall_due(now)
                next_at = min(tick_at, self._due_selects.at, self._due_rewards.at)
                if (wait_s := next_at - clock()) > 0:
                    # A selector's timeouts are whole milliseconds; those of select() are not.
                    waits([selector.fileno()], (), (), wait_s)
                ready = selector.select(0)
            else:
                ready = selector.select(max(0.0, next_at - clock()))
            for key, mask in ready:
                self._attend(key.data, mask)
        (begun, cpu_begun), (ended, cpu_ended) = used
        self.tally.cores.append((cpu_ended - cpu_begun) / (ended - begun))
        self.tally.counted_s.append(self._end - self._from)

    # -- at a rate -----------------------------------------------------------------------------

    def _fall_due(self, now: float) -> None:
        """Queue what is due by now, and send what there are connections for."""
        selects, rewards = self._due_selects, self._due_rewards
        while selects.at <= now:
            if selects.at >= self._from:
                self.tally.late.record(now - selects.at)
            self._selects_waiting.append(selects.at)
            selects.advance()
        while rewards.at <= now:
            if self._tokens:
                self._rewards_waiting.append((rewards.at, self._tokens.popleft()))
            else:
                self._owed += 1.0
            rewards.advance()
        while self._owed >= 1.0 and self._tokens:
            self._owed -= 1.0
            self._rewards_waiting.append((now, self._tokens.popleft()))
        waiting, told = self._selects_waiting, self._rewards_waiting
        while self._idle and (waiting or told):
            slot = self._idle.pop()
            if now - slot.idle_since > IDLE_S:
                slot.close()
            if told and not (waiting and waiting[0] <= told[0][0]):
                due, token = told.popleft()
                self._send(slot, REWARD, due, self._requests.reward(token), now)
            else:
                self._send(slot, SELECT, waiting.popleft(), self._requests.select(), now)

    # -- as fast as it goes --------------------------------------------------------------------

    def _next(self, slot: Slot, now: float) -> None:
        """Ask again, at once."""
        if now >= self._end:
            return
        plan = self.plan
        if plan.rewards_alone and now >= self._from:
            if self._tokens:
                request = self._requests.reward(self._tokens.popleft())
                self._send(slot, REWARD, now, request, now)
            else:
                self._end = now
        elif self._owed >= 1.0 and self._tokens and not plan.rewards_alone:
            self._owed -= 1.0
            request = self._requests.reward(self._tokens.popleft())
            self._send(slot, REWARD, now, request, now)
        else:
            self._owed += plan.rewards_per_select
            self._send(slot, SELECT, now, self._requests.select(), now)

    def _resume(self, slots: list[Slot], now: float) -> None:
        for slot in list(slots):
            self._next(slot, now)

    # -- of both -------------------------------------------------------------------------------

    def _send(self, slot: Slot, kind: str, due: float, request: bytes, now: float) -> None:
        slot.busy, slot.kind, slot.due, slot.sent_at = True, kind, due, now
        try:
            slot.begin(request)
        except Lost as lost:
            self._lose(slot, str(lost), now)

    def _attend(self, slot: Slot, mask: int) -> None:
        try:
            answer = slot.ready(mask)
        except Lost as lost:
            if slot.busy:
                self._lose(slot, str(lost), time.monotonic())
            else:
                slot.close()  # idle for long
            return
        if answer is not None:
            self._answered(slot, answer)

    def _answered(self, slot: Slot, answer: Answer) -> None:
        if not slot.busy:  # an answer to nothing
            slot.close()
            return
        now, kind, tally = time.monotonic(), slot.kind, self.tally
        slot.busy = False
        if 200 <= answer.status < 300:
            counts = self._counts(slot.due)
            if counts:
                tally.latencies[kind].record(now - slot.due)
            if kind == SELECT:
                if self._wanted:
                    self._keep(answer.body)
                if counts and is_unlogged(answer.body):
                    tally.unlogged += 1
            tally.second(int(now - self._begin), kind)
            if self._counts(now):
                tally.answered[kind] += 1
        else:
            self._error(slot.due, kind, str(answer.status), now)
        self._free(slot, now)

    def _keep(self, body: bytes) -> None:
        """Keep the token, if a reward will want it."""
        self._kept += self._wanted
        if self._kept >= 1.0 and (token := token_of(body)):
            self._kept -= 1.0
            self._tokens.append(token)

    def _lose(self, slot: Slot, what: str, now: float) -> None:
        slot.close()
        slot.busy = False
        self._error(slot.due, slot.kind, what, now)
        if what == "refused" and not self._open:
            self._resting.append(slot)  # until the next tick: it would spin
        else:
            self._free(slot, now)

    def _free(self, slot: Slot, now: float) -> None:
        if self._open:
            slot.idle_since = now
            self._idle.append(slot)
        else:
            self._next(slot, now)

    def _error(self, due: float, kind: str, what: str, now: float) -> None:
        self.tally.second(int(now - self._begin), ERROR)
        if self._counts(due):
            self.tally.errors[kind, what] += 1

    def _counts(self, at: float) -> bool:
        return self._from <= at < self._end

    def _give_up(self, due: float, kind: str, now: float) -> None:
        """Not answered in time: so long at least it took, and latencies say so."""
        self._error(due, kind, "timeout", now)
        if self._counts(due):
            self.tally.latencies[kind].record(now - due)

    def _tick(self, now: float) -> None:
        before = now - self.plan.timeout_s
        for slot in self._slots:
            if slot.busy and slot.sent_at < before:
                slot.close()
                slot.busy = False
                self._give_up(slot.due, slot.kind, now)
                self._free(slot, now)
        while self._selects_waiting and self._selects_waiting[0] < before:
            self._give_up(self._selects_waiting.popleft(), SELECT, now)
        while self._rewards_waiting and self._rewards_waiting[0][0] < before:
            self._give_up(self._rewards_waiting.popleft()[0], REWARD, now)
        resting, self._resting = self._resting, []
        self._resume(resting, now)

    def _is_over(self) -> bool:
        if min(self._due_selects.at, self._due_rewards.at) < inf:
            return False  # they fell due while this process was held up
        if self._selects_waiting or self._rewards_waiting:
            return False
        return not any(slot.busy for slot in self._slots)

    def _standing(self, now: float) -> dict[str, Any]:
        counts = self.tally.seconds
        waiting = len(self._selects_waiting) + len(self._rewards_waiting)
        return {
            "at_s": round(now - self._begin, 3),
            "answered": sum(counts[SELECT]) + sum(counts[REWARD]),
            "errors": sum(counts[ERROR]),
            "waiting": waiting,
        }


def main() -> int:
    """Read the plan and the start from standard input, write what is counted to the output."""
    index, plan = int(sys.argv[1]), Plan.of(sys.stdin.readline())

    def tell(what: dict[str, Any]) -> None:
        print(json.dumps(what), flush=True)

    worker = Worker(plan, index, tell)
    gc.freeze()
    gc.disable()  # nothing on the way of a request makes cycles
    tell({"ready": True})
    try:
        tally = worker.run(float(sys.stdin.readline()))
    except KeyboardInterrupt:
        return 130
    tell({"tally": tally.as_json()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
