"""A service in this process. Each of its answers is checked against the OpenAPI document."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import httpx

from service.app import assemble, open_services
from service.http.application import Application, create_app
from service.http.openapi import document
from service.http.request_head import PROBES
from service.http.services import Services
from service.log.stores import Store
from service.log.stores.memory import MemoryStore
from service.settings import Settings
from tests.support.clock import SetClock, VirtualClock, clock_of_loop, unhurried

T = TypeVar("T")
Json = dict[str, Any]

URL = "http://forage"
UNTIL_S = 60.0
PATIENCE_S = 60.0
"""A decision waits this long for the log: on a busy machine any log stands still for a moment."""

SHOP = Path(__file__).parents[1] / "http" / "shop.toml"
SECRET = b"a secret of 16 bytes or more"
PROBLEM = {"type", "title", "status", "detail", "errors"}


@cache
def openapi(*, required: bool = False) -> Json:
    """The document as the code of now writes it. required: where requests need a key."""
    app = create_app(assemble(Settings(store="memory://"), MemoryStore(), [bytes(32)]))
    return document(app, required)


@cache
def _operations() -> list[tuple[re.Pattern[str], Json]]:
    return [(re.compile(_pattern(path)), methods) for path, methods in served_paths().items()]


def served_paths() -> dict[str, Json]:
    """Operations by path: those of the document, and their short forms."""
    return {**openapi()["paths"], **short_forms()}


def short_forms() -> dict[str, Json]:
    """Operations by the paths that a service with one experiment has beside those of the document,
    whose description names them."""
    return {
        short: methods
        for path, methods in openapi()["paths"].items()
        for short in [path.removeprefix("/experiments/{experiment}")]
        if short.partition("/")[2].partition("/")[0] in ("arms", "policies", "import")
        and "/versions" not in short
        and not short.endswith("/share")
    }


def _pattern(path: str) -> str:
    """Of a path of the document: an arm or a unit may hold slashes and line ends."""
    whole = re.sub(r"\{(arm|unit)\}$", "(?s:.+)", path)
    return re.sub(r"\{\w+\}", "[^/]+", whole)


def declared(method: str, path: str) -> Json | None:
    """The operation that answers; None where the document has none."""
    for pattern, methods in _operations():
        if pattern.fullmatch(path) and method.lower() in methods:
            found: Json = methods[method.lower()]
            return found
    return None


def expect_declared(response: httpx.Response) -> None:
    """The status is one that the document declares for this route, the content of its type."""
    request = response.request
    operation = declared(request.method, request.url.path)
    if operation is None:
        assert response.status_code in (200, 304, 307, 308, 401, 403, 404, 405, 413, 421, 422), (
            response.text
        )
        return
    said = operation["responses"].get(str(response.status_code))
    assert said, f"{request.method} {request.url.path} answers {response.status_code}, undeclared"
    kind = response.headers.get("content-type", "").partition(";")[0]
    assert kind in said.get("content", {"": None}), f"{kind} is not declared"


def expect_problem(response: httpx.Response, status: int) -> Json:
    """Problem details (RFC 9457) of our one shape; they are the answer."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: Json = response.json()
    assert problem.keys() == PROBLEM | ({"request_id"} if status >= 500 else set())
    assert problem["type"].startswith("https://forage.dev/problems/")
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    for fault in problem["errors"]:
        assert fault.keys() == {"path", "message"}
        assert fault["message"]
    assert ("retry-after" in response.headers) == (status in (429, 503))
    return problem


def filled(path: str, experiment: str) -> str:
    """A path of the document with names for what it leaves open."""
    return re.sub(r"\{\w+\}", "a", path.replace("{experiment}", experiment))


def paths(problem: Json) -> list[str]:
    return sorted(fault["path"] for fault in problem["errors"])


async def _check(response: httpx.Response) -> None:
    await response.aread()
    expect_declared(response)
    probe = response.request.url.path in PROBES  # it reads the status, and what it lacks
    if response.status_code >= 400 and not probe:
        expect_problem(response, response.status_code)


