"""forage export: decisions and events of a log as Parquet."""

from pathlib import Path
from typing import Annotated

import uvloop
from typer import Option

from service.cli.options import AnyExperiment, LogFormat, LogLevel, Parallel, ServiceUrl, StoreUrl
from service.cli.running import progress, read_settings, run_until_stopped
from service.errors import ConfigurationError
from service.log.reading import Progress


def export(
    folder: Annotated[
        Path, Option("--to", metavar="FOLDER", help="The archive, new or to continue.")
    ],
    experiment: AnyExperiment = None,
    follow_log: Annotated[
        bool, Option("--follow", help="Export every ten minutes, until stopped.")
    ] = False,
    parallel: Parallel = 1,
    store: StoreUrl = None,
    url: ServiceUrl = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Export decisions and events as Parquet.

    Add the decisions and events since the last export to the Parquet files of an archive, and
    remove erased ones from it. The export only reads the store; a service may be running on it.

    Exit status: 0, or 1 where the store cannot be read, is not the archived one, or has damaged
    decisions, which the archive leaves out.

        forage export --to archive
        forage export --to archive --parallel 4
        forage export --to archive --follow
    """
    from service.offline.archive.export import export, follow
    from service.tables import aligned

    settings = read_settings(store=store, url=url, log_level=log_level, log_format=log_format)
    try:
        if follow_log:
            following = follow(
                settings.store, folder, experiment, settings.url, settings.key_headers, parallel
            )
            return run_until_stopped(following)
        with progress() as say:
            exporting = export(settings.store, folder, experiment, Progress(say), parallel)
            exported = uvloop.run(exporting)
    except OSError as fault:
        raise ConfigurationError(f"{folder}: {fault}") from fault
    counts = [[each.experiment, f"{each.decisions:,}", f"{each.events:,}"] for each in exported]
    print("\n".join(aligned([["experiment", "new decisions", "new events"], *counts])))
    return 1 if any(each.damaged for each in exported) else 0
