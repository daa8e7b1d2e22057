"""forage serve: answer requests, with a trainer beside."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from service.cli.running import Command, run_until_stopped
from service.errors import ConfigurationError
from service.settings import Settings
from service.training import TORCH, can_train, expect_torch

if TYPE_CHECKING:
    import uvicorn

    from service.security.access import Access

logger = logging.getLogger("forage")

SWITCH_SECONDS = 0.0002
"""How long a thread that waits for the interpreter waits at most. The log's writer thread comes
back from the disk some ten times a commit; Python's own 5 ms would make each a pause."""

LISTENERS = 16
"""Of one socket. libuv accepts one connection a listener in each turn of the event loop: under load
a turn takes tens of milliseconds, and new clients would wait for seconds."""

COLLECTIONS = (20_000, 20, 20)
"""A decision makes some fifty objects that a collector counts and none that it frees: Python's own
700 would look through the young ones every fourteen requests."""


@partial(
    Command,
    summary="answer /select and /reward over HTTP",
    epilog="Exit status: 0 when it was stopped, 1 when it could not start, 130 or 143 when it was "
    "stopped twice.",
    example="forage serve                                 # the example, on http://127.0.0.1:8000\n"
    "forage serve --experiment shop.toml --port 8080\n"
    "forage serve --store redis://redis:6379/0    # any number of these may share the log",
    settings=("host", "port", "experiments", "trainer", "keys", "store"),
)
def command(settings: Settings) -> int:
    """Answer /select and /reward until SIGTERM or an interrupt; then finish what was asked, save
    the state, and end; a second one ends it at once. SIGHUP has it read keys and settings again.
    With nothing given it serves the Zooplus example from forage.db in this
    folder, with a trainer beside it; /docs describes every route."""
    return run_until_stopped(serve(settings))


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; then finish pending requests and save the state."""
    import uvicorn

    from service.app import check_exposure, open_services
    from service.cli.allocator import keep_freed_memory
    from service.cli.signals import Signals
    from service.http.application import create_app
    from service.http.bounded import protocol

    check_exposure(settings)
    if settings.trainer == "on" and settings.store.startswith("memory"):
        raise ConfigurationError("FORAGE_TRAINER: no other process can read a memory:// store")
    if settings.trainer == "on":
        expect_torch()
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_freed_memory()
    with _listen(settings) as listener:
        port = listener.getsockname()[1]
        async with open_services(settings) as services:
            app = create_app(services)
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                proxy_headers=False,  # `addresses` names the client
                timeout_graceful_shutdown=10,
                http=protocol(services.connections, services.shedding),  # type: ignore[arg-type]  # any that makes one
            )
            server = _server(config)
            services.journal.spawn(services.shedding.run())
            Signals(server, services, settings).listen()
            gc.collect()
            gc.freeze()  # what is there now stays: no collection need look at it again
            gc.set_threshold(*COLLECTIONS)
            logger.info(
                "serving %s on http://%s:%d (/docs), store %s",
                ", ".join(services.journal.states),
                settings.host,
                port,
                settings.store.partition("://")[0],
            )
            trainer = asyncio.create_task(_keep_training(settings, port, services.access))
            await server.serve(sockets=[listener.dup() for _ in range(LISTENERS)])
            trainer.cancel()
            await asyncio.gather(trainer, return_exceptions=True)
    return 0


def _server(config: "uvicorn.Config") -> "uvicorn.Server":
    import uvicorn

    class Server(uvicorn.Server):
        """Signals are `serve`'s: uvicorn would raise them again after its own shutdown, before the
        state is saved."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(config)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


async def _keep_training(settings: Settings, port: int, access: "Access") -> None:
    """Run a trainer as a child process, and another where it dies. Serving does not wait for it."""
    embedded = settings.store.startswith("sqlite")
    if settings.trainer == "off" or (settings.trainer == "auto" and not embedded):
        return
    if not can_train():
        logger.warning("no trainer runs, so policies with a net stay untrained: %s", TORCH)
        return
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    command = [sys.executable, "-m", "service", "train", "--follow", "--parent", str(os.getpid())]
    command += ["--store", settings.store]
    command += ["--url", f"http://{host}:{port}", "--log-level", settings.log_level]
    environment = dict(os.environ)
    if access.required:  # in the environment, which only this user can read; not in `ps`
        environment["FORAGE_KEY"] = access.lend("trainer", "admin")
    while True:
        # A session of its own: an interrupt at the terminal is for this process, which ends it.
        child = await asyncio.create_subprocess_exec(
            *command, env=environment, start_new_session=True
        )
        try:
            status = await child.wait()
        except asyncio.CancelledError:
            child.terminate()
            await child.wait()
            raise
        logger.warning("the trainer ended with status %d: another is started", status)
        await asyncio.sleep(1.0)
