"""forage: serve an experiment, train its nets, look after its log."""

if __name__ == "__main__":  # python -m service
    from service.program import run

    run()  # it imports this file under its own name, and ends the process

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from service import __version__
from service.allocator import keep_freed_memory
from service.commands import COMMANDS, GROUPS
from service.commands.parser import Parser, ending, fill, overview
from service.commands.running import Command, run_until_stopped
from service.errors import ConfigurationError, ForageError
from service.faults import faults_of
from service.interrupts import at_once
from service.logs import log_to_stderr
from service.settings import Settings

if TYPE_CHECKING:
    import uvicorn

    from service.access import Access

logger = logging.getLogger("forage")

SWITCH_SECONDS = 0.0002
"""How long a thread that waits for the interpreter waits at most. The log's writer thread comes
back from the disk some ten times a commit; Python's own 5 ms would make each a pause."""

COLLECTIONS = (20_000, 20, 20)
"""A decision makes some fifty objects that a collector counts and none that it frees: Python's own
700 would look through the young ones every fourteen requests."""


def main(arguments: Sequence[str] | None = None) -> int:
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # heads are small; read when numpy is first imported
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    chosen = {name: value for name, value in options.items() if value is not None}
    try:
        settings = _settings({name: chosen[name] for name in Settings.model_fields.keys() & chosen})
        log_to_stderr(settings.log_level, settings.log_format, settings.token_keys)
        return LISTED[command].run(settings, options)
    except ForageError as fault:
        print(f"forage: {fault}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    by_group = sorted(LISTED.items(), key=lambda item: GROUPS.index(item[1].group))
    parser = Parser(
        prog="forage",
        usage="forage COMMAND [OPTIONS]",
        overview=overview(dict(by_group), EXAMPLES),
    )
    parser.add_argument("--version", action="version", version=f"forage {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in LISTED.items():
        parser_of = commands.add_parser(
            name,
            prog=f"forage {name}",
            description=fill(
                command.description or f"{command.help[0].upper()}{command.help[1:]}."
            ),
            epilog=ending(command),
        )
        command.add_options(parser_of)
        if command.stores:
            parser_of.add_argument(
                "--store",
                metavar="URL",
                help="sqlite:///path, redis://host:port/db or memory:// (sqlite:///forage.db)",
            )
        parser_of.add_argument(
            "--log-level",
            choices=["debug", "info", "warning", "error"],
            metavar="LEVEL",
            help="debug, info, warning or error (info)",
        )
        parser_of.add_argument(
            "--log-format",
            choices=["auto", "console", "json"],
            metavar="FORM",
            help="console, json, or auto: console on a terminal, else json (auto)",
        )
    return parser


def _serve_options(serving: argparse.ArgumentParser) -> None:
    serving.add_argument("--host", help="address to listen on (127.0.0.1)")
    serving.add_argument("--port", type=int, help="port to listen on; 0 takes a free one (8000)")
    serving.add_argument(
        "--experiment",
        dest="experiments",
        action="append",
        metavar="FILE",
        help="TOML file of an experiment to serve; may be repeated (the Zooplus example)",
    )
    serving.add_argument(
        "--trainer",
        choices=["auto", "on", "off"],
        help="start a trainer process beside the service (auto: with an embedded store)",
    )
    serving.add_argument(
        "--keys",
        metavar="FILE",
        help="API keys, as `forage keys` keeps them: every request then needs one",
    )


def _settings(options: dict[str, Any]) -> Settings:
    try:
        return Settings(**options)
    except ValidationError as error:
        named = dict.fromkeys(Settings.model_fields)
        faults = faults_of(error.errors(), named)
        lines = [f"FORAGE_{fault.path.upper()}: {fault.message}" for fault in faults]
        raise ConfigurationError("\n".join(lines)) from error


def _serve(settings: Settings) -> int:
    with at_once():  # what `serve` imports
        import service.app
        import service.services  # noqa: F401
    return run_until_stopped(serve(settings))


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; then finish what was asked, save the state, and end with 0."""
    import uvicorn

    from service.app import create_app
    from service.http.bounded import protocol
    from service.services import check_exposure, open_services

    check_exposure(settings)
    if settings.trainer == "on" and settings.store.startswith("memory"):
        raise ConfigurationError("FORAGE_TRAINER: no other process can read a memory:// store")
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
                proxy_headers=False,  # whose request it is, `addresses` tells
                timeout_graceful_shutdown=10,
                http=cast(Any, protocol(services.connections)),  # any that makes a protocol
            )
            server = _server(config)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, setattr, server, "should_exit", True)
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
            await server.serve(sockets=[listener])
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


SERVE = Command(
    "answer /select and /reward over HTTP",
    _serve_options,
    lambda settings, options: _serve(settings),
    description="Answer /select and /reward until SIGTERM or an interrupt; then finish what was "
    "asked, save the state, and end. With nothing given it serves the Zooplus example from "
    "forage.db in this folder, with a trainer beside it; /docs describes every route.",
    epilog="Exit status: 0 when it was stopped, 1 when it could not start.",
    example="forage serve                                 # the example, on http://127.0.0.1:8000\n"
    "forage serve --experiment shop.toml --port 8080\n"
    "forage serve --store redis://redis:6379/0    # any number of these may share the log",
    group="Start",
)

LISTED = {"serve": SERVE, **COMMANDS}
"""Every command by name."""

EXAMPLES = (
    "forage serve                                 # a pet shop, on http://127.0.0.1:8000",
    "forage init shop.toml                        # an experiment of your own, explained",
    "forage check shop.toml                       # what is wrong with it, and where",
    "forage serve --experiment shop.toml",
    "forage doctor --url http://127.0.0.1:8000    # is all as it should be?",
)
