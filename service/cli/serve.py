"""forage serve: answer requests, with a trainer beside."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from service.cli.entry import dying_at_interrupts
from service.cli.options import KeysFile, LogFormat, LogLevel, StoreUrl
from service.cli.running import read_settings, run_until_stopped


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
    workers: Annotated[
        str | None,
        Option(
            metavar="N",
            help="Processes that share the port and the log (FORAGE_WORKERS, 1); auto: one for "
            "each core.",
        ),
    ] = None,
    worker: Annotated[int | None, Option(hidden=True)] = None,
    trainer: Annotated[
        Literal["auto", "on", "off"] | None,
        Option(
            help="Start a trainer process beside the service (FORAGE_TRAINER); auto: with sqlite "
            "and torch only."
        ),
    ] = None,
    role: Annotated[
        Literal["learner", "decider"] | None,
        Option(
            help="What the process is for (FORAGE_ROLE, learner): a decider answers /select and "
            "/reward by what a learner publishes, and folds nothing."
        ),
    ] = None,
    keys: KeysFile = None,
    store: StoreUrl = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Answer /select and /reward over HTTP.

    Serve until SIGTERM or an interrupt; then drain for FORAGE_DRAIN_SECONDS, answer what was
    received, save the state and end. A second signal ends the service at once. At SIGHUP it reads
    keys and settings again. With no options it serves the Zooplus example from forage.db in this
    folder, with a trainer beside it; /docs describes every route.

    Exit status: 0 where a signal stopped it, 1 where it could not start, 130 or 143 after a second
    signal.

        forage serve                                 # on http://127.0.0.1:8000
        forage serve --experiment shop.toml --port 8080
        forage serve --workers 4                     # four processes
        forage serve --store redis://redis:6379/0    # several may share a log
        forage serve --store redis://redis:6379/0 --role decider
    """
    if worker is not None:
        with dying_at_interrupts():
            from service.server.worker import work_until_stopped
        return run_until_stopped(work_until_stopped(worker))
    settings = read_settings(
        host=host,
        port=port,
        workers=workers,
        experiments=experiments,
        trainer=trainer,
        role=role,
        keys=keys,
        store=store,
        log_level=log_level,
        log_format=log_format,
    )
    with dying_at_interrupts():  # numpy, uvicorn and the like take half a second
        from service.server.workers import serve_until_stopped
    return run_until_stopped(serve_until_stopped(settings))
