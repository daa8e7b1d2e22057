"""Clients that select and reward, at replicas in turn, and go on until they are told."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from time import monotonic
from typing import Any, Final

import httpx

from tests.chaos.ledger import Key, Ledger
from tests.chaos.processes import NAME

ATTEMPT_S: Final = 8.0  # above what a service waits for its Redis
CONNECT_S: Final = 2.0  # then the next replica: the line of this one is down
PAUSE_S: Final = 0.05
AGAIN_S: Final = (0.05, 0.3)
LATE_S: Final = (2.0, 9.0)  # around and beyond wait_seconds and a search for what is due
NEVER, LATE, TWICE, AT_ONCE, OTHER = 0.1, 0.2, 0.2, 0.1, 0.05
"""Chances of a decision without a reward, of a late one, of the same reward again (afterwards; at
another replica at the same time), and of another value under the same identity."""
EXPECTED: Final = frozenset({200, 409, 503})

Json = Mapping[str, Any]


class Load:
    """`start`, then `finish`: every reward that was begun is repeated until its answer is known."""

    def __init__(self, urls: Sequence[str], ledger: Ledger, rng: Random, clients: int = 6) -> None:
        self.counts: Counter[str] = Counter()
        self._urls, self._ledger, self._rng = urls, ledger, rng
        self._turn = 0
        self._stopping = asyncio.Event()
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(ATTEMPT_S, connect=CONNECT_S))
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients = clients

    def start(self) -> None:
        for _ in range(self._clients):
            self._spawn(self._client())

    async def finish(self, within_s: float) -> None:
        """Select no more and hear every reward out; what is unknown after `within_s` stays so."""
        self._stopping.set()
        try:
            async with asyncio.timeout(within_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            self._ledger.surprise(f"{self._ledger.unknown} rewards unanswered after {within_s} s")
        await self.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def progress(self, rewards: int, within_s: float) -> bool:
        """Whether so many more rewards are acknowledged before time is out."""
        goal, deadline = self._ledger.acknowledged + rewards, monotonic() + within_s
        while self._ledger.acknowledged < goal:
            if monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def post(self, path: str, body: Json) -> httpx.Response | None:
        """One attempt, at the next replica that takes connections. None where no answer came."""
        for _ in self._urls:
            self._turn += 1
            url = self._urls[self._turn % len(self._urls)]
            try:
                answer = await self._http.post(url + path, json=body)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
            except httpx.TransportError:
                self.counts["without an answer"] += 1
                return None
            self.counts[f"{path} {answer.status_code}"] += 1
            if answer.status_code not in EXPECTED:
                self._ledger.surprise(f"{path}: {answer.status_code} {answer.text[:200]}")
            return answer
        self.counts["nobody there"] += 1
        return None

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            self._ledger.surprise(f"a client failed: {fault!r}")

    async def _client(self) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(PAUSE_S * self._rng.uniform(0.5, 1.5))
            context = {"persona": self._rng.choice(["cat", "dog"]), "age": self._rng.randrange(30)}
            answer = await self.post("/select", {"experiment": NAME, "context": context})
            if answer is None or answer.status_code != 200:
                continue
            decision = answer.json()
            self.counts["unlogged"] += not decision["logged"]
            await self._reward(decision)

    async def _reward(self, decision: Json) -> None:
        chance = self._rng.random()
        if chance < NEVER:
            return
        reward = round(self._rng.random(), 6)  # hardly two alike: one cannot stand for another
        if chance < NEVER + LATE:
            self._spawn(self._later(decision, reward))
            return
        key = self._ask(decision, reward)
        if chance < NEVER + LATE + AT_ONCE:
            await asyncio.gather(*(self._settle(decision, key) for _ in range(3)))
        else:
            await self._settle(decision, key)
        if chance > 1 - TWICE:
            self._spawn(self._settle(decision, key))
        if chance > 1 - OTHER:
            self._spawn(self._contradict(decision, (reward + 0.5) % 1.0))

    def _ask(self, decision: Json, reward: float) -> Key:
        return self._ledger.ask(decision["id"], decision["arm"], decision["policy"], reward)

    async def _later(self, decision: Json, reward: float) -> None:
        await asyncio.sleep(self._rng.uniform(*LATE_S))
        await self._settle(decision, self._ask(decision, reward))

    async def _settle(self, decision: Json, key: Key) -> None:
        """Until it is known what became of it."""
        reward = self._ledger.claims[key].reward
        body = {"decision_id": decision["decision_id"], "reward": reward}
        while True:
            answer = await self.post("/reward", body)
            if answer is not None and answer.status_code == 200:
                status = answer.json()["status"]
                self.counts[status] += 1
                self._ledger.tell(key, status)
                return
            if answer is not None and answer.status_code == 409:
                self._ledger.surprise(f"the service knows another reward of {key}")
                return
            await asyncio.sleep(self._rng.uniform(*AGAIN_S))

    async def _contradict(self, decision: Json, reward: float) -> None:
        """Another value for what is acknowledged: refused, and never in the log."""
        body = {"decision_id": decision["decision_id"], "reward": reward}
        while True:
            answer = await self.post("/reward", body)
            if answer is not None and answer.status_code == 200:
                self._ledger.surprise(f"two values of one reward were taken: {decision['id']}")
            if answer is not None and answer.status_code != 503:
                return
            await asyncio.sleep(self._rng.uniform(*AGAIN_S))
