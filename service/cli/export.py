"""forage export: decisions joined with their rewards, as Parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import uvloop
from typer import Option

from service.cli.options import AnyExperiment, LogFormat, LogLevel, ServiceUrl, StoreUrl
from service.cli.running import progress, read_settings, run_until_stopped
from service.errors import ConfigurationError

if TYPE_CHECKING:
    from service.maintenance.archive.export import Exported


def export(
    folder: Annotated[
        Path, Option("--to", metavar="FOLDER", help="The archive, new or to continue.")
    ],
    experiment: AnyExperiment = None,
    follow_log: Annotated[
        bool, Option("--follow", help="Keep archiving final rows, until stopped.")
    ] = False,
    part_rows: Annotated[int, Option(min=1, metavar="N", help="Rows of a part.")] = 50_000,
    part_minutes: Annotated[
        int,
        Option(
            min=1,
            metavar="M",
            help="With --follow: longest that final rows wait for others of their part.",
        ),
    ] = 10,
    store: StoreUrl = None,
    url: ServiceUrl = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Archive decisions and their rewards as Parquet.

    Write decisions joined with their rewards to Parquet files by day. The archive holds final rows
    once, and beside them, rewritten each time, those that may still change. The export only reads
    the store; a service may be running on it.

    Exit status: 0, or 1 where the store cannot be read, is not the one archived there, or has
    damaged rows, which the archive leaves out.

        forage export --to archive
        forage export --to archive --follow
    """
    from service.maintenance.archive.archiver import Sizes
    from service.maintenance.archive.export import export, follow

    settings = read_settings(store=store, url=url, log_level=log_level, log_format=log_format)
    sizes = Sizes(part_rows, 60.0 * part_minutes)
    try:
        if follow_log:
            headers = settings.key_headers
            return run_until_stopped(
                follow(settings.store, folder, settings.url, experiment, sizes, headers)
            )
        with progress() as say:
            exported = uvloop.run(export(settings.store, folder, experiment, sizes, say))
    except OSError as fault:
        raise ConfigurationError(f"{folder}: {fault}") from fault
    print(table(exported))
    return 0 if all(each.unreadable == 0 for each in exported) else 1


def table(exported: Sequence["Exported"]) -> str:
    """Lay out one line an experiment."""
    from service.serving.audit_report import aligned

    rows = [["experiment", "rows", "final", "open", "parts", "MB"]]
    for each in exported:
        held = each.totals
        counts = [held.final + held.open, held.final, held.open, held.parts]
        rows.append(
            [each.experiment, *(f"{count:,}" for count in counts), f"{held.bytes / 1e6:,.1f}"]
        )
    return "\n".join(aligned(rows))
