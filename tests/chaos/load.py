"""Clients that select and reward, at replicas in turn, and go on until they are told."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from time import monotonic
from typing import Any, Final

import httpx
import msgspec

from tests.chaos.ledger import Ledger
from tests.chaos.processes import NAME

ATTEMPT_S: Final = 8.0  # above what a service waits for its store
CONNECT_S: Final = 2.0
PAUSE_S: Final = 0.05
AGAIN_S: Final = (0.05, 0.3)
LATE_S: Final = (2.0, 9.0)  # around and beyond wait_seconds and a search for what is due
NEVER, LATE, TWICE, AT_ONCE, OTHER = 0.1, 0.2, 0.2, 0.1, 0.05
"""Chances of a decision without a reward, of a late one, of the same reward again (afterwards; at
another replica at the same time), and of another value under the same identity."""
KEYED, SLATE, DEFERRED = 0.3, 0.2, 0.1
"""Chances of an Idempotency-Key (then the same request goes to another replica, too), of two arms
in place of one, and of a decision that is activated later or never."""
BATCHES, BATCH, RARELY = 4, 32, 0.04
"""Clients that ask for a batch at a time, its size, and the chance of a late reward or of none."""
ROUTE: Final = re.compile(r"/decisions/[^/]*/|\?.*")
EXPECTED: Final = frozenset({200, 409, 503})
GONE: Final = frozenset({404, 410})

Json = Mapping[str, Any]
Rewards = tuple[Json, dict[str, float]]
"""A decision as its client knows it, and what it gives for each arm."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class Load:
    """`start`, then `finish`: every reward that was begun is repeated until its answer is known.

    failures    requests without an answer, or with a 503: begin, end, what they were
    forgiving   the log has lost its end in this run: a decision may be gone
    """

    def __init__(
        self,
        urls: Sequence[str],
        ledger: Ledger,
        rng: Random,
        clients: int = 6,
        batches: int = BATCHES,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[float, float, str]] = []
        self.forgiving = False
        self._urls, self._ledger, self._rng = urls, ledger, rng
        self._turn = self._keys = 0
        self._stopping = asyncio.Event()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(ATTEMPT_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients, self._batches = clients, batches

    def start(self) -> None:
        for _ in range(self._clients):
            self._spawn(self._client())
        for _ in range(self._batches):
            self._spawn(self._batch_client())

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

    async def post(
        self, path: str, body: object, key: str | None = None, *, may_be_gone: bool = False
    ) -> httpx.Response | None:
        """One attempt, at the next replica that takes connections. None where no answer came."""
        expected = EXPECTED | GONE if may_be_gone or self.forgiving else EXPECTED
        content, headers = encode(body), {"content-type": "application/json"}
        if key is not None:
            headers["idempotency-key"] = key
        began = monotonic()
        for _ in self._urls:
            self._turn += 1
            url = self._urls[self._turn % len(self._urls)]
            try:
                answer = await self._http.post(url + path, content=content, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
            except httpx.TransportError as fault:
                self.counts["without an answer"] += 1
                self.failures.append((began, monotonic(), f"{path}: {fault!r}"))
                return None
            self.counts[f"{ROUTE.sub('', path)} {answer.status_code}"] += 1
            if answer.status_code == 503:
                self.failures.append((began, monotonic(), f"{path}: {answer.content[:200]!r}"))
            if answer.status_code not in expected:
                self._ledger.surprise(f"{path}: {answer.status_code} {answer.content[:200]!r}")
            return answer
        self.counts["nobody there"] += 1
        self.failures.append((began, monotonic(), f"{path}: nobody there"))
        await asyncio.sleep(PAUSE_S)
        return None

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            self._ledger.surprise(f"a client failed: {fault!r}")

    def _question(self) -> dict[str, Any]:
        context = {"persona": self._rng.choice(["cat", "dog"]), "age": self._rng.randrange(30)}
        return {"experiment": NAME, "context": context}

    def _values(self, decision: Json) -> dict[str, float]:
        """Hardly two alike: one cannot stand for another."""
        return {each["arm"]: round(self._rng.random(), 6) for each in decision["ranking"]}

    # -- batches -------------------------------------------------------------------------------

    async def _batch_client(self) -> None:
        while not self._stopping.is_set():
            body = {"requests": [self._question() for _ in range(BATCH)]}
            answer = await self.post("/select/batch", body)
            if answer is None or answer.status_code != 200:
                await asyncio.sleep(self._rng.uniform(*AGAIN_S))
                continue
            now = list[Rewards]()
            for item in decode(answer.content)["results"]:
                if (decision := item["answer"]) is None:
                    continue
                self._ledger.select(decision)
                chance = self._rng.random()
                if chance < RARELY:
                    self._spawn(self._later(decision))
                elif chance > RARELY * 2:
                    now.append((decision, self._values(decision)))
            await self._settle_all(now)
            if now and self._rng.random() < TWICE:
                self._spawn(self._settle(now[:8]))

    async def _settle_all(self, items: list[Rewards]) -> None:
        for decision, rewards in items:
            self._ledger.ask(decision["id"], rewards)
        await self._settle(items)

    # -- one at a time -------------------------------------------------------------------------

    async def _client(self) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(PAUSE_S * self._rng.uniform(0.5, 1.5))
            body, key = self._question(), None
            if self._rng.random() < SLATE:
                body["top_k"] = 2
            if self._rng.random() < KEYED:
                self._keys += 1
                key = f"key-{self._keys}"
            elif self._rng.random() < DEFERRED:
                body["deferred"] = True
            decision = await self._select(body, key)
            if decision is None:
                continue
            if key is not None:
                self._spawn(self._select_again(body, key))
            if not body.get("deferred"):
                await self._reward(decision)
            else:
                self._ledger.defer(decision["id"])
                if self._rng.random() < 0.5:
                    self._ledger.activate(decision["id"])
                    await self._activate(decision)
                    await self._reward(decision)

    async def _select(self, body: Json, key: str | None) -> Json | None:
        answer = await self.post("/select", body, key)
        if answer is None or answer.status_code != 200:
            return None
        decision: Json = decode(answer.content)
        self._ledger.select(decision, key)
        return {**decision, "keyed": key is not None}

    async def _select_again(self, body: Json, key: str) -> None:
        """Also after a kill."""
        await asyncio.sleep(self._rng.choice([0.0, 0.0, 0.3, 4.0]))
        await self._select(body, key)

    async def _activate(self, decision: Json) -> bool:
        """Repeat until it is known to be active, or gone (False). One that is not in the log yet
        waits in the memory of one replica, and the others do not know it."""
        path = f"/decisions/{decision['id']}/activate?experiment={NAME}"
        while True:
            unlogged = not (decision["logged"] or self.forgiving)
            answer = await self.post(path, {}, may_be_gone=unlogged)
            if answer is not None and answer.status_code == 200:
                return True
            if answer is not None and answer.status_code in GONE and not unlogged:
                return False
            await asyncio.sleep(self._rng.uniform(*AGAIN_S))

    async def _reward(self, decision: Json) -> None:
        chance = self._rng.random()
        if chance < NEVER:
            return
        if chance < NEVER + LATE:
            self._spawn(self._later(decision))
            return
        given = decision, self._values(decision)
        self._ledger.ask(decision["id"], given[1])
        if chance < NEVER + LATE + AT_ONCE:
            await asyncio.gather(*(self._settle([given]) for _ in range(3)))
        else:
            await self._settle([given])
        if chance > 1 - TWICE:
            self._spawn(self._settle([given]))
        if chance > 1 - OTHER:
            self._spawn(self._contradict(*given))

    async def _later(self, decision: Json) -> None:
        await asyncio.sleep(self._rng.uniform(*LATE_S))
        await self._settle_all([(decision, self._values(decision))])

    async def _settle(self, items: list[Rewards]) -> None:
        """Until it is known what became of each."""
        while items:
            bodies = [_body(decision, rewards) for decision, rewards in items]
            if len(bodies) == 1:
                second = _may_be_second(items[0][0])
                answer = await self.post("/reward", bodies[0], may_be_gone=second)
                results = [] if answer is None else [(answer.status_code, answer.content)]
            else:
                answer = await self.post("/reward/batch", {"requests": bodies})
                results = []
                if answer is not None and answer.status_code == 200:
                    found = decode(answer.content)["results"]
                    results = [(each["status"], each) for each in found]
            left = list[Rewards]()
            for index, item in enumerate(items):
                if index >= len(results) or not await self._heard(item, *results[index]):
                    left.append(item)
            if items := left:
                await asyncio.sleep(self._rng.uniform(*AGAIN_S))

    async def _heard(self, item: Rewards, status: int, content: bytes | Json) -> bool:
        """Whether the answer to a reward is final."""
        decision, rewards = item
        told = decode(content) if isinstance(content, bytes) else content
        if status == 200:
            told = told.get("answer", told)
            self._ledger.tell(decision["id"], rewards, told["status"])
        elif status in GONE and (self.forgiving or _may_be_second(decision)):
            self.counts["too late, or gone"] += 1
        elif status == 409 and "deferred" in str(told):
            if not self.forgiving:
                self._ledger.surprise(f"{decision['id']} is not active, though it was made so")
            return not await self._activate(decision)
        elif status == 409 and self.forgiving and self._contradicted(decision["id"], rewards):
            self.counts["contradicted first"] += 1  # the log had lost the reward by then
        elif status == 409:
            self._ledger.surprise(f"the service knows another reward of {decision['id']}: {told}")
        elif status != 503:
            self._ledger.surprise(f"a reward of {decision['id']}: {told}")
        elif self._stopping.is_set() and _may_be_second(decision):
            self.counts["never logged"] += 1  # its row went with the memory of a killed service
            return True
        return status != 503

    def _contradicted(self, decision: str, arms: Iterable[str]) -> bool:
        return any(self._ledger.claims[decision, arm].other is not None for arm in arms)

    async def _contradict(self, decision: Json, rewards: dict[str, float]) -> None:
        """Another value for what is acknowledged: refused, and never in the log."""
        other = {arm: (reward + 0.5) % 1.0 for arm, reward in rewards.items()}
        self._ledger.contradict(decision["id"], other)
        while True:
            answer = await self.post("/reward", _body(decision, other))
            if answer is not None and answer.status_code == 200:
                self._ledger.contradicted += [(decision["id"], arm) for arm in other]
            if answer is not None and answer.status_code != 503:
                return
            if self._stopping.is_set() and _may_be_second(decision):
                return  # never logged, as in `_heard`
            await asyncio.sleep(self._rng.uniform(*AGAIN_S))


def _may_be_second(decision: Json) -> bool:
    """Whether its key may have another decision: two replicas answer the same key while neither can
    read the log, and a reward waits until the log tells which decision counts."""
    return not decision["logged"] and decision.get("keyed", False)


def _body(decision: Json, rewards: Mapping[str, float]) -> Json:
    if len(rewards) == 1:
        return {"decision_id": decision["decision_id"], "reward": next(iter(rewards.values()))}
    return {"decision_id": decision["decision_id"], "rewards": rewards}