class Wire:
    """A service in this process and a client that checks its every answer.

    Nothing runs between requests: time passes in `sleep`.
    """

    def __init__(self, runner: asyncio.Runner, services: Services, app: Application) -> None:
        self._runner = runner
        self.services, self.app = services, app
        self.client = self.connect()

    def connect(self, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, **options)
        hooks = {"response": [_check]}
        return httpx.AsyncClient(transport=transport, base_url=URL, event_hooks=hooks)

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self._runner.run(wait())

    def sleep(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def until(self, true: Callable[[], bool]) -> None:
        """Let time pass until a condition holds; fail after UNTIL_S."""
        loop = self._runner.get_loop()
        deadline = loop.time() + UNTIL_S
        while not true():
            assert loop.time() < deadline
            self.sleep(0.01)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.run(self.client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=json, **options)

    def put(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return self.request("PUT", path, json=json, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.request("DELETE", path, **options)

    @property
    def clock(self) -> SetClock:
        assert isinstance(self.services.clock, SetClock)
        return self.services.clock

    def select(self, **question: Any) -> Json:
        """A decision; about a cat, where nothing is said of the context."""
        answer = self.post("/select", {"context": {"persona": "cat"}, **question})
        assert answer.status_code == 200, answer.text
        decision: Json = answer.json()
        return decision

    def reward(self, decision: Json, reward: float | None = None, **more: Any) -> str:
        """What came of a decision; the status of the answer."""
        body = {"decision_id": decision["decision_id"], **more}
        answer = self.post("/reward", body if reward is None else {**body, "reward": reward})
        assert answer.status_code == 200, answer.text
        status: str = answer.json()["status"]
        return status

    def refuse(self, status: int, decision: Json, reward: float | None = 1.0, **more: Any) -> Json:
        """Send a reward that is refused, and return the problem."""
        body = {"decision_id": decision["decision_id"], **more}
        sent = self.post("/reward", body if reward is None else {**body, "reward": reward})
        return expect_problem(sent, status)

    def explain(self, decision: Json) -> Json:
        """Return what /decisions tells of a decision."""
        answer = self.get(f"/decisions/{decision['id']}")
        assert answer.status_code == 200, answer.text
        told: Json = answer.json()
        return told

    def learned(self, decision: Json) -> dict[str, float]:
        """Return the learned reward of each arm of a decision."""
        return {arm["arm"]: arm["reward"] for arm in self.explain(decision)["learned"]}

    def teach(self, count: int = 1, policy: str = "linucb") -> list[Json]:
        """Reward decisions of a policy with 1."""
        decisions = [self.select(policy=policy) for _ in range(count)]
        assert {self.reward(decision, 1.0) for decision in decisions} <= {"accepted"}
        return decisions

    def rewards(self, policy: str = "linucb") -> int:
        """Count the settled rewards of a policy."""
        count: int = self.policy(policy)["rewards"]
        return count

    def trim(self) -> int:
        return self.run(self.services.retention.trim_all())

    def policy(self, name: str, experiment: str = "shop") -> Json:
        status: Json = self.get(f"/experiments/{experiment}/policies/{name}").json()
        return status

    def definition(self, experiment: str = "shop") -> Json:
        found: Json = self.get(f"/experiments/{experiment}").json()["definition"]
        return found

    def redefine(self, experiment: str = "shop", **parts: Any) -> Json:
        """Replace parts of a definition; the answer to the PUT."""
        definition = {**self.definition(experiment), **parts}
        answer = self.put(f"/experiments/{experiment}?replace=true", definition)
        assert answer.status_code == 200, answer.text
        body: Json = answer.json()
        return body

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels, as they are written: 'forage_x_total{a="b"}'."""
        lines = self.get("/metrics").text.splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def pass_by(self, seconds: float) -> None:
        """So much time passes, and decisions that have expired by then learn their default."""
        self.clock.skip(seconds)
        while self.run(self.services.expiry.expire_due()):
            pass


@contextmanager
def serving(
    log: Store | None = None, clock: SetClock | None = None, **settings: Any
) -> Iterator[Wire]:
    """Run a service of the shop (shop.toml) on `log`, or else on the store of the settings.

    By default the store is in memory. Then the service runs in virtual time, unless it is given a
    clock of the host: with that its event loop is a usual one, with threads. A passing second alone
    does nothing to a service.
    """
    in_memory = isinstance(log, MemoryStore) or (log is None and "store" not in settings)
    clock = clock or (VirtualClock() if in_memory else SetClock())
    loop = clock.loop if isinstance(clock, VirtualClock) and in_memory else None
    chosen: dict[str, Any] = {
        "store": "memory://",
        "experiments": [SHOP],
        "expiry_seconds": 3600.0,
        "allowed_hosts": ["forage"],  # of URL
        "select_log_seconds": PATIENCE_S,
        **settings,
    }
    with unhurried(), asyncio.Runner(loop_factory=loop) as runner:
        stack = AsyncExitStack()
        opening = open_services(Settings(**chosen), log, clock=clock, rng=clock.rng)
        services = runner.run(stack.enter_async_context(opening))
        try:
            app = create_app(services)
            app.openapi_schema = openapi(required=services.access.required)  # made once
            wire = Wire(runner, services, app)
            stack.push_async_callback(wire.client.aclose)
            yield wire
        finally:
            runner.run(stack.aclose())


def virtual_services(settings: Settings, store: Store, rng: Random | None = None) -> Services:
    """The parts of a service over a store in memory, on the virtual loop that runs."""
    clock = clock_of_loop()
    return assemble(settings, store, [SECRET], clock=clock, rng=rng or clock.rng)
