"""The calls of the simulator: retries and errors. A backend that shows decisions uses
`forage_client` (clients/python) instead.

Every call is safe to repeat: a reward is counted once by its identity, a definition replaces
itself, and a `/select` whose answer was lost leaves a decision that nobody rewards (an orphan; the
service closes it with the default reward). So a call goes on through restarts of the service until
its time bound.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx
import numpy as np
from forage_client import Problem, Unreachable
from forage_client.answers import json_of, problem_of, retry_after_s

from simulator_client.errors import UsageError
from simulator_client.transport import DirectTransport

Json = dict[str, Any]

RETRYABLE: Final = frozenset({429, 502, 503, 504})
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MOST_S: Final = 2.0
CONNECT_S: Final = 3.0
ATTEMPT_S: Final = 10.0
READY_POLL_S: Final = 0.2
# The service takes bodies of 1 MiB and 10,000 arms in one of them.
BODY_BYTES: Final = 900_000
BODY_ARMS: Final = 10_000


class Answer(NamedTuple):
    """A 2xx answer and its cost."""

    body: Json
    latency_ms: float  # of the attempt that was answered; waits between attempts are not in it
    retries: int
    lost: int  # attempts that may have reached the service but brought no answer back


class Client:
    """Calls to one service, or to several replicas of it in turn.

    `select` goes to the replicas one after another, and so does `reward`, one replica ahead: even
    with a single policy a reward reaches another replica than the one that decided.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        bound_s: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.urls = tuple(_base(url) for url in urls)
        if not self.urls:
            raise UsageError("no URL of a service given")
        self.key = key
        self._transport = transport or DirectTransport()
        self._bound_s = bound_s
        self._sleep = sleep
        self._rng = rng or np.random.default_rng()
        self._turns = Counter({"/reward": 1})

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def select(self, request: Json) -> Answer:
        return await self._call("POST", "/select", request)

    async def reward(self, feedback: Json) -> Answer:
        """POST /reward; an answer of 'duplicate' means that an earlier attempt had arrived,
        'ignored' that another reward of the arm was first."""
        return await self._call("POST", "/reward", feedback)

    async def put_experiment(self, name: str, definition: Json) -> None:
        """Define or replace an experiment; arms beyond one body follow in chunks."""
        first, *more = bodies_of(definition)
        await self._call("PUT", f"{_experiment(name)}?replace=true", first)
        for arms in more:
            await self._call("POST", f"{_experiment(name)}/arms", arms)

    async def delete_experiment(self, name: str) -> None:
        """Delete an experiment, if the service knows it."""
        try:
            await self._call("DELETE", _experiment(name))
        except Problem as problem:
            if problem.status not in (404, 410):
                raise

    async def get_experiment(self, name: str, *, at: int | None = None) -> Json | None:
        """Return the experiment, or None if it is unknown; `at` names the replica."""
        try:
            return (await self._call("GET", _experiment(name), first=at)).body
        except Problem as problem:
            if problem.status == 404:
                return None
            raise

    async def experiments(self) -> list[str]:
        answer = await self._call("GET", "/experiments")
        return [each["name"] for each in answer.body["experiments"]]

    async def policies(self, experiment: str) -> list[Json]:
        answer = await self._call("GET", f"{_experiment(experiment)}/policies")
        return list(answer.body["policies"])

    async def policy(self, experiment: str, policy: str, *, at: int | None = None) -> Json:
        """Return the status of one policy; `at` names the replica to ask first."""
        path = f"{_experiment(experiment)}/policies/{quote(policy, safe='')}"
        return (await self._call("GET", path, first=at)).body

    async def wait_ready(self, within_s: float) -> None:
        """Wait until every replica is ready. Raises Unreachable after `within_s`."""
        deadline = time.monotonic() + within_s
        for url in self.urls:
            while fault := await self._not_ready(url):
                if time.monotonic() >= deadline:
                    raise Unreachable(f"no ready Forage service at {url}: {fault}")
                await self._sleep(READY_POLL_S)

    async def wait_defined(self, experiment: str, within_s: float, *, arms: int = 0) -> None:
        """Wait until every replica has folded the definition of an experiment and so many arms.

        Raises Unreachable after `within_s`.
        """
        deadline = time.monotonic() + within_s
        for replica, url in enumerate(self.urls):
            while not _has(await self.get_experiment(experiment, at=replica), arms):
                if time.monotonic() >= deadline:
                    raise Unreachable(f"experiment {experiment!r} is not yet known at {url}")
                await self._sleep(READY_POLL_S)

    async def _not_ready(self, url: str) -> str:
        try:
            response = await self._send("GET", url, "/readyz", None, CONNECT_S)
        except httpx.TransportError as error:
            return str(error)
        if response.status_code == 404:
            raise Unreachable(f"what answers at {url} is not Forage (no /readyz)")
        return "" if response.is_success else str(problem_of(response))

    async def _call(
        self, method: str, path: str, body: Json | None = None, first: int | None = None
    ) -> Answer:
        """Call until a final answer, at most `bound_s` seconds."""
        if first is None:
            first = self._turns[path]
            self._turns[path] = first + 1
        content = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + self._bound_s
        retries = lost = 0
        while True:
            url = self.urls[(first + retries) % len(self.urls)]
            requested_pause_s = 0.0
            began = time.perf_counter()
            try:
                within_s = max(0.01, min(ATTEMPT_S, deadline - time.monotonic()))
                response = await self._send(method, url, path, content, within_s)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                fault = str(error)  # never arrived
            except (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError) as error:
                fault = str(error)
                lost += 1
            else:
                if response.is_success:
                    latency_ms = 1e3 * (time.perf_counter() - began)
                    answer = {} if response.status_code == 204 else json_of(response, url)
                    return Answer(answer, latency_ms, retries, lost)
                problem = problem_of(response)
                if response.status_code not in RETRYABLE:
                    raise problem
                fault = str(problem)
                requested_pause_s = retry_after_s(response)
            pause_s = max(requested_pause_s, self._backoff_s(retries))
            if time.monotonic() + pause_s > deadline:
                tries = f"{retries + 1} tries within {self._bound_s:.0f} s"
                raise Unreachable(f"{method} {path} at {url}: {fault} ({tries})")
            await self._sleep(pause_s)
            retries += 1

    async def _send(
        self, method: str, base: str, path: str, content: bytes | None, within_s: float
    ) -> httpx.Response:
        headers = {"content-type": "application/json"} if content is not None else {}
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        request = httpx.Request(
            method,
            _endpoint(base, path),
            headers=headers,
            content=content,
            extensions={"timeout": {"connect": min(CONNECT_S, within_s), "read": within_s}},
        )
        response = await self._transport.handle_async_request(request)
        await response.aread()
        return response

    def _backoff_s(self, retries: int) -> float:
        """Return an exponential pause, halved at random so that clients do not return together."""
        ceiling_s: float = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(retries, 16))
        return ceiling_s * float(self._rng.uniform(0.5, 1.0))


def bodies_of(definition: Json) -> list[Json]:
    """Return the body of a PUT, or if it is too long, one without arms and the arms in chunks."""
    if len(json.dumps(definition)) <= BODY_BYTES:
        return [definition]
    bodies: list[Json] = [definition | {"arms": {}}]
    left = 0
    for arm, features in definition["arms"].items():
        size = len(json.dumps({arm: features})) + 2
        if size > left or len(bodies[-1]["arms"]) >= BODY_ARMS:
            bodies.append({"arms": {}})
            left = BODY_BYTES
        bodies[-1]["arms"][arm] = features
        left -= size
    return bodies


def _has(experiment: Json | None, arms: int) -> bool:
    if experiment is None:
        return False
    return arms == 0 or len(experiment["definition"]["arms"]) >= arms


def _base(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UsageError(f"{url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(f"{url!r} is not a service's URL, such as http://127.0.0.1:8000")
    return url.rstrip("/")


def _experiment(name: str) -> str:
    return f"/experiments/{quote(name, safe='')}"


@lru_cache(maxsize=256)
def _endpoint(base: str, path: str) -> httpx.URL:
    return httpx.URL(base + path)
