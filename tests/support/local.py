"""A service in this process, asked over its wire."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from random import Random
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI

from service.app import open_services
from service.clock import SYSTEM, Clock
from service.http.application import create_app
from service.http.services import Services
from service.log.stores import Store
from service.settings import Settings

T = TypeVar("T")
L = TypeVar("L", bound="LocalService")

URL = "http://forage"
UNTIL_S = 60.0
PATIENCE_S = 60.0
"""A decision waits so long for a log that stands still: on a busy machine any log does for a
moment."""


class LocalService:
    """One service and a client to it. Between requests nothing runs: time passes in `sleep`."""

    def __init__(self, runner: asyncio.Runner, services: Services, app: FastAPI) -> None:
        self._runner = runner
        self.services, self.app = services, app
        self.client = self.connect()

    def connect(self, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, **options)
        return httpx.AsyncClient(transport=transport, base_url=URL)

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self._runner.run(wait())

    def sleep(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def until(self, true: Callable[[], bool]) -> None:
        """Let time pass until a condition holds, and fail where it does not come to hold."""
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


@contextmanager
def local(
    kind: type[L],
    log: Store | None = None,
    *,
    clock: Clock = SYSTEM,
    rng: Random | None = None,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    **settings: Any,
) -> Iterator[L]:
    """A service on an in-memory log, on `log`, or where the settings say. Time alone does nothing
    to it. loop: makes its event loop, where that is no usual one."""
    chosen = Settings(
        **{
            "store": "memory://",
            "expiry_seconds": 3600.0,
            "allowed_hosts": ["forage"],  # of URL
            "select_log_seconds": PATIENCE_S,
            **settings,
        }
    )
    with asyncio.Runner(loop_factory=loop) as runner:
        stack = AsyncExitStack()
        services = runner.run(
            stack.enter_async_context(open_services(chosen, log, clock=clock, rng=rng))
        )
        try:
            found = kind(runner, services, create_app(services))
            stack.push_async_callback(found.client.aclose)
            yield found
        finally:
            runner.run(stack.aclose())
