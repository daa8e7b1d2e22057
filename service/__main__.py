"""forage: serve an experiment, train its nets, audit its log."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from service import __version__
from service.errors import ConfigurationError, ForageError
from service.faults import faults_of
from service.settings import Settings

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger("forage")

SWITCH_SECONDS = 0.0002
"""How long a thread that waits for the interpreter waits at most. The log's writer thread comes
back from the disk some ten times a commit; Python's own 5 ms would make each a pause."""

INTERRUPTED = 130
"""Status of an audit that was not finished: it has said nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # heads are small; read when numpy is first imported
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    follow, parent = options.pop("follow", False), options.pop("parent", None)
    experiment, path = options.pop("experiment", None), options.pop("json", None)
    try:
        settings = _settings({name: value for name, value in options.items() if value is not None})
        _log_to_stderr(settings.log_level)
        if command == "serve":
            return _run(serve(settings))
        if command == "train":
            from service.training.trainer import run

            return _run(_trained(run(settings.store, settings.url, follow=follow, parent=parent)))
        if command == "audit":
            return audit(settings, experiment, path)
        print(_openapi())
    except ForageError as fault:
        print(f"forage: {fault}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forage",
        description="An online recommendation service that learns from every click.",
        epilog="Every option is also an environment variable: --store is FORAGE_STORE. "
        "README.md lists all settings.",
    )
    parser.add_argument("--version", action="version", version=f"forage {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serving = commands.add_parser("serve", help="answer /select and /reward over HTTP")
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

    training = commands.add_parser("train", help="fit the nets of the policies that have one")
    training.add_argument("--follow", action="store_true", help="keep training as rewards come")
    training.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    training.add_argument("--url", help="where the service is (http://127.0.0.1:8000)")

    auditing = commands.add_parser(
        "audit",
        help="derive every logged decision again",
        description="Fold the log once, from its beginning, and derive every decision in it again "
        "on the way: the choice from the logged probabilities and seed, the probabilities from "
        "head, features and bank, and what the events say of it. The store is only read; a "
        "service may be at work on it.",
        epilog="Exit status: 0 when all is as it was logged, 1 when something differs or the store "
        "cannot be read. Of each 10,000 decisions of an experiment one may differ where scores "
        "tie but for rounding, by at most 2 of its draws; it is named.",
    )
    auditing.add_argument("--experiment", metavar="NAME", help="audit this one alone (all)")
    auditing.add_argument(
        "--json", type=Path, metavar="PATH", help="write what was found here as well"
    )

    for command in (serving, training, auditing):
        command.add_argument(
            "--store",
            metavar="URL",
            help="sqlite:///path, redis://host:port/db or memory:// (sqlite:///forage.db)",
        )
        command.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    commands.add_parser("openapi", help="print the OpenAPI document")
    return parser


def _settings(options: dict[str, Any]) -> Settings:
    try:
        return Settings(**options)
    except ValidationError as error:
        named = dict.fromkeys(Settings.model_fields)
        faults = faults_of(error.errors(), named)
        lines = [f"FORAGE_{fault.path.upper()}: {fault.message}" for fault in faults]
        raise ConfigurationError("\n".join(lines)) from error


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _run(work: Coroutine[Any, Any, int]) -> int:
    import uvloop

    with contextlib.suppress(KeyboardInterrupt):
        return uvloop.run(work)
    return 0


async def _trained(work: Coroutine[Any, Any, int]) -> int:
    logger.info("%d versions handed over", await work)
    return 0


def audit(settings: Settings, experiment: str | None, path: Path | None) -> int:
    """Audit the log, print what was found, and write it to `path`."""
    import uvloop

    from service.audit import audit_store
    from service.findings import table

    say = _say if sys.stderr.isatty() else None
    try:
        found = uvloop.run(audit_store(settings.store, experiment, say))
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if say:
            say("")
    print(table(found))
    if path is not None:
        content = json.dumps([each.as_json() for each in found], indent=2)
        try:
            path.write_text(content + "\n", encoding="utf-8")
        except OSError as fault:
            raise ConfigurationError(f"{path}: {fault.strerror}") from fault
    return 0 if all(each.clean for each in found) else 1


def _say(line: str) -> None:
    """In place of what was said before, on a terminal."""
    print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; then finish what was asked, save the state, and end with 0."""
    import uvicorn

    from service.app import create_app
    from service.services import open_services

    if settings.trainer == "on" and settings.store.startswith("memory"):
        raise ConfigurationError("FORAGE_TRAINER: no other process can read a memory:// store")
    sys.setswitchinterval(SWITCH_SECONDS)
    with _listen(settings) as listener:
        port = listener.getsockname()[1]
        async with open_services(settings) as services:
            config = uvicorn.Config(
                create_app(services),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=10,
            )
            server = _server(config)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, setattr, server, "should_exit", True)
            logger.info(
                "serving %s on http://%s:%d (/docs), store %s",
                ", ".join(services.journal.states),
                settings.host,
                port,
                settings.store.partition("://")[0],
            )
            trainer = asyncio.create_task(_keep_training(settings, port))
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


async def _keep_training(settings: Settings, port: int) -> None:
    """Run a trainer as a child process, and another where it dies. Serving does not wait for it."""
    embedded = settings.store.startswith("sqlite")
    if settings.trainer == "off" or (settings.trainer == "auto" and not embedded):
        return
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    command = [sys.executable, "-m", "service", "train", "--follow", "--parent", str(os.getpid())]
    command += ["--store", settings.store]
    command += ["--url", f"http://{host}:{port}", "--log-level", settings.log_level]
    while True:
        child = await asyncio.create_subprocess_exec(*command)
        try:
            status = await child.wait()
        except asyncio.CancelledError:
            child.terminate()
            await child.wait()
            raise
        logger.warning("the trainer ended with status %d: another is started", status)
        await asyncio.sleep(1.0)


def _openapi() -> str:
    from service.app import create_app
    from service.journal import Journal
    from service.services import assemble
    from service.stores import open_store
    from service.telemetry import Telemetry

    settings = Settings(store="memory://")
    journal = Journal(open_store(settings.store), settings, Telemetry())
    return json.dumps(create_app(assemble(settings, journal, [bytes(32)])).openapi(), indent=2)


if __name__ == "__main__":
    sys.exit(main())
