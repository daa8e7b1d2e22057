"""Serve in this process until a signal stops it: as a whole service, or as one of its workers."""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import uvicorn

from service.app import Workers, check_exposure, open_store_services, start
from service.errors import ConfigurationError
from service.http.application import create_app
from service.http.protocol import protocol
from service.http.services import Services
from service.server.allocator import keep_freed_memory
from service.server.server import Server
from service.server.signals import Signals
from service.server.training import keep_training, trainer_key, trains
from service.settings import Settings
from service.training import expect_torch

logger = logging.getLogger("forage")

SWITCH_SECONDS = 0.0002
"""Longest that a thread waits for the interpreter, in seconds. The log's writer thread returns from
the disk about ten times a commit; Python's own 5 ms would make each return a pause."""

LISTENERS = 16
"""Listeners on the one socket. libuv accepts one connection per listener in each turn of the event
loop: under load a turn takes tens of milliseconds, and new clients would wait for seconds."""

UNREAD_MS = 30_000
"""Milliseconds after which the kernel closes a connection whose client takes nothing of its
answer."""

REQUEST_SECONDS = 10
"""Seconds for the requests under way once the service stops."""

COLLECTIONS = (20_000, 20, 20)
"""Thresholds of the garbage collector. A decision makes about fifty objects that it counts and none
that it frees: Python's own threshold of 700 would start a collection every fourteen requests."""


@dataclass(frozen=True)
class Process:
    """A process that serves, or will once its log is recovered. ready: it serves all routes."""

    services: Services
    server: Server
    signals: Signals
    ready: asyncio.Event = field(default_factory=asyncio.Event)


Beside = Callable[[Process], Coroutine[None, None, None]]
"""Work beside a process that serves, until that ends."""


def check_start(settings: Settings) -> None:
    """Raise ConfigurationError for settings with which no service may start."""
    check_exposure(settings)
    if settings.trainer == "on" and settings.store.startswith("memory"):
        raise ConfigurationError("FORAGE_TRAINER: no other process can read a memory:// store")
    if settings.trainer == "on":
        expect_torch()


async def serve_alone(settings: Settings) -> None:
    """Serve in this process, with a trainer beside, until a signal stops it."""
    with listen(settings) as listener:
        port = listener.getsockname()[1]

        async def beside(process: Process) -> None:
            await process.ready.wait()
            tell_of_serving(settings, port, process.services.log.replicas.states)
            if trains(settings):
                if key := trainer_key(settings):
                    process.services.access.accept(key, "trainer", "admin")
                await keep_training(settings, port, key)

        await serve_here(settings, listener, beside)


def tell_of_serving(
    settings: Settings, port: int, experiments: Iterable[str], more: str = ""
) -> None:
    logger.info(
        "serving %s on http://%s:%d (/docs), store %s%s",
        ", ".join(experiments) or "no experiment",
        settings.host,
        port,
        settings.store.partition("://")[0],
        more,
    )


async def serve_here(
    settings: Settings,
    listener: socket.socket | None,
    beside: Beside,
    workers: Workers | None = None,
) -> None:
    """Serve in this process until it is stopped.

    listener   answers probes while the log is recovered; None: it listens from then on
    workers    of which it is one
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_freed_memory()
    async with open_store_services(settings, workers=workers) as services:
        app = create_app(services)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # `addresses` names the client
            timeout_graceful_shutdown=REQUEST_SECONDS,
            ws="none",
            http=protocol(services, app.edge),  # type: ignore[arg-type]  # a factory is accepted
        )
        server = Server(config, services)
        signals = Signals(server, services, settings)
        signals.listen()
        process = Process(services, server, signals)
        working = asyncio.create_task(beside(process))
        working.add_done_callback(_report)
        with ExitStack() as later:
            serving = None if listener is None else _begin(server, listener)
            try:
                if await _started(process, serving):
                    if serving is None:
                        serving = _begin(server, later.enter_context(listen(settings)))
                    gc.collect()
                    gc.freeze()  # what exists now stays: no collection needs to visit it again
                    gc.set_threshold(*COLLECTIONS)
                    process.ready.set()
                    await asyncio.wait({serving})
            finally:
                server.stop()
                if serving is not None:
                    await serving
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)


def _report(ended: asyncio.Task[None]) -> None:
    if not ended.cancelled() and (fault := ended.exception()) is not None:
        logger.error("what runs beside the server failed", exc_info=fault)


def _begin(server: Server, listener: socket.socket) -> asyncio.Task[None]:
    others = [listener.dup() for _ in range(LISTENERS - 1)]
    return asyncio.create_task(server.serve(sockets=[listener, *others]))


async def _started(process: Process, serving: asyncio.Task[None] | None) -> bool:
    """Start while the server answers probes; False where it was stopped meanwhile."""
    starting = asyncio.create_task(start(process.services))
    stopped = asyncio.create_task(process.server.stopping.wait())
    ends = {starting, stopped} if serving is None else {starting, stopped, serving}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    starting.result()
    return not process.services.lifecycle.draining


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens. Raises ConfigurationError."""
    listener = bind(settings, shared=settings.workers != 1)
    if sys.platform == "linux":  # accepted sockets inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    try:
        listener.listen(2_048)
    except OSError as fault:
        listener.close()
        raise _deaf(settings, fault) from fault
    listener.setblocking(False)
    return listener


def bind(settings: Settings, *, shared: bool) -> socket.socket:
    """Return a socket with the address of the service. Raises ConfigurationError. shared: with
    other sockets that are bound so."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((settings.host, settings.port))
    except OSError as fault:
        bound.close()
        raise _deaf(settings, fault) from fault
    return bound


def _deaf(settings: Settings, fault: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot listen on {settings.host}:{settings.port}: {fault.strerror}")
