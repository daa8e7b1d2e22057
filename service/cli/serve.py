"""forage serve: answer requests, with a trainer beside."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from service.cli.options import KeysFile, LogFormat, LogLevel, StoreUrl
from service.cli.running import read_settings, run_until_stopped
from service.errors import ConfigurationError
from service.settings import Settings
from service.training import TORCH, can_train, expect_torch

if TYPE_CHECKING:
    import uvicorn

    from service.security.access import Access

logger = logging.getLogger("forage")

SWITCH_SECONDS = 0.0002
"""Longest that a thread waits for the interpreter. The log's writer thread returns from the disk
about ten times a commit; Python's own 5 ms would make each return a pause."""

LISTENERS = 16
"""Listeners on the one socket. libuv accepts one connection per listener in each turn of the event
loop: under load a turn takes tens of milliseconds, and new clients would wait for seconds."""

COLLECTIONS = (20_000, 20, 20)
"""Thresholds of the garbage collector. A decision makes about fifty objects that it counts and none
that it frees: Python's own threshold of 700 would start a collection every fourteen requests."""


def serve(
    host: Annotated[
        str | None, Option(metavar="HOST", help="Address to listen on (FORAGE_HOST, 127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None,
        Option(metavar="PORT", help="Port to listen on (FORAGE_PORT, 8000); 0 takes a free one."),
    ] = None,
    experiments: Annotated[
        list[Path] | None,
        Option(
            "--experiment",
            metavar="FILE",
            help="TOML file of an experiment to define where the log has none of its name "
            "(FORAGE_EXPERIMENTS); may be repeated. Without any, an empty log gets the Zooplus "
            "example.",
        ),
    ] = None,
    trainer: Annotated[
        Literal["auto", "on", "off"] | None,
        Option(
            help="Start a trainer process beside the service (FORAGE_TRAINER); auto: with sqlite "
            "and torch only."
        ),
    ] = None,
    keys: KeysFile = None,
    store: StoreUrl = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Answer /select and /reward over HTTP.

    Serve until SIGTERM or an interrupt; then answer pending requests, save the state and end. A
    second signal ends the service at once. At SIGHUP it reads keys and settings again. With no
    options it serves the Zooplus example from forage.db in this folder, with a trainer beside it;
    /docs describes every route.

    Exit status: 0 where a signal stopped it, 1 where it could not start, 130 or 143 after a second
    signal.

        forage serve                                 # on http://127.0.0.1:8000
        forage serve --experiment shop.toml --port 8080
        forage serve --store redis://redis:6379/0    # several may share a log
    """
    settings = read_settings(
        host=host,
        port=port,
        experiments=experiments,
        trainer=trainer,
        keys=keys,
        store=store,
        log_level=log_level,
        log_format=log_format,
    )
    return run_until_stopped(serve_until_stopped(settings))


async def serve_until_stopped(settings: Settings) -> int:
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
                http=protocol(services.connections, services.shedding),  # type: ignore[arg-type]  # a factory is accepted
            )
            server = _server(config)
            services.journal.spawn(services.shedding.run())
            Signals(server, services, settings).listen()
            gc.collect()
            gc.freeze()  # what exists now stays: no collection needs to visit it again
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
        """Leave signals to `Signals`: uvicorn would raise them again after its own shutdown, before
        the state is saved."""

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
    """Run a trainer as a child process, and start another where it dies."""
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
