"""Serve requests in this process until a signal stops it, with a trainer as a child process."""

import asyncio
import gc
import logging
import os
import socket
import sys

import uvicorn

from service.app import check_exposure, open_store_services, start
from service.errors import ConfigurationError
from service.http.application import create_app
from service.http.protocol import protocol
from service.http.services import Services
from service.security.access import Access
from service.server.allocator import keep_freed_memory
from service.server.server import Server
from service.server.signals import Signals
from service.settings import Settings
from service.training import TORCH, can_train, expect_torch

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


async def serve_until_stopped(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; then finish pending requests and save the state."""
    check_exposure(settings)
    if settings.trainer == "on" and settings.store.startswith("memory"):
        raise ConfigurationError("FORAGE_TRAINER: no other process can read a memory:// store")
    if settings.trainer == "on":
        expect_torch()
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_freed_memory()
    with _listen(settings) as listener:
        port = listener.getsockname()[1]
        async with open_store_services(settings) as services:
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
            Signals(server, services, settings).listen()
            others = [listener.dup() for _ in range(LISTENERS - 1)]
            serving = asyncio.create_task(server.serve(sockets=[listener, *others]))
            try:
                if await _started(services, serving):
                    await _serve(services, port, serving)
            finally:
                server.stop()
                await serving
    return 0


async def _started(services: Services, serving: asyncio.Task[None]) -> bool:
    """Start while the server answers probes; False where a signal stopped it meanwhile."""
    starting = asyncio.create_task(start(services))
    await asyncio.wait({starting, serving}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    starting.result()
    return not services.lifecycle.draining


async def _serve(services: Services, port: int, serving: asyncio.Task[None]) -> None:
    """Serve all routes, with a trainer beside, until a signal stops it."""
    gc.collect()
    gc.freeze()  # what exists now stays: no collection needs to visit it again
    gc.set_threshold(*COLLECTIONS)
    settings = services.settings
    logger.info(
        "serving %s on http://%s:%d (/docs), store %s",
        ", ".join(services.log.replicas.states) or "no experiment",
        settings.host,
        port,
        settings.store.partition("://")[0],
    )
    trainer = asyncio.create_task(_keep_training(settings, port, services.access))
    await asyncio.wait({serving})
    trainer.cancel()
    await asyncio.gather(trainer, return_exceptions=True)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":  # accepted sockets inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2_048)
    except OSError as fault:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port}: {fault.strerror}"
        ) from fault
    listener.setblocking(False)
    return listener


async def _keep_training(settings: Settings, port: int, access: Access) -> None:
    """Run a trainer as a child process, and start another where it dies."""
    embedded = settings.store.startswith("sqlite")
    if settings.trainer == "off" or (settings.trainer == "auto" and not embedded):
        return
    if not can_train():
        logger.warning("no trainer runs, so policies with a net stay untrained: %s", TORCH)
        return
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    command = [sys.executable, "-m", "service", "train", "--follow", "--parent", str(os.getpid())]
    command += ["--url", f"http://{host}:{port}", "--log-level", settings.log_level]
    # Secrets are in the environment, which only this user can read; not in `ps`.
    environment = {**os.environ, "FORAGE_STORE": settings.store}
    environment.pop("FORAGE_STORE_FILE", None)
    if access.required:
        environment["FORAGE_KEY"] = access.issue_process_key("trainer", "admin")
        environment.pop("FORAGE_KEY_FILE", None)
    while True:
        # A session of its own: an interrupt at the terminal is for this process, which ends both.
        child = await asyncio.create_subprocess_exec(
            *command, env=environment, start_new_session=True
        )
        try:
            status = await child.wait()
        except asyncio.CancelledError:
            child.terminate()
            await child.wait()
            raise
        logger.warning("the trainer ended with status %d: starting another", status)
        await asyncio.sleep(1.0)
